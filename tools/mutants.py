"""Plants one defect at a time in a copy and runs the tests that should notice: ``make mutants``.

``tools/mutants.yaml`` has of each a file below ``devhost/``, a text that is in it once, what stands
there instead, and the tests that have to fail by it. An argument chooses those with a word in any
of these. A mutant whose text is gone has to follow the code, or goes with it.
"""

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
from typing import Final

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
        file: Below ``devhost/``.
        before: A text that is there once.
        after: The text instead.
        tests: What pytest is given.
    """

    file: str
    before: str
    after: str
    tests: str


def mutants(words: list[str]) -> list[Mutant]:
    """Read those of the list that have all the words."""
    every = [Mutant(**one) for one in yaml.safe_load(LIST.read_text(encoding="utf-8"))]
    return [one for one in every if all(word in repr(one) for word in words)]


@contextlib.contextmanager
def planted(copy: Path, mutant: Mutant, number: int) -> Iterator[bool]:
    """Plant a defect for a while; say whether its text is there, once."""
    file = copy / "devhost" / mutant.file
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if text.count(mutant.before) != 1:
        yield False
        return
    # A compiled file is known by the second and the size of its source: so the time is another.
    later = time.time() + 2 * number
    try:
        _write(file, text.replace(mutant.before, mutant.after), later + 1)
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
        for tests in dict.fromkeys(one.tests for one in chosen):
            if (how := noticed(copy, tests)) is not None:
                sys.exit(f"without any mutant: {how}")
        for number, mutant in enumerate(chosen):
            began = time.monotonic()
            with planted(copy, mutant, number) as there:
                how = noticed(copy, mutant.tests) if there else "GONE"
            missed += how in (None, "GONE")
            seconds = time.monotonic() - began
            where = f"{mutant.file}: {mutant.before.strip().splitlines()[0]}"
            print(f"{how or 'SURVIVED'}  ({where}; {seconds:.0f} s)", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutants noticed")
    return missed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
