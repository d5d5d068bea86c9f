"""The source of a plugin says whether its import is tried in another process first: nothing is run to find out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tavern_core.review.import_risk import import_risk

from .workshop import HELLO, TOOL, Workshop

RISKY = {
    "a function of another module": {
        "__init__.py": "from .helper import boom\nboom()\n",
        "helper.py": "import os\ndef boom():\n    os._exit(3)\n",
    },
    "a function of another module, by its module": {
        "__init__.py": "from . import helper\nhelper.boom()\n",
        "helper.py": "import os\ndef boom():\n    os._exit(3)\n",
    },
    "a function under another name": {
        "__init__.py": "from .helper import boom as b\nb()\n",
        "helper.py": "import os\ndef boom():\n    os._exit(3)\n",
    },
    "a loop in a nested module": {"__init__.py": "from .a.b import c\n", "a/b/c.py": "while 1:\n    pass\n"},
    "making an instance": {"__init__.py": "class A:\n    def __init__(self):\n        while True: pass\nA()\n"},
    "a method": {"__init__.py": "class A:\n    def go(self):\n        while True: pass\nA().go()\n"},
    "an import under another name": {"__init__.py": "from os import _exit as e\ne(3)\n"},
    "a module under another name": {"__init__.py": "import os as o\no._exit(3)\n"},
    "a name that is kept first": {"__init__.py": "import os\nf = os._exit\nf(3)\n"},
    "a name as text": {"__init__.py": 'import os\ngetattr(os, "_exit")(3)\n'},
    "code as text": {"__init__.py": 'exec("import os; os._exit(3)")\n'},
    "a default": {"__init__.py": "import os\ndef f(x=os._exit(3)): pass\n"},
    "a decorator of its own": {"__init__.py": "def run(f):\n    while True: pass\n@run\ndef g(): pass\n"},
    "what only a script leaves out": {"__init__.py": 'import os\nif __name__ != "__main__":\n    os._exit(3)\n'},
    "a condition that nothing changes": {"__init__.py": "x = 1\nwhile x:\n    pass\n"},
    "a condition that is always true": {"__init__.py": "while 1 == 1:\n    pass\n"},
    "the way out of another loop": {"__init__.py": 'while True:\n    for x in "a":\n        break\n'},
    "the way out of a function": {"__init__.py": "while True:\n    def f():\n        return 1\n"},
    "counting for ever": {"__init__.py": "import itertools\nfor _ in itertools.count():\n    pass\n"},
    "a comprehension": {"__init__.py": "from itertools import count\nx=[1 for _ in count()]\n"},
    "a sum": {"__init__.py": "from itertools import repeat\nsum(repeat(1))\n"},
    "an iterator without an end": {"__init__.py": "for _ in iter(int, 1):\n    pass\n"},
    "a loop of a trillion": {"__init__.py": "for _ in range(10**12):\n    pass\n"},
    "a giant number": {"__init__.py": "x = 9**9**9\n"},
    "native memory": {
        "__init__.py": "from ctypes import cast, POINTER, c_int\nx = cast(0, POINTER(c_int)).contents.value\n"
    },
    "everything of ctypes": {"__init__.py": "from ctypes import *\nstring_at(0)\n"},
    "no limit of recursion": {"__init__.py": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()\n"},
    "a loop of events": {
        "__init__.py": "import asyncio\nasync def main():\n    await asyncio.Event().wait()\nasyncio.run(main())\n"
    },
    "a program": {"__init__.py": 'import subprocess\nsubprocess.run(["sleep","99"])\n'},
    "a shell": {"__init__.py": 'import os\nos.system("sleep 99")\n'},
    "the standard input": {"__init__.py": "import sys\nsys.stdin.read()\n"},
    "a queue": {"__init__.py": "import queue\nqueue.Queue().get(block=True)\n"},
    "making a subclass": {
        "__init__.py": "class A:\n    def __init_subclass__(cls):\n        while True: pass\nclass B(A): pass\n"
    },
    "a lambda": {"__init__.py": "import os\nf = lambda: os._exit(3)\nf()\n"},
    "the body of a class": {"__init__.py": "class A:\n    while True:\n        pass\n"},
    "a try": {"__init__.py": "try:\n    import os\n    os.abort()\nexcept Exception: pass\n"},
    "a with": {
        "__init__.py": "class A:\n    def __enter__(self):\n        while True: pass\n    def __exit__(self,*a): pass\nwith A(): pass\n"
    },
    "a class made by a class of its own": {
        "__init__.py": "class M(type):\n    def __init__(cls, *args):\n        while True: pass\nclass A(metaclass=M): pass\n"
    },
    "a name as text in a mapping": {"__init__.py": 'import os\nvars(os)["_exit"](3)\n'},
    "a condition that names what it says": {"__init__.py": "while x := 1:\n    pass\n"},
    "a descriptor": {"__init__.py": "import os\nos.read(0, 1)\n"},
    "an extension in C": {"__init__.py": "", "x.so": ""},
    "an expression": {"__init__.py": "import os\nx = os._exit(3) if True else 1\n"},
}
HARMLESS = {
    "a counter": {"__init__.py": "import itertools\n_ids = itertools.count(1)\nnext(_ids)\n"},
    "looking upwards": {
        "__init__.py": 'from pathlib import Path\nroot = Path(__file__)\nwhile not (root / "x").exists() and root != root.parent:\n    root = root.parent\n'
    },
    "working off a list": {"__init__.py": "s=[1]\nwhile s:\n    s.pop()\n"},
    "counting": {"__init__.py": "i=0\nwhile i<3:\n    i+=1\n"},
    "texts": {"__init__.py": 'n = "aab".count("a")\nfor c in "x".join("ab"): pass\n'},
    "reading lines": {"__init__.py": "import io\nf=io.StringIO()\nwhile line := f.readline():\n    pass\n"},
    "counting along": {"__init__.py": 'from itertools import count\nfor a,b in zip(count(), "abc"):\n    pass\n'},
    "mappings": {"__init__.py": 'import os\nX = os.environ.get("X")\nY={}.get("a", None)\n'},
    "patterns": {"__init__.py": 'import re\nX = re.compile("a")\nY = X.match("a")\n'},
    "numbers": {"__init__.py": "x=2**10\ny=10**6\nz=1<<20\nr=range(10**6)\n"},
    "a power": {"__init__.py": "n=3\nx=2**n\ny=1"},
    "a lock": {"__init__.py": "import threading\nL=threading.Lock()\nwith L: pass\n"},
    "a script's function": {
        "__init__.py": 'def main():\n    import os\n    os._exit(3)\nif __name__ == "__main__":\n    main()\n'
    },
    "a dataclass": {
        "__init__.py": "from dataclasses import dataclass, field\n@dataclass\nclass A:\n    x: int = field(default=1)\n"
    },
    "asking what there is": {"__init__.py": 'import os\nX = getattr(os, "O_BINARY", 0)\nHAS=hasattr(os,"fork")\n'},
    "tests": {"tests/test_it.py": "import os\nos._exit(3)\n"},
    "what cannot be read": {"__init__.py": "while True\n"},
}


def folder_of(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("what", RISKY)
def test_whatever_may_end_or_hang_an_import_is_seen(tmp_path: Path, what: str) -> None:
    assert import_risk(folder_of(tmp_path, RISKY[what]))


@pytest.mark.parametrize("what", HARMLESS)
def test_ordinary_code_gives_no_reason(tmp_path: Path, what: str) -> None:
    assert import_risk(folder_of(tmp_path, HARMLESS[what])) == ""


def test_the_place_is_that_of_the_dangerous_line(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from .parts import engine\n\nengine.begin()\n",
        "parts/engine.py": "import os\n\ndef begin():\n    os.abort()\n",
    }
    assert import_risk(folder_of(tmp_path, files)) == "parts/engine.py:4 calls os.abort while it is imported"


def test_more_code_than_is_read_is_tried(tmp_path: Path) -> None:
    assert "more code" in import_risk(folder_of(tmp_path, {f"part_{n}.py": "" for n in range(301)}))


@pytest.mark.parametrize(
    "text", ["x = a" + ".b" * 900 + "()", "x = 2 ** (" + "1+" * 900 + "1)", "while a" + ".b" * 900 + ": pass"]
)
def test_deeply_nested_source_is_no_trouble(tmp_path: Path, text: str) -> None:
    import_risk(folder_of(tmp_path, {"__init__.py": text}))  # whatever it says, it raises nothing


def test_a_crash_in_a_helper_costs_only_the_plugin(workshop: Workshop) -> None:
    workshop.folder("bad", "from .parts import helper\nhelper.begin()\n" + TOOL, HELLO, **{
        "parts__helper.py": "import ctypes as c\ndef begin():\n    c.string_at(0)\n",
    })  # fmt: skip
    workshop.folder("good", TOOL, HELLO)
    host = workshop.open()
    error = host.invoke_sync("bad:hello").error
    assert error is not None
    assert "SIGSEGV" in error.message
    assert host.invoke_sync("good:hello").ok
    assert workshop.tried() == ["import bad", "import good"]
    assert workshop.notes() == ["import good"]
