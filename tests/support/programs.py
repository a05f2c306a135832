"""The programs that are built for tests: once each, by the first process that asks.

python -m tests.support.programs NAME...

builds some, one after the other. A test that needs one is marked with its name, for example
`program("promql")`; it runs last, and fails if the program cannot be built.
"""

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pytest

from tests.support import actionlint, cdiverify, dra_build, kubelet_build, promql
from tests.support.goprogram import ROOT
from tests.support.realkubelet import real_kubelets
from tools import helm
from tools.golang import HEARTBEAT, say

LOG: Final = ROOT / ".tools" / "programs.log"


def _build_helms() -> None:
    for major in helm.PACKAGES:
        helm.build(major)


def _build_kubelets() -> None:
    for binary in real_kubelets().values():
        kubelet_build.build(binary)


# The quickest first.
_BUILDERS: Final[dict[str, Callable[[], object]]] = {
    "cdiverify": cdiverify.ORACLE.build,
    "actionlint": actionlint.ORACLE.build,
    "promql": promql.ORACLE.build,
    "helm": _build_helms,
    "kubelet": _build_kubelets,
    "dra": dra_build.build_all,
}


def needed_by(test: pytest.Item) -> list[str]:
    return [mark.args[0] for mark in test.iter_markers("program")]


def order(tests: list[pytest.Item]) -> None:
    """Put the quick tests first, those that need a program last, in the order of the builds."""
    turns = {name: turn for turn, name in enumerate(_BUILDERS, 2)}

    def turn(test: pytest.Item) -> int:
        quick = test.nodeid.startswith("tests/unit/")
        return max((turns[name] for name in needed_by(test)), default=0 if quick else 1)

    tests.sort(key=turn)


@functools.cache
def failure(name: str) -> str | None:
    """Return why a program cannot be had; ``None`` if it is there, which may take minutes."""
    pipe = subprocess.PIPE
    with subprocess.Popen(_command(name), cwd=ROOT, stderr=pipe, text=True) as process:
        while True:
            try:
                _, output = process.communicate(timeout=HEARTBEAT)
                break
            except subprocess.TimeoutExpired:
                if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":  # one of the workers
                    say(f"waiting for {name}")
    return f"cannot build {name}:\n{output[-4000:]}" if process.returncode else None


def build_in_background() -> Callable[[], None]:
    """Begin to build all; return what ends that."""
    LOG.parent.mkdir(exist_ok=True)
    # Not in a session of its own, which would be a fair rival of the tests.
    with LOG.open("w") as log:
        process = subprocess.Popen(
            _command(*_BUILDERS),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)  # it removes what is unfinished
        process.wait()

    return end


def _command(*names: str) -> list[str]:
    return [sys.executable, "-m", "tests.support.programs", *names]


def main() -> int:
    os.nice(10)  # the tests that run meanwhile come first
    failed = 0
    for name in sys.argv[1:]:
        try:
            _BUILDERS[name]()
        except (OSError, subprocess.CalledProcessError) as error:
            sys.stderr.write(f"{name}: {error}\n")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
