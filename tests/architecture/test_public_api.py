"""What the package promises by name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from importlib import metadata

import pytest
from packaging.version import Version

import tavern_core
from tavern_core import errors
from tavern_core.contract.hookspecs import HOOKS
from tavern_core.errors import ERROR_CODES, CallError, TavernError
from tests.rows import each_row

PUBLIC = ["tavern_core", "tavern_core.testing", "tavern_core.tam", "tavern_core.contract.tools"]


@each_row("name", PUBLIC)
def test_all_is_true(name: str) -> None:
    module = importlib.import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    for item in module.__all__:
        assert getattr(module, item) is not None


def test_the_names_of_the_package_are_sorted() -> None:
    assert tavern_core.__all__ == sorted(tavern_core.__all__)
    assert dir(tavern_core) == tavern_core.__all__


def test_the_names_of_the_quickstart_are_there() -> None:
    wanted = {"CallContext", "Plugin", "PluginContext", "Tavern", "ToolResult", "deny", "factory", "hookimpl", "tool"}
    assert wanted <= set(tavern_core.__all__)


@pytest.mark.parametrize("name", ["nothing_of_this_name", "utils"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(tavern_core, name)


def test_the_version_is_one_and_the_installed_one() -> None:
    assert str(Version(tavern_core.__version__)) == tavern_core.__version__
    assert metadata.version("tavern-core") == tavern_core.__version__


def subclasses(cls: type[TavernError]) -> list[type[TavernError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in subclasses(child))]


def test_every_error_class_has_a_code_of_the_table() -> None:
    without_row = {cls.code for cls in subclasses(TavernError)} - set(ERROR_CODES)
    assert without_row == set(), "add a row to ERROR_CODES in tavern_core/errors.py"


def test_the_codes_of_calls_are_the_codes_of_call_errors() -> None:
    reported = {cls.code for cls in subclasses(CallError)}
    assert reported == {code for code, row in ERROR_CODES.items() if row.call}


def test_every_code_is_documented_with_a_repair_and_an_exit_code() -> None:
    rows: Mapping[str, object] = ERROR_CODES
    for code, row in ERROR_CODES.items():
        assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*", code)
        assert row.meaning.endswith(".")
        assert row.fix
        assert row.exit_code in (1, 2, 3, 4, 5, 124, 130)
    assert len(rows) == 46, "codes are public: if this one is new, or was removed on purpose, change this number"


def test_the_tree_of_errors_has_every_class_with_its_code() -> None:
    tree = re.findall(r"[├└]── (\w+) +([A-Z_]+|\()", errors.__doc__ or "")
    expected = {(cls.__name__, "(" if cls is CallError else cls.code) for cls in subclasses(TavernError)[1:]}
    ours = {(name, code) for name, code in expected if getattr(errors, name, None) is not None}
    assert set(tree) == ours, "correct the tree at the top of tavern_core/errors.py"


def test_every_hook_is_called_by_its_name_and_has_a_contract() -> None:
    for name, hook in HOOKS.items():
        assert re.fullmatch(r"tavern(_[a-z]+)+", name)
        assert len(hook.contract) > 20
        if hook.is_called and hook.section == "" and hook.permissions:
            assert hook.sentence, name
            assert hook.sentence_zh, name
