"""Writes entries of `upstreams:` from a command line, or from the ``mcpServers`` JSON of other MCP hosts.

    tavern upstreams add mcp -- uvx mcp-server-time      →  time: {kind: mcp, command: [uvx, mcp-server-time], trusted: true}
    tavern upstreams import claude_desktop_config.json   →  an entry for each of its servers

Writing an entry grants nothing. No secret is copied: a variable or header that may hold one becomes a reference.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tavern_core.errors import ConfigInvalid
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.config.yaml_edit import set_members
from tavern_core.kernel.files.atomic_file import read_text
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.kernel.text.json_document import read_json
from tavern_core.model.environment_variables import is_refused
from tavern_core.model.naming_rules import is_plugin_name, is_reserved
from tavern_core.model.pydantic_errors import explain
from tavern_core.model.upstream_config import INSTALLERS, UpstreamConfig
from tavern_core.schema.secret_names import is_secret_name
from tavern_core.schema.secret_scanning import redact_text

MOST_SERVERS: Final = 200
_LARGEST: Final = 32_000_000
"""In bytes: some hosts keep all of their settings in the same file."""
_MOST_VALUES: Final = 2_000_000
_SMALLER: Final = "copy the `mcpServers` that you want into a file of its own, and import that"
_SERVERS: Final = ("mcpServers", "servers", "context_servers")
"""Keys under which other hosts store their servers."""
_URLS: Final = ("url", "serverUrl", "httpUrl")
_REFERENCE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]{0,127})\}")
_PLACEHOLDER: Final = re.compile(r"\$\{[^{}]*\}")
"""Placeholders that another host replaces: a variable, an input of its user, a folder."""
_FOLDERS: Final = frozenset({"workspaceFolder", "workspaceFolderBasename", "userHome", "pathSeparator", "cwd"})
"""Placeholder names that do not mean an environment variable there."""
_NOT_IMPORTED: Final[Mapping[str, str]] = {
    "envFile": "write its variables into `environment`",
    "cwd": "programs start in the folder of tavern.yaml",
    "headersHelper": "write the headers into `headers`, secrets by reference",
    "oauth": "write what the login needs into `settings`: `clientId`, `clientSecret`, `scope`, `redirectPort`",
    "auth": "write what the login needs into `settings`: `clientId`, `clientSecret`, `scope`, `redirectPort`",
    "includeTools": "write its names into `allow`",
    "enabledTools": "write its names into `allow`",
    "excludeTools": "write its names into `deny`",
    "disabledTools": "write its names into `deny`",
    "timeout": "write it into `timeoutMs`, in milliseconds",
    "alwaysAllow": "write ids of tools that need no approval into `approval.allow`",
    "autoApprove": "write ids of tools that need no approval into `approval.allow`",
}
"""Key of a server of another host → the key that replaces it here."""
_STRING: Final = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)'
_STRING_OR_COMMENT: Final = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_STRING_OR_LAST_COMMA: Final = re.compile(rf"({_STRING})|,(?=\s*[\]}}])", re.DOTALL)
_SECRET_PARTS: Final = frozenset({"auth", "pass", "pat", "pw"})
"""Parts of variable names that mark secrets in these files, and have other meanings elsewhere."""
_SECRET_START: Final = re.compile(r"(?:bearer|basic)\s+\S", re.IGNORECASE)
_HOST_AND_PORT: Final = re.compile(r"[\w.-]+:\d+(?:/\S*)?")
_OF_PACKAGES: Final = frozenset({"langchain", "llm"})
"""Kinds whose upstreams are installed distributions."""
_AFFIXES: Final = re.compile(r"^(?:mcp-server-|server-|mcp-)|(?:-mcp-server|-mcp|-server)$")
"""Common beginnings and endings of server names, which identify no server."""


@dataclass(frozen=True, slots=True)
class NewUpstreamEntry:
    """An entry to write, and what the operator must know about it."""

    name: str
    entry: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def entry_of_words(kind: str, words: Sequence[str], name: str = "") -> NewUpstreamEntry:
    """The entry for an address (``https://…``), a command, or, for kinds of packages, an installed package.

    Args:
        name: the name of the entry; empty: derived from the words.

    Raises:
        ConfigInvalid: no entry can be made from it (CONFIG_INVALID).
    """
    if words and "://" in words[0]:
        if len(words) > 1:
            raise ConfigInvalid(
                f"{redact_text(words[0])} is an address, which no further words follow",
                hint=f"tavern upstreams add {kind} ADDRESS, then write its `headers` into tavern.yaml",
            )
        entry: dict[str, Any] = {"kind": kind, "url": words[0]}
    elif len(words) == 1 and _HOST_AND_PORT.fullmatch(words[0]):
        raise ConfigInvalid(f"{words[0]!r} is neither an address nor a program", hint=f"write http://{words[0]}")
    elif len(words) == 1 and kind in _OF_PACKAGES:
        entry = {"kind": kind, "package": words[0]}
    else:
        entry = {"kind": kind, "command": list(words)}
        if UpstreamConfig.model_construct(command=tuple(words)).needs_full_trust:
            entry["trusted"] = True
    notes = ["it runs outside of the sandbox, with your rights"] if entry.get("trusted") else []
    return _validated(
        NewUpstreamEntry(_name(name) if name else _name_of(words, kind), entry, (*_open_secrets(entry), *notes))
    )


def read_servers(file: Path) -> str:
    """The text of another MCP host's file. Raises ConfigInvalid: it cannot be read (CONFIG_INVALID)."""
    try:
        with open_regular(file) as opened:
            data = opened.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ConfigInvalid(f"{file} is larger than {_LARGEST:,} bytes", hint=_SMALLER)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigInvalid(f"{file} cannot be read: it is not UTF-8", hint="save it as UTF-8") from None
    except OSError as error:
        raise ConfigInvalid(f"{file} cannot be read: {error}", hint="name a file with `mcpServers` in JSON") from None


def _without_comments(text: str) -> str:
    """Plain JSON from JSON with comments and trailing commas, which some hosts write; all positions stay the same."""

    def blank(found: re.Match[str]) -> str:
        return found[1] or re.sub(r"[^\n]", " ", found[0])

    return _STRING_OR_LAST_COMMA.sub(blank, _STRING_OR_COMMENT.sub(blank, text))


def _servers_of(text: str, file: str) -> list[tuple[str, Any, str]]:
    """Name, server, and the folder where the other host uses it (empty: everywhere); equal servers are merged."""
    document = read_json(
        _without_comments(text), file, code=ConfigInvalid.code, largest=_LARGEST, most_values=_MOST_VALUES
    )
    if document.findings:
        first = document.findings[0]
        raise ConfigInvalid(first.located, hint=first.hint, findings=document.findings)
    data = document.data if isinstance(document.data, dict) else {}
    servers = next((data[key] for key in _SERVERS if isinstance(data.get(key), dict)), None)
    if servers is None and isinstance(data.get("mcp"), dict):
        servers = data["mcp"].get("servers")
    places = [("", servers)]
    if isinstance(projects := data.get("projects"), dict):  # as in Claude Code
        places += (
            (path, settings.get("mcpServers")) for path, settings in projects.items() if isinstance(settings, dict)
        )
    found: dict[tuple[str, str], tuple[str, Any, str]] = {}
    for folder, listed in places:
        for name, server in listed.items() if isinstance(listed, dict) else ():
            found.setdefault((name, json.dumps(server, sort_keys=True)), (name, server, folder))
    if not found:
        raise ConfigInvalid(f"{file} holds no servers", hint='expected {"mcpServers": {"name": {"command": …}}}')
    if len(found) > MOST_SERVERS:
        raise ConfigInvalid(f"{file} has {len(found):,} servers; at most {MOST_SERVERS} are imported", hint=_SMALLER)
    return [*found.values()]


def entries_of_json(
    text: str, file: str, known: Mapping[str, Any] | None = None
) -> tuple[list[NewUpstreamEntry], dict[str, str]]:
    """The entries for a file of another MCP host; and the servers that cannot become entries: name → reason.

    Args:
        file: its name, for messages.
        known: the existing upstreams, as written.

    Raises:
        ConfigInvalid: it is not such a file, or none of its servers can become an entry (CONFIG_INVALID).
    """
    servers = _servers_of(text, file)
    found: dict[str, NewUpstreamEntry] = {}
    left_out: dict[str, str] = {}
    taken = dict(known or {})
    # The others get the names that remain.
    for name, server, folder in sorted(servers, key=lambda item: not _is_name(item[0])):
        label = f"{name} of {folder}" if folder else name
        try:
            new = _validated(_entry_of(name, server, taken, folder))
        except ConfigInvalid as error:
            left_out[label] = error.message
            continue
        if new.name in taken:
            left_out[label] = f"there is an upstream {new.name!r} already"
        else:
            found[new.name] = new
            taken[new.name] = new.entry
    if not found:
        reasons = "; ".join(f"the server {name!r:.80} is not imported: {why}" for name, why in left_out.items())
        raise ConfigInvalid(f"{file}: {reasons}")
    return list(found.values()), left_out


def write_entries(file: Path, entries: Sequence[NewUpstreamEntry]) -> None:
    """Write entries into tavern.yaml, keeping its comments; a missing file is created.

    Raises:
        ConfigInvalid: an upstream with this name exists, or the file cannot be edited (CONFIG_INVALID).
    """
    check_names(file, entries)
    set_members(file, "upstreams", {new.name: new.entry for new in entries})


def check_names(file: Path, entries: Sequence[NewUpstreamEntry]) -> None:
    """Return if no entry has the name of an upstream in tavern.yaml. Raises ConfigInvalid: one has (CONFIG_INVALID)."""
    known = written_entries(file)
    for new in entries:
        if new.name in known:
            raise ConfigInvalid(
                f"{file} has an upstream {new.name!r} already", hint="give the new one another name with --name"
            )


def written_entries(file: Path) -> dict[str, Any]:
    """The upstreams in tavern.yaml, by name. Raises ConfigInvalid: it cannot be read (CONFIG_INVALID)."""
    from tavern_core.kernel.text.document import LARGEST_FILE
    from tavern_core.kernel.text.yaml_reader import read_yaml

    text = read_text(file, LARGEST_FILE) if file.is_file() else None
    data = read_yaml(text or "", str(file), code=ConfigInvalid.code).data
    found = data.get("upstreams") if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _entry_of(name: str, server: Any, taken: Mapping[str, Any], folder: str) -> NewUpstreamEntry:
    if not isinstance(server, Mapping):
        raise ConfigInvalid("it is not an object")
    notes: list[str] = []
    entry_name = _name_of_server(name, server, taken)
    prefix = entry_name.upper().replace("-", "_")
    if (url := _url(server)) is not None:
        entry: dict[str, Any] = {"kind": "mcp", "url": url}
        if headers := dict(_values(server.get("headers"), prefix, notes)):
            entry["headers"] = headers
    elif isinstance(server.get("command"), str):
        entry = {**entry_of_words("mcp", words := _command(server), entry_name).entry}
        if words[0] != server["command"]:
            notes.append(
                f"it is started through {server['command']!r:.80} there, a program of Windows: the command after /c is used"
            )
        if environment := dict(_values(server.get("env"), "", notes)):
            entry["environment"] = environment
    else:
        raise ConfigInvalid("it has neither `command` nor `url`")
    if server.get("type") == "sse":
        notes.append("its transport is SSE there, which is out of use: it is reached over streamable HTTP here")
    notes += (f"its `{key}` is not imported: {instead}" for key, instead in _NOT_IMPORTED.items() if server.get(key))
    notes += _open_secrets(entry)
    if folder:
        notes.append(f"it is used only in {folder} there")
    if not _is_name(name):
        notes.append(f"it is called {name!r:.80} there, which cannot be a name here")
    if entry.get("trusted"):
        notes.append("it runs outside of the sandbox, with your rights")
    if server.get("disabled") is True:
        notes.append("it is switched off there; nothing uses it here either until you grant it")
    return NewUpstreamEntry(entry_name, entry, tuple(notes))


def _open_secrets(entry: Mapping[str, Any]) -> Iterator[str]:
    """Notes for the operator about secrets and placeholders in places that cannot hold references."""
    words, url = entry.get("command", ()), entry.get("url", "")
    if redact_text(line := shlex.join(words)) != line:
        yield "its command line may hold a secret, which review and the lock file show: move it into `environment`, by reference"
    if redact_text(url) != url:
        yield "its address may hold a secret, which review and the lock file show: move it into `headers`, by reference"
    if any(map(_PLACEHOLDER.search, words)):
        yield "its command line has a placeholder, which is not filled in here: write its value, a secret into `environment`"
    if _PLACEHOLDER.search(url):
        yield "its address has a placeholder, which is not filled in here: write its value, a secret into `headers`"


def _command(server: Mapping[str, Any]) -> list[str]:
    """The command of a server; except on Windows, without a leading ``cmd /c``."""
    command, words = str(server.get("command", "")), _words(server.get("args"))
    if os.name != "nt" and command.lower() in ("cmd", "cmd.exe") and words[1:] and words[0].lower() == "/c":
        return words[1:]
    return [command, *words]


def _words(written: Any) -> list[str]:
    if written is None:
        return []
    if not isinstance(written, list) or not all(isinstance(word, str | int | float) for word in written):
        raise ConfigInvalid("its `args` are not a list of texts")
    return list(map(str, written))


def _name_of_server(name: str, server: Mapping[str, Any], taken: Mapping[str, Any]) -> str:
    """A name for a server's entry: from the server's name, else from its command or address, else from both if
    the name is taken.
    """
    if _is_name(name):
        return _name(name)
    url = _url(server)
    words = [url] if url is not None else _command(server)
    own_name, target = _name_of(words), {"command": words} if url is None else {"url": url}
    if own_name not in taken or (isinstance(other := taken[own_name], Mapping) and target.items() <= other.items()):
        return own_name
    return f"{own_name}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}"


def _is_name(written: str) -> bool:
    """Whether it alone is enough to make a name."""
    try:
        _name(written)
    except ConfigInvalid:
        return False
    return True


def _url(server: Mapping[str, Any]) -> str | None:
    return next((url for key in _URLS if isinstance(url := server.get(key), str)), None)


def _values(written: Any, prefix: str, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Variables or headers; a value that may be a secret becomes a reference to a variable.

    Args:
        prefix: the prefix of a header's variable; empty: the variable keeps its name.
    """
    for name, value in (written or {}).items() if isinstance(written, Mapping) else ():
        text = value if isinstance(value, str) else json.dumps(value)
        if value is None:
            continue
        if not prefix and is_refused(name):
            notes.append(f"{name} is left out: it makes programs load code, and is never passed")
        elif (found := _REFERENCE.fullmatch(text)) and found[1] not in _FOLDERS:
            yield name, {"$env": found[1]}
        elif (has_placeholder := _PLACEHOLDER.search(text)) or _may_be_secret(name, text):
            variable = f"{prefix}_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}" if prefix else name
            why = (
                "has a placeholder, which is not filled in here"
                if has_placeholder
                else "may be a secret and is not copied"
            )
            notes.append(f"{name} {why}: set the environment variable {variable} to its value")
            yield name, {"$env": variable}
        else:
            yield name, text


def _may_be_secret(name: str, text: str) -> bool:
    parts = set(re.split(r"[^a-z0-9]+", name.lower()))
    return (
        is_secret_name(name)
        or not parts.isdisjoint(_SECRET_PARTS)
        or _SECRET_START.match(text) is not None
        or redact_text(f"{name}={text}") != f"{name}={text}"
    )


def _validated(new: NewUpstreamEntry) -> NewUpstreamEntry:
    try:
        UpstreamConfig.model_validate(new.entry)
    except ValidationError as error:
        first = explain(error, new.entry, UpstreamConfig)[0]
        raise ConfigInvalid(
            redact_text(f"{new.name} cannot be an upstream: {first.located}"),
            hint=first.hint
            or "write an entry as in docs/upstreams.md, for example `kind: mcp` with `url` or `command`",
        ) from None
    return new


def _name_of(words: Sequence[str], kind: str = "") -> str:
    """A name from the command or address; from the kind if an address contains no name."""
    if words and "://" in words[0]:
        host = words[0].split("/")[2].rpartition("@")[2].partition(":")[0]
        if kind and (host.lower() == "localhost" or host.startswith("[") or not any(map(str.isalpha, host))):
            return _name(kind)
        return _name(next((part for part in host.split(".") if part not in ("mcp", "www", "api")), host))
    candidates = [word for word in words if not word.startswith("-") and word not in INSTALLERS] or list(words[:1])
    word = next((word for word in candidates if "mcp" in word or "server" in word), candidates[0] if candidates else "")
    return _name(Path(word.rpartition("/")[2] or word).stem.split("@")[0])


def _name(written: str) -> str:
    """A valid name of an upstream that is as similar as possible to the text.

    Raises:
        ConfigInvalid: the text contains nothing that a name may contain (CONFIG_INVALID).
    """
    name = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", written).lower()).strip("-")
    name = _AFFIXES.sub("", _AFFIXES.sub("", name)) or name
    name = f"mcp-{name}" if name[:1].isdigit() else name
    if is_reserved(name):
        raise ConfigInvalid(f"{name!r} is a name of the host itself", hint="give another with --name")
    if not is_plugin_name(name):
        hint = "give one with --name: letters a-z, digits and single hyphens, and first a letter"
        raise ConfigInvalid(f"no name can be made of {written!r:.80}", hint=hint)
    return name
