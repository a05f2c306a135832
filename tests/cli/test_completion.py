"""Shell completion: files and options; in a real bash where possible."""

import pytest
from click.shell_completion import get_completion_class

from devhost.cli import main


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
    for option in ("--plugin-dir", "--state-dir", "--cdi-dir"):
        assert completed("run", option, "x") == ["dir,x"]


def test_completion_knows_commands_options_and_choices() -> None:
    assert completed("v") == ["plain,validate"]
    assert completed("plan", "--exp") == ["plain,--explain"]
    assert completed("validate", "-o", "") == ["plain,text", "plain,json"]
