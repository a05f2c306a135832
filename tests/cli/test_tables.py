"""Tables: aligned columns, a line for each row, and nothing that moves the cursor."""

import contextlib
import io
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from devhost.cli import output, tables


def test_a_table_is_aligned_by_columns_of_a_terminal_with_a_line_for_each_row() -> None:
    rows = [["a" * 60, "Unhealthy", "a reason of words " * 9], ["世界é", "", ""]]
    heading, first, second = tables.aligned(["DEVICE", "HEALTH", "REASON"], rows)
    assert heading == f"{'DEVICE':60}   HEALTH      REASON"
    assert first == f"{rows[0][0]}   Unhealthy   {rows[0][2]}".rstrip()
    assert second == f"世界é{' ' * 55}   -"


def test_the_width_of_a_text_counts_wide_and_combining_characters() -> None:
    assert [tables.cells(one) for one in ("ab", "世", "e\u0301", "é", "")] == [2, 2, 1, 1, 0]


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_in_a_table_moves_the_cursor(text: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        output.print_table(["A", "B"], [[text, text]])
    assert not [
        one
        for one in shown.getvalue().replace("\n", "")
        if unicodedata.category(one) in {"Cc", "Cf", "Zl", "Zp"}
    ]
