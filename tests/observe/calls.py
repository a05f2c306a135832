"""A client of a plugin's socket that is not kubelet."""

from collections.abc import Sequence

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.backends.sockets import open_channel
from tests.support.daemon import Daemon


async def allocate(daemon: Daemon, *containers: Sequence[str]) -> None:
    """Call Allocate of the only resource, as a kubelet does for one container."""
    (name,) = daemon.sockets()
    requests = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
    async with open_channel(daemon.plugins / name) as channel:
        stub = pb_grpc.DevicePluginStub(channel)
        await stub.Allocate(pb.AllocateRequest(container_requests=requests))
