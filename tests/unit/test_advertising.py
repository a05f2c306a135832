"""From what a scan found to what the kubelet gets."""

from dataclasses import replace

from devhost.host.resource import publisher
from devhost.kubelet.device_list import AdvertisedDevice
from devhost.model.device import FileKind, FileState, HostDevice, Node, Snapshot


def device(name: str, inode: int = 1, **fields: object) -> HostDevice:
    state = FileState(f"/dev/{name}", FileKind.CHAR, (1, inode), (0, inode, 0))
    return replace(HostDevice(name, (Node(f"/dev/{name}", state, 0, name),)), **fields)  # type: ignore[arg-type]


def snapshot(*devices: HostDevice) -> Snapshot:
    return Snapshot({one.id: one for one in devices})


def test_withdrawn_devices_all_have_to_go() -> None:
    """They are unhealthy with the reason, and out of what is declared."""
    found = publisher.withdrawn(snapshot(device("a"), device("b", 2)), "removed", 5.0)
    assert [one.reason for one in found.devices.values()] == ["removed", "removed"]
    assert publisher.entries(found, 1) == {}


def test_a_replaced_device_is_kept_while_any_of_its_ids_is_leaving() -> None:
    """Of shares, the last that leaves takes the device with it."""
    found = snapshot(device("a", replaced=True), device("b", 2))
    assert set(publisher.without_left(found, {"a::1"}).devices) == {"a", "b"}
    assert set(publisher.without_left(found, set()).devices) == {"b"}


def test_each_share_is_listed() -> None:
    """All shares of a device have its health and topology."""
    found = snapshot(device("a", numa_nodes=(1,)), device("b", 2, reason="sick"))
    assert publisher.entries(found, 2) == {
        "a::0": AdvertisedDevice(True, (1,)),
        "a::1": AdvertisedDevice(True, (1,)),
        "b::0": AdvertisedDevice(False),
        "b::1": AdvertisedDevice(False),
    }
