"""What the servicer refuses by itself, before it asks for an answer."""

from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.kubelet.device_list import AdvertisedDevice, DeviceList
from devhost.kubelet.servicer import Servicer
from devhost.model.allocation import Allocation


class Answers:
    """Allocates whatever it is asked for."""

    name = "example.com/a"
    pre_start_required = False

    def __init__(self) -> None:
        self.asked: list[Sequence[str]] = []

    async def allocate(self, advertised_ids: Sequence[str], **_options: Any) -> Allocation:
        self.asked.append(advertised_ids)
        return Allocation(tuple(advertised_ids))

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: None


class AbortError(Exception):
    """The call was ended with an error."""


class Context:
    """A call."""

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise AbortError(code, text)


async def test_an_id_that_is_not_listed_is_not_allocated() -> None:
    """Kubelet looks it up in the last list when it has the answer, and dies if it is not there."""
    answers: Any = Answers()
    device_list = DeviceList()
    device_list.update({"a": AdvertisedDevice(True)})
    servicer = Servicer(answers, device_list)

    def request(*ids: str) -> pb.AllocateRequest:
        return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])

    await servicer.Allocate(request("a"), Context())
    with pytest.raises(AbortError, match="there is no device b"):
        await servicer.Allocate(request("a", "b"), Context())
    assert answers.asked == [["a"]]
