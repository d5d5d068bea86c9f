"""What ordinary programs do works in their box without any grant."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.rows import each_row

from .conftest import TOOL, Place, Shared

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


ORDINARY = {
    "threads": "import threading; t = threading.Thread(target=lambda: None); t.start(); t.join()",
    "an installed package": "import pydantic, pluggy",
    "what the interpreter loads late": "import sqlite3, ssl, ctypes, zoneinfo, decimal, lzma; ssl.create_default_context(); zoneinfo.ZoneInfo('Asia/Shanghai')",
    "a locale": "import locale; locale.setlocale(locale.LC_ALL, 'C.UTF-8')",
    "random numbers": "os.urandom(8); open('/dev/urandom', 'rb').read(1); open('/dev/null', 'w').write('x')",
    "files with Chinese names": "p = os.environ['HOME'] + '/数据'; os.mkdir(p); open(p + '/笔记.txt', 'w').write('字'); assert os.listdir(p) == ['笔记.txt']",
    "temporary files": "with tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile(dir=d) as f: f.write(b'x')",
    "copies of itself": "pid = os.fork()\nif pid == 0: os._exit(3)\nassert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3",
    "its interpreter again": "assert subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True).stdout == b'1\\n'",
    "locks between processes": "import multiprocessing as m\nwith m.Lock(): pass",
    "a queue between processes": "import multiprocessing as m\nc = m.get_context('fork'); q = c.Queue(); p = c.Process(target=q.put, args=(7,)); p.start(); assert q.get(timeout=10) == 7; p.join()",
    "a pool of processes": "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p: assert p.map(abs, [-1, -2]) == [1, 2]",
    "memory that processes share": "from multiprocessing import shared_memory as s\nb = s.SharedMemory(create=True, size=100); b.close(); b.unlink()",
    "an event loop with programs": "import asyncio\nasync def go(): return await (await asyncio.create_subprocess_exec(sys.executable, '-c', '1')).wait()\nassert asyncio.run(go()) == 0",
}  # fmt: skip


@each_row("what", ORDINARY)
def test_an_ordinary_script_works_without_any_grant(demo: Shared, what: str) -> None:
    place, tavern = demo()
    result = place.run(tavern, ORDINARY[what])
    assert result.ok, result.error
    assert result.value["did"], result.value


@pytest.mark.parametrize("runner", [r for r in ("node", "bun", "deno run") if shutil.which(r.split()[0])])
def test_programs_of_other_languages_work_without_any_grant(place: Place, runner: str) -> None:
    script = "const fs = require('node:fs'); fs.writeFileSync(process.env.HOME + '/字', 'x'); console.log(JSON.stringify({ok: fs.readdirSync(process.env.HOME)}))"
    (place.plugin / "try.cjs").write_text(script)
    tool = {**TOOL, "implementation": {"type": "script", "command": f"{runner} try.cjs", "timeout": 20_000}}
    (place.plugin / "tools" / "try.tool.json").write_text(json.dumps(tool))
    with place.open(tier="none") as tavern:
        result = place.run(tavern, "")
    assert result.ok, result.error
    assert "字" in result.value["ok"]
