"""One step for one device: commands, modes, paths that have to appear; see tests/security/test_steps.py."""

import asyncio
import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from devhost.allocation.policy import Policy
from devhost.hostfs.files import CachedFiles, HostFiles
from devhost.model.config import Step
from devhost.model.device_node import FileKind, Node
from devhost.node import pre_start
from devhost.node.pre_start import StepRun, run_steps
from devhost.watch.threads import BlockingCalls
from tests.support.clock import time_passes
from tests.support.command import alive
from tests.support.daemon import until
from tests.support.devices import device, file_state, read_node, token
from tests.support.mounts import hung

ALL: Final = Policy(("*",), allow_exec=True, enforced=True, allow_devices=("/dev/*",))
NAME: Final = "example.com/disk"
CONSTANTS: Final = {"resource": NAME, "nodeName": "node-1", "index": "0", "count": "1"}


def node(path: str, files: HostFiles | None = None) -> Node:
    return read_node(path, (files or HostFiles()).stat(path))


def start_of(
    *nodes: Node, policy: Policy = ALL, root: str = "/", calls: BlockingCalls | None = None
) -> StepRun:
    return StepRun(
        device=device("X", *(nodes or (token("X"),))),
        constants=CONSTANTS,
        files=HostFiles(root),
        policy=policy,
        calls=calls or BlockingCalls("preStart"),
        deadline=asyncio.get_running_loop().time() + 60,
    )


def step(**options: Any) -> Step:
    return Step.model_validate({"timeout": "28s", **options})


async def run(start: StepRun, **options: Any) -> None:
    assert await run_steps([(0, step(**options))], start) is None


async def failure(start: StepRun, **options: Any) -> str:
    text = await run_steps([(0, step(**options))], start)
    assert text is not None
    return text


def shell(script: str, *arguments: str) -> list[str]:
    return ["sh", "-c", script.replace("$", "$$"), "sh", *arguments]


async def test_command_of_a_step_gets_arguments_for_each_node(tmp_path: Path) -> None:
    out, disk, second = tmp_path / "out", tmp_path / "disk", tmp_path / "other"
    disk.touch()
    second.touch()
    start = start_of(node(str(disk)), node(str(second)))
    for text, words in (("${name}", "disk\nother\n"), ("${id}", "X\n")):  # equal ones once
        await run(start, run=shell(f'echo "$1" >> {tmp_path}/{words[:1]}', text))
        assert (tmp_path / words[:1]).read_text() == words
    script = f'printf "%s|" "$@" "$DEVHOST_RESOURCE" "$DEVHOST_DEVICE" "$PWD" > {out}'
    texts = ["${path}", "${id} ${index}/${count}", "${resource}", "${nodeName}"]
    await run(start_of(node(str(disk))), run=shell(script, *texts))
    assert out.read_text().split("|")[:-1] == [str(disk), "X 0/1", NAME, "node-1", NAME, "X", "/"]


async def test_command_gets_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVHOST_SECRET", "s")
    program = (
        f"import os, sys; open({str(tmp_path / 'out')!r}, 'w').write(repr((sorted(os.environ), "
        "sys.stdin.read(), os.getsid(0) == os.getpid())))"
    )
    await run(start_of(), run=[sys.executable, "-IBSc", program])
    names, stdin, leads = eval((tmp_path / "out").read_text())
    assert {"DEVHOST_DEVICE", "DEVHOST_RESOURCE", "PATH"} <= set(names)
    assert not {"DEVHOST_SECRET", "HOME"} & set(names)
    assert (stdin, leads) == ("", True)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["false"], "(run false) of device X: exited with 1"),
        (
            shell("echo first; echo last >&2; exit 3"),
            "(run sh) of device X: exited with 3: first; last",
        ),
        (shell("kill -9 $$"), "(run sh) of device X: was killed by signal 9"),
        (shell(r"seq 20; printf '\033[31mred\377\n\n'; exit 1"), r"17; 18; 19; 20; \x1b[31mred�"),
        (["/bin/no-such", "x"], "(run no-such) of device X: there is no such program"),
        (["/etc/passwd"], "there is no such program, or it may not be executed"),
        (["sh", "${minor}"], "(run sh) of device X: ${minor} has no value"),
    ],
)
async def test_command_that_fails_fails_the_step(argv: list[str], reason: str) -> None:
    text = await failure(start_of(), run=argv)
    assert text.startswith("preStart[0] (run ")
    assert text.endswith(reason) or reason in text


@pytest.mark.parametrize(("whole", "limit"), [(60, "10s"), (10, "28s")])
async def test_command_beyond_the_deadline_of_the_start_or_its_own_fails_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int, limit: str
) -> None:
    time_passes(monkeypatch, tmp_path / "begun")
    sleeps = shell(f"echo so far; > {tmp_path}/begun; exec sleep 1000")
    start, now = start_of(), asyncio.get_running_loop().time()
    text = await failure(replace(start, deadline=now + whole), run=sleeps, timeout=limit)
    pattern = r"preStart\[0\] \(run sh\) of device X: did not end within (\d+(\.\d)?)s: so far"
    late = re.fullmatch(pattern, text)
    assert late, text
    assert float(late[1]) <= 10
    text = await failure(replace(start, deadline=now - 1), run=sleeps, every="start")
    assert "in time" in text


