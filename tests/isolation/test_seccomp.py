"""The filter of system calls that is kept for many processes is the one that each of them would have made for itself."""

from __future__ import annotations

import struct

from tavern_core.box import seccomp
from tavern_core.box.policy import BoxPolicy
from tests.rows import each_row

POLICIES = {
    "nothing allowed": BoxPolicy(),
    "with a network": BoxPolicy(may_network=True),
    "with children": BoxPolicy(may_fork=True),
}


@each_row("machine", ["x86_64", "aarch64"])
@each_row("own", [1, 77, 4_194_304])
@each_row("policy", POLICIES.values(), ids=POLICIES)
def test_a_filter_differs_from_that_of_another_process_in_its_number_alone(
    policy: BoxPolicy, own: int, machine: str
) -> None:
    mine, others = seccomp.assemble(policy, machine, own), seccomp.assemble(policy, machine, 12_345)
    rows = [list(struct.iter_unpack("=HBBI", code)) for code in (mine, others)]
    assert len(rows[0]) == len(rows[1])
    differences = {(a[3], b[3]) for a, b in zip(*rows, strict=True) if a != b}
    assert differences == ({(own, 12_345)} if not policy.may_fork else {(own, 12_345)} & differences)
    if not policy.may_fork:
        assert own in {row[3] for row in rows[0]}


def test_what_is_assembled_in_advance_holds_for_no_process() -> None:
    seccomp.prepare(BoxPolicy())
    code = seccomp.assemble(BoxPolicy(), "x86_64", 4242)
    assert seccomp._PLACEHOLDER_PID not in {constant for *_, constant in struct.iter_unpack("=HBBI", code)}
