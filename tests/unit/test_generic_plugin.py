"""A converted file plans what generic-device-plugin offers, by its sources.

Its discovery is in deviceplugin/path.go and usb.go: what it offers for each case of generic_plugin.txt, on a host with
these nodes, was taken from there. A directory stands for its nodes: the runtime expands it.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.dry_run import report
from devhost.drafts import draft
from devhost.drafts.conversion import Conversion
from devhost.drafts.draft import DraftEntry
from devhost.hostfs.files import HostFiles
from tests.support.hardware import HostTree
from tests.support.root import needs_root

STICKS: Final = """
pci 0000:00:14.0 8086:9d2f class=0c0330 driver=xhci_hcd
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
    usb 1-3 1a86:7523 bus=1 dev=7
    usb 1-4 1a86:7523 bus=1 dev=8
    usb 1-5 0403:6001 bus=1 dev=9 serial=A1
"""
NODES: Final = """
    ttyUSB0 ttyUSB1 ttyACM0 fuse kfd uinput acme/a acme/b dri/card0 dri/renderD128 dri/renderD129
    input/event0 input/js0 snd/controlC0 snd/controlC1 snd/pcmC0D0c snd/pcmC1D0c
"""
AT: Final = {"snd": "controlC0 controlC1 pcmC0D0c pcmC1D0c", "input": "event0 js0", "acme": "a b"}
TRUSTED: Final = Policy(trusted=True)

AllocatedNodes = set[tuple[str, ...]]


# What the plugin offers of each.
OFFERS: Final = re.findall(
    r"^== (.*?)(?: [|] (\d*) ?(\w*))?\n((?:  .*\n)*)",
    Path(__file__).with_name("generic_plugin.txt").read_text(),
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> HostFiles:
    tree = HostTree(tmp_path_factory.mktemp("host"))
    tree.hardware(STICKS)
    tree.block("/dev/sda", 8, 0)
    tree.file("/proc/1/mountinfo", "1 0 8:0 / / rw - ext4 /dev/sda rw\n")
    for minor, name in enumerate(NODES.split()):
        tree.char(f"/dev/{name}", 240, minor)
    return HostFiles(str(tree.root))


def convert_settings(settings: str, files: HostFiles) -> list[DraftEntry]:
    conversion = Conversion(files)
    assert conversion.read(settings)
    (everywhere,), _ = conversion.finish()
    assert all(entry.resource for entry in everywhere.entries), everywhere.entries
    return everywhere.entries


def plan_devices(
    entries: Sequence[DraftEntry], files: HostFiles, policy: Policy
) -> list[list[AllocatedNodes]]:
    """Return for each resource what a container gets of each device."""
    config = loads(draft.render((), entries)).require()
    plans = []
    for shown in report(config, files, policy, "node"):
        ids = [device.id for device in shown.snapshot.devices.values() if device.healthy]
        name, plan = shown.resource.name, list[AllocatedNodes]()
        for device_id in ids:
            again = report(config, files, policy, "node", {name: device_id})
            (allocation,) = (after.details["allocation"] for after in again if after.details)
            words = ("hostPath", "containerPath", "permissions")
            plan.append({tuple(node[word] for word in words) for node in allocation["devices"]})
        plans.append(plan)
    return plans


def list_nodes(text: str, permissions: str) -> AllocatedNodes:
    pairs = ((word.split(">")[0], word.split(">")[-1]) for word in text.split())
    return {(f"/dev/{at}", f"/dev/{inside}", permissions) for at, inside in pairs}


@needs_root
@pytest.mark.parametrize(("groups", "shares", "permissions", "devices"), OFFERS)
def test_converted_device_offers_what_the_plugin_does(
    groups: str, shares: str, permissions: str, devices: str, host: HostFiles
) -> None:
    (entry,) = convert_settings(f"devices: [{{name: a, groups: [{groups}]}}]", host)
    (plan,) = plan_devices([entry], host, TRUSTED)
    expected = [list_nodes(text, permissions or "mrw") for text in devices.splitlines()]
    assert sorted(map(sorted, plan)) == sorted(map(sorted, expected))
    assert entry.resource.get("replicas", 1) == int(shares or 1)


@needs_root
def test_converted_devices_share_nodes_as_those_of_the_plugin(host: HostFiles) -> None:
    """The plugin offers a node in each resource that names it."""
    groups = (
        "{path: /dev/dri}, {path: /dev/kfd}",
        "{path: /dev/kfd}",
        "{path: /dev/dri/renderD*}",
        "{path: /dev/kfd}, {path: /dev/dri/renderD128}",
    )
    devices = [
        f"{{name: n{at}, groups: [{{paths: [{paths}]}}]}}" for at, paths in enumerate(groups)
    ]
    plans = plan_devices(convert_settings(f"[{', '.join(devices)}]", host), host, TRUSTED)
    assert [len(plan) for plan in plans] == [1, 1, 2, 1]


@needs_root
def test_directory_needs_the_rights_of_its_nodes(host: HostFiles) -> None:
    entries = convert_settings("{name: a, groups: [{paths: [{path: /dev/bus/usb}]}]}", host)
    needed = [word for _, word in draft.needed_rights(entries).rights]
    assert sorted(needed) == ["0403:6001", "1a86:7523", "1d6b:0002"]
    assert plan_devices(entries, host, Policy(allow_devices=(*needed[1:],), enforced=True)) == [[]]
    ((device,),) = plan_devices(entries, host, Policy(allow_devices=(*needed,), enforced=True))
    assert len(device) == 4
