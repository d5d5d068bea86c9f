"""`plugins install | update`: the line for pip, fit for this environment; nothing is installed by it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

PIP = [sys.executable, "-m", "pip", "install"]


@pytest.fixture
def installed(project: Path) -> Path:
    """Distributions as pip leaves them, beside the project: one from the index, one editable, one with a name of its own."""
    site = project.parent / "site"
    for distribution, plugin, package, origin in (
        ("tavern-plugin-weather", "weather", "tavern_plugin_weather", None),
        (
            "tavern-plugin-live",
            "live",
            "tavern_plugin_live",
            '{"url": "file:///srv/my%20plugins/live", "dir_info": {"editable": true}}',
        ),
        (
            "Clocks_And.More",
            "clock",
            "tavern_plugin_clock",
            '{"url": "https://example.com/clock.whl", "archive_info": {}}',
        ),
    ):
        info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[tavern.plugins]\n{plugin} = {package}\n", "utf-8")
        if origin:
            (info / "direct_url.json").write_text(origin, "utf-8")
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("raise SystemExit(7)\n", "utf-8")
        (site / package / "plugin.yaml").write_text(f'name: {plugin}\nversion: "1.0"\n', "utf-8")
    (project / "tavern.yaml").write_text("plugins: {roots: [plugins]}\n", "utf-8")
    return site


INSTALL = [
    (["tavern-plugin-text"], ["tavern-plugin-text"]),
    (["tavern-plugin-text[fast, http] >=1.2,<2"], ["tavern-plugin-text[fast, http] >=1.2,<2"]),
    (["tavern-plugin-a==1.0", "tavern-plugin-b"], ["tavern-plugin-a==1.0", "tavern-plugin-b"]),
    (["git+https://example.com/x.git@v1"], ["git+https://example.com/x.git@v1"]),
    (["./plugins/text"], ["./plugins/text"]),
    (["tavern-plugin-x @ https://example.com/x.whl"], ["tavern-plugin-x @ https://example.com/x.whl"]),
]


@pytest.mark.parametrize(("words", "line"), INSTALL)
def test_install_prints_a_line_for_this_environment(tavern: Run, words: list[str], line: list[str]) -> None:
    answer = tavern("plugins", "install", *words)
    assert (answer.code, shlex.split(answer.out)) == (0, [*PIP, *line])
    assert "nothing was installed" in answer.err
    as_json = tavern("plugins", "install", *words, "--json").json
    assert as_json == {"command": [*PIP, *line], "line": answer.out.strip(), "installed": False}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["two words"], 2, "cannot be installed by pip"),
        (["text;rm -rf x"], 2, "cannot be installed by pip"),
        (["--index-url=http://evil"], 2, "No such option"),
        (["./not-there"], 2, "there is no ./not-there"),
        ([], 2, "Missing argument"),
    ],
)
def test_install_refuses_what_pip_cannot_take(tavern: Run, words: list[str], code: int, said: str) -> None:
    answer = tavern("plugins", "install", *words)
    assert (answer.code, answer.out, said in answer.err) == (code, "", True), answer.err


UPDATE = [
    ("weather", ["--upgrade", "tavern-plugin-weather"]),
    ("Tavern.Plugin_Weather", ["--upgrade", "tavern-plugin-weather"]),
    ("weather[fast]<2", ["--upgrade", "tavern-plugin-weather[fast]<2"]),
    ("clock", ["--upgrade", "Clocks_And.More"]),
    ("clocks-and-more==3", ["--upgrade", "Clocks_And.More==3"]),
    ("live", ["--upgrade", "--editable", "/srv/my plugins/live"]),
    ("live[fast]", ["--upgrade", "--editable", "/srv/my plugins/live[fast]"]),
    ("live==2.0", ["--upgrade", "tavern-plugin-live==2.0"]),
]


@pytest.mark.parametrize(("written", "line"), UPDATE)
def test_update_knows_what_pip_calls_a_plugin(
    tavern: Run, installed: Path, monkeypatch: pytest.MonkeyPatch, written: str, line: list[str]
) -> None:
    monkeypatch.syspath_prepend(str(installed))
    answer = tavern("plugins", "update", written)
    assert (answer.code, shlex.split(answer.out)) == (0, [*PIP, *line]), answer.err


def test_update_says_what_pip_did_not_bring(tavern: Run) -> None:
    for name, code, said in (
        ("text", 2, "is a folder"),
        ("core-paths", 2, "is part of the host"),
        ("txet", 5, "did you mean 'text'?"),
    ):
        answer = tavern("plugins", "update", name)
        assert (answer.code, answer.out, said in answer.err) == (code, "", True), answer.err


@pytest.mark.slow
def test_the_line_is_one_that_pip_understands(process: Run, project: Path) -> None:
    """pip is asked what it would do, with the line as it was printed: by the shell, without an index."""
    (project / "with blank").mkdir()
    (project / "with blank" / "pyproject.toml").write_text(
        '[project]\nname = "tavern-plugin-blank"\nversion = "1"\n', "utf-8"
    )
    line = process("plugins", "install", "./with blank").out.strip()
    done = subprocess.run(
        f"{line} --dry-run --no-index --no-build-isolation --no-deps --disable-pip-version-check",
        shell=True, capture_output=True, text=True, cwd=project, check=False,
    )  # fmt: skip
    assert "with blank" in done.stdout, done.stdout + done.stderr
