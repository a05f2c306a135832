"""A device that is gone is reported, also after it has left the list, until the file changes."""

from pathlib import Path

from tests.support.asking import (
    A,
    Json,
    asked,
    colas,
    port_of,
    resource,
    scrape,
    status_port_of,
    until_status,
)
from tests.support.daemon import Daemon
from tests.support.hosting import Kubelet

GONE_SOON = ", removeMissingAfter: 0s"
OTHER = "example.com/other"


def missing(status: Json, name: str = A) -> tuple[int, int]:
    entry = resource(status, name)
    return (entry["missing"], entry["expected"]) if entry else (0, 0)


async def until_missing(port: int, count: int, expected: int) -> Json:
    """Wait until so many devices are missing, and nothing else is amiss; return the status."""
    troubles = [f"{A}: {count} of {expected} devices missing"] if count else []

    def true(status: Json) -> bool:
        texts = [trouble.partition(" (")[0] for trouble in status["troubles"]]
        return missing(status) == (count, expected) and texts == troubles

    return await until_status(port, true)


async def with_two(daemon: Daemon, kubelet: Kubelet, directory: Path, options: str = "") -> int:
    """Start with two devices, and wait until they are counted; return where to ask."""
    for name in "ab":
        (directory / "colas" / name).touch()
    await daemon.start(colas(directory, GONE_SOON + options))
    await kubelet.wait(A, 2, 2)
    port = await status_port_of(daemon)
    await until_missing(port, 0, 2)
    return port


async def test_unlisted_device_is_missed(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    port = await with_two(daemon, started, directory)
    (directory / "colas" / "a").unlink()
    await started.wait(A, 1, 1)  # nothing is left of it there
    status = await until_missing(port, 1, 2)
    assert "minDevices: 1" in status["troubles"][0]
    code, text, _ = await asked("--status-listen", f":{port}")
    assert code == 1
    assert "1 of 1 allocatable, 1 missing" in text
    assert f"{A}: 1 of 2 devices missing (" in text
    samples = await scrape(await port_of(daemon))
    assert samples.value("devhost_devices_missing", resource_name=A) == 1
    assert samples.value("devhost_devices_expected", resource_name=A) == 2
    line = await daemon.logged("devices missing", resource=A)
    assert (line["level"], line["missing"], line["expected"]) == ("warning", 1, 2)

    (directory / "colas" / "b").unlink()
    await started.wait(A, 0, 0)
    await until_missing(port, 2, 2)
    await daemon.logged("devices missing", missing=2)

    for name in "ab":
        (directory / "colas" / name).touch()
    await daemon.logged("no device is missing any longer", resource=A)
    await until_missing(port, 0, 2)


async def test_minimum_counts_from_start(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    await daemon.start(colas(directory))
    port = await status_port_of(daemon)
    await until_missing(port, 0, 0)
    daemon.write(colas(directory, ", minDevices: 2"))
    await until_status(port, lambda doc: missing(doc) == (2, 2))
    (directory / "colas" / "a").touch()
    await until_missing(port, 1, 2)
    daemon.write(colas(directory, ", minDevices: 1"))
    await until_missing(port, 0, 1)


async def test_edit_may_bring_fewer(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    """An edit of the sources, or a new resource before it, may leave a resource fewer devices."""
    port = await with_two(daemon, started, directory)
    daemon.write(colas(directory).replace("colas]", "colas/a]").replace("directory:", "glob:"))
    await started.wait(A, 1, 1)
    await until_missing(port, 0, 1)

    daemon.write(colas(directory, GONE_SOON))
    await until_status(port, lambda doc: missing(doc) == (0, 2))
    entries = colas(directory, GONE_SOON).splitlines()
    first = f"  - {{name: {OTHER}, sources: [glob: {directory}/colas/b]}}"
    daemon.write("\n".join([*entries[:2], first, *entries[2:]]))
    await started.wait(A, 1, 1)
    await until_status(port, lambda doc: resource(doc).get("expected") == 1)
    await until_status(port, lambda doc: resource(doc, OTHER).get("expected") == 1)
    await until_status(port, lambda doc: doc["troubles"] == [])
    assert not daemon.found("devices missing")


async def test_removal_expects_nothing(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    port = await with_two(daemon, started, directory)
    daemon.write("version: v1\nresources: []\n")
    await until_status(port, lambda doc: not doc["resources"])
    (directory / "colas" / "a").unlink()
    daemon.write(colas(directory))
    await started.wait(A, 1, 1)
    await until_missing(port, 0, 1)
