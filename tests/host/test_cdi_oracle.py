"""devhost's CDI files, as the library that runtimes use reads them."""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from devhost.allocation import cdi
from devhost.allocation.cdi import Edits
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.hostfs.files import HostFiles
from devhost.model.allocation import Allocation, DeviceSpec, MountSpec
from devhost.node.cdi_files import CdiFiles
from tests.support import cdiverify
from tests.support.root import needs_root

pytestmark = pytest.mark.program("cdiverify")

T = "example.com/serial"
USER = 1000
PRIVATE = ("rbind", "rprivate")


def node(host: str | Path, container: str | None = None, **settings: Any) -> DeviceSpec:
    return DeviceSpec(str(host), container or str(host), **{"permissions": "rw", **settings})


def brings(*nodes: DeviceSpec, **options: Any) -> Edits:
    host_paths = HostPaths(HostFiles(), Policy())
    return cdi.edits(Allocation(devices=nodes, **options), host_paths)


async def injected(
    directory: Path,
    devices: Mapping[str, Edits],
    *wanted: str,
    resource: str = T,
    user: int = USER,
    env: Sequence[str] = (),
) -> Any:
    """Write a spec, inject devices of it (all, unless some are wanted), and return it all."""
    CdiFiles(directory).write(cdi.file_name(resource), cdi.serialize(resource, devices))
    qualified = [cdi.qualified_name(resource, key) for key in wanted or devices]
    answer = cdiverify.inject(directory, qualified, user, env)
    assert answer["errors"] == {}
    assert not answer["unresolved"]
    [spec] = answer["specs"]
    assert spec["version"] == "0.5.0" >= spec["minimum"]
    assert spec["kind"] == cdi.kind(resource)
    assert len(spec["devices"]) == len(devices)
    return answer["oci"]


async def test_cdi_spec_gives_what_a_device_plugin_would(tmp_path: Path) -> None:
    """A container gets what is of its devices, and once what they share."""
    inner = MountSpec("/host/inner", "/data/inner", read_only=False)
    outer = MountSpec("/host/outer", "/data", read_only=True)
    zero = node("/dev/zero")
    devices = {
        "null": brings(node("/dev/null"), zero, envs={"NULL": "1", "A": "device"}),
        "full": brings(node("/dev/full"), zero, envs={"FULL": "1"}, mounts=[inner, outer]),
    }
    oci = await injected(tmp_path, devices, env=["A=pod", "B=pod"])
    assert oci["process"]["env"] == ["A=device", "B=pod", "NULL=1", "FULL=1"]
    assert [
        (node["path"], node["type"], node["major"], node["minor"], node["uid"], node["gid"])
        for node in oci["linux"]["devices"]
    ] == [
        (f"/dev/{name}", "c", 1, n, USER, USER)
        for name, n in (("null", 3), ("full", 7), ("zero", 5))
    ]
    null = {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rw"}
    assert oci["linux"]["resources"]["devices"][0] == null
    bind = {"type": "bind"}
    assert oci["mounts"] == [
        bind | {"destination": "/data", "source": "/host/outer", "options": [*PRIVATE, "ro"]},
        bind | {"destination": "/data/inner", "source": "/host/inner", "options": [*PRIVATE, "rw"]},
    ]
    oci = await injected(tmp_path, devices, "null", user=0)
    assert [node["path"] for node in oci["linux"]["devices"]] == ["/dev/null", "/dev/zero"]
    assert "uid" not in oci["linux"]["devices"][0], "root keeps the host's owner"
    assert sorted(oci["process"]["env"]) == ["A=device", "NULL=1"]


@needs_root
@pytest.mark.parametrize(("kind", "letter"), [(stat.S_IFCHR, "c"), (stat.S_IFBLK, "b")])
@pytest.mark.parametrize("declared", [{"uid": 0, "gid": 20, "mode": 0o660}, {}])
async def test_cdi_spec_gives_a_node_another_name_owner_and_mode_where_that_is_declared(
    tmp_path: Path, kind: int, letter: str, declared: dict[str, int]
) -> None:
    """Without a declared mode the node has its own, not that of its namesake."""
    made = tmp_path / "made"
    os.mknod(made, 0o600 | kind, os.makedev(240, 7))
    device = node(made, "/dev/null", permissions="rwm", **declared)
    oci = await injected(tmp_path / "cdi", {"it": brings(device)})
    expected = {"type": letter, "major": 240, "minor": 7}
    (entry,) = oci["linux"]["devices"]
    rights = {key: declared.get(key, USER) for key in ("uid", "gid")}
    rights["fileMode"] = declared.get("mode", 0o600)
    assert entry == {**expected, **rights, "path": "/dev/null"}
    assert oci["linux"]["resources"]["devices"] == [expected | {"allow": True, "access": "rwm"}]


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
async def test_cdi_spec_brings_any_text_unchanged(tmp_path: Path, value: str) -> None:
    oci = await injected(tmp_path, {"a": brings(envs={"A": value})})
    assert oci["process"]["env"] == [f"A={value}"]


@pytest.mark.parametrize(
    ("resource", "device_id"),
    [
        *((T, key) for key in ("0000:00:1f.2", "1-1.4:1.0", "usb@1:2", "_", "a b", "é", "a" * 63)),
        *((f"0.example.com/{name}", "a") for name in ("gpu.shared", "3090", "G_x-1", "a" * 63)),
    ],
)
async def test_cdi_spec_takes_any_id(tmp_path: Path, resource: str, device_id: str) -> None:
    oci = await injected(tmp_path, {device_id: brings(node("/dev/null"))}, resource=resource)
    assert len(oci["linux"]["devices"]) == 1
