"""What the sources find on the host."""

import errno
import inspect
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.root import needs_root
from tests.support.scanning import look

# What there is: files, and links by what they lead to.
FILES: Final = (
    *("d/a1", "d/a10", "d/a2", "d/b", "d/x/c", "d/x/y/c", "d/.h", "d/.k/c"),
    *("e/cola", "e/cola2", "e/xcola", "real/f"),
)
LINKS: Final = {
    "l/file": "/real/f",
    "l/dir": "/real",
    "l/gone": "/none",
    "l/up": "..",
    "way": "/real",
}
ENTER: Final = "a directory: name it in `types` to offer it"
IN_E: Final = {"/e/cola": "not included", "/e/cola2": "not included", "/e/xcola": "not included"}


def found(root: Path, *sources: str) -> list[str]:
    return [node.name for node in look(root, *sources).nodes]


def skipped(root: Path, *sources: str) -> dict[str, str]:
    return {one.candidate: one.reason for one in look(root, *sources).skipped}


def files(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A host that no test changes."""
    root = tmp_path_factory.mktemp("host")
    files(root, *FILES)
    for name, leads_to in LINKS.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).symlink_to(leads_to)
    return root


# ── directory, glob, static: what is found, in which order, under which names, and what is not ──


@pytest.mark.parametrize(
    ("source", "names", "left"),
    [
        # A directory has its regular files, in natural order; hidden ones are not even skipped.
        ("directory: /d", ["a1", "a2", "a10", "b"], {"/d/x": "a directory, not file"}),
        ("directory: {path: /d/x, recursive: true}", ["c", "y/c"], {"/d/x/y": "a directory, not file"}),
        ("directory: {path: /d, include: '.*'}", [".h"], None),
        ("directory: {path: /d, include: ['[.]*', b]}", [".h", "b"], None),
        ("directory: {path: /d, recursive: true, include: c}", ["x/c", "x/y/c"], None),
        # Globs match whole names.
        ("directory: {path: /e, include: cola}", ["cola"], IN_E.keys() - {"/e/cola"}),
        ("directory: {path: /e, include: [cola, 'x*']}", ["cola", "xcola"], ["/e/cola2"]),
        ("directory: {path: /e, exclude: cola}", ["cola2", "xcola"], {"/e/cola": "excluded"}),
        ("directory: {path: /e, include: '*cola', exclude: 'x*'}", ["cola"], None),
        # Types are judged through links, but for `symlink`; links are not entered.
        ("directory: /l", ["file"], None),
        ("directory: {path: /l, recursive: true}", ["file"], None),
        ("directory: {path: /l, types: directory}", ["dir", "up"], None),
        ("directory: {path: /l, types: symlink}", ["dir", "file", "up"], {"/l/gone": "dangling link"}),
        # A glob names by the path below its literal prefix.
        ("/d/*", ["a1", "a2", "a10", "b"], {"/d/x": ENTER}),
        ("/d/a?", ["a1", "a2"], {}),
        ("{glob: '/d/[ab]*'}", ["a1", "a2", "a10", "b"], {}),
        ("/d/b", ["b"], {}),
        ("/d/.*", [".h"], {"/d/.k": ENTER}),
        ("/d/*/c", ["x/c"], {}),
        ("{glob: '/d/**/c'}", ["x/c", "x/y/c"], {}),
        ("{glob: '/d/x/**'}", ["c", "y/c"], {"/d/x/y": ENTER}),
        ("{glob: {paths: '/d/**/*', exclude: c}}", ["a1", "a2", "a10", "b"], None),
        ("{glob: {paths: '/d/**/c', exclude: '/d/x/y/*'}}", ["x/c"], {"/d/x/y/c": "excluded"}),
        # Each path once, by the first pattern that matches it; all in natural order.
        ("{glob: ['/d/*/c', '/d/x/*', '/d/**/c']}", ["x/c", "x/y/c"], {"/d/x/y": ENTER}),
        ("glob: [/e/cola, /d/b, /d/a*]", ["a1", "a2", "a10", "b", "cola"], {}),
        # Directories are offered where `types` names them; `**` does not run in circles.
        ("{glob: {paths: '/d/*', types: [file, directory]}}", ["a1", "a2", "a10", "b", "x"], {}),
        ("/l/*", ["file"], {"/l/dir": ENTER, "/l/up": ENTER, "/l/gone": "dangling link"}),
        ("/l/gone", [], {"/l/gone": "dangling link"}),
        ("/l/**", ["file"], None),
        # Links on the way are followed below the root.
        ("/way/*", ["f"], {}),
        ("/*/f", ["real/f", "way/f"], {}),
        ("glob: {paths: '/l/dir/f', types: [file]}", ["f"], {}),
        ("static: 3", ["0", "1", "2"], {}),
        ("static: [b, a]", ["a", "b"], {}),
        ("static: 0", [], {}),
        ("directory: /e, static: [t]", ["cola", "cola2", "xcola", "t"], {}),
    ],
)  # fmt: skip
def test_source_finds_in_natural_order_and_skips_with_a_reason(
    host: Path, source: str, names: list[str], left: Mapping[str, str] | list[str] | None
) -> None:
    assert found(host, source) == names
    if isinstance(left, Mapping):
        assert skipped(host, source) == left
    elif left is not None:
        assert skipped(host, source).keys() == set(left)


def test_source_symlink_on_the_way_is_resolved_below_the_root(host: Path) -> None:
    (only,) = look(host, "/way/*").nodes
    assert only.state is not None
    assert (only.path, only.state.realpath) == ("/way/f", "/real/f")
    (token,) = look(host, "static: 1").nodes
    assert (token.path, token.state) == ("", None)


def test_source_types_socket_finds_sockets(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "d/s"))
        assert found(tmp_path, "directory: {path: /d, types: socket}") == ["s"]


# ── failures, and why nothing is found ──


@pytest.mark.parametrize("source", ["directory: /d", "/d/*", "dev: kvm"])
def test_source_missing_directory_is_a_note_and_no_failure(tmp_path: Path, source: str) -> None:
    result = look(tmp_path, source)
    assert (result.nodes, result.failed, result.skipped) == ((), {}, ())
    assert len(result.notes) == 1
    assert "does not exist" in result.notes[0]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("directory: /d", "directory /d: there is nothing to select"),
        ("directory: /e", "none of 1 is directory /e; nearest: .hidden (its name begins with a dot)"),
        ("directory: {path: /e, recursive: true}", "directory /e, recursive: there is nothing to select"),
        ("/dev/ttyUSB*", "none of 2 is glob /dev/ttyUSB*: /dev/null, /dev/zero"),
        ("/e/*", "none of 1 is glob /e/*: /e/.hidden"),
        ("glob: [/e/x, /dev/*/z]", "none of 1 is glob /e/x or /dev/*/z: /e/.hidden"),
        ("dev: 'ttyUSB[0-9]+'", "none of 2 is dev ttyUSB[0-9]+: /dev/null, /dev/zero"),
        ("static: 0", "static count 0: there is nothing to select"),
    ],
)  # fmt: skip
def test_source_that_finds_nothing_has_a_reason(tmp_path: Path, source: str, says: str) -> None:
    files(tmp_path, "e/.hidden", "dev/null", "dev/zero")
    (tmp_path / "d").mkdir()
    (reason,) = look(tmp_path, source).why_none()
    assert reason.endswith(says)


def test_source_that_finds_nothing_beside_another_says_nothing(tmp_path: Path) -> None:
    """What it skips has a reason of its own."""
    files(tmp_path, "dev/ttyACM0")
    (tmp_path / "e").mkdir()
    (tmp_path / "e/a").symlink_to("/none")
    for other in ("/dev/tty*", "/e/*"):
        assert look(tmp_path, "dev: x", other).why_none() == ()
        assert look(tmp_path, other, "dev: x").why_none() == ()


@pytest.mark.parametrize("source", ["directory: /d", "/d/*", "{dev: '.*'}"])
def test_source_unreadable_directory_fails_that_source_alone(
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
def test_source_name_that_cannot_be_printed_is_skipped_under_an_escaped_label(
    tmp_path: Path, source: str
) -> None:
    files(tmp_path, "d/a", "d/a\nb")
    (tmp_path / "d" / os.fsdecode(b"b\xff")).touch()
    assert found(tmp_path, source) == ["a"]
    reason = "unusable name: it is not UTF-8, or has control characters"
    assert skipped(tmp_path, source) == {r"/d/a\nb": reason, r"/d/b\udcff": reason}


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
        ("{dev: 'c[0-9]+'}", ["c9", "c10"]),
        ("{dev: '.*/c0'}", ["snd/c0"]),
        ("{dev: {pattern: 'kvm.?', exclude: 'kv'}}", ["kvm", "kvm2"]),
        ("{dev: {pattern: '.*', exclude: ['kvm?', c*, 'snd/c0']}}", ["blk", "kvm"]),
        ("{dev: 'blk|file|snd'}", ["blk"]),
        ("{dev: {pattern: 'blk|file|kvm', types: char}}", ["kvm"]),
        ("{dev: {pattern: 'file|kvm', types: file}}", ["file"]),
        (r"{dev: '\.h'}", [".h"]),
        ("{dev: '.h'}", []),
    ],
)
def test_dev_pattern_matches_the_whole_path(dev: Path, source: str, expected: list[str]) -> None:
    """A dev pattern matches the whole path below /dev; by default device nodes only."""
    assert found(dev, source) == expected


@needs_root
def test_dev_pattern_named_groups_are_variables(dev: Path) -> None:
    (only,) = look(dev, "{dev: '(?P<kind>c)(?P<none>x)?(?P<minor>9)'}").nodes
    assert only.variables == {"kind": "c", "minor": "9"}
    assert only.path == "/dev/c9"
    assert only.state is not None
    assert only.state.number == (240, 5)


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
    assert not survey.failed
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
    """If it is the source's own: that is a mistake, and no state."""
    assert look(tmp_path, source).failed[0].startswith("File name too long")
