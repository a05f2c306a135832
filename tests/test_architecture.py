"""The layers hold, and no file or function outgrows its reader."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "devhost"

LONGEST_FILE = 400
LONGEST_FUNCTION = 60

HAND_WRITTEN = sorted(
    path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(PACKAGE / "api")
)


def test_imports_only_go_down_the_layers() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", HAND_WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_short_enough_to_read_in_one_go(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    assert lines <= LONGEST_FILE, f"{lines} lines; split it along what it does"
    long = [
        f"{path.name}:{start}: {name} has {length} lines"
        for name, start, length in functions(ast.parse(text))
        if length > LONGEST_FUNCTION
    ]
    assert not long, "\n".join(long)


def test_no_two_public_classes_have_one_name() -> None:
    """A class, or a name for a type, is found by its name alone."""
    places: dict[str, list[str]] = {}
    for path in HAND_WRITTEN:
        for name in public_types(ast.parse(path.read_text(encoding="utf-8"))):
            places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    shared = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert not shared


def public_types(tree: ast.Module) -> Iterator[str]:
    """Yield the public classes of a module, and its names for types (``Name = ...``)."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            yield from (name for name in names if name[0].isupper() and not name.isupper())


def functions(tree: ast.Module) -> Iterator[tuple[str, int, int]]:
    """Yield each function's name, first line and number of lines, its decorators included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield node.name, start, (node.end_lineno or node.lineno) - start + 1


def test_each_connection_is_made_in_one_place() -> None:
    """Only there does gRPC not repeat calls without end."""
    makers = [path.name for path in HAND_WRITTEN if "insecure_channel(" in path.read_text()]
    assert makers == ["sockets.py"]
