"""Attacks after the answer: kubelet keeps it, and runtimes resolve it at each container start."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from devhost.cli.output import print_reports
from devhost.hostfs.files import Ways
from devhost.hostfs.mounts import HostMount
from devhost.loading.loader import loads
from devhost.model.allocation import Allocation
from devhost.model.config import Config
from devhost.model.device import FileState
from devhost.report import report
from tests.trust.attack import NULL, Victim, allocated, as_root, config, written

pytestmark = as_root

TENANT = 1000
DISK, FULL = (8, 0), (1, 7)


def started(node: Victim, answer: Allocation) -> list[FileState | None]:
    """Return what a container gets by an answer when it starts now: links are followed."""
    return [node.files.stat(spec.host_path) for spec in answer.specs]


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def sticky(path: Path) -> None:
    path.chmod(0o1777)


def of_a_group(path: Path) -> None:
    path.chmod(0o775)


def of_the_tenant(path: Path) -> None:
    os.chown(path, TENANT, TENANT)


others_may_write = pytest.mark.parametrize(
    "given_away", [open_to_all, sticky, of_a_group, of_the_tenant]
)


@pytest.fixture
def watched(node: Victim) -> Victim:
    """A disk, harmless nodes, and links to these in a watched directory."""
    node.node("/dev/sda", DISK, stat.S_IFBLK)
    node.node("/dev/full", FULL)
    node.node("/dev/null", NULL)
    node.link("/watched/x", "/dev/full")
    return node


# ── links ──


@others_may_write
def test_a_link_that_others_can_bend_is_handed_out_as_what_it_led_to(
    watched: Victim, given_away: Callable[[Path], None]
) -> None:
    """A container that starts again after the link was bent gets the same device as before."""
    given_away(watched.at("/watched"))
    answer = watched.attack({"sources": ["/watched/x"]}).only
    watched.link("/watched/x", "/dev/sda")
    assert [one.number for one in started(watched, answer) if one] == [FULL]
    (spec,) = answer.devices
    assert (spec.host_path, spec.container_path) == ("/dev/full", "/dev/full")
    assert spec.link is not None
    assert spec.link.path == "/watched/x"
    assert "/watched " in (spec.link.reason or "")


@pytest.mark.parametrize("given_away", [open_to_all, of_a_group, of_the_tenant])
def test_a_directory_above_that_others_can_replace_counts(
    watched: Victim, given_away: Callable[[Path], None]
) -> None:
    watched.link("/watched/deep/er/x", "/dev/full")
    given_away(watched.at("/watched"))
    (spec,) = watched.attack({"sources": ["/watched/deep/er/x"]}).only.devices
    assert spec.host_path == "/dev/full"


def test_a_link_of_another_user_is_not_handed_out(watched: Victim) -> None:
    """Also in a directory of root's."""
    os.lchown(watched.at("/watched/x"), TENANT, TENANT)
    (spec,) = watched.attack({"sources": ["/watched/x"]}).only.devices
    assert spec.host_path == "/dev/full"
    assert spec.link is not None
    assert spec.link.reason == f"/watched/x belongs to uid {TENANT}"


@others_may_write
def test_every_link_on_the_way_counts(watched: Victim, given_away: Callable[[Path], None]) -> None:
    """A link of root's is worth only as much as the one that it leads to."""
    watched.link("/dev/by-name/x", "../../watched/x")
    watched.link("/opt/names", "/dev/by-name")
    given_away(watched.at("/watched"))
    for path in ("/dev/by-name/x", "/opt/names/x"):
        (spec,) = watched.attack({"sources": [path]}).only.devices
        assert spec.host_path == "/dev/full"


def test_links_that_only_root_can_change_are_handed_out(watched: Victim) -> None:
    """As those of udev: a container that starts again finds a device that was plugged in again."""
    watched.link("/dev/serial/by-id/usb-1", "../../full")
    watched.link("/names", "dev/serial/by-id")
    watched.directory("/tmp/root").parent.chmod(0o1777)
    watched.link("/tmp/root/x", "../../dev/./serial//by-id/usb-1")
    for path in ("/dev/serial/by-id/usb-1", "/names/usb-1", "/tmp/root/x"):
        (spec,) = watched.attack({"sources": [path]}).only.devices
        assert spec.host_path == path
        assert spec.link is not None
        assert (spec.link.realpath, spec.link.reason) == ("/dev/full", None)


