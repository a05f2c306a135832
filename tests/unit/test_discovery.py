"""What the sources find on the host."""

import errno
import inspect
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devhost.discovery.selection import Selection
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from tests.support.root import needs_root
from tests.support.scanning import survey


def look(root: Path, *sources: str) -> Selection:
    """Selection a root for a resource with these sources (in YAML's flow style)."""
    text = f"version: v1\nresources:\n- name: e.com/a\n  sources: [{', '.join(sources)}]\n"
    (resource,) = loads(text).require().resources
    return survey(resource, HostFiles(str(root)))


def found(root: Path, *sources: str) -> list[str]:
    return [node.name for node in look(root, *sources).nodes]


def skipped(root: Path, *sources: str) -> dict[str, str]:
    return {one.candidate: one.reason for one in look(root, *sources).skipped}


def files(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


# ── directory ──


def test_a_directory_offers_its_regular_files(tmp_path: Path) -> None:
    """Of a directory, only regular files are devices by default."""
    files(tmp_path, "d/a", "d/sub/b")
    assert found(tmp_path, "directory: /d") == ["a"]
    assert skipped(tmp_path, "directory: /d") == {"/d/sub": "a directory, not file"}


def test_hidden_entries_are_left_out(tmp_path: Path) -> None:
    """Names that begin with a dot are not even skipped."""
    files(tmp_path, "d/a", "d/.b", "d/.c/d")
    for source in ("directory: /d", "directory: {path: /d, recursive: true}"):
        assert [node.name for node in look(tmp_path, source).nodes] == ["a"]
        assert look(tmp_path, source).skipped == ()


def test_hidden_entries_are_found_when_asked_for(tmp_path: Path) -> None:
    """A pattern that begins with a dot asks for hidden names."""
    files(tmp_path, "d/.a", "d/b")
    assert found(tmp_path, r"directory: {path: /d, include: '.*'}") == [".a"]
    assert found(tmp_path, "directory: {path: /d, include: ['[.]*', b]}") == [".a", "b"]
    assert found(tmp_path, "directory: {path: /d, include: '*'}") == ["b"]


def test_links_to_directories_are_not_entered(tmp_path: Path) -> None:
    """Neither by ``recursive`` nor by ``**``: what is there may be anywhere."""
    files(tmp_path, "d/a", "elsewhere/b")
    (tmp_path / "d/linked").symlink_to("/elsewhere")
    assert found(tmp_path, "directory: {path: /d, recursive: true}") == ["a"]
    assert found(tmp_path, "/d/**") == ["a"]


def test_a_recursive_directory_names_by_the_path_below(tmp_path: Path) -> None:
    """With ``recursive``, the ID is the path below the directory."""
    files(tmp_path, "d/a", "d/x/b", "d/x/y/c")
    assert found(tmp_path, "directory: {path: /d, recursive: true}") == ["a", "x/b", "x/y/c"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("include: 'cola'", ["cola"]),
        ("include: 'cola*'", ["cola", "cola2"]),
        ("include: ['cola', 'x*']", ["cola", "xcola"]),
        ("exclude: 'cola'", ["cola2", "xcola"]),
        ("include: '*cola', exclude: 'x*'", ["cola"]),
    ],
)
def test_globs_match_the_whole_name(tmp_path: Path, options: str, expected: list[str]) -> None:
    """``include`` and ``exclude`` match whole names, not parts of them."""
    files(tmp_path, "d/cola", "d/cola2", "d/xcola")
    source = f"directory: {{path: /d, {options}}}"
    assert found(tmp_path, source) == expected
    left_out = {"/d/cola", "/d/cola2", "/d/xcola"} - {f"/d/{name}" for name in expected}
    assert skipped(tmp_path, source).keys() == left_out


def test_globs_of_a_recursive_directory_match_the_last_name(tmp_path: Path) -> None:
    """Below a recursive directory, globs are on the name, not the path."""
    files(tmp_path, "d/x/a", "d/x/b")
    assert found(tmp_path, "directory: {path: /d, recursive: true, include: a}") == ["x/a"]


def test_types_are_judged_through_links(tmp_path: Path) -> None:
    """A link to a file is a file; a link to a directory is none."""
    files(tmp_path, "real/f")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/file").symlink_to("/real/f")
    (tmp_path / "d/dir").symlink_to("/real")
    assert found(tmp_path, "directory: /d") == ["file"]
    assert found(tmp_path, "directory: {path: /d, types: directory}") == ["dir"]


