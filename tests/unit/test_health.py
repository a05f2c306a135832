"""One round of health checks on real files, sockets and commands."""

import errno
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from devhost.allocation.policy import Policy
from devhost.devices.health_check import CONTENT_MAX, check_device
from devhost.hostfs.files import HostFiles
from devhost.model.config import HealthChecks
from devhost.model.device import Checked, HostDevice
from tests.support import devices, mounts
from tests.support.clock import time_passes
from tests.support.command import alive
from tests.support.root import needs_root

CONSTANTS = {"resource": "example.com/a", "nodeName": "node"}


@pytest.fixture
def files(tmp_path: Path) -> HostFiles:
    """A host below a root, whose own directories everyone may enter."""
    (tmp_path / "dev").mkdir()
    return HostFiles(str(tmp_path))


def device(files: HostFiles, *paths: str) -> HostDevice:
    nodes = (
        devices.read_node(path, files.stat(path), n=str(number))
        for number, path in enumerate(paths)
    )
    return devices.device("a", *nodes)


def token() -> HostDevice:
    return devices.device("0", devices.token("0"))


def checked(
    files: HostFiles,
    of: HostDevice,
    *checks: object,
    allow: Policy | None = None,
    timeout: str = "60s",
) -> Checked:
    declared = HealthChecks.model_validate({"checks": checks, "timeout": timeout})
    return check_device(declared, of, files, CONSTANTS, allow=allow or Policy(enforced=True))


def passed(outcome: Checked) -> bool:
    return outcome.failure is None and outcome.unknown is None


def state(files: HostFiles, text: str | bytes, mode: int = 0o644) -> str:
    """Write a file of the host; return its path there."""
    file = Path(files.to_local("/state"))
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    file.chmod(mode)
    return "/state"


@pytest.mark.parametrize("how", ["readable", "writable"])
def test_health_check_of_what_opens_passes_until_it_is_gone(how: str, files: HostFiles) -> None:
    host = HostFiles()
    assert passed(checked(host, device(host, "/dev/null"), how))
    assert passed(checked(host, device(host, "/tmp"), how))
    assert passed(checked(files, token(), how))  # which has nothing to open
    path = state(files, "some text")
    link = device(files, path)
    Path(files.to_local("/dev/link")).symlink_to(path)  # followed below the root
    with socket.socket(socket.AF_UNIX) as server:  # it is not connected to
        server.bind(files.to_local("/socket"))
        assert passed(checked(files, device(files, path, "/dev/link", "/socket"), how))
    assert Path(files.to_local(path)).read_text() == "some text"
    Path(files.to_local(path)).unlink()
    assert checked(files, link, how).failure == f"{how}: /state: No such file or directory"
    assert not Path(files.to_local(path)).exists()


READS = {"file": {"path": "/state", "matches": "x"}}


@pytest.mark.parametrize(
    ("check", "number", "failure", "unknown"),
    [
        ("readable", errno.EPERM, None, "deviceAccess.privileged"),
        ("readable", errno.EACCES, None, "deviceAccess.privileged"),
        ("readable", errno.EBUSY, None, None),
        ("readable", errno.EAGAIN, None, None),
        ("readable", errno.EIO, "readable: /state: Input/output error", None),
        ("readable", errno.ENXIO, "readable: /state: No such device or address", None),
        (READS, errno.EACCES, None, "securityContext.runAsUser"),
    ],
)
def test_health_check_of_what_cannot_be_opened_fails_unless_busy_or_forbidden(
    files: HostFiles,
    monkeypatch: pytest.MonkeyPatch,
    check: object,
    number: int,
    failure: str | None,
    unknown: str | None,
) -> None:
    node = device(files, state(files, "x"))
    refuse = Mock(side_effect=OSError(number, os.strerror(number)))
    with monkeypatch.context() as patch:
        patch.setattr("devhost.devices.health_check.os.open", refuse)
        outcome = checked(files, node, check)
    assert outcome.failure == failure
    assert (unknown is None) is (outcome.unknown is None)
    assert (unknown or "") in (outcome.unknown or "")


