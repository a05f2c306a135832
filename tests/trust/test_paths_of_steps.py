"""Attacks on what preStart steps touch: they look at it right before, as Allocate does."""

import asyncio
import os
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devhost.discovery.health import check
from devhost.errors import PreStartError
from devhost.loading.loader import loads
from devhost.model.device import Checked, HostDevice, Snapshot
from tests.support.steps import run_step, start_of
from tests.trust.attack import NAME, NULL, Victim, as_root, config, policy

pytestmark = as_root

FULL, DISK = (1, 7), (8, 0)
RECORD = "/record"


def scanned(node: Victim, source: object, *allow: str) -> Snapshot:
    return node.scan(node.scanner({"sources": [source], "allocate": {"devices": []}}, *allow))


async def stepped(node: Victim, device: HostDevice, step: dict[str, Any], *allow: str) -> None:
    """Run a step for a device.

    Raises:
        PreStartError: It is refused.
    """
    await run_step(0, *prepared(node, device, step, *allow))


def prepared(node: Victim, device: HostDevice, step: dict[str, Any], *allow: str) -> Any:
    allowed = policy(*allow, execs=True)
    resource = {"sources": ["/dev/*"], "preStart": [step]}
    (loaded,) = loads(config(resource), policy=allowed).require().resources
    start = start_of(
        resource=NAME,
        device=device,
        constants={"resource": NAME, "nodeName": "node-1", "index": "0", "count": "1"},
        files=node.files,
        policy=allowed,
        deadline=asyncio.get_running_loop().time() + 60,
    )
    return loaded.pre_start[0], start


def noting(node: Victim, *words: str) -> dict[str, Any]:
    """Return a step that notes its arguments in a file."""
    script = f'printf "%s\\n" "$$@" > {node.root}{RECORD}'
    return {"run": ["sh", "-c", script, "sh", *words], "every": "start"}


def noted(node: Victim) -> list[str]:
    place = Path(f"{node.root}{RECORD}")
    return place.read_text().splitlines() if place.exists() else []


@pytest.fixture
def watched(node: Victim) -> Victim:
    """A link in a directory where all may write."""
    node.node("/dev/full", FULL)
    node.node("/dev/null", NULL)
    node.node("/dev/sda", DISK, stat.S_IFBLK)
    node.node("/dev/scratch", (8, 16), stat.S_IFBLK)
    node.link("/watched/x", "/dev/full").parent.chmod(0o777)
    return node


@pytest.mark.parametrize("template", ["${path}", "${realpath}"])
async def test_a_command_is_given_the_node_itself(watched: Victim, template: str) -> None:
    """Not the link, which others may bend while the command runs."""
    (device,) = scanned(watched, "/watched/x").devices.values()
    await stepped(watched, device, noting(watched, template))
    assert noted(watched) == [f"{watched.root}/dev/full"]


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("/dev/sda", "no longer a char device"),
        ("/dev/null", "another device than at the last scan"),
        ("/etc/shadow", "no longer a char device"),
        ("/gone", "no longer exists"),
    ],
)
@pytest.mark.parametrize("words", [["${path}"], ["${id}"]])
async def test_a_command_does_not_run_for_a_link_that_was_bent(
    watched: Victim, target: str, why: str, words: list[str]
) -> None:
    """Also where it is not given the path: it may find the device by its ID."""
    watched.file("/etc/shadow")
    (device,) = scanned(watched, "/watched/x").devices.values()
    watched.link("/watched/x", target)
    for step in (noting(watched, *words), {"mode": "0666"}):
        with pytest.raises(PreStartError, match=why):
            await stepped(watched, device, step)
    assert not noted(watched)


async def test_a_step_does_not_touch_another_node_in_the_place_of_its_device(
    watched: Victim,
) -> None:
    """Below /dev, where Allocate would follow the path: a step is for what the pod was given."""
    (device,) = scanned(watched, "/dev/full").devices.values()
    watched.node("/dev/full", NULL)
    for step in (noting(watched, "${path}"), {"mode": "0666"}):
        with pytest.raises(PreStartError, match="another device than at the last scan"):
            await stepped(watched, device, step)
    assert not noted(watched)


