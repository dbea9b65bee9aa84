"""Configuration: one TOML file, one frozen record, read once at start and passed down in parts.

Unknown keys, wrong types and values out of limits are errors that name file, key and what is legal. Every key
carries its type, unit, default and reason, from which the reference page is made. Knows no component.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import msgspec.inspect as inspect

from tidemill import clock
from tidemill.config.described import (
    HOLDERS,
    Setting,
    bare_type,
    choices_of,
    expected,
    inner_of,
    notes_of,
    one_of,
    settings,
    wanted,
)
from tidemill.config.described import Key as Key
from tidemill.config.described import describe as describe
from tidemill.config.described import repeated as repeated
from tidemill.config.keys import CREDENTIALS as CREDENTIALS
from tidemill.config.keys import DISCOVER, url_in
from tidemill.config.tables import added as added
from tidemill.config.tables import extended as extended
from tidemill.config.tables import lacking
from tidemill.errors import UNDECODABLE, ConfigError, did_you_mean, nearest

T = TypeVar("T", bound=msgspec.Struct)

KEY_PARTS_MAX = 1000
KEY_LIKENESS_MIN = 0.6  #: `spill` and `stop_file`, alike by 0.57, have nothing to do with each other
KEYS_LISTED_MAX = 8  #: a hint that lists more of them is too long to read
PLACES_NAMED_MAX = 3  #: `ca` is a key of a dozen tables: naming them says nothing
PROBLEMS_SHOWN = 20  #: of one file: a screen of them
TEXT_SHOWN = 200  #: characters of a wrong value
BACKSLASHES = "write texts with `\\`, such as patterns, in single quotes: TOML then leaves `\\` alone"
TWICE = "a line above has the same key or table: keep one of the two"
_KEY_START = re.compile(r"[{,\[]")
_LIST_INDEX = re.compile(r"\[\d+\]")

_SIZE_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", 1):
    _SIZE_UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power}


# ---- reading -------------------------------------------------------------------------------------


def load(path: Path, record: type[T]) -> T:
    """The record that a TOML file holds. Relative paths in it are relative to the file's directory.

    Raises ConfigError naming the file and the dotted key that is wrong, what was found and what is legal.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return loads(text, record, source=path)


def loads(text: str, record: type[T], *, source: Path) -> T:
    """As `load`, of a text; `source` is named in errors, and relative paths start at its directory."""
    try:
        data = parse_toml(text)
    except UNDECODABLE as error:
        raise not_toml(error, source) from error
    return convert(data, record, source=source)


def not_toml(error: Exception, source: Path) -> ConfigError:
    """The error for a text that `parse_toml` refused, which names the line."""
    said = str(error)
    twice = TWICE if said.startswith(("Cannot declare", "Cannot overwrite")) else None
    hint = BACKSLASHES if said.startswith("Unescaped '\\'") else twice
    return ConfigError(f"{source}: is not TOML: {said}", hint=hint)


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text, which may begin with a byte order mark. Raises one of UNDECODABLE. tomllib's memory
    grows with the square of a key's parts: 20,000 parts in 40 kB take 1.6 GB (Python 3.11)."""
    for piece in text.replace("\n", "=").split("="):
        if piece.count(".") > KEY_PARTS_MAX and _KEY_START.split(piece)[-1].count(".") > KEY_PARTS_MAX:
            raise ValueError(f"a key has more than {KEY_PARTS_MAX} parts: `{piece[:80]}...`")
    return tomllib.loads(text.removeprefix("\ufeff"))


def convert(data: dict[str, Any], record: type[T], *, source: Path) -> T:
    """As `load`, of a table that was read already."""
    whole = extended(record)
    reader = _Reader(source, whole)
    try:
        result = reader.table(data, whole, "")
    except _NotedError:
        raise reader.together() from None
    if reader.errors:
        raise reader.together()
    return result


def parse_size(text: str) -> int:
    """Bytes of `2GB`, `500MB`, `64KiB`, `12`; raises ValueError that quotes the text."""
    stripped = text.strip().upper()
    number = stripped.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = stripped[len(number) :]
    try:
        return int(float(number) * _SIZE_UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"`{text}` is not a size such as `2GB`, `500MB` or `64KiB`") from None


def _parse_duration(text: str) -> float:
    """Seconds, with fractions (`0.5s`), unlike walltimes. Raises ValueError."""
    stripped = text.strip()
    try:
        seconds = float(stripped.removesuffix("s")) if stripped.endswith("s") else math.nan
    except ValueError:
        seconds = math.nan
    return seconds if math.isfinite(seconds) else float(clock.parse_duration_s(text))


_PARSERS: dict[str, Callable[[str], float | int]] = {"duration": _parse_duration, "size": parse_size}


class _NotedError(Exception):
    """A table is wrong, and its reader has noted why."""


