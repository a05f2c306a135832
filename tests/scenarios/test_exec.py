"""A running host with the source ``exec``: when its command runs, and what its failures do."""

import json
from pathlib import Path
from typing import Final

import pytest

from devhost.allocation.policy import Policy
from devhost.host import inventory
from devhost.standin.kubelet import SimulatedKubelet
from tests.support.daemon import until
from tests.support.hosting import Hosting

CARD: Final = "example.com/card"
ALLOWED: Final = Policy(allow_exec=True)


class Tool:
    """A program that lists devices, and notes that it has run."""

    def __init__(self, directory: Path) -> None:
        self.path, self._listed = directory / "list-cards", directory / "listed"
        self._runs = directory / "runs"
        self._runs.touch()
        self.path.write_text(
            f"#!/bin/sh\necho $DEVHOST_RESOURCE >> {self._runs}\ncat {self._listed}\n"
        )
        self.path.chmod(0o755)

    def lists(self, *ids: str) -> None:
        """Have it list devices."""
        new = self._listed.with_suffix(".new")
        new.write_text(json.dumps({"devices": [{"id": one} for one in ids]}))
        new.rename(self._listed)

    def fails(self) -> None:
        """Have it fail."""
        self._listed.unlink()

    @property
    def runs(self) -> list[str]:
        """For which resources it has run."""
        return self._runs.read_text().split()

    def config(self, interval: str, more: str = "", others: str = "") -> str:
        """Return a configuration that has it run."""
        source = f"exec: {{command: [{self.path}], interval: {interval}}}"
        return f"version: v1\nresources:\n- name: {CARD}\n  sources:\n  - {source}\n{more}{others}"


@pytest.fixture
def tool(directory: Path) -> Tool:
    return Tool(directory)


async def test_it_runs_again_after_the_interval(
    tool: Tool, hosting: Hosting, standin: SimulatedKubelet
) -> None:
    tool.lists("a")
    hosting.start(tool.config("100ms"), policy=ALLOWED)
    await standin.wait(CARD, 1, 1)
    tool.lists("a", "b")
    await standin.wait(CARD, 2, 2)
    tool.lists("b")
    await standin.wait(CARD, 2, 1)
    assert hosting.reason(CARD, "a") == "not found any more"


async def test_nothing_else_makes_it_run(
    tool: Tool, hosting: Hosting, standin: SimulatedKubelet, tmp_path: Path
) -> None:
    """Neither a scan for another source nor the rescan; a change of the file does."""
    (tmp_path / "own").mkdir()
    tool.lists("a")
    config = tool.config("1h", f"  - glob: {tmp_path}/own/*\n")
    host = hosting.start(config, policy=ALLOWED)
    await standin.wait(CARD, 1, 1)
    (tmp_path / "own" / "file").touch()
    await standin.wait(CARD, 2, 2)
    for runner in host.runners:
        runner.rescan()
    (tmp_path / "own" / "other").touch()
    await standin.wait(CARD, 3, 3)
    assert tool.runs == [CARD]
    tool.lists("a", "b")
    hosting.reload(config + "- {name: example.com/token, sources: [static: 1]}\n")
    await standin.wait(CARD, 4, 4)
    assert tool.runs == [CARD, CARD]


async def test_failures_are_shown_and_the_third_makes_devices_unhealthy(
    tool: Tool, hosting: Hosting, standin: SimulatedKubelet
) -> None:
    tool.lists("a")
    host = hosting.start(tool.config("1h"), policy=ALLOWED)
    await standin.wait(CARD, 1, 1)
    (runner,) = host.runners
    (root,) = runner.roots
    tool.fails()
    for healthy in (True, True, False, False):
        former = runner.snapshot
        root.again()
        await until(lambda former=former: runner.snapshot is not former, "a scan")
        assert runner.snapshot.error is not None
        assert "exited with 1: cat: " in runner.snapshot.error
        assert runner.snapshot.devices["a"].healthy is healthy
    reason = hosting.reason(CARD, "a")
    assert reason is not None
    assert reason.startswith(f"its source could not be read: {tool.path}: exited with 1: cat: ")
    tool.lists("a", "b")
    root.again()
    await standin.wait(CARD, 2, 2)
    assert runner.snapshot.error is None


async def test_one_that_never_succeeded_has_no_devices(
    tool: Tool, hosting: Hosting, standin: SimulatedKubelet
) -> None:
    host = hosting.start(tool.config("1h"), policy=ALLOWED)
    await standin.wait(CARD, 0, 0)
    (runner,) = host.runners
    assert runner.snapshot.error is not None
    assert runner.snapshot.error.endswith("; it has never succeeded")


async def test_one_that_takes_long_holds_up_nothing(
    tool: Tool,
    hosting: Hosting,
    standin: SimulatedKubelet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The resource is served without its devices until it has ended; it ends with its source."""
    monkeypatch.setattr(inventory, "ANSWER_S", 0.2)
    pid, go = tmp_path / "pid", tmp_path / "go"
    tool.lists("a")
    text = tool.path.read_text()
    wait = f"echo $$ > {pid}\nuntil test -e {go}; do sleep 0.02; done\n"
    tool.path.write_text(text.replace("cat ", f"{wait}cat "))
    host = hosting.start(tool.config("1h"), policy=ALLOWED)
    await standin.wait(CARD, 0, 0)
    (runner,) = host.runners
    assert runner.snapshot.error == "no list in 0 s"
    go.touch()
    await standin.wait(CARD, 1, 1)
    go.unlink()
    pid.unlink()
    (root,) = runner.roots
    root.again()
    await until(lambda: pid.exists() and pid.read_text(), "a second run")
    hosting.reload("version: v1\nresources: [{name: example.com/b, sources: [static: 1]}]")
    await until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists(), "its end")


async def test_two_resources_have_it_run_for_each(
    tool: Tool, hosting: Hosting, standin: SimulatedKubelet
) -> None:
    """It gets the name of the resource; of a resource with the same command twice it runs once."""
    tool.lists("a")
    other = (
        f"- name: example.com/b\n  sources: [{{exec: [{tool.path}]}}, {{exec: [{tool.path}]}}]\n"
    )
    hosting.start(tool.config("1h", others=other), policy=ALLOWED)
    await standin.wait(CARD, 1, 1)
    await standin.wait("example.com/b", 1, 1)
    assert sorted(tool.runs) == ["example.com/b", CARD]


async def test_without_the_flag_it_does_not_run(
    tool: Tool, hosting: Hosting, standin: SimulatedKubelet
) -> None:
    """As in `try`: the note says why there are no devices."""
    tool.lists("a")
    host = hosting.start(tool.config("100ms"))
    await standin.wait(CARD, 0, 0)
    (runner,) = host.runners
    reason = f"{tool.path} is not run: running a command needs --allow-exec"
    assert runner.snapshot.notes == (reason,)
    assert tool.runs == []
