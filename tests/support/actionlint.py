"""What actionlint says of the workflows: the Go program in tests/support/go, built once.

python -m tests.support.actionlint

builds it and prints its path.
"""

import subprocess
import sys

from tests.support.goprogram import ROOT, Oracle, built

ORACLE = Oracle("actionlint", "actionlint", "require github.com/rhysd/actionlint")


def complaints() -> str:
    """Return what is wrong with the workflows; empty if nothing is."""
    done = subprocess.run(
        [built(ORACLE), "-no-color", "-oneline", "-shellcheck=", "-pyflakes="],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=250,
    )
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.stdout.write(f"{ORACLE.build()}\n")
