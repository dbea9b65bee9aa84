"""Functions that travel by value: pickled again when what they refer to has changed, and only then."""

from __future__ import annotations

import gc
import math
import pickle
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from tidemill_calls.functions import FunctionPickles
from tidemill_calls.process import FUNCTIONS_MAX

SCRIPT = """
import math
import math as tools

FACTOR, GROWN = 3, [1]

class Point:
    pass

def helper(x):
    return FACTOR * x

def plain(x):
    return helper(x) + tools.floor(0.5)

def grown(x):
    return x + len(GROWN)

def of_class():
    return Point()

def made(n):
    return lambda x: x * n

def with_default(x, kept=[]):
    return kept
"""


@pytest.fixture
def script() -> dict[str, Any]:
    """The names of a script."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, names)
    return names


def _is_kept(function: Callable[..., Any]) -> bool:
    pickles = FunctionPickles()
    first = pickles.pickle(function)
    return first is not None and pickles.pickle(function) is first


def test_a_function_of_a_script_is_pickled_once(script: dict[str, Any]) -> None:
    assert _is_kept(script["plain"])
    assert _is_kept(script["made"](3))
    content = FunctionPickles().pickle(script["plain"])
    assert content is not None
    assert pickle.loads(content)(2) == 6


@pytest.mark.parametrize("name", ["grown", "of_class", "with_default"])
def test_a_function_that_refers_to_what_changes_in_place_is_not_kept(
    script: dict[str, Any], name: str
) -> None:
    assert FunctionPickles().pickle(script[name]) is None


def test_a_function_that_carries_attributes_is_not_kept(script: dict[str, Any]) -> None:
    pickles = FunctionPickles()
    assert pickles.pickle(script["plain"]) is not None
    script["plain"].note = []
    assert pickles.pickle(script["plain"]) is None


@pytest.mark.parametrize("function", [math.sqrt, pickle.dumps, int, print])
def test_what_a_worker_can_import_travels_as_a_reference(function: Callable[..., Any]) -> None:
    assert FunctionPickles().pickle(function) is None


def _result(pickles: FunctionPickles, function: FunctionType) -> Any:
    content = pickles.pickle(function)
    assert content is not None
    return pickle.loads(content)(2)


def test_a_constant_a_helper_and_a_closure_that_are_replaced_take_effect(script: dict[str, Any]) -> None:
    pickles = FunctionPickles()
    assert _result(pickles, script["plain"]) == 6
    script["FACTOR"] = 5
    assert _result(pickles, script["plain"]) == 10
    exec("def helper(x): return -x", script)
    assert _result(pickles, script["plain"]) == -2
    script["helper"].__code__ = (lambda x: 7 * x).__code__
    assert _result(pickles, script["plain"]) == 14
    exec("def counter():\n    n = 1\n    def get(x): return n * x\n"
         "    def put(v):\n        nonlocal n\n        n = v\n    return get, put", script)  # fmt: skip
    get, put = script["counter"]()
    assert _result(pickles, get) == 2
    put(4)
    assert _result(pickles, get) == 8


def test_a_name_that_appears_later_takes_effect(script: dict[str, Any]) -> None:
    exec("def late(x): return abs(x) + 1", script)
    pickles = FunctionPickles()
    assert _result(pickles, script["late"]) == 3
    exec("def abs(x): return 100", script)  # hides the builtin one
    assert _result(pickles, script["late"]) == 101


def test_a_function_that_carries_much_data_is_not_kept(script: dict[str, Any]) -> None:
    exec(f"TEXT = 'x' * {1 << 20}\ndef much(): return len(TEXT)", script)
    assert FunctionPickles().pickle(script["much"]) is None


def test_functions_that_are_made_for_each_call_are_let_go(script: dict[str, Any]) -> None:
    pickles = FunctionPickles()
    first = script["made"](0)
    assert pickles.pickle(first) is not None
    kept = weakref.ref(first)
    del first
    for number in range(FUNCTIONS_MAX):
        assert pickles.pickle(script["made"](number)) is not None
    gc.collect()
    assert kept() is None
