"""Writes docs/images/demo.svg from a run: ``python -m deploy.site.picture`` (`make picture`)."""

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURE: Final = ROOT / "docs" / "images" / "demo.svg"
COMMAND: Final = ("make", "--silent", "--no-print-directory", "demo")
_WIDTH: Final = 88
# Rich's own format loads its font from another server.
_FORMAT: Final = re.sub(r"@font-face \{\{.*?\n    \}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def picture(printed: str) -> str:
    """Return what a terminal shows after a command has printed this."""
    console = Console(record=True, width=_WIDTH, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ {COMMAND[0]} {COMMAND[-1]}\n{printed.rstrip()}"))
    return console.export_svg(title="devhost", code_format=_FORMAT, unique_id="demo")


def main() -> None:
    """Run the demonstration and write the picture."""
    environment = os.environ | {"COLUMNS": str(_WIDTH), "FORCE_COLOR": "1"}
    done = subprocess.run(
        COMMAND, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    # The name of the temporary directory is another one each time.
    printed = re.sub(r"/tmp/devhost-demo-\w+", "/tmp/devhost-demo", done.stdout)
    svg = "\n".join(line.rstrip() for line in picture(printed).splitlines())
    PICTURE.write_text(f"{svg}\n", encoding="utf-8")
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)} written\n")


if __name__ == "__main__":
    main()
