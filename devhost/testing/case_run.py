"""Runs the tests of a `CaseFile`, each with the real host, a kubelet and a host of its own."""

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from devhost.allocation.policy import Policy
from devhost.immutable import immutable
from devhost.standin.kubelet import AdmissionError, SimulatedKubelet
from devhost.testing.case_file import (
    Case,
    CaseFile,
    CaseStep,
    Expected,
    Received,
    Things,
)
from devhost.testing.directory import short_directory
from devhost.testing.serving import Served, serving
from devhost.testing.tree import HostTree

_POLL_S: Final = 0.02  # where an expectation is not met yet
_CONTAINER: Final = "app"
T = TypeVar("T")


@immutable
class Outcome:
    """The result of a test.

    Attributes:
        name: The name of the test.
        line: The line of the step that failed; 0 if none did.
        failures: What was not as expected.
    """

    name: str
    line: int = 0
    failures: tuple[str, ...] = ()


class _FailedError(Exception):
    """A step is not as expected; the arguments are what differs."""


async def run(file: CaseFile, case: int, timeout: float) -> Outcome:  # noqa: ASYNC109
    """Run one test.

    Args:
        file: The tests.
        case: The index of the test.
        timeout: Seconds until what is expected must have come.

    Raises:
        ConfigError: The configuration is invalid, or uses more than the file allows.
        NotPermittedError: This process may not create the device nodes of the host.
    """
    test, lines = file.cases.tests[case], file.lines[case]
    allowed: dict[str, Any] = {
        f"allow_{name}": value if name == "exec" else tuple(value)
        for name, value in file.cases.allow
    }
    with tempfile.TemporaryDirectory() as directory, short_directory() as plugins:
        tree = HostTree(Path(directory))
        kubelet = SimulatedKubelet(plugins, plugins / "pod-resources.sock")
        await kubelet.start()
        try:
            try:
                _put(tree, test.host)
            except (OSError, ValueError) as error:
                return Outcome(test.name, file.hosts[case], (_mistake(error, tree),))
            async with serving(
                file.config,
                kubelet=kubelet,
                root=tree.root,
                node_name=file.cases.node_name,
                policy=Policy(enforced=True, **allowed),
                profile=file.cases.profile,
            ) as served:
                running = _Running(test, tree, kubelet, served, timeout)
                return await running.outcome(lines)
        finally:
            await kubelet.stop()


def _put(tree: HostTree, things: Things) -> None:
    for path in things.directories:
        tree.directory(path)
    for path, text in things.files.items():
        tree.file(path, text)
    if things.hardware:
        tree.hardware(things.hardware)
    for path, text in things.nodes.items():
        kind, _, number = text.partition(" ")
        with contextlib.suppress(FileNotFoundError):
            tree.remove(path)
        major, minor = map(int, number.split(":"))
        try:
            (tree.char if kind == "c" else tree.block)(path, major, minor)
        except OSError as error:  # without a name
            raise OSError(error.errno, error.strerror, path) from error
    for path, target in things.links.items():
        with contextlib.suppress(FileNotFoundError):
            tree.remove(path)
        tree.link(path, target)


def _mistake(error: OSError | ValueError, tree: HostTree) -> str:
    """Return why a host cannot be as described, with its paths."""
    if not isinstance(error, OSError):
        return str(error)
    path = str(error.filename2 or error.filename or "").removeprefix(str(tree.root))
    return f"{path}: {error.strerror}" if path else str(error.strerror)


