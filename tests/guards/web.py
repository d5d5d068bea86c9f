"""A web server on this machine that answers what a test says, byte by byte, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

Answer = bytes | Callable[[socket.socket], None]

# A key and a certificate for good.example.com that nobody trusts but these tests; from 2020 to 2120.
CERTIFICATE = Path(__file__).parent / "good.example.com.pem"


def self_signed() -> str:
    """A certificate for 127.0.0.1, with its key, that no authority has issued."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM) + pem).decode()


def http(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """An answer, after which the server closes; header names are written with ``_`` for ``-``."""
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def redirect(to: str, status: str = "302 Found") -> bytes:
    return http(b"", status, Location=to)


class Web:
    """One server. `answers` maps the path of a request to what comes back."""

    def __init__(self, family: socket.AddressFamily, host: str, tls: bool) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        """The head of each request."""
        self.bodies: list[bytes] = []
        self.names: list[str | None] = []
        """The name of each TLS handshake."""
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.bind((host, 0))
        self._socket.listen(32)
        self.port: int = self._socket.getsockname()[1]
        self.host = f"[{host}]" if ":" in host else host
        self._tls: ssl.SSLContext | None = None
        if tls:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(CERTIFICATE)
            self._tls.sni_callback = lambda connection, name, context: self.names.append(name)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def place(self) -> str:
        """``127.0.0.1:8080``."""
        return f"{self.host}:{self.port}"

    def url(self, path: str = "/") -> str:
        return f"http://{self.place}{path}"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                head, body = _request(connection)
                if not head:
                    return  # it went away before it asked
                self.asked.append(head)
                self.bodies.append(body)
                answer = self.answers.get(head.split(" ")[1], http(b"nothing here", "404 Not Found"))
                connection.sendall(answer) if isinstance(answer, bytes) else answer(connection)


def _request(connection: socket.socket) -> tuple[str, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (part := connection.recv(65536)):
            break
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head.decode("latin-1"), body


@contextlib.contextmanager
def web(host: str = "127.0.0.1", *, tls: bool = False) -> Iterator[Web]:
    server = Web(socket.AF_INET6 if ":" in host else socket.AF_INET, host, tls)
    try:
        yield server
    finally:
        server.close()


def has_ipv6() -> bool:
    """Whether this machine lets anybody listen on ::1."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


def addresses(**names: Sequence[str]) -> Callable[[str, int], object]:
    """A resolver that knows these names, written with ``_`` for ``.``; each look-up takes the next answer, the last one stays."""
    known = {
        name.replace("_", "."): [[a] if isinstance(a, str) else list(a) for a in answers]
        for name, answers in names.items()
    }

    async def resolve(name: str, port: int) -> list[str]:
        answers = known[name]
        return list(answers.pop(0) if len(answers) > 1 else answers[0])

    return resolve
