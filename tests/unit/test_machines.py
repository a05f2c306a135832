"""What `devhost init` writes for machines that people own runs unchanged, also after another boot."""

import shlex
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from devhost.allocation.policy import Policy
from devhost.cli import main
from devhost.config.loader import loads
from devhost.devices.dry_run import ResourceReport, report
from devhost.hostfs.files import HostFiles
from tests.support.hardware import HostTree
from tests.support.renumbering import after_boot
from tests.support.root import needs_root

MACHINES: Final = sorted(Path(__file__).with_name("machines").glob("*.tree"))
# The resources by machine, and after a | those that are commented out.
WRITTEN: Final = {
    "amd4": "gpu rdma kvm fuse tun | rdma-2",
    "homelab": "coral sdr zigbee camera microphone sound cp2102-usb-to-uart-bridge-controller gpu "
    "kvm fuse tun | tpm",
    "jetson": "realsense camera header fuse tun | gpu uart",
    "n100": "zwave zigbee zigbee-2 zwave-2 modem sound cec gpu kvm fuse tun |",
    "nuctv": "sdr ups fido smartcard smartcard-2 smartcard-3 tuner tuner-2 gpu kvm fuse tun | tpm",
    "pi": "zigbee zigbee-2 modem gps gpu camera codec header sensor fuse tun | uart",
    "pi5": "coral zigbee hailo gpu camera codec header fuse tun | uart uart-2",
    "server": "ups fido smartcard printer 1a86-7523 usb-serial gpu nvidia coral-pcie hailo rdma ethernet "
    "rs232 kvm fuse tun | tpm",
}
FLAGS: Final = "# It needs flags of `plan`, `try` and `run`:\n# "

pytestmark = needs_root


def written(tree: HostTree) -> tuple[str, list[str]]:
    """Return the file that `init` writes, and the flags that it names."""
    result = CliRunner().invoke(main, ["init", "--yes", "--root", str(tree.root)])
    assert result.exit_code == 0, result.output
    return result.stdout, shlex.split(result.stdout.partition(FLAGS)[2])


def planned(text: str, flags: list[str], tree: HostTree) -> dict[str, ResourceReport]:
    """Return what `plan` would find, by resource."""
    allowed = tuple(word for word in flags if not word.startswith("--"))
    policy = Policy(enforced=True, allow_devices=allowed, allow_paths=allowed)
    config = loads(text, policy=policy).require()
    names = [resource.name for resource in config.resources]
    requests = dict.fromkeys(names, "1")
    reports = report(config, HostFiles(str(tree.root)), policy, "", requests)
    return {one.resource.name: one for one in reports}


def identity(one: ResourceReport) -> dict[str, list[str]]:
    """Return what stays of the nodes of each device: the number, or the port of a USB node."""
    return {
        device.id: sorted(
            node.hardware.label.partition("-")[2]
            if node.hardware is not None and node.hardware.role == "usb"
            else str(node.state and node.state.number)
            for node in device.nodes
        )
        for device in one.snapshot.devices.values()
    }


def stable_paths(one: ResourceReport) -> set[str] | None:
    """Return the paths in a container, where the resource sets them."""
    rules = one.resource.allocate.devices or ()
    if not any(rule.container_path is not None for rule in rules):
        return None
    return {node["containerPath"] for node in one.details["allocation"]["devices"]}


Machine = tuple[str, HostTree, HostTree]


@pytest.fixture(scope="module", params=MACHINES, ids=lambda path: path.stem)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The name of a machine, and its files before and after another boot."""
    path, root = request.param, tmp_path_factory.mktemp("machine")
    before, after = HostTree(root / "before"), HostTree(root / "after")
    before.hardware(path.read_text())
    after.hardware(after_boot(path.read_text()))
    return path.stem, before, after


def test_written_file_runs_unchanged_and_after_another_boot(
    machine: Machine, tmp_path: Path
) -> None:
    name, before, after = machine
    text, flags = written(before)
    (tmp_path / "first.yaml").write_text(text)
    validate = ["validate", "--strict", "--enforce", *flags, str(tmp_path / "first.yaml")]
    assert CliRunner().invoke(main, validate).exit_code == 0
    first, second = planned(text, flags, before), planned(text, flags, after)
    assert [*first] == [f"example.com/{one}" for one in WRITTEN[name].partition(" |")[0].split()]
    for resource, one in first.items():
        devices, same = one.snapshot.devices, second[resource].snapshot.devices
        assert devices, resource
        for device in (*devices.values(), *same.values()):
            assert device.healthy, (resource, device.reason)
        assert identity(second[resource]) == identity(one), resource
        assert stable_paths(second[resource]) == stable_paths(one), resource


def test_written_file_says_why_the_rest_is_commented_out(machine: Machine) -> None:
    name, tree, _ = machine
    text, _ = written(tree)
    parts = [part for part in text.split("\n\n") if "  # - name: " in part]
    names = [part.partition("# - name: example.com/")[2].split()[0] for part in parts]
    assert names == WRITTEN[name].partition("|")[2].split()
    assert all("# Not offered: " in part for part in parts)


def test_written_file_is_the_same_after_another_boot(machine: Machine) -> None:
    """But for what is there now, in comments, and the order of equal kinds."""
    before, after = (
        sorted(line for line in written(tree)[0].splitlines() if not line.strip().startswith("#"))
        for tree in machine[1:]
    )
    assert before == after
