"""Rules of the source that neither the import contracts nor ruff can check."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parents[2] / "devhost"
HAND_WRITTEN: Final = sorted(
    path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(PACKAGE / "api")
)


def test_public_class_names_are_unique() -> None:
    """A class, or a name for a type, is found by its name alone."""
    places: dict[str, list[str]] = {}
    for path in HAND_WRITTEN:
        for name in public_types(ast.parse(path.read_text(encoding="utf-8"))):
            places.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
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


def test_grpc_channels_are_made_in_one_module() -> None:
    """Only there does gRPC not repeat calls without end."""
    makers = [path.name for path in HAND_WRITTEN if "insecure_channel(" in path.read_text()]
    assert makers == ["sockets.py"]
