"""Attacks by symbolic links: what they lead to counts, also when a container starts again.

The tenant is root in a container, who has a directory of the host: what he makes belongs to uid 0.
kubelet keeps an answer, and runtimes resolve the paths in it at each start of the container.
"""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from tests.security.attack import DISK, FULL, MEM, NULL, Victim, allocated, asks, written
from tests.support.offered import offered
from tests.support.root import needs_root

WAYS = ("deviceSpecs", "cdi")


@pytest.fixture
def watched(node: Victim) -> Victim:
    """A disk, harmless nodes, and a link to one of these in the tenant's directory."""
    node.node("/dev/sda", DISK, stat.S_IFBLK)
    node.node("/dev/full", FULL)
    node.node("/dev/null", NULL)
    node.link("/watched/x", "/dev/full")
    return node


@pytest.mark.parametrize(
    ("target", "value"),
    [("/etc/shadow", "${path}"), ("../etc/shadow", "${realpath}"),
     ("../../../../etc/shadow", "/in/${name}"), ("/in/b/c", "${path}")],
)  # fmt: skip
def test_symlink_to_a_forbidden_file_is_not_mounted(node: Victim, target: str, value: str) -> None:
    node.file("/etc/shadow")
    node.link("/in/a", target)
    node.link("/in/b", "/in/d")
    node.link("/in/d/c", "../../etc/shadow")
    node.link("/in/sub", "/etc")
    resource = {"sources": ["/in/a"], "allocate": {"mounts": [value]}}
    node.refuses(resource, "/in/*", why="--allow-path '/etc/shadow'")
    for path in ("/in/sub/shadow", "/in/sub", "/in//sub/.", "/in/a"):
        node.refuses(asks(path, "mounts"), "/in/*", why="--allow-path '/etc")


@needs_root
@pytest.mark.parametrize(
    ("section", "link", "target"),
    [("mounts", "/var/run", "/run"), ("devices", "/var/lock", "/run/lock")],
)
def test_flag_is_for_the_links_target(node: Victim, section: str, link: str, target: str) -> None:
    node.link(link, target)
    node.node(f"{target}/x")
    for outcome in node.by_both_ways(asks(f"{link}/x", section), "/run/*"):
        assert "0" in (outcome.answers or {}), outcome
    node.refuses(asks(f"{link}/x", section), f"{link}/*", why=f"{target}/x'")


@pytest.mark.parametrize("links", [1, 41, 200])
@pytest.mark.parametrize("target", ["/etc/shadow", "/etc/later", "/in/l0"])
@pytest.mark.parametrize("optional", [False, True])
def test_symlinks_that_lead_nowhere_or_further_than_is_followed_are_not_mounted(
    node: Victim, links: int, target: str, *, optional: bool
) -> None:
    """Runtimes in Go follow 255: what we could not follow, they could, also once it is bent."""
    node.file("/etc/shadow")
    for at in range(links):
        node.link(f"/in/l{at}", f"/in/l{at + 1}")
    node.link(f"/in/l{links}", target)
    entry = {"hostPath": "/in/l0", "optional": optional}
    for outcome in node.by_both_ways(asks(entry, "mounts"), "/in/*"):
        outcome.nowhere("/in/l0", "shadow", "later")


@pytest.mark.parametrize("inject", WAYS)
def test_symlink_bent_after_the_scan_is_refused_at_allocate(node: Victim, inject: str) -> None:
    node.file("/etc/shadow")
    node.file("/in/good")
    node.link("/in/a", "/in/good")
    scanner = node.scanner({**asks("/in/a", "mounts"), "inject": inject}, "/in/*")
    snapshot = node.scan(scanner)
    assert snapshot.devices["0"].healthy
    node.link("/in/a", "/etc/shadow")
    refusals, answers = allocated(scanner, snapshot)
    assert not answers
    assert "--allow-path '/etc/shadow'" in refusals[0]
    assert "shadow" not in written(scanner, snapshot)


def test_optional_path_that_appears_after_the_scan_is_judged_at_allocate(node: Victim) -> None:
    entry = {"hostPath": "/in/late", "optional": True}
    scanner = node.scanner(asks(entry, "mounts"), "/in/*")
    node.file("/etc/shadow")
    node.directory("/in")
    snapshot = node.scan(scanner)
    node.link("/in/late", "/etc/shadow")
    assert snapshot.devices["0"].healthy
    with pytest.raises(AllocationError, match="mounts of /etc/shadow need --allow-path"):
        scanner.allocate(snapshot, offered("0"))


