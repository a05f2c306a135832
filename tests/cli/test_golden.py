"""The output of commands for people and for programs, and their exit status."""

from pathlib import Path

import pytest

from tests.support import transcript

GOLDEN = sorted(Path(__file__).with_name("golden").iterdir())


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_command_prints_what_its_golden_file_shows(file: Path, tmp_path: Path) -> None:
    transcript.check(file, tmp_path)
