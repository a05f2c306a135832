"""`--kinds`: what a user's own file knows of devices is used before what devhost knows."""

from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from devhost.cli import main
from tests.support.hardware import HostTree
from tests.support.root import needs_root

KINDS: Final = """\
laser:
  note: For LightBurn.
  resources:
    - name: laser
      sources: [usb: {device: 1a86:7523, node: tty}]
kvm:
  init: never
  resources: []
"""
HARDWARE: Final = """
pci 0000:00:14.0 8086:9ded class=0c0330 driver=xhci_hcd
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
    usb 1-2 1a86:7523 bus=1 dev=5
      if 1-2:1.0 ff0102 ch341
        usb-serial ttyUSB0 driver=ch341 port_number=0
          tty ttyUSB0 188:0
dir virtual
  misc kvm 10:232
  misc fuse 10:229
"""


@needs_root
@pytest.mark.parametrize("command", [["init"], ["devices", "ttyUSB0", "-o", "yaml"]])
def test_own_kind_replaces_a_kind_of_its_name(command: list[str], tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.hardware(HARDWARE)
    (tmp_path / "kinds.yaml").write_text(KINDS)
    options = ["--kinds", str(tmp_path / "kinds.yaml"), "--root", str(tree.root)]
    result = CliRunner().invoke(main, [*command, *options])
    assert result.exit_code == 0, result.output
    assert "# For LightBurn.\n" in result.stdout
    assert "containerPath: /dev/laser}" in result.stdout
    assert "/kvm" not in result.stdout
    assert ("/fuse" in result.stdout) == (command == ["init"])


@pytest.mark.parametrize(
    "case", Path(__file__).with_name("kinds.txt").read_text().split("==\n")[1:]
)
def test_invalid_kinds_are_refused(case: str, tmp_path: Path) -> None:
    text, *problems = case.replace("HUNDREDS", "{sources: [/dev/x]}, " * 1001).split("\n  | ")
    file = tmp_path / "kinds.yaml"
    file.write_text(f"{text}\n")
    result = CliRunner().invoke(main, ["init", "--kinds", str(file), "--root", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (1, "")
    lines = result.stderr.splitlines()
    assert len(lines) == len(problems), lines
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(f"{file}:{problem.strip()}")
