"""From the text of plugin.yaml to a Manifest, or to findings that name line, column and repair.

    text --read_yaml--> data --shape (pydantic)--> Manifest --sense (manifest_rules)--> ManifestReading

An unknown key is an error in `check` (strict) and a warning with the nearest name when a plugin is loaded: a manifest
written for a newer host still loads. An invalid value is an error in both cases. No function here raises on content or opens a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from tavern_core.errors import Finding, Location
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.manifest.key_shape_examples import SHAPES
from tavern_core.kernel.manifest.manifest_rules import check_manifest
from tavern_core.kernel.text.yaml_reader import YamlDocument, read_yaml
from tavern_core.model.manifest import Manifest, Permissions
from tavern_core.model.path_problem import Path, PathProblem
from tavern_core.model.pydantic_errors import MOST_EXPLAINED, explain

CODE: Final = "MANIFEST_INVALID"
MANIFEST_FILE: Final = "plugin.yaml"
_SHOWN: Final = 3  # lines in a hint
_OPTIONAL_PARTS: Final = frozenset({"permissions", "ui", "services", "frontend", "requires"})

_MOST_CUTS: Final = 2


@dataclass(frozen=True, slots=True)
class ManifestReading:
    """The content of one plugin.yaml.

    `manifest` is None when a finding is an error; `findings` come in the order of the text; `document` knows the places.
    """

    manifest: Manifest | None
    findings: tuple[Finding, ...]
    document: YamlDocument
    readable: Manifest | None = None
    """For `check`: the readable part of an invalid manifest, so that one mistake hides no other. Never used to run."""

    @property
    def written_name(self) -> str:
        """`name` as written, also if the rest is invalid; empty if it is missing."""
        data = self.document.data
        name = data.get("name") if isinstance(data, dict) else None
        return name if isinstance(name, str) else ""


def read_manifest(text: str | bytes, file: str, *, strict: bool) -> ManifestReading:
    """Read and check one manifest.

    Args:
        text: the content of plugin.yaml.
        file: its name in findings.
        strict: unknown keys are errors (`check`), not warnings (load).
    """
    document = read_yaml(text, file, code=CODE)
    if document.findings:
        return ManifestReading(None, document.findings, document)
    return _judge(document, strict)


def manifest_from_data(data: Mapping[str, Any], file: str, *, strict: bool) -> ManifestReading:
    """The same for a manifest that is data already: the one passed to `Plugin(obj, manifest={...})`.

    Findings then have a pointer and no line.
    """
    return _judge(YamlDocument(file, "", dict(data), code=CODE), strict)


def _judge(document: YamlDocument, strict: bool) -> ManifestReading:
    file = document.file
    if not isinstance(document.data, dict):
        message = "the file is empty" if document.data is None else "plugin.yaml must be a mapping of keys to values"
        hint = "begin with `name: my-plugin` and `version: 1.0.0`"
        return ManifestReading(None, (Finding(CODE, message, hint, Location(file, 1, 1)),), document)
    manifest, findings = _shape(_without_empty(document.data), document, strict)
    if manifest is not None:
        cut = {f.where.pointer.partition(".")[0] for f in findings if f.severity == "error" and f.where is not None}
        judged = check_manifest(manifest, document, strict=strict)
        # Findings caused by a removed neighbour are not reported.
        findings += [
            f
            for f in judged
            if f.severity == "error" or f.where is None or f.where.pointer.partition(".")[0] not in cut
        ]
    in_order = tuple(sorted(findings, key=_position))
    is_whole = all(f.severity != "error" for f in in_order)
    return ManifestReading(manifest if is_whole else None, in_order, document, manifest)


def _shape(data: dict[str, Any], document: YamlDocument, strict: bool) -> tuple[Manifest | None, list[Finding]]:
    """Validate against the model. Unknown keys are removed and the rest is validated again, so that they hide no other error."""
    unknown: dict[Path, PathProblem] = {}
    wrong: list[PathProblem] = []
    cuts = 0
    manifest: Manifest | None = None
    while True:
        try:
            manifest = Manifest.model_validate(data)
            break
        except ValidationError as error:
            refusals = [_with_form(refusal, data) for refusal in explain(error, data, Manifest, SHAPES)]
            extra = {r.path: r for r in refusals if r.at_key and r.path not in unknown}
            if extra and not cuts:
                unknown |= extra
                if len(unknown) < MOST_EXPLAINED:
                    data = _without(data, extra)
                    continue
            wrong = wrong or [r for r in refusals if not r.at_key]
            if not strict or cuts == _MOST_CUTS:
                break
            # The rest is checked, too: an author wants to see all errors at once.
            cuts += 1
            data = {"name": "unnamed", "version": "0", **_without(data, {_cut(r, is_rough=cuts > 1) for r in refusals})}
    findings = [_finding(r, document) for r in wrong]
    if len(unknown) >= MOST_EXPLAINED:
        message = f"{MOST_EXPLAINED} unknown keys and more"
        findings.append(Finding(CODE, message, "is this a plugin.yaml at all?", Location(document.file, 1, 1)))
    findings += [_finding(replace(r, severity="error" if strict else "warning"), document) for r in unknown.values()]
    return manifest, findings


def _cut(refusal: PathProblem, *, is_rough: bool) -> Path:
    """The part to leave out so that the rest can be read; never an item of a list, which would move later items."""
    path = refusal.path[:-1] if refusal.is_missing else refusal.path
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return refusal.path[:1] if is_rough else path or refusal.path[:1]


def _with_form(refusal: PathProblem, data: dict[str, Any]) -> PathProblem:
    """With the form that was meant as repair, for what authors write in a shorter form or in another place."""
    key, *rest = refusal.path or ("",)
    if key == "tools" and len(rest) == 1 and isinstance(rest[0], int) and isinstance(name := data[key][rest[0]], str):
        return replace(refusal, hint=f"write `{{id: {name:.64}, implementation: {{type: python}}}}`")
    if refusal.at_key and not rest and key in Permissions.model_fields:
        return replace(refusal, hint=f"write it under `permissions`: `permissions: {{{key}: …}}`")
    return _alias_direction(refusal, data)


def _alias_direction(refusal: PathProblem, data: dict[str, Any]) -> PathProblem:
    """For `aliases`: which of the two ids is first, with the ids that were written."""
    if refusal.path[:1] != ("aliases",) or refusal.hint:
        return refusal
    hint = "the other id comes first, one line for each: `Other:id: tool`"
    if len(refusal.path) == 2:
        written, target = str(refusal.path[1]), data["aliases"][refusal.path[1]]
        ids = [item for item in (target if isinstance(target, list) else [target]) if isinstance(item, str)][:_SHOWN]
        if ids:
            turned = ":" not in written
            lines = [f"{item}: {written}" if turned else f"{written}: {item}" for item in ids]
            hint = f"the other id comes first, one line for each: {', '.join(f'`{line}`' for line in lines)}"
    return replace(refusal, hint=hint)


def _finding(refusal: PathProblem, document: YamlDocument) -> Finding:
    if refusal.at_key and len(refusal.path) == 1 and (section := _empty_above(document.data, refusal.path[0])):
        refusal = replace(refusal, hint=f"indent it, if it belongs to {section!r} above it, which is empty")
    return refusal.finding(CODE, document)


def _empty_above(data: Any, key: str | int) -> str:
    """The section of plugin.yaml right above an unknown key that is empty: the key was probably not indented."""
    keys = list(data) if isinstance(data, dict) else []
    above = keys[keys.index(key) - 1] if key in keys[1:] else ""
    return above if above and data[above] is None and above in Manifest.model_fields else ""


def _without_empty(data: dict[str, Any]) -> dict[str, Any]:
    """`data` without keys that have no value: a section whose lines are all commented out is not a section."""
    filled: dict[str, Any] = {}
    for key, value in data.items():
        if value is None:
            continue
        filled[key] = _without_empty(value) if key in _OPTIONAL_PARTS and isinstance(value, dict) else value
    return filled


def _without(data: Any, paths: Iterable[Path]) -> Any:
    """A copy of `data` without `paths`; all other parts are shared."""
    beneath: dict[str | int, list[Path]] = {}
    for first, *rest in paths:
        beneath.setdefault(first, []).append(tuple(rest))
    removed = {first for first, rests in beneath.items() if () in rests}
    if isinstance(data, dict):
        return {k: _without(v, beneath[k]) if k in beneath else v for k, v in data.items() if k not in removed}
    return [_without(v, beneath[i]) if i in beneath else v for i, v in enumerate(data)]


def _position(finding: Finding) -> tuple[int, int]:
    where = finding.where
    return (where.line, where.column) if where is not None else (0, 0)
