"""Errors of a plugin during import or calls, with the location in the plugin's own code."""

from __future__ import annotations

import traceback
from pathlib import Path

from tavern_core.errors import ActivationFailed, PluginError, TavernError
from tavern_core.kernel.plugins.candidate import PluginCandidate
from tavern_core.model.safe_printing import said
from tavern_core.schema.secret_scanning import redact_text


def as_activation_error(error: BaseException, candidate: PluginCandidate) -> PluginError:
    """Wraps any error of a plugin in an error of this package."""
    if isinstance(error, PluginError):
        return error
    if isinstance(error, TavernError):  # e.g. invalid settings, or a service that it may not use
        place = place_in_plugin(error, candidate.folder)
        is_own = candidate.folder is not None and place and Path(place).is_relative_to(candidate.folder)
        text = f"{candidate.name} could not be activated{f' at {place}' if is_own else ''}: {error.message}"
        missing = error.details.get("missing")
        more = {"missing": [str(permission) for permission in missing]} if isinstance(missing, list) else {}
        return ActivationFailed(text, hint=error.hint, findings=error.findings, cause=error.code, **more)
    place = place_in_plugin(error, candidate.folder)
    at = f" at {place}" if place else ""
    summary = redact_text(f"{type(error).__name__}: {said(error)}".rstrip(": "))
    hint = _hint(error, candidate)
    return ActivationFailed(f"{candidate.name} could not be activated{at}: {summary}", hint=hint, place=place)


def place_in_plugin(error: BaseException, folder: Path | None) -> str:
    """``file:line`` of the innermost frame that belongs to the plugin, else of the innermost frame that is not ours.

    A `SystemExit` of a hook arrives as a RuntimeError; its cause has the frames.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno or 0}"
    frames = traceback.extract_tb(error.__traceback__)
    plugin_frames = [f for f in frames if folder is not None and Path(f.filename).is_relative_to(folder)]
    foreign = [
        f for f in frames if "tavern_core" not in Path(f.filename).parts and not f.filename.startswith("<frozen")
    ]
    for found in (plugin_frames, foreign):
        if found:
            return f"{found[-1].filename}:{found[-1].lineno}"
    return "" if error.__cause__ is None else place_in_plugin(error.__cause__, folder)


def _hint(error: BaseException, candidate: PluginCandidate) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"pip install what provides {error.name.partition('.')[0]!r}, or add it to the plugin's dependencies"
    if isinstance(error, SystemExit):
        return "a plugin must not call sys.exit() when it is imported"
    return f"correct it, then `tavern plugins reload {candidate.name}`"
