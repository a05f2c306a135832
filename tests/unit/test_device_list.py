"""When an ID may leave the list."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.backends.deviceplugin.device_list import AdvertisedDevice, DeviceList, Stream
from devhost.backends.deviceplugin.servicer import Servicer, list_response
from devhost.model.advertised import OfferedId
from devhost.model.allocation import Allocation
from tests.support.answers import Nobody
from tests.support.claims import resource
from tests.support.devices import device, snapshot

LEAVE_AFTER = 10.0
UP, DOWN = AdvertisedDevice(True), AdvertisedDevice(False)


@dataclass(eq=False)
class History:
    """All that ever went out on one stream."""

    stream: Stream
    lists: list[tuple[float, dict[str, AdvertisedDevice]]] = field(default_factory=list)
    on_its_way: Mapping[str, AdvertisedDevice] | None = None

    def step(self, device_list: DeviceList, now: float) -> Collection[str]:
        """Put the list on its way and return its IDs, or end what was begun."""
        if self.on_its_way is None:
            self.on_its_way = device_list.entries
            device_list.streams.list_sent(self.stream, self.on_its_way)
            return device_list.entries.keys()
        sent, self.on_its_way = self.on_its_way, None
        self.lists.append((now, dict(sent)))
        device_list.streams.list_received(self.stream, sent, now)
        return ()

    def unhealthy_since(self, device_id: str) -> float | None:
        """Since when the kubelet is sure to know by this stream that a device is unhealthy."""
        if self.on_its_way and not fallen(device_id, self.on_its_way):
            return None
        since = None
        for time, entries in reversed(self.lists):
            if not fallen(device_id, entries):
                break
            since = time
        return since


def fallen(device_id: str, entries: Mapping[str, AdvertisedDevice]) -> bool:
    return device_id in entries and not entries[device_id].healthy


def allowed(device_id: str, now: float, streams: list[History], calls: list[float]) -> bool:
    """Return by the rule itself whether an ID may leave."""
    times = [history.unhealthy_since(device_id) for history in streams]
    ends = [time for time in times if time is not None]
    if not ends or len(ends) != len(times):
        return False
    last = max(ends)
    return last + LEAVE_AFTER <= now and not any(began <= last for began in calls)


LISTS = st.dictionaries(st.sampled_from("abc"), st.sampled_from([UP, DOWN]))
ACTIONS = st.one_of(
    st.tuples(st.just("update"), LISTS),
    st.tuples(
        st.sampled_from(["open", *["send"] * 4, "close", "begin", "end", "prune"]),
        st.integers(0, 3),
    ),
    st.tuples(st.just("wait"), st.sampled_from([1, 4, 10, 11])),
)


OPENED, SENT = [("update", {"a": UP}), ("open", 0)], [("send", 0), ("send", 0)]
WITHOUT: tuple[str, dict[str, AdvertisedDevice]] = ("update", {})
LATER = [("wait", 10), ("prune", 0)]


@settings(max_examples=200)
@given(st.lists(ACTIONS, max_size=40))
@example([*OPENED, ("open", 0), *SENT, ("send", 1), ("send", 1), WITHOUT, *SENT, *LATER])
@example([*OPENED, *SENT, WITHOUT, ("begin", 0), *SENT, *LATER])
@example([*OPENED, *SENT, WITHOUT, *SENT, OPENED[0], *SENT, *LATER[:1], WITHOUT, *SENT, *LATER[1:]])
def test_device_list_id_leaves_by_the_rule(
    actions: list[tuple[str, int | dict[str, AdvertisedDevice]]],
) -> None:
    device_list = DeviceList(LEAVE_AFTER)
    now = 0.0
    streams: list[History] = []
    sent: set[str] = set()
    wanted: dict[str, AdvertisedDevice] = {}
    expected: dict[str, AdvertisedDevice] = {}
    for action, value in actions:
        before = device_list.entries
        match action, value:
            case "update", dict():
                staying = {i: DOWN for i in expected if i in sent and i not in value}
                wanted, expected = value, {**value, **staying}
                device_list.update(value)
            case "wait", int():
                now += value
            case "open", _:
                streams.append(History(device_list.streams.open(lambda: None)))
            case "begin", _:
                device_list.streams.inflight_since.append(now)
            case "prune", _:
                gone = {
                    i
                    for i in expected
                    if i not in wanted
                    and allowed(i, now, streams, device_list.streams.inflight_since)
                }
                expected = {i: entry for i, entry in expected.items() if i not in gone}
                sent -= gone
                device_list.remove_unlisted(now)
            case "send", int() if streams:
                sent.update(streams[value % len(streams)].step(device_list, now))
            case "close", int() if streams:
                device_list.streams.close(streams.pop(value % len(streams)).stream)
            case "end", int() if device_list.streams.inflight_since:
                device_list.streams.inflight_since.pop(
                    value % len(device_list.streams.inflight_since)
                )
        assert device_list.entries == expected
        assert device_list.leaving == expected.keys() - wanted.keys()
        assert {i for i in "abc" if i in device_list} == expected.keys()
        assert (device_list.entries is not before) == (device_list.entries != before)


def send(device_list: DeviceList, stream: Stream, now: float) -> None:
    device_list.streams.list_sent(stream, device_list.entries)
    device_list.streams.list_received(stream, device_list.entries, now)


def served(*ids: str) -> tuple[DeviceList, Stream]:
    """A device_list whose IDs were sent on one stream at 0."""
    device_list = DeviceList(LEAVE_AFTER)
    device_list.update(dict.fromkeys(ids, UP))
    stream = device_list.streams.open(lambda: None)
    send(device_list, stream, 0.0)
    return device_list, stream


def test_device_list_id_held_by_a_pod_stays() -> None:
    device_list, stream = served("a", "b")
    held = {"a"}
    device_list.ids_held_by_pods = lambda: held
    device_list.update({})
    send(device_list, stream, 1.0)
    assert device_list.remove_unlisted(100.0)
    assert device_list.entries == {"a": DOWN}
    assert device_list.leaving == {"a"}
    assert not device_list.drained
    held.clear()
    assert device_list.remove_unlisted(100.0)
    send(device_list, stream, 100.0)
    assert device_list.drained


def test_device_list_id_held_by_a_pod_is_listed_as_leaving_from_the_start() -> None:
    """Kubelet may know it of another process."""
    device_list = DeviceList(1000.0)
    device_list.ids_held_by_pods = lambda: frozenset({"b"})
    for _ in range(2):
        device_list.publish(snapshot(device("a")), resource("e.com/a"))
    assert device_list.entries == {"a": UP, "b": DOWN}
    assert device_list.leaving == {"b"}


def test_device_list_leaving_id_has_numa_nodes_only_if_the_others_have() -> None:
    """A resource that is mixed could not be aligned."""
    device_list = DeviceList(LEAVE_AFTER)
    device_list.update({"old": AdvertisedDevice(True, (0,))})
    device_list.streams.may_know(device_list.entries)
    device_list.update({"new": AdvertisedDevice(True, (1,))})
    assert device_list.entries == {
        "new": AdvertisedDevice(True, (1,)),
        "old": AdvertisedDevice(False, (0,)),
    }
    device_list.update({"new": UP})
    assert device_list.entries == {"new": UP, "old": DOWN}


def test_device_list_larger_than_kubelet_takes_leaves_out_new_devices() -> None:
    entry, last = AdvertisedDevice(True, (2**63 - 1,)), f"{79_999:060}"
    device_list = DeviceList()
    device_list.update({last: entry})
    device_list.update({f"{index:060}": entry for index in range(80_000)})
    assert last in device_list.entries
    assert 30_000 < len(device_list) == 80_000 - device_list.omitted
    assert list_response(device_list.entries).ByteSize() <= 4 * 1024 * 1024


async def test_device_list_counts_calls_until_they_are_answered() -> None:
    """No ID leaves while kubelet may have picked it: host/test_leaving has what depends on it."""
    device_list, _ = served("a")
    counts = list[int]()

    class Answers(Nobody):
        async def allocate(self, ids: Sequence[OfferedId], **_options: Any) -> Allocation:
            counts.append(len(device_list.streams.inflight_since))
            return Allocation()

        async def prefer(self, available: Sequence[OfferedId], *_: Any) -> Sequence[OfferedId]:
            counts.append(len(device_list.streams.inflight_since))
            return available

        def observe_allocate(self, result: str, seconds: float) -> None:
            pass

    servicer = Servicer(cast("Any", Answers()), device_list)
    container = pb.ContainerAllocateRequest(devices_ids=["a"])
    await servicer.Allocate(pb.AllocateRequest(container_requests=[container]), Any)
    prefer = pb.ContainerPreferredAllocationRequest(available_deviceIDs=["a"], allocation_size=1)
    asking = pb.PreferredAllocationRequest(container_requests=[prefer])
    await servicer.GetPreferredAllocation(asking, Any)
    assert (counts, device_list.streams.inflight_since) == ([1, 1], [])
    assert device_list.streams.last_answer_at > 0
