"""What the kernel tells without waiting is what a plain look tells, or nothing."""

import os
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import devhost.discovery.instant_files
from devhost.discovery.answer import hand_out, hand_out_at_once
from devhost.discovery.host_files import HostFiles
from devhost.discovery.instant_files import InstantFiles, WouldWait
from devhost.discovery.scan import Scanner
from devhost.errors import AllocationError
from devhost.loading.loader import loads
from devhost.model.answer import Allocation
from devhost.model.device import FileState, Snapshot
from devhost.trust import Policy
from tests.support.instant import at_once
from tests.support.mounts import bound, hung, tmpfs

NAMES = ("a", "b", "c")
PARTS = st.sampled_from([*NAMES, "..", ".", ""])
RELATIVE = st.lists(PARTS, min_size=1, max_size=5).map("/".join)
TARGETS = st.builds("{}{}".format, st.sampled_from(["", "/"]), RELATIVE)
PLACES = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
THINGS = st.sampled_from([None, ""]) | TARGETS  # a directory, a file, a link
TREES = st.dictionaries(PLACES, THINGS, max_size=6)
ENDS = st.sampled_from(["file", "directory", "/dev/null", "/dev/zero", "/etc/hostname", "nowhere"])


@pytest.fixture
def able() -> None:
    """Here the kernel can tell, and lets us ask."""
    if told("/dev/null") == WAITS:
        pytest.skip("no openat2 with RESOLVE_CACHED here")


WAITS: Final = "would wait"


def told(path: str, root: str = "/", *, walk: bool = False) -> FileState | str | None:
    plain = HostFiles(root)
    try:
        return at_once(
            lambda: InstantFiles(root).look(path), lambda: plain.look(path) if walk else None
        )
    except WouldWait:
        return WAITS


def plant(root: Path, tree: dict[str, str | None], prefix: str) -> None:
    for place, thing in tree.items():
        path = root / place
        if any(os.path.lexists(one) and not os.path.isdir(one) for one in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path):
            continue
        if thing is None:
            path.mkdir()
        elif not thing:
            path.touch()
        else:
            path.symlink_to(prefix + thing if thing.startswith("/") else thing)


@given(TREES, RELATIVE, st.booleans())
def test_it_is_the_plain_look(tree: dict[str, str | None], asked: str, below: bool) -> None:
    """Whatever the links are, from the root of the machine or below one."""
    with tempfile.TemporaryDirectory() as made:
        # Far down, so that no ".." leads to a directory that others change meanwhile.
        root = Path(made).resolve().joinpath(*"d" * 40)
        root.mkdir(parents=True)
        prefix = "" if below else str(root)
        plant(root, tree, prefix)
        path = f"{prefix}/{asked}"
        plain = HostFiles(str(root) if below else "/").look(path)
        assert told(path, str(root) if below else "/") in (plain, WAITS)
        shown = path if not below else f"{root}{path}"
        if os.path.normpath(shown) == shown:  # as a caller has it
            assert existing(shown) in (os.path.lexists(shown), WAITS)


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("below", [True, False])
def test_it_tells(tmp_path: Path, *, below: bool) -> None:
    """A file, a directory and a node, directly and through links."""
    root = tmp_path / "root"
    prefix = "" if below else str(root)
    plant(root, {"f": "", "d": None, "d/up": "../f", "l": "/d", "top": "/l/up"}, prefix)
    files = HostFiles(str(root) if below else "/")
    for name in ("f", "d", "d/up", "l", "l/up", "top", "d/../f", "./f", "d/"):
        plain = files.look(f"{prefix}/{name}")
        assert plain is not None
        assert told(f"{prefix}/{name}", files.root, walk=True) == plain
    assert told("/dev/null") == HostFiles().look("/dev/null")


def existing(path: str) -> bool | str:
    try:
        return at_once(lambda: InstantFiles().exists(path))
    except WouldWait:
        return WAITS


