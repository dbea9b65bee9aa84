"""Messages and records of each kind as a release wrote them, in `tests/golden/VERSION`; later versions must read them.

    python -m tests.golden.messages    # write those of this version anew: before its release, or for a new kind

A line is the name of a type and its JSON. Examples are made from the types themselves, with every field set, so that a
new kind of message needs no code here. `tests/unit/wire/test_wire_golden.py` reads them.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as kinds

from tidemill import __version__
from tidemill.server.api.routes import ROUTES
from tidemill.site.state import site_state
from tidemill.wire import node
from tidemill.wire.api import SyncReply, SyncRequest
from tidemill.wire.protocol import PROTOCOL

GOLDEN = Path(__file__).parent
FIXED = {"to": "message", "protocol": PROTOCOL, "format": node.FORMAT}
"""Values of fields that do not take any text or number."""


def families() -> dict[str, dict[str, Any]]:
    """The types of messages, by the file that holds their examples, and by name."""
    bodies = [each.body for each in ROUTES if each.body is not None]
    replies = [each.reply for each in ROUTES if each.run is not None]
    return {
        "sync": _named([SyncRequest, SyncReply]),
        "api": _named([*bodies, *replies]),
        "node": _named(
            each
            for each in vars(node).values()
            if isinstance(each, type) and issubclass(each, msgspec.Struct)
        ),
        "site_log": _named(site_state.Entry.__args__),
    }


def _named(found: Iterable[Any]) -> dict[str, Any]:
    return {_name(each): each for each in found}


def _name(kind: Any) -> str:
    if isinstance(kind, types.GenericAlias):
        return f"{kind.__name__}[{','.join(map(_name, kind.__args__))}]"
    return str(getattr(kind, "__name__", kind)).replace(" ", "")


def example(kind: Any) -> bytes:
    """A message of a type as this version writes it: every field is set, and each list has an element of each kind."""
    numbers = itertools.count(1)
    value = msgspec.json.encode(_value(kinds.type_info(kind), "value", numbers))
    return msgspec.json.encode(msgspec.json.decode(value, type=kind))


def _value(info: kinds.Type, name: str, numbers: Iterator[int]) -> Any:
    if name in FIXED:
        return FIXED[name]
    match info:
        case kinds.ListType() | kinds.SetType() | kinds.VarTupleType():
            return [_value(each, name, numbers) for each in _members(info.item_type)]
        case kinds.TupleType():
            return [_value(each, name, numbers) for each in info.item_types]
        case kinds.DictType():
            key = _value(info.key_type, name, numbers)
            return {str(key): _value(info.value_type, name, numbers)}
        case kinds.UnionType():
            return _value(_members(info)[0], name, numbers)
        case kinds.StructType():
            return _struct(info, numbers)
        case _:
            return _scalar(info, name, numbers)


def _scalar(info: kinds.Type, name: str, numbers: Iterator[int]) -> Any:
    match info:
        case kinds.BoolType():
            return True
        case kinds.IntType():
            return _bounded(info, next(numbers))
        case kinds.FloatType():
            return _bounded(info, next(numbers) + 0.5)
        case kinds.StrType() | kinds.AnyType():
            return name
        case kinds.LiteralType():
            return info.values[0]
        case kinds.EnumType():
            return next(iter(info.cls)).value
        case kinds.RawType():
            return {name: next(numbers)}
        case _:
            raise TypeError(f"no example of {info} for `{name}`")


def _bounded(info: kinds.IntType | kinds.FloatType, number: float) -> float:
    """The number, or the one nearest to it that the type takes."""
    if info.le is not None:
        number = min(number, info.le)
    return number if info.ge is None else max(number, info.ge)


def _members(info: kinds.Type) -> list[kinds.Type]:
    """What a value of a type may be, but for none."""
    if not isinstance(info, kinds.UnionType):
        return [info]
    return [each for each in info.types if not isinstance(each, kinds.NoneType)]


def _struct(info: kinds.StructType, numbers: Iterator[int]) -> Any:
    values = {each.encode_name: _value(each.type, each.name, numbers) for each in info.fields}
    if info.array_like:
        return [*([] if info.tag is None else [info.tag]), *values.values()]
    return values if info.tag is None else {str(info.tag_field): info.tag, **values}


def recorded(release: str, family: str) -> dict[str, bytes]:
    """The examples of a release by the names of their types."""
    lines = (GOLDEN / release / f"{family}.txt").read_bytes().splitlines()
    return {name.decode(): body for name, _, body in (line.partition(b" ") for line in lines)}


def releases() -> list[str]:
    """The releases of which there are examples."""
    return sorted(each.name for each in GOLDEN.iterdir() if each.name[0].isdigit())


def write() -> None:
    """Write the examples of this version."""
    folder = GOLDEN / __version__
    folder.mkdir(exist_ok=True)
    for family, found in families().items():
        lines = [f"{name} ".encode() + example(kind) + b"\n" for name, kind in found.items()]
        (folder / f"{family}.txt").write_bytes(b"".join(lines))


if __name__ == "__main__":
    write()