def test_the_type_symlink_is_of_the_entry_itself(tmp_path: Path) -> None:
    """``symlink`` asks for links, whatever they lead to; dangling ones are no devices."""
    files(tmp_path, "d/f", "real/f")
    (tmp_path / "d/l").symlink_to("/real")
    (tmp_path / "d/gone").symlink_to("/none")
    source = "directory: {path: /d, types: symlink}"
    assert found(tmp_path, source) == ["l"]
    assert skipped(tmp_path, source) == {"/d/f": "a file, not symlink", "/d/gone": "dangling link"}


def test_a_socket_is_a_type(tmp_path: Path) -> None:
    """Sockets are devices where they are asked for."""
    (tmp_path / "d").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "d/s"))
        assert found(tmp_path, "directory: {path: /d, types: socket}") == ["s"]


def test_names_are_in_natural_order(tmp_path: Path) -> None:
    """``c9`` comes before ``c10``."""
    files(tmp_path, "d/c10", "d/c9", "d/c1", "d/b")
    expected = ["b", "c1", "c9", "c10"]
    assert found(tmp_path, "directory: /d") == expected
    assert found(tmp_path, "/d/*") == expected


def test_sources_keep_their_order(tmp_path: Path) -> None:
    """What an earlier source finds comes first."""
    files(tmp_path, "x/b", "y/a")
    assert found(tmp_path, "directory: /x", "directory: /y") == ["b", "a"]


# ── failures ──


@pytest.mark.parametrize("source", ["directory: /d", "/d/*", "dev: kvm"])
def test_a_missing_directory_is_a_state(tmp_path: Path, source: str) -> None:
    """What is not there yet is a note and no failure."""
    result = look(tmp_path, source)
    assert (result.nodes, result.failed, result.skipped) == ((), {}, ())
    assert len(result.notes) == 1
    assert "does not exist" in result.notes[0]


def test_an_empty_directory_is_not_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    result = look(tmp_path, "directory: /d")
    assert (result.notes, result.why_none()) == ((), ("directory /d: there is nothing to select",))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("directory: /e", "none of 1 is directory /e; nearest: .hidden (its name begins with a dot)"),
        ("directory: {path: /e, recursive: true}", "directory /e, recursive: there is nothing to select"),
        ("/dev/ttyUSB*", "none of 2 is glob /dev/ttyUSB*: /dev/null, /dev/zero"),
        ("/e/*", "none of 1 is glob /e/*: /e/.hidden"),
        ("glob: [/e/x, /dev/*/z]", "none of 1 is glob /e/x or /dev/*/z: /e/.hidden"),
        ("dev: 'ttyUSB[0-9]+'", "none of 2 is dev ttyUSB[0-9]+: /dev/null, /dev/zero"),
        ("static: 0", "static count 0: there is nothing to select"),
    ],
)  # fmt: skip
def test_nothing_is_found_for_a_reason(tmp_path: Path, source: str, says: str) -> None:
    files(tmp_path, "e/.hidden", "dev/null", "dev/zero")
    (reason,) = look(tmp_path, source).why_none()
    assert reason.endswith(says)


def test_nothing_is_said_of_a_source_where_another_finds_something(tmp_path: Path) -> None:
    """What it skips has a reason of its own."""
    files(tmp_path, "dev/ttyACM0")
    (tmp_path / "e").mkdir()
    (tmp_path / "e/a").symlink_to("/none")
    for other in ("/dev/tty*", "/e/*"):
        assert look(tmp_path, "dev: x", other).why_none() == ()
        assert look(tmp_path, other, "dev: x").why_none() == ()


@pytest.mark.parametrize("source", ["directory: /d", "/d/*", "{dev: '.*'}"])
def test_an_unreadable_directory_is_a_failure_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """A sick disk is not an empty one; the other sources are read all the same."""
    files(tmp_path, "d/a", "dev/b")

    def sick(_path: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "scandir", sick)
    result = look(tmp_path, "static: [t]", source)
    assert list(result.failed) == [1]
    assert os.strerror(errno.EIO) in result.failed[1]
    assert [node.name for node in result.nodes] == ["t"]


@pytest.mark.parametrize("source", ["directory: /d", "/d/*"])
def test_a_name_that_is_not_utf8_is_skipped(tmp_path: Path, source: str) -> None:
    """A name that is not UTF-8 is skipped, under a label that can be printed."""
    files(tmp_path, "d/a")
    (tmp_path / "d" / os.fsdecode(b"b\xff")).touch()
    result = look(tmp_path, source)
    assert [node.name for node in result.nodes] == ["a"]
    (only,) = result.skipped
    assert "UTF-8" in only.reason
    assert only.candidate.encode() == rb"/d/b\udcff"


def test_a_name_with_a_line_break_is_skipped(tmp_path: Path) -> None:
    """A name with a control character is skipped, under a label of one line."""
    files(tmp_path, "d/a\nb")
    (only,) = look(tmp_path, "directory: /d").skipped
    assert only.candidate == r"/d/a\nb"


