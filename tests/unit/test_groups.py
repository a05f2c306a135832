"""Devices of several nodes: which nodes are one device, and what a container gets of them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.identity import SWAP_S
from devhost.discovery.scan import Scanner
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.allocation import Allocation
from devhost.model.device import Snapshot
from tests.support.scanning import selected

SOUND = r"""
sources:
  - {dev: 'snd/controlC(?P<card>[0-9]+)', as: control}
  - {dev: 'snd/pcmC(?P<card>[0-9]+)D.*', as: pcm}
  - {dev: 'snd/midiC(?P<card>[0-9]+)D.*', as: midi, optional: true}
group: card${card}
"""
OPTIONAL = """sources: [dev: a, {dev: b, as: x, optional: true}]
group: g
allocate: {env: {A: '${x.path}'}}"""


class Host:
    """A root whose scans follow one another."""

    def __init__(self, root: Path, text: str = SOUND, hold_s: float = 0.0) -> None:
        self.root, self.hold_s = root, hold_s
        self.last = Snapshot()
        self.now = 0.0
        self.configure(text)

    def configure(self, text: str) -> None:
        body = "".join(f"  {line}\n" for line in text.strip().splitlines())
        (resource,) = loads(f"version: v1\nresources:\n- name: e.com/a\n{body}").require().resources
        files = HostFiles(str(self.root))
        self.scanner = Scanner.of(resource, files, Policy(), "node", hold_s=self.hold_s)

    def make(self, *names: str, minor: int = 3) -> None:
        for name in names:
            path = self.root / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(path, 0o020666, os.makedev(1, minor))

    def remove(self, *names: str) -> None:
        for name in names:
            (self.root / "dev" / name).unlink()

    def scan(self, after: float = 0.0) -> Snapshot:
        self.now += after
        found = selected(self.scanner)
        self.last = self.scanner.snapshot(found, self.last, lambda _: None, self.now)
        return self.last

    def states(self, after: float = 0.0) -> dict[str, str | None]:
        return {one.id: one.reason for one in self.scan(after).devices.values()}

    def give(self, *ids: str) -> Allocation:
        return self.scanner.allocate(self.last, ids)


def test_the_nodes_of_one_key_are_one_device(tmp_path: Path) -> None:
    """Its ID is the key, and a container gets all its nodes."""
    host = Host(tmp_path)
    host.make("snd/controlC0", "snd/pcmC0D0p", "snd/pcmC0D0c", "snd/controlC10", "snd/pcmC10D0p")
    assert host.states() == {"card0": None, "card10": None}
    assert [spec.host_path for spec in host.give("card0").devices] == [
        "/dev/snd/controlC0",
        "/dev/snd/pcmC0D0c",
        "/dev/snd/pcmC0D0p",
    ]


def test_every_source_has_to_give_a_node(tmp_path: Path) -> None:
    """What lacks one is not offered, and is listed with the reason."""
    host = Host(tmp_path)
    host.make("snd/controlC0", "snd/pcmC1D0p", "snd/midiC2D0")
    assert host.states() == {}
    reasons = {one.candidate: one.reason for one in host.last.skipped}
    assert (
        reasons["/dev/snd/controlC0"] == "group 'card0' is incomplete: no node of sources[1] (pcm)"
    )
    assert "sources[0] (control)" in reasons["/dev/snd/pcmC1D0p"]
    assert "sources[0] (control) and sources[1] (pcm)" in reasons["/dev/snd/midiC2D0"]


def test_an_optional_node_joins_where_it_is(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.make("snd/controlC0", "snd/pcmC0D0p", "snd/controlC1", "snd/pcmC1D0p", "snd/midiC1D0")
    assert host.states() == {"card0": None, "card1": None}
    assert [len(one.nodes) for one in host.last.devices.values()] == [2, 3]


def test_a_device_waits_a_moment_for_its_optional_nodes(tmp_path: Path) -> None:
    """Or it would be handed out without them, just after it was plugged in."""
    host = Host(tmp_path, hold_s=1.0)
    host.scan()
    host.make("snd/controlC0", "snd/pcmC0D0p")
    assert host.states() == {}
    assert host.last.again_at == 1.0
    host.make("snd/midiC0D0")
    assert host.states(0.5) == {"card0": None}
    host.remove("snd/midiC0D0")  # one that is on offer waits for nothing
    assert host.states(0.1) == {"card0": None}


def test_without_its_optional_nodes_it_is_offered_after_the_moment(tmp_path: Path) -> None:
    host = Host(tmp_path, hold_s=1.0)
    host.scan()
    host.make("snd/controlC0", "snd/pcmC0D0p")
    host.scan()
    assert host.states(1.0) == {"card0": None}


def test_a_device_that_loses_a_node_is_unhealthy(tmp_path: Path) -> None:
    """It keeps its ID and its seat; when the node is back it is well."""
    host = Host(tmp_path)
    host.make("snd/controlC0", "snd/pcmC0D0p")
    host.scan()
    host.remove("snd/pcmC0D0p")
    assert host.states() == {"card0": "incomplete: no node of sources[1] (pcm)"}
    assert not host.last.devices["card0"].replaced
    with pytest.raises(AllocationError, match="incomplete"):
        host.give("card0")
    host.make("snd/pcmC0D0p")
    assert host.states() == {"card0": None}
    host.remove("snd/pcmC0D0p", "snd/controlC0")
    assert host.states() == {"card0": "not found any more"}
    assert host.states(300.0) == {}


def test_a_named_node_has_variables_of_its_own(tmp_path: Path) -> None:
    """Of several nodes with one name each counts; an optional one may be left out."""
    entries = """