async def test_command_whose_child_keeps_the_output_open_ends_the_step(tmp_path: Path) -> None:
    """The child has left the process group on purpose."""
    script = f"setsid sh -c 'echo $$ > {tmp_path}/child; exec sleep 1000' & until [ -s {tmp_path}/child ]; do :; done"
    await run(start_of(), run=shell(script))
    child = int((tmp_path / "child").read_text())
    assert alive(child)
    os.kill(child, 9)


async def test_cancelled_command_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pre_start, "_KILL_S", 60.0)
    script = f"sleep 1000 & echo $$ $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pids; wait"
    running = asyncio.ensure_future(run(start_of(), run=shell(script)))
    await until((tmp_path / "pids").exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    shell_pid, child = map(int, (tmp_path / "pids").read_text().split())
    assert not alive(shell_pid)
    await until(lambda: not alive(child))


async def test_command_on_a_filesystem_that_hangs_fails_in_time(tmp_path: Path) -> None:
    calls = BlockingCalls("preStart")
    with hung(tmp_path):
        text = await failure(start_of(calls=calls), run=[f"{tmp_path}/mkfs"], timeout="3s")
        await until(lambda: calls._abandoned == 1, "those that hang are bounded")
    assert text.endswith("did not end in time")


async def test_wait_steps_on_a_filesystem_that_hangs_use_few_threads(tmp_path: Path) -> None:
    calls = BlockingCalls("preStart")
    with hung(tmp_path):
        for _ in range(8):
            await failure(start_of(calls=calls), waitFor=f"{tmp_path}/x", timeout="1ms")
        text = await failure(start_of(calls=calls), waitFor=f"{tmp_path}/x")
        assert text.endswith("8 earlier calls have not returned")
    while calls.hanging:
        await asyncio.sleep(0.01)
    await run(start_of(calls=calls), waitFor="/")


@pytest.fixture
def terminal() -> Iterator[str]:
    leader, follower = os.openpty()
    yield os.ttyname(follower)
    os.close(leader)
    os.close(follower)


def mode_of(path: str | Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


async def test_mode_step_changes_device_nodes_only(terminal: str, tmp_path: Path) -> None:
    secret, link = tmp_path / "secret", tmp_path / "link"
    secret.touch(0o600)
    link.symlink_to(terminal)
    await run(start_of(node(str(link)), node(str(secret))), mode="0612")
    assert mode_of(terminal) == 0o612
    for start in (start_of(node(str(secret))), start_of()):
        text = await failure(start, mode="0666")
        assert text.startswith("preStart[0] (mode 0666) of device X: the device has no device node")
    assert mode_of(secret) == 0o600


async def test_wait_step_for_a_path_ends_when_it_appears(tmp_path: Path) -> None:
    (tmp_path / "root/sys").mkdir(parents=True)
    files = HostFiles(str(tmp_path / "root"))
    (tmp_path / "root/link").symlink_to("/sys")
    start = start_of(read_node("/dev/x", None), root=files.root)
    waiting = asyncio.ensure_future(run(start, waitFor="/link/${id}-${count}"))
    await asyncio.sleep(0)
    assert not waiting.done()
    (tmp_path / "root/sys/X-1").symlink_to("/nowhere")
    (tmp_path / "root/nowhere").touch()
    await waiting


async def test_wait_step_for_a_path_that_does_not_appear_names_it(tmp_path: Path) -> None:
    text = await failure(start_of(), waitFor=f"{tmp_path}/x", timeout="200ms")
    assert text == (
        f"preStart[0] (waitFor {tmp_path}/x) of device X: {tmp_path}/x did not appear in time"
    )
    text = await failure(start_of(), waitFor="${id}")
    assert text.endswith("of device X: 'X' is not an absolute path (beginning with '/')")


async def refused(start: StepRun, number: int) -> str | None:
    """Why a device is refused that the kernel does not let us open for the reason `number`."""
    real = os.open

    def fail(path: Any, flags: int, *mode: Any, **options: Any) -> int:
        if path not in start.device.paths:
            return real(path, flags, *mode, **options)
        assert flags & os.O_EXCL
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", fail)
        return await run_steps([(0, step(run=["true"]))], start)


async def test_busy_block_node_is_refused(terminal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No character device; and what else keeps it from being opened is for the command to say."""
    assert await refused(start_of(node(terminal)), errno.EBUSY) is None
    disk = file_state("/dev/sdx", FileKind.BLOCK, (8, 240))
    monkeypatch.setattr(CachedFiles, "stat", lambda *_: disk)
    start = start_of(read_node("/dev/sdx", disk), policy=Policy(allow_exec=True))
    assert await refused(start, errno.EBUSY) == (
        "device X: /dev/sdx is in use (mounted, or opened exclusively): it is not prepared again"
    )
    for number in (errno.EPERM, errno.EACCES, errno.ENXIO, errno.ENOMEDIUM):
        assert await refused(start, number) is None
