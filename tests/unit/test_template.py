"""Templates: ``${name}`` and nothing else; messages and their columns: golden/templates.txt."""

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
def test_template_printed_parses_to_the_same(text: str) -> None:
    template = Template.parse(text)
    assert Template.parse(str(template)) == template


@given(TRICKY)
@example("${ıd}")
@example("${a\n}")
@example("$${")
@example("$$${a}")
@example("${a.}")
@example("a\n")
def test_template_pattern_of_schema_accepts_the_same(text: str) -> None:
    try:
        Template.parse(text)
    except TemplateError:
        parses = False
    else:
        parses = True
    assert parses == (re.fullmatch(TEMPLATE_PATTERN.strip("^$"), text) is not None)


@given(st.text())
def test_template_value_is_put_in_as_it_is(value: str) -> None:
    assert Template.parse("${id}").render({"id": value}) == value


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
def test_template_has_variables_and_literals(text: str, parts: tuple[str | Variable, ...]) -> None:
    assert Template.parse(text).parts == parts


def test_template_of_millions_of_literals_is_parsed() -> None:
    assert Template.parse("$$" * 3_000_000).parts == ("$" * 3_000_000,)


def test_template_variable_without_value_is_named() -> None:
    with pytest.raises(MissingVariableError) as caught:
        Template.parse("${id}-${serial}").render({"id": "a"})
    assert caught.value.name == "serial"
    assert str(caught.value) == "${serial} has no value"
