"""Puts the JSON Schema of plugin.yaml into the project, so that editors complete and check it; removes what does not belong there."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path

PACKAGE = Path("{{ cookiecutter.__package }}")


def write_schema() -> bool:
    """Copy the schema that the installed tavern-core publishes; False when there is none."""
    try:
        published = resources.files("tavern_core").joinpath("schemas", "plugin.schema.json").read_text("utf-8")
    except (ImportError, OSError):
        return False
    folder = Path(".schemas")
    folder.mkdir(exist_ok=True)
    text = json.dumps(json.loads(published), indent=1, ensure_ascii=False)
    (folder / "plugin.schema.json").write_text(text + "\n", "utf-8")
    return True


if __name__ == "__main__":
    if not write_schema():
        print("No tavern-core in this Python: run `tavern schema manifest > .schemas/plugin.schema.json` later.")
    if "{{ cookiecutter.license }}" == "proprietary":
        Path("LICENSE").unlink()
    for compiled in list(Path().rglob("__pycache__")):  # pip compiles the template when it installs tavern-core
        shutil.rmtree(compiled)
