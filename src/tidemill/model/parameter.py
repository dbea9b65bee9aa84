"""Whether a value is legal for a parameter of an application. Pure; client and site ask the same question."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidemill.errors import JobError, did_you_mean
from tidemill.model.application import Parameter, ParameterType
from tidemill.model.legal import Fault, shown
from tidemill.model.pattern import Verdict, check_pattern

STRING_LENGTH_MAX = 255
PATTERN_LENGTH_MAX = 32_768
"""Of a value, where a pattern of the site's allows more than `STRING_LENGTH_MAX`: a quarter of what execve(2) takes."""

WHOLE_MIN, WHOLE_MAX = -(2**63), 2**64 - 1
"""Whole numbers that a value may be: what 64 bits hold, with a sign or without, as seeds need."""

_DEFAULT_STRING = re.compile(r"(?![-~])(?!(?:.*/)?\.\.(?:/|$))[A-Za-z0-9_.,:=+@%/~^-]{0,255}")
"""Nothing that a shell, an option parser or a path would take as more than text, should an application hand it on.
ASCII only: letters of other scripts look like these, and some programs take them for these."""


def parameters_fault(parameters: Mapping[str, Parameter], given: Mapping[str, Any]) -> Fault | None:
    """Why an application with these parameters does not take what a job gives; None = it does."""
    for name, value in given.items():
        parameter = parameters.get(name)
        if parameter is None:
            return Fault(f"there is no parameter `{shown(name)}`", did_you_mean(name, parameters))
        try:
            check_value(name, parameter, value)
        except JobError as error:
            return Fault(error.message, error.hint or legal_text(name, parameter))
    for name, parameter in parameters.items():
        if parameter.default is None and name not in given:
            return Fault(f"parameter `{name}` is needed", legal_text(name, parameter))
    return None


def legal_text(name: str, parameter: Parameter) -> str:
    """What a parameter may be, and what it is for: `energy` is an integer from 1 to 1000 (GeV)."""
    words = {
        ParameterType.INT: "an integer",
        ParameterType.FLOAT: "a number",
        ParameterType.BOOL: "`true` or `false`",
        ParameterType.CHOICE: "one of " + ", ".join(f"`{shown(each)}`" for each in parameter.choices or []),
        ParameterType.STRING: "a text"
        + (f" that matches `{shown(parameter.pattern)}`" if parameter.pattern else ""),
    }
    text = f"`{name}` is {words[parameter.type]}"
    low, high = parameter.min, parameter.max
    if low is not None and high is not None:
        text += f" from {shown(low)} to {shown(high)}"
    elif low is not None or high is not None:
        text += f" of at least {shown(low)}" if low is not None else f" of at most {shown(high)}"
    return text + (f" ({parameter.help})" if parameter.help else "")


def check_value(name: str, parameter: Parameter, value: Any) -> str | int | float | bool:
    """The value as the type says, within its limits. Raises JobError naming the parameter and what is legal."""
    if parameter.type is ParameterType.BOOL:
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return bool(value == "true")
        raise JobError(f"parameter `{name}` is `{shown(value)}`, expected true or false")
    if parameter.type in (ParameterType.INT, ParameterType.FLOAT):
        return _check_number(name, parameter, value)
    if not isinstance(value, str):
        value = str(value).lower() if isinstance(value, bool) else str(value)
    if parameter.type is ParameterType.CHOICE:
        if value not in (parameter.choices or []):
            raise JobError(
                f"parameter `{name}` is `{shown(value)}`, which is not one of its choices",
                hint=did_you_mean(value, parameter.choices or []),
            )
        return str(value)
    return _check_text(name, parameter, value)


def _check_number(name: str, parameter: Parameter, value: Any) -> int | float:
    words = "a whole number" if parameter.type is ParameterType.INT else "a number"
    number = _exact(parameter.type, value)
    if number is None:
        raise JobError(f"parameter `{name}` is `{shown(value)}`, expected {words}")
    if isinstance(number, int) and not WHOLE_MIN <= number <= WHOLE_MAX:
        raise JobError(f"parameter `{name}` is {shown(number)}, which needs more than 64 bits")
    if parameter.min is not None and number < parameter.min:
        raise JobError(f"parameter `{name}` is {shown(number)}, at least {shown(parameter.min)} is allowed")
    if parameter.max is not None and number > parameter.max:
        raise JobError(f"parameter `{name}` is {shown(number)}, at most {shown(parameter.max)} is allowed")
    return number


def _exact(kind: ParameterType, value: Any) -> int | float | None:
    """The number that the value is, to its last digit; None where it is not a number of this type. Whole numbers never
    pass through a float: it would change those above 2^53, such as seeds of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        if kind is ParameterType.INT:
            number = int(value)
            return number if isinstance(value, str) or number == value else None
        real = float(value)
    except (ValueError, OverflowError):
        return None
    if abs(real) == float("inf") or (isinstance(value, int) and real != value):
        return None
    return real if real == real else None


def _check_text(name: str, parameter: Parameter, value: str) -> str:
    if parameter.pattern is not None:
        _check_pattern(name, parameter.pattern, value)
        return value
    if len(value) > STRING_LENGTH_MAX or not _DEFAULT_STRING.fullmatch(value):
        raise JobError(
            f"parameter `{name}` is `{shown(value)}`: ASCII letters, digits and `_.,:=+@%/~^-` are allowed, at most "
            f"{STRING_LENGTH_MAX}, no leading `-` or `~` and no `..` in a path",
            hint="the site may allow more by a `pattern` in its application file",
        )
    return value


def _check_pattern(name: str, pattern: str, value: str) -> None:
    """Raises JobError. A pattern that is not used allows what is short enough: the site that wrote it has the say, and
    with this version it does not offer such an application."""
    is_long = len(value) > PATTERN_LENGTH_MAX
    verdict = Verdict.TOO_LONG if is_long else check_pattern(pattern, value)
    if verdict is Verdict.TOO_LONG:
        raise JobError(
            f"parameter `{name}` has {len(value)} characters, which is too long for the pattern `{shown(pattern)}`",
            hint="give long texts as an input file",
        )
    if verdict is Verdict.DIFFERS or "\0" in value:
        raise JobError(f"parameter `{name}` is `{shown(value)}`, which does not match `{shown(pattern)}`")
