"""actionlint on the workflows: the Go program in tests/support/go, built once."""

import subprocess

from tests.support.goprogram import ROOT, Oracle

ORACLE = Oracle("actionlint", "actionlint", "require github.com/rhysd/actionlint")


def complaints() -> str:
    """Return what is wrong with the workflows; empty if nothing is."""
    done = subprocess.run(
        [ORACLE.build(), "-no-color", "-oneline", "-shellcheck=", "-pyflakes="],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=250,
    )
    return done.stdout + done.stderr
