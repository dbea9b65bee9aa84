"""What a configuration file may hold, in words, as msgspec knows it of the records: types, bounds, every key."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec
import msgspec.inspect as inspect

from tidemill.config.keys import CREDENTIALS


class Setting(NamedTuple):
    """A field of a record, as msgspec converts and as it describes it."""

    name: str
    type: Any
    field: inspect.Field

    @property
    def info(self) -> inspect.Type:
        """The setting's type with all annotations."""
        return self.field.type


@cache
def settings(record: type[msgspec.Struct]) -> dict[str, Setting]:
    """The fields of a record by their names in a file. Takes a millisecond for many, and job files have many jobs."""
    info = inspect.type_info(record)
    assert isinstance(info, inspect.StructType)
    types = {field.name: field.type for field in msgspec.structs.fields(record)}
    return {field.encode_name: Setting(field.name, types[field.name], field) for field in info.fields}


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a configuration file; `default` is shown as in TOML, None where the key is required."""

    key: str
    type: str
    unit: str
    default: str | None
    doc: str

    @property
    def is_credential(self) -> bool:
        """Whether it is one of the keys that mean the same in every table."""
        return self.key.rpartition(".")[2] in CREDENTIALS


def describe(record: type[msgspec.Struct], *, inside: bool = False) -> list[Key]:
    """Every key that a file of this record may hold, tables opened, in the order of the record. Tables that a file may
    have several of are not keys: `repeated` describes them.

    `inside`: also the keys of tables that a file may have several of, as `io[].name` and `containers.NAME.path`."""
    return [_key(at, field) for at, field, is_table in fields_of(record, "", inside=inside) if not is_table]


def repeated(record: type[msgspec.Struct]) -> list[Key]:
    """The tables that a file of this record may have several of, such as `accounts` and `tokens.issuers`."""
    return [_key(at, field) for at, field, is_table in fields_of(record, "", inside=False) if is_table]


def fields_of(
    record: type[msgspec.Struct], prefix: str, *, inside: bool
) -> Iterator[tuple[str, inspect.Field, bool]]:
    """The fields of a record and its tables: dotted key, field, and whether it is a table that may be there often."""
    for name, setting in settings(record).items():
        bare = bare_type(setting.info)
        one, form = one_of(bare)
        if isinstance(bare, inspect.StructType):
            yield from fields_of(bare.cls, f"{prefix}{name}.", inside=inside)
        else:
            yield prefix + name, setting.field, isinstance(one, inspect.StructType)
        if inside and isinstance(one, inspect.StructType):
            yield from fields_of(one.cls, f"{prefix}{name}{form}.", inside=True)


def _key(key: str, field: inspect.Field) -> Key:
    return Key(
        key=key,
        type=_type_name(field.type),
        unit=_unit(field),
        default=_default(field),
        doc=notes_of(field.type).get("description", ""),
    )


HOLDERS: dict[type[inspect.Type], type] = {inspect.ListType: list, inspect.DictType: dict}


def one_of(info: inspect.Type) -> tuple[inspect.Type | None, str]:
    """What a list or table of alike things holds, bare, and how one of them is written behind the key."""
    inner = inner_of(info)
    if inner is None:
        return None, ""
    return bare_type(inner), "[]" if isinstance(info, inspect.ListType) else ".NAME"


def inner_of(info: inspect.Type) -> inspect.Type | None:
    """What a list or table of alike things holds, with its annotations; None for other types."""
    if isinstance(info, inspect.ListType):
        return info.item_type
    return info.value_type if isinstance(info, inspect.DictType) else None


def bare_type(info: inspect.Type) -> inspect.Type:
    """A type without annotations, and without `None` beside it."""
    while isinstance(info, inspect.Metadata):
        info = info.type
    if isinstance(info, inspect.UnionType):
        members = [each for each in info.types if not isinstance(each, inspect.NoneType)]
        return bare_type(members[0]) if len(members) == 1 else info
    return info


def notes_of(info: inspect.Type) -> dict[str, Any]:
    """What annotations say of a type: `description`, `kind`, `expected`; the outer ones win."""
    found: dict[str, Any] = {}
    while isinstance(info, inspect.Metadata):
        found = {**(info.extra or {}), **(info.extra_json_schema or {}), **found}
        info = info.type
    for each in info.types if isinstance(info, inspect.UnionType) else ():
        found = {**notes_of(each), **found}
    return found


_UNITS = {
    "_s": "s", "_ms": "ms", "_mb": "MB", "_bytes": "bytes", "_bytes_max": "bytes", "_core_s_max": "core-s",
    "_s_max": "s", "_per_s": "1/s", "bytes_per_s": "bytes/s",
}  # fmt: skip
"""The unit of a key by how its name ends."""


def _unit(field: inspect.Field) -> str:
    kind = notes_of(field.type).get("kind")
    if kind is not None:
        return _KIND_UNITS.get(kind, "")
    endings = [ending for ending in _UNITS if field.encode_name.endswith(ending)]
    return _UNITS[max(endings, key=len)] if endings else ""


def _default(field: inspect.Field) -> str | None:
    if field.required:
        return None
    factory = field.default_factory
    value = field.default if factory is msgspec.NODEFAULT else factory()
    if value is None:
        return "none"
    return msgspec.json.encode(value, enc_hook=str).decode()


def choices_of(info: inspect.Type) -> tuple[Any, ...]:
    """The values of a type that has a few."""
    if isinstance(info, inspect.EnumType):
        return tuple(each.value for each in info.cls)
    return info.values if isinstance(info, inspect.LiteralType) else ()


def wanted(info: inspect.Type) -> str:
    """What a key that is missing holds, and what it is for."""
    text = notes_of(info).get("description")
    return f"{_type_name(info)}: {text}" if text else f"expected {_type_name(info)}"


def expected(info: inspect.Type) -> str:
    """What is legal, with its bounds."""
    notes, bare = notes_of(info), bare_type(info)
    words = notes.get("expected") or _EXPECTED.get(notes.get("kind", "")) or _type_name(info)
    bounds = [
        text.format(most) for name, text in _BOUNDS.items() if (most := getattr(bare, name, None)) is not None
    ]
    return ", ".join([words, *bounds])


def _type_name(info: inspect.Type) -> str:
    kind, bare = notes_of(info).get("kind"), bare_type(info)
    if kind is not None:
        return _KIND_NAMES.get(kind, str(kind))
    if isinstance(bare, inspect.UnionType):
        return " or ".join(_type_name(each) for each in bare.types if not isinstance(each, inspect.NoneType))
    if isinstance(bare, inspect.LiteralType | inspect.EnumType):
        return "one of " + ", ".join(f"`{each}`" if each else "empty" for each in choices_of(bare))
    one, form = one_of(bare)
    if one is not None:
        return f"{'list' if form == '[]' else 'table'} of {_type_name(one)}"
    return "path" if isinstance(bare, inspect.CustomType) else _SCALARS.get(type(bare), "a table")


_KIND_UNITS = {"duration": "s", "size": "bytes"}
_KIND_NAMES = {"addresses": "text or list of text", "place": "path or URL", "token": "path or `discover`"}
_EXPECTED = {
    "duration": "a duration (seconds, or a text such as `90m` or `HH:MM:SS`)",
    "size": "a size (bytes, or a text such as `2GB`)",
}
_BOUNDS = {
    "gt": "more than {:,}", "ge": "at least {:,}", "lt": "less than {:,}", "le": "at most {:,}",
    "multiple_of": "a multiple of {:,}", "min_length": "of length {} or more", "max_length": "of length {} or less",
}  # fmt: skip
_SCALARS: dict[type, str] = {
    inspect.StrType: "text",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "true or false",
}
