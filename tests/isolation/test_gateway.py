"""The network of scripts in their box: where the grant and the caller let them, by the gateway, and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Budget, CallContext, Tavern
from tavern_core.box import landlock
from tavern_core.isolation.gateway import proxy
from tavern_core.isolation.gateway.proxy import ConnectionSlots

from ..executors.workbench import in_use, left_since, until
from ..guards.web import CERTIFICATE, Web, has_ipv6, http, web
from . import waiting
from .conftest import EACH, Place
from .conftest import Shared as SharedHosts

pytestmark = pytest.mark.slow

ASK = """
import select
def ask(text, *more):
    with socket.create_connection(('127.0.0.1', 3128)) as line:
        line.settimeout(20)
        got = b''
        for part in (text, *more): line.sendall(part.encode('latin-1'))
        while part := line.recv(65536): got += part
    return got.decode('latin-1')
def status(text): return ask(text).partition('\\r\\n')[0]
def tunnel(place): return ask(f'CONNECT {place} HTTP/1.1\\r\\n\\r\\n', 'GET / HTTP/1.0\\r\\n\\r\\n')
"""
URLLIB = "import urllib.request; answer = urllib.request.urlopen(f'http://{site}/', timeout=20).read().decode()"


class Shared(Place):
    """A place of one test, which may use hosts that others opened: what its scripts need to know is given with each call."""

    def __init__(self, root: Path, demo: SharedHosts) -> None:
        super().__init__(root)
        self._demo = demo

    def host(self, *capabilities: Any, isolation: dict[str, Any] | None = None) -> Tavern:
        """A host in which the plugin was granted `capabilities`; it stays open."""
        return self._demo(*capabilities, tier="process", isolation=isolation)[1]


@pytest.fixture
def place(tmp_path: Path, demo: SharedHosts) -> Shared:
    return Shared(tmp_path, demo)


@pytest.fixture(scope="module")
def module_site() -> Iterator[Web]:
    with web() as server:
        yield server


@pytest.fixture
def site(place: Shared, module_site: Web) -> Web:
    """One server for all tests of this module, so that they may share hosts: where it is, is in their grants."""
    for remembered in (module_site.answers, module_site.asked, module_site.bodies, module_site.names):
        remembered.clear()
    module_site.answers["/"] = http(b"hello", Content_Type="text/plain", X_Own="1")
    place.facts["site"] = module_site.place
    return module_site


def network(*scope: str, name: str = "network") -> dict[str, Any]:
    return {"name": name, "scope": list(scope)}


def ran(place: Place, tavern: Tavern, code: str, **context: Any) -> Any:
    result = place.run(tavern, ASK + code, **context)
    assert result.ok, result.error
    return result.value["answer"]


def tried(place: Shared, code: str, *capabilities: Any, isolation: dict[str, Any] | None = None, **context: Any) -> Any:
    return ran(place, place.host(*capabilities, isolation=isolation), code, **context)


def refusals(tavern: Tavern) -> list[str]:
    return [d.message for d in tavern.diagnostics if d.code == "NETWORK_REFUSED"]


# What just works --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        URLLIB,
        "import httpx2; answer = httpx2.get(f'http://{site}/').text",
        "import httpx2; answer = httpx2.Client(proxy=os.environ['ALL_PROXY']).get(f'http://{site}/').text",
        "import http.client\nc = http.client.HTTPConnection('127.0.0.1', 3128); c.set_tunnel(site); c.request('GET', '/'); answer = c.getresponse().read().decode()",
        "answer = ask(f'GET http://{site} HTTP/1.0\\r\\n\\r\\n').rpartition('\\r\\n')[2]",
        "answer = tunnel(site).rpartition('\\r\\n')[2]",
        "answer = subprocess.run(['curl', '-sS', f'http://{site}/'], capture_output=True, text=True).stdout",
        "answer = subprocess.run(['curl', '-sSp', f'http://{site}/'], capture_output=True, text=True).stdout",
    ],
)
def test_programs_that_know_of_proxies_reach_what_was_granted(place: Shared, site: Web, code: str) -> None:
    if "curl" in code and shutil.which("curl") is None:
        return
    assert tried(place, code, network(site.place), "process:spawn") == "hello"
    assert len(site.asked) == 1


def test_tls_is_between_the_program_and_the_server(place: Shared) -> None:
    pem = CERTIFICATE.read_text()
    place.facts["trusted"] = pem[pem.index("-----BEGIN CERTIFICATE") :]
    code = """