allocate:
  devices:
    - hostPath: ${control.path}
      containerPath: /dev/snd/controlC${index}
    - {hostPath: '${midi.path}', containerPath: '/dev/midi${index}', optional: true}
  env:
    CONTROL: ${control.name}
    PCMS: ${pcm.name}
    MIDI: {value: '${midi.realpath}', optional: true}
    CARD: ${id}
"""
    host = Host(tmp_path, SOUND + entries)
    host.make("snd/controlC0", "snd/pcmC0D0p", "snd/pcmC0D1p", "snd/controlC1", "snd/pcmC1D0p")
    host.make("snd/midiC1D0")
    assert host.states() == {"card0": None, "card1": None}
    answer = host.give("card0", "card1")
    assert answer.envs == {
        "CONTROL": "controlC0,controlC1",
        "PCMS": "pcmC0D0p,pcmC0D1p,pcmC1D0p",
        "MIDI": "/dev/snd/midiC1D0",
        "CARD": "card0,card1",
    }
    assert {spec.container_path: spec.host_path for spec in answer.devices} == {
        "/dev/snd/controlC0": "/dev/snd/controlC0",
        "/dev/snd/controlC1": "/dev/snd/controlC1",
        "/dev/midi1": "/dev/snd/midiC1D0",
    }


def test_a_constant_key_makes_one_device(tmp_path: Path) -> None:
    host = Host(tmp_path, "sources: [dev: kfd, dev: 'dri/renderD.*']\ngroup: gpus")
    host.make("kfd", "dri/renderD128", "dri/renderD129")
    assert host.states() == {"gpus": None}
    assert len(host.give("gpus").devices) == 3


def test_an_id_overrides_the_key(tmp_path: Path) -> None:
    host = Host(tmp_path, SOUND + "id: ['${midi.name}', 'sound-${card}']")
    host.make("snd/controlC0", "snd/pcmC0D0p", "snd/controlC1", "snd/pcmC1D0p", "snd/midiC1D0")
    assert host.states() == {"midiC1D0": None, "sound-0": None}


def test_a_source_that_fails_takes_no_optional_node_away(tmp_path: Path) -> None:
    """A sick directory is not an empty one."""
    text = """
