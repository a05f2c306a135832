"""A node with DRA: the host, the stand-in API server, and who calls the driver as kubelet does."""

import asyncio
import contextlib
import copy
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from devhost.allocation.policy import Policy
from devhost.api.podresources.v1 import podresources_pb2 as pods
from devhost.api.podresources.v1 import podresources_pb2_grpc as pods_grpc
from devhost.backends.deviceplugin.registration import DevicePluginBackend
from devhost.backends.dra.api_client import ApiClient
from devhost.backends.dra.dra_backend import DraBackend
from devhost.backends.dra.publication import PoolOffer
from devhost.backends.dra.slices import PATH
from devhost.config.loader import loads
from devhost.daemon.status import status
from devhost.hostfs.files import HostFiles
from devhost.model.resource_state import State
from devhost.node.node import Host, Settings
from devhost.node.resource import ServedResource
from tests.support.api_server import ApiObject, StandInApiServer, StatusError
from tests.support.dra_kubelet import CLAIMS, DraKubelet, claim, node

_PATIENCE_S: Final = 15.0
NODE: Final = "node-1"
NODE_PATH: Final = f"/api/v1/nodes/{NODE}"


class World:
    """One node; `run` may be entered again, as devhost starts again."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.api = directory, StandInApiServer()
        self.kubelet, self.lists = DraKubelet(directory), PodResourcesLists()
        self.cdi, self.state = directory / "cdi", directory / "state"
        self.plugins, self.devices = directory / "device-plugins", directory / "devices"
        self.plugins.mkdir()
        self.devices.mkdir()
        self.api.objects[NODE_PATH] = {**node(), "metadata": {"name": NODE, "uid": "node-uid"}}
        self.host: Host
        self.dra: DraBackend
        self.url = ""
        self.pod_resources = directory / "pr.sock"
        self.files = HostFiles()
        self.policy = Policy(dra=True, allow_exec=True, allow_paths=("*",))
        self._names = itertools.count(1)
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def beside(cls, first: "World") -> "World":
        """Return another instance on the node of the first."""
        second = copy.copy(first)
        second.kubelet = copy.copy(first.kubelet)
        second._task = None
        return second

    @contextlib.asynccontextmanager
    async def run(
        self, config: str, driver: str = "devhost", *, until: str = "", with_dra: bool = True
    ) -> AsyncIterator["World"]:
        """Run the host by a configuration; begin when a resource is registered."""
        policy, paths = replace(self.policy, dra=with_dra), (self.state, self.cdi)
        settings = Settings(NODE, self.files, policy, 0.0, *paths)
        plugins = DevicePluginBackend(self.plugins, self.pod_resources, 0.3)
        api = ApiClient(self.url or self.api.url)
        self.dra = DraBackend(driver, NODE, self.directory, api, plugins)
        backend = self.dra if with_dra else plugins
        self.host = Host(loads(config).require(), settings, backend)
        self._task = asyncio.create_task(self.host.run())
        try:
            if until:
                await self.until(until, State.REGISTERED)
            yield self
        finally:
            await self.stop()

    @contextlib.asynccontextmanager
    async def serve(
        self, config: str, *resources: str, driver: str = "devhost"
    ) -> AsyncIterator[None]:
        """Run the host, of which kubelet has the driver; begin when the resources are published."""
        async with self.run(config, driver):
            await self.kubelet.register()
            for resource in resources:
                await self.until(resource, State.REGISTERED)
            yield

    async def stop(self) -> None:
        """End the host, as SIGTERM does."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def ended(self) -> None:
        """Wait until the host has ended by itself; raise why."""
        task, self._task = self._task, None
        assert task is not None
        async with asyncio.timeout(_PATIENCE_S):
            await task

    def reload(self, config: str) -> None:
        self.host.apply(loads(config).require())

    def slices(self) -> list[ApiObject]:
        return sorted(self.api.listed(PATH), key=lambda entry: str(entry["metadata"]["name"]))

    def published(self) -> list[str]:
        """Return the names of the devices in slices that pods may be given, in order."""
        return [device["name"] for device in self.devices_in_slices() if "taints" not in device]

    def devices_in_slices(self) -> list[ApiObject]:
        return [device for entry in self.slices() for device in entry["spec"]["devices"]]

    def taints(self) -> dict[str, str]:
        """Return the taint of each device that has one, as kubectl writes it."""
        return {
            device["name"]: "{key}={value}:{effect}".format(**taint)
            for device in self.devices_in_slices()
            for taint in device.get("taints", ())
        }

    async def until_tainted(self, **taints: str) -> None:
        await eventually(lambda: self.taints() == taints, self.taints)

    async def until_published(self, *names: str) -> None:
        await eventually(lambda: self.published() == [*names], self.published)

    def has(self, resource: str) -> bool:
        return any(served.name == resource for served in self.host.resources)

    def served(self, resource: str) -> ServedResource:
        return {served.name: served for served in self.host.resources}[resource]

    def offer(self, resource: str) -> PoolOffer:
        offer = self.served(resource).publication.offered_ids
        assert isinstance(offer, PoolOffer)
        return offer

    def state_of(self, resource: str) -> tuple[State, str | None]:
        status = self.served(resource).status if self.has(resource) else None
        return (status.state, status.reason) if status else (State.PENDING, None)

    async def until(self, resource: str, state: State, reason: str = "") -> None:
        def seen() -> bool:
            now, why = self.state_of(resource)
            return now is state and reason in (why or "")

        await eventually(seen, lambda: self.state_of(resource))

    def holders(self, resource: str) -> dict[str, list[str]]:
        shown = {entry["name"]: entry for entry in self.status()["resources"]}
        return dict(shown[resource]["holders"]) if resource in shown else {}

    async def until_holders(self, resource: str) -> None:
        await eventually(lambda: self.holders(resource))

    def status(self) -> ApiObject:
        return status(self.host)

    def troubles(self) -> Sequence[str]:
        return list(self.status()["troubles"])

    def records(self) -> list[ApiObject]:
        """Return the entries of claims in the state file."""
        paths = sorted((self.state / "claims").glob("*.json"))
        return [json.loads(path.read_text()) for path in paths]

    def cdi_files(self) -> list[Path]:
        return sorted(self.cdi.glob("*.json")) if self.cdi.exists() else []

    def cdi_specs(self) -> dict[str, bytes]:
        """Return the contents of all CDI files by name."""
        return {path.name: path.read_bytes() for path in self.cdi_files()}

    def spec(self) -> dict[str, ApiObject]:
        """Return the edits of the only CDI file, by name."""
        (path,) = self.cdi_files()
        content = json.loads(path.read_text())
        return {device["name"]: device["containerEdits"] for device in content["devices"]}

    def claim(self, uid: str, resource: str, *devices: str, name: str = "", **result: Any) -> str:
        """Make a claim that the scheduler has given devices; return its name."""
        name = name or f"claim-{next(self._names)}"
        extended = result.pop("extended", True)
        common = {"request": "r", "driver": "devhost", "pool": f"{NODE}/{resource}", **result}
        results = [{**common, "device": device} for device in devices]
        self.api.put(f"{CLAIMS}/{name}", claim(uid, results, extended=extended))
        return name

    async def prepare(self, uid: str, resource: str, *devices: str, **result: Any) -> str:
        """Make a claim and prepare it; return its name."""
        name = self.claim(uid, resource, *devices, **result)
        assert not (await self.kubelet.prepare(name, uid)).error
        return name


