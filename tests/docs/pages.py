"""The pages of the documentation and what is in them.

``python -m tests.docs.pages [PAGE…]`` runs the commands of the pages and writes what they print into them.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from devhost.cli import main as cli
from tests.support.hardware import HostTree

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
        *(ROOT / name for name in ("SECURITY.md", "deploy/helm/devhost/README.md")),
    )
)
_BLOCK: Final = re.compile(
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
# Devices of the hosts on which the commands of pages run, in the notation of
# tests/support/hardware.py.
_HOSTS: Final = Path(__file__).with_name("hosts")
_SHELL: Final = re.compile(r"(mkdir|touch|ln|rm|cat)\b")
_OURS: Final = re.compile(r"devhost (validate|plan|devices|schema|init|convert)\b")


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    text: str


@dataclass(frozen=True)
class Command:
    """A command of a page and what the page shows below it."""

    command: str
    shown: str


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    return [Block(**match.groupdict()) for match in _BLOCK.finditer(read(page))]


def commands(block: Block) -> list[Command]:
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
    result = []
    for part in parts:
        command, _, shown = re.sub(r"\\\n\s*", "", part).partition("\n")
        result.append(Command(command, shown))
    return result


def host(page: str) -> str | None:
    tree = _HOSTS / f"{Path(page).stem}.tree"
    return tree.read_text(encoding="utf-8") if tree.exists() else None


def run(page: str) -> Iterator[tuple[Command, str]]:
    """Run the commands of a page in an empty directory; yield them with what they print."""
    devices = host(page)
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        if devices is not None:
            Path("host").mkdir()
            HostTree(Path("host")).hardware(devices)
        for block in blocks(page):
            if block.title and block.language == "yaml":
                Path(block.title).parent.mkdir(parents=True, exist_ok=True)
                Path(block.title).write_text(block.text, encoding="utf-8")
            if block.language != "console":
                continue
            for command in commands(block):
                input_file = re.fullmatch(r"cat (\S+)", command.command)
                if input_file and not Path(input_file[1]).exists():
                    Path(input_file[1]).write_text(command.shown, encoding="utf-8")
                elif (printed := _printed(command.command, root=devices is not None)) is not None:
                    yield command, printed


def _printed(command: str, *, root: bool) -> str | None:
    """Run a command, unless it needs a file, a host, a cluster or a network that is not there."""
    if _SHELL.match(command):
        shell = ["sh", "-ec", command]
        return subprocess.run(shell, check=True, stdout=subprocess.PIPE, text=True).stdout
    arguments = shlex.split(command)[1:]
    inputs = arguments[: arguments.index("-o")] if "-o" in arguments else arguments
    files = [Path(name) for name in inputs if name.endswith(".yaml")]
    if not _OURS.match(command) or not all(file.exists() for file in files):
        return None
    reads_host = arguments[0] not in ("validate", "schema")
    if reads_host and not {"--root", "--against"} & set(arguments):
        if not root and arguments[0] != "convert":
            return None
        arguments += ["--root", "host"] if root else []
    # The environment of the pages: no variables of ours.
    ours = {name: None for name in os.environ if name.startswith("DEVHOST_")}
    output = CliRunner().invoke(cli, arguments, env=ours).output
    host_path = os.path.realpath("host")
    return output.replace(f" --root {host_path}", "").replace(host_path, "")


def main() -> None:
    """Write what the commands print into the pages, or those that are named."""
    for page in sys.argv[1:] or PAGES:
        text = read(page)
        for command, printed in run(page):
            if "…" not in command.shown and command.shown.rstrip() != printed.rstrip():
                shown = f"\n$ {command.command}\n{command.shown}"
                assert shown in text, f"{page}: write by hand what {command.command} prints"
                text = text.replace(shown, f"\n$ {command.command}\n{printed}", 1)
        (ROOT / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
