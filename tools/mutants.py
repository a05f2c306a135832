"""Plants one defect at a time in a copy and runs the tests that should notice: ``make mutants``.

``tools/mutants.yaml`` has of each a function, an expression or a statement of it, what is put in
its place, and the tests that have to fail by that. An argument chooses those with a word in any of
these. A mutant whose function or expression is gone has to follow the code, or goes with it.
"""

import ast
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
LIST: Final = Path(__file__).with_suffix(".yaml")
_LEFT_OUT: Final = shutil.ignore_patterns(
    *(".git", ".venv", ".tools", "__pycache__", ".*_cache", ".hypothesis", "build", "site")
)
_TIMEOUT_S: Final = 120  # of the tests of one mutant: that they hang counts as noticed
_PASSED, _FAILED = 0, 1  # of pytest


@dataclass(frozen=True)
class Mutant:
    """One defect.

    Attributes:
        function: Its module below ``devhost``, and its name there; a module alone for what is
            outside of functions.
        replace: An expression or a statement that is in it, however it is laid out.
        by: What it becomes.
        tests: What pytest is given.
    """

    function: str
    replace: str
    by: str
    tests: str


def mutants(words: list[str]) -> list[Mutant]:
    """Read those of the list that have all the words."""
    listed = [Mutant(**entry) for entry in yaml.safe_load(LIST.read_text(encoding="utf-8"))]
    return [mutant for mutant in listed if all(word in repr(mutant) for word in words)]


class _Replacement(ast.NodeTransformer):
    """Replaces the first node that is equal to another."""

    def __init__(self, mutant: Mutant) -> None:
        self._wanted, self._by = map(_parsed, (mutant.replace, mutant.by))
        self.count = 0

    def visit(self, node: ast.AST) -> Any:
        if not self.count and ast.dump(node) == ast.dump(self._wanted):
            self.count += 1
            return self._by
        return self.generic_visit(node)


def _parsed(text: str) -> ast.AST:
    (node,) = ast.parse(text).body
    return node.value if isinstance(node, ast.Expr) else node


def _find(package: Path, function: str) -> tuple[Path, list[str]]:
    """Return the file of a function, and the names of what it is in."""
    parts = function.split(".")
    for count in range(len(parts), 0, -1):
        file = package.joinpath(*parts[:count]).with_suffix(".py")
        if file.exists():
            return file, parts[count:]
    return package / "__init__.py", parts


def mutated(text: str, names: list[str], mutant: Mutant) -> str | None:
    """Return a module with a defect; ``None`` where its function does not have the expression."""
    tree = scope = ast.parse(text)
    for name in names:
        named = [node for node in ast.walk(scope) if getattr(node, "name", None) == name]
        if not named:
            return None
        scope = named[0]  # type: ignore[assignment]
    replacement = _Replacement(mutant)
    replacement.visit(scope)
    return ast.unparse(ast.fix_missing_locations(tree)) if replacement.count else None


@contextlib.contextmanager
def planted(copy: Path, mutant: Mutant, number: int) -> Iterator[bool]:
    """Plant a defect for a while; say whether that is possible."""
    file, names = _find(copy / "devhost", mutant.function)
    text = file.read_text(encoding="utf-8")
    defect = mutated(text, names, mutant)
    if defect is None:
        yield False
        return
    # A compiled file is known by the second and the size of its source: so the time is another.
    later = time.time() + 2 * number
    try:
        _write(file, defect, later + 1)
        yield True
    finally:
        _write(file, text, later + 2)


def _write(file: Path, text: str, at: float) -> None:
    file.write_text(text, encoding="utf-8")
    os.utime(file, (at, at))


def noticed(copy: Path, tests: str) -> str | None:
    """Run tests; return how they noticed a defect, ``None`` if they passed."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", *tests.split()]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {_TIMEOUT_S} s"
    if done.returncode == _PASSED:
        return None
    lines = [
        line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR tests/"))
    ]
    if done.returncode == _FAILED and lines:
        return lines[0].split(" - ")[0]
    sys.exit(f"pytest {tests}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def main(words: list[str]) -> int:
    """Try all mutants, or those with these words; return how many were not noticed."""
    chosen = mutants(words)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copy = Path(directory) / "devhost"
        shutil.copytree(ROOT, copy, ignore=_LEFT_OUT, symlinks=True)
        for tests in dict.fromkeys(mutant.tests for mutant in chosen):
            if (how := noticed(copy, tests)) is not None:
                sys.exit(f"without any mutant: {how}")
        for number, mutant in enumerate(chosen):
            began = time.monotonic()
            with planted(copy, mutant, number) as there:
                how = noticed(copy, mutant.tests) if there else "GONE"
            missed += how in (None, "GONE")
            seconds = time.monotonic() - began
            where = f"{mutant.function}: {mutant.replace.strip().splitlines()[0]}"
            print(f"{how or 'SURVIVED'}  ({where}; {seconds:.0f} s)", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutants noticed")
    return missed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
