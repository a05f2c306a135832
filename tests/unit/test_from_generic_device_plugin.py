"""`devhost convert` of generic-device-plugin's settings: the same devices on the same host.

The oracle below is that plugin's discovery, from its documentation and sources: of each path of a
group the sorted matches, and the n-th device has the n-th match of each.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devhost.allocation.policy import Policy
from devhost.cli import main
from devhost.discovery.dry_run import report
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from tests.support.hardware import HostTree
from tests.support.root import needs_root

HARDWARE: Final = """\
pci 0000:00:14.0 8086:9d2f class=0c0330 driver=xhci_hcd
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
    usb 1-1 1a86:7523 bus=1 dev=4 serial=77
      if 1-1:1.0 ffffff
    usb 1-2 1d50:00f4 bus=1 dev=7 serial=a*b
      if 1-2:1.0 ffffff
"""
NODES: Final = {
    **{f"ttyUSB{n}": (188, n) for n in (0, 1, 10)},
    **{f"ttyACM{n}": (166, n) for n in (0, 3)},
    **{f"video{n}": (81, n) for n in (0, 1)},
    **{f"media{n}": (240, n) for n in (0, 1)},
    **{f"snd/controlC{n}": (116, n) for n in (0, 1)},
    **{f"snd/pcmC{n}D0c": (116, 8 + n) for n in (0, 1)},
    "snd/pcmC1D0p": (116, 20),
    "fuse": (10, 229),
    "tpm0": (10, 224),
    "tpmrm0": (250, 0),
    "net/tun": (10, 200),
}
USB: Final = {"1a86:7523": "/dev/bus/usb/001/004", "1d50:00f4": "/dev/bus/usb/001/007"}

pytestmark = needs_root

Given = dict[str, Any]
Received = tuple[frozenset[tuple[str, str, str]], frozenset[tuple[str, str, bool]]]


def convert(text: str, *arguments: str, status: int = 0) -> tuple[str, str]:
    """Convert what is on standard input; return stdout and stderr."""
    result = CliRunner().invoke(main, ["convert", "-", *arguments], input=text)
    assert result.exit_code == status, result.output
    return result.stdout, result.stderr


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> HostTree:
    tree = HostTree(tmp_path_factory.mktemp("generic") / "host")
    tree.hardware(HARDWARE)
    for name, number in NODES.items():
        tree.char(f"/dev/{name}", *number)
    tree.file("/etc/licence", "x")
    tree.directory("/srv/models")
    return tree


def expected(device: Given, tree: HostTree) -> Iterator[Received]:
    """Yield what a container gets by each device of the plugin."""
    root = str(tree.root)
    for group in device["groups"]:
        shares = group.get("count", 1)
        found: list[Received] = []
        if specs := group.get("usb", group.get("usbs")):
            paths = [
                USB.get(f"{int(s['vendor'], 16):04x}:{int(s['product'], 16):04x}") for s in specs
            ]
            nodes = [(path, path, "rw") for path in paths if path]
            found = [(frozenset(nodes), frozenset())] if nodes else []
        else:
            matches = [_matching(tree, p["path"]) for p in group["paths"]]
            usable = [m * p.get("limit", 1) for m, p in zip(matches, group["paths"], strict=True)]
            for at in range(min(max(map(len, matches)), *map(len, usable), 10**6)):
                chosen = [m[at].removeprefix(root) for m in usable]
                found.append(_received(zip(chosen, group["paths"], strict=True), tree))
        yield from (one for one in found for _ in range(shares))


def _matching(tree: HostTree, path: str) -> list[str]:
    return sorted(map(str, tree.root.glob(path.replace("[^", "[!").lstrip("/"))))


def _received(chosen: Any, tree: HostTree) -> Received:
    nodes, mounts = set(), set()
    for host, path in chosen:
        container = path.get("mountPath") or host
        if container.endswith("/"):
            container += host.rpartition("/")[2]
        if path.get("type") == "Mount":
            mounts.add((host, container, path.get("readOnly", False)))
            continue
        inside = sorted(p.name for p in tree.at(host).iterdir()) if tree.at(host).is_dir() else []
        permissions = path.get("permissions", "mrw")
        nodes |= {(f"{host}/{name}", f"{container}/{name}", permissions) for name in inside}
        if not inside:
            nodes.add((host, container, permissions))
    return frozenset(nodes), frozenset(mounts)


def offered(text: str, tree: HostTree) -> dict[str, list[Received]]:
    """Return what a container gets by each device ID of a configuration."""
    config = loads(text).require()
    files, policy = HostFiles(str(tree.root)), Policy(("*",))
    result: dict[str, list[Received]] = {}
    for one in report(config, files, policy, "node"):
        received = result.setdefault(one.resource.name, [])
        for device in one.snapshot.devices.values():
            assert device.healthy, device.reason
            share = f"{device.id}::0" if one.resource.replicas > 1 else device.id
            requests = {one.resource.name: f"{share},"}
            (again,) = [
                r for r in report(config, files, policy, "node", requests)
                if r.resource.name == one.resource.name
            ]  # fmt: skip
            answer = again.more["allocation"]
            assert answer["error"] is None
            nodes = frozenset(
                (d["hostPath"], d["containerPath"], d["permissions"]) for d in answer["devices"]
            )
            mounts = frozenset(
                (m["hostPath"], m["containerPath"], m["readOnly"]) for m in answer["mounts"]
            )
            received += [(nodes, mounts)] * one.resource.replicas
    return result


def paths(*given: str, **options: Any) -> Given:
    return {"paths": [{"path": one} for one in given], **options}


# The features of the examples in the plugin's README, manifests and chart, and of its sources.
EXAMPLES: Final[dict[str, Given]] = {
    "one-node": {"name": "camera", "groups": [paths("/dev/video0")]},
    "absent": {"name": "camera", "groups": [paths("/dev/video7")]},
    "globs": {
        "name": "uart",
        "groups": [paths(f"/dev/{stem}") for stem in ("ttyUSB*", "ttyACM*", "tty.usb*", "cu.*", "cuaU*")],
    },
    "counted": {"name": "fuse", "groups": [paths("/dev/fuse", count=10)]},
    "directory": {"name": "audio", "groups": [paths("/dev/snd", count=4)]},
    "set": {"name": "mic", "groups": [paths("/dev/snd/controlC0", "/dev/snd/pcmC0D0c")]},
    "permissions": {
        "name": "tpm",
        "groups": [{"paths": [{"path": "/dev/tpm0", "permissions": "r"}, {"path": "/dev/tpmrm0", "permissions": "rw"}]}],
    },
    "usb": {"name": "ch340", "groups": [{"usb": [{"vendor": "1A86", "product": "7523"}]}]},
    "usb-serial": {
        "name": "key",
        "groups": [{"usb": [{"vendor": "1d50", "product": "F4", "serial": "a*b"}]}],
    },
    "renamed": {"name": "uart", "groups": [{"paths": [{"path": "/dev/ttyUSB0", "mountPath": "/dev/modem"}]}]},
    "into-directory": {
        "name": "uart", "groups": [{"paths": [{"path": "/dev/ttyUSB*", "mountPath": "/dev/serial/"}]}],
    },
    "mount": {
        "name": "licence",
        "groups": [{"paths": [{"path": "/etc/licence", "type": "Mount", "readOnly": True}]}],
    },
    "mounts": {
        "name": "models",
        "groups": [{"paths": [{"path": "/srv/models", "type": "Mount", "mountPath": "/models"}]}],
    },
    "node-and-mount": {
        "name": "card",
        "groups": [{"paths": [{"path": "/dev/video0"}, {"path": "/etc/licence", "type": "Mount"}]}],
    },
    "limit": {"name": "uart", "groups": [{"paths": [{"path": "/dev/ttyUSB*"}, {"path": "/dev/fuse", "limit": 2}]}]},
    "no-limit": {"name": "uart", "groups": [paths("/dev/ttyUSB*", "/dev/fuse")]},
    "negated": {"name": "uart", "groups": [paths("/dev/ttyUSB[^0]")]},
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_offers_the_same(name: str, tree: HostTree) -> None:
    device = EXAMPLES[name]
    text, errors = convert(json.dumps({"devices": [device], "domain": "a.org"}))
    (found,) = offered(text, tree).values()
    assert Counter(found) == Counter(expected(device, tree)), text
    assert "0 settings not carried over" in errors


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_device_of_single_paths_offers_the_same(tree: HostTree, data: st.DataObject) -> None:
    stems = data.draw(st.lists(st.sampled_from(["ttyUSB*", "ttyACM?", "video[01]", "net/tun", "nothing*"]), min_size=1, unique=True))  # fmt: skip
    access = {
        "mountPath": data.draw(st.sampled_from(["", "/dev/x", "/dev/$y/"])),
        "permissions": data.draw(st.sampled_from(["r", "rw", "mrw"])),
    }
    count = data.draw(st.integers(1, 3))
    groups = [{"paths": [{"path": f"/dev/{stem}", **access}], "count": count} for stem in stems]
    device = {"name": "some", "groups": groups}
    text, _ = convert(json.dumps({"devices": [device], "domain": "a.org"}))
    (found,) = offered(text, tree).values()
    assert Counter(found) == Counter(expected(device, tree)), text


DEVICE: Final = "name: fuse\ngroups:\n- paths:\n  - path: /dev/fuse\n"
SETTINGS: Final = {"devices": [yaml.safe_load(DEVICE)]}


def pods(*arguments: str, image: str = "") -> dict[str, Any]:
    container = {"image": image or "example.org/plugin:1", "args": [*arguments]}
    spec = {"template": {"spec": {"containers": [container]}}}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": spec}


def config_map(settings: Given) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "data": {"c.yaml": yaml.safe_dump(settings)}}


GENERIC: Final = "ghcr.io/squat/generic-device-plugin"


@pytest.mark.parametrize(
    ("documents", "name"),
    [
        ([{**SETTINGS, "domain": "a.org"}], "a.org/fuse"),
        ([{"device": SETTINGS["devices"], "domain": "a.org"}], "a.org/fuse"),
        ([{"kind": "Namespace"}, pods("--device", DEVICE, "--domain", "b.org")], "b.org/fuse"),
        ([pods("--domain=b.org", f"--device={json.dumps(SETTINGS['devices'][0])}")], "b.org/fuse"),
        ([pods("--device", DEVICE, image=f"{GENERIC}:0.1.0")], "squat.ai/fuse"),
        ([pods("--device", DEVICE, image=f"{GENERIC}:v0.2.0@sha256:12")], "devic.es/fuse"),
        ([config_map({**SETTINGS, "domain": "c.org"})], "c.org/fuse"),
        ([{"plugin": {"image": {"repository": GENERIC, "tag": "1.0"}, **SETTINGS}}], "devic.es/fuse"),
        # a domain is that of its own object
        (
            [{"kind": "List", "items": [config_map({"domain": "d.org"}), pods("--device", DEVICE, image=f"{GENERIC}:0.2.1")]}],
            "devic.es/fuse",
        ),
    ],
)  # fmt: skip
def test_settings_are_found_with_the_domain_of_their_object(
    documents: list[Any], name: str, tree: HostTree
) -> None:
    converted, _ = convert(yaml.safe_dump_all(documents))
    assert list(offered(converted, tree)) == [name]
    renamed, _ = convert(yaml.safe_dump_all(documents), "--domain", "e.org")
    assert list(offered(renamed, tree)) == ["e.org/fuse"]


@pytest.mark.parametrize("space", [" ", ""])  # without, it is a string to YAML
def test_a_command_line_is_read(tree: HostTree, space: str) -> None:
    groups = '{"name": "%s", "groups": [{"paths": [{"path": "/dev/%s"}]}]}'.replace(" ", space)
    options = [f"--device '{groups % (one, one)}' \\\n" for one in ("fuse", "tpm0")]
    text, _ = convert(f"docker run {GENERIC}:0.2.0 {''.join(options)} --log-level info")
    assert list(offered(text, tree)) == ["devic.es/fuse", "devic.es/tpm0"]


def test_without_a_domain_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "ds.yaml").write_text(yaml.safe_dump(pods("--device", DEVICE)))
    out = tmp_path / "out.yaml"
    result = CliRunner().invoke(main, ["convert", str(tmp_path / "ds.yaml"), "-o", str(out)])
    assert (result.exit_code, result.stdout, out.exists()) == (1, "", False)
    assert "nothing says in which domain fuse is: give it by --domain" in result.stderr


@pytest.mark.parametrize(
    ("device", "lost"),
    [
        ({"groups": [paths("/dev/fuse", count=10), paths("/dev/video0")]}, "`replicas` is the lowest"),
        ({"groups": [{"paths": [{"path": f"/dev/{one}", "mountPath": "/dev/x", "permissions": mode}]} for one, mode in (("tpm0", "r"), ("fuse", "rw"))]}, "paths with different mountPath, permissions"),
        ({"groups": [paths("/dev/fuse")], "color": "red"}, "color: Extra inputs"),
        ({"groups": [paths("/dev/video0"), paths("/dev/tpm0", "/dev/tpmrm0")]}, "several groups of several paths"),
        ({"groups": [paths("/dev/video*", "/srv/*")]}, "several globs in one group"),
        ({"groups": [{"usb": [{"vendor": "zz", "product": "1"}]}]}, "usb.0.vendor: String should match pattern"),
        ({"groups": [{"paths": [{"path": "/dev/fuse", "permissions": "rwx"}]}]}, "'rwx'"),
        ({"groups": [{"paths": [{"path": "/dev/fuse", "limit": [1]}]}]}, "limit: Input should be"),
        ({"groups": [{"count": 1}]}, "needs groups of paths alone"),
        ({"groups": [paths("fuse")]}, "path: String should match pattern '^/'"),
        ({"groups": [paths("/dev/fuse")]}, "a second resource"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_over_is_named(device: Given, lost: str, tree: HostTree) -> None:
    named = {"name": "x", **device}
    devices = [{"name": "first", "groups": [paths("/dev/net/tun")]}, named, named]
    given = json.dumps({"devices": devices, "domain": "a.org"})
    text, errors = convert(given, status=1)
    assert text.startswith("# Converted by")
    assert lost in errors
    assert "# Not carried over:" in text
    assert "a.org/first" in offered(text, tree)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image: {repository: squat/generic-device-plugin}", "no devices of generic-device-plugin"),
        ("[", "while parsing"),
        ("a: " + "[" * 600, "nested deeper"),
        ("", "no devices"),
    ],
)
def test_what_has_no_devices_is_an_error(text: str, message: str) -> None:
    result = CliRunner().invoke(main, ["convert", "-"], input=text)
    assert (result.exit_code, message in result.stderr) == (1, True), result.output


def test_a_file_is_not_overwritten_without_force(tmp_path: Path) -> None:
    target = tmp_path / "devhost.yaml"
    given = yaml.safe_dump({**SETTINGS, "domain": "a.org"})
    _, errors = convert(given, "-o", str(target))
    assert f"next: devhost plan {target}\n" in errors
    first = target.read_text()
    again = ["convert", "-", "-o", str(target), "--domain", "f.org"]
    result = CliRunner().invoke(main, again, input=given)
    assert (result.exit_code, "overwrite it with --force" in result.stderr) == (1, True)
    assert target.read_text() == first
    convert(given, *again[2:], "--force")
    assert "f.org/fuse" in target.read_text()
