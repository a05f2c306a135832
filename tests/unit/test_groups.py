"""Devices of several nodes: which nodes are one device, and what a container gets of them."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from devhost.discovery.identity import SWAP_S
from devhost.errors import AllocationError
from devhost.model.allocation import Allocation
from tests.support.scanning import Scans, selected

SOUND = r"""
sources:
  - {dev: 'snd/controlC(?P<card>[0-9]+)', as: control}
  - {dev: 'snd/pcmC(?P<card>[0-9]+)D.*', as: pcm}
  - {dev: 'snd/midiC(?P<card>[0-9]+)D.*', as: midi, optional: true}
group: card${card}
"""


def give(host: Scans, *ids: str) -> Allocation:
    return host.scanner.allocate(host.last, ids)


def test_group_nodes_of_one_key_are_one_device(tmp_path: Path) -> None:
    host = Scans(tmp_path, SOUND)
    host.nodes("snd/controlC0", "snd/pcmC0D0p", "snd/pcmC0D0c", "snd/controlC10", "snd/pcmC10D0p")
    assert host.states() == {"card0": None, "card10": None}
    assert [spec.host_path for spec in give(host, "card0").devices] == [
        "/dev/snd/controlC0",
        "/dev/snd/pcmC0D0c",
        "/dev/snd/pcmC0D0p",
    ]


def test_group_without_a_node_of_each_source_is_not_offered(tmp_path: Path) -> None:
    host = Scans(tmp_path, SOUND)
    host.nodes("snd/controlC0", "snd/pcmC1D0p", "snd/midiC2D0")
    assert host.states() == {}
    reasons = {one.candidate: one.reason for one in host.last.skipped}
    assert (
        reasons["/dev/snd/controlC0"] == "group 'card0' is incomplete: no node of sources[1] (pcm)"
    )
    assert "sources[0] (control)" in reasons["/dev/snd/pcmC1D0p"]
    assert "sources[0] (control) and sources[1] (pcm)" in reasons["/dev/snd/midiC2D0"]


def test_group_waits_a_moment_for_optional_nodes(tmp_path: Path) -> None:
    """Or it would be handed out without them, just after it was plugged in."""
    host = Scans(tmp_path, SOUND, 1.0)
    host.scan()
    host.nodes("snd/controlC0", "snd/pcmC0D0p")
    assert host.states() == {}
    assert host.last.again_at == 1.0
    host.nodes("snd/midiC0D0")
    assert host.states(0.5) == {"card0": None}
    host.remove("dev/snd/midiC0D0")  # one that is on offer waits for nothing
    assert host.states(0.1) == {"card0": None}
    host.nodes("snd/controlC1", "snd/pcmC1D0p")
    host.scan()
    assert host.states(1.0) == {"card0": None, "card1": None}


def test_group_that_loses_a_node_is_unhealthy_until_it_is_back(tmp_path: Path) -> None:
    host = Scans(tmp_path, SOUND)
    host.nodes("snd/controlC0", "snd/pcmC0D0p")
    host.scan()
    assert selected(host.scanner).why_none() == ()  # nothing is missing of an optional source
    host.remove("dev/snd/pcmC0D0p")
    assert host.states() == {"card0": "incomplete: no node of sources[1] (pcm)"}
    assert not host.last.devices["card0"].replaced
    with pytest.raises(AllocationError, match="incomplete"):
        give(host, "card0")
    host.nodes("snd/pcmC0D0p")
    assert host.states() == {"card0": None}
    host.remove("dev/snd/pcmC0D0p", "dev/snd/controlC0")
    assert host.states() == {"card0": "not found any more"}
    assert host.states(300.0) == {}


def test_group_source_name_has_variables_of_its_own(tmp_path: Path) -> None:
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
    host = Scans(tmp_path, SOUND + entries)
    host.nodes("snd/controlC0", "snd/pcmC0D0p", "snd/pcmC0D1p", "snd/controlC1", "snd/pcmC1D0p")
    host.nodes("snd/midiC1D0")
    assert host.states() == {"card0": None, "card1": None}
    answer = give(host, "card0", "card1")
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


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        (SOUND, {"card0": 2, "card1": 3}),
        (f"{SOUND}id: ['${{midi.name}}', 'sound-${{card}}']", {"midiC1D0": 3, "sound-0": 2}),
        ("sources: [dev: 'snd/controlC.', dev: 'snd/pcm.*']\ngroup: all", {"all": 4}),
    ],
)
def test_group_has_its_key_or_id_and_the_nodes_that_are_there(
    tmp_path: Path, text: str, nodes: dict[str, int]
) -> None:
    host = Scans(tmp_path, text)
    host.nodes("snd/controlC0", "snd/pcmC0D0p", "snd/controlC1", "snd/pcmC1D0p", "snd/midiC1D0")
    assert {one.id: len(one.nodes) for one in host.scan().devices.values()} == nodes
    assert len(give(host, *nodes).devices) == sum(nodes.values())


def test_group_whose_optional_source_fails_is_unhealthy(tmp_path: Path) -> None:
    """A sick directory is not an empty one."""
    text = """
