"""A memory cgroup for a process, where this machine permits it."""

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

_VALUES = Path(__file__).parents[2] / "deploy" / "helm" / "devhost" / "values.yaml"
_HIERARCHIES = Path("/sys/fs/cgroup")
_ENTER = 'echo $$ > "$0" && exec "$@"'


@contextlib.contextmanager
def chart_memory() -> Iterator[Sequence[str]]:
    """Yield a command that starts another one with the memory that the chart's limit gives it."""
    unified = (_HIERARCHIES / "cgroup.controllers").exists()
    place = (
        _HIERARCHIES if unified else _HIERARCHIES / "memory"
    ) / f"devhost-test-{secrets.token_hex(8)}"
    name = "memory.max" if unified else "memory.limit_in_bytes"
    limit = yaml.safe_load(_VALUES.read_text())["resources"]["limits"]["memory"]
    try:
        place.mkdir()
        (place / name).write_text(limit.replace("Mi", "M"))  # in the kernel's words
    except OSError as error:
        with contextlib.suppress(OSError):
            place.rmdir()
        pytest.skip(f"no memory cgroup: {error}")
    try:
        yield ("sh", "-c", _ENTER, str(place / "cgroup.procs"))
    finally:
        with contextlib.suppress(OSError):  # after a failure the processes may not have ended
            place.rmdir()
