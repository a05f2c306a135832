"""Shell completion: files and options; in a real bash where possible."""

import os
import pty
import shutil
import sys
from pathlib import Path
from typing import Final

import pytest
from click.shell_completion import get_completion_class

from devhost.cli import main
from devhost.testing import HostTree
from tests.support.screen import read

DEVHOST: Final = Path(sys.executable).with_name("devhost")
CONFIG: Final = """version: v1
resources: [{name: iot.example.org/tea, sources: [directory: /etc/teas]}]
"""


def completed(*words: str, shell: str = "bash") -> list[str]:
    """Return what a shell gets for the last of the words."""
    variables = {"COMP_WORDS": "\n".join(["devhost", *words])}
    # fish gives the word itself, the others its number.
    variables["COMP_CWORD"] = words[-1] if shell == "fish" else str(len(words))
    complete = get_completion_class(shell)
    assert complete is not None
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return complete(main, {}, "devhost", "_DEVHOST_COMPLETE").complete().splitlines()


@pytest.mark.parametrize("words", ["run", "validate a", "convert -o", "plan --against"])
def test_completion_of_files_is_left_to_the_shell(words: str) -> None:
    assert completed(*words.split(), "x") == ["file,x"]
    assert completed(*words.split(), "x", shell="zsh") == ["file", "x", "_"]
    assert completed(*words.split(), "x", shell="fish")[0].startswith("file")


def test_completion_of_directories_is_left_to_the_shell() -> None:
    for option in ("--root", "--plugin-dir", "--state-dir", "--cdi-dir"):
        assert completed("run", option, "x") == ["dir,x"]


def test_completion_knows_commands_options_and_choices() -> None:
    assert completed("v") == ["plain,validate"]
    assert completed("plan", "--exp") == ["plain,--explain"]
    assert completed("validate", "-o", "") == ["plain,text", "plain,json"]


_SOURCE: Final = "_DEVHOST_COMPLETE={}_source devhost"
# Each shell with its arguments, and what turns completion on.
SHELLS: Final = (
    ("bash", ["--norc", "--noprofile", "-i"], f'eval "$({_SOURCE.format("bash")})"'),
    ("zsh", ["-f", "-i"], f'autoload -U compinit; compinit -u; eval "$({_SOURCE.format("zsh")})"'),
    ("fish", ["--no-config", "-i"], f"{_SOURCE.format('fish')} | source"),
)


@pytest.mark.parametrize(("shell", "arguments", "source"), SHELLS, ids=[one[0] for one in SHELLS])
def test_completion_in_a_shell_makes_a_command_line_that_runs(
    shell: str, arguments: list[str], source: str, tmp_path: Path
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell}")
    (tmp_path / "my-file.yaml").write_text(CONFIG)
    HostTree(tmp_path / "host").file("/etc/teas/green")
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        path = f"{DEVHOST.parent}:{os.environ['PATH']}"
        more = {"TERM": "dumb", "HOME": str(tmp_path), "INPUTRC": "/dev/null"}
        os.execve(program, [shell, *arguments], {"PATH": path, **more})
    os.write(terminal, f"{source}\n".encode())
    os.write(terminal, b"devhost pl\tmy-\t--ro\tho\t --allocate iot.example.org/tea=1 >out\nexit\n")
    shown = read(terminal)
    os.waitpid(process, 0)
    out = tmp_path / "out"
    assert out.exists(), shown.decode()
    assert "a container with green receives" in out.read_text(), shown.decode()
