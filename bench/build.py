"""The Go programs of the benchmark, built once: the load generator and the bare plugin."""

from pathlib import Path

from tests.support import goprogram

SOURCES = Path(__file__).resolve().parent
ROOT = SOURCES.parent


def build(program: str) -> Path:
    """Return the binary of the program in a folder here."""
    return goprogram.build(SOURCES, program, f"bench-{program}", ROOT / ".tools")
