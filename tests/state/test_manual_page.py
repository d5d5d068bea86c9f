"""docs/configuration.md says what the code does: its examples run, its tables are complete."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tavern_core.kernel.config.config_key_lookup import leaves
from tavern_core.kernel.config.configuration import load
from tavern_core.kernel.config.environment import environment_layer
from tavern_core.kernel.grants.lock_file import parse_lock
from tavern_core.kernel.log.event_log import EventLog
from tavern_core.model.config import HostConfig
from tavern_core.model.event import Event
from tests.rows import each_row

from .processes import run

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()


def example(name: str) -> str:
    found = re.search(rf"<!-- example: {re.escape(name)} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found, name
    return found[1]


def test_the_example_configuration_is_valid(tmp_path: Path) -> None:
    (tmp_path / "tavern.yaml").write_text(example("tavern.yaml"))
    loaded = load(cwd=tmp_path, env={"TAVERN_HOME": str(tmp_path / "home")})
    assert loaded.config.limits.timeout_ms == 30_000
    assert loaded.config.secrets == {"github": {"$file": "/run/secrets/github"}}


def test_every_key_is_in_the_table_with_its_default() -> None:
    defaults = {".".join(path): value for path, value in leaves(HostConfig().model_dump(by_alias=True, mode="json"))}
    rows = dict(re.findall(r"^\| `([A-Za-z.]+)` \| (`[^`]*`|\S+) \|", PAGE, re.MULTILINE))
    expected = {key: "–" if value is None else f"`{_written(value)}`" for key, value in defaults.items()}
    assert {key: rows.get(key) for key in expected} == expected


def _written(value: Any) -> str:
    return json.dumps(value).replace('"', "")


@each_row("name", sorted(set(re.findall(r"`(TAVERN_[A-Z_]+)[=`]", PAGE)) - {"TAVERN_SECTION__KEY"}))
def test_every_variable_of_the_page_is_understood(name: str, tmp_path: Path) -> None:
    values = {
        "TAVERN_LIMITS__TIMEOUT_MS": "500",
        "TAVERN_SLOTS": "{a: b}",
        "TAVERN_LANGUAGE": "en",
        "TAVERN_CALLERS": "{}",
        "TAVERN_SETTINGS": "{}",
        "TAVERN_UPSTREAMS": "{}",
        "TAVERN_LLMS": "{}",
        "TAVERN_KNOWLEDGE": "{}",
        "TAVERN_SECRETS__GITHUB": "{$env: TOKEN}",
        "TAVERN_PLUGINS__LOCKED": "true",
    }
    layer = environment_layer(
        {name: values.get(name, "{x: [a]}" if name == "TAVERN_TOOLS__GROUPS" else "a,b")}, tmp_path
    )
    assert layer.findings == ()
    assert layer.data or name == "TAVERN_HOME"


def test_the_example_lock_file_is_valid() -> None:
    grants = parse_lock(example("tavern.lock"), "tavern.lock")
    assert grants.findings == ()
    assert grants.records["text"].granted == {"hook:server:tool:check"}


@pytest.mark.slow
def test_the_log_can_be_checked_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with EventLog(path) as log:
        for number in range(5):
            log.append(Event("X", float(number), {"文": '","hash":"', "inner": {"a": 1, "hash": "x"}}))
    check = f"import os\nos.chdir({str(tmp_path)!r})\n" + example("verify.py")
    run(check)
    path.write_bytes(path.read_bytes().replace(b'"seq":3', b'"seq":4'))
    with pytest.raises(AssertionError, match="AssertionError: 4"):
        run(check)
