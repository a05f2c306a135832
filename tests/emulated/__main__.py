"""Run the tests of this folder in an emulated computer: ``python -m tests.emulated [PYTEST ARGUMENTS]``.

It ends as pytest does; where no computer can be emulated, it says why and fails.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.emulated import computer
from tests.image.machine import ROOT, Unavailable

HERE: Final = Path(__file__).parent
# Loading what is not needed takes half a minute in there.
PYTEST: Final = ("-m", "pytest", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout")
KEPT: Final = ("DEVHOST_TEST_KUBELET", "PATH")


def main() -> int:
    """Return pytest's exit status."""
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
    began = time.monotonic()
    in_there = variables | {"DEVHOST_TEST_EMULATED": "/dev/monitor", "TMPDIR": "/run"}
    arguments = [*command, "-p", "no:cacheprovider", "-v"]
    with tempfile.TemporaryDirectory(prefix="dh") as scratch:
        try:
            status = computer.run(arguments, in_there, Path(scratch))
        except Unavailable as reason:
            sys.exit(f"no computer with USB can be emulated here: {reason}")
    sys.stdout.write(f"{time.monotonic() - began:.0f} s from start to end of the computer\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
