"""The files of `devhost init` for machines that people own: they run unchanged, also after a boot."""

import re
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
    "workbench": "stm32-stlink stm32-stlink-usb daplink-cmsis-dap quad-rs232-hs 9710-7840 gpu "
    "gpu-partition gpu-2 npu camera codec fuse |",
}
# What has no entry on the workbench.
LEFT_OUT: Final = (
    "hidraw0 1-5 1-6 0000:01:00.0 0000:02:00.0 0000:04:00.0 dri/card1 dri/card2 gpiochip0 "
    "gpiochip1 i2c-3 lirc0 pps0"
)
FLAGS: Final = "# It needs flags of `plan`, `try` and `run`:\n# "

pytestmark = needs_root


def written(tree: HostTree, *names: str) -> tuple[str, list[str]]:
    """Return the file that `init` writes, and the flags that it names."""
    result = CliRunner().invoke(main, ["init", "--yes", "--root", str(tree.root), *names])
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
    return {entry.resource.name: entry for entry in reports}


def identity(resource: ResourceReport) -> dict[str, list[str]]:
    """Return what stays of the nodes of each device: the number, or the port of a USB node."""
    return {
        device.id: sorted(
            node.hardware.label.partition("-")[2]
            if node.hardware is not None and node.hardware.role == "usb"
            else str(node.state and node.state.number)
            for node in device.nodes
        )
        for device in resource.snapshot.devices.values()
    }


def stable_paths(resource: ResourceReport) -> set[str] | None:
    """Return the paths in a container that the resource sets, if it does."""
    rules = resource.resource.allocate.devices or ()
    if not any(rule.container_path is not None for rule in rules):
        return None
    nodes = resource.details["allocation"]["devices"]
    return {node["containerPath"] for node in nodes if node["containerPath"] != node["hostPath"]}


Machine = tuple[str, HostTree, HostTree]


@pytest.fixture(scope="module", params=MACHINES, ids=lambda path: path.stem)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The name of a machine, and its files before and after another boot."""
    path, root = request.param, tmp_path_factory.mktemp("machine")
    before, after = HostTree(root / "before"), HostTree(root / "after")
    before.hardware(path.read_text())
    after.hardware(after_boot(path.read_text()))
    return path.stem, before, after


def test_written_file_is_the_same_after_another_boot_and_runs(
    machine: Machine, tmp_path: Path
) -> None:
    name, before, after = machine
    text, flags = written(before)
    assert active_lines(written(after)[0]) == active_lines(text)
    (tmp_path / "first.yaml").write_text(text)
    validate = ["validate", "--strict", "--enforce", *flags, str(tmp_path / "first.yaml")]
    assert CliRunner().invoke(main, validate).exit_code == 0
    first, second = planned(text, flags, before), planned(text, flags, after)
    active, commented = (words.split() for words in WRITTEN[name].split("|"))
    assert [*first] == [f"example.com/{word}" for word in active]
    assert_same_hardware(first, second)
    config = loads(text).require()
    for resource in config.resources:  # an entry needs no other one to offer only what is its own
        alone = config.model_copy(update={"resources": (resource,)})
        (planned_alone,) = report(alone, HostFiles(str(before.root)), Policy(trusted=True), "")
        assert identity(planned_alone) == identity(first[resource.name]), resource.name
    parts = [part for part in text.split("\n\n") if "  # - name: " in part]
    names = [part.partition("# - name: example.com/")[2].split()[0] for part in parts]
    assert names == commented
    assert all("# Not offered: " in part for part in parts)


def active_lines(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if not line.strip().startswith("#"))


def assert_same_hardware(
    before: dict[str, ResourceReport], after: dict[str, ResourceReport]
) -> None:
    """Assert that what is planned before and after another boot is the same."""
    for name, planned_before in before.items():
        planned_after = after[name]
        devices = planned_before.snapshot.devices
        assert devices, name
        for device in (*devices.values(), *planned_after.snapshot.devices.values()):
            assert device.healthy, (name, device.reason)
        assert identity(planned_after) == identity(planned_before), name
        assert stable_paths(planned_after) == stable_paths(planned_before), name


def test_what_is_left_out_gets_entries_by_the_commands_in_the_file(machine: Machine) -> None:
    name, before, after = machine
    text, _ = written(before)
    left = " ".join(re.findall("`devhost init (.*?)`", text.replace("\n  #", "")))
    text, flags = written(before, *left.split(), *(["ttyUSB3"] if name == "workbench" else []))
    assert name != "workbench" or left == LEFT_OUT
    titles = " ".join(line for line in text.splitlines() if line.strip().startswith("#"))
    assert [word for word in left.split() if word not in titles] == []
    first = planned(text, flags, before)
    assert name != "workbench" or "example.com/9710-7840" in first  # ttyUSB3, by its port
    assert_same_hardware(first, planned(text, flags, after))


def test_workbench_offers_ports_one_by_one_and_gpus_also_by_their_place(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.hardware((MACHINES[0].parent / "workbench.tree").read_text())
    resources = planned(*written(tree), tree)
    for name, ports in {"quad-rs232-hs": ("3:1.0", "3:1.1"), "9710-7840": ("4:1.0",) * 2}.items():
        devices = resources[f"example.com/{name}"].snapshot.devices
        assert [device_id.partition("-0:")[2].partition("-")[0] for device_id in devices] == [
            *ports
        ]
    allocation = resources["example.com/gpu"].details["allocation"]
    path = "/dev/dri/by-path/pci-0000:03:00.0-render"
    assert allocation["envs"] == {"RENDER_GPU": path}
    assert [node["containerPath"] for node in allocation["devices"]] == [
        *("/dev/kfd", "/dev/dri/renderD128", path)
    ]


def test_entry_of_the_disk_of_the_system_names_the_right_that_it_would_need(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.hardware((MACHINES[0].parent / "amd4.tree").read_text())
    link = "/dev/disk/by-id/nvme-SAMSUNG_MZQL21T9HCJR-00A07_S64GNE0T000000"
    text, _ = written(tree, "nvme0n1")
    assert f"# Not offered: in use: the system's disk\n  # It needs --allow-device {link}\n" in text
