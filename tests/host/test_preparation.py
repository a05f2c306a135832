"""Steps before a container's start: once per holder, whatever restarts, and never on a guess."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from devhost.kubelet.servicer import Servicer
from devhost.model.state import State
from devhost.standin.kubelet import AdmissionError
from tests.host.loop import container, loop_device, mounted, program
from tests.support.daemon import until
from tests.support.hosting import Hosting, Kubelet, contract
from tests.support.realkubelet import REAL_KUBELETS, RealKubelet
from tests.support.root import needs_root

DISK = "example.com/disk"
ALLOWED = Policy(allow_devices=("/dev/loop*",), allow_exec=True, enforced=True)
ONE = {"app": {DISK: 1}}


class Bench:
    """Devices that are files, and a script that prepares them and notes each of its runs."""

    def __init__(self, directory: Path, hosting: Hosting) -> None:
        self.directory, self.hosting = directory, hosting
        self.state, self.log = directory / "state", directory / "log"
        self.script = directory / "prepare.sh"
        self.script.write_text(
            f"""
id=$1; shift
if test -e {directory}/fail-$id; then echo looking at $id; echo no medium in $id; exit 3; fi
if test -e {directory}/hang-$id; then echo waiting for $id; : >{directory}/begun-$id; exec sleep 60; fi
echo "$id${{*:+ $*}}" >>{self.log}
"""
        )

    def plug(self, *names: str) -> None:
        for name in names:
            (self.directory / "colas" / name).touch()

    def sign(self, name: str) -> Path:
        """Return the file by which the script fails or hangs for a device, if it is there."""
        return self.directory / name

    @property
    def run(self) -> str:
        return f'run: [sh, {self.script}, "${{id}}"]'

    def config(self, *steps: str) -> str:
        of_steps = ", ".join(f"{{{step}}}" for step in steps)
        return f"""
version: v1
resources:
  - name: {DISK}
    sources: [directory: {self.directory}/colas]
    prefer: packed
    preStart: [{of_steps}]
"""

    def start(self, *steps: str) -> None:
        """Start devhost, by default with a step that runs the script."""
        config = self.config(*steps or (self.run,))
        self.hosting.start(config, state_dir=self.state, policy=ALLOWED)

    @property
    def runs(self) -> list[str]:
        """What the script was run for, in order: the device, its arguments."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def bench(directory: Path, hosting: Hosting) -> Bench:
    return Bench(directory, hosting)


async def refused(kubelet: Kubelet, pod: str, container: str = "app") -> str:
    """Start a container that must not start; return the message for its user."""
    with pytest.raises(AdmissionError) as caught:
        await kubelet.start_container(pod, container)
    return str(caught.value)


# ── once per holder ──


@contract
async def test_prestart_of_a_crash_looping_container_runs_once(
    started: Kubelet, bench: Bench
) -> None:
    bench.plug("a")
    bench.start()
    await started.wait(DISK, 1, 1)
    await started.admit("pod", ONE)
    for _ in range(5):
        await started.start_container("pod", "app")
    assert bench.runs == ["a"]


@pytest.mark.parametrize("kubelet", REAL_KUBELETS, indirect=True)
async def test_prestart_runs_once_for_an_init_container_and_the_app(
    started: RealKubelet, bench: Bench
) -> None:
    """They have the same device; what the first has written is for the second."""
    bench.plug("a")
    bench.start()
    await started.wait(DISK, 1, 1)
    containers = {"setup": {DISK: 1}, "app": {DISK: 1}}
    await started.admit("pod", containers, init=("setup",), start=False)
    assert bench.runs == []
    await started.start_container("pod", "setup")
    assert bench.runs == ["a"]
    await started.start_container("pod", "app")
    await started.start_container("pod", "app")
    assert bench.runs == ["a"]


@contract
async def test_prestart_is_not_repeated_after_a_kubelet_restart(
    started: Kubelet, bench: Bench
) -> None:
    bench.plug("a")
    bench.start()
    await started.wait(DISK, 1, 1)
    await started.admit("pod", ONE)
    await started.restart()
    await started.wait(DISK, 1, 1)
    await started.start_container("pod", "app")
    await started.admit("pod", ONE)  # as the kubelet does, one by one, with those it finds
    assert bench.runs == ["a"]


async def test_prestart_is_not_repeated_after_a_restart_of_devhost(
    started: Kubelet, bench: Bench
) -> None:
    bench.plug("a", "b")
    bench.start()
    await started.wait(DISK, 2, 2)
    await started.admit("ready", ONE)
    await started.admit("waiting", ONE, start=False)
    await bench.hosting.stop()
    await started.wait(DISK, 2, 0)
    bench.start()
    await started.wait(DISK, 2, 2)
    await started.start_container("ready", "app")
    assert bench.runs == ["a"]
    await started.start_container("waiting", "app")
    await started.start_container("waiting", "app")
    assert bench.runs == ["a", "b"]


