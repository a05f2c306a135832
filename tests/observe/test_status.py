"""The status of a running devhost."""

import asyncio
import contextlib
import json
import re
from pathlib import Path

import pytest

from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.asking import (
    A,
    colas,
    get,
    port_of,
    resource,
    scrape,
    send,
    status,
    status_port_of,
    until_status,
)
from tests.support.daemon import Daemon, tokens
from tests.support.hosting import Kubelet

B = "example.com/b"
GOLDEN = Path(__file__).with_name("golden")


async def test_status_of_missing_devices(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    place = directory / "colas"
    (place / "one").touch()
    (place / "two").symlink_to("/nowhere")
    daemon.flags += ["--node-name", "node-7"]
    health = ", health: {checks: [readable], interval: 100ms}, removeMissingAfter: never"
    await daemon.start(colas(directory, health))
    await started.wait(A, 1, 1)
    port = await status_port_of(daemon)
    report = await until_status(port, lambda doc: resource(doc).get("registered"))
    assert (report["nodeName"], report["ready"], report["troubles"]) == ("node-7", True, [])
    assert report["kubelet"] == {"podResources": "known", "restarts": 0}
    entry = resource(report)
    assert (entry["state"], entry["streams"]) == ("Registered", 1)
    assert (entry["capacity"], entry["allocatable"]) == (1, 1)
    assert entry["skipped"] == [{"candidate": str(place / "two"), "reason": "dangling link"}]
    (device,) = entry["devices"]
    assert (device["id"], device["health"], device["reason"]) == ("one", "Healthy", None)
    assert device["paths"] == [str(place / "one")]

    checked = device["checked"]  # the last round of checks, though it changed nothing
    await until_status(port, lambda doc: resource(doc)["devices"][0]["checked"] != checked)
    await until_status(port, lambda doc: resource(doc)["expected"] == 1)
    (place / "one").unlink()
    await started.wait(A, 1, 0)
    report = await until_status(port, lambda doc: doc["troubles"])
    assert report["ready"]
    assert (resource(report)["unhealthy"], resource(report)["missing"]) == (0, 1)
    samples = await scrape(await port_of(daemon))
    assert samples.value("devhost_devices", resource_name=A, health="Unhealthy") == 0
    (device,) = resource(report)["devices"]
    assert device["health"] == "Unhealthy"
    assert "not found" in device["reason"]


async def test_status_without_devices(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    """While there are none, also when the last device has gone."""
    place = directory / "colas"
    reason = f"directory {place}: there is nothing to select"
    await daemon.start(colas(directory, ", removeMissingAfter: 0s"))
    port = await status_port_of(daemon)
    await until_status(port, lambda doc: resource(doc).get("warnings") == [reason])
    await daemon.logged("no devices", reason=reason)
    (place / "one").touch()
    await started.wait(A, 1, 1)
    await until_status(port, lambda doc: not resource(doc)["warnings"])
    (place / "one").unlink()
    await started.wait(A, 0, 0)
    await until_status(port, lambda doc: resource(doc)["warnings"] == [reason])


async def test_status_of_reloads_and_drains(daemon: Daemon, started: Kubelet) -> None:
    await daemon.start(tokens(a=1, b=2))
    await started.wait(A, 1, 1)
    await started.wait(B, 2, 2)
    port = await status_port_of(daemon)
    before = await status(port)
    assert [entry["name"] for entry in before["resources"]] == [A, B]
    assert before["config"]["file"] == str(daemon.config)
    assert before["config"]["problems"] == []
    daemon.write("version: v1\nresource: []\n")
    report = await until_status(port, lambda doc: doc["config"]["problems"])
    problems = [problem for problem in report["config"]["problems"] if problem["line"] == 2]
    assert (problems[0]["column"], problems[0]["severity"]) == (1, "error")
    assert "resources" in problems[0]["message"]
    assert report["config"]["failures"] == 1
    assert (report["config"]["hash"], report["ready"]) == (before["config"]["hash"], True)
    assert report["troubles"] == ["configuration file invalid; still serving the last good one"]
    await daemon.logged(report["troubles"][0])
    daemon.write(tokens(a=1))
    report = await until_status(port, lambda doc: not resource(doc, B))
    assert report["config"]["problems"] == []
    assert (report["config"]["reloads"], report["config"]["failures"]) == (1, 1)
    assert report["config"]["hash"] != before["config"]["hash"]
    assert report["troubles"] == []
    samples = await scrape(await port_of(daemon))
    assert samples.value("devhost_config_last_reload_successful") == 1
    for result in ("ok", "error"):
        assert samples.value("devhost_config_reloads_total", result=result) == 1
    assert not samples.names_of(B)
    hashes = [s.labels["hash"] for s in samples.all if s.name == "devhost_config_hash_info"]
    assert hashes == [report["config"]["hash"]]


async def test_status_names_pods(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    await daemon.start(tokens(a=1))
    await started.wait(A, 1, 1)
    port = await status_port_of(daemon)
    await until_status(port, lambda doc: doc["kubelet"]["podResources"] == "known")
    await started.admit("pod", {"app": {A: 1}})
    await until_status(port, lambda doc: resource(doc)["holders"] == {"0": ["default/pod"]})
    daemon.write(tokens())
    report = await until_status(port, lambda doc: "default/pod" in (resource(doc)["reason"] or ""))
    assert resource(report)["state"] == "Draining"
    assert "removed from the configuration" in resource(report)["devices"][0]["reason"]
    assert resource(report)["registered"]
    assert report["troubles"] == []
    assert "devhost_devices" not in (await scrape(await port_of(daemon))).names_of(A)
    await started.kill() if isinstance(started, SimulatedKubelet) else await started.stop()
    report = await until_status(port, lambda doc: doc["kubelet"]["podResources"] != "known")
    assert "pr.sock" in report["kubelet"]["podResources"]
    assert any("pod-resources unavailable" in trouble for trouble in report["troubles"])


async def test_status_is_not_beside_the_metrics(daemon: Daemon, started: Kubelet) -> None:
    """Names, paths and pods are where the status is alone, and no probe or metric is there."""
    await daemon.start(tokens(a=1))
    await started.wait(A, 1, 1)
    port, metrics = await status_port_of(daemon), await port_of(daemon)
    for path in ("/", "/status"):
        assert (await get(metrics, path)).status == 404
        assert (await get(port, path)).status == 200
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await get(metrics, path)).status == 200
        assert (await get(port, path)).status == 404
    # DNS rebinding: a foreign name leads here, and the browser takes it for the same origin.
    foreign = b"GET %s HTTP/1.1\r\nHost: evil.example.com:9111\r\n\r\n"
    assert (await send(port, foreign % b"/status")).status == 421
    assert (await send(metrics, foreign % b"/metrics")).status == 200  # by a service's name


async def test_readiness_without_kubelet_and_restarted(daemon: Daemon, kubelet: Kubelet) -> None:
    """devhost waits without kubelet, and says so; once registered, it stays ready."""
    await daemon.start(tokens(a=1))
    port = await port_of(daemon)
    report = await until_status(port, lambda doc: doc["ready"], "/readyz")
    (entry,) = report["resources"].values()
    assert (entry["state"], entry["reason"]) == ("Waiting", "no kubelet: kubelet.sock is not there")
    assert (await get(port, "/healthz")).status == 200
    await kubelet.start()
    await kubelet.wait(A, 1, 1)
    await until_status(port, lambda doc: doc["resources"][A]["state"] == "Registered", "/readyz")

    seen = set()
    watching = asyncio.Event()

    async def watch() -> None:
        while True:
            answer = await get(port, "/readyz")
            seen.add(answer.status)
            if answer.json()["resources"][A]["state"] != "Registered":
                watching.set()

    task = asyncio.create_task(watch())
    await kubelet.stop()
    await watching.wait()
    await kubelet.start()
    await kubelet.wait(A, 1, 1)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert seen == {200}
    await kubelet.stop()


async def test_readiness_where_kubelet_refuses_is_lost(daemon: Daemon, directory: Path) -> None:
    """Something listens, but it is no kubelet: that is no reason to wait, but a failure."""
    server = await asyncio.start_unix_server(
        lambda _, writer: writer.close(), directory / "plugins" / "kubelet.sock"
    )
    async with server:
        await daemon.start(tokens(a=1))
        port = await port_of(daemon)
        report = await until_status(
            port, lambda doc: doc["resources"].get(A, {}).get("state") == "BackingOff", "/readyz"
        )
        assert not report["ready"]
        assert (await get(port, "/healthz")).status == 200
        report = await until_status(await status_port_of(daemon), lambda doc: doc["troubles"])
        assert not report["ready"]
        assert not resource(report)["registered"]
    failed = "devhost_registrations_total"
    text = (await get(port, "/metrics")).body.decode()
    assert re.search(rf'{failed}{{resource_name="{A}",result="error"}} [1-9]', text)


async def test_readiness_waits_for_a_valid_file(daemon: Daemon, started: Kubelet) -> None:
    """The copy may be that of a release that was uninstalled: its resources are served, unready."""
    daemon.state.mkdir(exist_ok=True)
    (daemon.state / "last-good.yaml").write_text(tokens(a=1))
    await daemon.start("version: v2\n")
    await started.wait(A, 1, 1)
    port = await port_of(daemon)
    report = await until_status(port, lambda doc: doc["resources"][A]["ready"], "/readyz")
    assert (report["ready"], report["configured"]) == (False, False)
    assert (await get(port, "/healthz")).status == 200
    details = await status_port_of(daemon)
    assert (await status(details))["config"]["file"] == str(daemon.state / "last-good.yaml")
    daemon.write(tokens(a=2))
    await started.wait(A, 2, 2)
    await until_status(details, lambda doc: doc["config"]["file"] == str(daemon.config))
    daemon.write("version: v2\n")
    await until_status(details, lambda doc: doc["config"]["problems"])
    assert (await get(port, "/readyz")).status == 200


def shape(value: object) -> object:
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items() if key != "holders"}
    return [shape(value[0])] if isinstance(value, list) and value else None


@pytest.mark.parametrize("path", ["/status", "/readyz"])
async def test_status_shape(daemon: Daemon, started: Kubelet, directory: Path, path: str) -> None:
    (directory / "colas" / "one").touch()
    (directory / "colas" / "two").symlink_to("/nowhere")
    await daemon.start(colas(directory, ", minDevices: 2, health: {checks: [readable]}"))
    await started.wait(A, 1, 1)
    port = await (status_port_of if path == "/status" else port_of)(daemon)
    report = await until_status(port, lambda doc: doc["ready"], path)
    example = json.loads((GOLDEN / f"{path[1:]}.json").read_text())
    if path == "/status":
        daemon.write("version: v1\nresource: []\n")
        report = await until_status(port, lambda doc: doc["config"]["problems"])
        assert shape(report) == shape(example)
    else:
        assert shape([*report["resources"].values()]) == shape([*example["resources"].values()])
        assert report.keys() == example.keys()
