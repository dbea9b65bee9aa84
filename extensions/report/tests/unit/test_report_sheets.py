"""Tables for spreadsheets: no text of others is a formula."""

from __future__ import annotations

import csv
import io

import pytest

from tidemill_report.operation.sheet import Sheet, csv_text, text

TEXTS = [
    "=1+1",
    "=cmd|'/C calc'!A1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    'a"=1',
    "a,=1",
    "a\n=1",
    "\x1b]0;x",
]


@pytest.mark.parametrize("hostile", TEXTS)
def test_no_text_of_others_is_a_formula_in_a_table_for_spreadsheets(hostile: str) -> None:
    sheet = Sheet("x", "x", "x", (text("why"), text("site")), [(hostile, None), ("fine", hostile)])
    rows = list(csv.reader(io.StringIO(csv_text(sheet), newline="")))
    assert len(rows) == 3
    for row in rows[1:]:
        assert len(row) == 2
        assert not any(cell[:1] in set("=+-@\t\r\n") for cell in row if cell)
