"""``devhost try`` in a terminal: a prompt, and what changes above it."""

import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.support.command import PROGRAM, environment
from tests.support.screen import Screen, terminal

CONFIG: Final = """\
version: v1
resources:
  - name: example.com/cola
    sources: [directory: {0}/colas]
    allocate:
      env: {{COLA: "${{id}}"}}
      mounts: [{{hostPath: "${{path}}", containerPath: "/run/cola/${{name}}"}}]
"""
DRA: Final = """\
version: v1
resources:
  - name: example.com/zero
    backend: dra
    replicas: 2
    maxPerContainer: 1
    sources: [{dev: "(?P<what>zero|full)"}]
    id: ${what}
    allocate: {env: {ZEROS: "${id}"}, devices: [{hostPath: "${path}", containerPath: "/dev/${index}"}]}
"""
TOKENS: Final = """\
  - name: example.com/zero-token
    sources: [static: 3]
"""


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


def playing(config: Path, *flags: str, **options: str) -> AbstractAsyncContextManager[Screen]:
    argv = [*PROGRAM, "try", str(config), "--allow-path", f"{config.parent}/colas/*", *flags]
    return terminal(argv, environment(**options))


async def test_prompt_allocates_restarts_and_frees(config: Path) -> None:
    async with playing(config, "--listen", "127.0.0.1:0", COLUMNS="120") as screen:
        modes = screen.modes()
        await screen.shows("devhost: metrics: http://127.0.0.1:")
        await screen.shows("example.com/cola: 2 of 2 allocatable: cherry classic\r\n> ")
        receives = "pod-1 has cherry, classic; its container receives"
        mount = f"  mount {config.parent}/colas/cherry"
        await screen.answers("al\tco\t2", receives, "  env COLA=cherry,classic", mount)
        (config.parent / "colas" / "classic").unlink()
        await screen.shows("example.com/cola: 1 of 2 allocatable: cherry (classic)")
        screen.type("devices\r")
        await screen.shows("classic   Unhealthy   pod-1   ")
        await screen.shows("/colas/classic   not found any more")
        screen.type("restart\r")
        await screen.shows("kubelet has restarted")
        await screen.shows("example.com/cola: 1 of 2 allocatable")
        await screen.shows("> ")
        await screen.answers("free p\t", "pod-1 ended\r\n> ")
        screen.type("\x1b[A\r")  # the line before
        await screen.shows("no pod pod-1; pods: none\r\n> ")
        screen.type("\x04")
        assert await screen.process.wait() == 0
        assert screen.modes() == modes
        assert "Traceback" not in screen.text


async def test_prompt_gives_a_pod_what_dra_would_offer(config: Path) -> None:
    save(config, DRA)
    async with playing(config, COLUMNS="120") as screen:
        await screen.shows("example.com/zero: 4 of 4 shares allocatable: full zero")
        await screen.shows("> ")
        await screen.answers(
            "allocate zero 2", "  env ZEROS=full,zero", "  device /dev/full as /dev/0"
        )
        await screen.answers("devices", "full     Healthy   pod-1     /dev/full")
        await screen.answers("restart", "example.com/zero: 4 of 4 shares allocatable")


ANSWERS: Final = {
    "allocate": "allocate RESOURCE [N]",
    "allocate cola many": "allocate RESOURCE [N]",
    "allocate pepsi": "which resource is pepsi? example.com/cola",
    "allocate cola 3": "Requested: 3, Available: 2",
    "free pod-7": "no pod pod-7; pods: none",
    "'": "No closing quotation",
    "help": "Tab completes.",
}


async def test_prompt_answers_a_mistake(config: Path) -> None:
    async with playing(config) as screen:
        await screen.shows("2 of 2")
        for command, answer in ANSWERS.items():
            await screen.shows("> ")  # what is typed before it is echoed by the terminal
            screen.type(f"{command}\r")
            await screen.shows(f"{command}\r\n")
            await screen.shows(answer)
        screen.type("\udcff\r")  # a byte that is no text
        await screen.answers("help", "Tab completes.")


async def test_edit_applies_and_a_mistake_in_it_is_shown(config: Path, tmp_path: Path) -> None:
    async with playing(config) as screen:
        await screen.shows("2 of 2")
        save(config, f"{CONFIG.format(tmp_path)}{TOKENS}")
        await screen.shows("example.com/zero-token: 3 of 3 allocatable")
        save(config, f"{CONFIG.format(tmp_path)}{TOKENS}".replace("3", "many"))
        await screen.shows("configuration file invalid; still serving the last good one")


@pytest.mark.parametrize("how", ["interrupt", "terminate", "quit", "closed"])
async def test_terminal_gets_its_modes_back(config: Path, short_path: Path, how: str) -> None:
    async with playing(config, TMPDIR=str(short_path)) as screen:
        modes = screen.modes()
        await screen.shows("2 of 2")
        await screen.shows("> ")
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
        assert not entries(short_path)
        assert how == "closed" or screen.modes() == modes
