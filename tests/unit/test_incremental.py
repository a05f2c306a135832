"""A scan of a few names gives what a full scan gives, or leaves it to one."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from devhost.allocation.policy import Policy
from devhost.discovery.identity import SWAP_S
from devhost.discovery.incremental import Incremental, is_independent
from devhost.discovery.roots import Root
from devhost.discovery.scan import Scanner, ScanResult
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import load_bytes
from devhost.model.device import Snapshot
from tests.support.memory import IN_MEMORY
from tests.support.scanning import selected

SOURCES = (
    "- directory: {a}",
    "- directory: {{path: {a}, include: ['[a-c]*'], exclude: ['b*']}}",
    "- directory: {{path: {a}, recursive: true}}",
    "- glob: {a}/*1",
    "- glob: ['{a}/a*', '{a}/*']",
    "- glob: {{paths: ['{a}/a*', '{a}/d/*', '{a}/*'], exclude: '*1', types: file}}",
    "- glob: {a}/**",
    "- directory: {a}\n  - directory: {b}",
    "- directory: {{path: {a}, include: ['a*']}}\n  - directory: {a}",
    "- directory: {a}\n  - static: {{ids: [a1, x]}}",
    "- directory: {{path: {a}, types: [file, symlink]}}",
)
OPTIONS = (
    "",
    "  replicas: 2",
    "  maxDevices: 2",
    "  removeMissingAfter: 0s",
    "  removeMissingAfter: never",
    "  topology: 0",
    "  id: x-${name}",
    "  id: '${name}'",
    "  allocate: {env: {'DEV_${name}': '${id}'}}",
    "  allocate: {env: {'DEV': '${id}'}, mounts: [{hostPath: '${path}', containerPath: '/x/${name}'}]}",
    "  allocate: {mounts: [{hostPath: '${path}', containerPath: '/x'}]}",
    "  allocate: {mounts: [{hostPath: '/nowhere'}]}",
    "  allocate: {mounts: [{hostPath: DIR/c}]}",
    "  allocate: {mounts: [{hostPath: 'DIR/${name}', containerPath: '/x/${name}'}]}",
)
NAMES = ("a1", "a2", "b1", "b10", "c", ".h", "a1.x", "d/a1", "d/.h")


@dataclass
class Tree:
    """Two directories, and a resource whose devices are there."""

    base: Path
    scanner: Scanner
    incremental: Incremental | None = None
    snapshot: Snapshot = field(default_factory=Snapshot)
    taken: set[str] = field(default_factory=set)
    now: float = 100.0

    def claimed(self, key: str) -> str | None:
        return "another" if key.rpartition("/")[2] in self.taken else None

    def whole(self) -> Snapshot:
        return self.scanner.snapshot(selected(self.scanner), self.snapshot, self.claimed, self.now)

    def look(self) -> None:
        found = selected(self.scanner)
        self.snapshot = self.scanner.snapshot(found, self.snapshot, self.claimed, self.now)
        independent = is_independent(self.scanner, found, self.snapshot)
        self.incremental = Incremental(self.scanner, self.snapshot) if independent else None

    def part(self, *changed: str) -> ScanResult | None:
        incremental, self.incremental = self.incremental, None
        if incremental is None or incremental.snapshot is not self.snapshot:
            return None
        some: dict[Root, set[str]] = {}
        for one in changed:
            shown = str(self.base / one)
            for root in self.scanner.roots:
                above = self.scanner.files.to_local(root.base) + "/"
                if shown.startswith(above):
                    some.setdefault(root, set()).add(shown[len(above) :])
        result = incremental.scan(some, self.now)
        if result is None or any(map(self.claimed, result.offered)):
            return None
        self.incremental = incremental
        return result

    def apply(self, name: str, change: str) -> None:
        path = self.base / name
        there = path.exists() or path.is_symlink()
        if there and change == "touch":
            return  # no event tells of it
        if there:
            path.unlink()
        if change in ("touch", "replace"):
            path.touch()
        elif change == "link":
            path.symlink_to("a2")
        elif change == "dangle":
            path.symlink_to("nowhere")


@contextmanager
def tree(sources: str, options: str = "") -> Iterator[Tree]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as temporary:
        base = Path(temporary).resolve()
        for one in "ab":
            (base / one).mkdir()
        text = sources.format(a=base / "a", b=base / "b")
        options = options.replace("DIR", str(base / "a"))
        raw = f"version: v1\nresources:\n- name: a.b/c\n  sources:\n  {text}\n{options}\n"
        config = load_bytes(raw.encode(), "c.yaml").config
        assert config is not None, load_bytes(raw.encode(), "c.yaml").problems
        files, policy = HostFiles(), Policy((), allow_exec=False, enforced=False)
        yield Tree(base, Scanner.of(config.resources[0], files, policy, "node", hold_s=1.0))


def comparable(snapshot: Snapshot) -> object:
    skipped = sorted((one.candidate, one.reason) for one in snapshot.skipped)
    rest = (snapshot.error, snapshot.notes, snapshot.deferred, snapshot.again_at, snapshot.mixed)
    explained = bool(snapshot.unmatched)  # the number of entries may be that of a moment ago
    return dict(snapshot.devices), skipped, explained, rest


paths = st.tuples(st.sampled_from("aaab"), st.sampled_from(NAMES)).map("/".join)
changes = st.sampled_from(
    ["touch", "touch", "touch", "remove", "remove", "replace", "link", "dangle"]
)
steps = st.lists(
    st.tuples(
        st.dictionaries(paths, changes, min_size=1, max_size=3),
        st.sampled_from([0.1, 0.1, 0.6, 11.0, 400.0]),
        st.sets(st.sampled_from(["a1", "c"]), max_size=1) | st.just(set[str]()),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(st.sampled_from(SOURCES), st.sampled_from(OPTIONS), steps)
@example(  # a device comes when the time of a missing one ends: its seat is not free yet
    "- directory: {a}",
    "  maxDevices: 2",
    [({"a/a2": "remove"}, 0.1, set()), ({"a/a1": "touch"}, 400.0, set())],
)
def test_a_part_is_the_whole(
    sources: str, options: str, steps: list[tuple[dict[str, str], float, set[str]]]
) -> None:
    assume(not ("static" in sources and "${path}" in options))  # a token has none
    with tree(sources, options) as at:
        for name in ("a/a2", "a/c"):
            (at.base / name).touch()
        at.look()
        for changed, later, taken in steps:
            at.taken = taken or at.taken  # a change of it is no change of a name
            if taken:
                at.look()
            for parent in {(at.base / name).parent for name in changed}:
                if not parent.is_dir():  # told as such, not as the name of a file
                    parent.mkdir()
                    at.look()
            for name, change in changed.items():
                at.apply(name, change)
            at.now += later
            part = at.part(*changed)
            whole = at.whole()
            if part is None:
                at.look()
                continue
            assert comparable(part.snapshot) == comparable(whole)
            assert part.before is at.snapshot
            assert dict(part.snapshot.devices) == {
                **{k: v for k, v in part.before.devices.items() if k not in part.gone},
                **part.devices,
            }
            at.snapshot = part.snapshot


@pytest.mark.parametrize("sources", [*SOURCES[:5], "- directory: {a}\n  - static: 2"])
def test_what_comes_goes_and_comes_back_is_a_part(sources: str) -> None:
    """The whole look is for what is rare."""
    with tree(sources) as at:
        (at.base / "a" / "c1").touch()
        at.look()
        for change in ("touch", "remove", "replace", "touch"):
            at.apply("a/a1", change)
            part = at.part("a/a1")
            assert part is not None
            at.snapshot = part.snapshot


def test_a_directory_that_is_not_there_is_left_to_the_whole_look() -> None:
    with tree("- directory: {a}") as at:
        shutil.rmtree(at.base / "a")
        at.look()
        (at.base / "a").mkdir()
        at.apply("a/a1", "touch")
        assert at.part("a/a1") is None


def test_only_the_snapshot_that_is_known_is_gone_on_from() -> None:
    with tree("- directory: {a}") as at:
        at.look()
        at.snapshot = at.whole()
        assert at.part("a/a1") is None


def test_below_a_root_the_hosts_paths_count() -> None:
    with tree("- directory: {a}") as at:
        root = at.base / "root"
        (root / "dev").mkdir(parents=True)
        raw = b"version: v1\nresources: [{name: a.b/c, sources: [directory: /dev]}]"
        config = load_bytes(raw, "c.yaml").config
        assert config is not None
        policy = Policy((), allow_exec=False, enforced=False)
        files = HostFiles(str(root))
        at.scanner = Scanner.of(config.resources[0], files, policy, "node", hold_s=1.0)
        at.look()
        (root / "dev" / "a1").touch()
        part = at.part("root/dev/a1")
        assert part is not None
        assert comparable(part.snapshot) == comparable(at.whole())
        assert part.devices["a1"].paths == ("/dev/a1",)


def test_what_two_patterns_skip_is_told_once() -> None:
    with tree(
        "- glob: {{paths: ['{a}/a*', '{a}/d/*', '{a}/*'], exclude: '*1', types: file}}"
    ) as at:
        (at.base / "a/d").mkdir()
        at.look()
        at.apply("a/a1", "touch")
        at.apply("a/d/a1", "touch")
        part = at.part("a/a1", "a/d/a1")
        assert part is not None
        assert comparable(part.snapshot) == comparable(at.whole())


@pytest.mark.parametrize("first", ["gone", "there"])
def test_a_file_under_another_name_is_left_to_the_whole_look(first: str) -> None:
    """Reported together with its former name, or after it."""
    with tree("- directory: {a}") as at:
        at.apply("a/a1", "touch")
        at.look()
        (at.base / "a/a1").rename(at.base / "a/a2")
        if first == "gone":
            part = at.part("a/a1")
            assert part is not None
            at.snapshot = part.snapshot
            assert at.part("a/a2") is None
        else:
            assert at.part("a/a1", "a/a2") is None
        assert at.whole().devices["a1"].replaced


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
@pytest.mark.parametrize("absence", ["unseen", "seen by a part", "seen by a whole look"])
def test_another_node_in_a_devices_place(absence: str) -> None:
    """It is unhealthy for a while, whatever was seen of what lies between."""
    with tree("- directory: {{path: '{a}', types: [char]}}") as at:
        node = at.base / "a/a1"
        os.mknod(node, 0o020600, os.makedev(1, 3))
        at.look()
        node.unlink()
        if absence == "seen by a whole look":
            at.look()
        elif absence == "seen by a part":
            part = at.part("a/a1")
            assert part is not None
            at.snapshot = part.snapshot
        assert (at.snapshot.devices["a1"].missing_since is None) is (absence == "unseen")
        os.mknod(node, 0o020600, os.makedev(1, 5))
        part = at.part("a/a1")
        assert part is not None
        assert part.devices["a1"].reason == "another device was found in its place"
        assert part.snapshot.again_at == at.now + SWAP_S
        assert at.whole().devices == part.snapshot.devices


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
@pytest.mark.parametrize("options", ["", ", inUse: true"])
def test_a_block_device_is_left_to_the_whole_look(
    options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That says that no event tells what uses it; it is not found out before."""
    with tree(f"- directory: {{{{path: '{{a}}', types: [block, char]{options}}}}}") as at:
        os.mknod(at.base / "a/a1", 0o020600, os.makedev(1, 3))
        at.look()
        monkeypatch.setattr("devhost.hostfs.block_use.in_use", lambda _files: pytest.fail("no"))
        os.mknod(at.base / "a/a2", 0o060600, os.makedev(240, 77))
        assert at.part("a/a2") is None
        (at.base / "a/a2").unlink()
        at.look()
        os.mknod(at.base / "a/c", 0o020600, os.makedev(1, 3))
        part = at.part("a/a2", "a/c")
        assert part is not None
        assert part.devices.keys() == {"c"}
