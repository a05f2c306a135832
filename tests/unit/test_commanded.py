"""The source ``exec``: what a command lists becomes devices; its failures are shown."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery import command
from devhost.discovery.commanded import CommandReading, CommandRoot, CommandTerms
from devhost.discovery.roots import read
from devhost.hostfs.files import HostFiles
from devhost.limits import LISTING_BYTES_MAX
from devhost.loading.loader import loads
from devhost.report import ResourceReport, report

ALLOWED = Policy(allow_exec=True)
TERMS = CommandTerms(allowed=True, node_name="node-1")


def root(*argv: str, timeout: float = 30.0) -> CommandRoot:
    return CommandRoot(argv, "e.com/a", timeout, 60.0, TERMS)


def ran(*argv: str, timeout: float = 30.0) -> CommandReading:
    reading = read(root(*argv, timeout=timeout), HostFiles())
    assert isinstance(reading, CommandReading)
    return reading


def ids(reading: CommandReading) -> list[str] | None:
    return None if reading.devices is None else [one.id for one in reading.devices]


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended may still wait for its parent."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


# ── a run ──


def test_a_command_is_told_where_it_is() -> None:
    """It has this environment and no other, / as its directory and no input."""
    script = (
        'test -z "$HOME" && test "$(pwd)" = / && test -z "$(cat)" && echo \'{"devices": '
        '[{"id": "\'"$DEVHOST_ROOT $DEVHOST_NODE_NAME $DEVHOST_RESOURCE"\'"}]}\''
    )
    assert ids(ran("sh", "-c", script)) == ["/ node-1 e.com/a"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no; exit 0", "sh: its output is not JSON: Expecting value at line 1 column 1"),
        ("exit 3", "sh: exited with 3"),
        ("echo one >&2; echo no bus >&2; echo {}; exit 3", "sh: exited with 3: no bus"),
        ("kill -9 $$", "sh: was killed by signal 9 (Killed)"),
        ("yes", f"sh: its output is longer than {LISTING_BYTES_MAX // 1024} KiB"),
    ],
)
def test_a_failure_is_the_reason(script: str, reason: str) -> None:
    assert ran("sh", "-c", script).failure == reason


def test_what_it_says_on_standard_error_is_no_output() -> None:
    reading = ran("sh", "-c", "echo {; echo '{\"devices\": []}'; echo } >&2; echo warning >&2")
    assert reading.failure is not None
    assert (
        ids(ran("sh", "-c", "echo } >&2; echo '{\"devices\": []}'; yes no | head -100000 >&2"))
        == []
    )


def test_no_such_program() -> None:
    missing = "/no/such: there is no program /no/such, or it may not be executed"
    assert ran("/no/such").failure == missing


def test_a_command_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    """Also one that it has left in the background."""
    pids = tmp_path / "pids"
    script = f"sleep 1000 & echo $$ $! > {pids}; echo waiting >&2; wait"
    assert ran("sh", "-c", script, timeout=2.0).failure == "sh: did not end in 2 s: waiting"
    script = f"sleep 1000 >/dev/null & echo $! >> {pids}; echo '{{\"devices\": []}}'"
    assert ids(ran("sh", "-c", script)) == []
    assert not [pid for pid in map(int, pids.read_text().split()) if lives(pid)]


def test_a_list_of_the_largest_size() -> None:
    """It is read as a whole, in as many steps as it is written in."""
    blanks = LISTING_BYTES_MAX - len('{"devices": []}')
    rest = f"head -c {blanks} /dev/zero | tr '\\0' ' '"
    assert ids(ran("sh", "-c", f"printf '{{\"devices\": []}}'; {rest}")) == []
    more = ran("sh", "-c", f"printf '{{\"devices\": []}} '; {rest}")
    assert more.failure == "sh: its output is longer than 1024 KiB"


def test_a_command_is_ended_early() -> None:
    """A source that is removed leaves nothing behind."""
    stop = threading.Event()
    stop.set()
    assert command.run(["sleep", "1000"], dict(os.environ), 1000, stop).status is None


# ── after an earlier run ──


def test_the_last_good_list_stays_until_the_third_failure() -> None:
    first = ran("echo", '{"devices": [{"id": "a"}]}').after(None)
    assert (ids(first), first.failure, first.stale) == (["a"], None, None)
    stale = "false: exited with 1; its last list stays"
    second = ran("false").after(first)
    third = ran("false").after(second)
    for one in (second, third):
        assert (ids(one), one.failure, one.stale) == (["a"], None, stale)
    for _ in range(3):
        third = ran("false").after(third)
        assert (third.failure, third.stale) == ("false: exited with 1", None)
    again = ran("echo", '{"devices": []}').after(third)
    assert (ids(again), again.failure, again.stale, again.failures) == ([], None, None, 0)


def test_one_that_never_succeeded_says_so() -> None:
    one = ran("false").after(None)
    assert one.failure == "false: exited with 1; it has never succeeded"
    assert ran("false").after(one).failure == one.failure


# ── devices ──


Planned = Callable[..., ResourceReport]


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """Plans a resource whose command lists devices of a host with /dev/a and /dev/b."""
    (tmp_path / "dev").mkdir()
    for name in "ab":
        (tmp_path / "dev" / name).touch()

    def plan(*listed: dict[str, Any], more: str = "", policy: Policy = ALLOWED) -> ResourceReport:
        (tmp_path / "list").write_text(json.dumps({"devices": listed}))
        text = (
            "version: v1\nresources:\n- name: e.com/a\n"
            f"  sources: [exec: [cat, {tmp_path}/list]]\n{more}"
        )
        files = HostFiles(str(tmp_path))
        (one,) = report(loads(text).require(), files, policy, "n", {"e.com/a": "1"}, "")
        return one

    return plan


def test_a_device_has_all_its_nodes(planned: Planned) -> None:
    more = '  allocate: {env: {MODEL: "${attr.model}", ID: "${id} ${name}"}}\n'
    one = planned(
        {"id": "card-7", "paths": ["/dev/a", "/dev/b"], "attributes": {"model": "x2"}}, more=more
    )
    (device,) = one.snapshot.devices.values()
    assert (device.id, device.paths) == ("card-7", ("/dev/a", "/dev/b"))
    assert one.allocation is not None
    assert one.allocation.envs == {"MODEL": "x2", "ID": "card-7 card-7"}


def test_the_numa_nodes_are_those_that_it_says(planned: Planned) -> None:
    one = planned({"id": "a", "path": "/dev/a", "numaNodes": [1, 0]}, {"id": "b", "numaNodes": [3]})
    found = {device.id: device.numa_nodes for device in one.snapshot.devices.values()}
    assert found == {"a": (0, 1), "b": (3,)}


def test_an_unhealthy_device_is_listed(planned: Planned) -> None:
    one = planned({"id": "a", "healthy": False, "reason": "too hot"}, {"id": "b"})
    reasons = {device.id: device.reason for device in one.snapshot.devices.values()}
    assert reasons == {"a": "too hot", "b": None}


def test_a_device_that_lacks_a_node_is_not_offered(planned: Planned) -> None:
    """No half of a device is handed out."""
    one = planned(
        {"id": "a", "paths": ["/dev/a", "/dev/nope"]},
        {"id": "b", "paths": ["/dev"]},
        {"id": "c", "path": "/dev/b"},
    )
    assert [device.id for device in one.snapshot.devices.values()] == ["c"]
    assert {(skip.candidate, skip.reason) for skip in one.snapshot.skipped} == {
        ("/dev/nope", "not there"),
        ("/dev", "a directory"),
        ("a", "incomplete: /dev/nope: not there"),
    }


def test_two_devices_with_one_node(planned: Planned, tmp_path: Path) -> None:
    """By a link: the second one is not offered, and no half of it."""
    (tmp_path / "dev" / "link").symlink_to("a")
    one = planned({"id": "1", "path": "/dev/a"}, {"id": "2", "paths": ["/dev/b", "/dev/link"]})
    assert [device.id for device in one.snapshot.devices.values()] == ["1"]
    reasons = {skip.candidate: skip.reason for skip in one.snapshot.skipped}
    assert reasons["2"] == "incomplete: /dev/link: it is a node of 1 as well"


def test_without_the_flag_nothing_runs(planned: Planned) -> None:
    one = planned({"id": "a"}, policy=Policy())
    assert not one.snapshot.devices
    assert one.snapshot.error is None
    assert one.warnings == ("cat is not run: running a command needs --allow-exec",)


def test_what_is_explained(planned: Planned) -> None:
    one = planned({"id": "b", "paths": ["/dev/b"]}, {"id": "a", "path": "/dev/nope"})
    assert one.explained is not None
    (source,) = one.explained
    assert source.summary.startswith("exec cat ")
    assert source.looked == "cat lists 2 devices"
    shown = [(each.candidate, each.taken, each.reasons) for each in source.candidates]
    assert shown == [("b", True, ()), ("/dev/nope", False, ("not there",))]
    assert planned().warnings == ("cat lists no devices",)


def test_a_command_of_one_resource_is_another_of_the_next() -> None:
    """It gets the resource's name."""
    other = CommandRoot(("true",), "e.com/b", 30.0, 60.0, TERMS)
    assert root("true") == root("true") != other
