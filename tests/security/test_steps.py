"""Attacks on what preStart steps touch: they look at it right before, as Allocate does."""

import asyncio
import contextlib
import itertools
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devhost.config.loader import loads
from devhost.devices.health_check import check_device
from devhost.errors import PreStartError
from devhost.hostfs.files import pinned_path
from devhost.model.device import Checked
from devhost.node import pre_start
from tests.security.attack import CONSTANTS, DISK, FULL, MEM, NULL, Victim, config, policy, stepped
from tests.support.devices import unhealthy
from tests.support.root import needs_root

RECORD = "/record"
MODE = {"mode": "0666"}


def noting(node: Victim, *words: str) -> dict[str, Any]:
    script = f'printf "%s\\n" "$$@" > {node.root}{RECORD}'
    return {"run": ["sh", "-c", script, "sh", *words], "every": "start"}


def noted(node: Victim) -> list[str]:
    place = Path(f"{node.root}{RECORD}")
    return place.read_text().splitlines() if place.exists() else []


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def watched(node: Victim) -> Victim:
    """A link in a directory where all may write."""
    node.node("/dev/full", FULL)
    node.node("/dev/null", NULL)
    node.node("/dev/sda", DISK, stat.S_IFBLK)
    node.node("/dev/scratch", (8, 16), stat.S_IFBLK)
    node.file("/etc/shadow")
    node.link("/watched/x", "/dev/full").parent.chmod(0o777)
    return node


@needs_root
@pytest.mark.parametrize("template", ["${path}", "${realpath}"])
async def test_command_gets_the_node_behind_a_symlink(watched: Victim, template: str) -> None:
    """Others may bend a link while the command runs."""
    (device,) = watched.found("/watched/x").values()
    await stepped(watched, device, noting(watched, template))
    assert noted(watched) == [f"{watched.root}/dev/full"]


@needs_root
@pytest.mark.parametrize(
    ("path", "target", "why", "words"),
    [
        ("/watched/x", "/dev/sda", "no longer a char device", ["${path}"]),
        ("/watched/x", "/dev/null", "another device than at the last scan", ["${id}"]),
        ("/watched/x", "/etc/shadow", "no longer a char device", ["${id}"]),
        ("/watched/x", "/gone", "no longer exists", ["${path}"]),
        ("/dev/full", "null", "another device than at the last scan", ["${path}"]),
    ],
)
async def test_step_for_what_another_path_leads_to_since_the_scan_is_refused(
    watched: Victim, path: str, target: str, why: str, words: list[str]
) -> None:
    """A step is for the device that the pod got, even if it uses no path but the ID."""
    (device,) = watched.found(path).values()
    watched.link(path, target)
    for step in (noting(watched, *words), MODE):
        with pytest.raises(PreStartError, match=why):
            await stepped(watched, device, step)
    assert not noted(watched)
    assert mode_of(watched.at("/etc/shadow")) == 0o600


