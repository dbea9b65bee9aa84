"""What a submitter may hand to an approved program: names of inputs, and patterns of lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemill.errors import JobError
from tidemill.model.application import Parameter
from tidemill.model.handed import glob_fault, inputs_fault, line_bytes_max, line_pattern_fault, takes
from tidemill.model.parameter import check_value

LINES = Path(__file__).parents[3] / "crates/slot/src/lines.json"
"""Patterns with texts that match and texts that differ; `crates/slot/src/line.rs` tries its own engine on them."""


def is_legal(pattern: str | None, text: str) -> bool:
    try:
        check_value("line", Parameter(pattern=pattern), text)
    except JobError:
        return False
    return True


def test_a_line_in_the_slot_is_judged_as_a_parameter_here() -> None:
    cases = json.loads(LINES.read_text())
    for case in cases:
        pattern = case["pattern"]
        assert pattern is None or line_pattern_fault(pattern) is None, pattern
        assert [each for each in case["matches"] if not is_legal(pattern, each)] == [], pattern
        assert [each for each in case["differs"] if is_legal(pattern, each)] == [], pattern
    assert any(case["pattern"] is None for case in cases)


@pytest.mark.parametrize(
    "pattern",
    ["(?i)a", r"\<a\>", "[a&&b]", "[a[b]c]", "[a--b]", "[a~~b]", "(?P<n>a)", r"\pL", "é", r"\x41", r"\Qa\E", r"\b{2}",
     r"\Aa", r"\101", "(?x)a #", "(?m)a", r"a\z", "a(?#x)", "("],
)  # fmt: skip
def test_a_pattern_that_two_engines_may_read_differently_is_not_used_for_lines(pattern: str) -> None:
    fault = line_pattern_fault(pattern)
    assert fault is not None
    assert fault.hint


def test_long_lines_are_bounded_by_the_size_of_their_pattern() -> None:
    assert line_bytes_max(None) == 255
    assert line_bytes_max("[a-z]*") == 32_768
    assert 0 < line_bytes_max(".{1000}") < 2_000


@pytest.mark.parametrize(
    ("taken", "name", "is_taken"),
    [
        ("data", "data", True),
        ("data", "data2", False),
        ("part-*", "part-000001", True),
        ("part-*", "part-", True),
        ("part-*", "a-part-1", False),
        ("*.root", "x.root", True),
        ("*.root", "xroot", False),
        ("*", "json.py", True),
        ("*", ".rootrc", False),
        ("a*b*c", "abbbc", True),
    ],
)
def test_names_of_inputs_are_listed_or_match(taken: str, name: str, is_taken: bool) -> None:
    assert takes([taken], name) is is_taken
    assert (inputs_fault("sim", [taken], [name]) is None) is is_taken


def test_an_input_that_is_not_taken_is_refused_with_those_that_are() -> None:
    assert inputs_fault("sim", None, ["json.py"]) is None
    fault = inputs_fault("sim", ["data"], ["data", "dta"])
    assert fault is not None
    assert fault.text == "application `sim` takes no input named `dta`"
    assert fault.hint == "did you mean `data`?"
    many, none = inputs_fault("sim", ["data", "part-*"], ["x"]), inputs_fault("sim", [], ["x"])
    assert many is not None
    assert many.hint == "it takes `data`, `part-*`"
    assert none is not None
    assert "takes no inputs" in str(none.hint)


@pytest.mark.parametrize(
    ("taken", "hint"),
    [
        (["part-*"], "it takes `part-*`"),
        (["data"], "it takes `data`"),
        (["geometry", "part-*"], "it takes `geometry`, `part-*`"),
        (["paths", "part-*"], "did you mean `paths`? It takes `paths`, `part-*`"),
        ([f"x{k}" for k in range(22)], f"it takes {', '.join(f'`x{k}`' for k in range(20))}, 2 more"),
    ],
)
def test_a_refusal_says_what_is_taken_and_what_was_meant_only_if_a_name_is_near(
    taken: list[str], hint: str
) -> None:
    fault = inputs_fault("sim", taken, ["parts"])
    assert fault is not None
    assert fault.hint == hint


@pytest.mark.parametrize(
    "glob", [".rootrc", ".*", "a/b", "", "a b", "x" * 101, "a*b*c*d*e*f", "a?", "[a]", "\u0430da"]
)
def test_what_is_not_a_name_of_inputs_is_refused(glob: str) -> None:
    assert glob_fault(glob) is not None


@pytest.mark.parametrize("glob", ["data", "part-*", "*", "*.root", "a.b_c+d-e"])
def test_names_and_globs_are_taken(glob: str) -> None:
    assert glob_fault(glob) is None


@pytest.mark.parametrize(
    "text",
    [
        "\u0430da",
        "\u05d0\u05d1\u05d2",
        "x\u00b2",
        "\ufb01le",
        "\uff21da",
        "\uff0e\uff0e",
        "run\uff11",
        "\u017f",
        "e\u0301",
        "na\u00efve",
    ],
)
def test_letters_and_digits_of_other_scripts_are_not_those_of_a_text_parameter(text: str) -> None:
    assert not is_legal(None, text)
    assert not is_legal(r"\w+", text)
    assert is_legal(r".+", text)
