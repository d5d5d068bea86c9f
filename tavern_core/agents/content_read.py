"""What a run has read, as far as it decides which calls a person must approve (`kernel/calls/untrusted_content.py`)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tavern_core.agents.playback import Playback
from tavern_core.model.untrusted import MARK, ContentRead, addresses_in, sources_in, texts_in


def read_at_start(read: ContentRead, facts: Mapping[str, Any], task: str) -> None:
    """The task, the prompt, and untrusted knowledge that the prompt shows.

    Args:
        facts: of the run.
    """
    read.trust(task, facts["system"])
    read.add(facts["untrusted"], time.time())


def read_again(read: ContentRead, playback: Playback) -> None:
    """What the recorded results of a run contained: it also counts in a process that resumes the run."""
    for at, result in sorted(playback.results.items()):
        sources = sources_in((result.get("meta") or {}).get(MARK))
        read.add(sources, time.time())
        if sources or not read.sources:
            arguments = playback.calls[at]["arguments"] if at in playback.calls else {}
            given = {address for text in texts_in(arguments) for address in addresses_in(text)}
            read.learn([result.get("value"), result.get("content")], given)
