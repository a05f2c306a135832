"""What `make` says, and what it passes on to the tests."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
# Another version, for the code of `-c`.
OLD: Final = """\
#!{0}
import sys
sys.version_info = (3, 9, 2)
exec(sys.argv[2])
"""


def test_an_older_python_is_named(tmp_path: Path) -> None:
    """Its pip would speak of a missing setup.py."""
    python = tmp_path / "python3.9"
    python.write_text(OLD.format(sys.executable))
    python.chmod(0o700)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    done = subprocess.run(
        ["make", "-f", ROOT / "Makefile", f"PYTHON={python}", ".venv/.runtime"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},  # without what a make above this one passes on
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"devhost needs Python 3.11 or newer, and {python} is 3.9; name another" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_seed_is_heeded_in_ci_too() -> None:
    """Hypothesis has a profile for CI that ignores it, so CI was green with inputs that pass."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import tests.conftest, hypothesis; print(hypothesis.settings.default.derandomize)",
        ],
        cwd=ROOT,
        env=os.environ | {"CI": "true"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"


def test_make_test_passes_kubelets_and_protoc_to_pytest() -> None:
    """Without these variables, the tests that need them are skipped and the run is green."""
    said = subprocess.run(
        ["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    command = said.rpartition("&&")[2]
    assert "-m pytest" in command
    assert "DEVHOST_TEST_KUBELET=" in command
    assert "DEVHOST_TEST_PROTOC=" in command
