"""Files of the host below a root: links never lead out of it."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.hostfs.files import HostFiles, Walk
from devhost.model.device import FileKind
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
def test_resolved_paths_stay_below_the_root(links: dict[str, str | None], asked: str) -> None:
    """Whatever the links are, what a path leads to really lies below the root."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as made:
        root = Path(made).resolve() / "root"
        root.mkdir()
        farm(root, links)
        files = HostFiles(str(root))
        path = "/" + asked.lstrip("/")
        resolved = files.resolve(path)
        assert ".." not in resolved.split("/")
        if files.stat(path) is not None:
            real = os.path.realpath(files.to_local(resolved))
            assert real == str(root) or real.startswith(f"{root}/")
            assert not os.path.islink(files.to_local(resolved))


@given(st.dictionaries(PLACES, st.none() | TARGETS, max_size=6), RELATIVE)
def test_the_hosts_own_root_resolves_as_the_system_does(
    links: dict[str, str | None], asked: str
) -> None:
    """Where the root is ``/``, a path resolves as `os.path.realpath` says."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as made:
        farm(Path(made), links)
        path = f"{made}/{asked}"
        assert HostFiles().resolve(path) == os.path.realpath(path)


def test_an_absolute_link_is_resolved_below_the_root(tmp_path: Path) -> None:
    """An absolute link begins again at the root, not at the machine's."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/f").touch()
    (tmp_path / "l").symlink_to("/etc")
    state = HostFiles(str(tmp_path)).stat("/l/f")
    assert state is not None
    assert (state.realpath, state.kind) == ("/etc/f", FileKind.FILE)


def test_dots_cannot_climb_above_the_root(tmp_path: Path) -> None:
    """``..`` at the root stays there."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").touch()
    (root / "l").symlink_to("../../secret")
    assert HostFiles(str(root)).resolve("/l") == "/secret"
    assert HostFiles(str(root)).stat("/l") is None


@pytest.mark.parametrize("below", [True, False])
def test_a_loop_leads_nowhere(tmp_path: Path, *, below: bool) -> None:
    """Links in a circle are not there."""
    prefix = "" if below else str(tmp_path)
    (tmp_path / "a").symlink_to(f"{prefix}/b")
    (tmp_path / "b").symlink_to(f"{prefix}/a")
    files = HostFiles(str(tmp_path) if below else "/")
    assert files.stat(f"{prefix}/a") is None
    assert files.stat(f"{prefix}/a/c") is None
    assert files.entries(f"{prefix}/a") is None


@pytest.mark.parametrize("below", [True, False])
def test_a_dangling_link_leads_nowhere(tmp_path: Path, *, below: bool) -> None:
    """A link to nothing is not there, but its directory has it."""
    prefix = "" if below else str(tmp_path)
    (tmp_path / "a").symlink_to(f"{prefix}/none")
    files = HostFiles(str(tmp_path) if below else "/")
    assert files.stat(f"{prefix}/a") is None
    assert [one.is_link for one in files.entries(prefix or "/") or ()] == [True]


def test_what_is_below_a_file_is_not_there(tmp_path: Path) -> None:
    """A path through a file leads nowhere; that is no error."""
    (tmp_path / "f").touch()
    files = HostFiles(str(tmp_path))
    assert files.stat("/f/x") is None
    assert files.entries("/f") is None


def test_a_long_chain_of_links_does_not_list_a_directory_outside(tmp_path: Path) -> None:
    """More links than the kernel follows lead nowhere, never to the machine's own files."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret").touch()
    for number in range(50):
        (root / f"l{number}").symlink_to(f"l{number + 1}")
    (root / "l50").symlink_to(outside)
    assert HostFiles(str(root)).entries("/l0") is None


def test_a_walk_does_not_follow_links(tmp_path: Path) -> None:
    """A linked directory is listed, not entered."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").touch()
    (tmp_path / "l").symlink_to("d")
    assert Walk(HostFiles(str(tmp_path)), "").found == {"d": False, "d/f": False, "l": True}


@pytest.mark.parametrize(
    ("target", "leads"), [("null/../zero", False), ("none/../zero", False), ("dir/../zero", True)]
)
def test_dots_behind_what_is_no_directory_lead_nowhere(
    tmp_path: Path, target: str, *, leads: bool
) -> None:
    """As for the kernel, whom a container's runtime asks."""
    (tmp_path / "dir").mkdir()
    (tmp_path / "null").touch()
    (tmp_path / "zero").touch()
    (tmp_path / "link").symlink_to(target)
    assert (tmp_path / "link").exists() == leads
    assert (HostFiles(str(tmp_path)).stat("/link") is not None) == leads
