"""Layer `limits`: limits on the resources of one process."""

from __future__ import annotations

import resource

from tavern_core.box.policy import BoxLimits

_NO_CORE = 1
"""Bytes of a core dump. Not 0: a core handler with a pipe runs for 0, but not for 1 (fs/coredump.c)."""


def apply(limits: BoxLimits) -> None:
    """Lower the limits of this process; lower limits stay."""
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
    """Lower the number of processes. Only in new namespaces: outside, all processes of the user would count."""
    _lower(resource.RLIMIT_NPROC, limits.processes)


def _lower(kind: int, value: int | None) -> None:
    if value is None:
        return
    soft, hard = resource.getrlimit(kind)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound if soft == resource.RLIM_INFINITY else min(soft, bound), bound))
