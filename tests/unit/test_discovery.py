"""Sources where the host is sick, odd or deep; the rest is in hardware/files.txt."""

import errno
import inspect
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.devices import skip_reasons
from tests.support.root import needs_root
from tests.support.scanning import look


def found(root: Path, *sources: str) -> list[str]:
    return [node.name for node in look(root, *sources).nodes]


def skipped(root: Path, *sources: str) -> dict[str, str]:
    return skip_reasons(look(root, *sources).skipped)


def files(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_source_types_socket_finds_sockets(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "d/s"))
        assert found(tmp_path, "directory: {path: /d, types: socket}") == ["s"]


@pytest.mark.parametrize("source", ["directory: /d", "/d/*", "{dev: '.*'}"])
def test_unreadable_source_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """A sick disk is not an empty one; the other sources are read all the same."""
    files(tmp_path, "d/a", "dev/b")

    def sick(_path: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "scandir", sick)
    result = look(tmp_path, "static: [t]", source)
    assert list(result.failed_sources) == [1]
    assert os.strerror(errno.EIO) in result.failed_sources[1]
    assert [node.name for node in result.nodes] == ["t"]


@pytest.mark.parametrize("source", ["directory: /d", "/d/*"])
def test_source_name_that_cannot_be_printed_is_skipped_escaped(tmp_path: Path, source: str) -> None:
    files(tmp_path, "d/a", "d/a\nb")
    (tmp_path / "d" / os.fsdecode(b"b\xff")).touch()
    assert found(tmp_path, source) == ["a"]
    reason = "unusable name: it is not UTF-8, or has control characters"
    assert skipped(tmp_path, source) == {r"/d/a\nb": reason, r"/d/b\udcff": reason}


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A directory that is emptied: `shutil.rmtree` does not go as deep."""
    yield tmp_path
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def descend(root: Path, name: str, levels: int) -> None:
    """Make directories in one another, and a file in each."""
    at = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
        os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)


def test_source_tree_deeper_than_the_recursion_limit_is_found(deep: Path) -> None:
    (deep / "d").mkdir()
    descend(deep / "d", "e", 400)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 300)
    try:
        names = found(deep, "/d/**/x")
    finally:
        sys.setrecursionlimit(limit)
    assert len(names) == 400


@pytest.mark.parametrize("source", ["/d/**/x", "/d/*/*", "directory: {path: /d, recursive: true}"])
def test_source_tree_deeper_than_path_max_fails_nothing(deep: Path, source: str) -> None:
    """The kernel takes no path of more than 4096 bytes; what is above is found."""
    files(deep, "d/e/x")
    (deep / "d/y").mkdir()
    descend(deep / "d/y", "e" * 200, 25)
    survey = look(deep, source)
    assert not survey.failed_sources
    assert "e/x" in [node.name for node in survey.nodes]


def test_source_path_just_longer_than_path_max_is_skipped(deep: Path) -> None:
    """Its directory can be listed, and its own path is too long."""
    (deep / "d").mkdir()
    levels = (4090 - len(f"{deep}/d/")) // 201
    descend(deep / "d", "e" * 200, levels)
    deepest = os.open("/".join([str(deep / "d"), *["e" * 200] * levels]), os.O_RDONLY)
    os.close(os.open("z" * 250, os.O_CREAT | os.O_WRONLY, dir_fd=deepest))
    os.close(deepest)
    reasons = skipped(deep, "directory: {path: /d, recursive: true}")
    assert [why for path, why in reasons.items() if path.endswith("z")] == [
        "its path is too long for the kernel"
    ]
    assert len(found(deep, "/d/**/?")) == levels


@pytest.mark.parametrize("source", [f"directory: /{'d' * 300}", f"/{'d' * 300}/*"])
def test_source_directory_with_too_long_a_name_is_a_failure(tmp_path: Path, source: str) -> None:
    assert look(tmp_path, source).failed_sources[0].startswith("File name too long")


# The kernel escapes blanks, tabs, line feeds and backslashes alone.
ODD = ["a\fb", "a\rb", "a\vb", "a\x1cb", "a\x85b", "a\u2028b", os.fsdecode(b"\xff")]


@pytest.fixture
def disks(tmp_path: Path) -> Path:
    """A host with two disks."""
    for name in ("dev", "proc/1", "sys/dev/block"):
        (tmp_path / name).mkdir(parents=True)
    for minor, name in ((0, "vda"), (16, "vdb"), (32, "vdc")):
        os.mknod(tmp_path / "dev" / name, 0o060660, os.makedev(240, minor))
    return tmp_path


@needs_root
@pytest.mark.parametrize("name", ODD)
def test_block_use_of_an_odd_name_is_one_line(disks: Path, name: str) -> None:
    mount = rf"30 1 0:44 /{name}\040c /home/{name}\040d rw - btrfs /dev/vda rw" + "\n"
    (disks / "proc/1/mountinfo").write_bytes(os.fsencode(mount))
    swaps = f"Filename\tType\n/{name}\\040c     file\t8\n/dev/vdb      partition\t8\n"
    (disks / "proc/swaps").write_bytes(os.fsencode(swaps))
    assert found(disks, "dev: 'vd[a-z]'") == ["vdc"]


@needs_root
def test_block_use_below_a_root_with_sysfs_ignores_the_mounts_of_this_machine(disks: Path) -> None:
    os.mknod(disks / "dev/vdd", 0o060660, (disks / "dev").stat().st_dev)
    assert found(disks, "dev: 'vd[a-z]'") == ["vda", "vdb", "vdc", "vdd"]
    shutil.rmtree(disks / "sys/dev")  # as where a container has nothing of the host's sysfs
    assert found(disks, "dev: 'vd[a-z]'") == ["vda", "vdb", "vdc"]