import ssl, http.client
line = http.client.HTTPSConnection('127.0.0.1', 3128, context=ssl.create_default_context(cadata=trusted))
line.set_tunnel(site)
line._tunnel_host, host = line._tunnel_host, 'good.example.com'
plain = http.client.HTTPConnection('127.0.0.1', 3128); plain.set_tunnel(site); plain.connect()
safe = ssl.create_default_context(cadata=trusted).wrap_socket(plain.sock, server_hostname=host)
safe.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')
answer = b''.join(iter(lambda: safe.recv(4096), b'')).decode().rpartition('\\r\\n')[2]
"""
    for capability in ("network", "read:web"):
        with web(tls=True) as server:
            server.answers["/"] = http(b"sealed")
            place.facts["site"] = server.place
            assert tried(place, code, network(server.place, name=capability)) == "sealed"
            assert server.names == ["good.example.com"]


def test_a_request_with_a_body_goes_on_as_it_came_and_without_what_is_for_the_proxy(place: Shared, site: Web) -> None:
    code = "\n".join((
        "answer = [",
        " ask(f'POST http://{site}/ HTTP/1.1\\r\\nHost: elsewhere.example\\r\\nContent-Length: 3\\r\\nProxy-Authorization: x\\r\\n\\r\\nabc')[:12],",
        " ask(f'PUT http://{site}/?q=1#f HTTP/1.1\\r\\nHost: x\\r\\nTransfer-Encoding: chunked\\r\\nConnection: X-Mine\\r\\nX-Mine: 1\\r\\nX-Other: 2\\r\\n\\r\\n', '3\\r\\nabc\\r\\n0\\r\\n\\r\\n')[:12],",
        "]",
    ))  # fmt: skip
    read = bytearray()

    def put(connection: socket.socket) -> None:
        read.extend(site.bodies[-1])
        while not read.endswith(b"0\r\n\r\n"):
            read.extend(connection.recv(4096))
        connection.sendall(http(b"put", "201 Created"))

    site.answers["/?q=1"] = put
    assert tried(place, code, network(site.place)) == ["HTTP/1.1 200", "HTTP/1.1 201"]
    assert read == b"3\r\nabc\r\n0\r\n\r\n"
    posted, sent = (head.lower() for head in site.asked)
    assert f"host: {site.place}" in posted and "elsewhere" not in posted and "proxy-" not in posted
    assert site.bodies[0] == b"abc"
    assert sent.startswith("put /?q=1 http/1.1") and "x-mine" not in sent and "x-other: 2" in sent


def test_a_name_is_looked_up_once_and_connected_to_where_it_was_judged(
    place: Shared, site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = know(monkeypatch, {"good.example.org": [["127.0.0.1"], ["10.0.0.1"]]})
    place.facts["named"] = f"good.example.org:{site.port}"
    scope = network(f"good.example.org:{site.port}", site.place)
    assert tried(place, "answer = tunnel(named).rpartition('\\r\\n')[2]", scope) == "hello"
    assert asked == ["good.example.org"]


def test_code_of_an_agent_reaches_what_the_operator_and_its_caller_let_it(tmp_path: Path) -> None:
    code = "import urllib.request; urllib.request.urlopen('http://PLACE/', timeout=20).read().decode()"
    node = (
        "new Promise(done => require('http').get({host: '127.0.0.1', port: 3128, path: 'http://PLACE/'}, "
        "r => r.on('data', d => done(String(d)))))"
    )
    with web() as site, web() as other:
        site.answers["/"] = other.answers["/"] = http(b"hello")
        config = {
            "plugins": {"entryPoints": False}, "tools": {"allow": ["CodeInterpreter:execute"]}, "net": {"allow": [site.place, other.place]},
        }  # fmt: skip
        with Tavern.open(config, home=tmp_path) as tavern:

            def run(code: str, where: Web, language: str = "python", **context: Any) -> dict[str, Any]:
                may = CallContext(permissions=frozenset({"process:spawn", "network"}), **context)
                given = {"language": language, "code": code.replace("PLACE", where.place)}
                result = tavern.invoke_sync("CodeInterpreter:execute", given, context=may)
                assert result.ok, result.error
                value: dict[str, Any] = result.value
                return value

            assert run(code, site)["value"] == "hello"
            narrow = {"network": (site.place,)}
            assert run(code, site, scopes=narrow)["value"] == "hello"
            refused = run(code, other, scopes=narrow)
            assert "403 Forbidden" in refused["stderr"].replace("Error 403: ", "403 ")
            assert f"CallContext(scopes={{'network': ['{other.place}']}})" in refused["stderr"]
            if shutil.which("node"):
                assert run(node, site, "javascript")["value"] == "hello"
                assert "403" not in run(node, site, "javascript")["value"]
                assert "may not connect" in run(node, other, "javascript", scopes=narrow)["value"]
        assert (len(other.asked), len(site.asked)) == (0, 4 if shutil.which("node") else 2)


# Where nobody may go ----------------------------------------------------------------------------------------------------


HERE = [
    "127.0.0.1:{port}", "localhost:{port}", "LOCALHOST.:{port}", "[::1]:{port}", "[::ffff:127.0.0.1]:{port}", "[::ffff:7f00:1]:{port}",
    "[::127.0.0.1]:{port}", "0.0.0.0:{port}", "[::]:{port}", "0:{port}", "127.1:{port}", "2130706433:{port}", "0x7f000001:{port}",
    "0177.0.0.1:{port}", "0x7f.1:{port}", "127.0.0.1.:{port}", "169.254.169.254:80", "10.0.0.1:443", "192.168.0.1:80", "[fd00::1]:80",
    "[fe80::1%lo]:80", "metadata.google.internal:80", "printer.local:80", "intranet:80", "example.org:22", "example.org:8080",
    "93.184.216.34:443", "a@example.org:80", "example.org@127.0.0.1:{port}", "example.org:0", "example.org:99999", "exa_mple..org:80",
]  # fmt: skip


@pytest.mark.parametrize("capability", ["network", "read:web"])
def test_without_a_scope_there_are_public_names_at_the_ports_of_the_web_and_nothing_else(
    place: Shared, site: Web, capability: str
) -> None:
    place.facts["places"] = [where.format(port=site.port) for where in HERE]
    code = "\n".join((
        "answer = [(p, status(f'CONNECT {p} HTTP/1.1\\r\\n\\r\\n')) for p in places]",
        "answer += [(p, status(f'GET http://{p}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')) for p in places]",
    ))  # fmt: skip
    answers = tried(place, code, capability)
    assert [row for row in answers if not row[1].startswith("HTTP/1.1 403 Forbidden: demo may not connect")] == []
    assert not site.asked


PRIVATE = [
    ["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["10.1.2.3"], ["::1"], ["::ffff:127.0.0.1"], ["169.254.169.254"], ["fd00::1"], ["0.0.0.0"],
    ["64:ff9b::7f00:1"], ["fe80::1%lo"],
]  # fmt: skip


def test_a_name_that_leads_to_a_private_address_is_not_connected_to(
    place: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {f"rebound-{number}.example.org": [answers] for number, answers in enumerate(PRIVATE)}
    asked = know(monkeypatch, {**names})
    place.facts["names"] = list(names)
    code = "answer = [status(f'CONNECT {name}:443 HTTP/1.1\\r\\n\\r\\n') for name in names]"
    said = dict(zip(names, tried(place, code, "network"), strict=True))
    assert {name: text for name, text in said.items() if "which is not a public address" not in text} == {}
    assert asked == list(names)


def test_a_refusal_names_plugin_place_permission_and_command_and_is_on_record(place: Shared, site: Web) -> None:
    with web() as other:
        place.facts["other"] = other.place
        code = "answer = [ask(f'GET http://{other}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'), ask(f'CONNECT {other} HTTP/1.1\\r\\n\\r\\n')] * 2"
        with place.open(network(site.place)) as tavern:
            events: list[Any] = []
            tavern.events.subscribe(events.append, "POLICY_DENIED")
            answers = ran(place, tavern, code)
            reported = [d for d in tavern.diagnostics if d.code == "NETWORK_REFUSED"]
        assert not other.asked
    said = f"demo may not connect to {other.place}: {other.place} is not in the scope ({site.place})"
    for answer in answers:
        first, _, body = answer.partition("\r\n")
        for text in (first, body):
            assert said in text
            assert (
                f"missing is network for it: plugin.yaml: permissions: {{capabilities: [{{name: network, scope: ['{other.place}']}}]}}"
                in text
            )
            assert "tavern plugins grant demo network" in text
    assert [(d.plugin, d.message, "tavern plugins grant demo network" in d.hint) for d in reported] == [
        ("demo", said, True)
    ]
    assert [(e.plugin, e.data["tool"], e.data["reason"], e.data["target"]) for e in events] == [
        ("demo", "demo:try", said, other.place)
    ]
    assert all(event.call_id for event in events)


def test_one_call_puts_a_bounded_number_of_refusals_on_record(place: Shared) -> None:
    code = "for n in range(1, 60): status(f'CONNECT 10.0.0.{n}:80 HTTP/1.1\\r\\n\\r\\n')"
    with place.open("network") as tavern:
        ran(place, tavern, code)
        assert len(refusals(tavern)) == 20


# Whose rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "context", "may"),
    [
        ("network", {}, True),
        ("network", {"permissions": frozenset({"network"})}, True),
        ("network", {"permissions": frozenset({"network"}), "scopes": {"network": ("127.0.0.1:*",)}}, True),
        (
            "network",
            {"permissions": frozenset({"network"}), "scopes": {"network": ("127.0.0.2:*", "example.org")}},
            False,
        ),
        ("network", {"permissions": frozenset({"network"}), "scopes": {"network": ()}}, False),
        ("network", {"permissions": frozenset({"read:web"})}, False),
        ("network", {"permissions": frozenset()}, False),
        ("read:web", {"permissions": frozenset({"read:web"})}, True),
        ("read:web", {"permissions": frozenset({"network"})}, False),
    ],
    ids=str,
)
def test_a_script_reaches_no_more_than_its_caller(
    place: Shared, site: Web, capability: str, context: dict[str, Any], may: bool
) -> None:
    code = "try: answer = status(f'GET http://{site}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')[:12]\nexcept OSError as e: answer = repr(e)"
    who = {"principal": "user:a", **context} if context else {}
    answer = tried(place, code, network(site.place, name=capability), **who)
    assert answer == ("HTTP/1.1 200" if may else "PermissionError(1, 'Operation not permitted')")
    assert len(site.asked) == may


def test_reading_the_web_is_reading(place: Shared, site: Web) -> None:
    methods = place.facts["methods"] = ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]
    code = "answer = [status(f'{method} http://{site}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n') for method in methods]"
    for method, said in zip(methods, tried(place, code, network(site.place, name="read:web")), strict=True):
        assert said.startswith("HTTP/1.1 403"), method
        assert f"{method} takes network" in said and "grant demo network" in said, said
    assert not site.asked


@pytest.mark.parametrize(
    "first", ["GET / HTTP/1.0\\r\\n\\r\\n", "SSH-2.0-x\\r\\n", "\\x16\\x02\\x00", "\\x15\\x03\\x01"]
)
def test_with_reading_the_web_alone_a_tunnel_carries_tls_only(place: Shared, site: Web, first: str) -> None:
    code = f"answer = ask(f'CONNECT {{site}} HTTP/1.1\\r\\n\\r\\n', '{first}')"
    with place.open(network(site.place, name="read:web")) as tavern:
        assert ran(place, tavern, code) == "HTTP/1.1 200 Connection established\r\n\r\n"
        assert ["carries TLS only" in said for said in refusals(tavern)] == [True]
    assert not site.asked


def test_the_whole_network_of_the_host_is_a_permission_of_its_own(place: Shared, site: Web) -> None:
    code = "answer = [n for n in os.environ if 'proxy' in n.lower()], socket.create_connection(('127.0.0.1', port)).close(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()"
    place.facts["port"] = site.port
    with place.open("network:host", grant=False) as tavern:
        assert place.run(tavern, code).value["did"] is False
    assert tried(place, code, "network:host") == [[], None, None]
    assert tried(place, code, "network:host", network("example.org")) == [[], None, None]
    tavern = place.host("network:host", "network")
    result = place.run(tavern, code, principal="user:a", permissions=frozenset({"network"}))
    assert (result.value["did"], "Connection refused" in result.value["answer"]) == (False, True)


BESIDE = {
    # what a script tries: the error that it gets
    "socket.create_connection(site.split(':'))": "ConnectionRefusedError",
    "socket.create_connection(('10.0.0.1', 80), 5)": "OSError: [Errno 101] Network is unreachable",
    "socket.create_connection(('1.1.1.1', 53), 5)": "OSError: [Errno 101] Network is unreachable",
    "socket.getaddrinfo('example.org', 80)": "gaierror",
    "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)": "PermissionError",
    "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)": "PermissionError",
    "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)": "PermissionError",
    "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)": "PermissionError",
    "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)": "PermissionError",
    "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)": "PermissionError",
    "socket.socket(socket.AF_UNIX)": "PermissionError",
    "os.unshare(0x40000000) if hasattr(os, 'unshare') else open('/proc/self/setgroups', 'w')": "PermissionError",
}


def test_beside_the_gateway_there_is_no_way_out(place: Shared, site: Web) -> None:
    place.facts["codes"] = list(BESIDE)
    result = place.run(place.host(network(site.place)), EACH)
    assert result.ok, result.error
    for (code, error), (did, answer) in zip(BESIDE.items(), result.value["answer"], strict=True):
        assert (did, error in answer) == (False, True), (code, answer)


def test_two_calls_at_once_each_have_a_gateway_of_their_own(place: Shared, site: Web) -> None:
    code = ASK + "answer = status(f'GET http://{site}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')[9:12]"

    async def all_at_once(tavern: Tavern) -> list[Any]:
        def call(**context: Any) -> Any:
            who = CallContext(permissions=frozenset({"network"}), **context)
            return tavern.invoke("demo:try", {"code": code, "facts": place.facts}, context=who)

        results = await asyncio.gather(*(call(scopes={"network": ("example.org",)} if n % 2 else {}) for n in range(6)))
        return [result.value["answer"] for result in results]

    with place.open(network(site.place, "example.org")) as tavern:
        assert asyncio.run(all_at_once(tavern)) == ["200", "403"] * 3


# What is not a request -----------------------------------------------------------------------------------------------------

BROKEN = {
    "both lengths": "POST http://S/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": "POST http://S/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a length of two": "POST http://S/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc",
    "a signed length": "POST http://S/ HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc",
    "another coding": "POST http://S/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": "POST http://S/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "chunks in 1.0": "POST http://S/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a broken chunk": "POST http://S/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "a bare LF": "GET http://S/ HTTP/1.1\nHost: x\r\nX: y\r\n\r\n",
    "a bare LF in a header": "GET http://S/ HTTP/1.1\r\nHost: x\r\nX: y\nEvil: 1\r\n\r\n",
    "a bare CR": "GET http://S/ HTTP/1.1\r\nHost: x\r\nX: y\rEvil: 1\r\n\r\n",
    "a folded header": "GET http://S/ HTTP/1.1\r\nHost: x\r\nX: y\r\n z\r\n\r\n",
    "a blank before the colon": "GET http://S/ HTTP/1.1\r\nHost: x\r\nContent-Length : 3\r\n\r\nabc",
    "a null": "GET http://S/ HTTP/1.1\r\nHost: x\r\nX: \0\r\n\r\n",
    "two hosts": "GET http://S/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "a tab between the words": "GET\thttp://S/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "no version": "GET http://S/\r\n\r\n",
    "another version": "GET http://S/ HTTP/2.0\r\n\r\n",
    "no host": "GET http://S/ HTTP/1.1\r\n\r\n",
    "a path alone": "GET / HTTP/1.1\r\nHost: S\r\n\r\n",
    "an asterisk": "OPTIONS * HTTP/1.1\r\nHost: S\r\n\r\n",
    "a tunnel with a body": "CONNECT S HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    "nothing but a name": "GET S HTTP/1.1\r\n\r\n",
    "another scheme": "GET ftp://S/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "a tunnel to a path": "CONNECT http://S/ HTTP/1.1\r\n\r\n",
    "a tunnel without a port": "CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n",
    "an address in two": "GET http://S\\@example.org/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "too many headers": "GET http://S/ HTTP/1.1\r\nHost: x\r\n" + "X: y\r\n" * 101 + "\r\n",
    "too large a head": "GET http://S/ HTTP/1.1\r\nHost: x\r\nX: " + "y" * 20_000 + "\r\n\r\n",
    "no end": "GET http://S/ HTTP/1.1\r\nHost: x\r\nX: y\r\n",
    "another protocol": "\x05\x01\x00",
    "TLS": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}


def test_what_two_readers_could_read_differently_is_not_sent_on(place: Shared, site: Web) -> None:
    place.facts["broken"] = {name: text.replace("S", site.place, 1) for name, text in BROKEN.items()}
    code = """
