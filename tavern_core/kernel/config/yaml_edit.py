"""Change one value in a tavern.yaml as a person would: comments, order and quotes of everything else stay.

    set     the key is there     its value is replaced
            its section is       a line behind the section's last one, in the same indentation
            neither is           the sections too, at the end of the file
    unset   the lines of the key go; a section that would be empty goes with it

The text is edited, not dumped. The result is read again and accepted only if it holds exactly the old data plus
the change; a change that cannot be made safely is refused, with the line to write by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml

from tavern_core.errors import ConfigInvalid
from tavern_core.kernel.config.config_key_lookup import Keys
from tavern_core.kernel.files.atomic_file import kept_mode, read_text, write_atomic
from tavern_core.kernel.files.file_lock import locked
from tavern_core.kernel.text.document import LARGEST_FILE
from tavern_core.kernel.text.yaml_reader import read_yaml
from tavern_core.model.plain_data import with_leaves
from tavern_core.model.safe_printing import shortened

_PLAIN: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_./:-]*[A-Za-z0-9_/-])?\Z")
_NOT_PLAIN: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_STEP: Final = "  "
_BARE_NEWLINE: Final = re.compile(r"(?<!\r)\n")


def set_value(file: Path, path: Keys, value: Any) -> None:
    """Write `value` at `path` of a configuration file; the file is created if it does not exist.

    Raises:
        ConfigInvalid: the file is invalid already, or cannot be edited safely; nothing changed (CONFIG_INVALID).
        StateDamaged: it cannot be written (STATE_DAMAGED).
    """
    _change(file, lambda text: with_value(text, path, value, str(file)))


def set_members(file: Path, section: str, members: Mapping[str, Any]) -> None:
    """Set new keys of a section: all of them are written, or none. Raises as `set_value`."""
    (first, value), *others = members.items()

    def edit(text: str) -> str:
        text = with_value(text, (section, first), value, str(file))
        if not others:
            return text
        by_hand = f"the {len(members)} keys of {section}"
        wanted, root = _data(text, str(file)), _compose(text, str(file), by_hand)
        assert isinstance(root, yaml.MappingNode)  # the first is there
        key = _put(wanted, (section, first), value)[0]
        node = _pair(root, key)[1]
        assert isinstance(node, yaml.MappingNode)
        for name, other in others:
            _put(wanted, (section, name), other)
        text = _appended(text, node, [((name,), _flow(other)) for name, other in others])
        return _checked(text, wanted, str(file), by_hand)

    _change(file, edit)


def unset_value(file: Path, path: Keys) -> bool:
    """Remove `path` from a configuration file; False if it is not there. Raises as `set_value`."""
    if not file.is_file():
        return False
    before = read_text(file.resolve(), LARGEST_FILE) or ""
    _change(file, lambda text: without_value(text, path, str(file)))
    return before != read_text(file.resolve(), LARGEST_FILE)


def with_value(text: str, path: Keys, value: Any, file: str = "tavern.yaml") -> str:
    """The text with `value` at `path`; see `set_value`."""
    wanted = deepcopy(_data(text, file))
    spelt = _put(wanted, path, value)
    written = _flow(value)
    by_hand = f"{'.'.join(path)}: {written}"
    root = _compose(text, file, by_hand)
    if root is None or not isinstance(root, yaml.MappingNode):
        block = _block(spelt, written, "")
        edited = f"{text.rstrip()}\n{block}" if text.strip() else block
    else:
        edited = _with_node(text, root, spelt, written)
    return _checked(edited, wanted, file, by_hand)


def without_value(text: str, path: Keys, file: str = "tavern.yaml") -> str:
    """The text without `path`; the same text when it is not there."""
    data = _data(text, file)
    wanted = deepcopy(data)
    removed = _drop(wanted, path)
    if not removed:
        return text
    by_hand = f"# {'.'.join(path)}"
    root = _compose(text, file, by_hand)
    assert isinstance(root, yaml.MappingNode)  # there is something in it
    start, end = _lines_of(text, root, removed)
    return _checked(text[:start] + text[end:], wanted, file, by_hand)


def _change(file: Path, edit: Any) -> None:
    real = file.resolve()  # people keep their configuration in other places and link it
    with locked(real):
        text = read_text(real, LARGEST_FILE) or ""
        edited = edit(text)
        if edited != text:
            if "\r\n" in text and not _BARE_NEWLINE.search(text):
                edited = _BARE_NEWLINE.sub("\r\n", edited)
            write_atomic(real, edited, kept_mode(real))


def _data(text: str, file: str) -> dict[str, Any]:
    document = read_yaml(text, file, code=ConfigInvalid.code)
    if document.findings:
        raise ConfigInvalid(f"{file} must be correct before it can be changed", findings=document.findings)
    if document.data is None:
        return {}
    if not isinstance(document.data, dict):
        raise ConfigInvalid(f"{file} is not a mapping of sections", hint="for example `limits:`")
    return document.data


def _checked(text: str, wanted: Any, file: str, by_hand: str) -> str:
    document = read_yaml(text, file, code=ConfigInvalid.code)
    if document.findings:
        why = document.findings[0]
        raise ConfigInvalid(f"{file} could not be read any more with this change: {why.message}", hint=why.hint)
    data = document.data or {}  # an empty file holds no data
    if data != wanted or with_leaves(data, type) != with_leaves(wanted, type):  # True equals 1
        raise _unsafe(file, by_hand)
    return text


def _unsafe(file: str, by_hand: str) -> ConfigInvalid:
    return ConfigInvalid(
        f"{file} is written in a way that cannot be changed safely",
        hint=f"write it by hand: {shortened(by_hand, 500)}",
    )


# Data ------------------------------------------------------------------------------------------------------------------


def _put(data: dict[str, Any], path: Keys, value: Any) -> Keys:
    """Set a value in the data; returns the path as the file spells it."""
    spelt: list[str] = []
    for at, key in enumerate(path):
        name = _spelling(data, key)
        spelt.append(name)
        if at == len(path) - 1:
            data[name] = value
        else:
            if not isinstance(data.get(name), dict):
                data[name] = {}
            data = data[name]
    return tuple(spelt)


def _drop(data: dict[str, Any], path: Keys) -> Keys:
    """Remove a value from the data, with sections that become empty; returns the removed path, empty: none."""
    name = _spelling(data, path[0])
    if name not in data:
        return ()
    if len(path) == 1:
        del data[name]
        return (name,)
    inner = data[name]
    removed = _drop(inner, path[1:]) if isinstance(inner, dict) else ()
    if removed and not inner:
        del data[name]
        return (name,)
    return (name, *removed) if removed else ()


def _spelling(data: Mapping[str, Any], key: str) -> str:
    snake = re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower()
    return snake if key not in data and snake in data else key


# Text ------------------------------------------------------------------------------------------------------------------


def _compose(text: str, file: str, by_hand: str) -> yaml.Node | None:
    # The reader in Python: its marks count characters. It refuses some texts that the other one reads, as with tabs.
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _unsafe(file, by_hand) from error
    return None if isinstance(node, yaml.ScalarNode) else node


def _with_node(text: str, node: yaml.MappingNode, path: Keys, written: str) -> str:
    key, value = _pair(node, path[0])
    if key is None or value is None:
        return _appended(text, node, [(path, written)])
    if len(path) > 1 and isinstance(value, yaml.MappingNode):
        return _with_node(text, value, path[1:], written)
    if len(path) > 1:  # a section without a line in it, or a single value that becomes a section
        indent = " " * (key.start_mark.column + len(_STEP))
        is_flow = node.flow_style
        written = (
            "{" + _flow_path(path[1:], written) + "}"
            if is_flow
            else "\n" + _block(path[1:], written, indent).rstrip("\n")
        )
    start, end = value.start_mark.index, _end(value)
    if value.start_mark.line > key.end_mark.line and not written.startswith("\n"):
        # A block below its key: the new value follows the key; comments between them stay.
        colon = text.index(":", key.end_mark.index) + 1
        return f"{text[:colon]} {written}{text[colon:start].rstrip()}{text[end:]}"
    gap = " " if start == end and not written.startswith("\n") else ""
    before = text[:start].rstrip(" ") if written.startswith("\n") else text[:start]
    return before + gap + written + text[end:]


def _appended(text: str, node: yaml.MappingNode, members: Sequence[tuple[Keys, str]]) -> str:
    """The text with new members behind the last one of a section."""
    if node.flow_style:
        written = [_flow_path(*member) for member in members]
        if not node.value:
            start = node.start_mark.index + 1
            return text[:start] + ", ".join(written) + text[start:]
        end = _end(node.value[-1][1])
        comma = re.match(r"\s*,", text[end:])
        separator = comma[0] if comma else " ," if text[:end].endswith(":") else ","  # `{a:,}` would be one word
        before, after = text[:end] + separator, text[end + (comma.end() if comma else 0) :]
        rest = re.match(r"[ \t]*(?:#[^\n]*)?\n", after)
        if rest is None:
            return f"{before} {', '.join(written)}{after}"
        line = text.rfind("\n", 0, end) + 1
        indent = text[line:].removesuffix(text[line:].lstrip(" \t"))
        lines = f",\n{indent}".join(written)
        return f"{before}{rest[0]}{indent}{lines}\n{after[rest.end() :]}"
    line_end = text.find("\n", _end(node))
    line_end = len(text) if line_end < 0 else line_end
    indent = " " * node.value[0][0].start_mark.column
    lines = "".join(_block(*member, indent) for member in members).rstrip("\n")
    return text[:line_end] + "\n" + lines + text[line_end:]


def _lines_of(text: str, node: yaml.MappingNode, path: Keys) -> tuple[int, int]:
    """The range of the text of a key: whole lines in a block, with its comma in ``{}``."""
    key, value = _pair(node, path[0])
    assert key is not None
    assert value is not None
    if len(path) > 1:
        assert isinstance(value, yaml.MappingNode)
        return _lines_of(text, value, path[1:])
    start, end = key.start_mark.index, _end(value)
    if node.flow_style:
        if (comma := re.match(r"\s*,\s*", text[end:])) is not None:
            return start, end + comma.end()
        before = re.search(r",\s*\Z", text[:start])
        return (before.start() if before else start), end
    line_end = text.find("\n", end)
    return text.rfind("\n", 0, start) + 1, len(text) if line_end < 0 else line_end + 1


def _pair(node: yaml.MappingNode, name: str) -> tuple[yaml.Node | None, yaml.Node | None]:
    return next(((k, v) for k, v in node.value if isinstance(k, yaml.ScalarNode) and k.value == name), (None, None))


def _end(node: yaml.Node) -> int:
    """The end of a node's text, without the comments and line ends after it that the reader counts as part of it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return max(_end(part) for part in (last if isinstance(last, tuple) else (last,)))
    end: int = node.end_mark.index
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        buffer = node.end_mark.buffer
        while buffer and end > node.start_mark.index and buffer[end - 1] in " \n":
            end -= 1
    return end


def _block(path: Keys, written: str, indent: str) -> str:
    lines = [f"{indent}{_STEP * depth}{_flow(key)}:" for depth, key in enumerate(path)]
    return "\n".join(lines) + f" {written}\n"


def _flow_path(path: Keys, written: str) -> str:
    return "".join(f"{_flow(key)}: {{" for key in path[:-1]) + f"{_flow(path[-1])}: {written}" + "}" * (len(path) - 1)


def _flow(value: Any) -> str:
    """A value on one line. JSON is YAML; short words go without quotes."""
    if isinstance(value, str) and _PLAIN.match(value) and value.lower() not in _NOT_PLAIN:
        return value
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(str(k))}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