sources:
  - {dev: 'x(?P<n>[0-9])'}
  - {glob: {paths: /extra/*, types: char}, as: extra, optional: true}
group: device${name}
"""
    host = Scans(tmp_path, text.replace("${name}", ""))
    host.nodes("x0", "../extra/e")
    assert host.states() == {"device": None}
    found = selected(host.scanner)
    failed = type(found)(
        tuple(node for node in found.nodes if node.source == 0), failed={1: "Input/output error"}
    )
    after = host.scanner.snapshot(failed, host.last, lambda _: None, 1.0)
    assert after.devices["device"].reason == "its source could not be read: Input/output error"


def test_group_without_a_node_of_the_source_that_fails_is_healthy(tmp_path: Path) -> None:
    host = Scans(tmp_path, SOUND)
    host.nodes("snd/controlC0", "snd/pcmC0D0p")
    host.scan()
    found = replace(selected(host.scanner), failed={2: "Input/output error"})
    after = host.scanner.snapshot(found, host.last, lambda _: None, 1.0)
    assert after.devices["card0"].healthy


def test_group_keeps_its_id_when_a_symlink_is_added(tmp_path: Path) -> None:
    """udev may add a link that comes first in natural order."""
    host = Scans(tmp_path, "sources: [glob: /x/*]\ngroup: ${name}")
    host.nodes("node")
    (tmp_path / "x").mkdir()
    (tmp_path / "x/m").symlink_to("/dev/node")
    assert host.states() == {"m": None}
    (tmp_path / "x/a").symlink_to("/dev/node")
    assert host.states() == {"m": None}


def test_group_with_an_id_from_the_missing_node_keeps_it(tmp_path: Path) -> None:
    """It is missing, not under another ID; what is left of it is not to be handed out."""
    host = Scans(tmp_path, SOUND + "id: ['of-${pcm.name}', 'x-${card}']")
    host.nodes("snd/controlC0", "snd/pcmC0D0p")
    assert host.states() == {"of-pcmC0D0p": None}
    host.remove("dev/snd/pcmC0D0p")
    assert host.states() == {"of-pcmC0D0p": "incomplete: no node of sources[1] (pcm)"}
    device = host.last.devices["of-pcmC0D0p"]
    assert not device.replaced
    assert device.remaining == {"/dev/snd/controlC0"}


def test_group_with_a_node_of_another_resource_is_not_offered(tmp_path: Path) -> None:
    host = Scans(tmp_path, SOUND)
    host.nodes("snd/controlC0", "snd/pcmC0D0p")
    found = selected(host.scanner)
    claimed = {"/dev/snd/pcmC0D0p": "e.com/first"}
    after = host.scanner.snapshot(found, host.last, claimed.get, 0.0)
    assert not after.devices
    assert "e.com/first offers it already" in {one.reason for one in after.skipped}


GONE: Final = "not found any more"
SWAPPED: Final = "another device was found in its place"
Step = tuple[str, float, str | None]  # what is there then (a minor number), after how long; why


@pytest.mark.parametrize(
    ("steps", "again_at"),
    [
        pytest.param(
            [
                ("3", 0, None),
                ("5", 0, SWAPPED),
                ("5", SWAP_S / 2, SWAPPED),
                ("5", SWAP_S / 2, None),
            ],
            None,
            id="unhealthy for a while: who holds it has lost it",
        ),
        pytest.param(
            [("3", 0, None), ("", 0, GONE), ("5", 0.1, SWAPPED), ("5", SWAP_S - 0.2, SWAPPED)],
            SWAP_S,
            id="as long as if no scan had seen its absence",
        ),
        pytest.param(
            [
                ("3", 0, None),
                ("5", 0, SWAPPED),
                ("", 1, GONE),
                ("5", 1, SWAPPED),
                ("3", 1, SWAPPED),
            ],
            3 + SWAP_S,
            id="again, with another number, and on with the same one",
        ),
        pytest.param(
            [("3", 0, None), ("", 0, GONE), ("3", 1, None), ("", 0, GONE), ("5", SWAP_S, None)],
            None,
            id="not the same node, nor another that comes when its holder knew in time",
        ),
        pytest.param(
            [("3", 0, None), ("", 0, GONE), ("5", 1, SWAPPED), ("", 1, GONE)],
            SWAP_S,
            id="remembered that long",
        ),
    ],
)
def test_node_replaced_under_one_id_is_unhealthy_for_a_time(
    tmp_path: Path, steps: list[Step], again_at: float | None
) -> None:
    host = Scans(tmp_path, "sources: [dev: kvm]\nremoveMissingAfter: 0s")
    for there, after, reason in steps:
        (tmp_path / "dev/kvm").unlink(missing_ok=True)
        if there:
            host.nodes("kvm", minor=int(there))
        assert host.states(after) == {"kvm": reason}
    assert host.last.again_at == again_at


def test_allocation_of_a_directory_of_nodes_has_each_node(tmp_path: Path) -> None:
    """Links in it are left out; one with no nodes makes the device unhealthy."""
    entry = "allocate: {devices: [{hostPath: /dev/bus, containerPath: /bus, permissions: r}]}"
    host = Scans(tmp_path, "sources: [static: 1]\n" + entry)
    host.nodes("bus/001/001", "bus/002/010")
    (tmp_path / "dev/bus/link").symlink_to("001/001")
    assert host.states() == {"0": None}
    assert [(one.host_path, one.container_path) for one in give(host, "0").devices] == [
        ("/dev/bus/001/001", "/bus/001/001"),
        ("/dev/bus/002/010", "/bus/002/010"),
    ]
    host.remove("dev/bus/001/001", "dev/bus/002/010", "dev/bus/link")
    assert host.states() == {"0": "/dev/bus is a directory without device nodes"}


@pytest.mark.parametrize("more", ["", "\nreplicas: 2", "\noverlap: allow", "\nmaxDevices: 1"])
def test_constant_node_of_another_device_is_refused_unless_shared(
    tmp_path: Path, more: str
) -> None:
    """By whatever links: the loader compares names alone."""
    text = "sources: [/dev/by-id/*]\nallocate: {devices: ['${path}', /dev/link]}"
    host = Scans(tmp_path, f"{text}{more}")
    host.nodes("by-id/a", minor=3)
    (tmp_path / "dev/link").symlink_to("by-id/a")
    assert host.states() == {"a": None}
    host.nodes("by-id/b", minor=5)
    reason = "it would get /dev/link, a node of a: use `group`, or exclude it"
    assert host.states().get("b") == (None if more else reason)