answer = {}
for name, text in broken.items():
    with socket.create_connection(('127.0.0.1', 3128)) as line:
        line.settimeout(20)
        try:
            line.sendall(text.encode('latin-1'))
            line.shutdown(socket.SHUT_WR)
            got = b''.join(iter(lambda: line.recv(65536), b''))
        except ConnectionError: got = b'HTTP/1.1 431'
        answer[name] = got.decode('latin-1')[:12]
"""
    answers = tried(place, code, network(site.place))
    assert set(answers) == set(BROKEN)
    assert {
        name: said for name, said in answers.items() if said not in ("HTTP/1.1 400", "HTTP/1.1 403", "HTTP/1.1 431")
    } == {}
    whole = [head for head in site.asked if "chunked" not in head.lower()]
    assert whole == []  # of the broken chunk the head went on, and no body


def test_what_comes_after_a_request_is_dropped(place: Shared, site: Web) -> None:
    code = "\n".join((
        "second = f'GET http://{site}/second HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'",
        "answer = [ask(f'GET http://{site}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' + second).count('HTTP/1.1'),",
        " ask(f'POST http://{site}/ HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 3\\r\\n\\r\\nabc' + second).count('HTTP/1.1'),",
        " ask(f'POST http://{site}/ HTTP/1.1\\r\\nHost: x\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n' + second).count('HTTP/1.1')]",
    ))  # fmt: skip
    assert tried(place, code, network(site.place)) == [1, 1, 1]
    assert [head.split(" ")[1] for head in site.asked] == ["/"] * 3


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"SSH-2.0\r\n",
        b"HTTP/1.1 200 OK\r\nX: y\r\n",
        b"HTTP/1.1 101 Now\r\n\r\n",
        b"\0" * 100_000,
    ],
    ids=["nothing", "half a body", "another protocol", "half a head", "another one from now on", "zeros"],
)
def test_a_server_that_breaks_off_breaks_off_one_request(place: Shared, site: Web, answer: bytes) -> None:
    site.answers["/"] = answer
    site.answers["/again"] = http(b"well")
    code = "answer = [ask(f'GET http://{site}/{p} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n') for p in ('', 'again')]"
    one, other = tried(place, code, network(site.place))
    assert one.startswith("HTTP/1.1 502") or one.endswith("ab")
    assert other.endswith("well")


def test_a_program_that_waited_to_send_its_body_still_gets_the_reason_of_a_failure(place: Shared, site: Web) -> None:
    site.answers["/"] = b""
    head = "POST http://{site}/ HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 3\\r\\nExpect: 100-continue\\r\\n\\r\\n"
    interim, _, answer = tried(place, f"answer = ask(f'{head}', 'abc')", network(site.place)).partition("\r\n\r\n")
    assert interim.startswith("HTTP/1.1 100")
    assert answer.startswith("HTTP/1.1 502") and "it ended before it answered" in answer


def test_a_port_without_a_listener_is_reported(place: Shared) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        place.facts["site"] = f"127.0.0.1:{unused.getsockname()[1]}"
        code = "answer = [status(f'GET http://{site}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'), status(f'CONNECT {site} HTTP/1.1\\r\\n\\r\\n')]"
        answers = tried(place, code, network(place.facts["site"]))
    assert [("502" in said, "cannot be reached" in said) for said in answers] == [(True, True)] * 2


# Bounds -----------------------------------------------------------------------------------------------------------------


def test_further_connections_wait_for_one_to_end(place: Shared, site: Web) -> None:
    code = """
