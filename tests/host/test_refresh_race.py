"""Folders that appear and vanish while others list and call."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tavern_core import Plugin, tool

from .workshop import HELLO, TOOL, Workshop

TEXT = "<|[REQUEST_TOOL]|>\ncommand:「始」one:hello「末」\n<|[END_TOOL]|>"


@tool
def steady() -> int:
    return 1


@pytest.mark.slow
def test_plugins_that_vanish_while_others_list_and_call(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # else an import makes the folder again for its __pycache__
    folder = workshop.folder("one", TOOL, HELLO)
    host = workshop.open(Plugin([steady], name="steady"))
    done = threading.Event()
    strange: list[Any] = []

    def read() -> None:
        while not done.is_set():
            try:
                host.tools.list()
                host.tools.search("hello")
                host.tools.why("one:hello")
                host.run_text_sync(TEXT)
                [p.to_json() for p in host.plugins.values()]
                for tool_id, kinds in (
                    ("steady:steady", {None}),
                    ("one:hello", {None, "TOOL_NOT_FOUND", "UPSTREAM_ERROR"}),
                ):
                    result = host.invoke_sync(tool_id)
                    if (result.error and result.error.kind) not in kinds:
                        strange.append(result)
            except Exception as error:
                strange.append(error)
                raise

    with ThreadPoolExecutor(5) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        try:
            for _ in range(40):
                folder.rename(workshop.root / "away")
                host.wait(host.refresh())
                (workshop.root / "away").rename(folder)
                host.wait(host.refresh())
        finally:
            done.set()
        for reader in readers:
            reader.result(60)
    assert strange == []
    assert host.invoke_sync("one:hello").value == "hello World"
