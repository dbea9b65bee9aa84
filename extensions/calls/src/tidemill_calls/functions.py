"""Functions that travel by value: pickled once, for as long as nothing that they refer to has changed.

cloudpickle takes lambdas, closures and what a script defines, with all that they refer to, and needs a hundred times
as long for a function as pickle does for a reference. What a function refers to can be replaced between two calls (a
cell of a notebook that runs again), so that each use compares it with what was pickled. A function that refers to what
can change in place, such as a list or a class of a script, is pickled for each call.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from tidemill_calls.process import FUNCTIONS_MAX, pickler

CONTENT_BYTES_MAX = 1 << 16  #: a function whose pickle is larger carries data, which workers do not keep
_PLAIN = (int, float, complex, str, bytes, type(None), BuiltinFunctionType)
_ABSENT = object()


class _References(NamedTuple):
    """What the pickle of a function depends on."""

    functions: list[tuple[FunctionType, CodeType, Any]]
    names: list[tuple[dict[str, Any], str, Any]]
    cells: list[tuple[CellType, Any]]

    def are_unchanged(self) -> bool:
        return (
            all(each.__code__ is code and each.__defaults__ is defaults and not _is_adorned(each)
                for each, code, defaults in self.functions)
            and all(names.get(name, _ABSENT) is value for names, name, value in self.names)
            and all(_content(cell) is value for cell, value in self.cells)
        )  # fmt: skip


class FunctionPickles:
    """Pickles of functions, made again where they have to be. Kept are the newest, as many as a worker keeps: a program
    may make a function for each call. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._known: dict[FunctionType, tuple[bytes, _References]] = {}
        self._lock = threading.Lock()

    def pickle(self, function: Any) -> bytes | None:
        """The pickle of a function that has to travel by value, and whose pickle can be kept; None otherwise."""
        if not (isinstance(function, FunctionType) and travels_by_value(function)):
            return None
        known = self._known.get(function)
        if known is not None and known[1].are_unchanged():
            return known[0]
        references = _references(function)
        if references is None:
            return None
        content = io.BytesIO()
        pickler()(content, protocol=5).dump(function)
        if content.tell() > CONTENT_BYTES_MAX:
            return None
        with self._lock:
            self._known.pop(function, None)
            self._known[function] = content.getvalue(), references
            if len(self._known) > FUNCTIONS_MAX:
                del self._known[next(iter(self._known))]
        return content.getvalue()


def travels_by_value(function: FunctionType) -> bool:
    """Whether a worker cannot import it: it is a script's, a lambda, or inside another function."""
    return function.__module__ == "__main__" or "<" in function.__qualname__


def _references(function: FunctionType) -> _References | None:
    """None if something that its pickle depends on can change in place."""
    result = _References([], [], [])
    todo, seen = [function], {function}
    while todo:
        each = todo.pop()
        if _is_adorned(each):
            return None
        result.functions.append((each, each.__code__, each.__defaults__))
        values = [*(each.__defaults__ or ()), *each.__annotations__.values()]
        for name in _names(each.__code__):
            value = each.__globals__.get(name, _ABSENT)
            result.names.append((each.__globals__, name, value))
            values.append(value)
        for cell in each.__closure__ or ():
            value = _content(cell)
            result.cells.append((cell, value))
            values.append(value)
        for value in values:
            if value is _ABSENT or _is_constant(value):
                continue
            if not isinstance(value, FunctionType):
                return None
            if value not in seen:
                seen.add(value)
                todo.append(value)
    return result


def _is_adorned(function: FunctionType) -> bool:
    return bool(function.__dict__ or function.__kwdefaults__)


def _is_constant(value: Any) -> bool:
    """Whether it cannot change in place, or is pickled as a reference."""
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, tuple | frozenset):
        return all(_is_constant(each) for each in value)
    if isinstance(value, ModuleType):
        return value.__name__ != "__main__" and sys.modules.get(value.__name__) is value
    module = getattr(value, "__module__", None)
    if not isinstance(module, str) or module == "__main__":
        return False
    found: Any = sys.modules.get(module)
    for name in str(getattr(value, "__qualname__", "")).split("."):
        found = getattr(found, name, None)
    return found is value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty so far
        return _ABSENT
