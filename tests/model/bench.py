"""A host and a kubelet on real files, and what must never happen between them."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import pytest

from devhost.allocation.compiled import Declaration
from devhost.allocation.policy import Policy
from devhost.api.podresources.v1 import podresources_pb2 as pods
from devhost.api.v1beta1 import deviceplugin_pb2 as pb2
from devhost.backends.deviceplugin.device_list import AdvertisedDevice, ListStreams, Stream
from devhost.backends.deviceplugin.registration import DevicePluginBackend, Registration
from devhost.config.loader import loads
from devhost.fake_kubelet.connections import PluginEndpoint, Plugins
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.fake_kubelet.pod_resources import PodResourcesLister
from devhost.fake_kubelet.state import Ledger
from devhost.model.resource_state import State
from devhost.node.config_file import ConfigFile, LastGoodConfig
from devhost.node.node import Host, Settings
from devhost.node.resource import ServedResource
from tests.model.declared import NODE, is_token, node_of
from tests.model.expected import Problem
from tests.support.hosting import Kubelet
from tests.support.realkubelet import RealKubelet

LEAVE_AFTER_S = 0.3
REST_S = 60.0  # for a loaded machine; the polls behind the watches are put off beyond it
_POLL_S = 0.005
_SLOW_S = 1.5 * LEAVE_AFTER_S
_HOLDERS_POLL_S = 0.05
_PARTIAL_S = 0.15  # its API server may be away for longer than devhost waits
_JUST_S = LEAVE_AFTER_S / 12
# The loop's and grpc's.
_NOT_OURS = ("asyncio_", "asyncio-", "ThreadPoolExecutor", "_poll_wrapper")


@dataclass
class _Sent:
    """The last list that was sent: what it said of each ID, and when some changed."""

    entries: dict[str, bool] = field(default_factory=dict)
    unhealthy: dict[str, float] = field(default_factory=dict)  # since when
    fallen: set[str] = field(default_factory=set)  # Healthy until just before


class Listener:
    """Hears every list as the kubelet does, and what is never allowed in one.

    Times are those of sending: who reads may be slow.
    """

    def __init__(self) -> None:
        self.lists: dict[str, dict[str, bool]] = {}
        self.violations: list[str] = []
        self.tolerant: set[str] = set()  # resources that may share nodes with others now
        # Nodes that are other ones since the rest before the last: one may come before the event.
        self.renewed, self._renewed_before = set[str](), set[str]()
        self._sent: WeakKeyDictionary[ListStreams, _Sent] = WeakKeyDictionary()

    def forget(self) -> None:
        """Another kubelet, or another devhost: IDs may have left meanwhile."""
        self.lists.clear()

    def rest(self) -> None:
        """All is as it has to be."""
        self._renewed_before, self.renewed = self.renewed, set()

    def _others(self) -> set[str]:
        return self.renewed | self._renewed_before

    def hear(self, resource: str, entries: dict[str, bool]) -> None:
        """A kubelet has received a list."""
        for gone, well in self.lists.get(resource, {}).items():
            if gone not in entries and well:
                self.violations.append(f"{resource}: {gone} left, and was never seen Unhealthy")
        self.lists[resource] = entries
        mine = _offered(entries)
        for rival, listed in self.lists.items():
            if rival == resource or {rival, resource} & self.tolerant:
                continue
            for node in (mine.keys() & _offered(listed).keys()) - self._others():
                self.violations.append(f"{node} is healthy in {resource} and in {rival}")

    def sending(self, streams: ListStreams, entries: dict[str, bool]) -> None:
        """A list is about to be sent."""
        now, last = time.monotonic(), self._sent.get(streams, _Sent())
        for gone, since in last.unhealthy.items():
            if gone not in entries and now - since < LEAVE_AFTER_S:
                self.violations.append(f"{gone} leaves {now - since:.3f} s after its Unhealthy")
        unhealthy = {
            token: last.unhealthy.get(token, now) for token, well in entries.items() if not well
        }
        fallen = {
            token
            for token, since in unhealthy.items()
            if now - since < _JUST_S and (last.entries.get(token) or token in last.fallen)
        }
        self._sent[streams] = _Sent(entries, unhealthy, fallen)
        for node, ids in _offered(entries).items():
            bases = {_base(token) for token in ids}
            if len(bases) > 1:
                self.violations.append(f"{node} is healthy as {bases}")
            for token in fallen:
                fewer_shares = {_base(token)} == bases and all(
                    "::" in part for part in (token, *ids)
                )
                if node_of(token) == node and not fewer_shares and node not in self._others():
                    self.violations.append(
                        f"{node} is healthy as {ids}, {token} just turned Unhealthy"
                    )


def _base(advertised_id: str) -> str:
    return advertised_id.partition("::")[0]


def _offered(entries: dict[str, bool]) -> dict[str, set[str]]:
    nodes: dict[str, set[str]] = {}
    for token, well in entries.items():
        if well and not is_token(token):
            nodes.setdefault(node_of(token), set()).add(token)
    return nodes


class _Heard:
    """A plugin's stub whose lists a listener hears."""

    def __init__(self, stub: Any, hear: Callable[[dict[str, bool]], None]) -> None:
        self._stub, self._hear = stub, hear

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)

    async def ListAndWatch(self, request: pb2.Empty) -> AsyncIterator[pb2.ListAndWatchResponse]:  # noqa: N802
        async for message in self._stub.ListAndWatch(request):
            self._hear({device.ID: device.health == "Healthy" for device in message.devices})
            yield message


