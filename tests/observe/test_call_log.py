"""The log of the kubelet's calls, as an audit wants it."""

import json
from pathlib import Path

import grpc
import pytest

from devhost.backends.deviceplugin import servicer
from devhost.fake_kubelet.kubelet import AdmissionError
from devhost.model.allocation import Allocation, DeviceSpec, MountSpec
from tests.observe.calls import allocate
from tests.support.daemon import Daemon, tokens
from tests.support.hosting import Kubelet

A = "example.com/a"
FULL = """\
version: v1
resources:
  - name: example.com/a
    sources: [/dev/null]
    replicas: 2
    allocate:
      env: {{SECRET: hunter2}}
      annotations: {{example.com/used: "yes"}}
      mounts: [{{hostPath: {place}, containerPath: /data, readOnly: true}}]
"""
STEP = """\
version: v1
resources:
  - {{name: example.com/a, sources: [static: 1], preStart: [{{run: [/bin/mkdir, "{mark}"], every: start}}]}}
"""


async def test_log_of_an_allocation(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    place = directory / "colas"
    daemon.flags += ["--allow-path", str(place)]
    daemon.flags += ["--allow-annotation", "example.com/used"]
    await daemon.start(FULL.format(place=place))
    await started.wait(A, 2, 2)
    await started.admit("pod", {"app": {A: 1}})
    line = await daemon.logged("allocated", resource=A)
    assert line["level"] == "info"
    assert line["ids"] in (["null::0"], ["null::1"])
    assert (line["env"], line["annotations"]) == (["SECRET"], ["example.com/used"])
    assert line["devices"] == ["/dev/null:/dev/null:rw"]
    assert line["numbers"] == ["c 1:3"]
    assert line["mounts"] == [f"{place}:/data:ro"]
    assert "hunter2" not in str(daemon.lines)


async def test_allocation_of_containers_is_one_line(daemon: Daemon, started: Kubelet) -> None:
    """A client may ask for any number of containers, also none; kubelet asks for one."""
    await daemon.start(tokens(a=3))
    await started.wait(A, 3, 3)
    await allocate(daemon, ["0", "1"], ["2"])
    await allocate(daemon)
    await allocate(daemon, ["0"])
    await daemon.logged("allocated", ids=["0"])
    lines = [(line["ids"], line.get("containers")) for line in daemon.found("allocated")]
    assert lines == [(["0", "1", "2"], 2), ([], 0), (["0"], None)]


@pytest.mark.parametrize("text", ["\x1b" * 50_000, "\u202e" * 50_000, "\ud800" * 50_000])
def test_allocation_of_long_texts_logs_little(caplog: pytest.LogCaptureFixture, text: str) -> None:
    node, mount = DeviceSpec(text, text, "rw"), MountSpec(text, text, read_only=True)
    texts = (text,) * 1000
    answer = Allocation(texts, {text: ""}, (mount,) * 1000, (node,) * 1000, {text: ""}, texts)
    caplog.set_level("INFO", "devhost.backends.deviceplugin.servicer")
    servicer.log_allocated(A, [answer], 0.0)
    servicer.log_failed("allocation", A, texts, text, result="refused")
    for record in caplog.records:
        fields = record.__dict__["fields"]
        assert len(json.dumps(fields)) < 100_000
        assert str(fields).isprintable()
        assert fields["ids"][16:] == ["and 984 more"]


async def test_allocation_that_is_refused_is_warned_of(daemon: Daemon, started: Kubelet) -> None:
    await daemon.start(tokens(a=1))
    await started.wait(A, 1, 1)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await allocate(daemon, ["nope"])
    line = await daemon.logged("allocation failed", resource=A)
    assert (line["level"], line["ids"], line["result"]) == ("warning", ["nope"], "refused")
    assert line["reason"] == raised.value.details()


async def test_log_of_a_container_start(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    daemon.flags += ["--allow-exec"]
    await daemon.start(STEP.format(mark=directory / "mark"))
    await started.wait(A, 1, 1)
    await started.admit("pod", {"app": {A: 1}})  # the first time there is no mark
    line = await daemon.logged("devices prepared for a container", resource=A)
    assert (line["level"], line["ids"]) == ("info", ["0"])
    with pytest.raises(AdmissionError):
        await started.start_container("pod", "app")
    line = await daemon.logged("preparing devices for a container failed", resource=A)
    assert (line["level"], line["ids"]) == ("warning", ["0"])
    assert "run mkdir" in line["reason"]


async def test_log_of_a_devices_health(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    place = directory / "colas"
    (place / "a").touch()
    (place / "b").symlink_to("/nowhere")
    await daemon.start(f"version: v1\nresources: [{{name: {A}, sources: [directory: {place}]}}]\n")
    await started.wait(A, 1, 1)
    assert (await daemon.logged("device found"))["level"] == "info"
    assert (await daemon.logged("skipped"))["level"] == "warning"
    (place / "a").unlink()
    assert (await daemon.logged("device is unhealthy"))["level"] == "warning"
    (place / "a").touch()
    assert (await daemon.logged("device is healthy again"))["level"] == "info"
