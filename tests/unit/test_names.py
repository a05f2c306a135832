"""The name rules of Kubernetes, the container runtimes and CDI."""

import re
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
    "name",
    [
        "example.com/serial",
        "a/b",
        "myway5.com/cola",
        "example.com/UPPER",
        "example.com/a_b.c-D",
        "example.com/0",
        "kubernetes.io.example.com/a",
        "xrequests.com/a",
        "request.com/a",
        "a-b.c-d/e",
        pytest.param("a" * 244 + "/b", id="prefix of 244"),
        pytest.param("a.b/" + "c" * 63, id="suffix of 63"),
    ],
)
def test_legal_resource_names(name: str) -> None:
    """What the kubelet takes for an extended resource is legal."""
    assert names.resource_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("serial", "example.com/serial"),
        ("", "no domain"),
        ("/serial", "example.com/serial"),
        ("kubernetes.io/a", "reserved"),
        ("mykubernetes.io/a", "reserved"),
        ("requests.example.com/a", "reserved"),
        ("a/b/c", "domain/name"),
        ("example.com/", "domain/name"),
        ("Example.com/a", "domain/name"),
        ("example..com/a", "domain/name"),
        ("-a.com/a", "domain/name"),
        ("a.com/a.", "domain/name"),
        ("a.com/é", "domain/name"),
        ("a.com/a\n", "domain/name"),
        pytest.param("a" * 245 + "/b", "at most 244", id="prefix of 245"),
        pytest.param("a.b/" + "c" * 64, "at most 63", id="suffix of 64"),
    ],
)
def test_illegal_resource_names(name: str, says: str) -> None:
    """What the kubelet refuses is refused, with the reason."""
    assert says in (names.resource_name_problem(name) or "")


@given(NEARLY_NAMES)
@example("mykubernetes.io/a")
@example("requests.a/a")
@example("a" * 244 + "/b")
@example("a" * 245 + "/b")
@example("a.b/" + "c" * 64)
def test_the_schema_pattern_is_the_rule(name: str) -> None:
    """The pattern of the JSON Schema matches exactly the names that have no problem."""
    matches = re.search(names.RESOURCE_NAME_PATTERN, name) is not None
    assert matches == (names.resource_name_problem(name) is None)


@pytest.mark.parametrize("name", ["A", "_", "a1", "COLA_DEVICES", "lower_case"])
def test_legal_environment_names(name: str) -> None:
    """Letters, digits and '_' name an environment variable."""
    assert names.env_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("", "'_'"),
        ("1A", "'_1A'"),
        ("A-B", "'A_B'"),
        ("A=B", "'A_B'"),
        ("É", "'_'"),
        ("A\n", "'A_'"),
    ],
)
def test_illegal_environment_names_get_a_suggestion(name: str, suggestion: str) -> None:
    """A name that no shell takes is refused, with one that it would take."""
    problem = names.env_name_problem(name)
    assert problem is not None
    assert problem.endswith(f"such as {suggestion}")
    assert names.env_name_problem(suggestion.strip("'")) is None


@pytest.mark.parametrize(
    "key",
    ["a", "example.com/a", "A_b.c", "k8s.io/a", pytest.param("a.b/" + "c" * 63, id="name of 63")],
)
def test_legal_annotation_keys(key: str) -> None:
    """A qualified name is an annotation key."""
    assert names.annotation_key_problem(key) is None


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("", "not an annotation key"),
        ("a b", "not an annotation key"),
        ("example.com/", "not an annotation key"),
        ("-a", "not an annotation key"),
        ("/a", "a domain in lower case"),
        ("a/b/c", "a domain in lower case"),
        ("Example.com/a", "a domain in lower case"),
        pytest.param("a.b/" + "c" * 64, "at most 63 characters", id="name of 64"),
        ("cdi.k8s.io/x", "control the runtime"),
        ("io.kubernetes.cri.a", "control the runtime"),
        ("io.katacontainers.config/x", "control the runtime"),
    ],
)
def test_illegal_annotation_keys(key: str, says: str) -> None:
    """What is no qualified name, or steers the runtime, is refused."""
    assert says in (names.annotation_key_problem(key) or "")


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("vendor.com/class=device", True),
        ("nvidia.com/gpu=0", True),
        ("v/c=a:b.c", True),
        ("v_a/c-b=all", True),
        ("vendor.com/class", False),
        ("class=device", False),
        ("1v/c=d", False),
        ("v-/c=d", False),
        ("v/c=", False),
        ("v/c=d:", False),
        ("v/c=d\n", False),
        ("v/c/e=d", False),
        ("v/c=d=e", False),
    ],
)
def test_cdi_names(name: str, legal: bool) -> None:
    """A CDI name is vendor/class=device, by the grammar of CDI's own parser."""
    assert (names.cdi_name_problem(name) is None) == legal


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/", None),
        ("/dev/a b", None),
        ("/dev/..a/b..", None),
        ("/dev/é", None),
        ("", "not an absolute path"),
        ("dev/a", "not an absolute path"),
        ("/dev/../etc", "'..'"),
        ("/..", "'..'"),
        ("/a\nb", "control character"),
        ("/a\x00b", "control character"),
        ("/a\x7f", "control character"),
        ("/a\udcff", "no UTF-8"),
    ],
)
def test_paths(path: str, says: str | None) -> None:
    """A path is absolute, without '..' and printable."""
    problem = names.path_problem(path)
    assert problem is None if says is None else says in (problem or "")


@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ("", True),
        ("a\tb\nc", True),
        ("é", True),
        ("\x00", False),
        ("\x1b", False),
        ("\udc80", False),
    ],
)
def test_texts(text: str, legal: bool) -> None:
    """A value may hold tabs and line ends, but nothing else that is unprintable."""
    assert (names.text_problem(text) is None) == legal


@given(st.text(max_size=63))
def test_a_short_name_is_its_own_device_id(name: str) -> None:
    """Up to 63 characters the device ID is the name."""
    assert names.device_id(name) == name


@given(st.text(min_size=64, max_size=200))
def test_a_long_name_is_shortened_to_a_readable_prefix(name: str) -> None:
    """A longer name becomes 63 characters that begin as the name does, always the same."""
    device_id = names.device_id(name)
    assert len(device_id) == names.DEVICE_ID_MAX == 63
    assert device_id[:52] == name[:52]
    assert device_id == names.device_id(name)


@given(st.lists(st.text(alphabet="ab", min_size=60, max_size=70), unique=True))
def test_long_names_keep_distinct_ids(long_names: list[str]) -> None:
    """Names that differ only beyond the 63rd character have different IDs."""
    prefixed = ["x" * 60 + name for name in long_names]
    assert len({names.device_id(name) for name in prefixed}) == len(prefixed)


def test_a_name_that_is_not_utf8_has_an_id() -> None:
    """A long file name of undecodable bytes is hashed, not a crash."""
    assert len(names.device_id("\udcff" * 100)) == 63


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
def test_natural_order(given_order: list[str], natural_order: list[str]) -> None:
    """Numbers in names are compared as numbers, ties by the text itself."""
    assert names.natural(given_order) == natural_order


@given(st.lists(st.text(alphabet="a01.²", max_size=6)), st.randoms())
def test_natural_order_is_total(texts: list[str], random: object) -> None:
    """The order depends on the texts only, not on how they came."""
    shuffled = list(texts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert names.natural(shuffled) == names.natural(texts)
    assert sorted(names.natural(texts)) == sorted(texts)
