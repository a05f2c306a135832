"""What a scan remembers of its directories."""

import os
from pathlib import Path

from devhost.discovery.baseline import baseline, fingerprint

LONG_AGO = 1_000_000_000


def test_a_directory_that_was_changed_a_moment_ago(tmp_path: Path) -> None:
    """Changed once more in the same tick of the filesystem's clock, it would look the same."""
    assert baseline([str(tmp_path)]) == {str(tmp_path): None}


def test_a_directory_that_was_changed_long_ago(tmp_path: Path) -> None:
    os.utime(tmp_path, (LONG_AGO, LONG_AGO))
    assert baseline([str(tmp_path)]) == {str(tmp_path): fingerprint(str(tmp_path))}


def test_a_filesystem_without_times(tmp_path: Path) -> None:
    os.utime(tmp_path, (0, 0))
    assert baseline([str(tmp_path)]) == {str(tmp_path): None}


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    path = str(missing)
    before = baseline([path])
    assert before == {path: fingerprint(path)}
    missing.mkdir()
    assert before != {path: fingerprint(path)}
