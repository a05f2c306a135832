"""Run these tests in an emulated computer, by pytest: ``python -m tests.e2e.emulated [ARGUMENTS]``.

It ends as pytest does; where no computer can be emulated, it says why and fails.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.deploy.machine import ROOT, Unavailable
from tests.e2e.emulated import computer

HERE: Final = Path(__file__).parent
# Loading what is not needed takes half a minute in there.
PYTEST: Final = ("-m", "pytest", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout")
KEPT: Final = ("DEVHOST_TEST_KUBELET", "PATH")


def main() -> int:
    """Return pytest's exit status."""
    began = time.monotonic()
    try:
        files = computer.files()
    except Unavailable as reason:
        sys.exit(f"no computer with USB can be emulated here: {reason}")
    command = [sys.executable, *PYTEST, str(HERE.relative_to(ROOT)), *sys.argv[1:]]
    variables = {name: os.environ[name] for name in KEPT if name in os.environ}
    variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
    # Here first: what is compiled now need not be compiled in there, which is slow.
    collected = subprocess.run(
        [*command, "--collect-only", "--quiet"],
        check=False,
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    if collected.returncode != 0:
        sys.stdout.write(collected.stdout)
        return collected.returncode
    in_there = variables | {"DEVHOST_TEST_EMULATED": "/dev/monitor"}
    arguments = [*command, "-p", "no:cacheprovider", "-v"]
    with tempfile.TemporaryDirectory(prefix="dh") as scratch:
        status = computer.run(files, arguments, in_there, Path(scratch))
    sys.stdout.write(f"{time.monotonic() - began:.0f} s in all\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
