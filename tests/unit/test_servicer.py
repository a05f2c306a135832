"""The calls of kubelet that the servicer notes; host/test_leaving has what depends on them."""

from collections.abc import Sequence
from typing import Any, cast

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.backends.deviceplugin.device_list import AdvertisedDevice, DeviceList
from devhost.backends.deviceplugin.servicer import Servicer
from devhost.model.advertised import OfferedId
from devhost.model.allocation import Allocation
from tests.support.answers import Nobody


class Answers(Nobody):
    """Notes how many calls there were, each time."""

    def __init__(self, device_list: DeviceList) -> None:
        self.device_list, self.inflight = device_list, list[int]()

    async def allocate(self, ids: Sequence[OfferedId], **_options: Any) -> Allocation:
        self.inflight.append(len(self.device_list.streams.inflight_since))
        return Allocation()

    async def prefer(self, available: Sequence[OfferedId], *_: Any) -> Sequence[OfferedId]:
        self.inflight.append(len(self.device_list.streams.inflight_since))
        return available

    def observe_allocate(self, result: str, seconds: float) -> None:
        pass


async def test_servicer_notes_calls_until_they_are_answered() -> None:
    device_list = DeviceList()
    device_list.update({"a": AdvertisedDevice(True)})
    answers, context = Answers(device_list), Any
    servicer = Servicer(cast("Any", answers), device_list)
    container = pb.ContainerAllocateRequest(devices_ids=["a"])
    await servicer.Allocate(pb.AllocateRequest(container_requests=[container]), context)
    prefer = pb.ContainerPreferredAllocationRequest(available_deviceIDs=["a"], allocation_size=1)
    asking = pb.PreferredAllocationRequest(container_requests=[prefer])
    await servicer.GetPreferredAllocation(asking, context)
    assert answers.inflight == [1, 1]
    assert device_list.streams.inflight_since == []
    assert device_list.streams.last_answer_at > 0
