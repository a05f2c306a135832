"""A short run of the soak; `python -m tests.soak` is the long one."""

import argparse
from pathlib import Path

import pytest

from tests.soak.__main__ import kubelet_in, soak

pytestmark = pytest.mark.slow

SECONDS = 20


@pytest.mark.timeout(300 + 4 * SECONDS)
async def test_a_short_storm(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After each of some storms all agree, and nothing has died."""
    arguments = argparse.Namespace(
        seconds=SECONDS, rest_every=SECONDS // 4, seed=7, leave_after=3.0, alone=False
    )
    status = await soak(arguments, directory, kubelet_in(directory / "plugins"))
    assert status == 0, capsys.readouterr().out
