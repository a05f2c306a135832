"""The least that a plugin on grpc.aio takes: no options, no checks, no state, a list of names.

What this takes, Python and gRPC take: devhost cannot be quicker or smaller.

python -m bench.bare --plugin-dir DIR --resources FILE
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import socket
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.watch.inotify import Inotify

_AT_A_TIME: Final = 32
_PREFIX: Final = "/v1beta1.DevicePlugin/"


class Plugin(grpc.GenericRpcHandler):
    """Serves the entries of a directory as one resource."""

    def __init__(self, name: str, directory: str, prefix: str, plugins: Path) -> None:
        self.name, self.directory, self._prefix, self._plugins = name, directory, prefix, plugins
        self.endpoint, self._serial = "", 0
        self._server: grpc.aio.Server | None = None
        self._changed: list[asyncio.Event] = []
        self._encoded: dict[str, bytes] = {}
        for entry in sorted(os.listdir(directory)):  # noqa: PTH208 (names are all that is wanted)
            self.look(entry)

    def look(self, entry: str) -> None:
        """See whether one entry is there."""
        if not entry.startswith(self._prefix):
            return
        try:
            os.lstat(f"{self.directory}/{entry}")
        except OSError:
            self._encoded.pop(entry, None)
        else:
            device = pb.Device(ID=entry, health="Healthy")
            self._encoded[entry] = pb.ListAndWatchResponse(devices=[device]).SerializeToString()

    def notify(self) -> None:
        """Send the list on all streams."""
        for changed in self._changed:
            changed.set()

    def service(self, handler_call_details: Any) -> Any:
        """Return what answers a call."""
        match handler_call_details.method.removeprefix(_PREFIX):
            case "ListAndWatch":
                return grpc.unary_stream_rpc_method_handler(self._list)
            case "Allocate":
                return grpc.unary_unary_rpc_method_handler(
                    self._allocate,
                    pb.AllocateRequest.FromString,
                    pb.AllocateResponse.SerializeToString,
                )
            case "GetPreferredAllocation":
                return grpc.unary_unary_rpc_method_handler(
                    _preferred,
                    pb.PreferredAllocationRequest.FromString,
                    pb.PreferredAllocationResponse.SerializeToString,
                )
            case _:
                return grpc.unary_unary_rpc_method_handler(_options)

    async def _list(self, _request: bytes, context: Any) -> None:
        changed = asyncio.Event()
        self._changed.append(changed)
        try:
            while True:
                changed.clear()
                await context.write(b"".join(self._encoded.values()))
                await changed.wait()
        finally:
            self._changed.remove(changed)

    async def _allocate(self, request: pb.AllocateRequest, _context: Any) -> pb.AllocateResponse:
        response = pb.AllocateResponse()
        for container in request.container_requests:
            answer = response.container_responses.add()
            for device in container.devices_ids:
                path = f"{self.directory}/{device}"
                answer.devices.add(container_path=path, host_path=path, permissions="rw")
        return response

    async def serve(self) -> None:
        """Serve a fresh socket instead of the former one."""
        if self._server is not None:
            await self._server.stop(None)
        self._serial += 1
        self.endpoint = f"{self.name.replace('/', '_')}.{self._serial}.sock"
        server = self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((self,))
        server.add_insecure_port(f"unix:{quote(str(self._plugins / self.endpoint))}")
        await server.start()


async def _options(_request: bytes, _context: Any) -> bytes:
    return pb.DevicePluginOptions(get_preferred_allocation_available=True).SerializeToString()


async def _preferred(
    request: pb.PreferredAllocationRequest, _context: Any
) -> pb.PreferredAllocationResponse:
    response = pb.PreferredAllocationResponse()
    for container in request.container_requests:
        chosen = container.available_deviceIDs[: container.allocation_size]
        response.container_responses.add(deviceIDs=chosen)
    return response


async def _listening(path: str) -> None:
    """Wait until the kubelet accepts connections: its socket appears before it listens."""
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except OSError:
                await asyncio.sleep(0.001)
            else:
                return


async def register(plugins: list[Plugin], directory: Path, *, again: bool) -> None:
    """Serve and register all of them, some at a time."""
    kubelet = str(directory / "kubelet.sock")
    await _listening(kubelet)
    places = asyncio.Semaphore(_AT_A_TIME)
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{quote(kubelet)}", options=options) as channel:
        call: Any = channel.unary_unary(
            "/v1beta1.Registration/Register", pb.RegisterRequest.SerializeToString
        )

        async def register_plugin(plugin: Plugin) -> None:
            async with places:
                if again:
                    await plugin.serve()
                request = pb.RegisterRequest(
                    version="v1beta1", endpoint=plugin.endpoint, resource_name=plugin.name
                )
                await call(request)

        await asyncio.gather(*map(register_plugin, plugins))
    gc.collect()
    gc.freeze()


async def run(plugins: list[Plugin], directory: Path) -> None:
    """Serve until the process ends."""
    inotify, tasks = Inotify(), set[asyncio.Task[None]]()
    watches = {inotify.add(plugin.directory, writes=False): plugin for plugin in plugins}
    kubelet = inotify.add(str(directory), writes=False)

    def read() -> None:
        changed: dict[Plugin, None] = {}
        for watch, _, name in inotify.read():
            if plugin := watches.get(watch):
                plugin.look(name)
                changed[plugin] = None
            elif watch == kubelet and name == "kubelet.sock" and (directory / name).exists():
                work = register(plugins, directory, again=True)
                tasks.add(task := asyncio.create_task(work))
                task.add_done_callback(tasks.discard)
        for plugin in changed:
            plugin.notify()

    asyncio.get_running_loop().add_reader(inotify.fileno(), read)
    for plugin in plugins:
        await plugin.serve()
    await register(plugins, directory, again=False)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plugin-dir", type=Path, required=True)
    parser.add_argument("--resources", type=Path, required=True)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    declared = json.loads(options.resources.read_text())
    plugins = [
        Plugin(entry["name"], entry["directory"], entry["prefix"], options.plugin_dir)
        for entry in declared
    ]
    asyncio.run(run(plugins, options.plugin_dir))


if __name__ == "__main__":
    main()
