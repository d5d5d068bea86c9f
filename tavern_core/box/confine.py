"""Confines this process to its box. It cannot leave the box again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from tavern_core.box import landlock, namespaces, privileges, rlimits, seccomp
from tavern_core.box.policy import LANDLOCK, LIMITS, NAMESPACES, PRIVILEGES, SECCOMP, BoxPolicy, BoxUnavailable
from tavern_core.box.write_broker import judges

_MOST_DESCRIPTORS = 1 << 20


class PreparedBox:
    """Parts of a box that the forking process prepares for the forked one, because it has everything loaded already.

    Create it for each process, and close it after the fork.
    """

    def __init__(self, policy: BoxPolicy) -> None:
        self.rules: int | None = None
        if policy.level == "none":
            return
        seccomp.prepare(policy)
        if LANDLOCK not in (*policy.without, *policy.left_out):
            with contextlib.suppress(OSError):  # the forked process detects and reports it
                self.rules = landlock.begin(policy)

    def close(self) -> None:
        if self.rules is not None:
            os.close(self.rules)


def confine(
    policy: BoxPolicy,
    *,
    prepared: PreparedBox | None = None,
    asking: Callable[[int], None] | None = None,
) -> tuple[str, ...]:
    """Apply the layers to this process and to everything that it starts. This cannot be undone.

    No layer can revoke an open file: close them first (`close_others`).

    Call it in a process with a single thread: most layers apply to the calling thread and threads that it creates later.

    Args:
        asking: called with the descriptor on which the host decides about writes in granted places
            (`write_broker.py`); without it, the box itself may write everything around protected entries.
        prepared: made for this policy by the process that has just forked this one, which has one thread then.

    Returns:
        The names of the applied layers (`LAYERS`); empty for level ``none``.

    Raises:
        BoxUnavailable: the level is ``required`` and one is missing (PLUGIN_FAILED). The process then has some layers and
            must end.
    """
    if policy.level == "none":
        return ()
    if prepared is None:
        require_one_thread()
    return apply_layers(policy, _steps(policy, prepared, asking))[0]


def _steps(
    policy: BoxPolicy, prepared: PreparedBox | None, asking: Callable[[int], None] | None
) -> list[tuple[str, Callable[[], None]]]:
    """The layers and the function that applies each, in the order in which they must be applied."""
    rules = None if prepared is None else prepared.rules
    asks = asking is not None and judges(policy)

    def filter_calls() -> None:
        if asks:
            privileges.let_read()
        if (listener := seccomp.apply(policy, asks=asks)) >= 0 and asking is not None:
            asking(listener)

    return [
        (LIMITS, lambda: rlimits.apply(policy.limits)),
        (NAMESPACES, lambda: _own_namespaces(policy)),
        (PRIVILEGES, privileges.apply),
        (LANDLOCK, lambda: landlock.apply(policy, begun=rules, asks=asks)),
        (SECCOMP, filter_calls),
    ]


def apply_layers(
    policy: BoxPolicy, steps: Iterable[tuple[str, Callable[[], None]]]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Apply the layers in order.

    Returns:
        (the applied layers, layer → why it is missing).

    Raises:
        BoxUnavailable: the level is ``required`` and one is missing.
    """
    applied: list[str] = []
    skipped: dict[str, str] = {}
    for layer, step in steps:
        if layer in policy.left_out and layer not in policy.without:
            continue
        try:
            if layer in policy.without:
                raise OSError(0, "it is switched off (isolation.without)")
            step()
        except OSError as error:
            reason = error.strerror or str(error)
            if policy.level == "required":
                raise BoxUnavailable(layer, reason) from None
            skipped[layer] = reason
        else:
            applied.append(layer)
    return tuple(applied), skipped


def _own_namespaces(policy: BoxPolicy) -> None:
    namespaces.apply(namespaces.unshare_flags(policy))
    rlimits.bound_processes(policy.limits)


def close_others(keep: Iterable[int]) -> None:
    """Close every descriptor except the first three and `keep`."""
    first = 3
    for descriptor in sorted({number for number in keep if number >= first}):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, _MOST_DESCRIPTORS)


def require_one_thread() -> None:
    """Refuse a process with several threads. Raises BoxUnavailable: the other threads would stay outside of the box."""
    try:
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - pathlib is not loaded here
    except OSError:  # no /proc: the caller has just been forked
        return
    if threads > 1:
        raise BoxUnavailable(SECCOMP, f"this process has {threads} threads; only one of them would be confined")