@needs_root
async def test_step_for_a_symlink_needs_a_right_to_its_target(
    watched: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at a later scan; and nothing is opened before that is judged."""
    watched.link("/watched/x", "/dev/scratch")
    source = {"glob": {"paths": "/watched/*", "types": "block"}}
    allow = ("/dev/scratch", "/watched/*")
    (device,) = watched.found(source, *allow).values()
    await stepped(watched, device, noting(watched, "${path}"), *allow)
    assert noted(watched) == [f"{watched.root}/dev/scratch"]
    watched.link("/watched/x", "/dev/sda")
    (bent,) = watched.found(source, *allow).values()
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    for step in (noting(watched, "${path}"), noting(watched), MODE):
        with pytest.raises(PreStartError, match="--allow-"):
            await stepped(watched, bent, step, *allow)
        with pytest.raises(PreStartError, match="another device"):
            await stepped(watched, device, step, "/dev/*", "/watched/*")


@needs_root
@pytest.mark.parametrize(
    "step", [{"run": ["true"]}, {"mode": "0666"}, {"run": ["true", "${path}"]}]
)
@pytest.mark.parametrize("path", ["/dev/sda", "/srv/secret"])
def test_device_is_unhealthy_whose_steps_lack_a_right_to_it(
    node: Victim, path: str, step: dict[str, Any]
) -> None:
    """Also where containers are not given the node: kubelet would start no pod with it."""
    node.node("/dev/sda", DISK, stat.S_IFBLK)
    node.file("/srv/secret")
    resource = {"sources": [path], "allocate": {"devices": []}, "preStart": [step]}
    healths = {}
    for allow in ((), (path,)):
        (device,) = node.scan(node.scanner(resource, *allow, execs=True)).devices.values()
        healths[allow] = device.reason or ""
    is_used = path == "/dev/sda" or "${path}" in step.get("run", ())
    assert ("--allow-" in healths[()], healths[path,]) == (is_used, "")


@needs_root
async def test_step_for_an_unhealthy_device_is_refused(watched: Victim) -> None:
    """A step may mend a device that has only failed its checks."""
    (device,) = watched.found("/watched/x").values()
    ill = unhealthy(device, "another device was found in its place")
    for step in (noting(watched), MODE):
        with pytest.raises(PreStartError, match="unhealthy: another device was found"):
            await stepped(watched, ill, step)
    assert not noted(watched)
    failed = Checked(datetime.now(UTC), failure="exec: status 1")
    mended = replace(unhealthy(device, "exec: status 1"), checked=failed)
    await stepped(watched, mended, noting(watched, "a"))
    assert noted(watched) == ["a"]


async def test_command_with_the_path_of_a_file_needs_its_flag(node: Victim) -> None:
    node.file("/etc/shadow")
    node.link("/watched/x", "/etc/shadow")
    node.file("/watched/y")
    by_id = node.found({"directory": "/watched"})
    for device_id, path in (("x", "/etc/shadow"), ("y", "/watched/y")):
        with pytest.raises(PreStartError, match=f"--allow-path '{path}'"):
            await stepped(node, by_id[device_id], noting(node, "${path}"))
    assert not noted(node)
    for device in by_id.values():
        await stepped(node, device, noting(node, "${id}"))
        assert noted(node) == [device.id]
    step = noting(node, "${path}")
    await stepped(node, by_id["y"], step, "/watched/*")
    assert noted(node) == [f"{node.root}/watched/y"]
    node.file("/watched/z").replace(node.at("/watched/y"))
    with pytest.raises(PreStartError, match="/watched/y is another file than at the last scan"):
        await stepped(node, by_id["y"], step, "/watched/*")


@needs_root
async def test_command_of_a_check_for_a_bent_symlink_does_not_run(watched: Victim) -> None:
    """The command gets the node itself, as that of a step does."""
    (device,) = watched.found("/watched/x").values()
    allowed = policy(execs=True)
    argv = noting(watched, "${path}")["run"]
    text = config({"sources": ["/dev/*"], "health": [{"exec": argv}]})
    (loaded,) = loads(text, policy=allowed).require().resources
    assert loaded.health is not None
    outcome = check_device(loaded.health, device, watched.files, CONSTANTS, allow=allowed)
    assert outcome.failure is None
    assert noted(watched) == [f"{watched.root}/dev/full"]
    watched.file(RECORD, "")
    watched.link("/watched/x", "/dev/null")
    outcome = check_device(loaded.health, device, watched.files, CONSTANTS, allow=allowed)
    assert "another device than at the last scan" in (outcome.failure or "")
    assert not noted(watched)


@pytest.mark.parametrize(
    ("name", "argument"), [("-rf", "${name}"), ("--config=x", "${id}"), ("-", "${name}.x")]
)
async def test_device_name_is_no_option(node: Victim, name: str, argument: str) -> None:
    """Steps and checks refuse a name that begins with a dash; other names and paths are passed."""
    node.file(f"/d/{name}")
    node.file("/d/fine")
    out = node.root / "out"
    record = f"import json, sys; open({str(out)!r}, 'a').write(json.dumps(sys.argv[1:]))"
    argv = [sys.executable, "-c", record, argument, "--x=${name}", "${path}"]
    resource = {"sources": [{"directory": "/d"}], "health": [{"exec": argv}]}
    scanner = node.scanner(resource, "*", execs=True)
    devices, checks = node.scan(scanner).devices, scanner.resource.health
    step = {"run": argv, "every": "start"}
    with pytest.raises(PreStartError, match="would be an option"):
        await stepped(node, devices[name], step, "*")
    assert checks is not None
    outcome = check_device(checks, devices[name], node.files, CONSTANTS, allow=scanner.policy)
    assert "would be an option" in (outcome.failure or "")
    assert not out.exists()
    await stepped(node, devices["fine"], step, "*")
    assert json.loads(out.read_text())[1:] == ["--x=fine", f"{node.root}/d/fine"]


@pytest.mark.parametrize(
    ("argv", "warned"),
    [
        (["sh", "-c", "tool ${path}"], True),
        (["/bin/bash", "-ec", "tool '${name}'"], True),
        (["sh", "-c", 'tool "$$1"', "sh", "${path}"], False),
        (["sh", "-c", "tool ${resource} ${index}"], False),
        (["tool", "-c", "${path}"], False),
    ],
)
def test_script_with_a_device_name_in_it_is_a_warning(argv: list[str], *, warned: bool) -> None:
    """A file's name may have a semicolon."""
    resource = {"sources": [{"directory": "/d"}], "preStart": [{"run": argv, "every": "start"}]}
    loaded = loads(config(resource), policy=policy("*", execs=True))
    assert loaded.config is not None, loaded.problems
    assert any("the shell would run" in problem.message for problem in loaded.problems) is warned


@needs_root
async def test_step_without_the_flag_of_commands_is_refused(node: Victim) -> None:
    """The step changes the node for all users of the host."""
    place = node.node("/dev/x", NULL)
    resource = {"sources": ["/dev/x"], "preStart": [{"mode": "0000"}]}
    (problem,) = loads(config(resource), policy=policy("*")).problems
    assert (problem.severity, problem.path) == ("error", "resources[0].preStart[0].mode")
    assert "--allow-exec" in problem.message
    (device,) = node.found("/dev/x").values()
    for step in (MODE, noting(node)):
        with pytest.raises(PreStartError, match="--allow-exec"):
            await stepped(node, device, step, execs=False)
    assert mode_of(place) == 0o600
    assert not noted(node)
    await stepped(node, device, MODE)
    assert mode_of(place) == 0o666


@needs_root
@pytest.mark.parametrize(
    ("path", "number", "kind"),
    [("/dev/x", MEM, stat.S_IFCHR), ("/dev/x", DISK, stat.S_IFBLK), ("/opt/x", NULL, stat.S_IFCHR)],
)
async def test_mode_is_refused(node: Victim, path: str, number: tuple[int, int], kind: int) -> None:
    place = node.node(path, number, kind)
    (device,) = node.found({"glob": path}).values()
    with pytest.raises(PreStartError, match="needs --allow-"):
        await stepped(node, device, MODE)
    assert mode_of(place) == 0o600


@needs_root
@pytest.mark.parametrize(
    "exchange",
    [lambda node: node.node("/dev/x", FULL, stat.S_IFBLK), lambda node: node.node("/dev/x", NULL),
     lambda node: node.link("/dev/x", "full"), lambda node: node.link("/dev/x", "../etc/shadow")],
    ids=["a disk of its number", "another device", "a symlink to itself", "a symlink to a file"],
)  # fmt: skip
async def test_mode_step_does_not_change_what_takes_the_place_of_a_node(
    watched: Victim, monkeypatch: pytest.MonkeyPatch, exchange: Callable[[Victim], Path]
) -> None:
    """The other file came there after the last look."""
    watched.node("/dev/x", FULL)
    (device,) = watched.found("/dev/x").values()

    def exchange_then_pin(path: str) -> contextlib.AbstractContextManager[str]:
        watched.at("/dev/x").unlink()
        exchange(watched)
        return pinned_path(path)

    monkeypatch.setattr(pre_start, "pinned_path", exchange_then_pin)
    with pytest.raises(PreStartError, match="another file"):
        await stepped(watched, device, MODE)
    for path in ("/dev/x", "/dev/full", "/etc/shadow"):
        assert mode_of(watched.at(path)) == 0o600


@contextlib.contextmanager
def over_at_second_look() -> Iterator[None]:
    """Make 100 s pass when the step looks again: its first look may take as long as it needs."""
    loop, look, looks = asyncio.get_running_loop(), pre_start._missing, itertools.count(1)
    now = loop.time
    with pytest.MonkeyPatch.context() as patch:

        def looking(*arguments: Any) -> str | None:
            if next(looks) == 2:
                patch.setattr(loop, "time", lambda: now() + 100)
            return look(*arguments)

        patch.setattr(pre_start, "_missing", looking)
        yield


@pytest.mark.parametrize("place", ["/root/there", "/root/absent", "/root/deep/er"])
async def test_wait_step_for_a_private_path_needs_a_flag(node: Victim, place: str) -> None:
    """A step that ends, or does not, would tell whether a path exists there."""
    node.file("/root/there").parent.chmod(0o700)
    (token,) = node.found({"static": 1}).values()
    step = {"waitFor": place}
    needs = f"it needs --allow-path '{place}'"
    with over_at_second_look(), pytest.raises(PreStartError, match=needs):
        await stepped(node, token, step)
    node.file("/root/deep/er")
    node.file("/root/absent")
    await stepped(node, token, step, "/root/*")
