"""The examples do what their comments say: checked, planned, and live with a real kubelet."""

import asyncio
import contextlib
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from devhost.allocation.policy import Policy
from devhost.cli import main
from devhost.discovery.dry_run import report
from devhost.host.host import Host, Settings
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import load, loads
from devhost.loading.schema import json_schema
from devhost.model.config import Config
from tests.support.examples import ALL_EXAMPLES, EXAMPLES, required
from tests.support.kernel import shows
from tests.support.realkubelet import RealKubelet

# The flags that the examples' comments name.
ALLOWED: Final = Policy(
    enforced=True,
    allow_devices=("/dev/sd[b-z]*", "tpmrm", "/dev/iluvatar*", "/dev/itrctl"),
    allow_cdi=("NVIDIA_VISIBLE_DEVICES",),
)
ALL_ALLOWED: Final = replace(ALLOWED, allow_exec=True)
# What the kernel shows of the devices in these tests, by the beginnings of their names.
SHOWN: Final = {
    "ttyUSB": "tty",
    "ttyACM": "tty",
    "video": "video4linux",
    "media": "media",
    "gpiochip": "gpio",
    "card": "drm",
    "renderD": "drm",
    "controlC": "sound",
    "pcmC": "sound",
    "hwC": "sound",
    "midiC": "sound",
    "tpmrm": "tpmrm",
    "tpm": "tpm",
    "kvm": "misc",
    "tun": "misc",
    "fuse": "misc",
}

COLA: Final = "myway5.com/cola"
GOPHER: Final = "lixueduan.com/gopher"
SUPERDISK: Final = "hy.c/superdisk"
VPCPORT: Final = "netease/vpcport"
GPU: Final = "iluvatar.com/gpu"
NVIDIA: Final = "nvidia.com/gpu"
SERIAL: Final = "example.com/serial"
CAMERA: Final = "example.com/camera"
SOUND: Final = "example.com/sound"
TPM: Final = "example.com/tpm"
SCRATCH: Final = "example.com/scratch-disk"
SHARE: Final = "example.com/render-share"

BY_ID: Final = "/dev/disk/by-id"


class Tree:
    """A host's files, prepared below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._minors = itertools.count()
        root.mkdir()
        self.at("/sys/dev/char/none")  # the machine's own sysfs is not looked at

    def at(self, path: str) -> Path:
        """Where a host path is; its directory is made."""
        here = self.root / path.lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        return here

    def file(self, path: str, text: str = "") -> None:
        self.at(path).write_text(text)

    def char(self, path: str) -> None:
        number = (240, next(self._minors))
        self._node(path, 0o020666, number)
        name = path.rpartition("/")[2]
        subsystem = next((one for start, one in SHOWN.items() if name.startswith(start)), None)
        if subsystem is not None:
            below = {f"1-{number[1]}": "usb"} if subsystem == "tty" else None
            shows(self.root, number, subsystem, name, below=below)

    def block(self, path: str, minor: int) -> None:
        """Make a block device with a number for local use, which no machine has mounted."""
        self._node(path, 0o060660, (240, minor))

    def link(self, path: str, target: str) -> None:
        self.at(path).symlink_to(target)

    def remove(self, path: str) -> None:
        self.at(path).unlink()

    def _node(self, path: str, mode: int, number: tuple[int, int]) -> None:
        try:
            os.mknod(self.at(path), mode, os.makedev(*number))
        except PermissionError:
            pytest.skip("device nodes cannot be made here: run as root")


@pytest.fixture
def tree(directory: Path) -> Tree:
    """A host with nothing on it."""
    return Tree(directory / "host")


@pytest.fixture
async def kubelet(real_binary: Path, directory: Path) -> AsyncIterator[RealKubelet]:
    """A running kubelet, the newest real one."""
    async with RealKubelet(real_binary, directory / "plugins") as running:
        yield running


def example(name: str, policy: Policy | None = None) -> Config:
    return load(str(EXAMPLES / f"{name}.yaml"), policy).require()


def plan(
    name: str, tree: Tree, policy: Policy | None = None, **wanted: str
) -> dict[str, dict[str, Any]]:
    """Tell by resource what this host would advertise, as ``plan -o json`` does.

    ``wanted`` is by the part of a resource's name behind the slash.
    """
    config = example(name)
    wishes = {
        resource.name: wanted[short]
        for resource in config.resources
        if (short := resource.name.rpartition("/")[2]) in wanted
    }
    assert len(wishes) == len(wanted)
    reports = report(config, HostFiles(str(tree.root)), policy or Policy(), "node", wishes)
    return {each.resource.name: each.as_json() for each in reports}


def advertised(
    device_id: str, path: str | None = None, reason: str | None = None
) -> dict[str, Any]:
    return {
        "id": device_id,
        "health": "Unhealthy" if reason else "Healthy",
        "reason": reason,
        "numaNodes": [],
        "paths": [path] if path else [],
    }


def skipped(candidate: str, reason: str) -> dict[str, str]:
    return {"candidate": candidate, "reason": reason}


def node(host_path: str, container_path: str | None = None) -> dict[str, str]:
    return {
        "hostPath": host_path,
        "containerPath": container_path or host_path,
        "permissions": "rw",
    }


def allocation(
    ids: list[str],
    envs: Mapping[str, str] | None = None,
    devices: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    return {
        "deviceIds": ids,
        "envs": dict(envs or {}),
        "mounts": [],
        "devices": devices or [],
        "annotations": {},
        "cdiDevices": [],
        "preStart": [],
        "error": None,
    }


def by_container_path(devices: Any) -> dict[str, tuple[str, str]]:
    """Bring a container's device nodes into an order that does not matter."""
    nodes = {each["containerPath"]: (each["hostPath"], each["permissions"]) for each in devices}
    assert len(nodes) == len(devices)
    return nodes


