"""500 installed plugins: how long until the catalogue is ready, each time in a new process.

    python tests/benchmarks/report.py --only discovery

Measured in one run, on the same 500 distributions: the floor (`importlib.metadata.entry_points()` alone), `Tavern.open` of a new
home (cold) and of one that has seen them (warm), and npe2's discovery of 500 packages with manifests of the same kind (left out
with a note where it is not installed). Each process first opens a host that finds one other plugin, so that no import of the host's
own code is counted; the fastest of some fresh processes counts. No plugin is imported.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

CONDITIONS = "audit on; nothing is called; any CPU"

MANIFEST = """\
name: {name}
displayName: 基准插件 {number}
version: 1.0.0
description: A plugin that exists to be found, with a manifest of the usual size.
tools:
  - id: count
    description: Count words
    implementation: {{type: python}}
  - id: upper
    implementation: {{type: python}}
frontend:
  build:
    entry: dist/index.js
    styles:
      - dist/style.css
permissions:
  hooks:
    - "hook:server:tool:after-execute"      # see what was called
    - "hook:client:settings:before-save"
  ui:
    inject:
      - "node:header:right"
  capabilities:
    - read:fs
configOptions:
  - key: "extensions.{name}.enableFeatureX"
    type: "boolean"
    label: "启用功能 X"
    defaultValue: true
"""

NPE2_MANIFEST = """\
name: {name}
display_name: Benchmark {number}
contributions:
  commands:
    - id: {name}.count
      title: Count words
      python_name: {package}:count
    - id: {name}.upper
      title: Upper case
      python_name: {package}:upper
  widgets:
    - command: {name}.count
      display_name: Counter
  configuration:
    - title: Feature
      properties:
        {name}.enable:
          type: boolean
          default: true
          description: Enable feature X
  menus:
    tools:
      - command: {name}.count
      - command: {name}.upper
"""

OURS = """\
import sys, tempfile, time
from tavern_core import Tavern
with tempfile.TemporaryDirectory() as first:
    Tavern.open({{"plugins": {{"entryPoints": False, "roots": [{one!r}]}}}}, home=first)
sys.path.append({site!r})
before = set(sys.modules)
start = time.perf_counter()
host = Tavern.open(home={home!r})
end = time.perf_counter()
named = [name for name in host.plugins if name.startswith("bench-")]
tools = sum(tool.startswith("bench-") for tool in host.tools)
failed = [name for name in named if host.plugins[name].state == "failed"]
assert (len(named), tools, failed) == ({plugins}, 2 * {plugins}, []), (len(named), tools, failed)
assert not [name for name in sys.modules if name.startswith("tavern_plugin_bench")]
print((end - start) * 1e3)
"""

FLOOR = """\
import sys, time
import importlib.metadata
sys.path.append({site!r})
start = time.perf_counter()
found = importlib.metadata.entry_points()
end = time.perf_counter()
assert len(found.select(group="tavern.plugins")) == {plugins}
print((end - start) * 1e3)
"""

NPE2 = """\
import sys, time
import npe2
sys.path.append({site!r})
manager = npe2.PluginManager()
start = time.perf_counter()
manager.discover()
end = time.perf_counter()
assert len(manager) >= {plugins}, len(manager)
print((end - start) * 1e3)
"""


def install(site: Path, plugins: int) -> None:
    """Write `plugins` distributions, each with a plugin of ours, as pip would leave them."""
    for number in range(plugins):
        name, package = f"bench-{number:03d}", f"tavern_plugin_bench_{number:03d}"
        _distribution(site, package, f"[tavern.plugins]\n{name} = {package}\n")
        _package(site, package, "plugin.yaml", MANIFEST.format(name=name, number=number))


def install_npe2(site: Path, plugins: int) -> None:
    """The same number of distributions with manifests for npe2."""
    for number in range(plugins):
        name, package = f"npe2-bench-{number:03d}", f"npe2_bench_{number:03d}"
        _distribution(site, package, f"[napari.manifest]\n{package} = {package}:napari.yaml\n")
        _package(site, package, "napari.yaml", NPE2_MANIFEST.format(name=name, package=package, number=number))


def _distribution(site: Path, package: str, entry_points: str) -> None:
    folder = site / f"{package}-1.0.0.dist-info"
    folder.mkdir(parents=True)
    name = package.replace("_", "-")
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\nSummary: Benchmark\n\nA long description.\n"
    (folder / "METADATA").write_text(metadata, encoding="utf-8")
    (folder / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    (folder / "RECORD").write_text("", encoding="utf-8")


def _package(site: Path, package: str, manifest_name: str, manifest: str) -> None:
    folder = site / package
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('a catalogue must not import this')\n", encoding="utf-8")
    (folder / manifest_name).write_text(manifest, encoding="utf-8")


def measure(program: str, forget: Path | None = None) -> float:
    """What a fresh process says, in milliseconds; `forget` is removed before."""
    if forget is not None:
        shutil.rmtree(forget, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=forget and forget.parent, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no output")
    return float(done.stdout)


def fastest(rounds: int, **jobs: Callable[[], float]) -> dict[str, float]:
    """The fastest run of each job, which take turns: what else the machine does can only add."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            times[name].append(job())
    return {name: min(found) for name, found in times.items()}


def run(plugins: int, rounds: int) -> dict[str, float]:
    """All figures in milliseconds."""
    with tempfile.TemporaryDirectory() as place:
        site, peers, home = (Path(place) / part for part in ("site", "peers", "home"))
        install(site, plugins)
        install_npe2(peers, plugins)
        facts = {"site": str(site), "plugins": plugins}
        one = Path(place) / "one"
        one.mkdir()
        _package(one, "first", "plugin.yaml", MANIFEST.format(name="first", number=0))
        ours = OURS.format(home=str(home), one=str(one), **facts)
        against = {
            "cold": partial(measure, ours, home),
            "npe2": partial(measure, NPE2.format(site=str(peers), plugins=plugins)),
        }
        try:
            against["npe2"]()
        except RuntimeError as error:
            print(f"npe2 left out: {error}", file=sys.stderr)
            del against["npe2"]
        figures = fastest(rounds, **against)
        floor = partial(measure, FLOOR.format(**facts))
        return figures | fastest(2 * rounds, entry_points=floor, warm=partial(measure, ours))


def rows(plugins: int = 500, rounds: int = 7) -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target."""
    figures = run(plugins, rounds)
    compared = {"warm": ("entry_points", 0.5), "cold": ("npe2", 1 / 3)}
    found: list[dict[str, Any]] = []
    for name, ms in figures.items():
        against, target = compared.get(name, ("", None))
        known = against in figures
        found.append({
            "area": "discovery", "name": f"{plugins} plugins: {name}", "value": round(ms, 2), "unit": "ms",
            "against": against if known else "", "ratio": round(ms / figures[against], 3) if known else None,
            "target": round(target, 3) if known and target is not None else None,
        })  # fmt: skip
    return found