class _Reader:
    """Makes records of the tables of one file. What is wrong is noted, so that the owner corrects all of it at once."""

    def __init__(self, source: Path, record: type[msgspec.Struct]) -> None:
        self._source, self._record = source, record
        self.errors: list[ConfigError] = []

    def together(self) -> ConfigError:
        """One error: the only one, or a line for each with its hint behind it."""
        if len(self.errors) == 1:
            return self.errors[0]
        lines = [
            each.message.removeprefix(f"{self._source}: ") + (f" ({each.hint})" if each.hint else "")
            for each in self.errors[:PROBLEMS_SHOWN]
        ]
        if len(self.errors) > len(lines):
            lines.append(f"and {len(self.errors) - len(lines)} more")
        return ConfigError("\n".join([f"{self._source}: {len(self.errors)} errors", *lines]))

    def table(self, value: Any, record: type[T], key: str) -> T:
        """The record that a table holds. Raises ConfigError where it is not a table, else _NotedError."""
        known, dot = settings(record), f"{key}." if key else ""
        if not isinstance(value, dict):
            raise self._refused(value, "a table", key, _table_hint(value, key, known))
        unknown = [name for name in value if name not in known]
        for name in unknown:
            error = None if key else lacking(record, name)
            if error is not None:
                self._note(error.message, error.hint)
            else:
                self._note(f"unknown key `{dot}{name}`", self._meant(key, name, known))
        missing = [name for name, each in known.items() if each.field.required and name not in value]
        for name in missing if not unknown else ():  # one of the unknown keys may stand for it
            self._note(f"key `{dot}{name}` is missing", wanted(known[name].info))
        made = self._each(
            (known[name].name, partial(self._value, each, known[name], dot + name))
            for name, each in value.items()
            if name in known
        )
        if missing:
            raise _NotedError
        try:
            return record(**made)
        except (ValueError, TypeError) as error:  # of `__post_init__`
            said = str(error)
            self._note(f"{f'`{key}`: ' if key else ''}{said[:1].lower()}{said[1:]}")
            raise _NotedError from error

    def _each(self, makes: Iterable[tuple[Hashable, Callable[[], Any]]]) -> dict[Any, Any]:
        """What is made, by name, once all of it was tried. Raises _NotedError."""
        made: dict[Any, Any] = {}
        is_wrong = False
        for name, make in makes:
            try:
                made[name] = make()
            except ConfigError as error:
                self.errors.append(error)
                is_wrong = True
            except _NotedError:
                is_wrong = True
        if is_wrong:
            raise _NotedError
        return made

    def _note(self, text: str, hint: str | None = None) -> None:
        self.errors.append(ConfigError(f"{self._source}: {text}", hint=hint))

    def _value(self, value: Any, setting: Setting, key: str) -> Any:
        """What a key sets. Raises ConfigError, _NotedError."""
        bare = bare_type(setting.info)
        if isinstance(bare, inspect.StructType):
            return self.table(value, bare.cls, key)
        one, _ = one_of(bare)
        if not isinstance(one, inspect.StructType):
            made = self._prepared(value, setting.info, key)
        elif isinstance(value, HOLDERS[type(bare)]):
            tables = self._each(
                (name, partial(self.table, each, one.cls, at)) for name, each, at in _parts(value, key)
            )
            made = tables if isinstance(value, dict) else list(tables.values())
        else:
            hint = f"write `[[{_LIST_INDEX.sub('', key)}]]`" if isinstance(value, dict) else None
            raise self._refused(
                value, "a list of tables" if isinstance(bare, inspect.ListType) else "a table", key, hint
            )
        try:
            return msgspec.convert(made, setting.type)
        except msgspec.ValidationError:
            raise self._wrong(value, made, setting, key) from None

    def _prepared(self, value: Any, info: inspect.Type, key: str) -> Any:
        """A value as msgspec takes it: durations and sizes as numbers, paths made absolute. Raises ConfigError."""
        kind, bare = notes_of(info).get("kind", ""), bare_type(info)
        one = inner_of(bare)
        if one is not None and isinstance(value, HOLDERS[type(bare)]):
            made = {name: self._prepared(each, one, at) for name, each, at in _parts(value, key)}
            return made if isinstance(value, dict) else list(made.values())
        if kind == "addresses" and isinstance(value, list):
            if not value or not all(isinstance(each, str) and each for each in value):
                raise self._refused(value, "an address, or a list of one or more addresses as text", key)
            return ",".join(value)
        if not isinstance(value, str):
            return value
        try:
            if kind in _PARSERS:
                return _PARSERS[kind](value)
            if kind == "place":
                return url_in(value) or (str(self._path(value)) if value else "")
            if isinstance(bare, inspect.CustomType) and bare.cls is Path:
                return DISCOVER if kind == "token" and value == str(DISCOVER) else self._path(value)
        except (
            ValueError,
            RuntimeError,
        ) as error:  # such as `~name` of a user whom this machine does not know
            raise ConfigError(f"{self._source}: `{key}`: {error}") from error
        return value

    def _path(self, value: str) -> Path:
        if "\0" in value:
            raise ValueError("a path cannot hold a NUL")
        return (self._source.parent / Path(value).expanduser()).absolute()

    def _wrong(self, value: Any, made: Any, setting: Setting, key: str) -> ConfigError:
        """The error for a value that msgspec refused, or for its first element that is wrong."""
        info, hint = setting.info, None
        one = inner_of(bare_type(info))
        if one is not None and isinstance(value, dict | list):
            for name, each, at in _parts(made, key):
                if not _fits({name: each} if isinstance(made, dict) else [each], setting.type):
                    value, info, key = value[name], one, at
                    break
        elif one is not None and _fits([value], setting.type):
            hint = f"write `{key.rpartition('.')[2]} = [{json.dumps(value, ensure_ascii=False)}]`"
        choices = [str(each) for each in choices_of(bare_type(info))]
        best = nearest(value, choices) if choices and isinstance(value, str) else None
        return self._refused(value, expected(info), key, f"did you mean `{best}`?" if best else hint)

    def _refused(self, value: Any, wanted: str, key: str, hint: str | None = None) -> ConfigError:
        return ConfigError(f"{self._source}: `{key}` is {_found(value)}, expected {wanted}", hint=hint)

    def _meant(self, table: str, name: str, known: Collection[str]) -> str:
        """A hint for an unknown key of a table: the other tables that have it, else one that is much like it, else all
        of a small table, else the page of all."""
        elsewhere = _elsewhere(self._record, table, name)
        if elsewhere is not None:
            return elsewhere
        best = nearest(name, known, likeness=KEY_LIKENESS_MIN)
        if best is not None:
            return f"did you mean `{best}`?"
        is_on_page = self._record.__name__.endswith("Config")
        if is_on_page and not 0 < len(known) <= KEYS_LISTED_MAX:
            return "docs/configuration.md lists the keys of this file"
        return did_you_mean(name, known)