held = [socket.create_connection(('127.0.0.1', 3128)) for _ in range(2)]
third = socket.create_connection(('127.0.0.1', 3128))
third.sendall(f'GET http://{site}/ HTTP/1.0\\r\\n\\r\\n'.encode())
early = select.select([third], [], [], 0.5)[0] != []
held.pop().close()
third.settimeout(20)
answer = [early, third.recv(12).decode()]
"""
    assert tried(place, code, network(site.place), isolation={"connections": 2}) == [False, "HTTP/1.1 200"]


def test_all_calls_of_a_host_share_a_number_of_connections(
    place: Shared, site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    seats = ConnectionSlots(2)
    monkeypatch.setattr(proxy, "_seats", seats)
    code = "held = [socket.create_connection(('127.0.0.1', 3128)) for _ in range(2)]\nanswer = status(f'GET http://{site}/ HTTP/1.0\\r\\n\\r\\n')"
    tavern = place.host(network(site.place))
    assert ran(place, tavern, code).startswith("HTTP/1.1 503")
    waiting.until(lambda: seats._left == 2)  # the proxy has noticed that the script is over
    assert "200" in ran(place, tavern, "answer = status(f'GET http://{site}/ HTTP/1.0\\r\\n\\r\\n')")


@pytest.mark.parametrize(
    "way",
    ["GET http://{site}/ HTTP/1.0\\r\\n\\r\\n", "CONNECT {site} HTTP/1.1\\r\\n\\r\\n', 'GET / HTTP/1.0\\r\\n\\r\\n"],
)
def test_a_call_moves_so_many_bytes_and_no_more(place: Shared, site: Web, way: str) -> None:
    site.answers["/"] = http(b"x" * 3_000_000)
    code = f"answer = [len(ask(f'{way}')), status(f'GET http://{{site}}/ HTTP/1.0\\r\\n\\r\\n')]"
    with place.open(network(site.place), isolation={"networkBytes": 1_000_000}) as tavern:
        size, then = ran(place, tavern, code)
        assert size < 1_100_000
        assert then.startswith("HTTP/1.1 403") and "1,000,000 bytes" in then
        assert any("1,000,000 bytes" in said for said in refusals(tavern))


def test_a_head_that_does_not_end_ends_in_time(place: Shared, site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "HEAD_S", 0.3)
    code = "\n".join((
        "line = socket.create_connection(('127.0.0.1', 3128)); line.settimeout(20)",
        "line.sendall(b'GET http://')",
        "answer = line.recv(12).decode()",
    ))  # fmt: skip
    assert tried(place, code, network(site.place)) == "HTTP/1.1 408"


def test_a_flood_of_connections_delays_no_call_and_leaves_nothing(place: Shared, site: Web) -> None:
    flood = """
