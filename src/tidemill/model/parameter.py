"""Whether a value is legal for a parameter of an application. Pure; client and site ask the same question."""

from __future__ import annotations

import re
from typing import Any

from tidemill.errors import JobError, did_you_mean
from tidemill.model.application import Parameter, ParameterType

STRING_LENGTH_MAX = 255
_DEFAULT_STRING = re.compile(r"(?!-)[^\s\x00-\x1f\x7f]{0,255}")


def check_value(name: str, parameter: Parameter, value: Any) -> str | int | float | bool:
    """The value as the type says, within its limits. Raises JobError naming the parameter and what is legal."""
    if parameter.type is ParameterType.BOOL:
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return bool(value == "true")
        raise JobError(f"parameter `{name}` is `{value}`, expected true or false")
    if parameter.type in (ParameterType.INT, ParameterType.FLOAT):
        return _check_number(name, parameter, value)
    if not isinstance(value, str):
        value = str(value).lower() if isinstance(value, bool) else str(value)
    if parameter.type is ParameterType.CHOICE:
        if value not in (parameter.choices or []):
            raise JobError(
                f"parameter `{name}` is `{value}`, which is no choice",
                hint=did_you_mean(value, parameter.choices or []),
            )
        return str(value)
    return _check_text(name, parameter, value)


def _check_number(name: str, parameter: Parameter, value: Any) -> int | float:
    kind = int if parameter.type is ParameterType.INT else float
    words = "a whole number" if kind is int else "a number"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise JobError(f"parameter `{name}` is `{value}`, expected {words}")
    try:
        number = kind(value)
        exact = number == float(value) and abs(number) < float("inf")
    except (ValueError, OverflowError):
        exact, number = False, 0
    if not exact:
        raise JobError(f"parameter `{name}` is `{value}`, expected {words}")
    if parameter.min is not None and number < parameter.min:
        raise JobError(f"parameter `{name}` is {number}, at least {parameter.min:g} is allowed")
    if parameter.max is not None and number > parameter.max:
        raise JobError(f"parameter `{name}` is {number}, at most {parameter.max:g} is allowed")
    return number


def _check_text(name: str, parameter: Parameter, value: str) -> str:
    if parameter.pattern is not None:
        if not re.fullmatch(parameter.pattern, value) or "\0" in value:
            raise JobError(f"parameter `{name}` is `{value}`, which does not match `{parameter.pattern}`")
        return value
    if not _DEFAULT_STRING.fullmatch(value):
        raise JobError(
            f"parameter `{name}` is `{value}`: white space, control characters, a leading `-` and more than "
            f"{STRING_LENGTH_MAX} characters are not allowed",
            hint="the site may allow more by a `pattern` in its application file",
        )
    return value