@contract
async def test_prestart_runs_for_the_next_pod_of_the_same_name(
    started: Kubelet, bench: Bench
) -> None:
    """Also one of the same name, as those of a StatefulSet are."""
    bench.plug("a")
    bench.start()
    await started.wait(DISK, 1, 1)
    await started.admit("pod", ONE)
    await started.free("pod")
    await started.admit("pod", ONE)
    await started.start_container("pod", "app")
    assert bench.runs == ["a", "a"]


async def test_prestart_with_every_start_runs_at_each_start(started: Kubelet, bench: Bench) -> None:
    """Beside a step for holders; and it needs no record, so that it works for all."""
    bench.plug("a")
    holder = bench.run.replace("]", ", holder]")
    start = bench.run.replace("]", ", start], every: start")
    bench.start(holder, start)
    await started.wait(DISK, 1, 1)
    await started.admit("pod", ONE)
    await started.start_container("pod", "app")
    assert bench.runs == ["a holder", "a start", "a start"]


# ── what cannot be told is refused ──


@contract
async def test_prestart_is_refused_for_a_pod_whose_record_is_lost(
    started: Kubelet, bench: Bench
) -> None:
    """A pod that runs is never wiped: its next start is refused, a new pod is prepared."""
    bench.plug("a", "b")
    bench.start()
    await started.wait(DISK, 2, 2)
    await started.admit("pod", ONE)
    await bench.hosting.stop()
    shutil.rmtree(bench.state)
    await started.wait(DISK, 2, 0)
    bench.start()
    await started.wait(DISK, 2, 2)
    told = await refused(started, "pod")
    assert "cannot tell whether device a was prepared" in told
    assert "no record of its allocation" in told
    assert "delete the pod to get a fresh device" in told
    assert bench.runs == ["a"]
    await started.admit("new", ONE)
    assert bench.runs == ["a", "b"]
    await started.free("pod")
    await started.admit("pod", ONE)
    assert bench.runs == ["a", "b", "a"]


# ── steps that fail ──


async def test_prestart_that_fails_is_tried_again(started: Kubelet, bench: Bench) -> None:
    bench.plug("a")
    bench.start()
    await started.wait(DISK, 1, 1)
    await started.admit("pod", ONE, start=False)
    failure = bench.sign("fail-a")
    failure.touch()
    for _ in range(2):
        assert (
            "preStart[0] (run sh) of device a: exited with 3: looking at a; no medium in a"
            in await refused(started, "pod")
        )
    failure.unlink()
    await started.start_container("pod", "app")
    failure.touch()
    await started.start_container("pod", "app")
    assert bench.runs == ["a"]


async def test_prestart_cut_off_by_a_stop_is_done_again(started: Kubelet, bench: Bench) -> None:
    bench.plug("a")
    bench.start()
    await started.wait(DISK, 1, 1)
    await started.admit("pod", ONE, start=False)
    hang, begun = bench.sign("hang-a"), bench.sign("begun-a")
    hang.touch()
    starting = asyncio.create_task(refused(started, "pod"))
    await until(begun.exists, "the step's beginning")
    await bench.hosting.stop()
    await starting
    hang.unlink()
    await started.wait(DISK, 1, 0)
    bench.start()
    await started.wait(DISK, 1, 1)
    await started.start_container("pod", "app")
    await started.start_container("pod", "app")
    assert bench.runs == ["a"]


# ── a reload ──


async def registered_anew(kubelet: Kubelet, bench: Bench, config: str, count: int) -> None:
    """Reload, and wait until the resource is registered on another socket."""
    runner = bench.hosting.hosts[-1].resources[0]
    before = set(bench.hosting.plugins.glob("devhost-*.sock"))
    bench.hosting.reload(config)

    def done() -> bool:
        now = set(bench.hosting.plugins.glob("devhost-*.sock"))
        registered = runner.status.state is State.REGISTERED
        return bool(now) and registered and before.isdisjoint(now)

    await until(done, "a registration on a fresh socket")
    await kubelet.wait(DISK, count, count)


@contract
async def test_prestart_added_by_a_reload_does_not_wipe_what_a_pod_has(
    started: Kubelet, bench: Bench
) -> None:
    """Whether the pod has used the device cannot be told: nobody kept a record."""
    bench.plug("a", "b")
    plain = bench.config()
    bench.hosting.start(plain, state_dir=bench.state, policy=ALLOWED)
    await started.wait(DISK, 2, 2)
    await started.admit("old", ONE)
    await registered_anew(started, bench, bench.config(bench.run), 2)
    assert "delete the pod to get a fresh device" in await refused(started, "old")
    await started.admit("new", ONE)
    assert bench.runs == ["b"]
    await registered_anew(started, bench, plain, 2)
    await started.start_container("old", "app")
    await started.start_container("new", "app")
    await registered_anew(started, bench, bench.config(bench.run), 2)
    for pod in ("old", "new"):
        assert "delete the pod to get a fresh device" in await refused(started, pod)
    assert bench.runs == ["b"]