def test_a_link_that_is_bent_before_allocate_is_another_device(watched: Victim) -> None:
    """To one that the policy allows, but that another resource may have."""
    open_to_all(watched.at("/watched"))
    scanner = watched.scanner({"sources": ["/watched/x"]})
    snapshot = watched.scan(scanner)
    watched.link("/watched/x", "/dev/null")
    refusals, answers = allocated(scanner, snapshot)
    assert not answers
    assert "/watched/x is another device than at the last scan" in refusals[0]
    os.lchown(watched.at("/watched"), 0, 0)
    watched.at("/watched").chmod(0o755)  # root alone: the device was plugged in again
    _, answers = allocated(scanner, snapshot)
    assert [one.host_path for one in answers["x"].devices] == ["/watched/x"]


@others_may_write
def test_a_node_that_others_can_replace_is_refused(
    watched: Victim, given_away: Callable[[Path], None]
) -> None:
    """Its own path is no better than a link: another node can take its place."""
    watched.node("/dev/pool/n", FULL)
    watched.link("/dev/safe", "pool/n")
    given_away(watched.at("/dev/pool"))
    for path in ("/dev/pool/n", "/dev/safe", "/dev/pool"):
        for outcome in watched.by_both_ways(
            {"sources": [{"static": 1}], "allocate": {"devices": [path]}}
        ):
            outcome.nothing("/dev/pool/n could be replaced: /dev/pool ")
            (device,) = outcome.snapshot.devices.values()
            assert "could be replaced" in (device.reason or "")
            outcome.nowhere("/dev/full", "/dev/pool")


