"""The output of `make demo`."""

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "docs" / "demo.py"


def test_demo_warning_is_below_its_step() -> None:
    output = subprocess.check_output([sys.executable, DEMO], text=True, stderr=subprocess.STDOUT)
    steps = output.split("── ")
    assert steps[-1].endswith("devhost init\n")
    (warned,) = (step for step in steps if "device is unhealthy" in step)
    assert warned.startswith("A device is removed")
