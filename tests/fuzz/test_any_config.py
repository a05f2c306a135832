"""Whatever a file holds: a configuration or problems, never a traceback, in bounded time."""

import json
from typing import Any, Final

import pytest
from hypothesis import strategies as st

from devhost.allocation.policy import Policy
from devhost.loading.loader import load, loads
from devhost.model import pattern
from devhost.model.pattern import PatternError
from devhost.model.template import MissingVariableError, Template, TemplateError
from tests.fuzz import inputs
from tests.fuzz.judge import FILE, judge
from tests.fuzz.running import bounded, fuzzed

pytestmark = pytest.mark.slow

POLICIES: Final = st.sampled_from(
    [Policy(), Policy(enforced=True), Policy(("/opt/*", "/dev/*"), enforced=True)]
)


@fuzzed(
    0.05,
    300,
    content=st.one_of(st.binary(), st.binary(min_size=200, max_size=4000)),
    policy=POLICIES,
)
def test_any_bytes(content: bytes, policy: Policy) -> None:
    """Bytes without any sense."""
    FILE.write_bytes(content)
    with bounded():
        judge(load(str(FILE), policy), content.decode("utf-8-sig", "replace"))


@fuzzed(0.1, 500, content=inputs.MUTATED, policy=POLICIES)
def test_mutated_files(content: bytes, policy: Policy) -> None:
    """Real configurations with pieces changed, repeated, left out, put in."""
    FILE.write_bytes(content)
    with bounded():
        judge(load(str(FILE), policy), content.decode("utf-8-sig", "replace"))


@fuzzed(0.05, 400, text=st.one_of(inputs.SOUP, st.text()))
def test_any_text(text: str) -> None:
    """Texts, mostly of what means something to YAML."""
    with bounded():
        judge(loads(text), text)


@fuzzed(0.1, 500, data=inputs.CONFIGS, flow=st.booleans(), policy=POLICIES)
def test_values_where_others_belong(data: Any, flow: bool, policy: Policy) -> None:
    """Right YAML of the language's keys, with values of other types and texts."""
    text = inputs.written(data, flow=flow)
    with bounded():
        judge(loads(text, policy=policy), text)


# ── the parts, by themselves ──

TEMPLATES: Final = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from(["$", "$$", "${", "}", "${a}", "${a.b}", "{", "a", "é", "\n", "\ud800"])
    ).map("".join),
)


@fuzzed(
    0.02, 300, text=TEMPLATES, values=st.dictionaries(st.sampled_from(["a", "a.b", "c"]), st.text())
)
def test_any_template(text: str, values: dict[str, str]) -> None:
    """A template is parsed or refused with a place, and lacks nothing but variables."""
    with bounded():
        try:
            template = Template.parse(text)
        except TemplateError as error:
            assert text[error.offset] == "$"
            assert str(error).strip()
            return
        if "$" not in text:
            assert template.render({}) == text
        assert Template.parse(text.replace("$", "$$")).render({}) == text
        assert Template.parse(str(template)) == template
        try:
            template.render(values)
        except MissingVariableError as error:
            assert error.name in template.names - set(values)
        else:
            assert template.names <= set(values)


PIECES: Final = (
    r"a é . * +? {2} {1000} | ( ) (?: (?i) (?P<a> (?P<é> (?<b> [ ] [^ [] [:alpha:] \Q \E \C \pL \b "
    "\\ $ ^ \\d \x00 \ud800"
)
PATTERNS: Final = st.one_of(st.text(), st.lists(st.sampled_from(PIECES.split(" "))).map("".join))


@fuzzed(0.03, 300, text=PATTERNS, subject=st.text(st.characters(exclude_categories=())))
def test_any_pattern(text: str, subject: str) -> None:
    """A pattern is compiled or refused, and matches or not; a group has one name."""
    with bounded():
        try:
            names = pattern.group_names(text)
        except PatternError as error:
            assert str(error).strip()
            return
        assert len(set(names)) == len(names)
        found = pattern.fullmatch(text, subject)
        assert found is None or set(found) <= set(names)


@fuzzed(
    0.02,
    200,
    text=st.one_of(
        st.text("0123456789.msh", max_size=400),
        st.from_regex(r"[0-9]{1,500}(\.[0-9]+)?(ms|s|m|h)", fullmatch=True),
    ),
)
def test_any_duration(text: str) -> None:
    """A duration is read, however long, or refused."""
    shown = json.dumps(text)
    whole = f"version: v1\nresources: [{{name: a.b/c, sources: [static: 1], removeMissingAfter: {shown}}}]"
    with bounded():
        loaded = loads(whole)
        judge(loaded, whole)
        if loaded.config is not None:
            assert loaded.config.resources[0].remove_missing_after >= 0
