"""A program that these tests fork ends as one that Python starts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_programs import run_forked

pytestmark = pytest.mark.slow

PROGRAMS = {
    "it returns": "print('done')",
    "it exits": "import sys; print('done'); sys.exit(3)",
    "it exits without a code": "import sys; print('done'); sys.exit()",
    "it exits with a code beyond a byte": "import sys; sys.exit(259)",
    "it exits with a text": "import sys; sys.exit('not today')",
    "it raises": "class Wrong(Exception): pass\nprint('done')\nraise Wrong",
    "it is interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "exit handlers, the last one first": "import atexit; atexit.register(print, 'a'); atexit.register(print, 'b')",
    "an exit handler that fails": "import atexit\n@atexit.register\ndef fails(): raise ValueError('x')\nprint('done')",
    "a thread that goes on": (
        "import threading, time\nthreading.Thread(target=lambda: (threading.main_thread().join(), print('thread'))).start()"
    ),
    "an object that is left": "class Left:\n    def __del__(self): print('left')\nleft = Left()",
    "objects of a circle": "class Left:\n    def __del__(self): print('left')\nleft = Left()\nleft.own = left\ndel left",
    "an object of a module": (
        "import sys, types\nclass Left:\n    def __del__(self): print('left')\n"
        "sys.modules['own'] = types.ModuleType('own')\nsys.modules['own'].left = Left()\ndel Left"
    ),
    "a log": "import logging; logging.warning('logged')",
    "a file that is left open": "kept = open('written.txt', 'w'); kept.write('all')",
    "stdout that nobody can write": "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); print('lost')",
    "stdout that is closed": "import sys; print('done'); sys.stdout.close()",
    "no stdout": "import sys; sys.stdout = None",
    "a copy of itself that returns": "import os\nif pid := os.fork(): os.waitpid(pid, 0)\nprint('copy' if not pid else 'first')",
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_forked_program_ends_as_python_ends_it(tmp_path: Path, what: str) -> None:
    def lines(error: str) -> list[str]:
        """Without the frames of a traceback, addresses, and how stdout is called."""
        shown = re.sub("0x[0-9a-f]+", "0x", error.replace("name=1 ", "name='<stdout>' "))
        return [line for line in shown.splitlines() if not line.startswith(" ")]

    words = ["-c", PROGRAMS[what]]
    python = subprocess.run([sys.executable, "-I", *words], capture_output=True, text=True, cwd=tmp_path, check=False)
    written = [file.read_text() for file in tmp_path.iterdir()]
    forked = run_forked(words, cwd=tmp_path)
    assert (forked.returncode, forked.stdout) == (python.returncode, python.stdout)
    assert lines(forked.stderr) == lines(python.stderr)
    assert [file.read_text() for file in tmp_path.iterdir()] == written
