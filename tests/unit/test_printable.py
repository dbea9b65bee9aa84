"""What a terminal would obey is shown as its JSON escape; everything else is as it was."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill import log
from tidemill.printable import harmless, printable_line, printable_lines

OBEYED = [
    *range(9),
    *range(11, 32),
    *range(127, 160),
    0x202E,
    0x2066,
    0x2028,
    0x2029,
    0x200B,
    0xFEFF,
    0xE0041,
]


@pytest.mark.parametrize("number", OBEYED)
def test_characters_that_a_terminal_obeys_are_escaped(number: int) -> None:
    char = chr(number)
    for shown in (printable_line(f"a{char}b"), printable_lines(f"a{char}b\n").removesuffix("\n")):
        assert char not in shown
        assert json.loads(f'"{shown}"') == f"a{char}b"


@pytest.mark.parametrize(
    "text", ["plain", "tab\tstays", "größer 大きい", "👩‍🔬", "می‌خواهم", "C:\\x1b", "עברית"]
)
def test_text_of_people_stays(text: str) -> None:
    assert printable_line(text) == printable_lines(text) == text


def test_a_line_stays_one_line_and_lines_stay_lines() -> None:
    assert printable_line("a\nb\r") == "a\\nb\\r"
    assert printable_lines("a\nb\r") == "a\nb\\r"


def test_a_name_that_cannot_be_encoded_can_be_printed() -> None:
    assert printable_line("a\udcffb").encode() == b"a\\udcffb"


@given(st.text())
def test_what_was_cleaned_is_clean(text: str) -> None:
    once = printable_lines(text)
    assert printable_lines(once) == once
    assert printable_line(once) == once.replace("\n", "\\n")


@pytest.mark.parametrize("form", log.FORMS)
def test_logs_move_no_cursor(form: log.Form, capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger("tidemill").handlers[:]
    try:
        log.to_stderr(form=form)
        log.Log("agent").info("job.refused", reason="x\x1b]0;owned\x07\x9b\u202e")
    finally:
        logging.getLogger("tidemill").handlers[:] = before
    told = capsys.readouterr().err
    assert "owned" in told
    assert told == printable_lines(told)
    if form == "json":
        assert json.loads(told)["reason"] == "x\x1b]0;owned\x07\x9b\u202e"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum(a)", "\t=1", "\r=1", "\n=1"])
def test_no_cell_begins_like_a_formula(text: str) -> None:
    assert harmless(text) == f"'{text}"
    assert harmless(f"a{text}") == f"a{text}"
