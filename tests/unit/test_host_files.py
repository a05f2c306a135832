"""Files of the host below a root: links never lead out of it."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.hostfs.files import HostFiles
from tests.support.memory import IN_MEMORY

NAMES = ("a", "b", "c")
PARTS = st.sampled_from([*NAMES, "..", "."])
RELATIVE = st.lists(PARTS, min_size=1, max_size=5).map("/".join)
TARGETS = st.builds("{}{}".format, st.sampled_from(["", "/"]), RELATIVE)
PLACES = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)


def farm(root: Path, links: dict[str, str | None]) -> None:
    """Make links (or, without a target, directories) below a root, where there is room."""
    for place, target in links.items():
        path = root / place
        if any(os.path.lexists(parent) and parent.is_symlink() for parent in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path):
            continue
        if target is None:
            path.mkdir()
        else:
            path.symlink_to(target)


@given(st.dictionaries(PLACES, st.none() | TARGETS, max_size=6), TARGETS)
def test_symlinks_of_any_kind_stay_inside(links: dict[str, str | None], wanted: str) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as made:
        root = Path(made).resolve() / "root"
        root.mkdir()
        farm(root, links)
        files = HostFiles(str(root))
        path = "/" + wanted.lstrip("/")
        resolved = files.resolve(path)
        assert ".." not in resolved.split("/")
        if files.stat(path) is not None:
            real = os.path.realpath(files.to_local(resolved))
            assert real == str(root) or real.startswith(f"{root}/")
            assert not os.path.islink(files.to_local(resolved))


@given(st.dictionaries(PLACES, st.none() | TARGETS, max_size=6), RELATIVE)
def test_symlinks_below_the_root_resolve(links: dict[str, str | None], wanted: str) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as made:
        farm(Path(made), links)
        path = f"{made}/{wanted}"
        assert HostFiles().resolve(path) == os.path.realpath(path)


@pytest.mark.parametrize(
    ("target", "leads"),
    [
        ("link", False),  # a loop
        ("other", False),  # one of two links
        ("none", False),
        ("file/x", False),
        ("file/../zero", False),
        ("none/../zero", False),
        ("dir/../zero", True),
    ],
)
@pytest.mark.parametrize("absolute", [False, True])
def test_symlink_as_the_kernel(tmp_path: Path, target: str, *, leads: bool, absolute: bool) -> None:
    """A container's runtime asks the kernel; the directory of a dangling link still has it."""
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "zero").touch()
    (tmp_path / "other").symlink_to("link")
    (tmp_path / "link").symlink_to(f"{tmp_path}/{target}" if absolute else target)
    assert (tmp_path / "link").exists() == leads
    machine = HostFiles()
    assert (machine.stat(f"{tmp_path}/link") is not None) == leads
    assert machine.entries(f"{tmp_path}/link") is None
    entries = machine.entries(str(tmp_path)) or ()
    assert "link" in [entry.name for entry in entries if entry.is_symlink()]
    if not absolute:
        assert (HostFiles(str(tmp_path)).stat("/link") is not None) == leads


def test_symlink_out_of_the_root_is_dangling(tmp_path: Path) -> None:
    """``..`` at the root stays there, and an absolute link begins there."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/file").touch()
    (tmp_path / "secret").touch()
    for name, target in (("up", "../../secret"), ("out", str(tmp_path / "secret"))):
        (root / name).symlink_to(target)
        assert HostFiles(str(root)).stat(f"/{name}") is None
    assert HostFiles(str(root)).resolve("/up") == "/secret"
    (root / "inside").symlink_to("/etc")
    state = HostFiles(str(root)).stat("/inside/file")
    assert state is not None
    assert state.realpath == "/etc/file"
