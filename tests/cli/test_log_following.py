"""`tavern logs --follow` and `tavern logs tail` tell what is written while they run, across a rotation of the log."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tavern_core.kernel.log.event_log import EventLog
from tavern_core.kernel.log.log_files import audit_log
from tavern_core.model.event import Event
from tests.forked_programs import ForkedProgram

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("words", [["logs", "--follow"], ["logs", "tail", "--type", "tool_called"]])
def test_new_records_appear_until_ctrl_c(project: Path, home: Path, words: list[str]) -> None:
    with EventLog(audit_log(home), max_bytes=5_000) as log:
        log.append(Event("TOOL_CALLED", 0.0, {"number": 0}))
        command = ["-m", "tavern_core", "--home", str(home), *words, "--json"]
        with ForkedProgram(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
            assert json.loads(following.stdout.readline())["number"] == 0
            for number in range(1, 60):  # more than one file holds
                log.append(Event("TOOL_CALLED", 0.0, {"number": number, "文本": "字" * 20}))
            seen = [json.loads(following.stdout.readline())["number"] for _ in range(1, 60)]
            following.send_signal(signal.SIGINT)
            _, err = following.communicate(timeout=30)
    assert seen == list(range(1, 60))
    assert (following.returncode, "Traceback" in err) == (130, False)
    assert len(list(audit_log(home).parent.glob("audit-*.jsonl"))) >= 1
