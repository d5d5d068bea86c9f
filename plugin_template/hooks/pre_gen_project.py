"""Refuses a name that the host would refuse later, before anything is written."""

from __future__ import annotations

import re
import sys

RESERVED = {"core", "system", "kb", "workflow", "jobs", "skill", "CodeInterpreter"}
LONGEST = 64


def problem(name: str) -> str:
    """Why `name` cannot be a plugin's name, with a name that can; empty when it can."""
    if name.startswith(("tavern-plugin-", "tavern_plugin_")):
        return f"leave the prefix out: {name[len('tavern-plugin-'):]!r}; the package is called tavern-plugin-<name> anyway"
    if name.startswith("core-") or name.replace("-", "").lower() in {each.lower() for each in RESERVED}:
        return f"the name {name!r} is reserved for the host; choose another name, for example {'my-' + name.lower()!r}"
    if len(name) > LONGEST:
        return f"{name!r} has {len(name)} characters; at most {LONGEST} are allowed"
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        better = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name)
        better = re.sub(r"[^a-z0-9]+", "-", better.lower()).strip("-")
        example = f"; write {better!r}" if better and not problem(better) else "; for example 'my-tools'"
        return f"{name!r} is not kebab-case (a-z, 0-9 and single hyphens){example}"
    return ""


if __name__ == "__main__":
    if found := problem({{cookiecutter.name | tojson}}):
        print(f"error[USAGE]: {found}", file=sys.stderr)
        sys.exit(1)
