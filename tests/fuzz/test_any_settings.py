"""Settings of other device plugins: all are read, or refused with a reason."""

from typing import Any, Final

import pytest
import yaml
from hypothesis import strategies as st

from devhost.drafts import conversion, draft
from devhost.loading.loader import loads
from devhost.loading.syntax import TreeError
from tests.fuzz.inputs import TOKENS
from tests.fuzz.running import bounded, fuzzed

pytestmark = pytest.mark.slow

TEXTS: Final = st.one_of(
    st.sampled_from(
        ["a", "/dev/a", "/dev/a*", "/dev/a+0", "/dev/b1", "/dev/b2", "/dev/x # y", "/dev/[a", "^a$",
         "^a|b$", "rw", "Mount", "1", "2", "0", "-1", "true", "0403", "a: b", "a\nb: c", "}", *TOKENS]
    ),
    st.text(max_size=8),
)  # fmt: skip


def some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return mappings with some of these keys, of which some have another value."""
    odd = st.one_of(TEXTS, st.none(), st.lists(TEXTS, max_size=2))
    return st.fixed_dictionaries(
        {}, optional={key: st.one_of(one, one, one, odd) for key, one in keys.items()}
    )


PATHS: Final = some(
    path=TEXTS, mountPath=TEXTS, permissions=TEXTS, readOnly=TEXTS, type=TEXTS, limit=TEXTS,
    optional=TEXTS,
)  # fmt: skip
USB: Final = some(vendor=TEXTS, product=TEXTS, serial=TEXTS)
GROUPS: Final = some(paths=st.lists(PATHS, max_size=3), usb=st.lists(USB, max_size=2), count=TEXTS)
GENERIC: Final = some(name=TEXTS, groups=st.lists(GROUPS, max_size=3))
SETTINGS: Final = st.fixed_dictionaries({"devices": st.lists(GENERIC, max_size=3), "domain": TEXTS})


@fuzzed(0.05, 150, settings=SETTINGS, inside=st.booleans())
def test_settings_of_other_plugins(settings: Any, *, inside: bool) -> None:
    """What is written is valid, and has the resources that it says."""
    text = yaml.safe_dump(settings, allow_unicode=True)
    if inside:
        text = yaml.safe_dump({"data": {"a": text}}, default_style="|")
    with bounded():
        try:
            found = conversion.found(text)
        except TreeError:
            return
        entries = conversion.converted(found, "example.com")
        text = draft.text(["From a # file\nnamed so."], entries)
        loaded = loads(text)
        assert loaded.config is not None, (loaded.problems, text)
        assert len(loaded.config.resources) == sum(bool(one.resource) for one in entries)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x,x]\n" + "".join(f"b{n}: &a [*a,*a,*a,*a]\n" for n in range(20)),
        "a: &a [*a, *a]",
        "[" * 100_000,
        "devices: [{name: a, groups: [{count: " + "9" * 5000 + "}]}]",
        "a: |\n" + "".join("  " * n + "groups: |\n" for n in range(1, 60)),
        "- {name: a, groups: []}\n" * 20_000,
        "devices:\n" + "- {name: a, groups: [{paths: [{path: /dev/a*}]}]}\n" * 15_000,
    ],
    ids=["aliases", "itself", "depth", "number", "texts", "devices", "same"],
)
def test_the_worst_settings(text: str) -> None:
    with bounded():
        try:
            found = conversion.found(text)
        except TreeError:
            return
        assert loads(draft.text((), conversion.converted(found, "example.com"))).config is not None
