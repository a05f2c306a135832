"""YAML text to plain data, with the place of everything."""

from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from devhost.loading import yamltree
from devhost.loading.syntax import TreeError
from devhost.loading.yamltree import DEPTH_MAX, NODES_MAX, Duplicate

TOKENS: Final = (
    *("a", "b", "x-a", "1", "0403", "1:30", "-", "=", "~", "0x", "0b_", "._", "_", ".nan", "é"),
    *("\n", "\n  ", "\n    ", "- ", ": ", "? ", "{", "}", "[", "]", ",", "'", '"', "#", "|", "> "),
    *("${id}", "$", "&a ", "*a", "<<: ", "@", "`", "%", "\t", "---\n", "...\n", "%YAML 1.1\n"),
    *("!x ", "! ", "!!int ", "!!float ", "!!bool ", "!!timestamp ", "!!null ", "!!binary "),
    *("!!str ", "!!merge ", "!!set ", "!!seq ", "!!map ", "\x00", "\ud800", "\ufeff", "\u2028"),
    "2020-01-01",
    "2020-13-45",
)
YAML_LIKE: Final = st.lists(st.sampled_from(TOKENS), max_size=14).map("".join)


def error_of(text: str) -> TreeError:
    with pytest.raises(TreeError) as caught:
        yamltree.parse(text)
    return caught.value


@pytest.mark.parametrize(
    ("path", "at", "key"),
    [
        ((), (1, 1), (1, 1)),
        (("a",), (1, 4), (1, 1)),
        (("b",), (3, 3), (2, 1)),
        (("b", 0), (3, 5), (3, 5)),
        (("b", 1), (4, 5), (4, 5)),
        (("b", 1, "c"), (4, 9), (4, 5)),
        (("b", 1, "d"), (5, 8), (5, 5)),
        (("b", 1, "d", "e"), (5, 12), (5, 9)),
    ],
)
def test_positions(path: yamltree.Path, at: tuple[int, int], key: tuple[int, int]) -> None:
    """Every value knows its line and column, and those of its key."""
    place = yamltree.parse("a: 1\nb:\n  - x\n  - c:  'y'\n    d: {e: f}\n").positions[path]
    assert (place.line, place.column) == at
    assert place.key == key


def test_a_place_that_is_not_there_is_the_nearest_around() -> None:
    """A path below a value, or missing in it, has the place of what stands around it."""
    tree = yamltree.parse("a:\n  b: [1]\n")
    assert tree.position(("a", "b", "c", "d")) == tree.positions["a", "b"]
    assert tree.position(("z",)) == tree.positions[()]


@pytest.mark.parametrize(
    ("text", "written", "plain"),
    [("a: 0403", "0403", True), ("a: '0403'", "0403", False), ('a: "x"', "x", False)],
)
def test_a_scalar_keeps_the_text_it_was_written_as(text: str, written: str, plain: bool) -> None:
    """What YAML made a number of is still known as its text, and whether it was quoted."""
    place = yamltree.parse(text).positions["a",]
    assert (place.text, place.plain) == (written, plain)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: 1", {"a": 1}),
        ("a: '1'", {"a": "1"}),
        ("a: yes", {"a": True}),
        ("a:", {"a": None}),
        ("a: !!str 1", {"a": "1"}),
        ("a: ! 1", {"a": "1"}),
        ("a: |\n  b\n  c\n", {"a": "b\nc\n"}),
        ("{a: [b, {c: d}]}", {"a": ["b", {"c": "d"}]}),
        ("- a\n- [b]", ["a", ["b"]]),
        ("a: ${id}", {"a": "${id}"}),
        ("a: &x b\nc: *x", {"a": "b", "c": "b"}),
        ("a: &x {b: 1}\nc: [*x, *x]", {"a": {"b": 1}, "c": [{"b": 1}, {"b": 1}]}),
        ("---\na: 1\n...\n", {"a": 1}),
        ("a: {b: [], c: {}}", {"a": {"b": [], "c": {}}}),
    ],
)
def test_data(text: str, data: Any) -> None:
    """Plain YAML becomes plain data."""
    assert yamltree.parse(text).data == data


