"""From one scan to the next: what vanishes, fails and comes back."""

import errno
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.allocation.policy import Policy
from devhost.discovery import scan
from devhost.discovery.scan import Scanner
from devhost.model import config, names
from devhost.model.config import Allocate
from devhost.model.device import Snapshot
from tests.support.memory import IN_MEMORY
from tests.support.scanning import Scans, nobody, selected

X = "sources: [directory: /x]"


class Files(Scans):
    """Files in /x."""

    def __init__(self, root: Path, options: str = "", sources: str = X) -> None:
        super().__init__(root, f"{sources}\n{options}")
        self.x = root / "x"
        self.x.mkdir()

    def at(self, now: float) -> Snapshot:
        return self.scan(now - self.now)

    def well(self, now: float) -> dict[str, bool]:
        return {key: device.healthy for key, device in self.at(now).devices.items()}

    def have(self, wanted: set[str]) -> None:
        for path in list(self.x.iterdir()):
            if path.name not in wanted:
                path.unlink()
        for name in wanted:
            (self.x / name).touch()


def test_scan_vanished_device_is_unhealthy_then_gone(tmp_path: Path) -> None:
    scans = Files(tmp_path, "removeMissingAfter: 5m")
    (scans.x / "a").touch()
    assert scans.well(0) == {"a": True}
    (scans.x / "a").unlink()
    assert scans.well(100) == {"a": False}
    assert scans.last.devices["a"].missing_since == 100
    assert scans.last.again_at == 400
    assert scans.well(399) == {"a": False}
    assert scans.well(400) == {}
    assert scans.last.again_at is None
    scans.configure(f"{X}\nremoveMissingAfter: never")
    (scans.x / "a").touch()
    assert scans.well(500) == {"a": True}
    (scans.x / "a").unlink()
    scans.at(501)
    assert scans.well(1e9) == {"a": False}
    assert scans.last.again_at is None
    (scans.x / "a").touch()
    assert scans.well(1e9) == {"a": True}
    assert scans.last.devices["a"].missing_since is None


def test_scan_healthy_device_keeps_its_names_from_one_that_comes_later_or_back(
    tmp_path: Path,
) -> None:
    """At later scans, too: a pod may have the device, which must not become unhealthy."""
    scans = Scans(
        tmp_path,
        "sources: [directory: {path: /x, recursive: true}]\n"
        "allocate: {env: {'A_${name}': '${id}'}}",
    )
    scans.make("x/q/n")
    scans.scan()
    for _ in range(2):
        scans.make("x/a/n")
        for _ in range(3):
            found = scans.scan().devices
            assert found["q/n"].reason is None
            assert found["a/n"].reason == "env A_n is used by device q/n too"
        (tmp_path / "x/a/n").unlink()
        assert scans.scan().devices["q/n"].reason is None


def test_scan_failed_source_keeps_its_devices_as_unhealthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = Files(tmp_path, "removeMissingAfter: 5m", "sources: [directory: /x, static: [t]]")
    (scans.x / "a").touch()
    scans.at(0)
    with monkeypatch.context() as patch:

        def sick(_path: str) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patch.setattr(os, "scandir", sick)
        scans.at(1)
        assert scans.well(1e6) == {"a": False, "t": True}
        assert os.strerror(errno.EIO) in (scans.last.error or "")
        assert os.strerror(errno.EIO) in (scans.last.devices["a"].reason or "")
        assert scans.last.devices["a"].missing_since is None
    assert scans.well(1e6 + 1) == {"a": True, "t": True}
    assert scans.last.error is None


@given(st.lists(st.sets(st.sampled_from(["a", "b", "c1", "c9", "c10"])), max_size=8))
def test_scan_present_devices_are_healthy_and_keep_their_ids(sets: list[set[str]]) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as made:
        scans = Files(Path(made), "removeMissingAfter: 2s")
        ever: set[str] = set()
        for now, wanted in enumerate(sets):
            scans.have(wanted)
            ever |= wanted
            snapshot = scans.at(float(now))
            assert {key for key, one in snapshot.devices.items() if one.healthy} == wanted
            assert snapshot.devices.keys() <= ever
            assert list(snapshot.devices) == names.natural(snapshot.devices)
            for device_id, device in snapshot.devices.items():
                assert device.id == device_id
                assert [node.path for node in device.nodes] == [f"/x/{device_id}"]


@given(
    st.integers(1, 3),
    st.lists(st.sets(st.sampled_from(["a", "b", "c1", "c9", "c10"])), max_size=8),
)
def test_scan_max_devices_is_kept_and_offered_devices_stay(
    limit: int, sets: list[set[str]]
) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as made:
        scans = Files(Path(made), f"maxDevices: {limit}\nremoveMissingAfter: never")
        seats: set[str] = set()
        for now, wanted in enumerate(sets):
            scans.have(wanted)
            free = limit - len(seats)
            seats |= set(names.natural(wanted - seats)[:free])
            states = scans.well(float(now))
            assert states.keys() == seats
            assert {key for key, healthy in states.items() if healthy} == seats & wanted


