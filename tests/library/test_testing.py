"""devhost.testing does what docs/testing.md says, and its example runs as it is."""

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from devhost import DevicePlugin
from devhost.backends.deviceplugin.plugin_sockets import path_length_problem
from devhost.errors import ConfigError
from devhost.hostfs.files import HostFiles
from devhost.model.device_node import FileKind
from devhost.testing import (
    HostTree,
    StandInKubelet,
    serving,
    short_directory,
)
from tests.support.command import called

pytest_plugins = ["devhost.testing.fixtures"]

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLE: Final = ROOT / "config" / "examples" / "pytest"

COLA: Final = "example.com/cola"
COLAS: Final = """
version: v1
resources:
  - name: example.com/cola
    sources: [directory: /etc/colas]
    allocate:
      env:
        COLAS: ${id}
        NODE: ${nodeName}
"""
PLANNED: Final = """
version: v1
resources:
  - name: example.com/serial
    sources: [usb: {device: 0403:6001, serial: A1, port: "*0:1.4", node: tty}]
  - name: example.com/gpu
    sources: [pci: {driver: i915, node: drm/renderD*}]
"""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_tree_files_have_their_text_and_mode(devhost_tree: HostTree, umask: None) -> None:
    tree = devhost_tree
    tree.file("/etc/colas/coke")
    tree.file("/etc/colas/pepsi", "sweet", 0o600)
    coke, pepsi = tree.root / "etc/colas/coke", tree.root / "etc/colas/pepsi"
    assert (coke.read_text(), mode_of(coke)) == ("", 0o644)
    assert (pepsi.read_text(), mode_of(pepsi)) == ("sweet", 0o600)
    assert tree.at("/etc/colas/pepsi") == pepsi


@pytest.mark.parametrize("path", ["", "/", "etc/colas", "/etc/../colas", "/.."])
def test_tree_refuses_paths_that_are_not_absolute(devhost_tree: HostTree, path: str) -> None:
    tree = devhost_tree
    methods = (tree.at, tree.file, tree.directory, tree.char, tree.remove)
    for make in (*methods, lambda path: tree.link(path, "x")):
        with pytest.raises(ValueError, match="a host path must be absolute"):
            make(path)


def test_tree_at_the_machines_own_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").symlink_to("/")
    for root in (Path("/"), tmp_path / "root"):
        with pytest.raises(ValueError, match="the machine's own files"):
            HostTree(root)


def test_tree_links_lead_nowhere_out_of_it(devhost_tree: HostTree, tmp_path: Path) -> None:
    tree, outside = devhost_tree, tmp_path / "outside"
    outside.mkdir()
    tree.link("/etc/colas", str(outside))
    tree.file("/etc/colas/coke", "mine")
    tree.link("/etc/pepsi", f"{outside}/pepsi")
    tree.file("/etc/pepsi", "mine too")
    tree.directory("/etc/colas/crate")
    assert not list(outside.iterdir())
    assert Path(f"{tree.root}{outside}/coke").read_text() == "mine"
    assert Path(f"{tree.root}{outside}/pepsi").read_text() == "mine too"
    assert Path(f"{tree.root}{outside}/crate").is_dir()
    assert tree.at("/etc/pepsi").is_symlink()


