"""Code and YAML in one process: one life cycle, and the rules between resources hold for both."""

from pathlib import Path

import pytest

from devhost import Device
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.library.scripted import NAME, Plain, Scripted, fields
from tests.library.serving import Serving
from tests.support.daemon import tokens, until
from tests.support.devices import skip_reasons
from tests.support.hosting import Kubelet

YAML = "example.com/yaml"
CLASH = "not served from the configuration: code serves it"


async def test_code_during_a_reload_goes_on(started: Kubelet, serving: Serving) -> None:
    """YAML resources come, change and go; the code's socket and stream stay as they are."""
    plugin = Scripted(["a"])
    serving.serve(plugin, config=tokens(yaml=2))
    await started.wait(NAME, 1, 1)
    await started.wait(YAML, 2, 2)
    await until(lambda: len(plugin.called("refresh")) == 1, "registered")
    serving.config.write_text(tokens(yaml=3, more=1))
    await started.wait(YAML, 3, 3)
    await started.wait("example.com/more", 1, 1)
    serving.config.write_text("version: v1\nresources: 7\n")
    plugin.now = ["a", "b"]
    plugin.changed()
    await started.wait(NAME, 2, 2)
    serving.config.write_text(tokens(yaml=1))
    await started.wait(YAML, 1, 1)
    await started.wait("example.com/more", 0, 0)
    answer = (await started.admit("pod", {"app": {NAME: 2, YAML: 1}}))["app"]
    assert answer["deviceIds"] == {NAME: ["a", "b"], YAML: ["0"]}
    assert len(plugin.called("refresh")) == 1


async def test_code_name_of_the_file_too_is_served_by_code(
    standin: SimulatedKubelet, serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    serving.serve(Plain(["a"]), config=tokens(coded=5, yaml=1))
    await standin.wait(NAME, 1, 1)
    await standin.wait(YAML, 1, 1)
    assert fields(caplog.records, CLASH) == [{"resource": NAME}]
    serving.config.write_text(tokens(coded=6, yaml=2))
    await standin.wait(YAML, 2, 2)
    assert len(fields(caplog.records, CLASH)) == 2
    serving.config.write_text(tokens(yaml=3))
    await standin.wait(YAML, 3, 3)
    assert await standin.capacity() == {NAME: (1, 1), YAML: (3, 3)}
    assert standin.registrations.count(NAME) == 1


async def test_code_node_is_kept(standin: SimulatedKubelet, serving: Serving, nodes: Path) -> None:
    """Code comes before the file."""
    yaml = f"version: v1\nresources: [{{name: {YAML}, sources: ['{nodes}/*']}}]\n"
    plugin = Plain([Device("one", paths=[str(nodes / "a")])])
    shares = Plain([Device("s", paths="/dev/full")], "example.com/shared", overlap="allow")
    serving.serve(plugin, shares, config=yaml)
    await standin.wait(NAME, 1, 1)
    await standin.wait(YAML, 1, 1)
    offered = f"{NAME} offers it already"
    skipped = skip_reasons(serving.snapshot(YAML).skipped)
    assert skipped[f"{nodes}/a"] == offered
    plugin.now = []
    plugin.changed()
    await standin.wait(NAME, 1, 0)


async def test_code_for_other_nodes_is_ignored(standin: SimulatedKubelet, serving: Serving) -> None:
    plugin = Scripted(["a"], node_names="node-[02]")
    serving.serve(plugin, Plain(["b"], YAML))
    await standin.wait(YAML, 1, 1)
    await serving.stop()
    assert set(await standin.capacity()) == {YAML}
    assert plugin.calls == []
