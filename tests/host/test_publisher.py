"""What a publisher lists."""

from pathlib import Path

from devhost.allocation.policy import Policy
from devhost.discovery.scan import Scanner
from devhost.host.holders import Holders
from devhost.host.ownership.owners import Owners
from devhost.host.resource.publisher import Publisher
from devhost.hostfs.files import HostFiles
from devhost.kubelet.device_list import LIST_BYTES_MAX, DeviceList
from devhost.kubelet.directory import PluginDirectory
from devhost.kubelet.encoding import list_response
from devhost.loading.loader import loads
from devhost.model.device import HostDevice, Node, Snapshot


async def test_what_pods_hold_has_to_fit_into_the_list_too() -> None:
    """The kubelet would end the stream of a longer one, and the resource would no longer be served."""
    text = "version: v1\nresources: [{name: a.b/c, sources: [static: 1]}]"
    (resource,) = loads(text).require().resources
    scanner = Scanner.of(resource, HostFiles(), Policy(enforced=False), "node", hold_s=0.0)
    device_list = DeviceList(leave_after=1000.0)
    directory = PluginDirectory(Path("/nowhere"))
    owners = Owners(Holders(None), directory, None, assume_free=False, leave_after=1000.0)
    owners.serve(resource.name, device_list, lambda: None)
    publisher = Publisher(scanner, device_list, owners, [])
    held = frozenset(f"{number:063}" for number in range(100_000))
    device_list.ids_held_by_pods = lambda: held
    snapshot = Snapshot({"a": HostDevice("a", (Node("", None, 0, "a"),))})
    for _ in range(2):
        publisher.publish(scanner, snapshot)
    assert list_response(device_list.entries).ByteSize() <= LIST_BYTES_MAX
    assert "a" in device_list.entries
    assert "a" not in device_list.leaving
    assert device_list.leaving == device_list.entries.keys() & held
    assert 10_000 < len(device_list.leaving) < len(held)
