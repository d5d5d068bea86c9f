"""The pytest plugin `tavern_core`: fixtures for the tests of a plugin. Active wherever tavern-core is installed.

    tavern            an open host with the plugin under test, with all requested permissions granted; in a test outside of
                      any plugin project, a host with only the objects of the test
    call_tool         call_tool("greet", {...}) → ToolResult; call_tool.refused(...) → ToolError
    open_tavern       a factory, for tests that need another configuration or several hosts
    installed_plugin  the plugin under test: name, version, folder, manifest; not imported
    tavern_home       the host's state folder: audit log, lock file, settings
    tavern_events     the events of the host `tavern`
    fake_endpoint     a web API on this machine with prepared replies

A project changes the host of all its tests by overriding `tavern_config`, `tavern_settings`, `tavern_grants` or
`tavern_plugins` in its conftest.py; one test does so with ``@pytest.mark.tavern(config=..., settings=..., grants=...,
plugins=..., plugin=..., activate=..., approve=...)``. No fixture is automatic and nothing of tavern_core is imported before one is
used, so other test suites are not affected by this plugin.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.model.event import Event
    from tavern_core.testing.calls import ToolCaller
    from tavern_core.testing.endpoint import FakeEndpoint
    from tavern_core.testing.hosts import Grants, HostOptions, OpenTavern
    from tavern_core.testing.under_test import InstalledPlugin

MARK = "tavern(plugin, plugins, config, settings, grants, activate, approve): how the host of the `tavern` fixtures is opened"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tavern_core", "tavern_core plugins")
    group.addoption(
        "--tavern-core-plugin",
        metavar="NAME",
        help="the plugin under test: a name, or the path of a folder plugin (default: the one of the project)",
    )
    group.addoption(
        "--tavern-core-grants",
        metavar="LIST",
        help="what the plugin under test is granted: all (default), none, or permissions with commas between them",
    )
    group.addoption(
        "--tavern-trace",
        action="store_true",
        help="report what the plugin under test uses, and the permissions that this takes (tavern plugins check --trace)",
    )
    parser.addini("tavern_core_plugin", "the plugin under test, where the project has several")
    parser.addini("tavern_core_grants", "what the plugin under test is granted: all, none, or permissions", type="args")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    if config.getoption("--tavern-trace"):
        from tavern_core.testing.audit_trace import trace_this_run

        with _reported_as_usage_error():
            trace_this_run(config, _plugin_of(config))


def _plugin_of(config: pytest.Config) -> str:
    """The plugin under test that the command line or the ini file names; else empty."""
    return str(config.getoption("--tavern-core-plugin") or config.getini("tavern_core_plugin") or "")


@pytest.fixture
def tavern_home(tmp_path: Path) -> Path:
    """The state folder of the host `tavern`; ``audit/audit.jsonl`` and ``tavern.lock`` are in it."""
    return tmp_path / "tavern-home"


@pytest.fixture
def tavern_config() -> Mapping[str, Any]:
    """The content of tavern.yaml in every test; override it."""
    return {}


@pytest.fixture
def tavern_settings() -> Mapping[str, Any]:
    """Settings of the plugin under test in every test, option → value; override it."""
    return {}


@pytest.fixture
def tavern_grants(pytestconfig: pytest.Config) -> Grants:
    """The grants of the plugin under test in every test; override it."""
    option: str | None = pytestconfig.getoption("--tavern-core-grants")
    words = option.split(",") if option is not None else list(pytestconfig.getini("tavern_core_grants"))
    names = [name for word in words for part in word.split(",") if (name := part.strip())]
    if names in ([], ["all"]) and option != "":
        return "all"
    return [] if names == ["none"] else names


@pytest.fixture
def tavern_plugins() -> Sequence[Any]:
    """Further plugins in every host, as objects: fake services, tools to guard; override it."""
    return ()


@pytest.fixture
def tavern_options(
    request: pytest.FixtureRequest,
    tavern_config: Mapping[str, Any],
    tavern_settings: Mapping[str, Any],
    tavern_grants: Grants,
    tavern_plugins: Sequence[Any],
) -> HostOptions:
    """The project's fixtures and the markers of this test, the closest last, as one description of a host."""
    from tavern_core.testing.hosts import HostOptions

    plugin_name, plugins = _plugin_of(request.config), tuple(tavern_plugins)
    host_options = HostOptions(plugin_name, plugins, tavern_config, tavern_settings, tavern_grants)
    for mark in reversed(list(request.node.iter_markers("tavern"))):
        if mark.args:
            pytest.fail(
                "@pytest.mark.tavern takes its values by name: @pytest.mark.tavern(config={...})", pytrace=False
            )
        with _reported_in_one_line():
            host_options = host_options.with_changes(mark.kwargs)
    return host_options


