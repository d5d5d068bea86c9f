"""500 installed plugins: how long until the catalogue is there, each time in a fresh process.

    python tests/benchmarks/bench_discovery.py [--plugins 500] [--rounds 7] [--peer-python PATH] [--json]

Measured in one run, on the same 500 distributions: the floor (`importlib.metadata.entry_points()` alone), our warm and cold
discovery, and npe2's discovery of 500 packages with manifests of the same kind (`--peer-python`: an interpreter that has npe2;
left out with a note where it is not installed). The time is that of the clock on the wall
for the call, after the imports that it begins with; the fastest of some fresh processes counts.

Held: warm at most 1/2 of the floor, cold at most 1/3 of npe2, nothing imported. Exit code 1 when one of them is not.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

CONDITIONS = "no host; no arguments; any CPU"
ROOT = Path(__file__).resolve().parents[2]

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
import sys, time
from pathlib import Path
from tavern_core.kernel.discovery.discovery import discover
{preload}
sys.path.append({site!r})
before = set(sys.modules)
start = time.perf_counter()
found = discover(index_file={index})
end = time.perf_counter()
tools = sum(len(plugin.declared_tools) for plugin in found.plugins)
failed = [plugin.name for plugin in found.plugins if plugin.is_failed]
assert (len(found.plugins), tools, failed) == ({plugins}, 2 * {plugins}, []), (len(found.plugins), tools, failed)
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


def measure(python: str, program: str, forget: Path | None = None) -> float:
    """What a fresh process says, in milliseconds; `forget` is emptied before."""
    for file in forget.glob("*") if forget is not None else ():
        file.unlink()
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
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


def run(plugins: int, rounds: int, peer_python: str) -> dict[str, float]:
    """All figures in milliseconds."""
    with tempfile.TemporaryDirectory() as place:
        site, peers, home = (Path(place) / part for part in ("site", "peers", "home"))
        home.mkdir()
        install(site, plugins)
        install_npe2(peers, plugins)
        index = f"Path({str(home / 'index.json')!r})"
        facts = {"site": str(site), "plugins": plugins}
        reader = "import tavern_core.kernel.discovery.reading, tavern_core.kernel.manifest.toolfiles, tavern_core.kernel.discovery.packages"
        cold = OURS.format(index=index, preload=reader, **facts)
        warm = OURS.format(index=index, preload="", **facts)
        npe2 = NPE2.format(site=str(peers), plugins=plugins)
        against = {"cold": partial(measure, sys.executable, cold, home), "npe2": partial(measure, peer_python, npe2)}
        try:
            against["npe2"]()
        except RuntimeError as error:
            print(f"npe2 left out: {error}", file=sys.stderr)
            del against["npe2"]
        figures = fastest(rounds, **against)
        measure(sys.executable, warm)
        floor = partial(measure, sys.executable, FLOOR.format(**facts))
        return figures | fastest(2 * rounds, entry_points=floor, warm=partial(measure, sys.executable, warm))


def rows(plugins: int = 500, rounds: int = 7) -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target."""
    figures = run(plugins, rounds, sys.executable)
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


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--plugins", type=int, default=500)
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--peer-python", default=sys.executable)
    arguments.add_argument("--json", action="store_true")
    given = arguments.parse_args()
    figures = run(given.plugins, given.rounds, given.peer_python)
    ratios = {"warm / entry_points": (figures["warm"] / figures["entry_points"], 1 / 2)}
    if "npe2" in figures:
        ratios["cold / npe2"] = (figures["cold"] / figures["npe2"], 1 / 3)
    if given.json:
        print(json.dumps({"ms": figures, "ratios": {name: ratio for name, (ratio, _) in ratios.items()}}))
    else:
        print(f"{given.plugins} installed plugins, Python {platform.python_version()}, {platform.machine()}")
        for name, ms in figures.items():
            print(f"  {name:14} {ms:8.1f} ms")
        for name, (ratio, most) in ratios.items():
            print(f"  {name:20} {ratio:.2f}   (at most {most:.2f})  {'ok' if ratio <= most else 'TOO SLOW'}")
    return 0 if all(ratio <= most for ratio, most in ratios.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
