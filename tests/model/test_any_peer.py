"""Requests of any client of a plugin socket."""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.backends.sockets import open_channel
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.model.running import bounded, fuzzed
from tests.support.hosting import Hosting

pytestmark = pytest.mark.slow

CONFIG: Final = """\
version: v1
resources:
  - name: example.com/a
    sources: [static: 3]
    replicas: 2
    maxPerContainer: 1
    prefer: numa
    allocate: {env: {IDS: "${id}", COUNT: "${count}"}, annotations: {example.com/x: "${index}"}}
    preStart: [{waitFor: /, every: start}]
  - name: example.com/b
    sources: [static: [x, y]]
    allocate: {devices: [{hostPath: /dev/null, containerPath: "/dev/null${index}"}]}
"""
COUNTS: Final = {"example.com/a": 6, "example.com/b": 2}
IDS: Final = frozenset({*(f"{n}::{share}" for n in range(3) for share in range(2)), "x", "y"})
# Of calls that can be parsed: the client gets the reason.
REFUSED: Final = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}


class ServedHost:
    """A host with a kubelet, on an event loop that runs while a call does."""

    def __init__(self, directory: Path) -> None:
        (directory / "plugins").mkdir()
        self.plugins, self.loop = directory / "plugins", asyncio.new_event_loop()
        self.errors: list[logging.LogRecord] = []
        self._hosting, self._open = Hosting(directory), contextlib.AsyncExitStack()
        self.loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._kubelet = SimulatedKubelet(self.plugins, self._hosting.pod_resources)
        await self._kubelet.start()
        self._hosting.start(CONFIG)
        for name, count in COUNTS.items():
            await self._kubelet.wait(name, count, count)
        self.sockets = sorted(self.plugins.glob("devhost-*.sock"))
        self._channels = [
            await self._open.enter_async_context(open_channel(path)) for path in self.sockets
        ]

    def close(self) -> None:
        self.loop.run_until_complete(self._stop())
        self.loop.close()

    async def _stop(self) -> None:
        await self._open.aclose()
        await self._hosting.close()
        await self._kubelet.stop()

    def call(self, method: str, request: bytes, index: int) -> bytes | grpc.aio.AioRpcError:
        """Send a request to one of the sockets; return the answer, or the error."""

        async def send() -> bytes:
            call: Any = self._channels[index].unary_unary(f"/v1beta1.DevicePlugin/{method}")
            answer: bytes = await call(request, timeout=60)
            return answer

        try:
            return self.loop.run_until_complete(send())
        except grpc.aio.AioRpcError as error:
            return error

    def is_well(self) -> None:
        """Assert that it answers on both sockets, and has logged no error."""
        for index in (0, 1):
            assert isinstance(self.call("GetDevicePluginOptions", b"", index), bytes)
        assert not [record.getMessage() for record in self.errors]


_worlds: Final[list[ServedHost]] = []


@pytest.fixture(autouse=True, scope="module")
def _world() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="dh") as place, pytest.MonkeyPatch.context() as patch:
        world = ServedHost(Path(place))
        # As `devhost.observe.logs` has it: the client is at fault, and gets an error.
        patch.setattr(logging.getLogger("grpc._cython.cygrpc"), "disabled", True)
        patch.setattr(logging.getLogger("grpc._common"), "disabled", True)
        handler = logging.Handler(logging.ERROR)
        handler.emit = world.errors.append  # type: ignore[method-assign, assignment]
        logging.getLogger().addHandler(handler)
        _worlds.append(world)
        yield
        logging.getLogger().removeHandler(handler)
        _worlds.pop().close()


_ID: Final = st.one_of(
    st.sampled_from(sorted(IDS)),
    st.sampled_from(
        ["", "0", "::", "0::", "::0", "0::2", "0::-1", "0::0::0", "\x1b", "\u202e", "x" * 2000]
    ),
    st.text(max_size=6),
)
_IDS_SENT: Final = st.lists(_ID, max_size=8)
_SIZE: Final = st.one_of(st.integers(-2, 9), st.sampled_from([-(2**31), 2**31 - 1]))
_ALLOCATE: Final = st.lists(
    st.builds(pb.ContainerAllocateRequest, devices_ids=_IDS_SENT), max_size=4
).map(lambda containers: ("Allocate", pb.AllocateRequest(container_requests=containers)))
_PREFERRED: Final = st.lists(
    st.builds(
        pb.ContainerPreferredAllocationRequest,
        available_deviceIDs=_IDS_SENT,
        must_include_deviceIDs=_IDS_SENT,
        allocation_size=_SIZE,
    ),
    max_size=3,
).map(lambda containers: (
    "GetPreferredAllocation", pb.PreferredAllocationRequest(container_requests=containers)))  # fmt: skip
_PRE_START: Final = st.builds(pb.PreStartContainerRequest, devices_ids=_IDS_SENT).map(
    lambda request: ("PreStartContainer", request)
)
_REQUESTS: Final = st.one_of(_ALLOCATE, _PREFERRED, _PRE_START)
_TYPES: Final[dict[str, type[Message]]] = {
    "Allocate": pb.AllocateRequest,
    "GetPreferredAllocation": pb.PreferredAllocationRequest,
    "PreStartContainer": pb.PreStartContainerRequest,
}


def judge(method: str, request: Message, answer: bytes | grpc.aio.AioRpcError) -> None:
    """Look at what a client got."""
    if isinstance(answer, grpc.aio.AioRpcError):
        assert answer.code() in REFUSED, answer
        assert method != "GetPreferredAllocation", "with an error kubelet fails the pod for good"
        assert (answer.details() or "").isprintable()
    elif isinstance(request, pb.AllocateRequest):
        containers = pb.AllocateResponse.FromString(answer).container_responses
        assert len(containers) == len(request.container_requests)
        assert all(
            IDS.issuperset(container.devices_ids) for container in request.container_requests
        )
    elif isinstance(request, pb.PreferredAllocationRequest):
        answers = pb.PreferredAllocationResponse.FromString(answer).container_responses
        for wanted, chosen in zip(request.container_requests, answers, strict=True):
            ids = list(chosen.deviceIDs)
            assert not ids or len(ids) == wanted.allocation_size
            assert set(ids) <= set(wanted.available_deviceIDs) | set(wanted.must_include_deviceIDs)


_DAMAGED: Final = st.tuples(_REQUESTS, st.integers(0, 50), st.binary(max_size=3)).map(
    lambda sent: (
        sent[0][0],
        (raw := sent[0][1].SerializeToString())[: sent[1]] + sent[2] + raw[sent[1] :],
    )
)
_SENT: Final = st.one_of(
    _REQUESTS.map(lambda sent: (sent[0], sent[1].SerializeToString())),
    _DAMAGED,
    st.tuples(st.sampled_from(sorted(_TYPES)), st.binary(max_size=60)),
)


@fuzzed(0.15, 100, sent=_SENT, index=st.integers(0, 1))
def test_any_request_of_a_client(sent: tuple[str, bytes], index: int) -> None:
    """Calls of kubelet's API with any content are answered, or refused with a reason."""
    method, raw = sent
    (world,) = _worlds
    with bounded():
        answer = world.call(method, raw, index)
        try:
            request = _TYPES[method].FromString(raw)
        except DecodeError:
            assert isinstance(answer, grpc.aio.AioRpcError)
        else:
            judge(method, request, answer)
        world.is_well()