# ── glob ──


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/d/*", ["a1", "b"]),
        ("/d/a?", ["a1"]),
        ("{glob: '/d/[ab]*'}", ["a1", "b"]),
        ("/d/b", ["b"]),
        ("/d/x/*", ["c"]),
        ("/d/*/c", ["x/c"]),
        ("{glob: '/d/**/c'}", ["x/c", "x/y/c"]),
        ("{glob: '/d/x/**'}", ["c", "y/c"]),
        ("{glob: ['/d/b', '/d/a*']}", ["a1", "b"]),
        ("{glob: {paths: '/d/**/*', exclude: 'c'}}", ["a1", "b"]),
        ("{glob: {paths: '/d/**/*', exclude: '/d/x/y/*'}}", ["a1", "b", "x/c"]),
        ("{glob: {paths: '/d/*', exclude: ['a*', 'none']}}", ["b"]),
    ],
)
def test_globs_name_by_the_path_below_their_literal_prefix(
    tmp_path: Path, source: str, expected: list[str]
) -> None:
    """A glob's devices bear the path below what stands in front of its first wildcard."""
    files(tmp_path, "d/a1", "d/b", "d/x/c", "d/x/y/c", "d/.h", "d/.k/c")
    result = look(tmp_path, source)
    names = [node.name for node in result.nodes if node.state and node.state.kind.value == "file"]
    assert names == expected


def test_a_path_of_two_patterns_is_found_once(tmp_path: Path) -> None:
    """A path that several patterns match is one candidate, named by the first."""
    files(tmp_path, "d/x/a")
    assert found(tmp_path, "{glob: ['/d/*/a', '/d/x/*', '/d/**/a']}") == ["x/a"]


def test_what_several_patterns_find_is_in_natural_order(tmp_path: Path) -> None:
    """Also where they are for the same directory, and whichever comes first."""
    files(tmp_path, "d/a1", "d/a10", "d/a2", "d/b1", "e/a3")
    assert found(tmp_path, "glob: [/d/b*, /d/a*]") == ["a1", "a2", "a10", "b1"]
    assert found(tmp_path, "glob: [/e/*, /d/b*, /d/a*]") == ["a1", "a2", "a3", "a10", "b1"]


def test_a_glob_finds_hidden_names_when_asked(tmp_path: Path) -> None:
    """A wildcard that begins with a dot finds hidden names."""
    files(tmp_path, "d/.a", "d/b")
    assert found(tmp_path, "/d/.*") == [".a"]


def test_a_glob_skips_dangling_links(tmp_path: Path) -> None:
    """A link to nothing is found but not offered."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/gone").symlink_to("/none")
    assert skipped(tmp_path, "/d/*") == {"/d/gone": "dangling link"}
    assert skipped(tmp_path, "/d/gone") == {"/d/gone": "dangling link"}
    assert found(tmp_path, "/d/*") == []


def test_a_glob_goes_through_absolute_links_below_the_root(tmp_path: Path) -> None:
    """A link on the way is followed below the root; the path stays as matched."""
    files(tmp_path, "real/a")
    (tmp_path / "d").symlink_to("/real")
    (only,) = look(tmp_path, "/d/*").nodes
    assert only.path == "/d/a"
    assert only.state is not None
    assert only.state.realpath == "/real/a"


def test_a_glob_sees_links_behind_absolute_links_below_the_root(tmp_path: Path) -> None:
    files(tmp_path, "real/sub/x")
    (tmp_path / "real" / "sub" / "l").symlink_to("x")
    (tmp_path / "way").symlink_to("/real")
    for path in ("/way/*/*", "/way/sub/l"):
        assert found(tmp_path, f"glob: {{paths: ['{path}'], types: [symlink]}}")


def test_a_double_star_does_not_run_in_circles(tmp_path: Path) -> None:
    """``**`` follows no links, so a link upwards does no harm."""
    files(tmp_path, "d/a")
    (tmp_path / "d/up").symlink_to("..")
    assert found(tmp_path, "{glob: {paths: '/d/**/a', types: file}}") == ["a"]


def test_a_glob_offers_directories_only_if_types_names_them(tmp_path: Path) -> None:
    """A directory hands over all nodes below it, which `/dev/serial/*` does not mean."""
    files(tmp_path, "d/a", "d/by-id/b")
    (tmp_path / "d/linked").symlink_to("by-id")
    reason = "a directory: name it in `types` to offer it"
    assert found(tmp_path, "/d/*") == ["a"]
    assert found(tmp_path, "/d/**") == ["a", "by-id/b"]
    assert skipped(tmp_path, "/d/*") == {"/d/by-id": reason, "/d/linked": reason}
    assert skipped(tmp_path, "/d/by-id") == {"/d/by-id": reason}
    assert found(tmp_path, "{glob: {paths: '/d/*', types: directory}}") == ["by-id", "linked"]
    assert found(tmp_path, "{glob: {paths: '/d/*', types: [file, directory]}}") == [
        "a",
        "by-id",
        "linked",
    ]


# ── dev ──


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A root with device nodes."""
    (tmp_path / "dev/snd").mkdir(parents=True)
    for name, minor in (("kvm", 1), ("kvm2", 2), ("snd/c0", 3), ("c10", 4), ("c9", 5), (".h", 6)):
        os.mknod(tmp_path / "dev" / name, 0o20600, os.makedev(240, minor))
    os.mknod(tmp_path / "dev/blk", 0o60600, os.makedev(259, 1 << 19))
    (tmp_path / "dev/file").touch()
    return tmp_path


