"""Patterns: RE2, matched as a whole."""

import pytest

from devhost.model import pattern
from devhost.model.pattern import PatternError


@pytest.mark.parametrize(
    ("text", "subject", "groups"),
    [
        ("kvm", "kvm", {}),
        ("kvm", "kvm2", None),
        ("kvm", "akvm", None),
        ("a|ab", "ab", {}),
        (r"ttyS(?P<n>\d+)", "ttyS10", {"n": "10"}),
        (r"ttyS(?P<n>\d+)", "ttyS", None),
        (r"(?P<a>x)?(?P<b>y)?", "x", {"a": "x"}),
        (r"(?P<a>x*)y", "y", {"a": ""}),
        (r"(x)(?P<a>y)", "xy", {"a": "y"}),
        ("a.c", "a\nc", None),
        ("kvm", "kvm\n", None),
        ("", "", {}),
        ("", "a", None),
        (".", "é", {}),
        (r"(?i)KVM", "kvm", {}),
        (r"dri/card\d", "dri/card0", {}),
    ],
)
def test_a_pattern_matches_the_whole_text(
    text: str, subject: str, groups: dict[str, str] | None
) -> None:
    """A match is of the whole text, and gives the named groups that took part."""
    assert pattern.fullmatch(text, subject) == groups


def test_group_names_are_in_order() -> None:
    """Named groups are listed as they stand in the pattern, unnamed ones are not."""
    assert pattern.group_names(r"(?P<z>a)(b)(?P<a>c)(?P<m>d)") == ("z", "a", "m")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a(", "'a(' is not an RE2 pattern: missing )"),
        ("[", "is not an RE2 pattern"),
        ("*.txt", r"not a glob, write .*\.txt"),
        ("*", "not a glob, write .*"),
        ("?x", "not a glob, write .x"),
        ("a(?=b)", "RE2 has no lookaround, use `exclude`"),
        ("(?!ttyS).*", "RE2 has no lookaround, use `exclude`"),
        ("(?<=a)b", "RE2 has no lookaround, use `exclude`"),
        ("(?<!a)b", "RE2 has no lookaround, use `exclude`"),
        (r"(a)\1", "is not an RE2 pattern"),
        ("a{1001}", "is not an RE2 pattern"),
        ("(?P<a>x)(?P<a>y)", "has several groups named 'a'; rename them"),
        ("(?<a>x)|(?P<a>y)", "has several groups named 'a'; rename them"),
        ("a" * 1001, "pattern of 1001 characters; at most 1000 are allowed"),
        ("\\pL" * 333, "pattern too large"),
        ("\ud800", "is not UTF-8"),
    ],
)
def test_errors_name_the_right_fix(text: str, says: str) -> None:
    """What RE2 lacks is an error that says what to write instead."""
    with pytest.raises(PatternError) as caught:
        pattern.group_names(text)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["*.txt", "*", "?x"])
def test_the_glob_hint_is_a_pattern(text: str) -> None:
    """The expression that is proposed for a glob-like text is itself legal."""
    with pytest.raises(PatternError) as caught:
        pattern.group_names(text)
    pattern.group_names(str(caught.value).rpartition("write ")[2])


def test_no_pattern_takes_exponential_time() -> None:
    """Nested repetitions end: with a backtracking engine this would not in a lifetime."""
    assert pattern.fullmatch("(a*)*(a*)*b", "a" * 10_000) is None


@pytest.mark.parametrize("subject", ["\udcff", "a\udc80b"])
def test_a_name_that_is_not_utf8_does_not_raise(subject: str) -> None:
    """A file name of undecodable bytes matches or does not: it stops no scan."""
    assert pattern.fullmatch("kvm", subject) is None
