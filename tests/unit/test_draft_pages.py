"""The commands of docs/init.md and docs/migrating.md print what the pages show."""

import re
import shlex
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from devhost.cli import main
from tests.support.hardware import HostTree
from tests.support.root import needs_root

ROOT: Final = Path(__file__).parents[2]
TREES: Final = ROOT / "tests/unit/trees"

pytestmark = needs_root


def host(tree: HostTree) -> None:
    """Create the host of docs/init.md."""
    gpu = (TREES / "render.tree").read_text().splitlines()[:3]
    others = [(TREES / f"{name}.tree").read_text() for name in ("ftdi", "tpm")]
    tree.hardware("\n".join([*gpu, *others]))
    tree.char("/dev/kvm", 10, 232)


@pytest.mark.parametrize("page", ["init", "migrating"])
def test_draft_page_shows_what_is_printed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = HostTree(tmp_path / "host")
    host(tree)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("DEVHOST_ROOT", str(tree.root))
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in block.removeprefix("$ ").split("\n$ "):
            line, _, expected = part.partition("\n")
            program, *arguments = shlex.split(line)
            if program == "devhost":
                result = CliRunner().invoke(main, arguments)
                assert result.exit_code == (
                    "# Not carried over" in text and line.startswith("devhost convert")
                )
                assert result.output.replace(f" --root {tree.root}", "").strip() == expected.strip()
            elif Path(arguments[0]).exists():
                assert Path(arguments[0]).read_text().strip() == expected.strip()
            else:
                Path(arguments[0]).write_text(f"{expected.strip()}\n")
