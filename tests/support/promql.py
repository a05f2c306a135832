"""What PromQL expressions yield: the Go program in tests/promql, built once.

    python -m tests.support.promql

builds it and prints its path. The name of the binary carries Prometheus' version and a hash of
the sources; if it is there already, nothing is built.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kubelet.build import find
from tests.support import goprogram

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "promql"
TOOLS = ROOT / ".tools"

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Series:
    """A time series.

    Attributes:
        labels: With ``__name__``.
        values: At 0, 1, … minutes; ``None`` where there is no sample.
    """

    labels: Labels
    values: Sequence[float | None]


def build(out: Path = TOOLS) -> Path:
    """Return the binary; several processes may ask at once."""
    version = find(r"github\.com/prometheus/prometheus v(\S+)", SOURCES / "go.mod")
    return goprogram.build(SOURCES, ".", f"promql-v{version}", out)


@functools.cache
def engine() -> Path:
    """Build it for a test, which is skipped where that cannot be done, except in CI."""
    try:
        return build()
    except (OSError, subprocess.CalledProcessError) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"cannot build tests/promql: {error}")


def evaluate(
    binary: Path, series: Sequence[Series], expressions: Sequence[str], minutes: int
) -> list[list[list[dict[str, str]]]]:
    """Evaluate expressions at 0, 1, … minutes; return the labels of what each yields."""
    request = {
        "series": [{"labels": dict(one.labels), "values": list(one.values)} for one in series],
        "expressions": list(expressions),
        "minutes": minutes,
    }
    done = subprocess.run(
        [binary],
        input=json.dumps(request),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=250,
    )
    found: list[list[list[dict[str, str]]]] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
