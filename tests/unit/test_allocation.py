"""From a resource's rules and its devices to what a container receives: examples are in scans/allocate.txt."""

from collections.abc import Iterable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.allocation.compiled import combine
from devhost.allocation.rules import Rules, rules_of
from devhost.errors import AllocationError
from devhost.model.allocation import Allocation
from devhost.model.config import Resource
from tests.support import devices


def rules(**section: Any) -> Rules:
    """The rules of an ``allocate``; no devices by default."""
    allocate = {"devices": [], **section}
    options = {"name": "example.com/a", "sources": [{"dev": "x"}], "allocate": allocate}
    return rules_of(Resource.model_validate(options))


def allocate(of: Rules, ids: Iterable[str]) -> Allocation:
    """Return what a container receives with devices, in this order."""
    granted = [devices.device(name, devices.node(f"/dev/{name}")) for name in ids]
    return combine(of, {"resource": "example.com/a", "nodeName": "node-1"}, granted, ids)


def test_allocation_larger_than_kubelet_takes_is_refused() -> None:
    of = rules(env={"A": "x" * 2_000_000 + "${id}"})
    assert len(allocate(of, "ab").envs["A"]) == 4_000_003
    with pytest.raises(AllocationError, match="a container would receive more than 4 MiB of text"):
        allocate(of, "abc")


FULL: Final = rules(
    env={"IDS": "${id}", "N": "${count}", "P_${index}": "${path}", "C": "x"},
    devices=["/dev/fuse", {"hostPath": "${path}", "containerPath": "/dev/x${index}"}],
    mounts=[{"hostPath": "/opt/${id}", "containerPath": "/opt/${index}"}],
    annotations={"a": "${name}"},
    cdi=["v/c=d${id}"],
)


@given(
    st.sets(st.integers(0, 30).map("c{}".format), min_size=1, max_size=6).flatmap(
        lambda ids: st.tuples(st.permutations(sorted(ids)), st.permutations(sorted(ids)))
    )
)
def test_allocation_in_any_order_is_the_same(orders: tuple[list[str], list[str]]) -> None:
    first, second = (allocate(FULL, order) for order in orders)
    assert first == second
    for mapping in ("envs", "annotations"):
        assert list(getattr(first, mapping)) == list(getattr(second, mapping))
