"""What runtimes make of our CDI files, told by the library that they use."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from devhost.allocation import cdi
from devhost.allocation.cdi import CdiDevice
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.host.cdi import CdiFiles
from devhost.hostfs.files import HostFiles
from devhost.model.allocation import Allocation, DeviceSpec, MountSpec
from tests.support import cdiverify
from tests.support.root import needs_root

# The first test to need it may have to build the program.
pytestmark = pytest.mark.timeout(600)

T = "example.com/serial"
USER = 1000


def node(host: str | Path, container: str | None = None, **settings: Any) -> DeviceSpec:
    return DeviceSpec(str(host), container or str(host), **{"permissions": "rw", **settings})


def device(name: str, *nodes: DeviceSpec, **more: Any) -> CdiDevice:
    """A device that brings nodes of this machine, mounts and variables."""
    host_paths = HostPaths(HostFiles(), Policy())
    return CdiDevice(name, cdi.edits(Allocation(devices=nodes, **more), host_paths))


async def injected(
    directory: Path,
    devices: Sequence[CdiDevice],
    *wanted: str,
    resource: str = T,
    user: int = USER,
    env: Sequence[str] = (),
) -> Any:
    """Write a spec, inject devices of it (all, unless some are wanted), and return it all."""
    CdiFiles(directory).write(resource, cdi.serialize(resource, devices))
    names = wanted or [device.name for device in devices]
    qualified = [cdi.qualified_name(resource, name) for name in names]
    answer = cdiverify.inject(directory, qualified, user, env)
    assert answer["errors"] == {}
    assert not answer["unresolved"]
    [spec] = answer["specs"]
    assert spec["version"] == "0.5.0" >= spec["minimum"]
    assert spec["kind"] == cdi.kind(resource)
    assert spec["devices"] == sorted(device.name for device in devices)
    return answer["oci"]


async def test_nodes_have_their_numbers_and_the_container_s_user(tmp_path: Path) -> None:
    devices = [device("null", node("/dev/null")), device("full", node("/dev/full"))]
    oci = await injected(tmp_path, devices)
    null, full = oci["linux"]["devices"]
    assert (null["path"], null["type"], null["major"], null["minor"]) == ("/dev/null", "c", 1, 3)
    assert (full["path"], full["type"], full["major"], full["minor"]) == ("/dev/full", "c", 1, 7)
    assert {(one["uid"], one["gid"]) for one in (null, full)} == {(USER, USER)}
    assert oci["linux"]["resources"]["devices"] == [
        {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"},
        {"allow": True, "type": "c", "major": 1, "minor": 7, "access": "rw"},
    ]


async def test_a_container_gets_only_what_it_was_given(tmp_path: Path) -> None:
    devices = [
        device("null", node("/dev/null"), envs={"NULL": "1"}),
        device("full", node("/dev/full"), envs={"FULL": "1"}),
    ]
    oci = await injected(tmp_path, devices, "full")
    assert [one["path"] for one in oci["linux"]["devices"]] == ["/dev/full"]
    assert oci["process"]["env"] == ["FULL=1"]


@needs_root
@pytest.mark.parametrize(("kind", "letter"), [(stat.S_IFCHR, "c"), (stat.S_IFBLK, "b")])
async def test_a_node_may_have_another_name_owner_and_mode(
    tmp_path: Path, kind: int, letter: str
) -> None:
    made = tmp_path / "made"
    os.mknod(made, 0o600 | kind, os.makedev(240, 7))
    asked = node(made, "/dev/it", permissions="rwm", uid=0, gid=20, mode=0o660)
    oci = await injected(tmp_path / "cdi", [device("it", asked)])
    assert oci["linux"]["devices"] == [
        {
            "path": "/dev/it",
            "type": letter,
            "major": 240,
            "minor": 7,
            "fileMode": 0o660,
            "uid": 0,
            "gid": 20,
        }
    ]
    assert oci["linux"]["resources"]["devices"] == [
        {"allow": True, "type": letter, "major": 240, "minor": 7, "access": "rwm"}
    ]


@needs_root
async def test_without_a_mode_the_node_s_own_is_taken_not_that_of_its_namesake(
    tmp_path: Path,
) -> None:
    made = tmp_path / "made"
    os.mknod(made, 0o600 | stat.S_IFCHR, os.makedev(240, 0))
    oci = await injected(tmp_path / "cdi", [device("it", node(made, "/dev/null"))])
    [found] = oci["linux"]["devices"]
    assert found["fileMode"] == 0o600
    assert (found["major"], found.get("minor", 0)) == (240, 0)


async def test_the_root_of_a_container_keeps_the_host_s_owner(tmp_path: Path) -> None:
    oci = await injected(tmp_path, [device("null", node("/dev/null"))], user=0)
    [made] = oci["linux"]["devices"]
    assert "uid" not in made


async def test_mounts_are_as_those_of_a_device_plugin(tmp_path: Path) -> None:
    mounts = [
        MountSpec("/host/inner", "/data/inner", read_only=False),
        MountSpec("/host/outer", "/data", read_only=True),
    ]
    oci = await injected(tmp_path, [device("a", mounts=mounts)])
    assert oci["mounts"] == [
        {
            "destination": "/data",
            "type": "bind",
            "source": "/host/outer",
            "options": ["rbind", "rprivate", "ro"],
        },
        {
            "destination": "/data/inner",
            "type": "bind",
            "source": "/host/inner",
            "options": ["rbind", "rprivate", "rw"],
        },
    ]


async def test_what_two_devices_share_is_there_once(tmp_path: Path) -> None:
    shared: dict[str, Any] = {
        "mounts": [MountSpec("/host", "/it", read_only=True)],
        "envs": {"SHARED": "1"},
    }
    oci = await injected(tmp_path, [device(name, node("/dev/null"), **shared) for name in "ab"])
    assert len(oci["linux"]["devices"]) == 1
    assert len(oci["mounts"]) == 1
    assert oci["process"]["env"] == ["SHARED=1"]


async def test_a_variable_wins_over_the_pod_s_own(tmp_path: Path) -> None:
    """With this library; before v1.1.1 the container had both."""
    one = device("a", envs={"A": "device"})
    oci = await injected(tmp_path, [one], env=["A=pod", "B=pod"])
    assert oci["process"]["env"] == ["A=device", "B=pod"]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a=b",
        "a: b # no comment",
        "tab\tand\nlines\n",
        "\\ \" ' / \\u0041",
        "é \x7f \x85 \xa0 \u2028 \ufeff \ufffd \U0001f600",
        "long " * 5000,
    ],
    ids=["empty", "equals", "yaml", "lines", "quotes", "unicode", "long"],
)
async def test_any_text_arrives(tmp_path: Path, value: str) -> None:
    oci = await injected(tmp_path, [device("a", envs={"A": value})])
    assert oci["process"]["env"] == [f"A={value}"]


@pytest.mark.parametrize(
    "device_id",
    ["0", "0000:00:1f.2", "1-1.4:1.0", "usb@1:2", "_", "a b", "é", "a-0123456789", "a" * 63],
)
async def test_any_id_gives_a_name_that_is_found(tmp_path: Path, device_id: str) -> None:
    one = device(cdi.device_name(device_id), node("/dev/null"))
    oci = await injected(tmp_path, [one])
    assert len(oci["linux"]["devices"]) == 1


@pytest.mark.parametrize("name", ["gpu", "gpu.shared", "3090", "0.0", "G_x-1", "a" * 63])
async def test_any_resource_gives_a_kind_that_is_found(tmp_path: Path, name: str) -> None:
    resource = f"0.example.com/{name}"
    await injected(tmp_path, [device("a", node("/dev/null"))], resource=resource)


async def test_the_library_ignores_an_unfinished_file(tmp_path: Path) -> None:
    (tmp_path / f".devhost_{cdi.resource_hash(T)}.abc.tmp").write_text("{")
    await injected(tmp_path, [device("null", node("/dev/null"))])


def test_the_oracle_does_find_fault(tmp_path: Path) -> None:
    """Else the tests above would prove nothing."""
    one = device("a", node("/dev/null"))
    content = cdi.serialize(T, [one])
    assert content is not None
    (tmp_path / "a.json").write_bytes(content.replace(b'"type"', b'"typo"'))
    answer = cdiverify.inject(tmp_path, [cdi.qualified_name(T, "a")])
    assert "typo" in answer["errors"][str(tmp_path / "a.json")][0]
    assert answer["unresolved"] == [cdi.qualified_name(T, "a")]