@pytest.mark.usefixtures("able")
def test_it_tells_that_something_has_gone() -> None:
    """In /dev, where the kernel keeps no note of it."""
    if " - devtmpfs " not in Path("/proc/self/mountinfo").read_text():
        pytest.skip("/dev is no devtmpfs")
    path = Path(f"/dev/devhost-test-{os.getpid()}")
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("cannot make nodes")
    try:
        assert isinstance(told(str(path)), FileState)
        assert existing(str(path)) is True
    finally:
        path.unlink()
    assert told(str(path)) is None
    assert told(f"/{path.name}", "/dev") is None
    assert existing(str(path)) is False
    path.symlink_to("devhost-test-none")
    try:
        assert told(str(path)) in (None, WAITS)
        assert existing(str(path)) in (True, WAITS)
    finally:
        path.unlink()


@pytest.mark.usefixtures("able")
def test_a_root_that_is_a_link(tmp_path: Path) -> None:
    """Paths are those below it all the same."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "f").touch()
    (tmp_path / "link").symlink_to("root")
    for root in (tmp_path / "link", tmp_path / "root/"):
        state = told("/f", f"{root}/", walk=True)
        assert state is not None
        assert state == HostFiles(str(root)).look("/f")


@pytest.mark.usefixtures("able")
def test_each_change_is_seen_at_once(tmp_path: Path) -> None:
    """A link that leads elsewhere, another file, other bits: never what was there before."""
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    link = tmp_path / "link"
    link.symlink_to("a")

    def again(change: Callable[[], object]) -> FileState | str | None:
        before = told(str(link), walk=True)
        assert before == HostFiles().look(str(link))
        change()
        after = told(str(link))
        assert after != before
        assert after in (HostFiles().look(str(link)), WAITS)
        return after

    def swap() -> None:
        (tmp_path / "new").symlink_to("b")
        (tmp_path / "new").rename(link)

    again(swap)
    again(lambda: (tmp_path / "b").chmod(0o600))
    again(lambda: (tmp_path / "a").rename(tmp_path / "b"))
    again(lambda: (tmp_path / "b").rename(tmp_path / "c"))
    assert told(str(link)) in (None, WAITS)
    (tmp_path / "b").symlink_to("/dev/null")
    again((tmp_path / "b").unlink)


@pytest.mark.parametrize(
    "path",
    ["/dev/null/", "/dev/null/x", "a", "", "/dev/nu\0ll", "/dev/null\0", "/\udcff"],
)
def test_what_it_does_not_tell(path: str) -> None:
    """What is no path, and what leads through a file."""
    assert told(path) == WAITS


@pytest.mark.parametrize("path", ["/proc/self/root/etc", "/proc/self/exe", "/proc/self/fd/0"])
def test_views_of_a_process_are_left_to_the_plain_look(path: str) -> None:
    """Such a link leads elsewhere than its text says."""
    assert told(path) == WAITS
    assert told("/proc/self/status") == WAITS


def test_directories_are_left_to_the_plain_look(tmp_path: Path) -> None:
    """To list one takes its filesystem."""
    files = InstantFiles()
    asked: tuple[Callable[[str], object], ...] = (
        files.located,
        files.entries,
        files.is_link,
        lambda path: list(files.walk(path)),
    )
    for ask in asked:
        with pytest.raises(WouldWait):
            ask(str(tmp_path))


def test_a_kernel_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An old one, or one that a sandbox hides: all is left to the plain look."""
    with monkeypatch.context() as refusing:
        refusing.setattr(devhost.discovery.instant_files, "_openat2", lambda *_: -1)
        assert told("/dev/null") == WAITS
        assert told("/null", "/dev") == WAITS
    for absent in (None, lambda *_: -1):
        monkeypatch.setattr(devhost.discovery.instant_files, "_statx", absent)
        assert told("/dev/null") == WAITS
        assert told("/f", str(tmp_path)) in (None, WAITS)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    """However it ends."""
    (tmp_path / "f").touch()
    opened = Path("/proc/self/fd")
    count = len([*opened.iterdir()])
    for path in ("/f", "/none", "/", "f"):
        told(path, str(tmp_path))
        told(f"{tmp_path}{path}")
    assert len([*opened.iterdir()]) == count


