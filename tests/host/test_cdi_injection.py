"""A resource's CDI spec file and what is handed out by it."""

import asyncio
import json
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devhost.allocation import cdi
from devhost.allocation.cdi import Edits
from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.scan import Scanner
from devhost.hostfs.files import HostFiles
from devhost.model.device import Snapshot
from devhost.model.sources import Static
from devhost.node import cdi_files as module
from devhost.node.cdi_files import CdiFiles, CdiInjection
from tests.support.daemon import until
from tests.support.devices import missing, reason_of, snapshot
from tests.support.offered import offered
from tests.support.scanning import selected, snapshot_of

NAME = "example.com/x"
TOKEN = f"""
version: v1
resources:
  - name: {NAME}
    sources: [static: 1]
    inject: cdi
    allocate: {{{{mounts: [{{entry}}], env: {{env}}}}}}
"""


class Bench:
    """One resource of tokens that bring a mount, on a host below a directory."""

    def __init__(self, root: Path, entry: str | None = None) -> None:
        self.place = root / "cdi"
        if entry is None:
            (root / "lib").mkdir()
        text = TOKEN.format(entry=entry or "/lib", env={"TOKENS": "${id}"})
        (resource,) = loads(text).require().resources
        policy = Policy(("/lib*",))
        self.scanner = Scanner(resource, HostFiles(str(root)), policy, "n", settle_s=0.0)
        self.looked, self.files = asyncio.Event(), CdiFiles(self.place)
        self.injection = self.new()

    def new(self) -> CdiInjection:
        return CdiInjection(NAME, self.files, self.looked.set)

    def reason(self) -> str | None:
        judged = self.injection.judge(self.found())
        return reason_of(judged.devices["0"])

    def found(self) -> Snapshot:
        return snapshot_of(self.scanner, selected(self.scanner), Snapshot(), lambda _: None, 0.0)

    async def write(self) -> None:
        await self.injection.write(self.scanner, self.found())

    def written(self) -> list[str]:
        for file in self.place.glob("*.json"):
            (device,) = json.loads(file.read_text())["devices"]
            return [mount["hostPath"] for mount in device["containerEdits"]["mounts"]]
        return []

    def names(self, device: str = "0") -> tuple[str, ...]:
        judged = self.injection.judge(self.found())
        return self.scanner.allocate(judged, offered(device)).cdi_devices


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_cdi_device_that_the_spec_lacks_is_not_named(tmp_path: Path) -> None:
    """A device that has appeared since counts after the next look."""
    bench = Bench(tmp_path, "{hostPath: /lib, optional: true}")
    await bench.write()
    (tmp_path / "lib").mkdir()
    before = bench.names()
    assert bool(before) is bool(bench.written())
    await bench.write()
    assert bench.names() == (cdi.qualified_name(NAME, "0"),)
    assert bench.written() == ["/lib"]


async def test_cdi_device_is_unhealthy_before_there_is_a_spec(tmp_path: Path) -> None:
    """Its container would get neither a name nor the device."""
    bench = Bench(tmp_path)

    reason = bench.reason
    assert "not in the CDI spec yet" in (reason() or "")  # another instance still serves it
    await bench.injection.write(bench.scanner, replace(bench.found(), error="no answer"))
    assert reason() == "its CDI spec waits for a source: no answer"
    await bench.write()
    assert reason() is None


async def test_cdi_spec_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device in the spec stays there, whatever comes before it."""
    bench = Bench(tmp_path)
    resource = bench.scanner.resource
    monkeypatch.setattr("devhost.allocation.cdi.CDI_SPEC_MAX", 500)
    for ids, beyond in ((("1", "2"), ["2"]), (("0", "1", "2"), ["0", "2"])):
        source = resource.sources[0].model_copy(update={"static": Static(ids=ids)})
        changed = resource.model_copy(update={"sources": (source,)})
        bench.scanner = replace(bench.scanner, resource=changed)
        await bench.write()
        judged = bench.injection.judge(bench.found()).devices
        assert [key for key in judged if not judged[key].healthy] == beyond
        assert "not in the CDI spec" in (reason_of(judged["2"]) or "")
        assert bench.names("1") == (cdi.qualified_name(NAME, "1"),)


async def test_cdi_specs_have_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec that has room keeps it; one without is looked at again when there is some."""
    bench, second = Bench(tmp_path), "example.com/y"
    monkeypatch.setattr("devhost.allocation.cdi.CDI_SPECS_MAX", 600)
    await bench.write()
    resource = bench.scanner.resource.model_copy(update={"name": second})
    scanner, looked = replace(bench.scanner, resource=resource), asyncio.Event()
    injection = CdiInjection(second, bench.files, looked.set)

    async def reason() -> str | None:
        await injection.write(scanner, bench.found())
        return reason_of(injection.judge(bench.found()).devices["0"])

    assert "16 MiB of all resources" in (await reason() or "")
    await bench.write()
    assert bench.names() == (cdi.qualified_name(NAME, "0"),)
    assert not looked.is_set()
    await bench.injection.write(bench.scanner, snapshot())
    assert looked.is_set()
    assert await reason() is None


