"""How gRPC finds what answers a call of the kubelet, and between which types and bytes."""

from typing import Any, Final

import grpc
from google.protobuf.message import Message

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1.deviceplugin_pb2_grpc import DevicePluginServicer

_SERVICE: Final = "/v1beta1.DevicePlugin/"
_UNARY: Final[dict[str, type[Message]]] = {
    "GetDevicePluginOptions": pb.Empty,
    "GetPreferredAllocation": pb.PreferredAllocationRequest,
    "Allocate": pb.AllocateRequest,
    "PreStartContainer": pb.PreStartContainerRequest,
}


class Methods(grpc.GenericRpcHandler):
    """The methods of one servicer.

    What protoc generates registers each method, and then grpc.aio keeps a task and a call in
    waiting for each of them, on each server, and looks at all of them for every call.
    """

    __slots__ = ("_servicer",)

    def __init__(self, servicer: DevicePluginServicer) -> None:
        self._servicer = servicer

    def service(self, handler_call_details: Any) -> Any:
        """Return what answers a call, or ``None`` for a method that is not known."""
        name = handler_call_details.method.removeprefix(_SERVICE)
        if name == "ListAndWatch":  # sends what is encoded already
            return grpc.unary_stream_rpc_method_handler(
                self._servicer.ListAndWatch, pb.Empty.FromString
            )
        request = _UNARY.get(name)
        if request is None:
            return None
        return grpc.unary_unary_rpc_method_handler(
            getattr(self._servicer, name), request.FromString, _serialized
        )


def _serialized(answer: Any) -> bytes:
    data: bytes = answer.SerializeToString()
    return data
