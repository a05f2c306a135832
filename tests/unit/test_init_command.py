"""`devhost init`: a configuration for what a host has."""

import os
import pty
import sys
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from devhost.allocation.policy import Policy
from devhost.cli import main
from devhost.config.loader import loads
from devhost.devices.dry_run import report
from devhost.hostfs.files import HostFiles
from tests.support.hardware import HostTree
from tests.support.root import needs_root
from tests.support.screen import read

TREES: Final = sorted(Path(__file__).with_name("trees").glob("*.tree"))
# Where nothing is for containers, or nothing without a flag.
EMPTY: Final = {"can", "nvme", "sriov", "fpga-dfl", "fpga-xdma", "serial-card", "spi-i2c", "tpm", "yubikey", "coral-usb", "printer", "rtl-sdr", "dvb-tuner", "lte-modem"}  # fmt: skip

pytestmark = needs_root


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path / "host")


def commented_in(text: str) -> str:
    """Return a file with the resources that are commented out."""
    empty = "resources: []  # remove the brackets when there is an entry\n"
    lines, in_resource = list[str](), False
    for line in text.replace(empty, "resources:\n").splitlines():
        in_resource = line.startswith("  # ") and (in_resource or line[4:].startswith("- name:"))
        lines.append(f"  {line[4:]}" if in_resource else line)
    return "\n".join(lines)


@pytest.mark.parametrize("path", TREES, ids=lambda path: path.stem)
def test_init_writes_what_is_offered_and_comments_out_the_rest(path: Path, tree: HostTree) -> None:
    tree.hardware(path.read_text())
    result = CliRunner().invoke(main, ["init", "--root", str(tree.root)])
    assert result.exit_code == 0, result.output
    text = result.stdout
    config = loads(text, policy=Policy(enforced=True)).require()
    assert bool(config.resources) == (path.stem not in EMPTY)
    assert text.count("# Not offered: ") == text.count("  # - name: ") or "/dev/kvm" in text
    whole = loads(commented_in(text)).require()
    nodes: list[str] = []
    for one in report(whole, HostFiles(str(tree.root)), Policy(enforced=True), ""):
        healthy = [device for device in one.snapshot.devices.values() if device.healthy]
        is_stable = "only a name that the kernel counts" not in text
        assert bool(healthy) == (one.resource in config.resources) or not is_stable
        nodes += [node.variables["name"] for device in healthy for node in device.nodes]
    assert len(nodes) == len(set(nodes))
    # No adapter, camera, sound card or GPU is forgotten.
    for line in map(str.split, path.read_text().splitlines()):
        if line[0] in ("tty", "video4linux", "sound", "gpio", "apex") and ":" in line[-1]:
            assert line[1] in nodes or path.stem in EMPTY, line
        if line[0] == "drm" and line[1].startswith("render"):
            assert line[1] in nodes


def test_init_on_a_terminal_asks_for_each_device(tree: HostTree, tmp_path: Path) -> None:
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
