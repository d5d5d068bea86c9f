"""Layer `limits`: bounds on what one process may use up."""

from __future__ import annotations

import resource

from tavern_core.box.policy import BoxLimits

_NO_CORE = 1
"""Bytes of a core dump. Not 0: a core handler behind a pipe is run for 0, and only for 1 it is not (fs/coredump.c)."""


def apply(limits: BoxLimits) -> None:
    """Lower the limits of this process; what is lower already stays so."""
    _lower(resource.RLIMIT_CORE, _NO_CORE)
    for kind in (resource.RLIMIT_MSGQUEUE, resource.RLIMIT_RTPRIO):
        _lower(kind, 0)
    _lower(resource.RLIMIT_DATA, limits.memory_bytes)
    if limits.is_address_space:
        _lower(resource.RLIMIT_AS, limits.memory_bytes)
    _lower(resource.RLIMIT_CPU, limits.cpu_seconds)
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    _lower(resource.RLIMIT_FSIZE, limits.file_bytes)


def bound_processes(limits: BoxLimits) -> None:
    """Lower the number of processes. In namespaces of one's own only: outside, those of the whole user would count."""
    _lower(resource.RLIMIT_NPROC, limits.processes)


def _lower(kind: int, value: int | None) -> None:
    if value is None:
        return
    soft, hard = resource.getrlimit(kind)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound if soft == resource.RLIM_INFINITY else min(soft, bound), bound))
