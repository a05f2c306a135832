"""Tables for programs and for terminals of any width: nothing is cut."""

import re
import unicodedata
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devhost.cli import output, tables

ID: Final = "usb-FTDI_FT232R_USB_UART_A50285BI-if00-port0"
REASON: Final = "withheld: it was offered as example.com/old before, which pod default/web-0 has"
HEADINGS: Final = ["DEVICE", "HEALTH", "PATHS", "REASON"]
ROWS: Final = [
    [ID, "Unhealthy", f"/dev/serial/by-id/{ID}", REASON],
    ["b", "Unhealthy", "/dev/ttyUSB1", REASON],
    ["世界", "Healthy", "", ""],
]

TEXTS = st.text(st.sampled_from("ab 世é"), max_size=30).map(lambda text: " ".join(text.split()))


def test_one_line_per_row_for_programs() -> None:
    """With every column there, whatever the length: for grep and awk."""
    heading, *lines = tables.plain(HEADINGS, ROWS)
    assert [line.split(maxsplit=3) for line in lines] == [
        ROWS[0],
        ROWS[1],
        ["世界", "Healthy", "-"],
    ]
    assert heading.index("HEALTH") == lines[0].index("Unhealthy")
    assert lines[2].index("Healthy") == lines[1].index("Unhealthy") - 2  # two are wide


def test_a_terminal_that_is_wide_enough() -> None:
    lines = tables.folded(HEADINGS, ROWS, 250)
    assert lines[0].split() == HEADINGS
    assert lines[1].endswith(REASON)
    assert lines[2].endswith("   (as above)")


def test_a_reason_folds_in_its_column() -> None:
    lines = tables.folded(["A", "REASON"], [["x", REASON]], 60)
    assert lines == [
        "A   REASON",
        "x   withheld: it was offered as example.com/old before,",
        "    which pod default/web-0 has",
    ]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal(width: int) -> None:
    """Becomes blocks; an ID and a path stay whole, to be copied."""
    lines = tables.folded(HEADINGS, ROWS, width)
    assert lines[:3] == [
        ID,
        "  HEALTH  Unhealthy",
        f"  PATHS   /dev/serial/by-id/{ID}",
    ]
    assert lines[-2:] == ["世界", "  HEALTH  Healthy"]
    reason = re.search(r"REASON(.*?)\nb\n", "\n".join(lines), re.DOTALL)
    assert reason
    assert " ".join(reason[1].split()) == REASON
    assert all(tables.cells(line) <= width for line in lines if ID not in line)


def test_what_repeats_is_dropped() -> None:
    """Several reasons of one resource; but no program has to look at the line above."""
    rows = [["a.b/c", "update", "one"], ["a.b/c", "update", "two"], ["a.b/d", "update", "two"]]
    assert tables.folded(["RESOURCE", "ACTION", "REASON"], rows, 80) == [
        "RESOURCE   ACTION   REASON",
        "a.b/c      update   one",
        "                    two",
        "a.b/d      update   two",
    ]
    assert tables.plain(["RESOURCE", "ACTION", "REASON"], rows)[2] == "a.b/c      update   two"


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=5), st.integers(1, 100))
def test_no_word_is_lost(rows: list[tuple[str, str, str]], width: int) -> None:
    """At any width: first cells differ, so that none repeats another."""
    table = [(f"{number}{first}", *more) for number, (first, *more) in enumerate(rows)]
    shown = " ".join(tables.folded(["A", "B", "C"], table, width))
    for row in table:
        for word in " ".join(row).split():
            assert word in shown or "(as above)" in shown


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_moves_the_cursor(text: str) -> None:
    for line in output.table_lines(["A", "B"], [[text, text]]):
        assert not [one for one in line if unicodedata.category(one) in {"Cc", "Cf", "Zl", "Zp"}]
