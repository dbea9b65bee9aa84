"""Values of parameters: whole numbers stay what they are, to the last of 64 bits."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import JobError
from tidemill.model.application import Parameter, ParameterType
from tidemill.model.job import JobSpec
from tidemill.model.legal import spec_fault
from tidemill.model.parameter import check_value

WHOLE = Parameter(type=ParameterType.INT)
REAL = Parameter(type=ParameterType.FLOAT)


@given(st.integers(min_value=-(2**63), max_value=2**64 - 1))
def test_a_whole_number_of_64_bits_is_taken_to_its_last_digit(number: int) -> None:
    assert check_value("seed", WHOLE, number) == number
    assert check_value("seed", WHOLE, str(number)) == number
    spec = JobSpec(app="a", params={"seed": number})
    assert spec_fault(msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec)) is None


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, "18446744073709551616"])
def test_what_needs_more_bits_is_refused(number: int | str) -> None:
    with pytest.raises(JobError, match="more than 64 bits"):
        check_value("seed", WHOLE, number)


@pytest.mark.parametrize("value", ["1.5", 1.5, True, "nan", "0x10", "", None, [1], "9" * 5000, float("nan")])
def test_what_is_not_a_whole_number_is_refused(value: object) -> None:
    with pytest.raises(JobError, match="expected a whole number"):
        check_value("seed", WHOLE, value)


@pytest.mark.parametrize("value", ["nan", "inf", float("nan"), float("inf"), 2**53 + 1, 10**400, "x", False])
def test_what_a_float_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(JobError, match="expected a number"):
        check_value("x", REAL, value)


def test_limits_of_large_numbers_are_compared_exactly_and_shown_whole() -> None:
    seed = Parameter(type=ParameterType.INT, max=2**63)
    assert check_value("seed", seed, 2**63) == 2**63
    with pytest.raises(JobError, match="at most 9223372036854775808 is allowed"):
        check_value("seed", seed, 2**63 + 1)