def _parts(value: Any, key: str) -> Iterator[tuple[Any, Any, str]]:
    """The elements of a table or list: name or index, element, dotted key."""
    if isinstance(value, dict):
        yield from ((name, each, f"{key}.{name}") for name, each in value.items())
    else:
        yield from ((index, each, f"{key}[{index}]") for index, each in enumerate(value))


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _table_hint(value: Any, key: str, known: dict[str, Setting]) -> str | None:
    """What to write where a table is expected; None = that is clear."""
    if isinstance(value, list):
        is_wide = value and isinstance(value[0], dict) and "[" not in key
        return f"write `[{key}]` instead of `[[{key}]]`" if is_wide else None
    only = next(iter(known.values())) if len(known) == 1 else None
    if only is None or not _fits(value, only.type):
        return None
    is_plain = isinstance(value, str) and value.isprintable() and "'" not in value
    shown = f"'{value}'" if is_plain else json.dumps(value, ensure_ascii=False)
    return f"write `{key.rpartition('.')[2]} = {{ {only.field.encode_name} = {shown} }}`"


def _elsewhere(record: type[msgspec.Struct], table: str, name: str) -> str | None:
    """A hint for a key, or table, that a few other tables of the record have; None = none or many have it."""
    keys, tables = _places(record)
    if name in tables:
        return f"write `{tables[name]}`" if table or tables[name].strip("[]") != name else None
    found = keys.get(name, [])
    if "" in found and table:
        return f"`{name}` belongs to the top of the file: write it above the first `[table]`"
    if not 0 < len(found) <= PLACES_NAMED_MAX:
        return None
    return f"`{name}` is a key of " + " and ".join(f"`{each}`" for each in found)


@cache
def _places(record: type[msgspec.Struct]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Each name of a key -> the tables of the record that have it (empty = the top), and each name of a table that
    stands only once in the record -> how it is written."""
    keys: dict[str, list[str]] = {}
    tables: dict[str, list[str]] = {}
    for key in describe(record, inside=True):
        parts = key.key.split(".")
        keys.setdefault(parts[-1], []).append(_written(parts[:-1]))
        for end in range(1, len(parts)):
            name, form = parts[end - 1].removesuffix("[]"), _written(parts[:end])
            if parts[end - 1] != "NAME" and form not in tables.setdefault(name, []):
                tables[name].append(form)
    return keys, {name: forms[0] for name, forms in tables.items() if len(forms) == 1 and name not in keys}


def _written(parts: list[str]) -> str:
    """The header of a table, as `[harvest]` or `[[io]]`; empty for the top of the file."""
    joined = ".".join(parts)
    header = f"[{joined.replace('[]', '')}]"
    return f"[{header}]" if joined.endswith("[]") else header if parts else ""


def _found(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return f'the text "{value[:TEXT_SHOWN]}"' if isinstance(value, str) else f"`{value}`"
