"""From what a scan found to what the kubelet gets."""

from types import SimpleNamespace
from typing import cast

from devhost.backends.backend import OfferedIds
from devhost.backends.deviceplugin.device_list import AdvertisedDevice, DeviceList
from devhost.model.device import Cause, Verdict
from devhost.node import resource_devices
from tests.support.devices import device, reasons, snapshot


def test_advertised_withdrawn_devices_all_leave() -> None:
    """They are unhealthy with the reason, and out of what is declared."""
    found = resource_devices.with_all_leaving(
        snapshot(device("a"), device("b")), Verdict(Cause.REMOVED, "removed"), 5.0
    )
    assert reasons(found) == {"a": "removed", "b": "removed"}
    device_list = DeviceList()
    device_list.publish(found, 1)
    assert device_list.entries == {}


def test_advertised_replaced_device_is_dropped_when_its_ids_have_left() -> None:
    found = snapshot(device("a", replaced=True), device("b"))
    for listed, kept in (({"a"}, {"a", "b"}), (set[str](), {"b"})):
        device_list = cast("OfferedIds", SimpleNamespace(device_ids=listed))
        assert resource_devices.without_unlisted(found, device_list).devices.keys() == kept


def test_advertised_shares_have_health_and_topology_of_their_device() -> None:
    found = snapshot(device("a", numa_nodes=(1,)), device("b", reason="sick"))
    device_list = DeviceList()
    device_list.publish(found, 2)
    assert device_list.entries == {
        "a::0": AdvertisedDevice(True, (1,)),
        "a::1": AdvertisedDevice(True, (1,)),
        "b::0": AdvertisedDevice(False),
        "b::1": AdvertisedDevice(False),
    }


def test_advertised_id_held_by_a_pod_is_listed_as_leaving() -> None:
    device_list = DeviceList(1000.0)
    device_list.ids_held_by_pods = lambda: frozenset({"b"})
    for _ in range(2):
        device_list.publish(snapshot(device("a")), 1)
    assert device_list.entries == {"a": AdvertisedDevice(True), "b": AdvertisedDevice(False)}
    assert device_list.leaving == {"b"}