sources:
  - {dev: 'x(?P<n>[0-9])'}
  - {glob: {paths: /extra/*, types: char}, as: extra, optional: true}
group: device${name}
"""
    host = Host(tmp_path, text.replace("${name}", ""))
    host.make("x0", "../extra/e")
    assert host.states() == {"device": None}
    found = selected(host.scanner)
    failed = type(found)(
        tuple(node for node in found.nodes if node.source == 0), failed={1: "Input/output error"}
    )
    after = host.scanner.snapshot(failed, host.last, lambda _: None, 1.0)
    assert after.devices["device"].reason == "its source could not be read: Input/output error"


def test_a_source_that_fails_does_not_matter_to_who_has_no_node_of_it(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.make("snd/controlC0", "snd/pcmC0D0p")
    host.scan()
    found = replace(selected(host.scanner), failed={2: "Input/output error"})
    after = host.scanner.snapshot(found, host.last, lambda _: None, 1.0)
    assert after.devices["card0"].healthy


def test_another_name_of_a_node_renames_no_device(tmp_path: Path) -> None:
    """udev may add a link that comes first in natural order."""
    host = Host(tmp_path, "sources: [glob: /x/*]\ngroup: ${name}")
    host.make("node")
    (tmp_path / "x").mkdir()
    (tmp_path / "x/m").symlink_to("/dev/node")
    assert host.states() == {"m": None}
    (tmp_path / "x/a").symlink_to("/dev/node")
    assert host.states() == {"m": None}


def test_an_id_made_of_the_absent_node_is_incomplete_too(tmp_path: Path) -> None:
    """It is missing, not under another ID; what is left of it is not to be handed out."""
    host = Host(tmp_path, SOUND + "id: ['of-${pcm.name}', 'x-${card}']")
    host.make("snd/controlC0", "snd/pcmC0D0p")
    assert host.states() == {"of-pcmC0D0p": None}
    host.remove("snd/pcmC0D0p")
    assert host.states() == {"of-pcmC0D0p": "incomplete: no node of sources[1] (pcm)"}
    device = host.last.devices["of-pcmC0D0p"]
    assert not device.replaced
    assert device.remaining == {"/dev/snd/controlC0"}


def test_a_claimed_node_is_not_offered_twice(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.make("snd/controlC0", "snd/pcmC0D0p")
    found = selected(host.scanner)
    claimed = {"/dev/snd/pcmC0D0p": "e.com/first"}
    after = host.scanner.snapshot(found, host.last, claimed.get, 0.0)
    assert not after.devices
    assert "e.com/first offers it already" in {one.reason for one in after.skipped}


def test_one_source_may_name_its_node(tmp_path: Path) -> None:
    host = Host(tmp_path, "sources: [{dev: kvm, as: kvm}]\nallocate: {env: {KVM: '${kvm.path}'}}")
    host.make("kvm")
    host.scan()
    assert host.give("kvm").envs == {"KVM": "/dev/kvm"}


def test_another_node_in_a_devices_place_is_unhealthy_for_a_while(tmp_path: Path) -> None:
    """Who holds it has lost it; that must not pass unseen."""
    host = Host(tmp_path, "sources: [dev: kvm]")
    host.make("kvm")
    assert host.states() == {"kvm": None}
    host.remove("kvm")
    host.make("kvm", minor=5)
    assert host.states() == {"kvm": "another device was found in its place"}
    assert host.last.again_at == SWAP_S
    assert host.states(SWAP_S / 2) == {"kvm": "another device was found in its place"}
    assert host.states(SWAP_S / 2) == {"kvm": None}
    assert host.last.again_at is None


SWAPPED = "another device was found in its place"


def test_its_absence_was_seen(tmp_path: Path) -> None:
    """It is unhealthy for the same time as if no scan had seen that."""
    host = Host(tmp_path, "sources: [dev: kvm]")
    host.make("kvm")
    host.scan()
    host.remove("kvm")
    assert host.states() == {"kvm": "not found any more"}
    host.make("kvm", minor=5)
    assert host.states(0.1) == {"kvm": SWAPPED}
    assert host.last.again_at == SWAP_S
    assert host.states(SWAP_S - 0.2) == {"kvm": SWAPPED}
    assert host.states(0.1) == {"kvm": None}


def test_it_goes_again_meanwhile(tmp_path: Path) -> None:
    """The time begins again with the number of the last one, and goes on with the same one."""
    host = Host(tmp_path, "sources: [dev: kvm]")
    host.make("kvm")
    host.scan()
    host.remove("kvm")
    host.make("kvm", minor=5)
    assert host.states() == {"kvm": SWAPPED}
    host.remove("kvm")
    assert host.states(1) == {"kvm": "not found any more"}
    host.make("kvm", minor=5)
    assert host.states(1) == {"kvm": SWAPPED}
    host.remove("kvm")
    host.make("kvm", minor=3)
    assert host.states(1) == {"kvm": SWAPPED}
    assert host.last.again_at == 3 + SWAP_S
    assert host.states(SWAP_S) == {"kvm": None}


def test_it_was_away_for_long(tmp_path: Path) -> None:
    """Its holder knew in time; the same node is well immediately in any case."""
    host = Host(tmp_path, "sources: [dev: kvm]")
    host.make("kvm")
    host.scan()
    host.remove("kvm")
    host.scan()
    host.make("kvm")
    assert host.states(1) == {"kvm": None}
    host.remove("kvm")
    host.scan()
    host.make("kvm", minor=5)
    assert host.states(SWAP_S) == {"kvm": None}


def test_it_would_have_been_forgotten(tmp_path: Path) -> None:
    host = Host(tmp_path, "sources: [dev: kvm]\nremoveMissingAfter: 0s")
    host.make("kvm")
    host.scan()
    host.remove("kvm")
    assert host.states() == {"kvm": "not found any more"}
    assert host.last.again_at == SWAP_S
    host.make("kvm", minor=5)
    assert host.states(1) == {"kvm": SWAPPED}
    host.remove("kvm")
    assert host.states(1) == {"kvm": "not found any more"}
    assert host.states(SWAP_S) == {}


def test_a_directory_of_nodes_is_given_node_by_node(tmp_path: Path) -> None:
    """Links in it are left out; one with no nodes makes the device unhealthy."""
    entry = "allocate: {devices: [{hostPath: /dev/bus, containerPath: /bus, permissions: r}]}"
    host = Host(tmp_path, "sources: [static: 1]\n" + entry)
    host.make("bus/001/001", "bus/002/010")
    (tmp_path / "dev/bus/link").symlink_to("001/001")
    assert host.states() == {"0": None}
    assert [(one.host_path, one.container_path) for one in host.give("0").devices] == [
        ("/dev/bus/001/001", "/bus/001/001"),
        ("/dev/bus/002/010", "/bus/002/010"),
    ]
    host.remove("bus/001/001", "bus/002/010", "bus/link")
    assert host.states() == {"0": "/dev/bus is a directory without device nodes"}


@pytest.mark.parametrize("more", ["", "\nreplicas: 2", "\noverlap: allow", "\nmaxDevices: 1"])
def test_a_constant_node_of_another_device_is_given_only_where_nodes_are_shared(
    tmp_path: Path, more: str
) -> None:
    """By whatever links: the loader compares names alone."""
    text = "sources: [/dev/by-id/*]\nallocate: {devices: ['${path}', /dev/link]}"
    host = Host(tmp_path, f"{text}{more}")
    host.make("by-id/a", minor=3)
    (tmp_path / "dev/link").symlink_to("by-id/a")
    assert host.states() == {"a": None}
    host.make("by-id/b", minor=5)
    reason = "it would get /dev/link, a node of a: use `group`, or exclude it"
    assert host.states().get("b") == (None if more else reason)