class PodResourcesLists(pods_grpc.PodResourcesListerServicer):
    """Lists the pods that a test sets: by name, the devices of claims."""

    Get = GetAllocatableResources = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.pods: dict[str, list[tuple[str, pods.ClaimResource]]] = {}  # with their claims
        self.by_plugin: dict[str, tuple[str, str]] = {}  # a resource and an ID, by pod

    async def List(self, _request: object, _context: object) -> pods.ListPodResourcesResponse:  # noqa: N802
        listed = pods.ListPodResourcesResponse()
        listed.pod_resources.add(name="devhost", namespace="devhost")
        for name, claimed in self.pods.items():
            container = listed.pod_resources.add(name=name, namespace="default").containers.add()
            for claim_name, device in claimed:
                dynamic = container.dynamic_resources
                named = dynamic.add(claim_name=claim_name, claim_namespace="default")
                named.claim_resources.append(device)
        for name, (resource, device_id) in self.by_plugin.items():
            container = listed.pod_resources.add(name=name, namespace="default").containers.add()
            container.devices.add(resource_name=resource, device_ids=[device_id])
        return listed

    def hold(self, pod: str, resource: str, device: str, claim: str = "c", **keys: Any) -> None:
        """List a pod with a device, of a `driver_name` and with a `share_id`."""
        keys = {"driver_name": "devhost", "pool_name": f"{NODE}/{resource}", **keys}
        claimed = pods.ClaimResource(device_name=device, **keys)
        self.pods.setdefault(pod, []).append((claim, claimed))


def declare_files(world: World, resource: str, keys: str = "") -> str:
    """Return a configuration with the files of `devices` as a resource by DRA."""
    source = f"sources: [directory: {world.devices}]"
    return f"version: v1\nresources: [{{name: {resource}, backend: dra, {source}{keys}}}]\n"


def failing(code: int, text: str, verb: str = "", path: str = "") -> Callable[[str, str], None]:
    """Return a fault of the API server: of each request of a verb and below a path."""

    def fail(of_verb: str, of_path: str) -> None:
        if of_verb.startswith(verb) and of_path.startswith(path):
            raise StatusError(code, text)

    return fail


async def eventually(seen: Callable[[], Any], shown: Callable[[], object] = lambda: "") -> Any:
    """Return what is seen when it is true."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not (value := seen()):
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not seen: {shown()}") from None
    return value