def test_health_checks_all_run_and_the_first_failure_is_reported(files: HostFiles) -> None:
    node = device(files, state(files, "bad"))
    outcome = checked(
        files,
        node,
        {"exec": ["true"]},
        {"file": {"path": "${path}", "matches": "good"}},
        {"exec": ["touch", "${path}.touched"]},
        {"file": {"path": "/none", "matches": ""}},
        allow=Policy(allow_exec=True),
    )
    assert outcome.failure == "file: /state: its content does not match 'good'"
    assert Path(files.to_local("/state.touched")).exists()


def test_health_check_of_fifo_does_not_open_it(files: HostFiles) -> None:
    """Or it would be a reader for whom a writer has waited, and whose bytes are lost."""
    os.mkfifo(files.to_local("/fifo"))
    pipe = device(files, "/fifo")
    assert passed(checked(files, pipe, "readable", "writable"))
    written = threading.Event()

    def write() -> None:
        with Path(files.to_local("/fifo")).open("w") as fifo:
            fifo.write("kept")
        written.set()

    threading.Thread(target=write, daemon=True).start()
    for _ in range(20):
        assert passed(checked(files, pipe, "readable", "writable"))
    assert not written.is_set()
    assert Path(files.to_local("/fifo")).read_text() == "kept"


@needs_root
def test_health_check_writable_on_read_only_filesystem_fails(files: HostFiles) -> None:
    """A sick disk becomes read-only."""
    disk = Path(files.to_local("/disk"))
    with mounts.tmpfs(disk):
        mounts.read_only(disk, on=True)
        outcome = checked(files, device(files, "/disk"), "readable", "writable")
        assert outcome.failure == "writable: /disk: Read-only file system"


def content(
    files: HostFiles, path: str, matches: str | list[str], allow: Policy | None = None
) -> Checked:
    return checked(files, token(), {"file": {"path": path, "matches": matches}}, allow=allow)


@pytest.mark.parametrize(
    ("text", "globs", "matches"),
    [
        (" ok 1\n", "ok [0-9]", True),  # white space around it does not count
        ("ok 1", "ok", False),
        ("ok 1", "OK 1", False),
        ("ok 1", ["no", "*k*"], True),
        ("ok 1", ["no", "none"], False),
        (b"\xff\xfe1", "??1", True),
        (b"a" * (CONTENT_MAX - 1) + b"bc", "*ab", True),  # of a long one the beginning counts
        (b"a" * (CONTENT_MAX - 1) + b"bc", "*c*", False),
    ],
)
def test_file_check_content_matches_a_glob_or_fails_without_showing_it(
    files: HostFiles, text: str | bytes, globs: str | list[str], matches: bool
) -> None:
    outcome = content(files, state(files, text), globs)
    tried = [globs] if isinstance(globs, str) else globs
    failure = f"file: /state: its content does not match {' or '.join(map(repr, tried))}"
    assert outcome.failure == (None if matches else failure)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/none", "/none: No such file or directory"),
        ("/dev/null/x", "/dev/null/x: No such file or directory"),
        ("/x/${path}", "${path} has no value"),
        ("${nodeName}/state", "'node/state' is not an absolute path (beginning with '/')"),
    ],
)
def test_file_check_of_missing_file_fails(files: HostFiles, path: str, reason: str) -> None:
    assert content(files, path, "x").failure == f"file: {reason}"


def test_file_check_of_other_than_a_regular_file_fails(files: HostFiles) -> None:
    os.mkfifo(files.to_local("/dev/fifo"), 0o666)
    for path in ("/dev", "/dev/fifo"):
        assert content(files, path, "").failure == f"file: {path}: not a regular file"
    assert content(HostFiles(), "/dev/zero", "").failure == "file: /dev/zero: not a regular file"


def test_file_check_path_is_rendered_for_each_node(files: HostFiles) -> None:
    for number, text in enumerate(("good", "bad")):
        Path(files.to_local(f"/state{number}")).write_text(text)
        Path(files.to_local(f"/dev/{number}")).touch()
    probe = {"file": {"path": "/state${n}", "matches": "good"}}
    outcome = checked(files, device(files, "/dev/0", "/dev/1"), probe)
    assert outcome.failure == "file: /state1: its content does not match 'good'"
    assert passed(checked(files, device(files, "/dev/0"), probe))


