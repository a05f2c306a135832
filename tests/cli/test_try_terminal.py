"""``devhost try`` in a terminal, as a person sees it."""

import asyncio
import os
import shutil
import signal
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.support.screen import Screen, terminal

PROGRAM: Final = (sys.executable, "-m", "devhost")
LEFT: Final = b"\x1b[?1049l"
CONFIG: Final = """\
version: v1
resources:
  - name: example.com/cola
    sources: [directory: {0}/colas]
    allocate:
      env: {{COLA: "${{id}}"}}
      mounts: [{{hostPath: "${{path}}", containerPath: "/run/cola/${{name}}"}}]
"""
TOKENS: Final = """\
  - name: example.com/token
    sources: [static: 3]
"""


def environment(**more: str) -> dict[str, str]:
    unset = ("DEVHOST_", "NO_COLOR", "COLUMNS", "LINES", "VISUAL", "EDITOR")
    return {key: value for key, value in os.environ.items() if not key.startswith(unset)} | more


@pytest.fixture
def config(tmp_path: Path) -> Path:
    colas = tmp_path / "colas"
    colas.mkdir()
    for name in ("cherry", "classic"):
        (colas / name).touch()
    config = tmp_path / "c.yaml"
    config.write_text(CONFIG.format(tmp_path))
    return config


def save(path: Path, text: str) -> None:
    path.write_text(text)