import threading
held = []
def open_all():
    for _ in range(28):
        try: held.append(socket.create_connection(('127.0.0.1', 3128), 1)); held[-1].sendall(b'CONNECT ')
        except OSError: pass
threads = [threading.Thread(target=open_all) for _ in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
answer = len(held)
"""
    quick = ASK + "answer = status(f'GET http://{site}/ HTTP/1.0\\r\\n\\r\\n')[9:12]"

    async def together(tavern: Tavern) -> list[Any]:
        def call(code: str) -> Any:
            return tavern.invoke("demo:try", {"code": code, "facts": place.facts})

        await call(quick)
        before = in_use()
        floods = [asyncio.ensure_future(call(flood)) for _ in range(2)]
        answers = [(await call(quick)).value["answer"] for _ in range(3)]
        counts = [(await one).value["answer"] for one in floods]
        with contextlib.suppress(AssertionError):
            await until(lambda: not left_since(before))
        return [answers, all(counts), left_since(before)]

    assert asyncio.run(together(place.host(network(site.place)))) == [["200"] * 3, True, []]


@pytest.mark.parametrize("way", ["cancelled", "too late", "at its end"])
def test_connections_end_with_the_call(place: Shared, site: Web, way: str) -> None:
    reached, over = threading.Event(), threading.Event()

    def answer(connection: socket.socket) -> None:
        reached.set()
        connection.settimeout(30)
        if connection.recv(1) == b"":
            over.set()

    site.answers["/"] = answer
    code = "line = socket.create_connection(('127.0.0.1', 3128)); line.sendall(f'CONNECT {site} HTTP/1.1\\r\\n\\r\\n'.encode()); line.recv(99)\n"
    code += "line.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
    code += "import time; time.sleep(60)" if way != "at its end" else f"import time; time.sleep({0.5})"

    async def call(tavern: Tavern) -> None:
        budget = Budget(timeout_ms=3000 if way == "too late" else None)
        context = CallContext(permissions=frozenset({"network"}), budget=budget)
        work = asyncio.ensure_future(tavern.invoke("demo:try", {"code": code, "facts": place.facts}, context=context))
        await until(reached.is_set)
        if way == "cancelled":
            work.cancel()
        await asyncio.wait([work])
        await until(over.is_set)

    asyncio.run(call(place.host(network(site.place))))


# Without namespaces -----------------------------------------------------------------------------------------------------


def test_without_namespaces_the_gateway_is_there_cannot_be_enforced_and_the_host_says_so(
    place: Shared, site: Web
) -> None:
    code = """
import urllib.request, urllib.parse, urllib.error
proxy = urllib.parse.urlsplit(os.environ['HTTP_PROXY'])
answer = [urllib.request.urlopen(f'http://{site}/', timeout=20).read().decode()]
try: urllib.request.urlopen(f'http://{other}/', timeout=20)
except urllib.error.HTTPError as error: answer.append(error.code)
for user in ('', 'Proxy-Authorization: Basic dGF2ZXJuOng=\\r\\n'):
    with socket.create_connection((proxy.hostname, proxy.port)) as line:
        line.settimeout(20)
        line.sendall(f'GET http://{site}/ HTTP/1.0\\r\\n{user}\\r\\n'.encode())
        answer.append(line.recv(12).decode())
try: socket.create_connection(other.split(':')).close()
except PermissionError: answer.append('refused')
"""
    has_ports = landlock.version() >= 4
    with web() as other:
        place.facts["other"] = other.place
        with place.open(network(site.place), isolation={"level": "best-effort", "without": ["namespaces"]}) as tavern:
            assert ran(place, tavern, code) == ["hello", 403, "HTTP/1.1 407", "HTTP/1.1 407", *["refused"][:has_ports]]
            weak = [d.message for d in tavern.diagnostics if d.code == "ISOLATION_WEAK"]
        assert len(weak) == 1
        assert "namespaces" in weak[0] and "reach all of it, whatever the scope says" in weak[0]
        with place.open(network(site.place), isolation={"level": "required", "without": ["namespaces"]}) as tavern:
            error = place.run(tavern, code).error
        assert error is not None
        assert (error.kind, error.details["layer"]) == ("POLICY_DENIED", "namespaces")
    assert len(site.asked) == 1


def test_variables_of_the_host_about_proxies_do_not_lead_around_it(
    place: Shared, site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = json.loads((place.plugin / "tools" / "try.tool.json").read_text())
    tool["implementation"]["env"] = ["NO_PROXY", "no_proxy", "HTTPS_PROXY"]
    (place.plugin / "tools" / "try.tool.json").write_text(json.dumps(tool))
    for name in ("NO_PROXY", "no_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    code = "answer = sorted({v for n, v in os.environ.items() if n.lower().endswith('_proxy') and not n.startswith('NODE')}), os.environ.get('NODE_USE_ENV_PROXY')"
    variables = [f"env:{name}" for name in ("NO_PROXY", "no_proxy", "HTTPS_PROXY")]
    with place.open(network(site.place), *variables) as tavern:
        assert ran(place, tavern, code) == [["", "http://127.0.0.1:3128"], "1"]


def know(monkeypatch: pytest.MonkeyPatch, names: dict[str, list[list[str]]]) -> list[str]:
    """Let the system know these names; each look-up takes the next answer, the last one stays. Returns what was looked up."""
    asked: list[str] = []
    real: Callable[..., Any] = socket.getaddrinfo

    def look_up(name: Any, port: Any, *more: Any, **named: Any) -> Any:
        if name not in names:
            return real(name, port, *more, **named)
        asked.append(name)
        answers = names[name]
        return [(0, 0, 0, "", (address, port)) for address in (answers.pop(0) if len(answers) > 1 else answers[0])]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


def test_there_is_ipv6_where_the_machine_has_it(place: Shared) -> None:
    if not has_ipv6():
        return
    with web("::1") as server:
        server.answers["/"] = http(b"six")
        place.facts["site"] = server.place
        assert tried(place, URLLIB, network(server.place)) == "six"