async def test_cdi_spec_is_not_kept_in_memory(tmp_path: Path) -> None:
    bench, size = Bench(tmp_path), 1_000_000
    text = {"A_${id}": "x" * size}
    (resource,) = loads(TOKEN.format(entry="/lib", env=text)).require().resources
    full, scanner = bench.found(), replace(bench.scanner, resource=resource)
    await bench.injection.write(scanner, snapshot())
    tracemalloc.start()
    try:
        await bench.injection.write(scanner, full)
        # A thread may be about to give up what it has returned.
        await until(lambda: tracemalloc.get_traced_memory()[0] < size, "it is given up")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (file,) = bench.place.glob("*.json")
    assert file.stat().st_size > size
    assert peak > size


async def test_cdi_device_that_is_away_stays_in_the_spec(tmp_path: Path) -> None:
    """A container that starts again without it would not notice."""
    bench = Bench(tmp_path, "/lib")
    (tmp_path / "lib").symlink_to("nowhere/else")
    bench.scanner = replace(bench.scanner, policy=Policy(("/*",), enforced=True))
    (tmp_path / "nowhere/else").mkdir(parents=True)
    await bench.write()
    assert bench.written() == ["/nowhere/else"]
    bench.scanner = replace(bench.scanner, policy=Policy((), enforced=True))  # a problem now
    await bench.write()
    assert bench.written() == ["/nowhere/else"]
    (tmp_path / "lib").unlink()
    (tmp_path / "lib").mkdir()  # what is there now is not of a device that is gone
    bench.scanner = replace(bench.scanner, policy=Policy(("/*",), enforced=True))
    gone = (missing(device, 1.0) for device in bench.found().devices.values())
    await bench.injection.write(bench.scanner, snapshot(*gone))
    assert bench.written() == ["/nowhere/else"]


async def test_cdi_spec_is_kept_after_a_restart_with_a_source_that_fails(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.write()
    assert bench.written()
    bench.injection = bench.new()
    await bench.injection.write(bench.scanner, snapshot(error="Input/output error"))
    assert bench.written()
    await bench.injection.write(bench.scanner, snapshot())
    assert not bench.written()


async def test_cdi_spec_of_a_host_that_does_not_answer_is_written_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: threading.Event
) -> None:
    """The devices are unhealthy meanwhile; when it answers it is looked again."""
    calls = 0

    def hanging(*arguments: Any) -> dict[str, Edits]:
        nonlocal calls
        calls += 1
        release.wait(60)
        return cdi.cdi_devices(*arguments)

    monkeypatch.setattr(module, "cdi_devices", hanging)
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    bench = Bench(tmp_path)
    for _ in range(3):
        await bench.write()
    await until(lambda: calls, "a thread looks")
    assert calls == 1
    reason = reason_of(bench.injection.judge(bench.found()).devices["0"])
    assert reason == "its CDI spec could not be written: no answer in 0.01 s"
    release.set()
    await bench.looked.wait()
    monkeypatch.setattr(module, "PATIENCE_S", 10.0)
    await bench.write()
    assert bench.injection.judge(bench.found()).devices["0"].healthy


async def test_cdi_spec_may_take_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at many devices and a long text do not mean that the host hangs."""
    bench = Bench(tmp_path)
    resource, patience = bench.scanner.resource, 2.0
    source = resource.sources[0].model_copy(update={"static": Static(count=25)})
    changed = resource.model_copy(update={"sources": (source,)})
    bench.scanner = replace(bench.scanner, resource=changed)
    monkeypatch.setattr(module, "PATIENCE_S", patience)

    def slowly(work: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def slow(*arguments: object) -> object:
            time.sleep(seconds)
            return work(*arguments)

        return slow

    monkeypatch.setattr(cdi, "edits", slowly(cdi.edits, patience / 20))
    monkeypatch.setattr(cdi, "serialize", slowly(cdi.serialize, patience * 1.1))
    await bench.write()
    judged = bench.injection.judge(bench.found()).devices
    assert all(device.healthy for device in judged.values())


async def test_cdi_spec_of_a_changed_resource_does_not_wait_for_a_former_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: threading.Event
) -> None:
    """That look was given up with the specification; that it hangs says nothing of the host."""
    bench = Bench(tmp_path)
    begun = threading.Event()

    def hanging(*_: object) -> dict[str, Edits]:
        begun.set()
        release.wait(60)
        return {}

    with monkeypatch.context() as patched:
        patched.setattr(module, "cdi_devices", hanging)
        former = asyncio.create_task(bench.write())
        await until(begun.is_set, "a thread looks")
        former.cancel()
        await asyncio.wait({former})
    bench.scanner = replace(bench.scanner)
    await bench.write()
    assert bench.written() == ["/lib"]
    assert bench.names() == (cdi.qualified_name(NAME, "0"),)
