"""When an ID may leave the list, and what the list is as bytes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.kubelet.encoding import Message
from devhost.kubelet.listing import LIST_BYTES_MAX, Advertised, Call, Listing, Stream, advertised

LEAVE_AFTER = 10.0
UP, DOWN = Advertised(True), Advertised(False)


@dataclass(eq=False)
class History:
    """All that ever went out on one stream."""

    stream: Stream
    lists: list[tuple[float, dict[str, Advertised]]] = field(default_factory=list)
    on_its_way: tuple[Message, dict[str, Advertised]] | None = None

    def step(self, listing: Listing, now: float) -> Collection[str]:
        """Put the list on its way and return its IDs, or end what was begun."""
        if self.on_its_way is None:
            self.on_its_way = listing.message(self.stream), dict(listing.entries)
            return listing.entries.keys()
        message, entries = self.on_its_way
        self.on_its_way = None
        self.lists.append((now, entries))
        listing.sent(self.stream, message, now)
        return ()

    def unhealthy_since(self, device_id: str) -> float | None:
        """Since when the kubelet is sure to know by this stream that a device is unhealthy."""
        if self.on_its_way and not fallen(device_id, self.on_its_way[1]):
            return None
        since = None
        for time, entries in reversed(self.lists):
            if not fallen(device_id, entries):
                break
            since = time
        return since


def fallen(device_id: str, entries: Mapping[str, Advertised]) -> bool:
    return device_id in entries and not entries[device_id].healthy


def allowed(device_id: str, now: float, streams: list[History], calls: list[Call]) -> bool:
    """Say by the rule itself whether an ID may leave."""
    times = [history.unhealthy_since(device_id) for history in streams]
    known = [time for time in times if time is not None]
    if not known or len(known) != len(times):
        return False
    told = max(known)
    return told + LEAVE_AFTER <= now and not any(call.began <= told for call in calls)


LISTS = st.dictionaries(st.sampled_from("abc"), st.sampled_from([UP, DOWN]))
ACTIONS = st.one_of(
    st.tuples(st.just("update"), LISTS),
    st.tuples(
        st.sampled_from(["open", *["send"] * 4, "close", "begin", "end", "prune"]),
        st.integers(0, 3),
    ),
    st.tuples(st.just("wait"), st.sampled_from([1, 4, 10, 11])),
)


@settings(max_examples=400)
@given(st.lists(ACTIONS, max_size=40))
def test_an_id_leaves_exactly_when_the_rule_lets_it(
    actions: list[tuple[str, int | dict[str, Advertised]]],
) -> None:
    """A sent ID leaves when its Unhealthy is old enough on each stream, and not before."""
    listing = Listing(LEAVE_AFTER)
    now = 0.0
    streams: list[History] = []
    calls: list[Call] = []
    sent: set[str] = set()
    wanted: dict[str, Advertised] = {}
    expected: dict[str, Advertised] = {}
    for action, value in actions:
        version, before = listing.version, listing.entries
        match action, value:
            case "update", dict():
                staying = {i: DOWN for i in expected if i in sent and i not in value}
                wanted, expected = value, {**value, **staying}
                listing.update(value)
            case "wait", int():
                now += value
            case "open", _:
                streams.append(History(listing.open()))
            case "begin", _:
                calls.append(listing.begin(now))
            case "prune", _:
                gone = {i for i in expected if i not in wanted and allowed(i, now, streams, calls)}
                expected = {i: entry for i, entry in expected.items() if i not in gone}
                sent -= gone
                listing.prune(now)
            case "send", int() if streams:
                sent.update(streams[value % len(streams)].step(listing, now))
            case "close", int() if streams:
                listing.close(streams.pop(value % len(streams)).stream)
            case "end", int() if calls:
                listing.end(calls.pop(value % len(calls)))
        assert listing.entries == expected
        assert listing.leaving == expected.keys() - wanted.keys()
        assert {i for i in "abc" if i in listing} == expected.keys()
        assert (listing.version != version) == (listing.entries != before)


ENTRIES = st.builds(
    Advertised, st.booleans(), st.sampled_from([(), (), (0,), (1, 300), (2**63 - 1,)])
)
IDS = st.sampled_from([*"abc", "id::0", "ß", "x" * 200])
PARTS = st.tuples(
    st.dictionaries(IDS, ENTRIES, max_size=3),
    st.sets(IDS, max_size=3),
    st.sampled_from(["keep", "send", "send", "prune", "known"]),
)


def plain(listing: Listing, *, all_down: bool = False) -> pb.ListAndWatchResponse:
    """The list as one message, made the plain way."""
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(
                ID=one,
                health="Healthy" if entry.healthy and not all_down else "Unhealthy",
                topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in entry.numa_nodes])
                if entry.numa_nodes
                else None,
            )
            for one, entry in listing.entries.items()
        ]
    )


@settings(max_examples=400)
@given(st.lists(PARTS, max_size=12))
def test_a_change_of_a_part_is_an_update_of_the_whole(
    parts: list[tuple[dict[str, Advertised], set[str], str]],
) -> None:
    """They lead to the same list, version and rules; and its bytes are those of the message."""
    by_change, by_update = both = Listing(LEAVE_AFTER), Listing(LEAVE_AFTER)
    streams = [listing.open() for listing in both]
    wanted: dict[str, Advertised] = {}
    for now, (new, others, action) in enumerate(parts):
        gone = others - new.keys()
        wanted = {one: entry for one, entry in (wanted | new).items() if one not in gone}
        before = [dict(listing.entries) for listing in both]
        lent = [listing.entries for listing in both]
        assert by_change.change(new, gone) == by_update.update(wanted)
        assert lent == before, "what was asked for stays as it was"
        for listing, stream in zip(both, streams, strict=True):
            match action:
                case "send":
                    listing.sent(stream, listing.message(stream), 10.0 * now)
                case "prune":
                    listing.prune(10.0 * now)
                case "known":
                    listing.sending(others)
            expected = plain(listing)
            data = listing.message(stream).data if action == "send" else None
            assert data in (None, expected.SerializeToString(deterministic=True))
            most = plain(listing, all_down=True).ByteSize()
            assert 0 <= LIST_BYTES_MAX - most - listing.room <= len(listing.entries)
        assert by_change.entries == by_update.entries
        assert by_change.leaving == by_update.leaving
        assert (by_change.version, by_change.left) == (by_update.version, by_update.left)
        assert by_change.drained == by_update.drained
        assert streams[0].unhealthy_since == streams[1].unhealthy_since


def test_a_list_that_does_not_change_is_encoded_once() -> None:
    """All streams send the same bytes, again too; and entries of a kind are one object."""
    listing, stream = served("a", "b")
    message = listing.message(stream)
    listing.resend()
    listing.sent(stream, listing.message(stream), 1.0)
    assert listing.message(stream) is message
    listing.update({"a": UP, "b": DOWN})
    assert listing.message(stream) is not message
    assert listing.entries["a"] is advertised(True, ())


def served(*ids: str) -> tuple[Listing, Stream]:
    """A listing whose IDs were sent on one stream at 0."""
    listing = Listing(LEAVE_AFTER)
    listing.update(dict.fromkeys(ids, UP))
    stream = listing.open()
    listing.sent(stream, listing.message(stream), 0.0)
    return listing, stream


def test_a_removed_id_is_listed_as_unhealthy_first() -> None:
    """An ID that is wanted no more stays, unhealthy, until its time has passed."""
    listing, stream = served("a", "b")
    assert listing.update({"a": UP})
    assert listing.entries == {"a": UP, "b": DOWN}
    listing.sent(stream, listing.message(stream), 5.0)
    assert not listing.prune(14.9)
    assert listing.prune(15.0)
    assert listing.entries == {"a": UP}


def test_an_id_that_was_never_sent_goes_at_once() -> None:
    """What the kubelet never heard of need not leave slowly."""
    listing = Listing(LEAVE_AFTER)
    listing.update({"a": UP})
    assert listing.update({})
    assert listing.entries == {}


def test_an_id_that_comes_back_is_not_leaving() -> None:
    """Adding an ID again cancels its leaving; a later one takes the whole time again."""
    listing, stream = served("a")
    listing.update({})
    listing.sent(stream, listing.message(stream), 1.0)
    listing.update({"a": UP})
    listing.sent(stream, listing.message(stream), 2.0)
    assert not listing.prune(100.0)
    assert listing.entries == {"a": UP}
    listing.update({})
    listing.sent(stream, listing.message(stream), 100.0)
    assert not listing.prune(101.0)
    assert listing.prune(110.0)


def test_an_id_that_is_just_being_told_as_healthy_is_not_dropped() -> None:
    """That it was unhealthy before counts no more once a list that says otherwise is written."""
    listing, stream = served("a")
    listing.update({})
    listing.sent(stream, listing.message(stream), 1.0)
    listing.update({"a": UP})
    on_its_way = listing.message(stream)
    listing.update({})
    assert not listing.prune(100.0)
    listing.sent(stream, on_its_way, 100.0)
    assert not listing.prune(100.0)
    listing.sent(stream, listing.message(stream), 101.0)
    assert listing.prune(111.0)


def test_a_new_stream_lists_the_leaving_ids_and_delays_them() -> None:
    """A stream that opens late gets the leaving IDs, and its time counts too."""
    listing, stream = served("a")
    listing.update({})
    listing.sent(stream, listing.message(stream), 1.0)
    late = listing.open()
    assert listing.entries == {"a": DOWN}
    assert not listing.prune(50.0)
    listing.sent(late, listing.message(late), 50.0)
    assert not listing.prune(59.0)
    assert listing.prune(60.0)


def test_nothing_leaves_without_an_open_stream() -> None:
    """With no stream open there is no telling what the kubelet knows."""
    listing, stream = served("a")
    listing.update({})
    listing.sent(stream, listing.message(stream), 1.0)
    listing.close(stream)
    assert not listing.prune(1000.0)
    assert "a" in listing


def test_a_call_that_began_before_holds_the_id() -> None:
    """A running call that may have picked the ID keeps it in the list; a younger one does not."""
    listing, stream = served("a")
    old = listing.begin(0.5)
    listing.update({})
    listing.sent(stream, listing.message(stream), 1.0)
    listing.begin(1.5)
    assert not listing.prune(100.0)
    listing.end(old)
    assert listing.prune(100.0)


def test_an_id_that_a_pod_holds_stays() -> None:
    """It leaves when the last pod has let it go, without a further wait; others leave as ever."""
    listing, stream = served("a", "b")
    held = {"a"}
    listing.held = lambda: held
    listing.update({})
    listing.sent(stream, listing.message(stream), 1.0)
    assert listing.prune(100.0)
    assert listing.entries == {"a": DOWN}
    assert listing.leaving == {"a"}
    assert not listing.drained
    held.clear()
    assert listing.prune(100.0)
    listing.sent(stream, listing.message(stream), 100.0)
    assert listing.drained


def test_the_same_list_again_is_no_change() -> None:
    """An update that changes nothing keeps the version."""
    listing, _ = served("a")
    version = listing.version
    assert not listing.update({"a": UP})
    assert listing.version == version


def test_an_id_counts_as_told_while_its_list_is_on_the_way() -> None:
    """An ID that goes while the first list with it is being written is not dropped."""
    listing = Listing()
    listing.update({"a": Advertised(True)})
    listing.sending(listing.entries)
    listing.update({})
    assert listing.entries == {"a": Advertised(False)}


def test_leaving_ids_have_numa_nodes_only_if_the_others_have() -> None:
    """A resource that is mixed could not be aligned."""
    listing = Listing(LEAVE_AFTER)
    listing.update({"old": Advertised(True, (0,))})
    listing.sending(listing.entries)
    listing.update({"new": Advertised(True, (1,))})
    assert listing.entries == {"new": Advertised(True, (1,)), "old": Advertised(False, (0,))}
    listing.update({"new": UP})
    assert listing.entries == {"new": UP, "old": DOWN}
