"""From a resource's rules and its devices to what a container receives: examples are in scans/allocate.txt."""

from collections.abc import Iterable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.allocation.compiled import Rules, combine, rules_of
from devhost.errors import AllocationError
from devhost.model.allocation import Allocation
from devhost.model.config import Resource
from devhost.model.device import FileKind, HostDevice, Node
from tests.support import devices

NONE: Final[list[Any]] = []
CONSTANTS: Final = {"resource": "example.com/a", "nodeName": "node-1"}


def rules(**section: Any) -> Rules:
    """The rules of an ``allocate``; no devices by default."""
    resource = Resource.model_validate(
        {
            "name": "example.com/a",
            "sources": [{"dev": "x"}],
            "allocate": {"devices": NONE, **section},
        }
    )
    return rules_of(resource)


def node(path: str, kind: FileKind = FileKind.CHAR, **groups: str) -> Node:
    number = (1, 3) if kind.is_node else None
    return devices.node(path, number, kind, realpath=f"/real{path}", variables=groups)


def device(device_id: str, *nodes: Node) -> HostDevice:
    return devices.device(device_id, *(nodes or (node(f"/dev/{device_id}"),)))


def allocate(of: Rules, devices: Iterable[HostDevice], ids: Iterable[str]) -> Allocation:
    return combine(of, CONSTANTS, devices, ids)


def test_allocation_larger_than_kubelet_takes_is_refused() -> None:
    of = rules(env={"A": "x" * 2_000_000 + "${id}"})
    devices = [device(one) for one in "abc"]
    assert len(allocate(of, devices[:2], ["a", "b"]).envs["A"]) == 4_000_003
    with pytest.raises(AllocationError, match="a container would receive more than 4 MiB of text"):
        allocate(of, devices, ["a", "b", "c"])


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
    devices = {each: device(each) for each in orders[0]}
    one = allocate(FULL, [devices[each] for each in orders[0]], orders[0])
    other = allocate(FULL, [devices[each] for each in orders[1]], orders[1])
    assert one == other
    for mapping in ("envs", "annotations"):
        assert list(getattr(one, mapping)) == list(getattr(other, mapping))
