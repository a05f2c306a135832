"""The name rules of Kubernetes, the container runtimes and CDI; their messages: golden/values.txt."""

import re
import tracemalloc
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from devhost.model import names

# A text that is often a resource name, or nearly one.
NEARLY_NAMES: Final = st.one_of(
    st.text(alphabet="aZ0.-_/", max_size=12),
    st.builds(
        "{}{}{}".format,
        st.sampled_from(("", "requests.", "a.", "kubernetes.io", "x", "-")),
        st.sampled_from(("", "/", "//")),
        st.sampled_from(("", "a", "A_b", "kubernetes.io", "kubernetes.io/a", "b.", "a" * 64)),
    ),
)


@pytest.mark.parametrize(
    ("problem", "legal", "illegal"),
    [
        (
            names.resource_name_problem,
            [
                *("a/b", "example.com/UPPER", "example.com/a_b.c-D", "example.com/0", "a-b.c-d/e"),
                *("kubernetes.io.example.com/a", "xrequests.com/a", "request.com/a"),
                *("a" * 244 + "/b", "a.b/" + "c" * 63),
            ],
            [
                *("", "serial", "/serial", "a/b/c", "example.com/", "Example.com/a", "-a.com/a"),
                *("example..com/a", "a.com/a.", "a.com/é", "a.com/a\n"),
                *("kubernetes.io/a", "mykubernetes.io/a", "requests.example.com/a"),
                *("a" * 245 + "/b", "a.b/" + "c" * 64),
            ],
        ),
        (names.env_name_problem, ["A", "_", "a1", "lower_case"], ["", "1A", "A-B", "A=B", "É", "A\n"]),
        (
            names.annotation_key_problem,
            ["a", "example.com/a", "A_b.c", "k8s.io/a", "a.b/" + "c" * 63],
            [
                *("", "a b", "example.com/", "-a", "/a", "a/b/c", "Example.com/a", "a.b/" + "c" * 64),
                *("cdi.k8s.io/x", "io.kubernetes.cri.a", "io.katacontainers.config/x", "bundle"),
            ],
        ),
        (
            names.cdi_name_problem,
            ["vendor.com/class=device", "nvidia.com/gpu=0", "v/c=a:b.c", "v_a/c-b=all"],
            [
                *("vendor.com/class", "class=device", "1v/c=d", "v-/c=d", "v/c=", "v/c=d:"),
                *("v/c=d\n", "v/c/e=d", "v/c=d=e"),
            ],
        ),
        (
            names.path_problem,
            ["/", "/dev/a b", "/dev/..a/b..", "/dev/é"],
            ["", "dev/a", "/dev/../etc", "/..", "/a\nb", "/a\x00b", "/a\x7f", "/a\udcff"],
        ),
        (names.text_problem, ["", "a\tb\nc", "é"], ["\x00", "\x1b", "\udc80"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)  # fmt: skip
def test_name_is_legal_or_not(
    problem: Callable[[str], str | None], legal: list[str], illegal: list[str]
) -> None:
    assert [name for name in legal if problem(name)] == []
    assert [name for name in illegal if not problem(name)] == []


@given(NEARLY_NAMES)
@example("mykubernetes.io/a")
@example("requests.a/a")
@example("a" * 244 + "/b")
@example("a" * 245 + "/b")
@example("a.b/" + "c" * 64)
def test_resource_name_pattern_of_schema_is_the_rule(name: str) -> None:
    matches = re.search(names.RESOURCE_NAME_PATTERN, name) is not None
    matches = matches and re.search(names.UNFIT_NAME_PATTERN, name) is None
    assert matches == (names.resource_name_problem(name) is None)


@given(st.text(max_size=63))
def test_device_id_of_short_name_is_the_name(name: str) -> None:
    assert names.device_id(name) == name


@given(st.lists(st.text(alphabet="ab\udcff", min_size=4, max_size=70), unique=True))
def test_device_ids_of_long_names_are_distinct_and_readable(ends: list[str]) -> None:
    ids = [names.device_id("x" * 60 + end) for end in ends]
    assert len(set(ids)) == len(ids)
    assert all(len(i) == names.DEVICE_ID_MAX == 63 and i.startswith("x" * 52) for i in ids)


@pytest.mark.parametrize(
    ("given_order", "natural_order"),
    [
        (["c10", "c9", "c1"], ["c1", "c9", "c10"]),
        (["b", "a10b2", "a10b10", "a9"], ["a9", "a10b2", "a10b10", "b"]),
        (["a01", "a1", "a001"], ["a001", "a01", "a1"]),
        (["a", "10", "9", ""], ["", "9", "10", "a"]),
        (["c٣", "c2", "c²"], ["c2", "c²", "c٣"]),
        (["c1", "c", "c-1"], ["c", "c1", "c-1"]),
        (
            ["0000:0a:00.0", "10000:01:00.0", "0000:1f.3", "0000:02:00.0", "0000:00:1f.3"],
            ["0000:1f.3", "0000:00:1f.3", "0000:02:00.0", "0000:0a:00.0", "10000:01:00.0"],
        ),
        (
            ["pci-0000:0a:00.0-usbv2-0:10", "pci-0000:09:00.0", "pci-0000:0a:00.0-usbv2-0:9"],
            ["pci-0000:09:00.0", "pci-0000:0a:00.0-usbv2-0:9", "pci-0000:0a:00.0-usbv2-0:10"],
        ),
    ],
)
def test_natural_order_is_by_numbers(given_order: list[str], natural_order: list[str]) -> None:
    assert names.natural(given_order) == natural_order


@given(st.lists(st.text(alphabet="a01.²", max_size=6)), st.randoms())
def test_natural_order_of_any_order_is_the_same(texts: list[str], random: object) -> None:
    shuffled = list(texts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert names.natural(shuffled) == names.natural(texts)
    assert sorted(names.natural(texts)) == sorted(texts)


def test_sorting_long_names_keeps_no_memory() -> None:
    """Paths of 4096 bytes, of ever new files of a tenant, would fill the memory of the process."""
    long = [f"{number}{'x' * 4_000}" for number in range(3_000)]
    names.natural(long)
    tracemalloc.start()
    try:
        names.natural(f"{name}y" for name in long)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000