# ── merge keys ──


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("<<: {b: 1}", {"b": 1}),
        ("<<: {b: 1}\nb: 2", {"b": 2}),
        ("b: 2\n<<: {b: 1}", {"b": 2}),
        ("<<: [{b: 1, c: 1}, {b: 2, d: 2}]", {"b": 1, "c": 1, "d": 2}),
        ("<<: {b: 1, <<: {b: 2, c: 2}}", {"b": 1, "c": 2}),
        ("<<: {<<: {b: 2}, b: 1}", {"b": 1}),
        ("<<: [{<<: {b: 1}}, {b: 2}]", {"b": 1}),
        ("<<: {}", {}),
        ("<<: []", {}),
        ("'<<': 1", {"<<": 1}),
        ("a: =", {"a": "="}),
        ("a: <<", {"a": "<<"}),
    ],
)
def test_merge_keys(text: str, data: dict[str, Any]) -> None:
    """``<<`` adds what the mapping does not have; own keys win, then the earlier source."""
    tree = yamltree.parse(text)
    assert tree.data == data
    assert tree.duplicates == []


def test_a_merged_value_has_the_place_where_it_is_written() -> None:
    """An error in a merged value points at the anchor's text, not at the alias."""
    tree = yamltree.parse("x-a: &a\n  b: 1\nc:\n  <<: *a\n")
    assert tree.position(("c", "b")).line == 2


@pytest.mark.parametrize(
    ("text", "column"), [("<<: 3", 5), ("<<: [3]", 6), ("<<: [[{a: 1}]]", 6), ("<<:", 4)]
)
def test_merging_what_is_no_mapping_is_an_error(text: str, column: int) -> None:
    """``<<`` needs a mapping or a list of them, and says where it has none."""
    error = error_of(text)
    assert "'<<' needs a mapping" in str(error)
    assert (error.line, error.column) == (1, column)


# ── duplicates and odd keys ──


@pytest.mark.parametrize(
    ("text", "duplicate"),
    [
        ("a: 1\na: 2", Duplicate(("a",), 2, 1, 1)),
        ("b:\n  a: 1\n  c: 2\n  a: 3", Duplicate(("b", "a"), 4, 3, 2)),
        ("a: 1\n'a': 2", Duplicate(("a",), 2, 1, 1)),
        ("- {a: 1, a: 2}", Duplicate((0, "a"), 1, 10, 1)),
        ("<<: {a: 1, a: 2}", Duplicate(("a",), 1, 12, 1)),
    ],
)
def test_duplicate_keys(text: str, duplicate: Duplicate) -> None:
    """A key that is there twice is found, with both places; the first value counts."""
    assert yamltree.parse(text).duplicates == [duplicate]


def test_the_first_of_duplicates_counts() -> None:
    """The value of a duplicate key is that of its first occurrence."""
    assert yamltree.parse("a: 1\na: 2").data == {"a": 1}


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ("1: a", ((), "1", 1, 1)),
        ("b:\n  off: a", (("b",), "off", 2, 3)),
        ("~: a", ((), "~", 1, 1)),
        ("? [a]\n: b", ((), "?", 1, 3)),
        ("{{ a }: b}", ((), "?", 1, 2)),
        ("<<: {1: a}", ((), "1", 1, 6)),
    ],
)
def test_keys_that_are_no_texts(text: str, odd: tuple[yamltree.Path, str, int, int]) -> None:
    """A key that YAML reads as something else than a text is found, with its place."""
    tree = yamltree.parse(text)
    assert tree.non_string_keys[0] == odd


# ── bombs ──


