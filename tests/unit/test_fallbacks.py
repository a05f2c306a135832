"""Variables that only some sources of a resource give: lists of IDs, optional entries."""

from collections.abc import Mapping
from pathlib import Path

from devhost.allocation.policy import Policy
from devhost.discovery.scan import Scanner
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.device import Snapshot
from tests.support.scanning import selected

TWO_SOURCES = r"sources: [{dev: {pattern: 'tty(?P<port>[0-9])', types: file}}, directory: /locks]"


def scan(root: Path, body: str) -> tuple[Scanner, Snapshot]:
    """Look at a host with a port and a lock."""
    for name in ("dev/tty4", "locks/door"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()
    text = f"version: v1\nresources:\n- name: e.com/a\n  {TWO_SOURCES}\n  {body}\n"
    (resource,) = loads(text).require().resources
    scanner = Scanner.of(resource, HostFiles(str(root)), Policy(), "node", hold_s=0)
    return scanner, scanner.snapshot(selected(scanner), Snapshot(), lambda _key: None, 0)


def envs(root: Path, body: str, *ids: str) -> Mapping[str, str]:
    scanner, snapshot = scan(root, f"allocate: {{devices: [], env: {{{body}}}}}")
    return scanner.allocate(snapshot, ids).envs


def test_a_list_of_ids_falls_back_where_a_source_does_not_give_a_variable(tmp_path: Path) -> None:
    _, snapshot = scan(tmp_path, "id: ['port-${port}', '${name}']")
    assert sorted(snapshot.devices) == ["door", "port-4"]


def test_an_optional_variable_is_left_out_where_a_source_does_not_give_it(tmp_path: Path) -> None:
    """Of several devices, those that have a value are joined; a name may mention it, too."""
    port = "PORT: {value: '${port}', optional: true}"
    assert envs(tmp_path, port, "tty4") == {"PORT": "4"}
    assert envs(tmp_path, port, "door") == {}
    assert envs(tmp_path, port, "door", "tty4") == {"PORT": "4"}
    named = "'PORT_${port}': {value: 'yes', optional: true}"
    assert envs(tmp_path, named, "door", "tty4") == {"PORT_4": "yes"}


def test_an_optional_node_is_left_out_where_a_source_does_not_give_its_variable(
    tmp_path: Path,
) -> None:
    scanner, snapshot = scan(
        tmp_path, "allocate: {devices: [{hostPath: '/dev/port${port}', optional: true}]}"
    )
    assert snapshot.devices["door"].healthy
    assert scanner.allocate(snapshot, ("door",)).devices == ()
