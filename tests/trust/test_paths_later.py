"""Attacks after the answer: kubelet keeps it, and runtimes resolve it at each container start.

The tenant is root in a container, who has a directory of the host: what he makes belongs to uid 0.
"""

import stat

import pytest

from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.allocation import Allocation
from devhost.model.device import FileState
from tests.trust.attack import NULL, Victim, allocated, as_root, config, written

pytestmark = as_root

DISK, FULL = (8, 0), (1, 7)


def started(node: Victim, answer: Allocation) -> list[FileState | None]:
    """Return what a container gets by an answer when it starts now: links are followed."""
    return [node.files.stat(spec.host_path) for spec in answer.specs]


@pytest.fixture
def watched(node: Victim) -> Victim:
    """A disk, harmless nodes, and a link to one of these in the tenant's directory."""
    node.node("/dev/sda", DISK, stat.S_IFBLK)
    node.node("/dev/full", FULL)
    node.node("/dev/null", NULL)
    node.link("/watched/x", "/dev/full")
    return node


@pytest.mark.parametrize("place", ["/watched", "/dev/shm", "/dev/mqueue/deep", "/dev/hugepages"])
def test_a_tenant_s_link_is_handed_out_as_the_node_that_it_led_to(
    watched: Victim, place: str
) -> None:
    """A container that starts again after the link was bent gets the same node as before."""
    watched.link(f"{place}/x", "/dev/full")
    outcome = watched.attack({"sources": [f"{place}/x"]})
    watched.link(f"{place}/x", "/dev/sda")
    assert [one.number for one in started(watched, outcome.only) if one] == [FULL]
    (spec,) = outcome.only.devices
    assert (spec.host_path, spec.container_path) == ("/dev/full", "/dev/full")
    assert outcome.only.numbers == {"/dev/full": "c 1:7"}


def test_a_link_of_the_host_that_leads_over_a_tenant_s_directory_is_resolved(
    watched: Victim,
) -> None:
    watched.link("/dev/by-name/x", "../../watched/x")
    watched.link("/watched/names", "/dev")
    for path in ("/dev/by-name/x", "/watched/names/full"):
        (spec,) = watched.attack({"sources": [path]}).only.devices
        assert spec.host_path == "/dev/full"


def test_a_link_below_dev_is_handed_out_and_followed_again(watched: Victim) -> None:
    """As those of udev: it leads to a device that was plugged in again, also at Allocate."""
    path = "/dev/serial/by-id/usb-1"
    watched.link(path, "../../full")
    scanner = watched.scanner({"sources": [path]})
    snapshot = watched.scan(scanner)
    watched.link(path, "../../null")
    (spec,) = allocated(scanner, snapshot)[1]["usb-1"].devices
    assert spec.host_path == path


def test_a_tenant_s_link_that_is_bent_before_allocate_is_another_device(watched: Victim) -> None:
    """To one that the policy allows, but that another resource may have."""
    scanner = watched.scanner({"sources": ["/watched/x"]})
    snapshot = watched.scan(scanner)
    watched.link("/watched/x", "/dev/null")
    refusals, answers = allocated(scanner, snapshot)
    assert not answers
    assert "/watched/x is another device than at the last scan" in refusals[0]


def test_a_mount_s_link_is_handed_out_as_what_it_led_to(watched: Victim) -> None:
    watched.directory("/srv/data/a")
    watched.link("/watched/a", "/srv/data/a")
    resource = {
        "sources": [{"static": 1}],
        "allocate": {"mounts": [{"hostPath": "/watched/a", "containerPath": "/data"}]},
    }
    plain, cdi = watched.by_both_ways(resource, "/srv/data/*", "/watched/*")
    assert [one.host_path for one in plain.only.mounts] == ["/srv/data/a"]
    assert '"hostPath": "/srv/data/a"' in cdi.spec
    assert "/watched" not in cdi.spec


def test_a_link_that_is_bent_between_the_looks_changes_no_answer(
    watched: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it may be kept is asked after it was followed; the answer is what was followed."""
    watched.link("/dev/names/x", "/watched/x")

    def bend(_: HostFiles, __: str) -> bool:
        watched.link("/watched/x", "/dev/sda")
        return False

    for inject in ("deviceSpecs", "cdi"):
        watched.link("/watched/x", "/dev/full")
        scanner = watched.scanner({"sources": ["/dev/names/x"], "inject": inject})
        snapshot = watched.scan(scanner)
        with monkeypatch.context() as patch:
            patch.setattr(HostFiles, "stays_in_dev", bend)
            answers = allocated(scanner, snapshot)[1]
            nodes = [one.host_path for answer in answers.values() for one in answer.devices]
            assert nodes in ([], ["/dev/full"])
            watched.link("/watched/x", "/dev/full")
            assert "sda" not in written(scanner, snapshot)


@pytest.mark.parametrize(
    ("source", "directory"),
    [({"directory": {"path": "/srv/seen", "types": "directory"}}, "/srv/seen"),
     ("/srv/seen/*/x", "/srv/seen"), ("/dev/shm/x", "/dev/shm")],
)  # fmt: skip
@pytest.mark.parametrize("section", ["devices", "mounts"])
def test_validate_warns_where_a_host_path_is_made_from_what_a_tenant_has(
    source: object, directory: str, section: str
) -> None:
    """A runtime resolves it again at each start of a container: no check of ours can hold it."""
    text = config({"sources": [source], "allocate": {section: ["/srv/seen/${name}"]}})
    problems = [one for one in loads(text).problems if "a pod that can" in one.message]
    (warning,) = problems
    assert warning.severity == "warning"
    assert warning.path.startswith(f"resources[0].allocate.{section}[0]")
    assert f"a pod that can write in {directory}," in warning.message


@pytest.mark.parametrize("source", ["/dev/*", {"dev": "tty.*"}, {"static": 1}])
def test_validate_does_not_warn_of_host_paths_made_from_the_host_s_own_dev(source: object) -> None:
    text = config({"sources": [source], "allocate": {"devices": ["/dev/${name}"]}})
    assert not [one for one in loads(text).problems if "a pod that can" in one.message]
