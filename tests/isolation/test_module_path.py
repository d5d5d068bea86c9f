"""Where processes that the host starts import modules from."""

from __future__ import annotations

import sys

import pytest

from tavern_core.package_location import FOLDER, module_path

OWN = str(FOLDER.parent)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ([OWN, "/opt/modules"], [OWN, "/opt/modules"]),
        (["/opt/modules"], ["/opt/modules", OWN]),
        (["", ".", "relative", "/opt/modules", OWN], ["/opt/modules", OWN]),
    ],
    ids=["as here", "this package is always found", "never from the working folder"],
)
def test_other_processes_import_from_the_same_places(
    monkeypatch: pytest.MonkeyPatch, path: list[str], expected: list[str]
) -> None:
    monkeypatch.setattr(sys, "path", path)
    assert module_path() == expected
