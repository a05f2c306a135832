"""Attacks by sources: no name of a directory that only root may read gets to the editor."""

import pytest

from devhost.devices.dry_run import explain_sources
from devhost.model.device import Snapshot
from devhost.sources.selection import list_all
from tests.security.attack import Victim
from tests.support.devices import skip_reasons

SOURCES = (
    {"directory": {"path": "/root", "recursive": True}},
    {"directory": "/link/.ssh"},
    "/root/**",
    "/root/*/id",
)
KNOWN = ("/root/.ssh/id", "/link/.ssh/id", {"directory": "/root/.shh"})  # what need not be listed


def found(node: Victim, source: object, *allow: str) -> Snapshot:
    return node.scan(node.scanner({"sources": [source], "allocate": {"devices": []}}, *allow))


@pytest.fixture
def home(node: Victim) -> Victim:
    """A directory of root's with a key, and a link of the host that leads there."""
    node.file("/root/.ssh/id")
    node.file("/root/thesis/id")
    node.link("/link", "/root")
    for path in ("/root", "/root/.ssh"):
        node.at(path).chmod(0o700)
    return node


@pytest.mark.parametrize(
    ("mode", "source"),
    [(0o700, source) for source in (*SOURCES, *KNOWN)]
    + [(0o750, SOURCES[0])]
    + [(0o711, source) for source in SOURCES],
)
def test_source_in_private_directory_tells_no_name(home: Victim, mode: int, source: object) -> None:
    """Where every user may look for a name that he knows, only lists are refused."""
    for path in ("/root", "/root/.ssh"):
        home.at(path).chmod(mode)
    snapshot = found(home, source)
    assert not snapshot.devices
    assert snapshot.error is not None
    assert "not every user may look into /root" in snapshot.error
    assert "--allow-path '/root" in snapshot.error
    assert "thesis" not in f"{snapshot}"
    scanner = home.scanner({"sources": [source]})
    listings = list_all(scanner.locations, scanner.files)
    why = explain_sources(scanner, listings, snapshot)
    assert "thesis" not in f"{[*why]}"


@pytest.mark.parametrize("glob", ["/root", "/root/*"])
def test_source_in_a_private_directory_with_its_flag_lists_it(home: Victim, glob: str) -> None:
    source = {"directory": {"path": "/root", "types": "directory"}}
    assert [*found(home, source, glob).devices] == ["thesis"]
    assert found(home, source, "/root/x", "/roo").error is not None


def test_source_in_a_tree_leaves_out_its_private_parts_only(node: Victim) -> None:
    node.file("/srv/open/a")
    node.file("/srv/closed/b").parent.chmod(0o700)
    for source in ("/srv/*/*", "/srv/**", {"directory": {"path": "/srv", "recursive": True}}):
        snapshot = found(node, source)
        assert [*snapshot.devices] == ["open/a"]
        skipped = skip_reasons(snapshot.skipped).items()
        closed = [candidate for candidate, reason in skipped if "not every user" in reason]
        assert closed == ["/srv/closed"]


def test_source_by_a_symlink_to_a_private_directory_is_refused(home: Victim) -> None:
    home.link("/srv/own/x", "/root").parent.chmod(0o700)
    snapshot = found(home, {"directory": "/srv/own/x"}, "/srv/own/*")
    assert "not every user may look into /root" in (snapshot.error or "")


def test_source_below_dev_is_listed_whatever_its_modes(node: Victim) -> None:
    node.link("/dev/by/x", "/srv/f").parent.chmod(0o700)
    node.file("/srv/f")
    assert [*found(node, {"directory": "/dev/by"}).devices] == ["x"]
