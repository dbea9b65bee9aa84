"""Tables that extensions add to files, by entry points of `tidemill.settings` (docs/extensions.md).

They are read, described and listed as the core's own tables are: a file's record gets a field for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from tidemill import extensions
from tidemill.config.described import settings
from tidemill.errors import ConfigError

FILES = ("client.toml", "server.toml", "site.toml")  #: the `FILE` of the records that may have more tables
T = TypeVar("T", bound=msgspec.Struct)
P = TypeVar("P")
_CORE: dict[type[msgspec.Struct], type[msgspec.Struct]] = {}  # the core's own record of an extended one


class SettingsTable(NamedTuple):
    """The table `[NAME]` of a file, under the name of its entry point; each key has a default. `examples`: a value in
    TOML by key, or the keys of one of a list of tables, for the comments of a new file."""

    file: str
    record: type[msgspec.Struct]
    examples: Mapping[str, str] = MappingProxyType({})


def added(record: type[msgspec.Struct]) -> dict[str, SettingsTable]:
    """The tables that extensions add to the file of a record, by name."""
    return _added(_CORE.get(record, record)) if getattr(record, "FILE", "") else {}


@cache
def _added(record: type[msgspec.Struct]) -> dict[str, SettingsTable]:
    found: dict[str, SettingsTable] = {}
    for extension, name, table in extensions.entries(extensions.SETTINGS):
        wrong = _wrong(table)
        if not wrong and table.file == record.FILE:  # type: ignore[attr-defined]
            if name in settings(record) or name in found:
                wrong = "that name is taken"
            elif not (name.isidentifier() and name == name.lower()):
                wrong = "a table cannot have that name"
            else:
                found[name] = table
        if wrong:
            extensions.warn(extension, f"its settings `[{name}]` are left out: {wrong}")
    return found


def _wrong(table: Any) -> str:
    """Why this is not a table of settings; empty if it is one."""
    if not isinstance(table, SettingsTable) or table.file not in FILES:
        return f"it is not a `SettingsTable` of {', '.join(FILES[:-1])} or {FILES[-1]}"
    try:
        table.record()
        settings(table.record)
    except Exception as error:  # noqa: BLE001 -- an extension's code may raise anything
        return f"its record cannot be used: {error}"
    return ""


def extended(record: type[T]) -> type[T]:
    """The record of a file with the tables that extensions add to it; itself where none does."""
    return cast("type[T]", _extended(_CORE.get(record, record))) if added(record) else record


@cache
def _extended(record: type[msgspec.Struct]) -> type[msgspec.Struct]:
    fields = [
        (name, table.record, msgspec.field(default_factory=table.record))
        for name, table in added(record).items()
    ]
    made = msgspec.defstruct(
        record.__name__, fields, bases=(record,), module=record.__module__, namespace={"__doc__": record.__doc__},
        frozen=True, kw_only=True, forbid_unknown_fields=True,
    )  # fmt: skip
    _CORE[made] = record
    return made


def tables_of(read: msgspec.Struct) -> dict[str, Any]:
    """The added tables of a file that was read, by name; their defaults where nothing was read."""
    kinds = added(type(read))
    return {name: getattr(read, name, None) or kind.record() for name, kind in kinds.items()}


def provided(name: str, kind: type[P], read: msgspec.Struct) -> P | None:
    """What an extension makes for the core of the table `[name]` of a file that was read, by its entry point of that
    name in `tidemill.providers`. None = the table says nothing, or no extension has it.

    Raises ConfigError for settings that the extension refuses, and where it is at fault.
    """
    settings_read = tables_of(read).get(name)
    if settings_read is None or settings_read == added(type(read))[name].record():
        return None
    whose, other = (extensions.owner(group, name) for group in (extensions.SETTINGS, extensions.PROVIDERS))
    if other not in ("", whose):  # whose the table is says who is believed
        raise ConfigError(
            f"`[{name}]` is a table of the extension `{whose}`, and `{other}` would provide what it sets"
        )
    make = extensions.find(extensions.PROVIDERS, name)
    made = make(settings_read) if callable(make) else None
    if not isinstance(made, kind):
        raise ConfigError(f"`[{name}]`: its extension makes no `{kind.__name__}` of this table")
    return made


def lacking(record: type[msgspec.Struct], name: str) -> ConfigError | None:
    """Why the file of a record cannot have a table that an extension has; None if none has it."""
    if not getattr(record, "FILE", ""):
        return None
    try:
        table = extensions.find(extensions.SETTINGS, name)
    except ConfigError as error:
        return error
    owner = extensions.owner(extensions.SETTINGS, name)
    if owner in extensions.faults():
        return ConfigError(f"`[{name}]` needs the extension `{owner}`: {extensions.faults()[owner]}")
    return None if table is None else ConfigError(f"`[{name}]` is a table of {table.file}")