def entries(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def playing(config: Path, *flags: str, **more: str) -> AbstractAsyncContextManager[Screen]:
    """With room for any path in a line."""
    argv = [*PROGRAM, "try", str(config), "--allow-path", f"{config.parent}/colas/*", *flags]
    return terminal(argv, environment(**more), columns=250)


async def ended(screen: Screen) -> int:
    await screen.writes(LEFT)
    return await screen.process.wait()


async def test_play(config: Path) -> None:
    """Allocate, unplug, restart, free; and the terminal is as it was."""
    async with playing(config, "--listen", "127.0.0.1:0") as screen:
        modes = screen.modes()
        await screen.shows("example.com/cola: 2 of 2 allocatable")
        assert screen.lines[0] == f"What kubelet sees of {config}"
        assert screen.lines[1].startswith("metrics: http://127.0.0.1:")
        assert screen.lines[-1] == ">"
        assert screen.modes() != modes
        screen.type("al\tcola 2\r")
        await screen.shows("pod-1 has cherry, classic; its container receives")
        await screen.shows("  env COLA=cherry,classic")
        assert f"  mount {config.parent}/colas/cherry at" in screen.text
        await screen.shows("  cherry   Healthy    pod-1")
        (config.parent / "colas" / "classic").unlink()
        await screen.shows("  classic  Unhealthy  pod-1    not found any more")
        screen.type("restart\r")
        await screen.shows("kubelet has restarted")
        await screen.shows("example.com/cola: 1 of 2 allocatable")
        screen.type("free pod-1\r")
        await screen.shows("pod-1 ended")
        await screen.until(lambda: "Healthy    pod-1" not in screen.text, "a free device")
        screen.resize(50, 12)
        await screen.until(lambda: screen.lines[-1] == ">" and len(screen.lines) == 12, "12 lines")
        await screen.shows("─" * 50 + "\n>")
        screen.type("\x04")
        assert await ended(screen) == 0
        assert screen.modes() == modes
        assert b"Traceback" not in screen.raw


ANSWERS: Final = {
    "allocate": "usage: allocate RESOURCE [N]",
    "allocate cola many": "usage: allocate RESOURCE [N]",
    "allocate pepsi": "which resource is pepsi? example.com/cola",
    "allocate cola 3": "Requested: 3, Available: 2",
    "re": "which command is re? restart, reload",
    "free pod-7": "usage: free POD | all; pods: none",
    "'": "No closing quotation",
    "reload": "is read again",
    "edit": "cannot run no-such-editor: No such file or directory (set EDITOR)",
    "help": "PgUp, PgDn: more devices",
}


async def test_every_command_is_answered(config: Path) -> None:
    async with playing(config, EDITOR="no-such-editor") as screen:
        await screen.shows("2 of 2")
        for command, answer in ANSWERS.items():
            seen = len(screen.raw)
            screen.type(f"{command}\r")
            await screen.until(lambda: answer.encode() in screen.raw[seen:], answer)  # noqa: B023 (awaited)


async def test_an_edit_applies_and_a_mistake_is_shown(
    config: Path, tmp_path: Path, short_path: Path
) -> None:
    editor = short_path / "editor"
    editor.write_text(f"#!/bin/sh\necho editing; read answer; printf '%s' '{TOKENS}' >>\"$1\"\n")
    editor.chmod(0o700)
    async with playing(config, EDITOR=str(editor)) as screen:
        await screen.shows("2 of 2")
        screen.type("edit\r")
        await screen.writes(LEFT)
        await screen.writes(b"editing")
        screen.type("\n")
        await screen.shows("example.com/token: 3 of 3 allocatable")
        save(config, f"{CONFIG.format(tmp_path)}{TOKENS}".replace("3", "many"))
        await screen.shows("The file has 1 problem: its last valid version is served")
        await screen.shows("example.com/token: 3 of 3 allocatable")


async def test_ctrl_c_is_for_the_editor_and_sigterm_for_both(
    config: Path, short_path: Path
) -> None:
    editor = short_path / "editor"
    save(editor, "#!/bin/sh\necho as $$-; exec sleep 1000\n")
    editor.chmod(0o700)
    async with playing(config, EDITOR=str(editor)) as screen:
        modes = screen.modes()
        await screen.shows("2 of 2")
        screen.type("edit\r")
        await screen.writes(b"-\r\n")
        screen.type("\x03")
        await screen.shows("was killed by signal 2 (Interrupt)")
        seen = len(screen.raw)
        screen.type("edit\r")
        await screen.until(lambda: b"-\r\n" in screen.raw[seen:], "the editor again")
        editing = os.pidfd_open(int(screen.raw.rpartition(b"as ")[2].partition(b"-")[0]))
        over = asyncio.Event()
        asyncio.get_running_loop().add_reader(editing, over.set)
        screen.process.send_signal(signal.SIGTERM)
        assert await screen.process.wait() == 0
        assert screen.modes() == modes
        await over.wait()
        asyncio.get_running_loop().remove_reader(editing)
        os.close(editing)


async def test_an_editor_that_leaves_the_terminal_in_disorder(
    config: Path, short_path: Path
) -> None:
    """The modes that are given back at the end are those from before it."""
    editor = short_path / "editor"
    save(editor, "#!/bin/sh\nstty raw -echo\nexit 3\n")
    editor.chmod(0o700)
    async with playing(config, EDITOR=str(editor)) as screen:
        modes = screen.modes()
        await screen.shows("2 of 2")
        screen.type("edit\r")
        await screen.shows("exited with 3")
        screen.type("quit\r")
        assert await ended(screen) == 0
        assert screen.modes() == modes


async def test_the_terminal_is_closed_during_an_edit(config: Path, tmp_path: Path) -> None:
    editor, log = tmp_path / "editor", tmp_path / "log"
    save(editor, "#!/bin/sh\necho editing; exec cat\n")
    editor.chmod(0o700)
    argv = ["bash", "-c", f'exec "$@" 2>{log}', "-", *PROGRAM, "try", str(config)]
    async with terminal(argv, environment(EDITOR=str(editor))) as screen:
        await screen.shows("0 of 2")
        screen.type("edit\r")
        await screen.writes(b"editing")
        screen.close()
        assert await screen.process.wait() == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("how", ["interrupt", "terminate", "quit", "closed"])
async def test_the_terminal_is_given_back(config: Path, how: str) -> None:
    async with playing(config) as screen:
        modes = screen.modes()
        await screen.shows("2 of 2")
        match how:
            case "interrupt":
                screen.type("\x03")
            case "terminate":
                screen.process.send_signal(signal.SIGTERM)
            case "quit":
                screen.type("quit\r")
            case "closed":
                screen.close()
                assert await screen.process.wait() == 0
                return
        assert await ended(screen) == 0
        assert screen.modes() == modes


async def test_an_error_gives_the_terminal_back() -> None:
    program = """
import asyncio
from devhost.cli.terminal import Terminal

async def main():
    shown = Terminal(lambda keys: None, lambda: None)
    with shown.taken():
        shown.draw(["drawn"], (0, 0))
        raise ValueError("on purpose")

asyncio.run(main())
"""
    async with terminal([sys.executable, "-c", program], environment()) as screen:
        modes = screen.modes()
        await screen.writes(b"on purpose")
        assert screen.raw.index(b"drawn") < screen.raw.index(LEFT) < screen.raw.index(b"Traceback")
        assert screen.modes() == modes


async def test_ctrl_backslash_ends_it_and_nothing_is_left(config: Path, short_path: Path) -> None:
    """As it ends other programs, also if the loop hangs."""
    async with playing(config, TMPDIR=str(short_path)) as screen:
        modes = screen.modes()
        await screen.shows("2 of 2")
        assert entries(short_path)
        screen.type("\x1c")
        assert await ended(screen) == -signal.SIGQUIT
        assert screen.modes() == modes
        assert not entries(short_path)


@pytest.mark.skipif(not shutil.which("bash"), reason="needs a shell with jobs")
async def test_a_stop_gives_the_shell_its_terminal(config: Path) -> None:
    argv = ["bash", "--norc", "--noprofile", "-i"]
    async with terminal(argv, environment(PS1="shell$ ", PS2="")) as screen:
        await screen.shows("shell$")
        screen.type(f"{' '.join(PROGRAM)} try {config}\r")
        await screen.shows("example.com/cola: ")
        screen.type("\x1a")
        await screen.writes(LEFT)
        await screen.writes(b"Stopped")
        seen = len(screen.raw)
        screen.type("echo $((40 + 2))\r")
        await screen.until(lambda: b"42" in screen.raw[seen:], "the shell's answer")
        seen = len(screen.raw)
        screen.type("fg\r")
        await screen.until(lambda: b"What kubelet sees" in screen.raw[seen:], "a whole frame")
        screen.type("quit\r")
        await screen.until(lambda: LEFT in screen.raw[seen:], "the end")
        screen.type("echo $?-ended\r")
        await screen.writes(b"0-ended")


async def test_a_terminal_without_a_cursor_gets_lines(config: Path) -> None:
    argv = ["env", "TERM=dumb", *PROGRAM, "try", str(config), "--listen", "127.0.0.1:0"]
    async with terminal(argv, environment()) as screen:
        await screen.shows("devhost: metrics: http://127.0.0.1:")
        await screen.shows("example.com/cola: ")
        assert b"\x1b" not in screen.raw
