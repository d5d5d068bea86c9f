"""Signs in the output of a failed script that its box may have refused something, and the hint about it.

It guesses from words, so it says "if": a server or the mode of a file may also have caused the refusal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tavern_core.box.policy import BoxLimits, BoxPolicy
from tavern_core.contract.protocols import Sandbox
from tavern_core.model.call import Rights

_FILES: Final = ("read:fs", "write:fs", "process:spawn")
_SIGNS: Final[Sequence[tuple[re.Pattern[str], tuple[str, ...]]]] = (
    (re.compile(r"Errno 13\b|EACCES|Permission denied|PermissionDenied|os error 13\b"), _FILES),
    # followed by a file name, it concerns the file's mode, owner or time
    (
        re.compile(r"Errno 1\](?! Operation not permitted: )|EPERM(?!: operation not permitted, )|os error 1\b"),
        ("network",),
    ),
    (
        re.compile(
            r"Errno -[235]\]|EAI_AGAIN|ENOTFOUND|name resolution|Name or service not known|Could not resolve|getaddrinfo"
            r"|Network is unreachable|ENETUNREACH|dns error"
        ),
        ("network",),
    ),
)
"""Output of a program → capabilities, one of which may be missing."""
_NO_GRANT: Final = re.compile(
    r"Errno 1\] Operation not permitted: |EPERM: operation not permitted, |Errno 18\]|EXDEV|(?:[Pp]ermission denied).* -> "
)
_AROUND: Final = re.compile(
    r"Errno (101|111|-[235])\]|Errno 1\](?! Operation not permitted: )|ECONNREFUSED|ENETUNREACH|EAI_AGAIN|ENOTFOUND|name resolution|resolve host"
)
"""Output of programs that do not use the gateway of their box."""
_MOST_REFUSED: Final = 3
_BOUNDS: Final[Sequence[tuple[re.Pattern[str], str, str, str]]] = (
    (
        re.compile(r"MemoryError|ENOMEM|Cannot allocate memory|heap out of memory|bad_alloc|Errno 12\]"),
        "memory_bytes", "bytes of memory", "memoryBytes",
    ),
    (re.compile(r"EMFILE|Too many open files|Errno 24\]"), "open_files", "open files", "openFiles"),
    (re.compile(r"EFBIG|File too large|Errno 27\]|SIGXFSZ"), "file_bytes", "bytes in one file", "fileBytes"),
    (
        re.compile(r"can't start new thread|BlockingIOError: \[Errno 11\]|fork: .*Resource temporarily unavailable|spawn \S+ EAGAIN"),
        "processes", "processes and threads", "processes",
    ),
)  # fmt: skip
"""Output of a program → the limit that it may have reached: its field, its unit, its setting."""


class Held:
    """The box of one script.

    Args:
        rights: of the call.
    """

    def __init__(self, sandbox: Sandbox, rights: Rights, policy: BoxPolicy) -> None:
        self._sandbox = sandbox
        self._rights = rights
        self._limits: BoxLimits = policy.limits
        self._is_filtered = "seccomp" not in policy.left_out
        self._has_gateway = policy.has_gateway
        self.refused: list[str] = []
        """The refusals of its gateway."""

    def hint(self, said: str) -> str:
        """The hint about the box for a failed script; empty if the box does not seem to be the reason.

        Refusals of the gateway come first, because they are certain.

        Args:
            said: its error and its stderr.
        """
        wanted = [name for sign, names in _SIGNS if sign.search(said) for name in names]
        reported = self.refused[:_MOST_REFUSED]
        if wanted:
            reported.append(self._sandbox.what_would_allow(self._rights, tuple(dict.fromkeys(wanted))))
        if self._is_filtered and _NO_GRANT.search(said):
            reported.append(
                "no grant lets a script change modes, owners, times or attributes of files, make symbolic links, or move files between folders that were granted differently"
            )
        if self._has_gateway and not self.refused and _AROUND.search(said):
            reported.append(
                "its box has no way to the network but the proxy that HTTP_PROXY and HTTPS_PROXY name, which looks up names, too"
            )
        for sign, field, unit, setting in _BOUNDS:
            bound = getattr(self._limits, field)
            if bound is not None and sign.search(said):
                reported.append(f"its box has at most {bound:,} {unit} (isolation.{setting} in tavern.yaml)")
        return "; ".join(filter(None, reported))
