"""From a resource's rules and its devices to what a container receives: examples are in scans/allocate.txt."""

import pytest

from devhost.allocation.compiled import combine
from devhost.allocation.rules import rules_of
from devhost.errors import AllocationError
from devhost.model.allocation import Allocation
from devhost.model.config import Resource
from tests.support import devices

NAME = "example.com/a"


def test_allocation_larger_than_kubelet_takes_is_refused() -> None:
    allocate = {"devices": [], "env": {"A": "x" * 2_000_000 + "${id}"}}
    options = {"name": NAME, "sources": [{"dev": "x"}], "allocate": allocate}
    rules = rules_of(Resource.model_validate(options))

    def allocated(ids: str) -> Allocation:
        granted = [devices.device(name, devices.node(f"/dev/{name}")) for name in ids]
        return combine(rules, {"resource": NAME, "nodeName": "node-1"}, granted, ids)

    assert len(allocated("ab").envs["A"]) == 4_000_003
    with pytest.raises(AllocationError, match="a container would receive more than 4 MiB of text"):
        allocated("abc")
