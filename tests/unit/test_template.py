"""Templates: ``${name}`` and nothing else."""

import re
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from devhost.model.template import (
    TEMPLATE_PATTERN,
    MissingVariableError,
    Template,
    TemplateError,
    Variable,
)

NAMES: Final = ("id", "path", "a.b", "_x1")
PIECES: Final = st.lists(
    st.one_of(
        st.sampled_from([f"${{{name}}}" for name in NAMES]),
        st.just("$$"),
        st.text().map(lambda text: text.replace("$", "$$")),
    )
)
TEXTS: Final = PIECES.map("".join)
TRICKY: Final = st.text(alphabet="$${{}}{}a1_.-( \nÉ٣", max_size=20)


@given(TEXTS)
def test_a_template_survives_being_written_down(text: str) -> None:
    """Parsing what a template prints gives the same template."""
    template = Template.parse(text)
    assert Template.parse(str(template)) == template


@given(TRICKY)
@example("${ıd}")
@example("${a\n}")
@example("$${")
@example("$$${a}")
@example("${a.}")
@example("a\n")
def test_parse_accepts_exactly_what_the_schema_pattern_matches(text: str) -> None:
    """The pattern of the JSON Schema and the parser agree on every text."""
    try:
        Template.parse(text)
    except TemplateError:
        parses = False
    else:
        parses = True
    assert parses == (re.fullmatch(TEMPLATE_PATTERN.strip("^$"), text) is not None)


@given(st.text())
def test_values_are_not_templates(value: str) -> None:
    """A value that looks like a template is put in as it is, never looked at again."""
    template = Template.parse("${id}")
    assert template.render({"id": value}) == value
    assert Template.parse(str(template)) == template


@given(TEXTS)
def test_literals_are_merged(text: str) -> None:
    """Equal texts are equal templates: no two literals are neighbours and none is empty."""
    parts = Template.parse(text).parts
    assert "" not in parts
    assert not any(
        isinstance(one, str) and isinstance(other, str)
        for one, other in zip(parts, parts[1:], strict=False)
    )


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        ("plain", ("plain",)),
        ("${id}", (Variable("id"),)),
        ("a${id}b", ("a", Variable("id"), "b")),
        ("$$", ("$",)),
        ("$${id}", ("${id}",)),
        ("$$${id}", ("$", Variable("id"))),
        ("${port.path}", (Variable("port.path"),)),
        ("{{ .Values.x }}", ("{{ .Values.x }}",)),
        ("}{", ("}{",)),
    ],
)
def test_parts(text: str, parts: tuple[str | Variable, ...]) -> None:
    """Only ``${name}`` and ``$$`` mean anything."""
    assert Template.parse(text).parts == parts


@pytest.mark.parametrize(
    ("text", "offset", "says"),
    [
        ("$HOME", 0, "write ${HOME}, or '$$HOME'"),
        ("a $id/x", 2, "write ${id}, or '$$id'"),
        ("x$(VAR)", 1, "'$$('"),
        ("ab${id", 2, "unclosed"),
        ("${}", 0, "'${}' is not a variable"),
        ("a${a-b}", 1, "'${a-b}' is not a variable"),
        ("${ id }", 0, "'${ id }' is not a variable"),
        ("${1}", 0, "'${1}' is not a variable"),
        ("${id:-x}", 0, "without expressions"),
        ("costs 5$", 7, "write '$$' for a literal '$'"),
        ("$ {id}", 0, "write '$$' for a literal '$'"),
        ("$$$", 2, "write '$$' for a literal '$'"),
        ("${id}$x", 5, "write ${x}"),
        ("a" + "${id}" * 1001, 1, "more than 1000 variables"),
    ],
)
def test_errors_name_the_right_fix_and_the_place(text: str, offset: int, says: str) -> None:
    """A ``$`` that means nothing is an error that says where it is and what to write."""
    with pytest.raises(TemplateError) as caught:
        Template.parse(text)
    assert says in str(caught.value)
    assert caught.value.offset == offset


def test_many_literals_are_joined_at_once() -> None:
    """Joining them one by one would take minutes."""
    assert Template.parse("$$" * 3_000_000).parts == ("$" * 3_000_000,)


def test_a_missing_variable_is_named() -> None:
    """Rendering without a value says which variable has none."""
    with pytest.raises(MissingVariableError) as caught:
        Template.parse("${id}-${serial}").render({"id": "a"})
    assert caught.value.name == "serial"
    assert str(caught.value) == "${serial} has no value"


def test_an_empty_value_is_a_value() -> None:
    """A variable whose value is empty renders as nothing."""
    assert Template.parse("a${id}b").render({"id": ""}) == "ab"
