"""A mistake of ours, wherever it raises, ends nothing: what has failed is tried again.

An exception is raised once in each coroutine and each function of a thread that runs for a resource
or the host. Which these are is recorded from a run of the same steps.
"""

import asyncio
import contextlib
import dis
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import grpc
import pytest

import devhost
from devhost.allocation.policy import Policy
from devhost.backends.deviceplugin.registration import DevicePluginBackend
from devhost.devices.scan import Scanner
from devhost.fake_kubelet.kubelet import AdmissionError, SimulatedKubelet
from devhost.model.resource_state import Status
from devhost.node.config_file import ConfigFile, LastGoodConfig
from devhost.node.node import Host, Settings
from devhost.node.resource import ServedResource
from tests.support.daemon import until

ROOT: Final = str(Path(devhost.__file__).parent) + "/"
# Not in a running host, pure, or what has to catch the exceptions.
OUTSIDE: Final = (
    "fake_kubelet/",
    "testing/",
    "api/",
    "cli/",
    "library/",
    "config/",
    "model/",
    "node/tasks.py",
)
FAILING, OTHER = "example.com/failing", "example.com/other"
QUICK: Final = {
    "devhost.node.tasks.CRASH_PAUSE_S": 0.05,
    "devhost.node.config_file.RETRY_S": 0.05,
    "devhost.custody.holders.POLL_S": 0.05,
    "devhost.backends.deviceplugin.registration._FAILURE_PAUSE_S": 0.05,
    "devhost.backends.deviceplugin.registration.END_TIMEOUT_S": 0.2,
    "devhost.backends.deviceplugin.registration._POLL_S": 0.1,
}


def is_coroutine(code: CodeType) -> bool:
    return bool(code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))


def begins(frame: FrameType) -> bool:
    """Whether a coroutine begins to run: it is neither made, nor resumed after it has waited."""
    if not is_coroutine(frame.f_code):
        return True
    first = {
        instruction.opname: instruction.offset
        for instruction in reversed([*dis.get_instructions(frame.f_code)])
    }
    return bool(first["RETURN_GENERATOR"] <= frame.f_lasti <= first["RESUME"])


class Calls:
    """Sees the calls of coroutines and of the functions of threads; has one of them fail.

    Attributes:
        seen: Where they are.
        failing: Where one is to fail, once.
        alone: Whether the one that has failed ran for one resource alone.
    """

    def __init__(self) -> None:
        self.seen = set[str]()
        self.failing, self.alone = "", False
        self._own = asyncio.current_task()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code, back = frame.f_code, frame.f_back
        where = f"{code.co_filename.removeprefix(ROOT)}:{code.co_qualname}"
        if event != "call" or not code.co_filename.startswith(ROOT) or where.startswith(OUTSIDE):
            return
        run_in_thread = back is not None and back.f_code.co_qualname == "_settle"
        if not (run_in_thread or is_coroutine(code)) or not begins(frame):
            return
        name = threading.current_thread().name
        with contextlib.suppress(RuntimeError):
            task = asyncio.current_task()
            if task is self._own:
                return
            name = task.get_name() if task else ""
        self.seen.add(where)
        if where == self.failing:
            self.failing, self.alone = "", FAILING in name
            raise RuntimeError("raised by the test")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


