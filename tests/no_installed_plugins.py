"""Hosts that do not look for plugins among the installed packages, where a test is about something else.

To look for them takes time at each opening. A `conftest.py` imports the fixture for the tests of its folder.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _no_installed_plugins() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAVERN_PLUGINS__ENTRY_POINTS", "false")
        yield
