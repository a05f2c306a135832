"""Tables: aligned columns, a line for each row, and nothing that moves the cursor."""

import contextlib
import io
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from devhost.cli import output


def printed(headings: list[str], rows: list[list[str]]) -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        output.print_table(headings, rows)
    return shown.getvalue().splitlines()


def test_a_table_is_aligned_by_columns_of_a_terminal_with_a_line_for_each_row() -> None:
    rows = [["a" * 60, "Unhealthy", "a reason of words " * 9], ["世界e\u0301é", "", ""]]
    heading, first, second = printed(["DEVICE", "HEALTH", "REASON"], rows)
    assert heading == f"{'DEVICE':60}   HEALTH      REASON"
    assert first == f"{rows[0][0]}   Unhealthy   {rows[0][2]}".rstrip()
    assert second == f"{rows[1][0]}{' ' * 54}   -"


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_in_a_table_moves_the_cursor(text: str) -> None:
    assert not [
        one
        for one in "".join(printed(["A", "B"], [[text, text]]))
        if unicodedata.category(one) in {"Cc", "Cf", "Zl", "Zp"}
    ]
