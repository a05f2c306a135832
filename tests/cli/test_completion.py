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
from tests.support.screen import read_to_end

DEVHOST: Final = Path(sys.executable).with_name("devhost")
CONFIG: Final = """version: v1
resources:
  - {name: iot.example.org/cola, sources: [directory: /etc/colas]}
  - {name: iot.example.org/tea, sources: [directory: /etc/teas]}
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


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "my-file.yaml").write_text(CONFIG)
    return tmp_path / "my-file.yaml"


@pytest.mark.parametrize(
    "words",
    [
        *(("run", "x"), ("plan", "x"), ("try", "x"), ("validate", "x"), ("validate", "a", "x")),
        *(
            ("convert", "x"),
            ("convert", "-o", "x"),
            ("init", "-o", "x"),
            ("plan", "--against", "x"),
        ),
        ("run", "--pod-resources", "x"),
    ],
)
def test_file_names_are_left_to_the_shell(words: tuple[str, ...]) -> None:
    assert completed(*words) == ["file,x"]
    assert completed(*words, shell="zsh") == ["file", "x", "_"]
    assert completed(*words, shell="fish")[0].startswith("file")


@pytest.mark.parametrize("option", ["--root", "--plugin-dir", "--state-dir", "--cdi-dir"])
def test_directories_are_left_to_the_shell(option: str) -> None:
    assert completed("run", option, "x") == ["dir,x"]


def test_commands_options_and_choices() -> None:
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
def test_a_shell_completes_a_command_line(
    shell: str, arguments: list[str], source: str, config: Path
) -> None:
    """TAB completes the command's name, a file and an option; the line then runs."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell}")
    HostTree(config.parent / "host").file("/etc/teas/green")
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(config.parent)
        path = f"{DEVHOST.parent}:{os.environ['PATH']}"
        variables = {
            "PATH": path,
            "TERM": "dumb",
            "HOME": str(config.parent),
            "INPUTRC": "/dev/null",
        }
        os.execve(program, [shell, *arguments], variables)
    os.write(terminal, f"{source}\n".encode())
    os.write(terminal, b"devhost pl\tmy-\t--ro\tho\t --allocate iot.example.org/tea=1 >out\nexit\n")
    shown = read_to_end(terminal, process)
    out = config.parent / "out"
    assert out.exists(), shown.decode()
    assert "a container with green receives" in out.read_text(), shown.decode()