class HeardPlugins(Plugins):
    """The stand-in's plugins, with a listener."""

    listener: Listener

    async def _watch(self, endpoint: PluginEndpoint) -> None:
        resource = endpoint.resource
        heard = _Heard(endpoint.stub, lambda entries: self.listener.hear(resource, entries))
        endpoint.stub = heard  # type: ignore[assignment]
        await super()._watch(endpoint)


class HeardKubelet(SimulatedKubelet):
    """The stand-in, with a listener."""

    def __init__(self, plugin_dir: Path, pod_resources: Path, listener: Listener) -> None:
        super().__init__(plugin_dir, pod_resources)
        self._plugins = HeardPlugins(self._socket.parent, self.ledger)
        self._plugins.listener = listener

    def streams(self) -> list[str]:
        """The resources of all open streams."""
        return sorted(plugin.resource for plugin in self._plugins.connected.values())


class StartingLister(PodResourcesLister):
    """The stand-in's pod-resources: a kubelet that has just started lists no pods yet."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._complete = time.monotonic() + _PARTIAL_S

    async def List(  # noqa: N802
        self, request: pods.ListPodResourcesRequest, context: Any
    ) -> pods.ListPodResourcesResponse:
        answer = await super().List(request, context)
        if time.monotonic() < self._complete:
            del answer.pod_resources[:]
        return answer


class Errors(logging.Handler):
    """Errors that devhost logs, but for those of the configuration."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.endswith("config_file"):
            self.texts.append(self.format(record))


class Running(NamedTuple):
    """An instance of devhost."""

    host: Host
    task: asyncio.Task[None]


