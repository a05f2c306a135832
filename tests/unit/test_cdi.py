"""CDI names, and the file that runtimes read; tests/host/test_cdi_oracle.py asks their library."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from devhost.allocation import cdi
from devhost.allocation.cdi import CdiDevice
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.hostfs.files import HostFiles
from devhost.model import names
from devhost.model.allocation import Allocation, DeviceSpec, MountSpec
from devhost.model.device import FileKind, FileState

T = "example.com/serial"

RESOURCE_NAMES = st.builds(
    "{}/{}".format,
    st.sampled_from(("example.com", "a", "a.b", "devhost.a", "0.1")),
    st.from_regex(r"\A([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]\Z"),
)
# Half of the texts are nearly device names; among the rest is what is not even UTF-8.
DEVICE_IDS = st.one_of(
    st.text(alphabet="aZ0-_.:@/ é", min_size=1, max_size=63),
    st.text(st.characters(codec=None), min_size=1, max_size=63),
)


# ── names ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("resource", "kind"),
    [
        ("example.com/serial", "devhost.example.com/serial"),
        ("example.com/UP_per-1", "devhost.example.com/UP_per-1"),
        ("0.1/a", "devhost.0.1/a"),
        ("example.com/gpu.shared", "devhost.example.com/gpu_shared-2afd0da457"),
        ("example.com/3090", "devhost.example.com/r3090-e1ff7d9997"),
    ],
)
def test_cdi_kind_is_as_near_to_the_resource_as_cdi_allows(resource: str, kind: str) -> None:
    assert cdi.kind(resource) == kind


@pytest.mark.parametrize(
    ("device_id", "name"),
    [
        ("ttyUSB0", "ttyUSB0"),
        ("0", "0"),
        ("1-1.4:1.0", "1-1.4:1.0"),
        ("usb@1:2", "usb_1:2-18fb2972b4"),
        ("_x_", "x_-f1f6bd62c1"),
        ("@@", "d-3330e5ba53"),
    ],
)
def test_cdi_device_name_is_the_id_where_that_is_legal(device_id: str, name: str) -> None:
    assert cdi.device_name(device_id) == name


@given(RESOURCE_NAMES, DEVICE_IDS)
@example("a/0.0", "-")
def test_cdi_names_are_always_legal(resource: str, device_id: str) -> None:
    assert names.resource_name_problem(resource) is None
    qualified = cdi.qualified_name(resource, cdi.device_name(device_id))
    assert names.cdi_name_problem(qualified) is None
    assert "." not in cdi.kind(resource).partition("/")[2]


@given(st.sets(DEVICE_IDS, min_size=2))
def test_cdi_device_names_are_distinct(ids: set[str]) -> None:
    ids |= {cdi.device_name(one) for one in ids}  # IDs that are the names made for others
    assert len({cdi.device_name(one) for one in ids}) == len(ids)


@given(st.sets(RESOURCE_NAMES, min_size=2))
def test_cdi_kinds_and_file_names_are_distinct(resources: set[str]) -> None:
    made = {cdi.kind(one) for one in resources}
    resources |= {kind.removeprefix(cdi.VENDOR_PREFIX) for kind in made}
    assert len({cdi.kind(one) for one in resources}) == len(resources)
    assert len({cdi.file_name(one) for one in resources}) == len(resources)


@given(RESOURCE_NAMES)
@example("a" * 244 + "/" + "b" * 63)
def test_cdi_file_name_fits_and_has_the_hash_of_its_resource(resource: str) -> None:
    name = cdi.file_name(resource)
    assert len(name) <= 255
    assert "/" not in name
    assert name.endswith(".json")
    assert hashlib.sha256(resource.encode()).hexdigest()[:16] in name


# ── the file ───────────────────────────────────────────────────────────────────────────


def test_cdi_spec_of_a_whole_allocation() -> None:
    host_paths = HostPaths(HostFiles("/nowhere"), Policy())
    for path, kind, number in (
        ("/dev/z", FileKind.BLOCK, (8, 0)),
        ("/dev/ttyUSB0", FileKind.CHAR, (188, 0)),
    ):
        host_paths.known(path, FileState(path, kind, number, (0, 0, 0), mode=0o600))
    whole = Allocation(
        devices=(
            DeviceSpec("/dev/z", "/dev/z", "rw"),
            DeviceSpec("/dev/ttyUSB0", "/dev/u", "rwm", uid=0, gid=20, mode=0o660),
        ),
        mounts=(
            MountSpec("/host/b", "/b", read_only=False),
            MountSpec("/host/a", "/a", read_only=True),
        ),
        envs={"Z": "1", "A": "x=y"},
    )
    device = CdiDevice("u0", cdi.edits(whole, host_paths))
    assert cdi.serialize(T, [device]) == Path(__file__).with_name("cdi.json").read_bytes()


def test_cdi_device_without_edits_has_no_entry_and_no_file() -> None:
    content = cdi.spec(T, [CdiDevice("a"), CdiDevice("b", {"env": ["A=1"]})])
    assert content is not None
    assert [entry["name"] for entry in content["devices"]] == ["b"]  # type: ignore[attr-defined]
    assert cdi.serialize(T, [CdiDevice("a")]) is None