class _Running:
    """A test that runs."""

    def __init__(
        self, case: Case, tree: HostTree, kubelet: SimulatedKubelet, served: Served, timeout: float
    ) -> None:
        self._case, self._tree, self._kubelet = case, tree, kubelet
        self._served, self._timeout = served, timeout
        self._pods = 0

    async def outcome(self, lines: Sequence[int]) -> Outcome:
        """Take the steps until one fails."""
        for step, line in zip(self._case.steps, lines, strict=True):
            try:
                await self._take(step)
            except _FailedError as failure:
                return Outcome(self._case.name, line, failure.args)
            except (OSError, ValueError) as error:
                return Outcome(self._case.name, line, (_mistake(error, self._tree),))
        return Outcome(self._case.name)

    async def _take(self, step: CaseStep) -> None:
        match step.action:
            case "add" if step.add is not None:
                _put(self._tree, step.add)
            case "remove":
                for path in step.remove or ():
                    self._tree.remove(path)
            case "unplug":
                for name in step.unplug or ():
                    self._tree.unplug(name)
            case "expect":
                await self._settled()
                await self._expect(step.expect or {})
            case "allocate":
                await self._settled()
                await self._allocate(step)
            case "free":
                await self._free(step.free or "")
            case "restartKubelet":
                await self._kubelet.restart()

    async def _settled(self) -> None:
        try:
            await self._served.settled(self._timeout)
        except TimeoutError as error:
            raise _FailedError(str(error)) from None

    # ── what kubelet has ──

    async def _expect(self, expected: Mapping[str, int | Expected]) -> None:
        """Wait until everything is as expected, or nothing is to come."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout
        while True:
            differing = [
                text for name, one in expected.items() for text in self._differing(name, one)
            ]
            if not differing:
                return
            if loop.time() > end or not self._served.changes_by(end):
                raise _FailedError(*differing)
            await asyncio.sleep(_POLL_S)

    def _differing(self, resource: str, expected: int | Expected) -> Iterator[str]:
        if isinstance(expected, int):
            expected = Expected(capacity=expected, allocatable=expected)
        listed = self._kubelet.devices(resource)
        healthy = sum(health == "Healthy" for health in listed.values())
        yield from _different(f"{resource}: capacity", expected.capacity, len(listed))
        yield from _different(f"{resource}: allocatable", expected.allocatable, healthy)
        devices = expected.devices
        if isinstance(devices, list):
            devices = dict.fromkeys(devices, "Healthy")
        yield from _different(f"{resource}: devices", devices, listed)
        try:
            report = self._served.report(resource)
        except KeyError:
            yield f"{resource}: not in the configuration"
            return
        found = {one["id"]: one for one in report["devices"]}
        for device, paths in expected.paths.items():
            there = sorted(found[device]["paths"]) if device in found else None
            yield from _different(f"{resource}: paths of {device}", sorted(paths), there)
        for device, part in expected.reasons.items():
            reason = found[device]["reason"] if device in found else "no such device"
            yield from _without(f"{resource}: reason of {device}", part, reason)
        skipped = {one["candidate"]: one["reason"] for one in report["skipped"]}
        for candidate, part in expected.skipped.items():
            yield from _without(f"{resource}: {candidate}", part, skipped.get(candidate))
        if expected.error is not None:
            yield from _without(f"{resource}: error", expected.error, report["error"])

    # ── what pods receive ──

    async def _allocate(self, step: CaseStep) -> None:
        self._pods += 1
        pod = step.pod or f"pod-{self._pods}"
        wanted = step.allocate or {}
        counts = {name: one if isinstance(one, int) else len(one) for name, one in wanted.items()}
        chosen = {name: one for name, one in wanted.items() if not isinstance(one, int)}
        try:
            answers = await self._kubelet.admit(pod, {_CONTAINER: counts}, devices=chosen)
        except AdmissionError as error:
            if step.fails is None:
                raise _FailedError(f"rejected: {error}") from None
            if step.fails not in str(error):
                raise _FailedError(*_different("rejected", step.fails, str(error))) from None
            return
        if step.fails is not None:
            raise _FailedError(f"not rejected; expected: {step.fails}")
        differing = tuple(_receives(step.receives or Received(), answers[_CONTAINER]))
        if differing:
            raise _FailedError(*differing)

    async def _free(self, pod: str) -> None:
        try:
            await self._kubelet.free(pod)
        except KeyError:
            raise _FailedError(f"there is no pod {pod}") from None


def _receives(expected: Received, answer: Mapping[str, Any]) -> Iterator[str]:
    yield from _different("env", expected.env, answer["envs"])
    yield from _different("annotations", expected.annotations, answer["annotations"])
    yield from _different("cdi", _in_order(expected.cdi), _in_order(answer["cdiDevices"]))
    devices = _each(expected.devices, permissions="rw")
    yield from _different("devices", _in_order(devices), _in_order(answer["devices"]))
    mounts = _each(expected.mounts, readOnly=True)
    yield from _different("mounts", _in_order(mounts), _in_order(answer["mounts"]))


def _each(
    entries: Sequence[str | BaseModel] | None, **default: object
) -> list[dict[str, Any]] | None:
    """Return entries in full; a path alone is the same in the container."""
    if entries is None:
        return None
    return [
        {"hostPath": one, "containerPath": one, **default}
        if isinstance(one, str)
        else one.model_dump(by_alias=True)
        for one in entries
    ]


def _in_order(entries: Sequence[T] | None) -> list[T] | None:
    return None if entries is None else sorted(entries, key=repr)


def _different(what: str, expected: object, found: object) -> Iterator[str]:
    if expected is not None and expected != found:
        yield f"{what}: expected {expected!r}, found {found!r}"


def _without(what: str, expected: str, found: str | None) -> Iterator[str]:
    if found is None or expected not in found:
        yield f"{what}: expected {expected!r}, found {found!r}"