def test_scan_beyond_the_default_limit_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without maxDevices there is a limit for what is found, and few of the rest are listed."""
    monkeypatch.setattr(config, "DEVICES_MAX", 2)
    monkeypatch.setattr(scan, "SKIPPED_MAX", 3)
    scans = Files(tmp_path)
    for name in "abcdefg":
        (scans.x / name).touch()
    found = scans.at(0)
    assert list(found.devices) == ["a", "b"]
    reason = "over the limit: maxDevices is 2 by default"
    assert [(one.candidate, one.reason) for one in found.skipped] == [
        (f"/x/{name}", reason) for name in "cde"
    ]
    assert found.skipped_count == 5
    (scans.x / "a").unlink()
    assert list(scans.at(1).devices) == ["a", "b"]
    assert list(scans.at(400).devices) == ["b"]
    assert scans.last.again_at == 400
    assert list(scans.at(400).devices) == ["b", "c"]


def test_scan_default_limit_is_not_for_max_devices_or_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "DEVICES_MAX", 2)
    (tmp_path / "more").mkdir()
    scans = Files(tmp_path / "more", "maxDevices: 3")
    for name in "abcd":
        (scans.x / name).touch()
    assert list(scans.at(0).devices) == ["a", "b", "c"]
    assert len(Files(tmp_path, sources="sources: [static: 4]").at(0).devices) == 4


def test_scan_after_a_changed_allocate_judges_unchanged_devices_again(tmp_path: Path) -> None:
    """What was legal by the former one may not be by the next."""
    scans = Files(tmp_path, "allocate: {devices: [], env: {A: '${id}'}}")
    (scans.x / "a,b").touch()
    assert "separator" in (scans.at(0).devices["a,b"].reason or "")
    for value, reason in (("x", None), ("${id}", "env A: the value 'a,b' contains")):
        former = scans.scanner.resource
        allocate = Allocate.model_validate({"devices": [], "env": {"A": value}})
        changed = former.model_copy(update={"allocate": allocate})
        files = scans.scanner.files
        scans.scanner = Scanner.of(changed, files, Policy(), "node", hold_s=0)
        scans.last = scan.carried_over(scans.last, former, changed)
        for now in (1, 2):
            found = scans.at(now).devices["a,b"].reason
            assert found == reason if reason is None else reason in (found or "")


def test_scan_reason_with_a_long_text_is_cut(tmp_path: Path) -> None:
    """It is kept for each device."""
    scans = Files(tmp_path, f"allocate: {{devices: [], env: {{A: '{'x' * 9000}${{id}}'}}}}")
    (scans.x / "a,b").touch()
    assert len(scans.at(0).devices["a,b"].reason or "") < 1000


def test_scan_asks_again_about_unchanged_devices_only_when_thorough(tmp_path: Path) -> None:
    """After an event, what an unchanged device was found to be counts."""
    scans = Files(tmp_path, "allocate: {mounts: ['${path}']}")
    scans.scanner = replace(scans.scanner, policy=Policy(("/x/*",), enforced=True))
    for name in "ab":
        (scans.x / name).touch()
    assert scans.well(0) == {"a": True, "b": True}
    scans.scanner = replace(scans.scanner, policy=Policy(("/x/b",), enforced=True))
    (scans.x / "c").touch()
    (scans.x / "b").write_text("changed")
    states = []
    for thorough in (False, True):
        found = selected(scans.scanner)
        identified = scans.scanner.identify(found, scans.last, nobody, 1)
        snapshot = scans.scanner.conclude(identified, thorough=thorough)
        states.append({key: device.healthy for key, device in snapshot.devices.items()})
    assert states == [{"a": True, "b": True, "c": False}, {"a": False, "b": True, "c": False}]


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["a1", "a2", "b1", "c1"]), st.sampled_from(["x", "y", None]), min_size=1
        ),
        max_size=5,
    ),
    st.sampled_from(
        [
            "",
            "maxDevices: 2",
            'allocate: {env: {"A_${id}": x}}',
            'allocate: {env: {"A_${group}": "${id}"}}',
            'allocate: {env: {"A_${group}": "${id}", "A_${id}": x}}',
            'allocate: {mounts: [{hostPath: "${path}", containerPath: /x}]}',
        ]
    ),
)
def test_scan_keeping_unchanged_devices_equals_a_thorough_scan(
    changes: list[dict[str, str | None]], options: str
) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as root:
        source = "dev: {pattern: 'x/(?P<group>.).*', types: file}"
        scans = Files(Path(root), options, f"sources: [{{{source}}}]")
        place = Path(root) / "dev" / "x"
        place.mkdir(parents=True)
        kept = Snapshot()
        for now, change in enumerate(changes):
            for name, content in change.items():
                (place / name).unlink(missing_ok=True)
                if content is not None:
                    (place / name).write_text(content)
            found = selected(scans.scanner)
            identified = scans.scanner.identify(found, kept, nobody, now)
            kept = scans.scanner.conclude(identified, thorough=False)
            assert scans.at(now) == kept
