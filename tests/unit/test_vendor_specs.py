"""The bounds of what is read of vendors' CDI specs; what they give is in scans/cdi.txt."""

from pathlib import Path

import pytest

from devhost.hostfs.files import HostFiles
from devhost.model.limits import CDI_DEVICES_MAX, CDI_FILE_MAX, CDI_FILES_MAX
from devhost.model.sources import Cdi
from devhost.sources.base import list_location
from devhost.sources.cdi_specs import CdiSource, SpecListing, SpecLocation, distinguish
from devhost.sources.selection import list_all

DEVICE = '{name: "%d"}'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b" " * CDI_FILE_MAX, None, id="size"),
        pytest.param(b" " * (CDI_FILE_MAX + 1), "more than 1 MiB", id="size beyond"),
        pytest.param(b"a: " + b"[" * 31 + b"]" * 31, None, id="depth"),
        pytest.param(b"a: " + b"[" * 100_000, "nested deeper than 32 levels", id="depth beyond"),
        pytest.param(b"a: &b [c]\nd: {<<: *b}", "it has aliases", id="aliases"),
        pytest.param(b"\xff", "can't decode", id="bytes"),
        pytest.param(b"\0", "no YAML", id="characters"),
        pytest.param(b"a: 1\n---\nb: 1", "line 2: but found another document", id="documents"),
    ],
)
def test_large_deep_or_broken_file_is_not_read(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "cdi" / "a.yaml"
    path.parent.mkdir()
    path.write_bytes(content)
    problem = listing(tmp_path).unreadable.get("/cdi/a.yaml")
    assert problem is None if reason is None else reason in (problem or "")


@pytest.mark.parametrize("beyond", [0, 1])
def test_devices_and_files_have_a_bound(tmp_path: Path, beyond: int) -> None:
    (tmp_path / "cdi").mkdir()
    devices = ", ".join(DEVICE % number for number in range(CDI_DEVICES_MAX + beyond))
    (tmp_path / "cdi/0.yaml").write_text(f"{{kind: v.org/d, devices: [{devices}]}}")
    assert bool(listing(tmp_path).specs) == (not beyond)
    for number in range(1, CDI_FILES_MAX + beyond):
        (tmp_path / f"cdi/{number}.json").touch()
    (tmp_path / "cdi/README").touch()
    reason = list_location(SpecLocation("/cdi"), HostFiles(str(tmp_path))).failure
    assert reason == (f"more than {CDI_FILES_MAX} CDI specs (/cdi)" if beyond else None)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "cdi/a.json").mkdir(parents=True)
    (tmp_path / "cdi/b.json").symlink_to("/nowhere")
    assert listing(tmp_path).unreadable == dict.fromkeys(("/cdi/a.json", "/cdi/b.json"), "no file")


def test_source_that_comes_while_a_file_is_broken_knows_its_kind(tmp_path: Path) -> None:
    """The location is that of former sources, as in a node where the configuration is edited."""
    location, files = SpecLocation("/cdi"), HostFiles(str(tmp_path))
    (tmp_path / "cdi").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"cdi/{name}.yaml").write_text(
            f"{{kind: v.org/d, devices: [{{name: {name}}}]}}"
        )
    assert not list_location(location, files).failure
    (tmp_path / "cdi/b.yaml").write_text("{")
    listings = list_all([location], files)
    failure = CdiSource(Cdi(kind="v.org/d"), ["/cdi"]).failure(listings)
    assert failure == "/cdi/b.yaml: line 2: did not find expected node content"
    assert CdiSource(Cdi(kind="w.org/d"), ["/cdi"]).failure(listings) is None


def test_devices_of_as_many_files_as_are_read_are_told_apart() -> None:
    numbers = range(CDI_FILES_MAX * CDI_DEVICES_MAX)
    nodes = {f"{number}": frozenset([f"/dev/{number}"]) for number in numbers}
    assert [device.owned for device in distinguish(nodes)] == [*nodes.values()]


def listing(root: Path) -> SpecListing:
    """Return what /cdi below a root has."""
    specs = list_location(SpecLocation("/cdi"), HostFiles(str(root)))
    assert isinstance(specs, SpecListing)
    return specs