@needs_root
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("dev: kvm", ["kvm"]),
        ("{dev: 'kvm.?'}", ["kvm", "kvm2"]),
        ("{dev: 'c[0-9]+'}", ["c9", "c10"]),
        ("{dev: 'snd/.*'}", ["snd/c0"]),
        ("{dev: '.*/c0'}", ["snd/c0"]),
        ("{dev: {pattern: 'kvm.?', exclude: 'kvm2'}}", ["kvm"]),
        ("{dev: {pattern: 'kvm.?', exclude: 'kv'}}", ["kvm", "kvm2"]),
        ("{dev: {pattern: '.*', exclude: ['kvm?', c*, 'snd/c0']}}", ["blk", "kvm"]),
        ("{dev: 'blk|file|snd'}", ["blk"]),
        ("{dev: {pattern: 'blk|file|kvm', types: char}}", ["kvm"]),
        ("{dev: {pattern: 'file|kvm', types: file}}", ["file"]),
        (r"{dev: '\.h'}", [".h"]),
        ("{dev: '.h'}", []),
    ],
)
def test_dev_patterns_match_the_whole_path(dev: Path, source: str, expected: list[str]) -> None:
    """A dev pattern matches the whole path below /dev; by default device nodes only."""
    assert found(dev, source) == expected


@needs_root
def test_named_groups_are_variables(dev: Path) -> None:
    """A node's variables are the named groups that took part."""
    (only,) = look(dev, "{dev: '(?P<kind>c)(?P<none>x)?(?P<minor>9)'}").nodes
    assert only.variables == {"kind": "c", "minor": "9"}
    assert only.path == "/dev/c9"
    assert only.state is not None
    assert only.state.number == (240, 5)


# ── static ──


@pytest.mark.parametrize(
    ("source", "expected"),
    [("static: 3", ["0", "1", "2"]), ("static: [b, a]", ["a", "b"]), ("static: 0", [])],
)
def test_static_devices_are_tokens(tmp_path: Path, source: str, expected: list[str]) -> None:
    """Static devices have names and no files."""
    result = look(tmp_path, source)
    assert [node.name for node in result.nodes] == expected
    assert all(node.path == "" and node.state is None for node in result.nodes)


# ── trees that are too deep ──


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


@pytest.mark.parametrize("source", ["/d/**/x", "/d/**", "directory: {path: /d, recursive: true}"])
def test_a_tree_that_is_deep_is_found(deep: Path, source: str) -> None:
    """Deeper than functions can call each other."""
    (deep / "d").mkdir()
    descend(deep / "d", "e", 400)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 300)
    try:
        names = found(deep, source)
    finally:
        sys.setrecursionlimit(limit)
    assert sum(1 for name in names if name.endswith("x")) == 400


@pytest.mark.parametrize(
    "source", ["/d/**/x", "/d/**", "/d/*/*", "directory: {path: /d, recursive: true}"]
)
def test_a_tree_that_is_too_deep_fails_nothing(deep: Path, source: str) -> None:
    """The kernel takes no path of more than 4096 bytes; what is above is found."""
    files(deep, "d/e/x")
    (deep / "d/y").mkdir()
    descend(deep / "d/y", "e" * 200, 25)
    survey = look(deep, source)
    assert not survey.failed
    assert "e/x" in [node.name for node in survey.nodes]


def test_a_name_that_just_does_not_fit_is_skipped(deep: Path) -> None:
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


def test_a_directory_whose_path_is_too_long_is_a_failure(deep: Path) -> None:
    """If it is the source's own: that is a mistake, and no state."""
    for source in (f"directory: /{'d' * 300}", f"/{'d' * 300}/*"):
        assert look(deep, source).failed[0].startswith("File name too long")