def test_a_filesystem_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    """What nobody answers is refused at once."""
    place = tmp_path / "sick"
    place.mkdir()
    (place / "f").touch()
    (tmp_path / "link").symlink_to("sick/f")
    assert told(f"{place}/f") == HostFiles().look(f"{place}/f")
    results: list[FileState | str | None] = []

    def ask() -> None:
        results.extend(told(f"{tmp_path}/{name}") for name in ("sick/f", "link", "sick/g"))

    with hung(place):
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(10)
        assert results == [WAITS, WAITS, WAITS]


def test_mounts_are_followed(tmp_path: Path) -> None:
    """What is mounted over a file's directory is what counts."""
    for name in ("place", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").touch()
    path = f"{tmp_path}/place/f"
    before = told(path)
    for mounted in (bound(tmp_path / "other", tmp_path / "place"), tmpfs(tmp_path / "place")):
        with mounted:
            assert told(path) in (HostFiles().look(path), WAITS)
            assert told(path) != before or before == WAITS
    assert told(path) == before


# ── what a container receives ──

CONFIG = """
version: v1
resources:
  - name: example.com/a
    sources: [{{directory: {{path: {root}, types: [file, directory, char]}}}}]
    allocate:
      env: {{NAME: "${{name}}"}}
      devices: [{{hostPath: "${{path}}", containerPath: "/d/${{name}}", optional: {optional}}}]
      mounts: [{{hostPath: "{root}/a", containerPath: /m, optional: {optional}}}]
"""


def made(path: Path, end: str) -> None:
    if end == "file":
        path.touch()
    elif end == "directory":
        path.mkdir()
    else:
        path.symlink_to(end)


def outcome(ask: Callable[[], Allocation | None]) -> Allocation | str | None:
    try:
        return ask()
    except AllocationError as error:
        return f"refused: {error}"


@given(
    st.dictionaries(st.sampled_from(NAMES), ENDS, min_size=1),
    st.dictionaries(st.sampled_from(NAMES), ENDS | st.none()),
    st.sampled_from(["true", "false"]),
    st.sampled_from([(), ("/dev/*",), ("*",)]),
)
def test_it_is_the_plain_answer(
    first: dict[str, str],
    then: dict[str, str | None],
    optional: str,
    allowed: tuple[str, ...],
) -> None:
    """Whatever has become of the host since the scan, the answer or refusal is the same."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory).resolve()
        for name, end in first.items():
            made(root / name, end)
        text = CONFIG.format(root=root, optional=optional)
        (resource,) = loads(text).require().resources
        policy = Policy(allowed, enforced=True)
        scanner = Scanner.of(resource, HostFiles(), policy, "node", hold_s=0.0)
        snapshot = scanner.snapshot(scanner.survey(), Snapshot(), lambda _: None, 0.0)
        for name, new in then.items():
            path = root / name
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
            if new is not None:
                made(path, new)
        questions = [(one,) for one in (*snapshot.devices, "none")] + [tuple(snapshot.devices)]
        for ids in questions:
            plain = outcome(lambda ids=ids: hand_out(scanner, snapshot, ids))  # type: ignore[misc]
            at_once = outcome(lambda ids=ids: hand_out_at_once(scanner, snapshot, ids))  # type: ignore[misc]
            assert at_once in (plain, None)


@pytest.mark.usefixtures("able")
def test_an_answer_is_given_at_once(tmp_path: Path) -> None:
    """What is there, is of its kind and is allowed needs no thread."""
    (tmp_path / "a").symlink_to("/dev/null")
    (resource,) = loads(CONFIG.format(root=tmp_path, optional="false")).require().resources
    scanner = Scanner.of(resource, HostFiles(), Policy(("*",)), "node", hold_s=0.0)
    snapshot = scanner.snapshot(scanner.survey(), Snapshot(), lambda _: None, 0.0)

    def plain() -> Allocation:
        return hand_out(scanner, snapshot, ("a",))

    def answer() -> Allocation:
        told = hand_out_at_once(scanner, snapshot, ("a",))
        if told is None:
            raise WouldWait
        return told

    assert at_once(answer, plain) == plain()
    (tmp_path / "a").unlink()
    (tmp_path / "a").touch()
    with pytest.raises(AllocationError, match="not there any more"):
        at_once(answer)