async def test_prestart_added_while_a_pod_starts_does_not_wipe_its_device(
    started: Kubelet, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its device was handed out by the new declaration, and it started by the old options."""
    bench.plug("a")
    plain, prepared = bench.config(), bench.config(bench.run)
    bench.hosting.start(plain, state_dir=bench.state, policy=ALLOWED)
    await started.wait(DISK, 1, 1)
    with monkeypatch.context() as late:
        late.setattr(Servicer, "options_changed", False)
        bench.hosting.reload(prepared)
        await started.admit("pod", ONE)
    assert bench.runs == []
    await registered_anew(started, bench, prepared.replace("packed", "spread"), 1)
    assert "delete the pod to get a fresh device" in await refused(started, "pod")
    assert bench.runs == []


# ── a real disk ──


class Disk:
    """A block device with a filesystem made for each holder."""

    def __init__(self, device: Path, directory: Path, hosting: Hosting) -> None:
        self.device, self.place = device, directory / "mnt"
        self.path = directory / "by-id" / "superdisk"
        self.path.parent.mkdir()
        self.path.symlink_to(device)
        self._state, self._hosting = directory / "state", hosting

    def start(self) -> None:
        text = f"""
version: v1
resources:
  - name: {DISK}
    sources: [glob: {{paths: {self.path.parent}/*, types: block}}]
    preStart:
      - run: [{program("mkfs.ext4")}, -q, "${{path}}"]
"""
        self._hosting.start(text, state_dir=self._state, policy=ALLOWED)


@pytest.fixture
def disk(directory: Path, hosting: Hosting) -> Iterator[Disk]:
    program("mkfs.ext4")
    with loop_device(directory / "image") as device:
        yield Disk(device, directory, hosting)


@needs_root
async def test_prestart_formats_a_disk_for_each_pod_and_for_nobody_else(
    started: Kubelet, disk: Disk, hosting: Hosting
) -> None:
    """What a crash-looping container has written stays; the next pod does not see it."""
    disk.start()
    await started.wait(DISK, 1, 1)
    answer = (await started.admit("pod", ONE))["app"]
    assert [one["hostPath"] for one in answer["devices"]] == [str(disk.path.resolve())]
    with container(disk.device, disk.place, "echo precious >file"):
        hosting.hosts[-1].resources[0].trigger_scan()
        await started.start_container("pod", "app")
    await started.start_container("pod", "app")
    with container(disk.device, disk.place, "cat file") as content:
        assert content == "precious"
    await hosting.stop()
    await started.wait(DISK, 1, 0)
    disk.start()
    await started.wait(DISK, 1, 1)
    await started.start_container("pod", "app")
    with container(disk.device, disk.place, "cat file") as content:
        assert content == "precious"
    await started.free("pod")
    await started.admit("pod", ONE)
    with container(disk.device, disk.place, "ls") as content:
        assert content == "lost+found"


@needs_root
async def test_prestart_does_not_format_a_disk_that_is_still_mounted(
    started: Kubelet, disk: Disk
) -> None:
    """By a container of the pod before, whose process hangs, say."""
    disk.start()
    await started.wait(DISK, 1, 1)
    await started.admit("old", ONE)
    with container(disk.device, disk.place, "echo precious >file; sync"):
        await started.free("old")
        await started.admit("new", ONE, start=False)
        told = await refused(started, "new")
        assert f"device superdisk: {disk.path} is in use (mounted" in told
    with container(disk.device, disk.place, "cat file") as content:
        assert content == "precious"
    await started.start_container("new", "app")
    with container(disk.device, disk.place, "ls") as content:
        assert content == "lost+found"


@needs_root
async def test_prestart_does_not_format_a_disk_again_that_its_pod_has_mounted(
    started: Kubelet, disk: Disk, hosting: Hosting
) -> None:
    """The holder has mounted it where all see it; its containers may start again."""
    disk.start()
    await started.wait(DISK, 1, 1)
    await started.admit("pod", ONE)
    with mounted(disk.device, disk.place) as place:
        (place / "file").write_text("precious")
        hosting.hosts[-1].resources[0].trigger_scan()
        await started.wait(DISK, 1, 0)
        await started.start_container("pod", "app")
        assert (place / "file").read_text() == "precious"
    hosting.hosts[-1].resources[0].trigger_scan()
    await started.wait(DISK, 1, 1)
    await started.start_container("pod", "app")
    with mounted(disk.device, disk.place) as place:
        assert (place / "file").read_text() == "precious"
