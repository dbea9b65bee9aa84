"""Patterns of application files: what they match, what is not used and why, and their bounds."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import JobError
from tidemill.model.application import Parameter
from tidemill.model.parameter import check_value
from tidemill.model.pattern import (
    PATTERN_CHARACTERS_MAX,
    STEPS_MAX,
    Verdict,
    check_pattern,
    pattern_fault,
)


@pytest.mark.parametrize(
    ("pattern", "value", "verdict"),
    [
        ("[a-z]+", "abc", Verdict.MATCHES),
        ("[a-z]+", "abc\n", Verdict.DIFFERS),
        ("[a-z]+$", "abc\n", Verdict.DIFFERS),
        ("a|ab", "ab", Verdict.MATCHES),
        (".*", "a\nb", Verdict.DIFFERS),
        ("(?s).*", "a\nb", Verdict.MATCHES),
        ("(?i)ä+", "Ää", Verdict.MATCHES),
        (".*", "\ud800", Verdict.DIFFERS),
        (".{0,1000}", "x" * 1_000, Verdict.MATCHES),
        (r"\d{4}-\d\d", "2026-11", Verdict.MATCHES),
        ("", "", Verdict.MATCHES),
        (".{1000}" * 2, "x" * 32_768, Verdict.TOO_LONG),
    ],
)
def test_a_pattern_matches_whole_values(pattern: str, value: str, verdict: Verdict) -> None:
    assert check_pattern(pattern, value) is verdict


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("(?=a)b", "look-ahead"),
        ("(?<!a)b", "look-ahead or look-behind"),
        (r"(a)\1", "backreferences"),
        ("(?P<n>a)(?P=n)", "backreferences"),
        ("a++", "second `+`"),
        ("(?>a)", "`(?:`"),
        (r"a\Z", r"leave out `\Z`"),
        (r"\u0041", r"`\x{41}`"),
        ("a{1001}", "at most 1000 times"),
        ("(?:a{100}){11}", "at most 1000 times"),
        ("a{,5}", "`{0,N}`"),
        (r"\pL{1000}\pL{1000}", "shorter"),
        ("(", "syntax is that of RE2"),
        ("\ud800", "syntax is that of RE2"),
        ("x" * (PATTERN_CHARACTERS_MAX + 1), None),
    ],
)
def test_what_is_not_used_says_what_to_write_instead(pattern: str, hint: str | None) -> None:
    fault = pattern_fault(pattern)
    assert fault is not None
    assert fault.text
    assert hint is None or hint in str(fault.hint)
    assert check_pattern(pattern, "a") is None


def test_an_escaped_brace_is_no_repetition() -> None:
    assert pattern_fault(r"a\{,5}") is None
    assert check_pattern(r"a\{,5}", "a{,5}") is Verdict.MATCHES


def test_the_bound_on_a_value_is_named_with_its_length() -> None:
    with pytest.raises(JobError, match="has 32769 characters, which is too long"):
        check_value("p", Parameter(pattern="x*"), "x" * 32_769)
    with pytest.raises(JobError, match="has 20000 characters, which is too long"):
        check_value("p", Parameter(pattern=".{1000}"), "x" * 20_000)
    assert check_value("p", Parameter(pattern="x*"), "x" * 32_768)


def test_an_unused_pattern_still_bounds_length_and_refuses_nul() -> None:
    parameter = Parameter(pattern="(?=a).*")
    assert check_value("p", parameter, "abc") == "abc"
    for bad in ("a" * 32_769, "a\0"):
        with pytest.raises(JobError):
            check_value("p", parameter, bad)


PIECES = st.sampled_from(["a", "b", "[ab]", "[^a]", ".", r"\d", r"\w", "(?:ab|c)", "-", r"\."])
REPEATS = st.sampled_from(["", "*", "+", "?", "{2}", "{0,3}", "{1,}"])


@given(
    st.lists(st.tuples(PIECES, REPEATS), max_size=5),
    st.text(string.ascii_lowercase[:4] + string.digits[:2] + "-._", max_size=8),
)
def test_on_plain_text_it_agrees_with_pythons_engine(pieces: list[tuple[str, str]], text: str) -> None:
    pattern = "".join(piece + repeat for piece, repeat in pieces)
    expected = Verdict.MATCHES if re.fullmatch(pattern, text) else Verdict.DIFFERS
    assert check_pattern(pattern, text) is expected


def test_the_bound_on_steps_leaves_room_for_what_sites_write() -> None:
    for pattern, length in (
        ("[A-Za-z0-9_./-]{1,255}", 255),
        (".{0,1000}", 1_000),
        ("[a-z]+", 32_768),
        (r"[\w .,/-]*", 32_768),
    ):
        assert check_pattern(pattern, "a" * length) is Verdict.MATCHES, (pattern, STEPS_MAX)
