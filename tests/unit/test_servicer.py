"""What the servicer refuses by itself, before it asks for an answer."""

from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.backends.deviceplugin.device_list import AdvertisedDevice, DeviceList
from devhost.backends.deviceplugin.servicer import Servicer
from devhost.model.advertised import OfferedId
from devhost.model.allocation import Allocation


class Answers:
    """Allocates whatever it is asked for."""

    name = "example.com/a"
    pre_start_required = False

    def __init__(self, device_list: DeviceList) -> None:
        self.device_list = device_list
        self.asked: list[list[str]] = []
        self.inflight: list[int] = []  # how many calls there were, each time

    async def allocate(self, ids: Sequence[OfferedId], **_options: Any) -> Allocation:
        self.asked.append([offered.id for offered in ids])
        self.inflight.append(len(self.device_list.streams.inflight_since))
        return Allocation(tuple(offered.id for offered in ids))

    async def prefer(self, available: Sequence[OfferedId], *_: Any) -> Sequence[OfferedId]:
        self.inflight.append(len(self.device_list.streams.inflight_since))
        return available

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: None


def request(*ids: str) -> pb.AllocateRequest:
    return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])


class AbortError(Exception):
    """The call was ended with an error."""


class Context:
    """A call."""

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise AbortError(code, text)


async def test_servicer_id_that_is_not_listed_is_refused() -> None:
    """Kubelet looks it up in the last list when it has the answer, and dies if it is not there."""
    device_list = DeviceList()
    device_list.update({"a": AdvertisedDevice(True)})
    answers: Any = Answers(device_list)
    servicer = Servicer(answers, device_list)
    await servicer.Allocate(request("a"), Context())
    with pytest.raises(AbortError, match="there is no device b"):
        await servicer.Allocate(request("a", "b"), Context())
    assert answers.asked == [["a"]]


async def test_servicer_notes_calls_until_they_are_answered() -> None:
    """Meanwhile no ID leaves the list, and kubelet is asked nothing that makes it free devices."""
    device_list = DeviceList()
    device_list.update({"a": AdvertisedDevice(True)})
    answers: Any = Answers(device_list)
    servicer = Servicer(answers, device_list)
    await servicer.Allocate(request("a"), Context())
    prefer = pb.ContainerPreferredAllocationRequest(available_deviceIDs=["a"], allocation_size=1)
    asking = pb.PreferredAllocationRequest(container_requests=[prefer])
    await servicer.GetPreferredAllocation(asking, Context())
    assert answers.inflight == [1, 1]
    assert device_list.streams.inflight_since == []
    assert device_list.streams.last_answer_at > 0
