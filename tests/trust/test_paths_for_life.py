"""Whatever a user of the node does, no answer comes to name what the policy would refuse.

The attacker is real: another user, who does to random trees what the kernel lets him do.
"""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devhost.allocation.host_paths import HostPaths
from devhost.discovery.scan import Scanner
from devhost.loading.loader import loads
from devhost.model.allocation import DeviceSpec, MountSpec
from tests.trust.attack import MEM, NULL, Victim, allocated, as_root, config, edits, policy, written

pytestmark = as_root

TENANT: Final = 1000
MODES: Final = (0o755, 0o755, 0o777, 0o1777, 0o775, 0o700)
DIRECTORIES: Final = ("/a", "/a/d", "/a/d/e", "/b", "/b/d", "/dev/by", "/dev/by/d", "/tmp")
ENTRIES: Final = tuple(f"{place}/{name}" for place in DIRECTORIES for name in ("x", "y"))
NODES: Final = {"/dev/null": (NULL, stat.S_IFCHR), "/dev/sdb": ((8, 16), stat.S_IFBLK)}
FORBIDDEN: Final = ("/dev/mem", "/dev/sda", "/secret")
ALLOW: Final = ("/a/*", "/b/*", "/dev/sdb", "/tmp/*")

Tree = tuple[Sequence["Directory"], Sequence["Entry"]]


@dataclass(frozen=True)
class Directory:
    path: str
    owner: int
    mode: int


@dataclass(frozen=True)
class Entry:
    """A link if it has a target; else a node, a directory or a file."""

    path: str
    owner: int
    target: str | None
    kind: str


owners = st.sampled_from((0, 0, TENANT))
targets = st.one_of(
    st.sampled_from((*NODES, "/a/d", "/b", "d/e", "..", "../x", "d/../y", "../../b/x")),
    st.sampled_from(ENTRIES),
)
trees = st.tuples(
    st.lists(
        st.builds(Directory, st.sampled_from(DIRECTORIES), owners, st.sampled_from(MODES)),
        unique_by=lambda one: one.path,
    ),
    st.lists(
        st.builds(
            Entry,
            st.sampled_from(ENTRIES),
            owners,
            st.none() | targets | targets,
            st.sampled_from(("node", "file", "directory")),
        ),
        min_size=2,
        unique_by=lambda one: one.path,
    ),
)


def resources(tree: Tree) -> st.SearchStrategy[dict[str, Any]]:
    """Return configurations that ask for what is in a tree."""
    paths = st.sampled_from([entry.path for entry in tree[1]])
    places = paths.map(lambda path: path.rpartition("/")[0])
    return st.one_of(
        st.builds(lambda place: {"sources": [f"{place}/*"]}, places),
        st.builds(
            lambda place, types: {
                "sources": [{"directory": {"path": place, "types": types}}],
                "allocate": {"mounts": ["${path}"]},
            },
            places,
            st.sampled_from(("file", "directory")),
        ),
        st.builds(
            lambda section, path, more, optional: {
                "sources": [{"static": 1}],
                "allocate": {section: [{"hostPath": f"{path}{more}", "optional": optional}]},
            },
            st.sampled_from(("devices", "mounts")),
            paths,
            st.sampled_from(("", "", "/x", "//.", "/d/y")),
            st.booleans(),
        ),
    )


cases = trees.flatmap(lambda tree: st.tuples(st.just(tree), resources(tree)))


@contextlib.contextmanager
def grown(tree: Tree) -> Iterator[Victim]:
    """Yield a host with a tree that its users can reach."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    try:
        node = Victim(root)
        for path, (number, kind) in NODES.items():
            node.node(path, number, kind)
        node.node("/dev/mem", MEM)
        node.node("/dev/sda", (8, 0), stat.S_IFBLK)
        node.file("/secret")
        directories, found = tree
        for place in DIRECTORIES:
            node.directory(place)
        for entry in found:
            grow(node, entry)
        for directory in directories:
            at = node.at(directory.path)
            os.chown(at, directory.owner, TENANT)
            at.chmod(directory.mode)
        yield node
    finally:
        shutil.rmtree(root)


def grow(node: Victim, entry: Entry) -> None:
    if entry.target is not None:
        place = node.link(entry.path, entry.target)
    elif entry.kind == "node":
        place = node.node(entry.path, NULL)
    elif entry.kind == "file":
        place = node.file(entry.path)
    else:
        place = node.directory(entry.path)
    os.lchown(place, entry.owner, entry.owner)


@contextlib.contextmanager
def as_the_tenant() -> Iterator[None]:
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(TENANT)
    os.seteuid(TENANT)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def steps(node: Victim, path: str) -> list[tuple[str, list[str]]]:
    """Return each place that the kernel takes something from on the way, and what comes after."""
    found: list[tuple[str, list[str]]] = []
    done: list[str] = []
    pending = path.split("/")[::-1]
    while pending and len(found) < 100:
        part = pending.pop()
        if part == "..":
            del done[-1:]
        elif part not in ("", "."):
            done.append(part)
            place = "/" + "/".join(done)
            found.append((place, [one for one in pending[::-1] if one not in ("", ".")]))
            with contextlib.suppress(OSError):
                target = os.readlink(f"{node.root}{place}")
                done = [] if target.startswith("/") else done[:-1]
                pending += target.split("/")[::-1]
    return found


def bend(node: Victim, path: str, target: str) -> None:
    """Try to make a path lead to something else, by what is on its way."""
    for number, (place, rest) in enumerate(steps(node, path)):
        with as_the_tenant(), contextlib.suppress(OSError):
            at = Path(f"{node.root}{place}")
            if os.path.lexists(at):
                at.rename(f"{at}~{number}")
            for name in rest:
                at.mkdir()
                at /= name
            at.symlink_to(target)


Answered = list[DeviceSpec | MountSpec]


def answered(node: Victim, resource: dict[str, Any]) -> Iterator[Answered]:
    """Yield the host paths of answers and specs, by a scan and again by an Allocate later on."""
    for inject in ("deviceSpecs", "cdi"):
        # As a configuration that the loader has not refused, whatever its paths.
        (loaded,) = loads(config({**resource, "inject": inject})).require().resources
        scanner = Scanner.of(loaded, node.files, policy(*ALLOW), "node-1", hold_s=0)
        snapshot = node.scan(scanner)
        for _ in range(2):
            _, answers = allocated(scanner, snapshot)
            yield [spec for answer in answers.values() for spec in answer.specs]
            spec = written(scanner, snapshot)
            yield [
                MountSpec(mount["hostPath"], "/c", read_only=True)
                for brought in (edits(spec) if spec else ())
                for mount in brought.get("mounts", ())
            ]


def refused(node: Victim, specs: Answered) -> list[str]:
    """Return what the policy says of what a container that starts now would get."""
    found = []
    for spec in specs:
        state = node.files.stat(spec.host_path)
        if state is not None:  # a container whose device is gone does not start
            paths = HostPaths(node.files, policy(*ALLOW))
            told = paths.refusal(state.realpath, mount=isinstance(spec, MountSpec))
            found += [told] if told else []
    return found


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=75)
@given(cases)
def test_no_answer_comes_to_name_what_is_refused(case: tuple[Tree, dict[str, Any]]) -> None:
    tree, resource = case
    with grown(tree) as node:
        for specs in answered(node, resource):
            assert not refused(node, specs)
            for spec in specs:
                for target in FORBIDDEN:
                    bend(node, spec.host_path, target)
                    assert not refused(node, specs)
