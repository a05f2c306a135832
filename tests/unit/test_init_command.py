"""`devhost init`: a configuration for what a host has."""

import os
import pty
import sys
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner, Result

from devhost.allocation.policy import Policy
from devhost.cli import main
from devhost.discovery.dry_run import report
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from tests.support.hardware import HostTree
from tests.support.root import needs_root
from tests.support.screen import read

TREES: Final = sorted((Path(__file__).parents[1] / "unit" / "trees").glob("*.tree"))
# Where nothing is for containers, or nothing without a flag.
EMPTY: Final = {"can", "nvme", "sriov", "fpga-dfl", "fpga-xdma", "serial-card", "spi-i2c", "tpm", "yubikey", "coral-usb", "printer", "rtl-sdr"}  # fmt: skip

pytestmark = needs_root


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path / "host")


def init(tree: HostTree, *arguments: str, **options: str) -> Result:
    return CliRunner().invoke(main, ["init", "--root", str(tree.root), *arguments], **options)  # type: ignore[arg-type]


def written(tree: HostTree, *arguments: str) -> str:
    result = init(tree, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def commented_in(text: str) -> str:
    """Return a file with the resources that are commented out."""
    empty = "resources: []  # remove the brackets when there is an entry\n"
    lines = text.replace(empty, "resources:\n").splitlines()
    keys = ("- name:", "  sources:", "    - ", "  id:", "  replicas:")
    return "\n".join(
        f"  {line[4:]}" if line.startswith("  # ") and line[4:].startswith(keys) else line
        for line in lines
    )


@pytest.mark.parametrize("path", TREES, ids=lambda path: path.stem)
def test_what_a_host_offers_without_a_flag_is_written_and_the_rest_commented_out(
    path: Path, tree: HostTree
) -> None:
    tree.hardware(path.read_text())
    text = written(tree)
    config = loads(text, policy=Policy(enforced=True)).require()
    assert bool(config.resources) == (path.stem not in EMPTY)
    assert text.count("# Not offered: ") == text.count("  # - name: ") or "/dev/kvm" in text
    whole = loads(commented_in(text)).require()
    nodes: list[str] = []
    for one in report(whole, HostFiles(str(tree.root)), Policy(enforced=True), ""):
        healthy = [device for device in one.snapshot.devices.values() if device.healthy]
        assert bool(healthy) == (one.resource in config.resources), one.resource.name
        nodes += [node.variables["name"] for device in healthy for node in device.nodes]
    assert len(nodes) == len(set(nodes))
    # No adapter, camera, sound card or GPU is forgotten.
    for line in map(str.split, path.read_text().splitlines()):
        if line[0] in ("tty", "video4linux", "dvb", "sound", "gpio", "apex") and ":" in line[-1]:
            assert line[1] in nodes or path.stem in EMPTY, line
        if line[0] == "drm" and line[1].startswith("render"):
            assert line[1] in nodes


def test_an_empty_host_gets_examples(tree: HostTree) -> None:
    result = init(tree)
    assert result.stderr == f"0 resources\nnext: devhost plan FILE --root {tree.root}\n"
    assert loads(result.stdout).require().resources == ()
    found = loads(commented_in(result.stdout)).require().resources
    assert [one.name for one in found] == ["example.com/kvm", "example.com/fuse", "example.com/tun"]


def test_nodes_that_are_shared(tree: HostTree) -> None:
    tree.char("/dev/kvm", 10, 232)
    tree.char("/dev/fuse", 10, 229)
    (kvm, fuse) = loads(written(tree, "--domain", "iot.example.org")).require().resources
    assert (kvm.name, kvm.replicas, fuse.name) == (
        "iot.example.org/kvm",
        100,
        "iot.example.org/fuse",
    )


def test_equal_devices_are_one_resource_as_devices_prints_them(tree: HostTree) -> None:
    tree.hardware((TREES[0].parent / "ftdi.tree").read_text())
    (one,) = loads(written(tree)).require().resources
    printed = CliRunner().invoke(
        main, ["devices", "0403:6001", "-o", "yaml", "--root", str(tree.root)]
    )
    assert loads(f"version: v1\nresources:\n{printed.stdout}").require().resources == (one,)


def test_keyboards_disks_and_bluetooth_are_left_out(tree: HostTree) -> None:
    tree.hardware(
        """pci 0000:00:14.0 8086:9d2f class=0c0330 driver=xhci_hcd
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
    usb 1-1 046d:c31c bus=1 dev=2 product=Keyboard
      if 1-1:1.0 030101 usbhid
        hid 0003:046D:C31C.0001 driver=hid-generic
          hidraw hidraw0 240:0
          input input5
            input event3 13:67
    usb 1-2 8087:0a2b bus=1 dev=3
      if 1-2:1.0 e00101 btusb
    usb 1-3 0781:5567 bus=1 dev=4 product=Disk
      if 1-3:1.0 080650 usb-storage
        scsi 4:0:0:0
          block sda 8:0
"""
    )
    assert loads(commented_in(written(tree))).require().resources[0].name == "example.com/kvm"


def test_chosen_devices(tree: HostTree) -> None:
    tree.hardware((TREES[0].parent / "ftdi.tree").read_text())
    (one,) = loads(written(tree, "ttyUSB1")).require().resources
    assert one.sources[0].usb is not None
    assert one.sources[0].usb.serial == ("A50285BI",)
    result = init(tree, "ttyUSB9")
    assert (result.exit_code, "no device ttyUSB9" in result.stderr) == (1, True)


def test_an_invalid_domain_is_an_error(tree: HostTree) -> None:
    result = init(tree, "--domain", "a b")
    assert (result.exit_code, "--domain" in result.stderr) == (2, True)


def test_names_cannot_break_the_file(tree: HostTree) -> None:
    tree.hardware(
        """pci 0000:00:14.0 8086:9d2f class=0c0330 driver=xhci_hcd
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
    usb 1-1 1a86:7523 bus=1 dev=2 product="a: [b]* #\u202e" serial="x]{$y}'z"
      if 1-1:1.0 ffffff
    usb 1-2 1a86:7523 bus=1 dev=3 product="${other}" serial=":'&87654"
      if 1-2:1.0 ffffff
"""
    )
    text = written(tree)
    allowed = Policy(enforced=True, allow_devices=("1a86:*",))
    config = loads(commented_in(text), policy=allowed).require()
    found = report(config, HostFiles(str(tree.root)), allowed, "")
    assert [len(one.snapshot.devices) for one in found] == [1, 1]
    assert all(character.isprintable() or character == "\n" for character in text)


def test_on_a_terminal_it_asks(tree: HostTree, tmp_path: Path) -> None:
    tree.hardware((TREES[0].parent / "ftdi.tree").read_text())
    tree.char("/dev/kvm", 10, 232)
    devhost = str(Path(sys.executable).with_name("devhost"))
    target = str(tmp_path / "devhost.yaml")
    process, terminal = pty.fork()
    if process == 0:
        os.execv(devhost, [devhost, "init", "--root", str(tree.root), "-o", target])
    os.write(terminal, b"n\n\n")  # Enter is yes
    shown = read(terminal)
    os.waitpid(process, 0)
    assert b"Now /dev/ttyUSB0.\r\nInclude it? [Y/n]" in shown
    (one,) = loads(Path(target).read_text()).require().resources
    assert one.name == "example.com/kvm"
