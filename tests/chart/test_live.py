"""An edit of the chart's values, from Helm to a kubelet whose pods hold devices."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from devhost.allocation.policy import Policy
from devhost.host.config_source import ConfigSource
from devhost.host.host import Host, Settings
from devhost.host.state_files import LastGood
from devhost.hostfs.files import HostFiles
from devhost.kubelet import servicer
from tests.chart.helm import Helm
from tests.support.realkubelet import REAL_KUBELETS, RealKubelet

KEPT, CHANGED, GONE, NEW = (f"example.com/{name}" for name in ("kept", "changed", "gone", "new"))


class ConfigMapMount:
    """A mounted ConfigMap, updated as the kubelet does it (pkg/volume/util/atomic_writer.go)."""

    def __init__(self, directory: Path, helm: Helm) -> None:
        self.directory, self._helm, self._serial = directory, helm, 0
        directory.mkdir()
        self.file = directory / "config.yaml"
        self.file.symlink_to("..data/config.yaml")

    def update(self, **resources: Any) -> None:
        """Render the chart with these resources, and bring its ConfigMap to the node."""
        declared = [{"name": f"example.com/{name}", **one} for name, one in resources.items()]
        values = {"config": {"version": "v1", "resources": declared}}
        data = self._helm.render(values).one("ConfigMap")["data"]
        self._serial += 1
        fresh = self.directory / f"..2026_11_21_{self._serial:02}"
        fresh.mkdir()
        for name, text in data.items():
            (fresh / name).write_text(text)
        (self.directory / "..data_tmp").symlink_to(fresh.name)
        (self.directory / "..data_tmp").rename(self.directory / "..data")


@pytest.fixture
async def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The resources whose ListAndWatch ended."""
    found: list[str] = []
    listen = servicer.Servicer.ListAndWatch

    async def noting(self: servicer.Servicer, request: object, context: object) -> None:
        try:
            await listen(self, request, context)  # type: ignore[arg-type]
        finally:
            found.append(self._answers.name)

    monkeypatch.setattr(servicer.Servicer, "ListAndWatch", noting)
    return found


@contextlib.asynccontextmanager
async def served(directory: Path, file: Path) -> AsyncIterator[Host]:
    source = ConfigSource(str(file), Policy(enforced=True), LastGood(directory / "state"))
    loaded, _ = source.first()
    settings = Settings(
        directory / "plugins",
        "node-1",
        HostFiles(),
        Policy(enforced=True),
        leave_after=0.3,
        hold_s=0.0,
        state_dir=directory / "state",
        pod_resources=directory / "pr.sock",
        cdi_dir=directory / "cdi",
    )
    host = Host(loaded.require(), settings, source)
    running = asyncio.create_task(host.run())
    try:
        yield host
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("kubelet", REAL_KUBELETS, indirect=True)
async def test_an_edit_reaches_a_node_whose_pods_go_on(
    started: RealKubelet,
    directory: Path,
    helm: Helm,
    ended: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is not affected keeps its stream; what a pod holds drains when the pod has ended."""
    monkeypatch.setattr("devhost.host.holders.POLL_S", 0.1)
    mount = ConfigMapMount(directory / "etc", helm)
    tokens = {"sources": [{"static": 2}]}
    mount.update(kept=tokens, changed=tokens, gone=tokens)
    async with served(directory, mount.file) as host:
        for name in (KEPT, CHANGED, GONE):
            await started.wait(name, 2, 2)
            await started.admit(name.rpartition("/")[2], {"app": {name: 1}})
        async with asyncio.timeout(60):
            while not host.shared.holders.held(GONE):
                await asyncio.sleep(0.005)
        env = {"TOKENS": "${id}"}
        mount.update(kept=tokens, changed={**tokens, "allocate": {"env": env}}, new=tokens)
        await started.wait(NEW, 2, 2)
        await started.wait(GONE, 1, 0)  # the one that nobody held has left
        answer = await started.admit("second", {"app": {CHANGED: 1}})
        assert answer["app"]["envs"]["TOKENS"] in "01"
        assert ended == []
        await started.free("gone")
        await started.wait(GONE, 0, 0)
        async with asyncio.timeout(60):
            while not ended:
                await asyncio.sleep(0.005)
        assert ended == [GONE]
        capacity = await started.capacity()
        assert {capacity[name] for name in (KEPT, CHANGED, NEW)} == {(2, 2)}
