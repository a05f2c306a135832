"""The list that a command prints: devices, or what is wrong with it, whatever it is."""

import functools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.discovery.listing import ListedDevice, ListingError, devices, parsed

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
_TEXTS = st.text(max_size=8) | st.sampled_from(["/dev/a", "/dev/b", "\ud800", "x\0", "a::1", ""])
_NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "id": _TEXTS | _VALUES,
        "path": _TEXTS | _VALUES,
        "paths": st.lists(_TEXTS | _VALUES, max_size=3) | _VALUES,
        "attributes": st.dictionaries(_TEXTS, _TEXTS | _VALUES, max_size=3) | _VALUES,
        "healthy": st.booleans() | _VALUES,
        "reason": _TEXTS | _VALUES,
        "numaNodes": st.lists(st.integers(-2, 1100) | _VALUES, max_size=3) | _VALUES,
        "x-own": _VALUES,
        "other": _VALUES,
    },
)


def listed(*some: dict[str, Any]) -> bytes:
    return json.dumps({"devices": some}).encode()


def test_a_whole_device() -> None:
    one = {
        "id": "card-7",
        "paths": ["/dev/acme7"],
        "attributes": {"model": "x2"},
        "healthy": True,
        "reason": None,
        "numaNodes": [0],
        "x-own": {"any": 1},
    }
    expected = ListedDevice("card-7", ("/dev/acme7",), (("model", "x2"),), numa=frozenset({0}))
    assert parsed(listed(one)) == (expected,)


def test_what_may_be_left_out() -> None:
    found = parsed(listed({"id": "a"}, {"id": "b", "path": "/dev/b"}))
    assert found == (ListedDevice("a"), ListedDevice("b", ("/dev/b",)))
    assert parsed(b'{"devices": [], "x-version": 2}') == ()


def test_an_unhealthy_device_says_why() -> None:
    (one,) = parsed(listed({"id": "a", "healthy": False, "reason": "too hot"}))
    assert one.problem == "too hot"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (b"", "its output is empty"),
        (b"no cards", "its output is not JSON: Expecting value at line 1 column 1"),
        (b'{"devices": []} {}', "its output is not JSON: Extra data"),
        (b"\xff", "its output is not UTF-8"),
        (b"[" * 100_000, "its output is nested too deeply"),
        (b'{"devices": [NaN]}', "NaN is no number"),
        (b"1" * 5000, "its output is not JSON"),
        (b"[]", "its output should be an object"),
        (b"{}", 'its output should be {"devices": […]}'),
        (b'{"devices": {}}', 'its output should be {"devices": […]}'),
        (b'{"device": []}', "unknown key 'device' (known: devices)"),
        (b'{"devices": [], "devices": []}', "the key 'devices' twice"),
        (b'{"devices": ["a"]}', "devices[0] should be an object"),
        (listed({}), "devices[0]: needs 'id'"),
        (listed({"id": 7}), "devices[0].id: should be text"),
        (listed({"id": ""}), "devices[0].id: a device ID must not be empty"),
        (listed({"id": "a", "Path": "/dev/a"}), "devices[0]: unknown key 'Path'"),
        (listed({"id": "a", "path": "dev/a"}), "is not an absolute path"),
        (listed({"id": "a", "path": "/dev/../a"}), "contains '..'"),
        (listed({"id": "a", "paths": "/dev/a"}), "devices[0].paths: should be a list"),
        (listed({"id": "a", "paths": [], "path": "/b"}), "has both 'path' and 'paths'"),
        (listed({"id": "a", "attributes": {"n": 1}}), "devices[0].attributes.n: should be text"),
        (listed({"id": "a", "attributes": {"n": "\ud800"}}), "is not UTF-8"),
        (listed({"id": "a", "healthy": "no"}), "healthy: should be true or false"),
        (listed({"id": "a", "healthy": False}), "is not healthy; needs 'reason'"),
        (listed({"id": "a", "numaNodes": [True]}), "numbers of NUMA nodes"),
        (listed({"id": "a", "numaNodes": [-1]}), "numbers of NUMA nodes"),
        (listed({"id": "a"}, {"id": "a"}), "the id 'a' twice"),
        (
            listed({"id": "a", "path": "/dev/a"}, {"id": "b", "path": "/dev/a"}),
            "the path '/dev/a' twice",
        ),
    ],
)
def test_what_is_wrong_is_said(output: bytes, message: str) -> None:
    with pytest.raises(ListingError) as raised:
        parsed(output)
    assert message in str(raised.value)


@given(value=_VALUES | st.fixed_dictionaries({"devices": st.lists(_NEARLY, max_size=3)}))
def test_any_value_is_devices_or_an_error(value: Any) -> None:
    """As a value and as text; devices have distinct IDs and absolute paths."""
    for read in (
        functools.partial(devices, value),
        functools.partial(parsed, json.dumps(value).encode()),
    ):
        try:
            found = read()
        except ListingError as error:
            assert str(error)
            continue
        assert len({one.id for one in found}) == len(found)
        assert all(path.startswith("/") for one in found for path in one.paths)
        assert all(one.problem is None or one.problem.isprintable() for one in found)


@given(output=st.binary(max_size=100))
def test_any_output_is_devices_or_an_error(output: bytes) -> None:
    try:
        parsed(output)
    except ListingError as error:
        assert str(error)
