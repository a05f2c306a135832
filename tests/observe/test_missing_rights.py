"""A missing right concerns the resource that needs it, and no other."""

from pathlib import Path
from typing import Any

import yaml

from tests.support.asking import get, port_of, resource, scrape, status_port_of, until_status
from tests.support.daemon import Daemon
from tests.support.hosting import Kubelet

TOKEN = {"sources": [{"static": 1}]}
# What a resource asks for, and the text to paste that it needs.
ASKS: dict[str, tuple[dict[str, Any], str]] = {
    "mount": ({"allocate": {"mounts": ["/etc"]}}, "--allow-path '/etc' (chart: allow.paths)"),
    "step": ({"preStart": [{"run": ["touch", "MARKER"]}]}, "--allow-exec (chart: allow.exec)"),
    "check": ({"health": {"exec": ["touch", "MARKER"]}}, "--allow-exec (chart: allow.exec)"),
    "cdi": ({"allocate": {"cdi": ["v.com/c=a"]}}, "--allow-cdi 'v.com/c=a' (chart: allow.cdi)"),
    "env": (
        {"allocate": {"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}},
        "--allow-cdi NVIDIA_VISIBLE_DEVICES (chart: allow.cdi)",
    ),
    "note": (
        {"allocate": {"annotations": {"e.com/a": "b"}}},
        "--allow-annotation 'e.com/a' (chart: allow.annotations)",
    ),
}
FLAGS = [*("--allow-exec", "--allow-path", "/etc", "--allow-cdi", "*"), "--allow-annotation", "*"]


def text(marker: Path, **resources: dict[str, Any]) -> str:
    """Return a file with resources that need a right, and with others."""
    asking = {name: {**TOKEN, **options} for name, (options, _) in ASKS.items()}
    entries = [{"name": f"e.com/{name}", **keys} for name, keys in (asking | resources).items()]
    whole = yaml.safe_dump({"version": "v1", "resources": entries})
    return whole.replace("MARKER", str(marker))


async def refused(port: int) -> dict[str, Any]:
    """Return the status once it has the reason of each resource without its right."""

    def says(status: dict[str, Any]) -> bool:
        texts = {text.partition(": ")[0]: text for text in status["troubles"]}
        return all(right in texts.get(f"e.com/{name}", "") for name, (_, right) in ASKS.items())

    return await until_status(port, says)


async def test_missing_right_is_unhealthy(daemon: Daemon, started: Kubelet, tmp_path: Path) -> None:
    """Only the devices that need the right are unhealthy, at the start and at a reload."""
    marker = tmp_path / "it-ran"
    good = {**TOKEN, "allocate": {"env": {"A": "x"}}}
    await daemon.start(text(marker, good=good, by_dra={**good, "backend": "dra"}))
    await started.wait("e.com/good", 1, 1)
    port = await status_port_of(daemon)
    status = await refused(port)
    for name in ASKS:
        await started.wait(f"e.com/{name}", 1, 0)
        (device,) = resource(status, f"e.com/{name}")["devices"]
        assert device["health"] == "Unhealthy"
    waits = "Waiting: Dynamic Resource Allocation needs --dra (chart: dra.enabled)"
    assert f"e.com/by_dra: {waits}" in status["troubles"]
    assert not any("e.com/good" in trouble for trouble in status["troubles"])
    assert not resource(status, "e.com/by_dra")["registered"]
    status = await until_status(port, lambda doc: doc["ready"])
    ready = await get(await port_of(daemon), "/readyz")
    assert (ready.status, status["ready"], status["config"]["problems"]) == (200, True, [])
    assert daemon.found("resources[0].allocate.mounts[0]: mounts need --allow-path '/etc'")

    # The device plugin does not go on for a resource that DRA is to offer.
    daemon.write(text(marker, good={**good, "backend": "dra"}, late=good))
    await started.wait("e.com/late", 1, 1)
    status = await until_status(port, lambda doc: f"e.com/good: {waits}" in doc["troubles"])
    await started.wait("e.com/good", 0, 0)
    assert status["config"]["failures"] == 0
    reloaded = (await scrape(await port_of(daemon))).value("devhost_config_last_reload_successful")
    assert reloaded == 1
    await daemon.stop()
    assert not marker.exists()


async def test_last_good_has_no_rights(daemon: Daemon, started: Kubelet, tmp_path: Path) -> None:
    marker, few = tmp_path / "it-ran", daemon.flags
    daemon.flags = [*few, *FLAGS]
    await daemon.start(text(marker, good=TOKEN))
    for name in ("good", *ASKS):
        await started.wait(f"e.com/{name}", 1, 1)
    assert marker.exists()
    await daemon.stop()
    marker.unlink()
    daemon.flags = few
    daemon.lines.clear()  # of the former process
    await daemon.start("invalid")
    await started.wait("e.com/good", 1, 1)
    await refused(await status_port_of(daemon))
    await daemon.stop()
    assert not marker.exists()
