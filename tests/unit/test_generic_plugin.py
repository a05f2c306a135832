"""A converted file plans what generic-device-plugin offers, by its sources.

Its discovery is in deviceplugin/path.go and usb.go: what it offers for each row below, on a host
with these nodes, was taken from there. A directory stands for its nodes: the runtime expands it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

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


class Offer(NamedTuple):
    """Groups of a device of the plugin, and what it then offers.

    Attributes:
        devices: What a container gets of each, in the order of the groups: HOST[>CONTAINER], below
            /dev.
        shares: In how many containers each may be.
        permissions: Those of the nodes.
    """

    groups: str
    devices: Sequence[str]
    shares: int = 1
    permissions: str = "mrw"


def list_directory(name: str) -> str:
    return " ".join(f"{name}/{part}" for part in AT[name].split())


OFFERS: Final = [
    Offer("{paths: [{path: /dev/ttyUSB*}]}", ["ttyUSB0", "ttyUSB1"]),
    Offer("{paths: [{path: /dev/ttyUSB*}]}, {paths: [{path: /dev/ttyACM*}]}", ["ttyUSB0", "ttyUSB1", "ttyACM0"]),
    Offer("{count: 3, paths: [{path: /dev/fuse}]}", ["fuse"], 3),
    Offer("{paths: [{path: /dev/fuse, mountPath: /dev/x}]}", ["fuse>x"]),
    Offer("{paths: [{path: /dev/ttyUSB*, mountPath: /dev/s/}]}", ["ttyUSB0>s/ttyUSB0", "ttyUSB1>s/ttyUSB1"]),
    Offer("{paths: [{path: /dev/fuse, permissions: r}]}", ["fuse"], permissions="r"),
    # a directory, whatever its name
    Offer("{count: 2, paths: [{path: /dev/snd}]}", [list_directory("snd")], 2),
    Offer("{paths: [{path: /dev/input}, {path: /dev/uinput}]}", [f"{list_directory('input')} uinput"]),
    Offer("{paths: [{path: /dev/acme}]}", [list_directory("acme")]),
    Offer("{paths: [{path: '/dev/acm[d-f]'}]}", []),
    Offer("{paths: [{path: /dev/bus/usb/*}]}", ["bus/usb/001/001 bus/usb/001/007 bus/usb/001/008 bus/usb/001/009"]),
    # several paths: each is required, unless optional, and the least matches count
    Offer("{paths: [{path: /dev/fuse}, {path: /dev/kfd}]}", ["fuse kfd"]),
    Offer("{paths: [{path: /dev/fuse}, {path: /dev/gone}]}", []),
    Offer("{paths: [{path: /dev/sda}, {path: /dev/fuse}]}", ["sda fuse"]),
    Offer("{paths: [{path: /dev/gone}, {path: /dev/fuse}]}", []),
    Offer("{paths: [{path: /dev/gone, optional: true}, {path: /dev/fuse}]}", ["fuse"]),
    Offer("{paths: [{path: /dev/fuse, optional: true}, {path: /dev/kfd}]}", ["kfd fuse"]),
    Offer("{paths: [{path: /dev/gone, optional: true}, {path: /dev/fuse, optional: true}]}", ["fuse"]),
    Offer("{paths: [{path: /dev/gone, optional: true}]}", []),
    Offer("{paths: [{path: /dev/ttyUSB*}, {path: /dev/fuse}]}", ["ttyUSB0 fuse"]),
    Offer("{paths: [{path: /dev/fuse, limit: 5}, {path: /dev/ttyUSB*}]}", ["ttyUSB0 fuse", "ttyUSB1 fuse"]),
    # several groups of several paths
    Offer(
        "{paths: [{path: /dev/snd/controlC0}, {path: /dev/snd/pcmC0D0c}]}, "
        "{paths: [{path: /dev/snd/controlC1, mountPath: /dev/snd/controlC0}, "
        "{path: /dev/snd/pcmC1D0c, mountPath: /dev/snd/pcmC0D0c}]}",
        ["snd/controlC0 snd/pcmC0D0c", "snd/controlC1>snd/controlC0 snd/pcmC1D0c>snd/pcmC0D0c"],
    ),
    Offer(
        "{paths: [{path: /dev/kfd}, {path: /dev/dri/renderD128}]}, "
        "{paths: [{path: /dev/kfd}, {path: /dev/dri/renderD129}]}",
        ["dri/renderD128 kfd", "dri/renderD129 kfd"],
    ),
    # USB: what a group matches is one device
    Offer("{usb: [{vendor: 0403, product: 6001}]}", ["bus/usb/001/009"], permissions="rw"),
    Offer("{usbs: [{vendor: 0x1a86, product: 0x7523, serial: ''}], paths: [{path: ''}]}", ["bus/usb/001/007 bus/usb/001/008"], permissions="rw"),
    Offer("{usb: [{vendor: 1a86, product: 7523}, {vendor: 403, product: 6001}]}", ["bus/usb/001/007 bus/usb/001/008 bus/usb/001/009"], permissions="rw"),
    Offer("{usb: [{vendor: 1A86, product: 7523}]}, {usb: [{vendor: 403, product: 6001}]}", ["bus/usb/001/007 bus/usb/001/008", "bus/usb/001/009"], permissions="rw"),
    Offer("{usb: [{vendor: 403, product: 6001, serial: A2}]}", [], permissions="rw"),
]  # fmt: skip


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
@pytest.mark.parametrize("offer", OFFERS, ids=lambda offer: offer.groups)
def test_converted_device_offers_what_the_plugin_does(offer: Offer, host: HostFiles) -> None:
    (entry,) = convert_settings(f"devices: [{{name: a, groups: [{offer.groups}]}}]", host)
    (plan,) = plan_devices([entry], host, TRUSTED)
    expected = [list_nodes(text, offer.permissions) for text in offer.devices]
    assert sorted(map(sorted, plan)) == sorted(map(sorted, expected))
    assert entry.resource.get("replicas", 1) == offer.shares


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
