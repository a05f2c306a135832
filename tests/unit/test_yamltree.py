"""YAML text to plain data with positions; errors of YAML are in golden/syntax.txt."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from devhost.config import yaml_tree
from devhost.config.yaml_errors import TreeError
from devhost.config.yaml_tree import DEPTH_MAX, NODES_MAX

TOKENS: Final = (
    *("a", "b", "x-a", "1", "0403", "1:30", "-", "=", "~", "0x", "0b_", "._", "_", ".nan", "é"),
    *("\n", "\n  ", "\n    ", "- ", ": ", "? ", "{", "}", "[", "]", ",", "'", '"', "#", "|", "> "),
    *("${id}", "$", "&a ", "*a", "<<: ", "@", "`", "%", "\t", "---\n", "...\n", "%YAML 1.1\n"),
    *("!x ", "! ", "!!int ", "!!float ", "!!bool ", "!!timestamp ", "!!null ", "!!binary "),
    *("!!str ", "!!merge ", "!!set ", "!!seq ", "!!map ", "\x00", "\ufeff", "\u2028"),
    "2020-01-01",
    "2020-13-45",
)
CASES: Final = yaml.safe_load(Path(__file__).with_name("yamltree.yaml").read_text())
YAML_LIKE: Final = st.lists(st.sampled_from(TOKENS), max_size=14).map("".join)


def error_of(text: str) -> str:
    with pytest.raises(TreeError) as caught:
        yaml_tree.parse(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "at", "key"),
    [
        ((), (1, 1), (1, 1)),
        (("a",), (1, 4), (1, 1)),
        (("b",), (3, 3), (2, 1)),
        (("b", 0), (3, 5), (3, 5)),
        (("b", 1), (4, 5), (4, 5)),
        (("b", 1, "c"), (4, 9), (4, 5)),
        (("b", 1, "d", "e"), (5, 15), (5, 12)),
        (("b", 1, "d", "e", "f"), (5, 15), (5, 12)),  # not there: that of what is around
        (("m", "e"), (5, 15), (5, 12)),  # merged: where it is written
    ],
)
def test_value_has_positions(
    path: yaml_tree.Path, at: tuple[int, int], key: tuple[int, int]
) -> None:
    text = "a: 1\nb:\n  - x\n  - c:  'y'\n    d: &d {e: f}\nm:\n  <<: *d\n"
    place = yaml_tree.parse(text).position(path)
    assert (place.line, place.column) == at
    assert place.key == key


def test_yaml_scalar_keeps_its_text() -> None:
    places = yaml_tree.parse("a: 0403\nb: '0403'").positions
    assert (places["a",].text, places["a",].plain) == ("0403", True)
    assert (places["b",].text, places["b",].plain) == ("0403", False)


def test_yaml_scalar_is_verbatim_where_offsets_are_columns() -> None:
    text = "[a b, 'a b', \"a b\", 'a''b', \"a\\x41\", &x ab, !!str ab, a\n b]"
    places = yaml_tree.parse(text).positions
    verbatim = [places[index,].verbatim for index in range(8)]
    assert verbatim == [True, True, True, False, False, False, False, False]


@pytest.mark.parametrize(("text", "data"), CASES["plain"])
def test_yaml_plain_becomes_plain_data(text: str, data: Any) -> None:
    assert yaml_tree.parse(text).data == data


@pytest.mark.parametrize(("text", "duplicates"), CASES["duplicates"])
def test_yaml_duplicate_key_is_found_with_both_lines(text: str, duplicates: list[Any]) -> None:
    assert yaml_tree.parse(text).problems == [
        yaml_tree.error((*path,), f"duplicate key (first defined on line {line})", at=(*at,))
        for path, line, at in duplicates
    ]


@pytest.mark.parametrize(("text", "path", "at"), CASES["keys"])
def test_yaml_key_no_string_is_found(text: str, path: list[str], at: list[int]) -> None:
    tree = yaml_tree.parse(text)
    [problem] = tree.problems
    assert ([*problem.path], [*tree.place(problem)]) == (path, at)


def chain(first: str, link: str, length: int) -> str:
    """Return aliases, each in the next one."""
    links = [f"a{n}: &a{n} {link.format(f'*a{n - 1}')}" for n in range(1, length)]
    return "\n".join([f"a0: &a0 {first}", *links])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (chain("[x]", "[{0}, {0}, {0}, {0}, {0}, {0}, {0}]", 12), f"more than {NODES_MAX} values, including aliases"),
        (chain("{x: y}", "{{a: {{<<: {0}}}, b: {{<<: {0}}}, c: {{<<: {0}}}}}", 12), "including aliases"),
        (chain("{}", "{{<<: [{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}]}}", 8), "including aliases"),
        ("a: &a {" + ", ".join(f"k{n}: b" for n in range(999)) + "}\nb: {<<: [" + "*a, " * 999 + "]}", "including aliases"),
        ("a: &a {" + ", ".join(f"{n}: b" for n in range(999)) + "}\nb: {<<: [" + "*a, " * 999 + "]}", "including aliases"),
        ("e: &e {}\na: &a [" + "*e, " * 999 + "]\nb: {" + "<<: *a, " * 999 + "}", "including aliases"),
        ("a: &a " + "x" * 500_000 + "\nb: [" + "*a, " * 10 + "]", "characters, including aliases"),
        ("? &a " + "x" * 500_000 + "\n: b\nc: [" + "{*a : b}, " * 10 + "]", "characters, including aliases"),
        ("[" + "a," * 200_000 + "]", f"more than {NODES_MAX} values"),
        ("[" * 900, f"nested deeper than {DEPTH_MAX} levels"),
        ("- " * 50_000, f"nested deeper than {DEPTH_MAX} levels"),
        ("? " * 50_000, f"nested deeper than {DEPTH_MAX} levels"),
        (chain("{x: y}", "[{0}]", 3000), f"nested deeper than {DEPTH_MAX} levels"),
        (chain("{x: y}", "{{b: {0}}}", 430), f"nested deeper than {DEPTH_MAX} levels"),
        (chain("{x: y}", "{{<<: {0}}}", 100), f"nested deeper than {DEPTH_MAX} levels"),
        ("".join(f"%TAG !{n}! b\n" for n in range(101)) + "---\na", "more than 100 %TAG directives"),
        ("a: &a [*a]", "alias refers to a value that contains it"),
        ("&a [[*a]]", "alias refers to a value that contains it"),
    ],
)  # fmt: skip
def test_yaml_small_text_does_not_become_large(text: str, says: str) -> None:
    assert says in error_of(text)


@settings(max_examples=300)
@given(st.one_of(YAML_LIKE, st.text()))
@example("a: !!bool b")
@example("a: !!timestamp b")
@example("a: !!null b")
@example("a: !!int ''")
@example("a: !!float ''")
@example("a: !!binary 'é'")
@example("a: " + "9" * 5000)
@example("a: 0x" + "f" * 5000)
@example("a: 1" + ":59" * 300 + ".5")
@example("\ufeffa: 1")
@example("%YAML 9.9\n---\na: 1")
def test_yaml_text_raises_only_tree_errors(text: str) -> None:
    try:
        yaml_tree.parse(text)
    except TreeError as error:
        assert error.line >= 1
        assert error.column >= 1
        assert str(error)