class Bench:
    """One kubelet, and one devhost or two; each may be away.

    Attributes:
        durable: Whether it keeps records beyond its end.
        instances: Those that run, the one that serves first.
    """

    def __init__(self, root: Path, binary: Path | None) -> None:
        self.root = root
        self.plugins, self.config = root / "plugins", root / "etc" / "config.yaml"
        for path in (self.plugins, self.config.parent, root / "d0", root / "d1", root / "t"):
            path.mkdir()
        self.listener = Listener()
        self.pod_resources = root / "pr.sock"
        self.kubelet: Kubelet = (
            RealKubelet(binary, self.plugins, self.pod_resources)
            if binary
            else HeardKubelet(self.plugins, self.pod_resources, self.listener)
        )
        self.kubelet_is_there = False
        self.durable = False
        self.instances: list[Running] = []
        self.errors = Errors()
        logging.getLogger("devhost").addHandler(self.errors)
        self._hear_sending()
        self._threads = set(threading.enumerate())

    def _hear_sending(self) -> None:
        listener, list_sent = self.listener, ListStreams.list_sent

        def heard(
            self: ListStreams, stream: Stream, entries: Mapping[str, AdvertisedDevice]
        ) -> None:
            listener.sending(self, {token: entry.healthy for token, entry in entries.items()})
            list_sent(self, stream, entries)

        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(ListStreams, "list_sent", heard)
        self._patch.setattr("devhost.fake_kubelet.kubelet.PodResourcesLister", StartingLister)
        self._patch.setattr("devhost.custody.holders.POLL_S", _HOLDERS_POLL_S)
        # The machine's patience, not the product's.
        self._patch.setattr("devhost.backends.deviceplugin.registration._LEAVE_POLL_S", 0.02)
        for poll in (
            "devhost.node.reconciler.RESCAN_S",
            "devhost.node.config_file.POLL_S",
            "devhost.backends.deviceplugin.registration._POLL_S",
        ):
            self._patch.setattr(poll, 10 * REST_S)  # so that they hide nothing

    # ── what comes and goes ──

    async def start_kubelet(self) -> None:
        await self.kubelet.start()
        self.kubelet_is_there = True

    async def kill_kubelet(self) -> None:
        await self.kubelet.kill()
        self.listener.forget()
        self.kubelet_is_there = False

    def start_host(self) -> None:
        source = ConfigFile(str(self.config), Policy(), LastGoodConfig(self.root / "state"))
        loaded, copy = source.load_first()
        used = loaded.config or (copy.config if copy else None)
        assert used is not None, "a devhost without any configuration"
        backend = DevicePluginBackend(self.plugins, self.pod_resources, LEAVE_AFTER_S)
        settings = Settings(
            NODE,
            settle_s=0.0,
            state_dir=self.root / "records" if self.durable else None,
            cdi_dir=self.root / "cdi",
        )
        host = Host(used, settings, backend, source)
        task = asyncio.get_running_loop().create_task(host.run(), name="host")
        self.instances.append(Running(host, task))
        self.listener.forget()

    async def stop_host(self, index: int = 0) -> None:
        """Stop an instance; another one takes over what it has served."""
        task = self.instances.pop(index).task
        self.listener.forget()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        self.listener.forget()
        if not self.instances:
            assert self.sockets() == [], "sockets are left"
            await self._until("threads are left", self._left_threads)

    async def close(self) -> None:
        """End both; nothing may be left."""
        logging.getLogger("devhost").removeHandler(self.errors)
        self._patch.undo()
        try:
            while self.instances:
                await self.stop_host()
        finally:
            await self.kubelet.stop()
        me = asyncio.current_task()
        await self._until(
            "tasks are left", lambda: [task for task in asyncio.all_tasks() if task is not me]
        )

    def sockets(self) -> list[str]:
        return sorted(path.name for path in self.plugins.glob("devhost-*.sock"))

    def _left_threads(self) -> list[str]:
        left = {name.name for name in set(threading.enumerate()) - self._threads}
        return sorted(name for name in left if not any(part in name for part in _NOT_OURS))

    async def _until(self, problem: str, left: Callable[[], list[Any]]) -> None:
        end = time.monotonic() + REST_S
        while leftovers := left():
            assert time.monotonic() < end, f"{problem}: {leftovers}"
            await asyncio.sleep(_POLL_S)

    @contextlib.contextmanager
    def slow_allocate(self) -> Iterator[None]:
        """Make each Allocate take longer than an ID stays in the list that is to leave."""
        allocate = Declaration.allocate

        def slow(*arguments: Any) -> object:
            answer = allocate(*arguments)
            time.sleep(_SLOW_S)
            return answer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Declaration, "allocate", slow)
            yield

    # ── what is seen ──

    @property
    def hosts(self) -> list[Host]:
        return [running.host for running in self.instances]

    @property
    def runners(self) -> dict[str, ServedResource]:
        """Each resource as the instance has it that serves it."""
        runners: dict[str, ServedResource] = {}
        for host in self.hosts:
            for served in host.resources:
                if served.name not in runners or served.status.state is State.REGISTERED:
                    runners[served.name] = served
        return runners

    def violations(self) -> list[str]:
        """Return what has happened that never must."""
        panics = self.kubelet.panics if isinstance(self.kubelet, SimulatedKubelet) else []
        return self.listener.violations + self.errors.texts + panics

    def entries(self, resource: str) -> dict[str, bool]:
        """Return what devhost lists."""
        publication = cast("Registration", self.runners[resource].publication)
        return {token: entry.healthy for token, entry in publication.offered_ids.entries.items()}

    def configured(self, text: str) -> None:
        """Check that a configuration is in force, and the file has been read."""
        raw = self.config.read_bytes()
        good = raw == text.encode()
        for host in self.hosts:
            source = host.source
            assert source is not None
            if host._config != loads(text).require():
                raise Problem("another configuration is in force")
            if source._content != (raw, ""):
                raise Problem("the file was not read again")
            if good != (not source.status.problems):
                raise Problem(f"problems of the configuration: {source.status.problems}")
        if good and LastGoodConfig(self.root / "state").read() != raw:
            raise Problem("the last good configuration was not kept")

    async def agreed(self, names: list[str], may_drain: AbstractSet[str]) -> None:
        """Check that the kubelet knows what devhost lists of the resources, and of no other."""
        served = self.runners.keys()
        if not set(names) <= served <= {*names, *may_drain}:
            raise Problem(f"served: {sorted(served)}")
        for name in names:
            status = self.runners[name].status
            if status.state is not State.REGISTERED:
                raise Problem(f"{name}: {status}")
            if self.runners[name].publication.status.streams != 1:
                raise Problem(f"{name}: not one stream")
        if len(self.sockets()) != len(served):
            raise Problem(f"sockets: {self.sockets()}")
        if isinstance(self.kubelet, HeardKubelet) and self.kubelet.streams() != sorted(served):
            raise Problem(f"streams: {self.kubelet.streams()}")
        capacity = await self.kubelet.capacity()
        for name in names:
            entries = self.entries(name)
            healthy = {token for token, well in entries.items() if well}
            counts = capacity.get(name)
            if isinstance(self.kubelet, RealKubelet):
                seen = set(await self.kubelet.healthy_devices(name))
            else:
                seen = {
                    token
                    for token, health in self.kubelet.devices(name).items()
                    if health == "Healthy"
                }
            if counts != (len(entries), len(healthy)) or seen != healthy:
                raise Problem(f"{name}: the kubelet has {counts} {seen}, devhost lists {entries}")
