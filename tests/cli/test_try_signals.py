"""What `devhost try` leaves behind when a signal kills it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """\
import os
from devhost.cli.try_command import _temporary_directory
with _temporary_directory() as directory:
    (directory / "state").mkdir()
    os.kill(os.getpid(), {})
print("alive")
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT])
@pytest.mark.parametrize("ignored", [False, True])
def test_nothing_is_left(number: signal.Signals, ignored: bool, tmp_path: Path) -> None:
    """The status says what ended it; what nohup or a shell had it ignore stays ignored."""
    before = signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(int(number))],
            env={"TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        signal.signal(number, before)
    wanted = (0, "alive\n") if ignored else (-number, "")
    assert (done.returncode, done.stdout) == wanted, done.stderr
    assert list(tmp_path.iterdir()) == []