async def test_a_command_does_not_run_on_a_disk_that_is_not_allowed(watched: Victim) -> None:
    """Bent to another disk, seen by a scan, and the container starts again."""
    watched.link("/watched/x", "/dev/scratch")
    source = {"glob": {"paths": "/watched/*", "types": "block"}}
    allow = ("/dev/scratch", "/watched/*")
    (device,) = scanned(watched, source, *allow).devices.values()
    await stepped(watched, device, noting(watched, "${path}"), *allow)
    assert noted(watched) == [f"{watched.root}/dev/scratch"]
    watched.file(RECORD, "")
    watched.link("/watched/x", "/dev/sda")
    (bent,) = scanned(watched, source, *allow).devices.values()
    for one in (device, bent):
        for step in (noting(watched, "${path}"), noting(watched), {"mode": "0666"}):
            with pytest.raises(PreStartError, match=r"another device|--allow-"):
                await stepped(watched, one, step, *allow)
    assert not noted(watched)


async def test_an_unhealthy_device_is_not_touched(watched: Victim) -> None:
    """Whatever is there now."""
    (device,) = scanned(watched, "/watched/x").devices.values()
    ill = replace(device, reason="another device was found in its place")
    for step in (noting(watched), {"mode": "0666"}):
        with pytest.raises(PreStartError, match="unhealthy: another device was found"):
            await stepped(watched, ill, step)
    assert not noted(watched)


async def test_a_device_that_fails_its_checks_may_be_mended(watched: Victim) -> None:
    (device,) = scanned(watched, "/watched/x").devices.values()
    failed = Checked(datetime.now(UTC), failure="exec: status 1")
    await stepped(
        watched, replace(device, reason="exec: status 1", checked=failed), noting(watched, "a")
    )
    assert noted(watched) == ["a"]


async def test_a_device_that_was_bent_is_not_looked_at_for_its_use(
    watched: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A free disk in its place for a moment does not tell that the disk is free."""
    watched.link("/watched/x", "/dev/scratch")
    source, allow = {"glob": {"paths": "/watched/*", "types": "block"}}, ("/dev/*", "/watched/*")
    (device,) = scanned(watched, source, *allow).devices.values()
    watched.link("/watched/x", "/dev/sda")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    declared, start = prepared(watched, device, noting(watched), *allow)
    with pytest.raises(PreStartError, match="another device"):
        await run_step(0, declared, start)


async def test_files_are_looked_at_where_a_command_is_given_them(watched: Victim) -> None:
    """Of any owner: they need a flag, and are the files that the scan has found."""
    watched.file("/etc/shadow")
    watched.link("/watched/x", "/etc/shadow")
    watched.file("/watched/y")
    by_id = scanned(watched, {"directory": "/watched"}).devices
    for device_id, path in (("x", "/etc/shadow"), ("y", "/watched/y")):
        with pytest.raises(PreStartError, match=f"--allow-path '{path}'"):
            await stepped(watched, by_id[device_id], noting(watched, "${path}"))
    assert not noted(watched)
    for device in by_id.values():
        await stepped(watched, device, noting(watched, "${id}"))
        assert noted(watched) == [device.id]
    step = noting(watched, "${path}")
    await stepped(watched, by_id["y"], step, "/watched/*")
    assert noted(watched) == [f"{watched.root}/watched/y"]
    watched.file("/watched/z").replace(watched.at("/watched/y"))
    with pytest.raises(PreStartError, match="/watched/y is another file than at the last scan"):
        await stepped(watched, by_id["y"], step, "/watched/*")


async def test_a_check_s_command_does_not_run_for_a_link_that_was_bent(watched: Victim) -> None:
    """It is given the node itself, as the command of a step is."""
    (device,) = scanned(watched, "/watched/x").devices.values()
    argv = noting(watched, "${path}")["run"]
    allowed = policy(execs=True)
    text = config({"sources": ["/dev/*"], "health": [{"exec": argv}]})
    (loaded,) = loads(text, policy=allowed).require().resources
    assert loaded.health is not None
    constants = {"resource": NAME, "nodeName": "node-1"}
    outcome = check(loaded.health, device, watched.files, constants, allow=allowed)
    assert outcome.failure is None
    assert noted(watched) == [f"{watched.root}/dev/full"]
    watched.file(RECORD, "")
    watched.link("/watched/x", "/dev/null")
    outcome = check(loaded.health, device, watched.files, constants, allow=allowed)
    assert "another device than at the last scan" in (outcome.failure or "")
    assert not noted(watched)
