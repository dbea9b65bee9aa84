"""The order in which PBS may consider waiting jobs, as far as users can read it. Pure.

PBS sorts by `job_sort_formula` where the site has one, else by the priority of queues, then by the time of submission;
fair share and `job_sort_key` come before that, and only staff can read those. So this is a good guess, never certain
(PBS Professional Administrator's Guide, 4.2.5.3 "Sorting Jobs", 4.9.21 "Using a Formula for Computing Job Execution
Priority").
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

from tidemill.batch.pbs.replies import Record, read_bytes, read_duration, read_number, text_of

FORMULA_CHARS_MAX = 2000

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,
}
_CALLS: dict[str, Callable[..., float]] = {
    "min": min, "max": max, "abs": abs, "sqrt": math.sqrt, "log": math.log, "log10": math.log10, "exp": math.exp,
    "pow": math.pow, "ceil": math.ceil, "floor": math.floor,
}  # fmt: skip


def priority(job: Record, queue: Record, formula: ast.expr | None) -> float:
    """The larger, the earlier: what the formula gives, or else the priority of the job's queue."""
    if formula is not None:
        found = _value(formula, _terms(job, queue))
        if found is not None:
            return found
    return float(read_number(text_of(queue, "Priority")))


def read_formula(text: str) -> ast.expr | None:
    """The server's `job_sort_formula`; None where there is none, or none that is arithmetic."""
    if not text or len(text) > FORMULA_CHARS_MAX:
        return None
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _terms(job: Record, queue: Record) -> dict[str, float]:
    """What a formula may name: resources as numbers (sizes in kB, times in seconds) and PBS's own words."""
    terms = {
        "job_priority": float(read_number(text_of(job, "Priority"))),
        "queue_priority": float(read_number(text_of(queue, "Priority"))),
        "eligible_time": read_duration(text_of(job, "eligible_time")) or 0.0,
    }
    resources = job.get("Resource_List")
    for name in resources if isinstance(resources, dict) else ():
        text = text_of(job, "Resource_List", name)
        if name in ("mem", "vmem", "pmem", "pvmem"):
            terms[name] = read_bytes(text) / 1024.0
        elif name in ("walltime", "cput", "pcput", "soft_walltime", "min_walltime", "max_walltime"):
            terms[name] = read_duration(text) or 0.0
        else:
            try:
                terms[name] = float(text)
            except ValueError:
                continue
    return terms


def _value(part: ast.expr, terms: Mapping[str, float]) -> float | None:
    """The value of a formula; None where it names what users cannot see (`fairshare_perc`), or is not arithmetic."""
    try:
        found = _number(part, terms)
    except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if math.isfinite(found) else None


def _number(part: ast.expr, terms: Mapping[str, float]) -> float:
    match part:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name):
            return terms[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_number(inner, terms)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _number(inner, terms)
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_number(left, terms), _number(right, terms))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return float(_CALLS[name](*(_number(each, terms) for each in args)))
        case _:
            raise ValueError("not arithmetic")
