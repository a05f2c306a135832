"""Each command in the image: nothing that it needs was left out."""

from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from devhost.cli import main
from tests.deploy.container import Containers

pytestmark = pytest.mark.slow

FILE: Final = "/etc/devhost/config.yaml"
NAME: Final = "example.com/slot"
GENERIC: Final = "devices: [{name: 'null', groups: [{paths: [{path: /dev/null}]}]}]\n"
COMMANDS: Final = {
    ("plan", FILE): NAME,
    ("plan", FILE, "-o", "yaml"): NAME,
    ("plan", FILE, "--explain"): NAME,
    ("plan", FILE, "--against", FILE): NAME,
    ("devices", "--root=/"): "",
    ("init", "--yes", "null"): "version: v1",
    ("convert", "/etc/devhost/generic.yaml", "--domain=example.com"): "version: v1",
    ("try", FILE, "--once"): NAME,
}
IMPORTS: Final = """
import ast, importlib, pathlib, devhost
package = pathlib.Path(devhost.__file__).parent
names = set()
for path in package.rglob("*.py"):
    module = path.relative_to(package.parent).with_suffix("")
    if "testing" in module.parts or module.name in ("__main__", "playground"):
        continue
    names.add(".".join(module.parts).removesuffix(".__init__"))
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                names.update(each.name for each in node.names)
            case ast.ImportFrom():
                names.add(node.module)
for name in names - {"devhost.cli.playground"}:
    importlib.import_module(name)
print(len(names))
"""

TEXTS: Final = [("schema",), ("--help",), ("run", "--help")]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(
        f"version: v1\nresources:\n  - {{name: {NAME}, sources: [static: 3]}}\n"
    )
    (tmp_path / "generic.yaml").write_text(GENERIC)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def mounts(directory: Path) -> dict[str, Path]:
    return {"/etc/devhost:ro": directory, "/tmp": directory / "tmp"}


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_command_in_the_image(
    containers: Containers, directory: Path, arguments: tuple[str, ...]
) -> None:
    done = containers.run(*arguments, mounts=mounts(directory))
    assert done.returncode == 0, done.stdout + done.stderr
    assert COMMANDS[arguments] in done.stdout


@pytest.mark.parametrize("arguments", TEXTS, ids=" ".join)
def test_texts_from_docstrings_are_kept(containers: Containers, arguments: tuple[str, ...]) -> None:
    here = CliRunner().invoke(main, arguments, prog_name="devhost").output
    there = containers.run(*arguments).stdout
    assert "".join(there.split()) == "".join(here.split())  # lines are as wide as the terminal


def test_modules_can_all_be_imported(containers: Containers, directory: Path) -> None:
    (directory / "code.py").write_text(IMPORTS)
    argv = ("/opt/devhost/bin/python3", "/etc/devhost/code.py")
    rootfs = containers.image.rootfs
    done = containers.run(*argv, mounts=mounts(directory), rootfs=rootfs)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