def test_an_alias_bomb_is_refused() -> None:
    """Aliases that multiply beyond the limit of values are an error, without building them."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    error = error_of("\n".join(lines))
    assert f"more than {NODES_MAX} values, including aliases" in str(error)


def test_a_merge_bomb_is_refused() -> None:
    """Merges that multiply beyond the limit of values are an error too."""
    lines = ["a0: &a0 {" + ", ".join(f"k{key}: x" for key in range(10)) + "}"]
    for n in range(1, 12):
        pairs = ", ".join(f"k{key}: {{<<: *a{n - 1}}}" for key in range(10))
        lines.append(f"a{n}: &a{n} {{{pairs}}}")
    assert "including aliases" in str(error_of("\n".join(lines)))


@pytest.mark.parametrize("text", ["[" * 50_000, "- " * 50_000, "{a: " * 5_000, "? " * 50_000])
def test_a_depth_bomb_is_refused(text: str) -> None:
    """Nesting beyond the limit is an error, not an exhausted stack."""
    assert f"nested deeper than {DEPTH_MAX} levels" in str(error_of(text))


def test_a_bomb_of_empty_merges_is_refused() -> None:
    """Merges count even where they add nothing: a million of them are an error, not a wait."""
    lines = ["a0: &a0 {}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 7)]
    error_of("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &a " + "x" * 500_000 + "\nb: [" + "*a, " * 10 + "]", "characters, including aliases"),
        ("? &a " + "x" * 500_000 + "\n: b\nc: [" + "{*a : b}, " * 10 + "]", "characters, including aliases"),
        ("a: &a {" + ", ".join(f"k{n}: b" for n in range(999)) + "}\nb: {<<: [" + "*a, " * 999 + "]}", "including aliases"),
        ("a: &a {" + ", ".join(f"{n}: b" for n in range(999)) + "}\nb: {<<: [" + "*a, " * 999 + "]}", "including aliases"),
        ("e: &e {}\na: &a [" + "*e, " * 999 + "]\nb: {" + "<<: *a, " * 999 + "}", "including aliases"),
        ("[" + "a," * 200_000 + "]", "more than 50000 values"),
        ("".join(f"%TAG !{n}! b\n" for n in range(101)) + "---\na", "%TAG directives"),
    ],
)  # fmt: skip
def test_other_bombs_are_refused(text: str, says: str) -> None:
    """Long texts, skipped merges, values and directives count too."""
    assert says in str(error_of(text))


def test_a_place_knows_whether_the_text_stands_there_as_it_is() -> None:
    """Only then an offset in the text is a column in the file."""
    text = "[a b, 'a b', \"a b\", 'a''b', \"a\\x41\", &x ab, !!str ab, a\n b]"
    places = yamltree.parse(text).positions
    verbatim = [places[index,].verbatim for index in range(8)]
    assert verbatim == [True, True, True, False, False, False, False, False]


@pytest.mark.parametrize("length", [100, 430, 3000])
@pytest.mark.parametrize("link", ["[*a{}]", "{{b: *a{}}}", "{{<<: *a{}}}"])
def test_depth_through_aliases_is_bounded(link: str, length: int) -> None:
    """A chain of aliases, each inside of the next, is as deep as if it were written out."""
    links = (f"a{n}: &a{n} {link.format(n - 1)}" for n in range(1, length))
    error_of("\n".join(["a0: &a0 {x: y}", *links]))


@pytest.mark.parametrize("text", ["a: &a [*a]", "&a {b: *a}", "a: &a {<<: *a}", "&a [[*a]]"])
def test_a_value_cannot_contain_itself(text: str) -> None:
    says = "'<<' needs a mapping" if "<<" in text else "alias refers to a value that contains it"
    assert says in str(error_of(text))


# ── what is not one plain document ──


def test_a_template_in_block_style_needs_no_quotes() -> None:
    """Outside of brackets ``${id}`` is a plain text, at the end and inside."""
    assert yamltree.parse("a: ${id}\nb: /dev/x${index}\n").data == {
        "a": "${id}",
        "b": "/dev/x${index}",
    }


@pytest.mark.parametrize("tag", ["bool", "int", "float", "timestamp", "binary", "null", "str"])
@pytest.mark.parametrize("value", ["", "b", "''", "'é'"])
def test_a_forced_type_reads_or_is_a_tree_error(tag: str, value: str) -> None:
    """A tag that does not fit its text is an error of the file, not a traceback."""
    try:
        tree = yamltree.parse(f"a: !!{tag} {value}\n")
    except TreeError as error:
        assert (error.line, error.column) == (1, 4)
    else:
        assert tree.duplicates == []


@settings(max_examples=300)
@given(st.one_of(YAML_LIKE, st.text()))
@example("a: !!bool b")
@example("a: !!timestamp b")
@example("a: !!int ''")
@example("a: !!float ''")
@example("a: \ud800")
@example("a: " + "9" * 5000)
@example("\ufeffa: 1")
@example("%YAML 9.9\n---\na: 1")
def test_no_text_raises_anything_but_a_tree_error(text: str) -> None:
    """Whatever the text, it is a tree or a TreeError with a place in the text."""
    try:
        yamltree.parse(text)
    except TreeError as error:
        assert error.line >= 1
        assert error.column >= 1
        assert str(error)
