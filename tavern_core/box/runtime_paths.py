"""What every program needs to run: the system's libraries, the files of a program or of this interpreter, its environment."""

from __future__ import annotations

import os
import shutil
import site
import struct
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Final

from tavern_core.box.protected_path_splitting import is_in
from tavern_core.model.environment_variables import FIXED, is_passed

_LIBRARIES: Final = (
    "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/share", "/usr/local/lib", "/usr/local/lib64", "/usr/local/share",
    "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store",
)  # fmt: skip
_FACTS: Final = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/mime.types",
    "/etc/locale.alias", "/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf", "/sys/devices/system/cpu",
)  # fmt: skip
"""Paths of the machine; nothing about its users."""
PROGRAMS: Final = ("/usr", "/bin", "/sbin", "/opt", "/etc/alternatives", "/snap/bin")
"""Folders of installed programs; for boxes that may start others."""
NETWORK: Final = (
    "/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/services",
    "/etc/protocols", "/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/pki/tls/certs", "/etc/pki/tls/cert.pem",
    "/etc/pki/ca-trust/extracted", "/etc/ca-certificates/extracted", "/run/systemd/resolve/stub-resolv.conf",
)  # fmt: skip
"""Files for name resolution and certificate authorities."""
_SHARED: Final = ("/", "/usr", "/usr/local")
_MOST_HOPS: Final = 4
_FIRST_BYTES: Final = 4096
_PT_INTERP: Final = 3


def machine() -> tuple[str, ...]:
    """Readable for every program: libraries, data of system packages, a few facts."""
    return (*_LIBRARIES, *_FACTS)


def interpreter() -> tuple[str, ...]:
    """Files and folders of this Python: program, standard library, installed packages."""
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}.difference(_SHARED)
    packages = {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    found = {os.path.dirname(os.__file__), os.path.realpath(sys.executable), *prefixes, *packages}  # noqa: PTH120
    return tuple(sorted(path for path in found if path.startswith("/")))


@lru_cache(maxsize=1)
def own_library() -> str:
    """The folder of this interpreter's shared library; some interpreters need ``LD_LIBRARY_PATH`` to find it."""
    import sysconfig  # takes milliseconds

    return str(sysconfig.get_config_var("LIBDIR") or "/lib")


def program_environment(host: Mapping[str, str], work: str, further: Collection[str] = ()) -> dict[str, str]:
    """The environment of a program: passed variables of the host, and fixed ones.

    Args:
        host: the host's own.
        work: its folder in place of the host's home and temporary folder; empty: it sees those.
        further: names that were requested and granted; unset ones are left out.
    """
    variables = {name: value for name, value in host.items() if is_passed(name) or name in further}
    if own_library() in host.get("LD_LIBRARY_PATH", "").split(":"):
        variables["LD_LIBRARY_PATH"] = own_library()
    variables |= FIXED
    if work:
        variables |= {"HOME": work, "TMPDIR": work}
        if site.ENABLE_USER_SITE:  # otherwise, packages of this user are found from their home
            variables["PYTHONUSERBASE"] = site.getuserbase()
    return variables


def for_every_program() -> tuple[str, ...]:
    """`machine` and `interpreter` in as few paths as possible, without paths that do not exist at the first call."""
    return _least((*machine(), *interpreter()))


@lru_cache(maxsize=4)
def _least(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Without missing paths and paths inside another one, links followed: each costs every script a rule."""
    real = {path: os.path.realpath(path) for path in paths if os.path.exists(path)}  # noqa: PTH110
    outermost: list[str] = []
    for path in sorted(real, key=lambda path: (len(real[path]), path)):
        if not any(is_in(real[path], real[other]) for other in outermost):
            outermost.append(path)
    return tuple(outermost)


def executables(program: str) -> tuple[str, ...]:
    """Files that must be executable to run one program: itself, its ``#!`` interpreters, its dynamic loader.

    Args:
        program: an absolute path; an unreadable one needs only itself.
    """
    found: list[str] = []
    for path in _chain(program):
        real = os.path.realpath(path)
        if real not in found:
            found.append(real)
    return tuple(found)


def _chain(program: str) -> Iterator[str]:
    for _ in range(_MOST_HOPS):
        yield program
        try:
            with open(program, "rb") as file:  # noqa: PTH123 - this package does not use pathlib
                head = file.read(_FIRST_BYTES)
                if head.startswith(b"\x7fELF\x02\x01"):
                    if loader := _loader(head):
                        yield loader
                    return
        except OSError:
            return
        if not head.startswith(b"#!"):
            return
        words = os.fsdecode(head[2:].partition(b"\n")[0]).split()
        if not words:
            return
        program = words[0]
        if program.endswith("/env"):  # it searches the next word on PATH
            yield from _chain(program)
            named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
            if not (program := shutil.which(named) or ""):
                return


def _loader(head: bytes) -> str:
    """The dynamic loader that a 64-bit ELF file names; empty for a static one."""
    offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    for at in range(offset, offset + size * count, size or 1):
        if at + 40 > len(head):
            break
        if struct.unpack_from("<I", head, at)[0] == _PT_INTERP:
            start, length = struct.unpack_from("<Q", head, at + 8)[0], struct.unpack_from("<Q", head, at + 32)[0]
            return os.fsdecode(head[start : start + length].rstrip(b"\0"))
    return ""