@pytest.fixture(params=["root", "user"])
def any_user(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test as root, and as a user who may not create device nodes."""

    def refuse(path: Path, mode: int, device: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    if request.param == "user":
        monkeypatch.setattr(os, "mknod", refuse)


def test_tree_nodes_have_their_kind_number_and_mode(
    devhost_tree: HostTree, umask: None, any_user: None
) -> None:
    tree = devhost_tree
    tree.char("/dev/null")
    tree.char("/dev/ttyUSB0", 188, 7, 0o620)
    tree.block("/dev/sdz", 240, 16)
    files = HostFiles(str(tree.root))
    states = [files.stat(f"/dev/{name}") for name in ("null", "ttyUSB0", "sdz")]
    assert [(state.kind, state.number, state.mode) for state in states if state] == [
        (FileKind.CHAR, (1, 3), 0o666),
        (FileKind.CHAR, (188, 7), 0o620),
        (FileKind.BLOCK, (240, 16), 0o660),
    ]
    with pytest.raises(FileExistsError):
        tree.char("/dev/null")
    tree.remove("/dev/null")
    assert not tree.at("/dev/null").exists()


def test_devices_of_a_tree_are_found_by_what_the_kernel_says(
    devhost_tree: HostTree, any_user: None, tmp_path: Path
) -> None:
    tree, file = devhost_tree, tmp_path / "c.yaml"
    hub = tree.usb("2-1", "05e3:0608", bDeviceClass="09")
    for port in (2, 3):
        tree.usb(f"2-1.{port}", "0403:6001", hub)
    tree.remove("/dev/bus/usb/002/003")  # a number that is not used again
    tree.usb("2-1.4", "0403:6001", hub, serial="A1", driver="ftdi_sio", nodes=["tty/ttyUSB0"])
    nodes = ["drm/dri/card0", "drm/dri/renderD128"]
    tree.pci("0000:00:02.0", "8086:9bc8", driver="i915", nodes=nodes, numa_node="1")
    file.write_text(PLANNED)
    planned = json.loads(called("plan", file, "--root", tree.root, "-o", "json").stdout)
    devices = [device for resource in planned["resources"] for device in resource["devices"]]
    assert [(device["reason"], device["paths"], device["numaNodes"]) for device in devices] == [
        (None, ["/dev/ttyUSB0"], []),
        (None, ["/dev/dri/renderD128"], [1]),
    ]


async def test_short_directory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with short_directory() as place:
        kubelet = StandInKubelet(place / "plugins")
        await kubelet.start()
        assert path_length_problem(kubelet.plugin_dir) is None
        await kubelet.stop()
    assert not place.exists()


async def test_serving_in_a_directory_too_deep_for_sockets_is_refused(tmp_path: Path) -> None:
    kubelet = StandInKubelet(tmp_path / ("x" * 60))
    with pytest.raises(ValueError, match="too long"):
        async with serving(COLAS, kubelet=kubelet):
            pass


async def test_serving_a_file_before_kubelet_works(devhost_tree: HostTree, tmp_path: Path) -> None:
    (tmp_path / "colas.yaml").write_text(COLAS, encoding="utf-8")
    devhost_tree.file("/etc/colas/coke")
    with short_directory() as place:
        kubelet = StandInKubelet(place / "plugins")
        async with serving(tmp_path / "colas.yaml", kubelet=kubelet, root=str(devhost_tree.root)):
            await kubelet.start()
            await kubelet.wait(COLA, 1, 1)
        await kubelet.stop()


class Tea(DevicePlugin):
    """Two kinds of tea, until it is stopped."""

    stopped = False

    def devices(self) -> list[str]:
        return ["green", "black"]

    def destroy(self) -> None:
        self.stopped = True


async def test_serve_code_and_yaml(devhost_kubelet: StandInKubelet, devhost_tree: HostTree) -> None:
    kubelet, tree = devhost_kubelet, devhost_tree
    tree.file("/etc/colas/coke")
    tea, mate = Tea("example.com/tea"), Tea("example.com/mate", replicas=2)
    async with serving(tea, COLAS, mate, kubelet=kubelet, root=tree.root) as served:
        for name, count in ((COLA, 1), (tea.name, 2), (mate.name, 4)):
            await kubelet.wait(name, count, count)
        assert served.report(tea.name)["capacity"] == 2
    assert (tea.stopped, mate.stopped) == (True, True)


async def test_report_has_skipped(devhost_kubelet: StandInKubelet, devhost_tree: HostTree) -> None:
    kubelet, tree = devhost_kubelet, devhost_tree
    tree.file("/etc/colas/coke")
    tree.directory("/etc/colas/crate")
    async with serving(COLAS, kubelet=kubelet, root=tree.root) as served:
        await kubelet.wait(COLA, 1, 1)
        tree.remove("/etc/colas/coke")
        await kubelet.wait(COLA, 1, 0)
        shown = served.report(COLA)
        assert (shown["capacity"], shown["allocatable"], shown["error"]) == (1, 0, None)
        assert shown["devices"][0]["reason"]
        crate = {"candidate": "/etc/colas/crate", "reason": "a directory, not file"}
        assert shown["skipped"] == [crate]
        with pytest.raises(KeyError, match=r"example\.com/tea"):
            served.report("example.com/tea")


async def test_serving_allows_what_the_arguments_say(
    devhost_kubelet: StandInKubelet, devhost_tree: HostTree, tmp_path: Path
) -> None:
    """A step runs once for each pod, as with `devhost run`."""
    kubelet, log = devhost_kubelet, tmp_path / "log"
    config = COLAS + f"    preStart: [run: [sh, -c, 'echo ${{id}} >> {log}']]\n"
    devhost_tree.file("/etc/colas/coke")
    async with serving(config, kubelet=kubelet, root=devhost_tree.root) as served:
        await kubelet.wait(COLA, 1, 0)
        assert "--allow-exec" in served.report(COLA)["devices"][0]["reason"]
    async with serving(config, kubelet=kubelet, root=devhost_tree.root, allow_exec=True):
        await kubelet.wait(COLA, 1, 1)
        await kubelet.admit("pod", {"app": {COLA: 1}})
        await kubelet.start_container("pod", "app")
    assert log.read_text() == "coke\n"


@pytest.mark.parametrize(
    ("served", "error"),
    [
        ([Path("/nowhere/colas.yaml")], ConfigError),
        (["version: v2\nresources: []\n"], ConfigError),
        ([COLAS, COLAS], TypeError),
    ],
)
async def test_serving_of_no_valid_configuration_is_an_error(
    devhost_kubelet: StandInKubelet, served: list[Path | str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        async with serving(*served, kubelet=devhost_kubelet):
            pass


async def test_device_gone_leaves(devhost_kubelet: StandInKubelet, devhost_tree: HostTree) -> None:
    kubelet, tree = devhost_kubelet, devhost_tree
    tree.file("/etc/colas/coke")
    config = COLAS + "    removeMissingAfter: 0s\n"
    async with serving(config, kubelet=kubelet, root=tree.root):
        await kubelet.wait(COLA, 1, 1)
        await kubelet.admit("pod", {"app": {COLA: 1}})
        tree.file("/etc/colas/pepsi")
        await kubelet.wait(COLA, 2, 2)
        tree.remove("/etc/colas")
        await kubelet.wait(COLA, 1, 0)
        assert kubelet.devices(COLA) == {"coke": "Unhealthy"}
        await kubelet.free("pod")
        await kubelet.wait(COLA, 0, 0)
    assert kubelet.panics == []


@pytest.mark.slow
def test_example_of_pytest_runs_as_it_is(tmp_path: Path) -> None:
    """The example runs in an empty directory, with nothing of ours but the package."""
    place = shutil.copytree(EXAMPLE, tmp_path / "example")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "-rs"],
        check=False,
        capture_output=True,
        text=True,
        cwd=place,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    texts = [file.read_text(encoding="utf-8") for file in place.glob("test_*.py")]
    tests = sum(len(re.findall(r"^async def test_", text, re.MULTILINE)) for text in texts)
    assert tests > 2
    assert f"{tests} passed" in done.stdout