@pytest.fixture
def installed_plugin(request: pytest.FixtureRequest, tavern_options: HostOptions) -> InstalledPlugin:
    """The plugin under test, found as a host finds it, and not imported; a test that has none fails."""
    from tavern_core.testing.under_test import find_plugin, project_of

    with _reported_in_one_line():
        return find_plugin(tavern_options.plugin, project_of(Path(request.path), request.config.rootpath))


@pytest.fixture
def tavern_plugin_or_none(request: pytest.FixtureRequest, tavern_options: HostOptions) -> InstalledPlugin | None:
    """`installed_plugin`, or None if none is named and the test is outside of any plugin project."""
    from tavern_core.testing.under_test import project_of

    if not tavern_options.plugin and project_of(Path(request.path), request.config.rootpath) is None:
        return None
    found: InstalledPlugin = request.getfixturevalue("installed_plugin")
    return found


@pytest.fixture
def open_tavern(
    tavern_plugin_or_none: InstalledPlugin | None,
    tavern_options: HostOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[OpenTavern]:
    """Opens a host: ``open_tavern(config=..., settings=..., grants=...)``; closed when the test ends.

    Missing arguments come from the project and the marker. Each host has its own state folder unless `home` is given.
    """
    from tavern_core.testing.hosts import clear_environment, open_host

    clear_environment(list(os.environ), monkeypatch.delenv)
    numbers = itertools.count(1)

    with ExitStack() as stack:

        def open_one(*plugins: Any, home: Path | None = None, **options: Any) -> Tavern:
            changes = {key: value for key, value in options.items() if value is not None}
            host_options = tavern_options.with_changes(dict(plugins=plugins, **changes))
            state_folder = home or tmp_path / f"tavern-home-{next(numbers)}"
            return open_host(tavern_plugin_or_none, host_options, state_folder, stack)

        yield open_one


@pytest.fixture
def tavern(open_tavern: OpenTavern, tavern_plugin_or_none: InstalledPlugin | None, tavern_home: Path) -> Tavern:
    """An open host with the plugin under test. For sync tests and async ones (``await tavern.invoke(...)``)."""
    with _reported_in_one_line():
        host = open_tavern(home=tavern_home)
    if tavern_plugin_or_none is None:
        return host
    status = host.plugins[tavern_plugin_or_none.name]
    if status.state in ("failed", "disabled"):
        findings = "".join(f"\n  {finding}" for finding in status.findings)
        pytest.fail(f"the plugin under test is {status.state}: {status.reason}{findings}", pytrace=False)
    return host


@pytest.fixture
def call_tool(tavern: Tavern, tavern_plugin_or_none: InstalledPlugin | None) -> ToolCaller:
    """Call a tool in the host `tavern`; a local name means the plugin under test; see `tavern_core.testing.ToolCaller`."""
    from tavern_core.testing.calls import ToolCaller

    return ToolCaller(tavern, tavern_plugin_or_none.name if tavern_plugin_or_none is not None else "")


@pytest.fixture
def tavern_events(tavern: Tavern) -> Iterator[list[Event]]:
    """All further events of the host `tavern`, in order: ``[e.type for e in tavern_events]``."""
    events: list[Event] = []
    end = tavern.events.subscribe(events.append)
    yield events
    end()


@pytest.fixture
def fake_endpoint() -> Iterator[FakeEndpoint]:
    """A web API on 127.0.0.1 with prepared replies; see `tavern_core.testing.FakeEndpoint`."""
    from tavern_core.testing.endpoint import FakeEndpoint

    with FakeEndpoint() as endpoint:
        yield endpoint


@contextmanager
def _reported_as_usage_error() -> Iterator[None]:
    """Turn a TavernError into a usage error, for errors before there is a test: pytest reports it and exits."""
    from tavern_core.errors import TavernError

    try:
        yield
    except TavernError as error:
        raise pytest.UsageError(
            f"--tavern-trace: {error.message}" + (f" ({error.hint})" if error.hint else "")
        ) from None


@contextmanager
def _reported_in_one_line() -> Iterator[None]:
    """Show the author the message and hint of a TavernError, without a traceback through the test kit."""
    from tavern_core.errors import TavernError

    reported = ""
    try:
        yield
    except TavernError as error:
        reported = f"{error.message}\n  hint: {error.hint}" if error.hint else error.message
    if reported:
        pytest.fail(reported, pytrace=False)  # outside `except`, so that the error is not printed twice
