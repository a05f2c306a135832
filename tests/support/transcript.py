"""Commands and what they print, in one text: a golden file of the command line.

Before the first line ``$``: ``== NAME`` begins a file, which ends at the next such line or at a line ``==``; `host.tree`
is hardware in the notation of tests/support/hardware.py, created below ``host``, `board.tree` below ``board``. A line ``$ …`` is
a command, and below it is what it prints: standard output, then standard error after ``! ``, then
the exit status in brackets if it is not 0::

    == c.yaml
    version: v2
    ==
    $ devhost validate c.yaml
    c.yaml:1:10: error: version: should be 'v1', not 'v2'
    [1]

``DEVHOST_TEST_WRITE=1 pytest …`` writes what the commands print now.
"""

import contextlib
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.command import called, process
from tests.support.hardware import HostTree

_USAGE: Final = 2
_PROCESSES: Final = ("run", "try")  # they set up signals and logs
_OF_ROOT: Final = re.compile("^[$] chown|No such device", re.MULTILINE)  # owners, nodes to open


def check(golden: Path, directory: Path) -> None:
    """Run the commands of a golden file in an empty directory, and compare what they print."""
    text = golden.read_text(encoding="utf-8")
    if os.geteuid() != 0 and _OF_ROOT.search(text):
        pytest.skip("needs root")
    seen = _replayed(text, directory)
    if os.environ.get("DEVHOST_TEST_WRITE"):
        golden.write_text(seen, encoding="utf-8")
    assert seen == text


def _replayed(text: str, directory: Path) -> str:
    head, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    _, *sections = re.split(r"^==(?: (.+))?\n", head, flags=re.MULTILINE)
    for name, content in zip(sections[::2], sections[1::2], strict=True):
        if name and name.endswith(".tree"):
            HostTree(directory / name.removesuffix(".tree")).hardware(content)
        elif name:
            (directory / name).write_text(content, encoding="utf-8")
    with contextlib.chdir(directory):
        commands = [part.partition("\n")[0] for part in parts]
        shown = "".join(f"$ {command}\n{_printed(command)}" for command in commands)
    return head + shown.replace(os.path.realpath(directory), "$PWD")


def _printed(line: str) -> str:
    line, _, file = line.partition(" < ")
    words = shlex.split(line)
    variables = {}
    while "=" in words[0]:
        name, _, variables[name] = words.pop(0).partition("=")
    stdin = Path(file).read_text(encoding="utf-8") if file else ""
    if words[0] == "mknod":  # also where this process may not make any
        (root, _, path), _, major, minor = words[1].partition("/"), *words[2:]
        HostTree(Path(root)).char(f"/{path}", int(major), int(minor), 0o600)
        return ""
    if words[0] != "devhost":
        done = subprocess.run(["sh", "-ec", line], capture_output=True, text=True, check=True)
    elif words[1] in _PROCESSES:
        done = process(*words[1:], stdin=stdin, **variables)
    else:
        done = called(*words[1:], stdin=stdin, **variables)
    # Of a usage error, what click says above it is the same for all.
    text = done.stderr.rpartition("\n\n")[2] if done.returncode == _USAGE else done.stderr
    errors = "".join(f"! {line}\n" for line in text.splitlines())
    status = f"[{done.returncode}]\n" if done.returncode else ""
    return f"{done.stdout}{errors}{status}"
