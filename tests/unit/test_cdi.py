"""CDI names, and the file that runtimes read; tests/host/test_cdi_oracle.py asks their library."""

import re
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from devhost.allocation import cdi
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.hostfs.files import HostFiles
from devhost.model import names
from devhost.model.allocation import Allocation, DeviceSpec, MountSpec
from devhost.model.device_node import FileKind
from tests.support.devices import file_state

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


@given(RESOURCE_NAMES, DEVICE_IDS)
@example("a/3.0", "-")
def test_cdi_names_are_always_legal(resource: str, device_id: str) -> None:
    assert names.cdi_name_problem(cdi.qualified_name(resource, device_id)) is None
    assert "." not in cdi.kind(resource).partition("/")[2]
    assert cdi.kind(resource).startswith(f"devhost.{resource.partition('/')[0]}/")
    assert re.fullmatch(r"devhost_[A-Za-z0-9_-]{,200}\.json", cdi.file_name(resource))


@given(st.sets(RESOURCE_NAMES, min_size=2), st.sets(DEVICE_IDS, min_size=2))
@example({"a/b.c", "a/b_c"}, {"a", "a-ca978112ca1b"})
def test_cdi_names_are_distinct(resources: set[str], ids: set[str]) -> None:
    """Two files of one kind, or two devices of one name, are none for a runtime."""
    assert len({cdi.kind(name) for name in resources}) == len(resources)
    assert len({cdi.file_name(name) for name in resources}) == len(resources)
    assert len({cdi.qualified_name(T, name) for name in ids}) == len(ids)


def test_cdi_spec_of_a_whole_allocation() -> None:
    host_paths = HostPaths(HostFiles("/nowhere"), Policy())
    for path, kind, number in (
        ("/dev/z", FileKind.BLOCK, (8, 0)),
        ("/dev/ttyUSB0", FileKind.CHAR, (188, 0)),
    ):
        host_paths.remember(path, file_state(path, kind, number, mode=0o600))
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
    assert (
        cdi.serialize(T, {"u0": cdi.edits(whole, host_paths)})
        == Path(__file__).with_name("cdi.json").read_bytes()
    )