ALLOWED = Policy(("*",), allow_exec=True, enforced=True)


def commanded(files: HostFiles, of: HostDevice, *argv: str) -> Checked:
    return checked(files, of, {"exec": argv}, allow=ALLOWED)


def shell(script: str) -> Checked:
    return commanded(HostFiles(), token(), "sh", "-c", script.replace("$", "$$"))


def test_exec_check_without_allow_exec_is_not_run(files: HostFiles, tmp_path: Path) -> None:
    outcome = checked(files, token(), {"exec": ["touch", str(tmp_path / "ran")]})
    assert outcome.failure is None
    assert outcome.unknown == "exec: touch: running a command needs --allow-exec"
    assert not (tmp_path / "ran").exists()


def test_exec_check_has_the_node_and_a_small_environment(files: HostFiles) -> None:
    path = state(files, "")
    script = 'test -f "$1" && test "$(pwd) $DEVHOST_RESOURCE $DEVHOST_DEVICE $HOME" = "$2"'
    argv = ("sh", "-c", script.replace("$", "$$"), "sh", "${path}", "/ ${resource} ${id} ")
    assert passed(commanded(files, device(files, path), *argv))


def test_exec_check_that_fails_reports_its_last_line(files: HostFiles) -> None:
    """A command may also end as in host/test_steps."""
    assert passed(shell("echo all is well"))
    assert shell("exec >&- 2>&-; sleep 0.1; exit 4").failure == "exec: sh: exited with 4"
    long = shell("head -c 3000000 /dev/zero; echo; echo the end; exit 1").failure
    assert long == "exec: sh: exited with 1: the end"
    failure = shell("echo first; printf 'sector \\033 7\\n\\n' >&2; exit 1").failure
    assert failure == "exec: sh: exited with 1: sector \\x1b 7"
    assert "null byte" in str(commanded(files, token(), "true", "\0").failure)


def test_hanging_exec_check_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids, begun = tmp_path / "pids", tmp_path / "begun"
    script = f"trap '' TERM INT HUP; sleep 600 & echo $! $$ > {pids}; echo waiting; > {begun}; wait"
    with monkeypatch.context() as patch:
        time_passes(patch, begun)
        failure = shell(script).failure
    assert re.fullmatch(r"exec: sh: did not end within \d+(\.\d)?s: waiting", str(failure))
    assert_gone(pids)
    # What a command that ends well leaves behind keeps the pipe open.
    assert passed(shell(f"sleep 600 & echo $! > {pids}"))
    assert_gone(pids)


def test_exec_check_timeout_is_for_all_commands_together(files: HostFiles) -> None:
    outcome = checked(
        files,
        token(),
        {"exec": ["sleep", "600"]},
        {"exec": ["touch", files.to_local("/ran")]},
        allow=ALLOWED,
        timeout="100ms",
    )
    assert outcome.failure == "exec: sleep: did not end within 0.1s"
    assert not Path(files.to_local("/ran")).exists()


def test_exec_check_as_pid_1_reaps_orphans() -> None:
    """There nobody else does: what a command leaves behind becomes the child of devhost."""
    script = """
        import ctypes, os, sys
        from devhost.hostfs import command
        assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
        os.getpid = lambda: 1
        before = os.listdir("/proc/self/fd")
        command._KILL_S = 60.0
        for script, timeout in (("sleep 600 & sleep 600 &", 5.0), ("sleep 600 & wait", 0.2)):
            command.run(["sh", "-c", script], {"PATH": os.environ["PATH"]}, timeout)
            try:
                sys.exit(f"left behind: {os.waitpid(-1, os.WNOHANG)}")
            except ChildProcessError:
                pass
        assert os.listdir("/proc/self/fd") == before
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def assert_gone(pids: Path) -> None:
    """Wait until processes have ended."""
    until = time.monotonic() + 60
    for pid in map(int, pids.read_text().split()):
        while alive(pid):
            assert time.monotonic() < until
            time.sleep(0.01)
