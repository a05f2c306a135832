"""Writes the pictures of terminals in docs/images from runs: ``make picture``."""

import asyncio
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Final

from pyte.screens import Char
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.color import ANSI_COLOR_NAMES
from rich.console import Console
from rich.style import Style
from rich.text import Text

from devhost.testing import HostTree
from tests.support.screen import terminal

ROOT: Final = Path(__file__).resolve().parents[2]
IMAGES: Final = ROOT / "docs" / "images"
COMMAND: Final = ("make", "--silent", "--no-print-directory", "demo")
_WIDTH: Final = 88
# Rich's own format loads its font from another server.
_FORMAT: Final = re.sub(r"@font-face \{\{.*?\n    \}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


_CONFIG: Final = """\
version: v1
resources:
  - name: example.com/serial
    sources: [/dev/serial/by-id/*]
    allocate:
      devices:
        - {hostPath: "${path}", containerPath: "/dev/serial${index}"}
"""
_HARDWARE: Final = """
pci 0000:00:14.0 8086:06ed class=0c0330
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
"""
_STICK: Final = """
    usb 1-{0} 0403:6001 bus=1 dev={0} serial={1}
      if 1-{0}:1.0 ffffff ftdi_sio
        tty ttyUSB{0} 188:{0}
link serial/by-id/usb-FTDI_{1} ttyUSB{0}
"""


def main() -> None:
    """Run what the pictures show, and write them."""
    _write("demo", [_demo()])
    with tempfile.TemporaryDirectory() as directory:
        _write("try", asyncio.run(_try(Path(directory))))


def _write(name: str, lines: Sequence[Text]) -> None:
    console = Console(record=True, width=_WIDTH, file=StringIO(), force_terminal=True)
    for line in lines:
        console.print(line)
    svg = console.export_svg(title="devhost", code_format=_FORMAT, unique_id=name)
    path = IMAGES / f"{name}.svg"
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")
    sys.stdout.write(f"{path.relative_to(ROOT)} written\n")


async def _try(directory: Path) -> list[Text]:
    """Return what the screen of `devhost try` shows after some commands and an unplugged stick."""
    (directory / "serial.yaml").write_text(_CONFIG)
    tree = HostTree(directory / "host")
    tree.hardware(_HARDWARE + _STICK.format(2, "A10K1HXL") + _STICK.format(3, "AH06W0EQ"))
    command = (sys.executable, "-m", "devhost", "try", "serial.yaml", "--root", "host")
    os.chdir(directory)
    async with terminal(command, os.environ | {"COLORTERM": ""}, _WIDTH, 20) as screen:
        await screen.shows("2 of 2 allocatable")
        screen.type("allocate serial\r")
        await screen.shows("its container receives")
        screen.type("restart\r")
        await screen.shows("kubelet has restarted")
        await screen.shows("2 of 2 allocatable")
        tree.unplug("1-3")
        await screen.shows("1 of 2 allocatable")
        screen.type("free all\r")
        await screen.shows("free all")
        lines = [_line(cells) for cells in screen.cells()]
    return [Text("$ devhost try serial.yaml --root host"), *lines]


def _line(cells: Sequence[Char]) -> Text:
    text = Text()
    for style, some in itertools.groupby(cells, _style):
        text.append("".join(cell.data for cell in some), style)
    text.rstrip()
    return text


def _style(cell: Char) -> Style:
    color = cell.fg if cell.fg in ANSI_COLOR_NAMES else None
    return Style(color=color, bold=cell.bold, reverse=cell.reverse)


def _demo() -> Text:
    """Return what the demonstration prints."""
    environment = os.environ | {"COLUMNS": str(_WIDTH), "FORCE_COLOR": "1"}
    done = subprocess.run(
        COMMAND, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    # The name of the temporary directory is another one each time.
    printed = re.sub(r"/tmp/devhost-demo-\w+", "/tmp/devhost-demo", done.stdout)
    return Text.from_ansi(f"$ {COMMAND[0]} {COMMAND[-1]}\n{printed.rstrip()}")


if __name__ == "__main__":
    main()
