"""`devhost convert` of smarter-device-manager's settings: the same resources on the same host."""

import re
from pathlib import Path
from typing import Final

import pytest
import yaml
from click.testing import CliRunner

from devhost.allocation.policy import Policy
from devhost.cli import main
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.report import report
from devhost.testing import HostTree, can_make_nodes
from tests.support.converting import convert

NODES: Final = {
    "snd/controlC0": (116, 0), "snd/pcmC0D0p": (116, 1), "gpiomem": (240, 0), "gpiochip0": (254, 0), "gpiochip11": (254, 11),
    "i2c-1": (89, 1), "rtc0": (250, 0), "video0": (81, 0), "video10": (81, 10), "vcsm-cma": (241, 0), "ttyUSB0": (188, 0),
    "ttyS0": (4, 64), "net/tun": (10, 200), "fuse": (10, 229), "input/event0": (13, 64),
}  # fmt: skip
# The features of the examples in its README, its default file and its chart.
SETTINGS: Final = {
    "literal": [("^fuse$", 20)],
    "default": [("^snd$", 20), ("^gpiomem$", 4), ("^gpiochip[0-9]*$", 3), ("^i2c-[0-9]*$", 1), ("^rtc0$", 2), ("^video[0-9]*$", 5), ("^vcsm.*$", 2), ("^ttyUSB[0-9]*$", 1), ("^ttyS[0-9]*$", 1)],
    "below": [("^net/tun$", 3), ("^input/event[0-9]+$", 1)],
    "unanchored": [("gpio", 2)],
    "choice": [("^(fuse|rtc0)$", 1), (r"^video[0-9]{2}$", 1)],
}  # fmt: skip

pytestmark = pytest.mark.skipif(not can_make_nodes(), reason="creating device nodes needs root")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> HostTree:
    tree = HostTree(tmp_path_factory.mktemp("smarter") / "host")
    for name, number in NODES.items():
        tree.char(f"/dev/{name}", *number)
    tree.link("/dev/serial/by-id/usb-A", "../../ttyUSB0")
    return tree


def settings(given: list[tuple[str, int]]) -> list[dict[str, object]]:
    return [{"devicematch": match, "nummaxdevices": count} for match, count in given]


def expected(given: list[tuple[str, int]]) -> dict[str, tuple[int, set[tuple[str, str, str]]]]:
    """Return the resources of that plugin, each with its number of IDs and its nodes."""
    known = {*NODES, "snd", "net", "input"}
    found = {}
    for match, count in given:
        for name in (one for one in known if re.search(match, one)):
            nodes = [node for node in NODES if node == name or node.startswith(f"{name}/")]
            shown = {(f"/dev/{node}", f"/dev/{node}", "rw") for node in nodes}
            found[f"smarter-devices/{name.replace('/', '_')}"] = (count, shown)
    return found


def offered(text: str, tree: HostTree) -> dict[str, tuple[int, set[tuple[str, str, str]]]]:
    config = loads(text).require()
    requests = {one.name: "1" for one in config.resources}
    result = {}
    for one in report(config, HostFiles(str(tree.root)), Policy(("*",)), "node", requests):
        assert one.allocation is not None, one.allocation_error
        nodes = {(d.host_path, d.container_path, d.permissions) for d in one.allocation.devices}
        result[one.resource.name] = (one.as_json()["allocatable"], nodes)
    return result


@pytest.mark.parametrize("name", SETTINGS)
def test_each_example_offers_the_same(name: str, tree: HostTree) -> None:
    text, errors = convert(yaml.safe_dump(settings(SETTINGS[name])), tree)
    assert offered(text, tree) == expected(SETTINGS[name])
    assert "0 settings not carried over" in errors


@pytest.mark.parametrize(
    "around",
    [
        lambda text: text,
        lambda text: yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "data": {"conf.yaml": text}}),
        lambda text: yaml.safe_dump({"image": {"tag": "1"}, "config": yaml.safe_load(text)}),
        lambda text: yaml.safe_dump({"smarter-device-manager": {"config": yaml.safe_load(text)}}),
        lambda text: yaml.safe_dump_all([{"kind": "Namespace"}, {"kind": "ConfigMap", "data": {"c": text}}]),
    ],
)  # fmt: skip
def test_wherever_the_settings_are(around: object, tree: HostTree) -> None:
    assert callable(around)
    text, _ = convert(around(yaml.safe_dump(settings(SETTINGS["below"]))), tree)
    assert offered(text, tree) == expected(SETTINGS["below"])


def test_a_link_keeps_its_path(tree: HostTree) -> None:
    text, _ = convert(yaml.safe_dump(settings([("^serial/by-id/.*", 1)])), tree)
    link = "/dev/serial/by-id/usb-A"
    assert offered(text, tree) == {
        "smarter-devices/serial_by-id_usb-A": (1, {(link, link, "rw")}),
    }


def test_devices_of_other_nodes_are_named_by_a_flag(tree: HostTree) -> None:
    given = [("^ttyACM[0-9]*$", 2), ("^fuse$", 1)]
    text, errors = convert(yaml.safe_dump(settings(given)), tree)
    assert "nothing below /dev of this host matches" in errors
    assert "1 resource converted, 1 setting not carried over" in errors
    assert offered(text, tree) == expected(given)
    alone = yaml.safe_dump(settings(given[:1]))
    result = CliRunner().invoke(main, ["convert", "-", "--root", str(tree.root)], input=alone)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing was converted" in result.stderr


def test_a_name_given_by_a_flag(tree: HostTree, tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text(yaml.safe_dump(settings([("^ttyACM[0-9]*$", 2)])))
    arguments = ["--dev", "/dev/ttyACM0", "--dev", "ttyACM1", "--domain", "example.com"]
    result = CliRunner().invoke(main, ["convert", str(tmp_path / "conf.yaml"), *arguments])
    found = loads(result.stdout).require().resources
    assert [(one.name, one.replicas) for one in found] == [
        ("example.com/ttyACM0", 2), ("example.com/ttyACM1", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        ({"devicematch": "nvidia-gpu", "nummaxdevices": 10}, "NVIDIA's device plugin"),
        ({"devicematch": "^fuse$", "nummaxdevices": 0}, "nummaxdevices is 0"),
        ({"devicematch": "^fuse$", "nummaxdevices": 1, "color": "red"}, "unknown key 'color'"),
        ({"devicematch": "^(fuse$", "nummaxdevices": 1}, "missing )"),
        (
            {"devicematch": "^rtc0$", "nummaxdevices": 1},
            "smarter-devices/rtc0: a second resource of this name",
        ),
    ],
)
def test_what_cannot_be_carried_over_is_named(
    given: dict[str, object], lost: str, tree: HostTree
) -> None:
    text, errors = convert(yaml.safe_dump([*settings([("^rtc0$", 1)]), given]), tree)
    assert lost in errors
    assert "1 setting not carried over" in errors
    assert "smarter-devices/rtc0" in offered(text, tree)
