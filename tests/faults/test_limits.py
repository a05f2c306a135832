"""The kernel or the disk has reached a limit: it is reported, the rest goes on, and it heals."""

import asyncio
import contextlib
import errno
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.daemon import Daemon, at_rest, directories, numbers, tokens, until
from tests.support.mounts import read_only, tmpfs
from tests.support.root import needs_root

A, B = "example.com/a", "example.com/b"
SHORT = {
    "node.reconciler.POLL_S": 0.3,
    "node.reconciler.RESCAN_S": 0.3,
    "node.config_file.POLL_S": 0.3,
}


async def succeeds(*command: str) -> bool:
    """Run a command."""
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    return await process.wait() == 0


async def test_descriptors_for_a_part_are_retried_until_the_limit_is_raised(
    standin: SimulatedKubelet, daemon: Daemon
) -> None:
    """A resource that does not fit says so and is tried again; with a higher limit all are served."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    daemon.constants = {}
    daemon.code = f"""
import resource, devhost.daemon.process
devhost.daemon.process.raise_descriptor_limit = lambda _: None  # as if 64 were all that is allowed
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
"""
    many = {f"r{number}": 1 for number in range(40)}
    await daemon.start(tokens(**many))
    await daemon.logged("", state="BackingOff")
    while not await standin.capacity():  # the others have to give up first
        await standin.ledger.changed.wait()
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (hard, hard))
    await at_rest(standin, daemon, {f"example.com/{name}": numbers(1) for name in many})
    assert await daemon.stop() == 0


@needs_root
@pytest.mark.parametrize("limit", [4, 8])
async def test_too_few_threads_end_the_process_with_a_sentence(daemon: Daemon, limit: int) -> None:
    """gRPC crashes without them, or waits without end; root has no such limit."""
    kept = "-all,+dac_override,+kill"
    caps = (f"--inh-caps={kept}", f"--ambient-caps={kept}", f"--bounding-set={kept}")
    daemon.wrapper = ("setpriv", "--reuid=61234", *caps, "prlimit", f"--nproc={limit}")
    await daemon.start(tokens(a=1))
    assert await daemon.ended() == 1
    (line,) = daemon.lines
    assert "threads can be started: raise pids.max" in str(line)


@pytest.mark.parametrize("limit", ["max_inotify_watches", "max_inotify_instances"])
async def test_watches_beyond_the_limit_are_polls_until_the_limit_is_raised(
    standin: SimulatedKubelet, daemon: Daemon, directory: Path, limit: str
) -> None:
    """One warning, then devices and edits are found by looking; watched again when it can be."""
    daemon.wrapper = ("unshare", "-U", "-r")
    if not await succeeds(*daemon.wrapper, "true"):
        pytest.skip("no user namespaces")
    least = 1 if limit == "max_inotify_watches" else 0
    daemon.constants = SHORT
    daemon.code = f"open('/proc/sys/user/{limit}', 'w').write('{least}')"
    for name in ("a", "b"):
        (directory / name).mkdir()
    await daemon.start(directories(directory, "a", "b"))
    await at_rest(standin, daemon, {A: set(), B: set()})
    (directory / "a" / "0").touch()
    (directory / "b" / "0").touch()
    await at_rest(standin, daemon, {A: {"0"}, B: {"0"}})
    daemon.write(
        directories(directory, "a", "b") + "  - {name: example.com/c, sources: [static: 1]}"
    )
    await at_rest(standin, daemon, {A: {"0"}, B: {"0"}, "example.com/c": {"0"}})
    assert len(daemon.found("inotify unavailable")) == 1
    before = daemon.figures().watches
    enter = ("nsenter", "-U", "--preserve-credentials", "-t", str(daemon.pid))
    assert await succeeds(*enter, "sh", "-c", f"echo 1000 > /proc/sys/user/{limit}")
    await until(lambda: daemon.figures().watches >= before + 3, "watches again")
    (directory / "a" / "1").touch()
    await at_rest(standin, daemon, {A: {"0", "1"}, B: {"0"}, "example.com/c": {"0"}})
    assert daemon.found("", level="error") == []
    assert await daemon.stop() == 0


@contextlib.asynccontextmanager
async def kubelet_on_tmpfs(plugins: Path) -> AsyncIterator[SimulatedKubelet]:
    kubelet = SimulatedKubelet(plugins)
    with tmpfs(plugins, "size=1m,nr_inodes=30"):
        await kubelet.start()
        try:
            yield kubelet
        finally:
            read_only(plugins, on=False)
            await kubelet.stop()


def fill(place: Path) -> list[Path]:
    """Create files until there is no room for one more."""
    made: list[Path] = []
    while True:
        path = place / f"filling-{len(made)}"
        try:
            path.write_bytes(b"x" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            return [*made, path] if path.exists() else made
        made.append(path)


@needs_root
@pytest.mark.parametrize("how", ["read-only", "full"])
async def test_plugin_directory_without_room_is_told_and_heals(daemon: Daemon, how: str) -> None:
    """No socket can be made: the state says why, nothing leaks, and it heals."""
    async with kubelet_on_tmpfs(daemon.plugins) as kubelet:
        files = fill(daemon.plugins) if how == "full" else []
        read_only(daemon.plugins, on=how == "read-only")
        await daemon.start(tokens(a=1, b=2))
        line = await daemon.logged("cannot make a lock", state="BackingOff", resource=A)
        assert "ead-only" in line["reason"] or "o space" in line["reason"]
        before = daemon.figures()
        await asyncio.sleep(2.5)  # a few attempts
        after = daemon.figures()
        assert after.descriptors <= before.descriptors + 2
        assert after.threads <= before.threads + 2
        read_only(daemon.plugins, on=False)
        for path in files:
            path.unlink()
        await at_rest(kubelet, daemon, {A: numbers(1), B: numbers(2)})
        read_only(daemon.plugins, on=True)
        assert await daemon.stop() == 0  # its sockets stay, dead
        read_only(daemon.plugins, on=False)
        await daemon.start()
        await at_rest(kubelet, daemon, {A: numbers(1), B: numbers(2)})
        await daemon.kill()


@needs_root
async def test_process_without_capabilities_serves_what_it_may_read(
    standin: SimulatedKubelet, daemon: Daemon, directory: Path
) -> None:
    """Root in the chart's pods may not read what others keep for themselves."""
    daemon.wrapper = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    daemon.flags = ["--allow-path", f"{directory}/b*"]
    for name in ("a", "b"):
        (directory / name).mkdir()
        (directory / name / "0").touch()
    (directory / "b").chmod(0o700)
    os.chown(directory / "b", 1000, 1000)
    await daemon.start(directories(directory, "a", "b"))
    await at_rest(standin, daemon, {A: {"0"}, B: set()})
    line = await daemon.logged("source failed", resource=B)
    assert "Permission denied" in line["reason"]
    assert await daemon.stop() == 0
