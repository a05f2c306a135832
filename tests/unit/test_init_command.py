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
# Where nothing is for containers, or only what a person has to name.
EMPTY: Final = {"can", "display", "nvme", "sriov", "fpga-dfl", "fpga-xdma", "spi-i2c", "tpm"}

pytestmark = needs_root


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path / "host")


def commented_in(text: str) -> str:
    """Return a file with the resources that are commented out."""
    empty = "resources: []  # remove the brackets when there is an entry\n"
    lines, in_resource = list[str](), False
    if "  # - name:" in text:
        text = text.replace(empty, "resources:\n")
    for line in text.splitlines():
        in_resource = line.startswith("  # ") and (in_resource or line[4:].startswith("- name:"))
        lines.append(f"  {line[4:]}" if in_resource else line)
    return "\n".join(lines)


@pytest.mark.parametrize("path", TREES, ids=lambda path: path.stem)
def test_init_writes_what_is_offered_and_comments_out_the_rest(path: Path, tree: HostTree) -> None:
    tree.hardware(path.read_text())
    result = CliRunner().invoke(main, ["init", "--root", str(tree.root)])
    assert result.exit_code == 0, result.output
    text = result.stdout
    resources = loads(text).require().resources
    assert bool(resources) == (path.stem not in EMPTY), text
    whole = loads(commented_in(text)).require()
    nodes: list[str] = []
    for resource in report(whole, HostFiles(str(tree.root)), Policy(trusted=True), ""):
        healthy = [device for device in resource.snapshot.devices.values() if device.healthy]
        assert healthy, resource.resource.name
        nodes += [node.variables["name"] for device in healthy for node in device.nodes]
    assert len(nodes) == len(set(nodes))
    # No adapter, camera, sound card or GPU is forgotten; of a camera, the node with the picture.
    for line in map(str.split, path.read_text().splitlines()):
        if line[0] in ("tty", "apex", "spidev") and ":" in line[-1]:
            assert line[1] in nodes, line
        if line[0] == "sound" and line[1].startswith(("control", "pcm")):
            assert line[1] in nodes, line
        if line[0] == "video4linux":
            is_picture = "index=0" in line or path.stem == "camera-csi"
            assert (line[1] in nodes) == is_picture, line
        if line[0] == "drm" and line[1].startswith("render"):
            assert line[1] in nodes


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        (b"n\n\nq\n", ["kvm"]),  # Enter is yes
        (b"no\nall\n", ["kvm", "fuse"]),
        (b"?\nyes\nquit\n", ["ft232r-usb-uart"]),
    ],
)
def test_init_asks_for_each(tree: HostTree, tmp_path: Path, typed: bytes, taken: list[str]) -> None:
    tree.hardware((TREES[0].parent / "ftdi.tree").read_text())
    tree.char("/dev/kvm", 10, 232)
    tree.char("/dev/fuse", 10, 229)
    devhost = str(Path(sys.executable).with_name("devhost"))
    target = str(tmp_path / "devhost.yaml")
    process, terminal = pty.fork()
    if process == 0:
        os.execv(devhost, [devhost, "init", "--root", str(tree.root), "-o", target])
    os.write(terminal, typed)
    shown = read(terminal)
    os.waitpid(process, 0)
    assert b"Now /dev/ttyUSB0.\r\nInclude it? [yes,no,all,quit]" in shown
    assert (b"'?' is not one of" in shown) == (b"?" in typed)
    resources = loads(Path(target).read_text()).require().resources
    assert [resource.name for resource in resources] == [f"example.com/{name}" for name in taken]