EXCHANGES = {
    "memory": (lambda node: node.node("/dev/full", MEM), "deviceSpecs", "of class memory"),
    "a disk": (lambda node: node.node("/dev/full", DISK, stat.S_IFBLK), "cdi", "no longer a char"),
    "a symlink to a disk": (lambda node: node.link("/dev/full", "sda"), "deviceSpecs", "no longer"),
    "renumbered, as the CDI spec has its number": (
        lambda node: node.node("/dev/full", NULL), "cdi", "another device"
    ),
    "a tenant's symlink to another one": (
        lambda node: node.link("/watched/x", "/dev/null"), "deviceSpecs", "another device"
    ),
}  # fmt: skip


@needs_root
@pytest.mark.parametrize(("exchange", "inject", "why"), EXCHANGES.values(), ids=EXCHANGES)
def test_device_exchanged_after_the_scan_is_refused_at_allocate(
    watched: Victim, exchange: Callable[[Victim], Path], inject: str, why: str
) -> None:
    """A device below /dev may get another number where kubelet's answer follows the path."""
    source = "/watched/x" if "another" in why and inject == "deviceSpecs" else "/dev/full"
    scanner = watched.scanner({"sources": [source], "inject": inject})
    snapshot = watched.scan(scanner)
    assert all(device.healthy for device in snapshot.devices.values())
    exchange(watched)
    (refusal,), answers = allocated(scanner, snapshot)
    assert why in refusal
    assert not answers


@needs_root
@pytest.mark.parametrize(
    "path", ["/watched/x", "/dev/mqueue/x", "/dev/by-name/x", "/watched/names/full"]
)
def test_symlink_of_a_tenant_is_handed_out_as_its_node(watched: Victim, path: str) -> None:
    """So is a link of the host that leads over the tenant's directory."""
    watched.link("/dev/mqueue/x", "/dev/full")
    watched.link("/dev/by-name/x", "../../watched/x")
    watched.link("/watched/names", "/dev")
    outcome = watched.attack({"sources": [path]})
    (spec,) = outcome.only.devices
    assert (spec.host_path, spec.container_path) == ("/dev/full", "/dev/full")
    assert outcome.only.numbers == {"/dev/full": "c 1:7"}


@needs_root
def test_symlink_of_udev_is_handed_out_as_it_is_and_followed_again(watched: Victim) -> None:
    """The link leads to a device that was plugged in again, also at Allocate."""
    path = "/dev/serial/by-id/usb-1"
    watched.link(path, "../../full")
    scanner = watched.scanner({"sources": [path]})
    snapshot = watched.scan(scanner)
    watched.link(path, "../../null")
    (spec,) = allocated(scanner, snapshot)[1]["usb-1"].devices
    assert spec.host_path == path


def test_symlink_of_a_mount_is_handed_out_as_what_it_led_to(node: Victim) -> None:
    node.directory("/srv/data/a")
    node.link("/watched/a", "/srv/data/a")
    entry = {"hostPath": "/watched/a", "containerPath": "/data"}
    plain, cdi = node.by_both_ways(asks(entry, "mounts"), "/srv/data/*", "/watched/*")
    assert [mount.host_path for mount in plain.only.mounts] == ["/srv/data/a"]
    assert '"hostPath": "/srv/data/a"' in cdi.spec
    assert "/watched" not in cdi.spec


@needs_root
@pytest.mark.parametrize("inject", WAYS)
def test_symlink_bent_midway(watched: Victim, monkeypatch: pytest.MonkeyPatch, inject: str) -> None:
    """A link bent between two looks of Allocate does not change the answer."""
    watched.link("/dev/names/x", "/watched/x")

    def bend(_: HostFiles, __: str) -> bool:
        watched.link("/watched/x", "/dev/sda")
        return False

    scanner = watched.scanner({"sources": ["/dev/names/x"], "inject": inject})
    snapshot = watched.scan(scanner)
    with monkeypatch.context() as patch:
        patch.setattr(HostFiles, "stays_in_dev", bend)
        answers = allocated(scanner, snapshot)[1]
        nodes = [device.host_path for answer in answers.values() for device in answer.devices]
        assert nodes in ([], ["/dev/full"])
        watched.link("/watched/x", "/dev/full")
        assert "sda" not in written(scanner, snapshot)