class Steps:
    """A host, and what happens on its machine again and again."""

    def __init__(self, directory: Path, kubelet: SimulatedKubelet) -> None:
        directory.chmod(0o755)  # or a path in it needs a flag
        self.kubelet = kubelet
        self.files, self.file = directory / "files", directory / "config.yaml"
        self.files.mkdir()
        self.number = 1
        self.names, self.pods = self._rename(), 0
        self._write()
        policy = Policy(allow_exec=True)
        self.source = ConfigFile(str(self.file), policy, LastGoodConfig(directory / "state"))
        settings = Settings(
            "node-1",
            policy=policy,
            settle_s=0.0,
            state_dir=directory / "state",
            cdi_dir=directory / "cdi",
        )
        backend = DevicePluginBackend(directory / "plugins", directory / "pr.sock", 0.1)
        config = self.source.load_first()[0].require()
        self.host = Host(config, settings, backend, self.source)

    def _write(self) -> None:
        self.file.write_text(
            f"""
version: v1
resources:
  - name: {FAILING}
    sources: [directory: {self.files}]
    removeMissingAfter: 100ms
    inject: cdi
    health: {{checks: [readable], interval: 100ms}}
    preStart: [{{run: [/bin/true]}}, {{waitFor: "${{path}}"}}]
    allocate: {{env: {{FAILING: "{self.number}"}}}}
  - name: {OTHER}
    sources: [static: 1]
    allocate: {{env: {{NUMBER: "{self.number}"}}}}
"""
        )

    def _rename(self) -> set[str]:
        for file in self.files.iterdir():
            file.unlink()
        names = {f"a{self.number}", f"b{self.number}"}
        for name in names:
            (self.files / name).touch()
        return names

    async def replug(self) -> None:
        self.number += 1
        self.names = self._rename()

    async def edit(self) -> None:
        self.number += 1
        self._write()

    async def restart_kubelet(self) -> None:
        await self.kubelet.restart()

    async def run_pod(self, *resources: str) -> object:
        """Run a pod with a device of each resource; return its environment, or why it has failed."""
        self.pods += 1
        pod = f"pod-{self.pods}"
        try:
            answer = await self.kubelet.admit(
                pod, {"app": dict.fromkeys(resources or (FAILING, OTHER), 1)}
            )
        except (AdmissionError, grpc.aio.AioRpcError) as error:
            return error
        else:
            await self.kubelet.free(pod)
            return answer["app"]["envs"]

    async def all_is_right(self) -> None:
        """Wait until the kubelet has what the machine has, and pods get what the file says."""
        number = self.file.read_text().partition('NUMBER: "')[2].partition('"')[0]
        wanted = {"Healthy": self.names}, {"NUMBER": number}
        seen: object = None
        try:
            async with asyncio.timeout(60):
                while seen != wanted:
                    await asyncio.sleep(0.01)
                    healths = self.kubelet.devices(FAILING)
                    by_health = {
                        health: {n for n in healths if healths[n] == health}
                        for health in healths.values()
                    }
                    seen = by_health, await self.run_pod()
        except TimeoutError:
            raise AssertionError(f"not {wanted}, but {seen}") from None

    def status_of_other(self) -> Status:
        return next(served.status for served in self.host.resources if served.name == OTHER)


@pytest.mark.timeout(900)
async def test_exception_in_any_coroutine_or_thread_is_got_over(
    directory: Path, standin: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is right again, the host goes on, and another resource keeps its stream."""
    for name, seconds in QUICK.items():
        monkeypatch.setattr(name, seconds)
    steps = Steps(directory, standin)
    running = asyncio.create_task(steps.host.run())
    await steps.all_is_right()
    calls, step_of = Calls(), dict[str, Callable[[], Awaitable[object]]]()
    for step in (steps.replug, steps.edit, steps.restart_kubelet):
        with calls.watching():
            await step()
            await steps.all_is_right()
        for where in calls.seen:
            step_of.setdefault(where, step)
    failed = set[str]()
    for where, cause in step_of.items():
        before, calls.failing = steps.status_of_other(), where
        with calls.watching():
            await cause()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    while calls.failing:
                        await steps.run_pod()
                        await asyncio.sleep(0.01)
        if calls.failing:  # it ran by chance, such as after a call that was late
            calls.failing = ""
            continue
        failed.add(where)
        try:
            await steps.all_is_right()
        except AssertionError as error:
            raise AssertionError(f"after {where} has failed: {error}") from None
        assert not running.done(), f"{where} ends the host"
        if calls.alone and cause != steps.restart_kubelet:
            assert steps.status_of_other() is before, f"{where} concerns another resource"
    assert len(failed) > len(step_of) / 2
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_edit_that_cannot_be_applied_is_not_called_in_force_and_is_tried_again(
    directory: Path, standin: SimulatedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the resource that fails stays as it was."""
    for name, seconds in QUICK.items():
        monkeypatch.setattr(name, seconds)
    steps, change = Steps(directory, standin), ServedResource.apply_spec
    running = asyncio.create_task(steps.host.run())
    await steps.all_is_right()
    before = steps.source.status

    def failing(served: ServedResource, scanner: Scanner) -> None:
        if served.name == FAILING:
            raise RuntimeError("raised by the test")
        change(served, scanner)

    with monkeypatch.context() as mistake:
        mistake.setattr(ServedResource, "apply_spec", failing)
        await steps.edit()
        await until(lambda: steps.source.status.problems, "the problem")
        assert steps.source.status.applied == before.applied
        async with asyncio.timeout(60):
            while await steps.run_pod(OTHER) != {"NUMBER": str(steps.number)}:
                await asyncio.sleep(0.01)
    await steps.all_is_right()
    await until(lambda: not steps.source.status.problems, "the end of the problem")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
