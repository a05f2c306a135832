"""A mistake of ours, once, in each function that runs: all is right again, and nobody else notices."""

import asyncio
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import pytest

import devhost
from devhost.allocation.policy import Policy
from devhost.host import reconciler, tasks
from devhost.host.config_source import ConfigSource
from devhost.host.host import Host, Settings
from devhost.host.state_files import LastGood
from devhost.kubelet import registration
from devhost.standin.kubelet import AdmissionError, SimulatedKubelet
from devhost.watch import threads
from tests.support.daemon import PATIENCE, directories, ids_of, until

ROOT = f"{Path(devhost.__file__).parent}/"
OTHERS = ("api/", "standin/", "testing/")
# What has no owner in the process: its own begin, and that of a thread.
ENDS = (
    *("Host.run", "Host.__init__", "Host._keep", "keep_running", "Watcher.__aenter__"),
    *("in_thread.<locals>.run", "_Pool._run"),
)
A, B, C, D = (f"example.com/{name}" for name in "abcd")
REGISTRATIONS = Counter({A: 2, B: 2, C: 2, D: 1})  # kubelet is restarted before D is there


class Profile:
    """Sees the calls of devhost's functions; raises, once each, in those that are `armed`."""

    def __init__(self) -> None:
        self.seen: dict[CodeType, None] = {}
        self.armed: set[CodeType] = set()
        self.raised: list[str] = []

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            self.seen.setdefault(code)
            if code in self.armed:
                self.armed.discard(code)
                self.raised.append(name_of(code))
                raise RuntimeError(f"injected in {name_of(code)}")  # Python ends the profile

    async def keep(self) -> None:
        """Go on after each exception."""
        while True:
            sys.setprofile(self)
            await asyncio.sleep(0.001)


def name_of(code: CodeType) -> str:
    return f"{code.co_filename.removeprefix(ROOT)}:{code.co_qualname}"


def concerns_a_host(code: CodeType) -> bool:
    name = name_of(code)
    return not name.startswith(OTHERS) and code.co_qualname not in ENDS


class Node:
    """A kubelet, and a host that follows a file."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.kubelet = SimulatedKubelet(place / "plugins", pod_resources=place / "pr.sock")
        for name in "abcd":
            (place / name).mkdir()
            (place / name / "0").touch()
        self.config = place / "config.yaml"
        self.config.write_text(directories(place, "a", "b", "c"))

    async def run(self, profile: Profile) -> None:
        """Serve, through changes of all kinds, until all is as it has to be."""
        await self.kubelet.start()
        source = ConfigSource(str(self.config), Policy(), LastGood(self.place / "state"))
        first = source.first()[0].require()
        settings = Settings(
            self.place / "plugins",
            "node",
            leave_after=0.1,
            hold_s=0.0,
            state_dir=self.place / "state",
            pod_resources=self.place / "pr.sock",
            cdi_dir=self.place / "cdi",
        )
        host = Host(first, settings, source)
        threading.setprofile(profile)
        keeping, running = asyncio.create_task(profile.keep()), asyncio.create_task(host.run())
        try:
            await self.all_are({A: {"0"}, B: {"0"}, C: {"0"}}, running)
            (self.place / "a" / "1").touch()
            await self.admit("one", B)
            await self.all_are({A: {"0", "1"}, B: {"0"}, C: {"0"}}, running)
            await self.kubelet.restart()
            (self.place / "a" / "0").unlink()
            await self.all_are({A: {"1"}, B: {"0"}, C: {"0"}}, running)
            await self.kubelet.free("one")
            edited = directories(self.place, "a", "b", "d", more=", allocate: {env: {X: y}}")
            self.config.write_text(edited)
            await self.all_are({A: {"1"}, B: {"0"}, C: set(), D: {"0"}}, running)
            await until(lambda: not source.status.problems, "the file is in force")
            await self.admit("two", A)
        finally:
            threading.setprofile(None)
            keeping.cancel()
            await asyncio.wait({keeping})
            sys.setprofile(None)
            running.cancel()
            await asyncio.wait({running})
            await self.kubelet.stop()

    async def admit(self, pod: str, resource: str) -> None:
        """Admit a pod, in the end: an Allocate that fails is refused alone."""
        while True:
            try:
                await self.kubelet.admit(pod, {"app": {resource: 1}})
            except AdmissionError:
                await asyncio.sleep(0.05)
            else:
                return

    async def all_are(self, ids: dict[str, set[str]], running: "asyncio.Task[None]") -> None:
        """Wait until these are healthy."""
        seen: dict[str, set[str]] = {}
        try:
            async with asyncio.timeout(PATIENCE / 4):
                while (seen := {one: await ids_of(self.kubelet, one) for one in ids}) != ids:
                    assert not running.done(), "the process has ended"
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"wanted {ids}, seen {seen}") from None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a moment, and threads that are new."""
    for module in (tasks, reconciler):
        monkeypatch.setattr(module, "CRASH_PAUSE_S", 0.05)
        monkeypatch.setattr(module, "CRASH_PAUSE_MAX_S", 0.1)
    monkeypatch.setattr(registration, "_FAILURE_PAUSE_S", 0.05)
    monkeypatch.setattr("devhost.host.resource._FIRST_ROUND_S", 0.05)
    monkeypatch.setattr(threads, "_POOL", threads._Pool())


async def functions(place: Path) -> list[CodeType]:
    """Return the functions that run for a host when nothing fails, in the order of their names."""
    profile = Profile()
    await Node(place).run(profile)
    return sorted(filter(concerns_a_host, profile.seen), key=name_of)


def fresh(place: Path, name: str) -> Path:
    (place / name / "plugins").mkdir(parents=True)
    return place / name


@pytest.mark.parametrize(
    "step", [pytest.param(5, id="a few"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.timeout(5400)
@pytest.mark.usefixtures("quick")
async def test_mistake_in_any_function_heals_and_at_most_its_own_resource_notices(
    short_path: Path, step: int
) -> None:
    """Each function raises at its first call, in a run of its own."""
    failed: list[str] = []
    codes = await functions(fresh(short_path, "plain"))
    if step > 1:
        codes = [code for code in codes if name_of(code).startswith(("host/host", "watch/"))]
    for number, code in enumerate(codes[::step]):
        profile = Profile()
        profile.armed = {code}
        node = Node(fresh(short_path, str(number)))
        try:
            await node.run(profile)
            more = Counter(node.kubelet.registrations) - REGISTRATIONS
            assert len(more) <= 1, f"others have noticed: {more}"
        except Exception as error:  # noqa: BLE001 (listed below)
            failed.append(f"{name_of(code)}: {error!r}")
    assert failed == []