def test_what_a_user_has_mounted_is_that_user_s(
    watched: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process behind a FUSE mount says that all is root's."""
    watched.link("/watched/x", "/dev/full")
    monkeypatch.setattr("devhost.hostfs.files._filesystem", lambda _: 0x65735546)
    number = (watched.root / "watched").stat().st_dev
    mount = HostMount(
        (os.major(number), os.minor(number)), "/mnt", "fuse", "x", ("rw", f"user_id={TENANT}")
    )
    monkeypatch.setattr("devhost.hostfs.files.mounts", lambda _: iter([mount]))
    assert Ways(watched.files).problem("/watched/x") == f"/ is on a filesystem of uid {TENANT}"
    mount = HostMount(mount.number, "/mnt", "fuse", "x", ("rw", "user_id=0"))
    assert Ways(watched.files).problem("/watched/x") is None


# ── mounts ──


def test_a_directory_that_others_can_replace_is_not_mounted(watched: Victim) -> None:
    """After `rmdir a; ln -s / a` the container would have the host's root at its next start."""
    watched.directory("/srv/seen/a")
    open_to_all(watched.at("/srv/seen"))
    resource = {
        "sources": [{"directory": {"path": "/srv/seen", "types": "directory"}}],
        "allocate": {"mounts": ["${path}"]},
    }
    for outcome in watched.by_both_ways(resource, "/srv/seen/*"):
        outcome.nothing("/srv/seen/a could be replaced: /srv/seen is writable by others than root")


@others_may_write
def test_a_mount_s_link_is_handed_out_as_what_it_led_to(
    watched: Victim, given_away: Callable[[Path], None]
) -> None:
    watched.directory("/srv/data/a")
    watched.link("/watched/a", "/srv/data/a")
    given_away(watched.at("/watched"))
    entry = {"hostPath": "/watched/a", "containerPath": "/data"}
    for inject in ("deviceSpecs", "cdi"):
        resource = {
            "sources": [{"static": 1}],
            "allocate": {"mounts": [entry]},
            "inject": inject,
        }
        outcome = watched.attack(resource, "/srv/data/*", "/watched/*")
        if inject == "cdi":
            assert outcome.only.mounts == ()
            assert "/watched" not in outcome.spec
            assert '"hostPath": "/srv/data/a"' in outcome.spec
        else:
            (mount,) = outcome.only.mounts
            assert (mount.host_path, mount.container_path) == ("/srv/data/a", "/data")
            assert mount.link is not None


def test_what_belongs_to_others_can_be_mounted_where_they_cannot_replace_it(
    watched: Victim,
) -> None:
    of_the_tenant(watched.directory("/srv/data/a"))
    resource = {"sources": [{"static": 1}], "allocate": {"mounts": ["/srv/data/a"]}}
    (mount,) = watched.attack(resource, "/srv/data/*").only.mounts
    assert (mount.host_path, mount.link) == ("/srv/data/a", None)


# ── what is judged is what is answered ──


def test_a_link_that_is_bent_between_the_looks_changes_no_answer(
    watched: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it may be kept is asked after it was followed; the answer is what was followed."""
    open_to_all(watched.at("/watched"))
    problem = Ways.problem

    def bend(ways: Ways, path: str) -> str | None:
        watched.link("/watched/x", "/dev/sda")
        return problem(ways, path)

    for inject in ("deviceSpecs", "cdi"):
        watched.link("/watched/x", "/dev/full")
        scanner = watched.scanner({"sources": ["/watched/x"], "inject": inject})
        snapshot = watched.scan(scanner)
        with monkeypatch.context() as patch:
            patch.setattr(Ways, "problem", bend)
            _, answers = allocated(scanner, snapshot)
            for answer in answers.values():
                assert [one.host_path for one in answer.devices] in ([], ["/dev/full"])
            watched.link("/watched/x", "/dev/full")
            assert "sda" not in written(scanner, snapshot)


# ── what is shown ──


def test_the_plan_says_what_becomes_of_links(
    watched: Victim, capsys: pytest.CaptureFixture[str]
) -> None:
    watched.link("/dev/serial/by-id/usb-1", "../../null")
    open_to_all(watched.at("/watched"))
    resource = {"sources": [{"static": 1}]}
    text = config(
        resource | {"allocate": {"devices": ["/watched/x", "/dev/serial/by-id/usb-1", "/dev/full"]}}
    )
    (loaded,) = loads(text).require().resources
    reports = report(
        Config(version="v1", resources=(loaded,)), watched.files, Policy(), "n", {loaded.name: "1"}
    )
    shown = reports[0].as_json()["allocation"]["devices"]
    assert [one.get("link") for one in shown] == [
        {
            "path": "/watched/x",
            "realpath": "/dev/full",
            "resolved": True,
            "reason": "/watched is writable by others than root",
        },
        {
            "path": "/dev/serial/by-id/usb-1",
            "realpath": "/dev/null",
            "resolved": False,
            "reason": None,
        },
        None,
    ]
    print_reports(reports, "n")
    lines = capsys.readouterr().out.splitlines()
    assert (
        "    device /dev/full as /watched/x (rw), resolved from /watched/x: /watched is writable by "
        "others than root"
    ) in lines
    assert "    device /dev/serial/by-id/usb-1 as /dev/serial/by-id/usb-1 (rw)" in lines


def test_what_would_be_refused_is_a_warning_of_the_plan(watched: Victim) -> None:
    watched.node("/dev/pool/n", FULL)
    open_to_all(watched.at("/dev/pool"))
    (loaded,) = loads(config({"sources": ["/dev/pool/n"]})).require().resources
    (shown,) = report(Config(version="v1", resources=(loaded,)), watched.files, Policy(), "n")
    assert shown.snapshot.devices["n"].healthy
    assert shown.warnings == (
        "/dev/pool/n could be replaced: /dev/pool is writable by others than root",
    )


def test_the_owner_of_the_root_counts_as_root(watched: Victim) -> None:
    """Of a tree that a developer has made; nobody else does."""
    for directory, _, files in os.walk(watched.root):
        for path in (directory, *(f"{directory}/{name}" for name in files)):
            os.lchown(path, TENANT, TENANT)
    (spec,) = watched.attack({"sources": ["/watched/x"]}).only.devices
    assert spec.host_path == "/watched/x"
    os.lchown(watched.at("/watched/x"), TENANT + 1, 0)
    (spec,) = watched.attack({"sources": ["/watched/x"]}).only.devices
    assert spec.host_path == "/dev/full"