@contextlib.asynccontextmanager
async def hosted(
    name: str, tree: Tree, kubelet: RealKubelet, policy: Policy | None = None
) -> AsyncIterator[None]:
    """Serve an example to the kubelet."""
    policy = policy or Policy(enforced=True)
    settings = Settings(
        kubelet.plugin_dir,
        "node",
        HostFiles(str(tree.root)),
        policy,
        leave_after=0.3,
        hold_s=0.0,
        cdi_dir=tree.root.parent / "cdi",
    )
    task = asyncio.create_task(Host(example(name, policy), settings).run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# ── every example ──────────────────────────────────────────────────────────────────────

every_example = pytest.mark.parametrize(
    "file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem
)


def test_there_is_a_test_of_each_example() -> None:
    tested = {
        name.removeprefix("test_plan_") for name in globals() if name.startswith("test_plan_")
    }
    assert {file.stem.replace("-", "_") for file in EXAMPLES.glob("*.yaml")} == tested


@every_example
def test_is_valid(file: Path) -> None:
    """Without a flag no example but those that say so needs one; with it none is doubtful."""
    loaded = load(str(file))
    messages = [(problem.severity, problem.message) for problem in loaded.problems]
    paths = ("warning", "block devices need --allow-device 'GLOB', such as '/dev/sd[b-z]'")
    commands = ("warning", "running a command needs --allow-exec")
    name = "NVIDIA_VISIBLE_DEVICES"
    runtime = f"by {name} a container runtime adds devices: it needs --allow-cdi '{name}'"
    needed = {
        "superdisk": [paths],
        "formatted-disk": [paths, commands],
        "nvidia": [("warning", runtime)],
    }
    assert messages == needed.get(file.stem, [])
    assert loaded.config is not None
    assert load(str(file), ALL_ALLOWED).problems == ()


@pytest.mark.parametrize("file", ALL_EXAMPLES, ids=lambda file: file.stem)
def test_is_valid_with_what_it_requires(file: Path) -> None:
    command = ["validate", "--enforce", "--strict", str(file), *required(file)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("file", ALL_EXAMPLES, ids=lambda file: file.stem)
def test_is_valid_by_the_schema(file: Path) -> None:
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(json_schema()).validate(data)


@every_example
def test_tells_its_story(file: Path) -> None:
    """The first line helps the editor, a comment the reader; it names what a pod asks for."""
    schema, *lines = file.read_text(encoding="utf-8").splitlines()
    assert schema == "# yaml-language-server: $schema=../schema.json"
    story = " ".join(lines[: lines.index("version: v1")])
    config = load(str(file)).require()
    assert "A pod requests:" in story
    assert "The container gets:" in story
    assert any(resource.name in story for resource in config.resources)


@every_example
def test_an_empty_host_is_no_failure(file: Path, tree: Tree) -> None:
    """What is missing is a state: served with no devices, and the plan says what is missing."""
    for name, shown in plan(file.stem, tree).items():
        tokens = name == VPCPORT
        assert (shown["capacity"], shown["error"]) == (8 if tokens else 0, None)
        assert shown["skipped"] == []
        assert bool(shown["warnings"]) is not tokens


# ── cola ───────────────────────────────────────────────────────────────────────────────


def test_plan_cola(tree: Tree) -> None:
    for name in ("c10", "c9", "pepsi", ".hidden"):
        tree.file(f"/etc/colas/{name}")
    tree.file("/etc/colas/crate/not-seen")
    tree.link("/etc/colas/gone", "nowhere")
    shown = plan("cola", tree, cola="3")[COLA]
    assert shown["devices"] == [
        advertised("c9", "/etc/colas/c9"),
        advertised("c10", "/etc/colas/c10"),
        advertised("pepsi", "/etc/colas/pepsi"),
    ]
    assert shown["skipped"] == [
        skipped("/etc/colas/crate", "a directory, not file"),
        skipped("/etc/colas/gone", "dangling link"),
    ]
    assert shown["warnings"] == []
    assert shown["allocation"] == allocation(
        ["c9", "c10", "pepsi"], {"COLA_DEVICES": "c9,c10,pepsi"}
    )


async def test_live_cola(tree: Tree, kubelet: RealKubelet) -> None:
    async with hosted("cola", tree, kubelet):
        await kubelet.wait(COLA, 0, 0)
        tree.file("/etc/colas/coke")
        tree.file("/etc/colas/pepsi")
        await kubelet.wait(COLA, 2, 2)
        both = (await kubelet.admit("thirsty", {"app": {COLA: 2}}))["app"]
        assert both["envs"] == {"COLA_DEVICES": "coke,pepsi"}
        assert (both["devices"], both["mounts"]) == ([], [])
        await kubelet.free("thirsty")
        tree.remove("/etc/colas/coke")
        await kubelet.wait(COLA, 2, 1)
        one = (await kubelet.admit("modest", {"app": {COLA: 1}}))["app"]
        assert one["envs"] == {"COLA_DEVICES": "pepsi"}


# ── gopher ─────────────────────────────────────────────────────────────────────────────


def test_plan_gopher(tree: Tree) -> None:
    for name in ("g1", "team/g10", "team/g2", "team/deep/g3", "team/.hidden", ".git/config"):
        tree.file(f"/etc/gophers/{name}")
    shown = plan("gopher", tree, gopher="4")[GOPHER]
    ids = ["g1", "team/deep/g3", "team/g2", "team/g10"]
    assert shown["devices"] == [advertised(name, f"/etc/gophers/{name}") for name in ids]
    assert shown["skipped"] == [
        skipped("/etc/gophers/team", "a directory, not file"),
        skipped("/etc/gophers/team/deep", "a directory, not file"),
    ]
    assert shown["warnings"] == []
    assert shown["allocation"] == allocation(ids, {"Gopher": "g1,team/deep/g3,team/g2,team/g10"})


def test_gophers_may_be_known_by_their_own_names(tree: Tree) -> None:
    """As the example says: by a line that is commented out."""
    for name in ("g1", "team/g2", "other/g2"):
        tree.file(f"/etc/gophers/{name}")
    text = (EXAMPLES / "gopher.yaml").read_text(encoding="utf-8")
    config = loads(text.replace("# id: ${name}", "id: ${name}")).require()
    (shown,) = report(config, HostFiles(str(tree.root)), Policy(), "node", {GOPHER: "2"})
    assert list(shown.snapshot.devices) == ["g1", "g2"]
    assert shown.more["allocation"]["envs"] == {"Gopher": "g1,g2"}
    reasons = [one.reason for one in shown.snapshot.skipped]
    assert "its ID g2 is that of /etc/gophers/other/g2" in reasons


async def test_live_gopher(tree: Tree, kubelet: RealKubelet) -> None:
    tree.file("/etc/gophers/g1")
    async with hosted("gopher", tree, kubelet):
        await kubelet.wait(GOPHER, 1, 1)
        tree.file("/etc/gophers/team/deep/g2")  # in directories that are new, too
        await kubelet.wait(GOPHER, 2, 2)
        tree.file("/etc/gophers/team/deep/g3")
        await kubelet.wait(GOPHER, 3, 3)
        answer = (await kubelet.admit("all", {"app": {GOPHER: 3}}))["app"]
        assert answer["envs"] == {"Gopher": "g1,team/deep/g2,team/deep/g3"}
        assert answer["devices"] == []
        await kubelet.free("all")
        shutil.rmtree(tree.at("/etc/gophers/team"))
        await kubelet.wait(GOPHER, 3, 1)
        answer = (await kubelet.admit("left", {"app": {GOPHER: 1}}))["app"]
        assert answer["envs"] == {"Gopher": "g1"}


# ── superdisk ──────────────────────────────────────────────────────────────────────────


def plug_disk(tree: Tree, name: str, minor: int, *links: str, partition: bool = False) -> None:
    """Make a disk's nodes, then its links, as udev does; and a partition if asked for."""
    sysfs = f"/sys/dev/block/240:{minor}"
    tree.file(f"{sysfs}/dev", f"240:{minor}\n")
    tree.block(f"/dev/{name}", minor)
    if partition:
        tree.file(f"{sysfs}/{name}1/partition", "1\n")
        tree.file(f"{sysfs}/{name}1/dev", f"240:{minor + 1}\n")
        tree.block(f"/dev/{name}1", minor + 1)
    for link in links:
        tree.link(f"{BY_ID}/{link}", f"../../{name}")
        if partition:
            tree.link(f"{BY_ID}/{link}-part1", f"../../{name}1")


def disks(tree: Tree) -> None:
    """The machine's own disk and two others; the first of these has two names."""
    plug_disk(tree, "sdza", 0, "ata-SYSTEM", partition=True)
    plug_disk(tree, "sdzb", 16, "ata-DATA_1", "wwn-0x1", partition=True)
    plug_disk(tree, "sdzc", 32, "scsi-DATA_2")
    tree.file("/proc/1/mountinfo", "22 1 240:1 / / rw,relatime shared:1 - ext4 /dev/sdza1 rw\n")


def test_plan_superdisk(tree: Tree) -> None:
    disks(tree)
    plug_disk(tree, "dm-0", 48, "dm-name-vg-lv")
    tree.char("/dev/st0")
    tree.link(f"{BY_ID}/scsi-TAPE", "../../st0")
    tree.link(f"{BY_ID}/usb-GONE", "../../sdzx")
    shown = plan("superdisk", tree, ALLOWED, superdisk="2", vpcport="3")
    disk, port = shown[SUPERDISK], shown[VPCPORT]
    assert disk["devices"] == [
        advertised("ata-DATA_1", f"{BY_ID}/ata-DATA_1"),
        advertised("scsi-DATA_2", f"{BY_ID}/scsi-DATA_2"),
    ]
    in_use = "in use: its partition sdza1 is mounted or swapped on"
    assert disk["skipped"] == [
        skipped(f"{BY_ID}/ata-DATA_1-part1", "excluded"),
        skipped(f"{BY_ID}/ata-SYSTEM", in_use),
        skipped(f"{BY_ID}/ata-SYSTEM-part1", "excluded"),
        skipped(f"{BY_ID}/dm-name-vg-lv", "excluded"),
        skipped(f"{BY_ID}/scsi-TAPE", "a char, not block"),
        skipped(f"{BY_ID}/usb-GONE", "dangling link"),
        skipped(f"{BY_ID}/wwn-0x1-part1", "excluded"),
    ]
    assert disk["warnings"] == []
    assert disk["allocation"] == allocation(
        ["ata-DATA_1", "scsi-DATA_2"],
        {"SUPERDISKS": f"{BY_ID}/ata-DATA_1,{BY_ID}/scsi-DATA_2"},
        [node(f"{BY_ID}/ata-DATA_1"), node(f"{BY_ID}/scsi-DATA_2")],
    )
    assert port["devices"] == [advertised(str(number)) for number in range(8)]
    assert port["skipped"] == []
    assert port["allocation"] == allocation(["0", "1", "2"], {"VPC_PORTS": "0,1,2"})


def test_disks_need_a_flag(tree: Tree) -> None:
    """`run` without the flag refuses the disks; `plan` says which flag it is."""
    disks(tree)
    assert load(str(EXAMPLES / "superdisk.yaml"), Policy(enforced=True)).config is None
    assert plan("superdisk", tree)[SUPERDISK]["warnings"] == [
        "/dev/sdzb is of class block: it needs --allow-device '/dev/sdzb'",
        "/dev/sdzc is of class block: it needs --allow-device '/dev/sdzc'",
    ]


async def test_live_superdisk(tree: Tree, kubelet: RealKubelet) -> None:
    disks(tree)
    async with hosted("superdisk", tree, kubelet, ALLOWED):
        await kubelet.wait(SUPERDISK, 2, 2)
        await kubelet.wait(VPCPORT, 8, 8)
        plug_disk(tree, "sdzd", 64, "usb-DATA_3")
        await kubelet.wait(SUPERDISK, 3, 3)
        tree.remove(f"{BY_ID}/scsi-DATA_2")
        tree.remove("/dev/sdzc")
        await kubelet.wait(SUPERDISK, 3, 2)
        answer = (await kubelet.admit("pod", {"app": {SUPERDISK: 2, VPCPORT: 8}}))["app"]
        assert answer["envs"] == {
            "SUPERDISKS": f"{BY_ID}/ata-DATA_1,{BY_ID}/usb-DATA_3",
            "VPC_PORTS": "0,1,2,3,4,5,6,7",
        }
        assert by_container_path(answer["devices"]) == {
            f"{BY_ID}/ata-DATA_1": (f"{BY_ID}/ata-DATA_1", "rw"),
            f"{BY_ID}/usb-DATA_3": (f"{BY_ID}/usb-DATA_3", "rw"),
        }
        assert answer["mounts"] == []


# ── accelerator ────────────────────────────────────────────────────────────────────────


def test_plan_accelerator(tree: Tree) -> None:
    """The control node is one for all cards; not every machine has it."""
    for name in ("iluvatar3", "iluvatar10", "null"):
        tree.char(f"/dev/{name}")
    tree.file("/dev/iluvatar4")
    cards = {
        "/dev/iluvatar0": ("/dev/iluvatar3", "rw"),
        "/dev/iluvatar1": ("/dev/iluvatar10", "rw"),
    }
    for control in ({}, {"/dev/itrctl": ("/dev/itrctl", "rw")}):
        for path in control:
            tree.char(path)
        shown = plan("accelerator", tree, ALLOWED, gpu="2")[GPU]
        assert shown["devices"] == [
            advertised("iluvatar3", "/dev/iluvatar3"),
            advertised("iluvatar10", "/dev/iluvatar10"),
        ]
        assert shown["skipped"] == [skipped("/dev/iluvatar4", "a file, not char or block")]
        assert shown["warnings"] == []
        assert {**shown["allocation"], "devices": None} == {
            **allocation(
                ["iluvatar3", "iluvatar10"], {"ILUVATAR_DEVICES": "/dev/iluvatar0,/dev/iluvatar1"}
            ),
            "devices": None,
        }
        assert by_container_path(shown["allocation"]["devices"]) == cards | control


async def test_live_accelerator(tree: Tree, kubelet: RealKubelet) -> None:
    tree.char("/dev/iluvatar3")
    async with hosted("accelerator", tree, kubelet, ALLOWED):
        await kubelet.wait(GPU, 1, 1)
        tree.char("/dev/itrctl")
        tree.char("/dev/iluvatar7")
        tree.char("/dev/iluvatar10")
        await kubelet.wait(GPU, 3, 3)
        tree.remove("/dev/iluvatar7")
        await kubelet.wait(GPU, 3, 2)
        answer = (await kubelet.admit("pod", {"app": {GPU: 2}}))["app"]
        assert answer["envs"] == {"ILUVATAR_DEVICES": "/dev/iluvatar0,/dev/iluvatar1"}
        assert by_container_path(answer["devices"]) == {
            "/dev/iluvatar0": ("/dev/iluvatar3", "rw"),
            "/dev/iluvatar1": ("/dev/iluvatar10", "rw"),
            "/dev/itrctl": ("/dev/itrctl", "rw"),
        }


# ── nvidia ─────────────────────────────────────────────────────────────────────────────


def test_plan_nvidia(tree: Tree) -> None:
    """One variable with the list, and no nodes: not those of the GPUs, nor any other."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm"):
        tree.char(f"/dev/{name}")
    tree.char("/dev/nvidia-caps/nvidia-cap1")
    shown = plan("nvidia", tree, ALLOWED, gpu="nvidia0,nvidia2,nvidia10")[NVIDIA]
    assert [one["id"] for one in shown["devices"]] == ["nvidia0", "nvidia1", "nvidia2", "nvidia10"]
    assert (shown["skipped"], shown["warnings"]) == ([], [])
    assert shown["allocation"] == allocation(
        ["nvidia0", "nvidia2", "nvidia10"], {"NVIDIA_VISIBLE_DEVICES": "0,2,10"}
    )


async def test_live_nvidia(tree: Tree, kubelet: RealKubelet) -> None:
    for number in range(3):
        tree.char(f"/dev/nvidia{number}")
    async with hosted("nvidia", tree, kubelet, ALLOWED):
        await kubelet.wait(NVIDIA, 3, 3)
        tree.remove("/dev/nvidia1")
        await kubelet.wait(NVIDIA, 3, 2)
        answer = (await kubelet.admit("pod", {"app": {NVIDIA: 2}}))["app"]
        assert answer["envs"] == {"NVIDIA_VISIBLE_DEVICES": "0,2"}
        assert answer["devices"] == []


# ── serial, video ──────────────────────────────────────────────────────────────────────


def plug_serial(tree: Tree, name: str, tty: str) -> str:
    """Make an adapter's node, then its link, as udev does; tell the link."""
    tree.char(f"/dev/{tty}")
    link = f"/dev/serial/by-id/{name}"
    tree.link(link, f"../../{tty}")
    return link


def test_plan_serial(tree: Tree) -> None:
    second = plug_serial(tree, "usb-FTDI_FT232R_A2-if00-port0", "ttyUSB0")
    first = plug_serial(tree, "usb-FTDI_FT232R_A1-if00-port0", "ttyUSB1")
    tree.link("/dev/serial/by-id/usb-gone", "../../ttyUSB9")
    shown = plan("serial", tree, serial="2")[SERIAL]
    ids = ["usb-FTDI_FT232R_A1-if00-port0", "usb-FTDI_FT232R_A2-if00-port0"]
    assert shown["devices"] == [advertised(ids[0], first), advertised(ids[1], second)]
    assert shown["skipped"] == [skipped("/dev/serial/by-id/usb-gone", "dangling link")]
    assert shown["warnings"] == []
    assert shown["allocation"] == allocation(
        ids,
        {"SERIAL_PORTS": "/dev/serial0,/dev/serial1"},
        [node(first, "/dev/serial0"), node(second, "/dev/serial1")],
    )


async def test_live_serial(tree: Tree, kubelet: RealKubelet) -> None:
    """An adapter that comes back as another tty is the same device."""
    async with hosted("serial", tree, kubelet):
        await kubelet.wait(SERIAL, 0, 0)
        link = plug_serial(tree, "usb-FTDI_A1", "ttyUSB0")
        await kubelet.wait(SERIAL, 1, 1)
        tree.remove(link)
        tree.remove("/dev/ttyUSB0")
        await kubelet.wait(SERIAL, 1, 0)
        plug_serial(tree, "usb-FTDI_A1", "ttyUSB5")
        await kubelet.wait(SERIAL, 1, 1)
        answer = (await kubelet.admit("pod", {"app": {SERIAL: 1}}))["app"]
        assert answer["deviceIds"] == {SERIAL: ["usb-FTDI_A1"]}
        assert answer["envs"] == {"SERIAL_PORTS": "/dev/serial0"}
        assert by_container_path(answer["devices"]) == {"/dev/serial0": (link, "rw")}


def test_plan_video(tree: Tree) -> None:
    base = "/dev/v4l/by-id"
    for number, camera in enumerate(("usb-Cam_B", "usb-Cam_A")):
        for index in (0, 1):
            tree.char(f"/dev/video{2 * number + index}")
            tree.link(f"{base}/{camera}-video-index{index}", f"../../video{2 * number + index}")
    shown = plan("video", tree, camera="2")[CAMERA]
    ids = ["usb-Cam_A-video-index0", "usb-Cam_B-video-index0"]
    assert shown["devices"] == [advertised(name, f"{base}/{name}") for name in ids]
    assert shown["skipped"] == []
    assert shown["warnings"] == []
    assert shown["allocation"] == allocation(
        ids,
        {"CAMERAS": "/dev/video0,/dev/video1"},
        [
            node(f"{base}/{ids[0]}", "/dev/video0"),
            node(f"{base}/{ids[1]}", "/dev/video1"),
        ],
    )


# ── nodes that a machine has ───────────────────────────────────────────────────────────


def test_plan_node_devices(tree: Tree) -> None:
    """Shares of one node are one node in the container; what is not there is not offered."""
    for name in ("net/tun", "kvm", "null", "vhost-net"):
        tree.char(f"/dev/{name}")
    shown = plan("node-devices", tree, tun="2", kvm="1")
    tun, kvm, fuse = (shown[f"example.com/{name}"] for name in ("tun", "kvm", "fuse"))
    assert [each["capacity"] for each in (tun, kvm, fuse)] == [110, 110, 0]
    assert [each["allocatable"] for each in (tun, kvm, fuse)] == [110, 110, 0]
    assert tun["devices"] == [advertised("net/tun", "/dev/net/tun")]
    assert kvm["devices"] == [advertised("kvm", "/dev/kvm")]
    assert fuse["devices"] == []
    for each in (tun, kvm):
        assert (each["skipped"], each["warnings"]) == ([], [])
    assert fuse["skipped"] == []
    assert fuse["warnings"] == [
        "none of 5 is dev fuse: /dev/kvm, /dev/net, /dev/net/tun, /dev/null, /dev/vhost-net"
    ]
    assert tun["allocation"] == allocation(
        ["net/tun::0", "net/tun::1"], devices=[node("/dev/net/tun")]
    )
    assert kvm["allocation"] == allocation(["kvm::0"], devices=[node("/dev/kvm")])


def test_plan_gpio_and_render(tree: Tree) -> None:
    base = "/dev/dri/by-path"
    for number in (0, 1):
        tree.char(f"/dev/gpiochip{number}")
    for number, slot in enumerate(("pci-0000:03:00.0", "pci-0000:00:02.0")):
        tree.char(f"/dev/dri/card{number}")
        tree.char(f"/dev/dri/renderD{128 + number}")
        tree.link(f"{base}/{slot}-card", f"../card{number}")
        tree.link(f"{base}/{slot}-render", f"../renderD{128 + number}")
    shown = plan("gpio-and-render", tree, gpio="2", render="2")
    gpio, render = shown["example.com/gpio"], shown["example.com/render"]
    for each in (gpio, render):
        assert (each["skipped"], each["warnings"]) == ([], [])
    assert gpio["devices"] == [
        advertised("gpiochip0", "/dev/gpiochip0"),
        advertised("gpiochip1", "/dev/gpiochip1"),
    ]
    assert gpio["allocation"] == allocation(
        ["gpiochip0", "gpiochip1"],
        {"GPIO_CHIPS": "/dev/gpiochip0,/dev/gpiochip1"},
        [node("/dev/gpiochip0"), node("/dev/gpiochip1")],
    )
    ids = ["pci-0000:00:02.0-render", "pci-0000:03:00.0-render"]
    assert render["devices"] == [advertised(name, f"{base}/{name}") for name in ids]
    assert render["allocation"] == allocation(
        ids,
        {"RENDER_NODES": "/dev/dri/renderD129,/dev/dri/renderD128"},
        [
            node(f"{base}/{ids[0]}", "/dev/dri/renderD129"),
            node(f"{base}/{ids[1]}", "/dev/dri/renderD128"),
        ],
    )


# ── several-nodes ──────────────────────────────────────────────────────────────────────


def multi_node_devices(tree: Tree) -> None:
    for name in ("controlC0", "pcmC0D0p", "pcmC0D0c", "controlC1", "pcmC1D3p", "midiC1D0", "timer"):
        tree.char(f"/dev/snd/{name}")
    for name in ("tpm0", "tpmrm0", "tpm1", "video0", "video2", "media0"):
        tree.char(f"/dev/{name}")
    tree.link("/dev/v4l/by-path/pci-1-usb-0:1:1.0-video-index0", "../../video0")
    tree.link("/dev/v4l/by-path/pci-1-usb-0:2:1.0-video-index0", "../../video2")
    tree.link("/dev/media/by-path/pci-1-usb-0:2:1.0-media", "../../media0")


def test_plan_several_nodes(tree: Tree) -> None:
    multi_node_devices(tree)
    shown = plan("several-nodes", tree, sound="2", tpm="1", camera="2")
    cards = shown[SOUND]
    assert [(one["id"], one["paths"]) for one in cards["devices"]] == [
        ("card0", ["/dev/snd/controlC0", "/dev/snd/pcmC0D0c", "/dev/snd/pcmC0D0p"]),
        ("card1", ["/dev/snd/controlC1", "/dev/snd/pcmC1D3p", "/dev/snd/midiC1D0"]),
    ]
    nodes = [node(path) for one in cards["devices"] for path in one["paths"]]
    assert cards["allocation"] == allocation(
        ["card0", "card1"], {"ALSA_CARDS": "card0,card1"}, nodes
    )
    assert [one["id"] for one in shown[TPM]["devices"]] == ["tpm0"]
    assert shown[TPM]["skipped"] == [
        skipped("/dev/tpm1", "group 'tpm1' is incomplete: no node of sources[1] (manager)")
    ]
    assert shown[TPM]["allocation"] == allocation(["tpm0"], {}, [node("/dev/tpmrm0")])
    first, second = "pci-1-usb-0:1:1.0", "pci-1-usb-0:2:1.0"
    assert shown[CAMERA]["allocation"] == allocation(
        [first, second],
        {"CAMERAS": "/dev/video0,/dev/video1"},
        [
            node(f"/dev/v4l/by-path/{first}-video-index0", "/dev/video0"),
            node(f"/dev/v4l/by-path/{second}-video-index0", "/dev/video1"),
            node(f"/dev/media/by-path/{second}-media", "/dev/media1"),
        ],
    )


async def test_live_several_nodes(tree: Tree, kubelet: RealKubelet) -> None:
    multi_node_devices(tree)
    async with hosted("several-nodes", tree, kubelet, ALLOWED):
        await kubelet.wait(SOUND, 2, 2)
        tree.remove("/dev/snd/pcmC0D0c")  # it has another one
        tree.remove("/dev/snd/pcmC1D3p")
        await kubelet.wait(SOUND, 2, 1)
        answer = (await kubelet.admit("pod", {"app": {SOUND: 1}}))["app"]
        assert answer["envs"] == {"ALSA_CARDS": "card0"}
        assert set(by_container_path(answer["devices"])) == {
            "/dev/snd/controlC0",
            "/dev/snd/pcmC0D0p",
        }
        tree.char("/dev/tpmrm1")
        await kubelet.wait(TPM, 2, 2)


# ── formatted-disk ─────────────────────────────────────────────────────────────────────


def test_plan_formatted_disk(tree: Tree) -> None:
    """It says what would be run, and runs nothing."""
    disks(tree)
    config = example("formatted-disk")
    (resource,) = config.resources
    unchecked = config.model_copy(  # its disks have numbers of no driver
        update={"resources": (resource.model_copy(update={"health": None}),)}
    )
    files = HostFiles(str(tree.root))
    (shown,) = (one.as_json() for one in report(unchecked, files, ALL_ALLOWED, "n", {SCRATCH: "1"}))
    by_id = f"{BY_ID}/ata-DATA_1"
    step = {
        "device": "ata-DATA_1",
        "step": "run",
        "value": ["mkfs.ext4", "-q", f"{tree.root}/dev/sdzb"],
        "every": "holder",
        "timeout": 25.0,
    }
    expected = allocation(
        ["ata-DATA_1"], {"SCRATCH_DISKS": "/dev/scratch0"}, [node(by_id, "/dev/scratch0")]
    )
    assert shown["allocation"] == expected | {"preStart": [step]}


def test_a_disk_that_cannot_be_read_is_unhealthy(tree: Tree) -> None:
    disks(tree)
    shown = plan("formatted-disk", tree, ALL_ALLOWED)[SCRATCH]
    assert (shown["capacity"], shown["allocatable"]) == (2, 0)
    reason = shown["devices"][0]["reason"]
    assert reason.startswith(f"check failed: readable: {BY_ID}/ata-DATA_1: ")


def test_formatting_needs_two_flags() -> None:
    file = str(EXAMPLES / "formatted-disk.yaml")
    assert load(file, ALLOWED).config is None
    assert load(file, Policy(allow_exec=True, enforced=True)).config is None


# ── shared-render ──────────────────────────────────────────────────────────────────────


def gpus(tree: Tree) -> None:
    for card in (0, 1):
        tree.char(f"/dev/dri/renderD{128 + card}")
        tree.link(f"/dev/dri/by-path/pci-{card}-render", f"../renderD{128 + card}")


def test_plan_shared_render(tree: Tree) -> None:
    """Two shares are of two GPUs, though the first one has free ones."""
    gpus(tree)
    shown = plan("shared-render", tree, None, **{"render-share": "2"})[SHARE]
    assert (shown["capacity"], shown["allocatable"]) == (8, 8)
    given = shown["allocation"]
    assert given["deviceIds"] == ["pci-0-render::0", "pci-1-render::0"]
    assert given["envs"] == {"RENDER_NODES": "/dev/dri/renderD128,/dev/dri/renderD129"}
    kind = "devhost.example.com/render-share"
    assert given["cdiDevices"] == [f"{kind}=pci-0-render", f"{kind}=pci-1-render"]
    assert given["devices"] == []
    nodes = [one["containerEdits"]["deviceNodes"][0]["path"] for one in given["cdiSpec"]["devices"]]
    assert nodes == ["/dev/dri/renderD128", "/dev/dri/renderD129"]


async def test_live_shared_render(tree: Tree, kubelet: RealKubelet) -> None:
    """Pods fill one GPU up before the next is begun."""
    gpus(tree)
    async with hosted("shared-render", tree, kubelet):
        await kubelet.wait(SHARE, 8, 8)
        given = [
            (await kubelet.admit(f"pod-{number}", {"app": {SHARE: 1}}))["app"]["cdiDevices"]
            for number in range(5)
        ]
        assert given[:4] == [given[0]] * 4
        assert given[4] != given[0]
        files = list((tree.root.parent / "cdi").iterdir())
        assert [path.suffix for path in files] == [".json"]
