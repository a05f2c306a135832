"""The hardware examples give the devices that they promise, on a host that has the hardware."""

import re
import shutil
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from devhost.cli import main
from tests.support.examples import required
from tests.support.hardware import HostTree
from tests.support.root import needs_root
from tools.examples import examples

HERE: Final = Path(__file__).parent
EXAMPLES: Final = sorted((HERE.parents[1] / "config/examples/hardware").glob("*.yaml"))
# What the chart mounts of sysfs without `hostRoot`.
HELPERS: Final = (HERE.parents[1] / "deploy/helm/devhost/templates/_helpers.tpl").read_text()
MOUNTED: Final = frozenset(re.findall(r'"(/sys/\w+)"', HELPERS))

pytestmark = needs_root


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path / "host")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_hardware_example_on_its_host_and_in_a_pod_offers_it(example: Path, tree: HostTree) -> None:
    tree.hardware((HERE / f"trees/{example.stem}.tree").read_text())
    arguments = ["plan", str(example), "--root", str(tree.root), *required(example)]
    on_host = CliRunner().invoke(main, arguments)
    assert on_host.exit_code == 0, on_host.output
    shown = [line for line in on_host.stdout.splitlines() if line and "  warning: " not in line]
    assert shown == (HERE / f"plans/{example.stem}.txt").read_text().splitlines()
    for place in (tree.root / "sys").iterdir():
        if f"/sys/{place.name}" not in MOUNTED:
            shutil.rmtree(place)
    assert CliRunner().invoke(main, arguments).stdout == on_host.stdout


def test_hardware_examples_have_hosts() -> None:
    for directory in ("trees", "plans"):
        assert {path.stem for path in (HERE / directory).iterdir()} == {p.stem for p in EXAMPLES}


def test_hardware_examples_are_what_init_writes() -> None:
    """`python -m tools.examples` writes them."""
    assert {path.name: path.read_text() for path in EXAMPLES} == examples()
