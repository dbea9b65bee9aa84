"""Configuration: one TOML file, one frozen record, read once at start and passed down in parts.

Unknown keys, wrong types and values out of limits are errors that name file, key and what is legal. Every key
carries its type, unit, default and reason, from which the reference page is made. Knows no component.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import msgspec.inspect as inspect

from tidemill import clock
from tidemill.config.keys import DISCOVER, url_in
from tidemill.errors import UNDECODABLE, ConfigError, did_you_mean, nearest

T = TypeVar("T", bound=msgspec.Struct)

CREDENTIALS = {
    "certificate": "Certificate to show (PEM, with its intermediate CAs), or a proxy with its key",
    "key": "Key of the certificate (PEM, mode 0600); none = in the same file",
    "ca": "CAs that the other side's certificate must be from: a PEM file, or a directory by hash as X509_CERT_DIR; "
    "none = the system's",
    "token_file": "File (mode 0600) with a bearer token that something else renews, as htgettoken does",
    "secret_file": "File (mode 0600) with a secret that both sides know",
}
"""Keys that mean the same in every table (recognised by the last part of their name), and what they mean."""

KEY_PARTS_MAX = 1000
KEY_LIKENESS_MIN = 0.6  #: `spill` and `stop_file`, alike by 0.57, have nothing to do with each other
KEYS_LISTED_MAX = 8  #: a hint that lists more of them is too long to read
PLACES_NAMED_MAX = 3  #: `ca` is a key of a dozen tables: naming them says nothing
PROBLEMS_SHOWN = 20  #: of one file: a screen of them
BACKSLASHES = "write texts with `\\`, such as patterns, in single quotes: TOML then leaves `\\` alone"
_KEY_START = re.compile(r"[{,\[]")
_NAME_PATTERN = re.compile(
    r"matching regex '\^\[(?P<capitals>A-Z)?a-z0-9\]\[(?:A-Z)?a-z0-9(?P<signs>[^\]]+)\]\{0,(?P<more>\d+)\}\$'"
)
"""The form of every pattern of a name."""
_LIST_INDEX = re.compile(r"\[\d+\]")

_SIZE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


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
        raise not_toml(error, text, source) from error
    return convert(data, record, source=source)


def not_toml(error: Exception, text: str, source: Path) -> ConfigError:
    """The error for a text that `parse_toml` refused; where a table or key is there twice, a hint names the first."""
    is_escape = str(error).startswith("Unescaped '\\'")
    hint = BACKSLASHES if is_escape else _first_of_two(str(error), text.splitlines())
    return ConfigError(f"{source}: is not TOML: {error}", hint=hint)


def _first_of_two(said: str, lines: list[str]) -> str | None:
    """What to do about the table or key that tomllib found twice; None = it found something else."""
    at = re.search(r"\(at line (\d+)", said)
    end = int(at[1]) if at else len(lines)
    if said.startswith("Cannot declare"):
        wanted = _header(lines[end - 1])
        first = next((k for k, line in enumerate(lines, 1) if _header(line) == wanted), end)
        return f"line {first} has `{wanted}` already: write the keys there" if first < end else None
    if not said.startswith("Cannot overwrite"):
        return None
    assigned, table = re.match(r"\s*([\w.\"'-]+)\s*=", lines[end - 1]), ""
    where: dict[tuple[str, str], int] = {}
    for number, line in enumerate(lines, 1):
        table = (f"{_header(line)} {number}" if line.lstrip().startswith("[[") else _header(line)) or table
        key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
        if key and assigned and number == end and (table, key[1]) in where:
            return f"line {where[table, key[1]]} sets `{key[1]}` already: keep one of the two"
        if key:
            where.setdefault((table, key[1]), number)
    return "a line above has the same key or table: keep one of the two"


def _header(line: str) -> str:
    """The table that begins with a line, as `[harvest]`; empty = none does."""
    found = re.match(r"\s*(\[+)\s*([^\[\]=]+?)\s*\]+\s*(#.*)?$", line)
    return f"{found[1]}{found[2]}{']' * len(found[1])}" if found else ""


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text, which may begin with a byte order mark. Raises one of UNDECODABLE. tomllib's memory
    grows with the square of a key's parts: 20,000 parts in 40 kB take 1.6 GB (Python 3.11)."""
    for piece in text.replace("\n", "=").split("="):
        if piece.count(".") > KEY_PARTS_MAX and _KEY_START.split(piece)[-1].count(".") > KEY_PARTS_MAX:
            raise ValueError(f"a key has more than {KEY_PARTS_MAX} parts: `{piece[:80]}...`")
    return tomllib.loads(text.removeprefix("\ufeff"))


def convert(data: dict[str, Any], record: type[T], *, source: Path) -> T:
    """As `load`, of a table that was read already."""
    checked, problems = _checked(data, record, source)
    if problems.has_gaps:
        raise problems.together()
    try:
        found = msgspec.convert(checked, record)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        key = _named(where.rstrip("`").lstrip("."), str(error), checked, record)
        said = _name_in_words(message) or message[:1].lower() + message[1:]
        problems.errors.append(ConfigError(f"{source}: `{key}`: {said}" if key else f"{source}: {said}"))
        raise problems.together() from error
    if problems.errors:
        raise problems.together()
    return found


class _Problems:
    """What is wrong in one file, so that its owner corrects all of it at once. `has_gaps`: the value of a known key is
    wrong or missing, so that the rest cannot be converted."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self.errors: list[ConfigError] = []
        self.has_gaps = False

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


def _named(key: str, said: str, checked: dict[str, Any], record: type[msgspec.Struct]) -> str:
    """The key with the name of the wrong table: msgspec writes `containers[...]` for each of `[containers.NAME]`."""
    head, found, rest = key.partition("[...]")
    tables = checked.get(head) if found else None
    if not isinstance(tables, dict):
        return key
    for name, table in tables.items():
        try:
            msgspec.convert({**checked, head: {name: table}}, record)
        except msgspec.ValidationError as error:
            if str(error) == said:
                return f"{head}.{name}{rest}"
    return key


def _name_in_words(message: str) -> str | None:
    """What msgspec says of a text that is not a name, without the regular expression; None = it says something else."""
    found = _NAME_PATTERN.search(message)
    if found is None:
        return None
    letters = "letters" if found["capitals"] else "small letters"
    return (
        f"expected a name of at most {int(found['more']) + 1} characters: {letters}, digits and `{found['signs']}`, "
        "the first one a letter or digit"
    )


def _checked(
    data: dict[str, Any], record: type[msgspec.Struct], source: Path
) -> tuple[dict[str, Any], _Problems]:
    """The table along the record's types, without what is wrong in it."""
    problems = _Problems(source)
    return _Checker(source, record, problems).table(data, _info(record), ""), problems


@cache
def _info(record: type[msgspec.Struct]) -> inspect.Type:
    """What msgspec knows of a record: a millisecond for one with many keys, and job files convert one for each job."""
    return inspect.type_info(record)


def parse_size(text: str) -> int:
    """Bytes of `2GB`, `500MB`, `64KiB`, `12`; raises ValueError that quotes the text."""
    stripped = text.strip().upper()
    number = stripped.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = stripped[len(number) :]
    try:
        return int(float(number) * _SIZE_UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"`{text}` is not a size such as `2GB`, `500MB` or `64KiB`") from None


class _Checker:
    """Walks a table along its record's type: names what is wrong, makes durations, sizes and paths. What is wrong is
    left out and noted in `problems`."""

    def __init__(self, source: Path, record: type[msgspec.Struct], problems: _Problems) -> None:
        self._source = source
        self._record = record
        self._problems = problems

    def table(self, value: Any, info: inspect.Type, key: str) -> dict[str, Any]:
        """A table that is a whole record."""
        try:
            found: dict[str, Any] = self.check(value, info, key)
        except ConfigError as error:  # it is not a table
            self._note(error)
            return {}
        return found

    def _note(self, error: ConfigError) -> None:
        self._problems.errors.append(error)
        self._problems.has_gaps = True

    def check(self, value: Any, info: inspect.Type, key: str, kind: str | None = None) -> Any:
        if isinstance(info, inspect.Metadata):
            return self.check(value, info.type, key, (info.extra or {}).get("kind", kind))
        if isinstance(info, inspect.UnionType):
            return self._check_union(value, info, key, kind)
        if isinstance(info, inspect.StructType):
            return self._check_struct(value, info, key)
        if isinstance(info, inspect.DictType):
            self._expect_table(value, key)
            return {name: self.check(each, info.value_type, f"{key}.{name}") for name, each in value.items()}
        if isinstance(info, inspect.ListType):
            self._expect_list(value, info, key)
            return [self.check(each, info.item_type, f"{key}[{index}]") for index, each in enumerate(value)]
        if kind == "addresses" and isinstance(value, list):
            return self._addresses(value, key)
        if kind == "place" and isinstance(value, str):
            return url_in(value) or (str(self._path(value, key)) if value else "")
        return self._check_scalar(value, info, key, kind)

    def _addresses(self, value: list[Any], key: str) -> str:
        if not value or not all(isinstance(each, str) and each for each in value):
            raise self._wrong(value, "an address, or a list of one or more addresses as text", key)
        return ",".join(value)

    def _check_struct(self, value: Any, info: inspect.StructType, key: str) -> dict[str, Any]:
        only = info.fields[0] if len(info.fields) == 1 else None
        if only is not None and key and _scalar_matches(value, only.type):
            table = f"{{ {only.encode_name} = {_quoted(value)} }}"
            raise self._wrong(value, "a table", key, f"write `{key.rpartition('.')[2]} = {table}`")
        self._expect_table(value, key)
        known = _settings(info.cls)
        dot = f"{key}." if key else ""
        unknown = [name for name in value if name not in known]
        self._problems.errors += [
            ConfigError(f"{self._source}: unknown key `{dot}{name}`", hint=self._meant(key, name, known))
            for name in unknown
        ]
        missing = [name for name, field in known.items() if field.required and name not in value]
        if missing:
            self._problems.has_gaps = True
            for name in missing if not unknown else ():  # one of the unknown keys may stand for it
                hint = _wanted(known[name].type)
                self._note(ConfigError(f"{self._source}: key `{dot}{name}` is missing", hint=hint))
        found = {}
        for name, each in value.items():
            if name in known:
                try:
                    found[name] = self.check(each, known[name].type, dot + name)
                except ConfigError as error:
                    self._note(error)
        return found

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

    def _check_union(self, value: Any, info: inspect.UnionType, key: str, kind: str | None) -> Any:
        members = [each for each in info.types if not isinstance(each, inspect.NoneType)]
        if len(members) == 1:
            return self.check(value, members[0], key, kind)
        if any(_scalar_matches(value, each) for each in members):
            return value
        raise self._wrong(value, " or ".join(_type_name(each) for each in members), key)

    def _check_scalar(self, value: Any, info: inspect.Type, key: str, kind: str | None) -> Any:
        parse = _PARSERS.get(kind or "")
        if parse is not None:
            if isinstance(value, str):
                try:
                    return parse(value)
                except ValueError as error:
                    raise ConfigError(f"{self._source}: `{key}`: {error}") from None
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._wrong(value, _EXPECTED[kind or ""], key)
            return value
        if kind == "token" and value == str(DISCOVER):
            return DISCOVER
        if isinstance(info, inspect.CustomType) and info.cls is Path:
            return self._path(value, key)
        if isinstance(info, inspect.LiteralType | inspect.EnumType):
            legal = [str(each) for each in _choices(info)]
            if value not in legal:
                best = nearest(value, legal) if isinstance(value, str) else None
                raise ConfigError(
                    f"{self._source}: `{key}` is {_found(value)}, expected {_type_name(info)}",
                    hint=f"did you mean `{best}`?" if best else None,
                )
            return value
        if not _scalar_matches(value, info):
            raise self._wrong(value, _type_name(info), key)
        return value

    def _path(self, value: Any, key: str) -> Path:
        self._expect(value, str, "a path", key)
        if "\0" in value:
            raise self._wrong(value, "a path", key)
        try:
            return (self._source.parent / Path(value).expanduser()).absolute()
        except RuntimeError as error:  # `~name` of a user whom this machine does not know
            raise ConfigError(f"{self._source}: `{key}`: {error}") from error

    def _expect(self, value: Any, wanted: type, name: str, key: str) -> None:
        if not isinstance(value, wanted):
            raise self._wrong(value, name, key)

    def _expect_table(self, value: Any, key: str) -> None:
        if isinstance(value, list) and value and isinstance(value[0], dict) and "[" not in key:
            raise self._wrong(value, "a table", key, f"write `[{key}]` instead of `[[{key}]]`")
        self._expect(value, dict, "a table", key)

    def _expect_list(self, value: Any, info: inspect.ListType, key: str) -> None:
        if isinstance(value, dict) and isinstance(_bare(info.item_type), inspect.StructType):
            raise self._wrong(value, "a list of tables", key, f"write `[[{_LIST_INDEX.sub('', key)}]]`")
        if _scalar_matches(value, info.item_type):
            last = key.rpartition(".")[2]
            shown = json.dumps(value, ensure_ascii=False)
            raise self._wrong(value, "a list", key, f"write `{last} = [{shown}]`")
        self._expect(value, list, "a list", key)

    def _wrong(self, value: Any, wanted: str, key: str, hint: str | None = None) -> ConfigError:
        return ConfigError(f"{self._source}: `{key}` is {_found(value)}, expected {wanted}", hint=hint)


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


def _parse_duration(text: str) -> float:
    """Seconds, with fractions (`0.5s`), unlike walltimes. Raises ValueError."""
    stripped = text.strip()
    try:
        seconds = float(stripped.removesuffix("s")) if stripped.endswith("s") else math.nan
    except ValueError:
        seconds = math.nan
    return seconds if math.isfinite(seconds) else float(clock.parse_duration_s(text))


_PARSERS: dict[str, Callable[[str], float | int]] = {"duration": _parse_duration, "size": parse_size}
_EXPECTED = {
    "duration": "a duration (seconds, or a text such as `90m` or `HH:MM:SS`)",
    "size": "a size (bytes, or a text such as `2GB`)",
}


def _scalar_matches(value: Any, info: inspect.Type) -> bool:
    if isinstance(info, inspect.Metadata):
        return _scalar_matches(value, info.type)
    if isinstance(info, inspect.AnyType):
        return True
    if isinstance(value, bool):
        return isinstance(info, inspect.BoolType)
    if isinstance(value, int):
        return isinstance(info, inspect.IntType | inspect.FloatType)
    if isinstance(value, float):
        return isinstance(info, inspect.FloatType)
    return isinstance(value, str) and isinstance(info, inspect.StrType)


def _quoted(value: Any) -> str:
    """A scalar as in TOML, a text in single quotes if that can be."""
    is_plain = isinstance(value, str) and value.isprintable() and "'" not in value
    return f"'{value}'" if is_plain else json.dumps(value, ensure_ascii=False)


def _found(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return f'the text "{value}"' if isinstance(value, str) else f"`{value}`"


def _choices(info: inspect.LiteralType | inspect.EnumType) -> tuple[Any, ...]:
    return info.values if isinstance(info, inspect.LiteralType) else tuple(each.value for each in info.cls)


def _wanted(info: inspect.Type) -> str | None:
    text = _description(info)
    return f"{_type_name(info)}: {text}" if text else f"expected {_type_name(info)}"


# ---- constants ------------------------------------------------------------------


@cache
def _settings(record: type[msgspec.Struct]) -> dict[str, inspect.Field]:
    """The fields of a record that a file sets, by their names there."""
    info = inspect.type_info(record)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field for field in info.fields}


# ---- the reference page --------------------------------------------------------------------------


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


def describe(record: type[msgspec.Struct], prefix: str = "", *, inside: bool = False) -> list[Key]:
    """Every key that a file of this record may hold, tables opened, in the order of the record. Tables that a file may
    have several of are not keys: `repeated` describes them.

    `inside`: also the keys of tables that a file may have several of, as `io[].name` and `containers.NAME.path`."""
    keys: list[Key] = []
    info = inspect.type_info(record)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        bare = _bare(field.type)
        if isinstance(bare, inspect.StructType):
            keys += describe(bare.cls, f"{prefix}{field.encode_name}.", inside=inside)
            continue
        one, form = _one_of(bare)
        if not isinstance(one, inspect.StructType):
            keys.append(_key(prefix, field))
        if inside and isinstance(one, inspect.StructType):
            keys += describe(one.cls, f"{prefix}{field.encode_name}{form}.", inside=True)
    return keys


def repeated(record: type[msgspec.Struct], prefix: str = "") -> list[Key]:
    """The tables that a file of this record may have several of, such as `accounts` and `tokens.issuers`."""
    found: list[Key] = []
    info = inspect.type_info(record)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        bare = _bare(field.type)
        if isinstance(bare, inspect.StructType):
            found += repeated(bare.cls, f"{prefix}{field.encode_name}.")
        elif isinstance(_one_of(bare)[0], inspect.StructType):
            found.append(_key(prefix, field))
    return found


def _key(prefix: str, field: inspect.Field) -> Key:
    return Key(
        key=prefix + field.encode_name,
        type=_type_name(field.type),
        unit=_unit(field),
        default=_default(field),
        doc=_description(field.type),
    )


def _one_of(info: inspect.Type) -> tuple[inspect.Type | None, str]:
    """What a list or table of alike things holds, and how one of them is written behind the key."""
    if isinstance(info, inspect.ListType):
        return _bare(info.item_type), "[]"
    if isinstance(info, inspect.DictType):
        return _bare(info.value_type), ".NAME"
    return None, ""


def _bare(info: inspect.Type) -> inspect.Type:
    while isinstance(info, inspect.Metadata):
        info = info.type
    if isinstance(info, inspect.UnionType):
        members = [each for each in info.types if not isinstance(each, inspect.NoneType)]
        return _bare(members[0]) if len(members) == 1 else info
    return info


def _kind(info: inspect.Type) -> str | None:
    while isinstance(info, inspect.Metadata):
        if info.extra and "kind" in info.extra:
            return str(info.extra["kind"])
        info = info.type
    if isinstance(info, inspect.UnionType):
        return next((kind for each in info.types if (kind := _kind(each))), None)
    return None


def _description(info: inspect.Type) -> str:
    while isinstance(info, inspect.Metadata):
        if info.extra_json_schema and "description" in info.extra_json_schema:
            return str(info.extra_json_schema["description"])
        info = info.type
    return ""


_UNITS = {
    "_s": "s",
    "_ms": "ms",
    "_mb": "MB",
    "_bytes": "bytes",
    "_bytes_max": "bytes",
    "_core_s_max": "core-s",
    "_s_max": "s",
    "_per_s": "1/s",
    "bytes_per_s": "bytes/s",
}


def _unit(field: inspect.Field) -> str:
    kind = _kind(field.type)
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


def _type_name(info: inspect.Type) -> str:
    kind = _kind(info)
    if kind is not None:
        return _KIND_NAMES.get(kind, kind)
    bare = _bare(info)
    if isinstance(bare, inspect.UnionType):
        return " or ".join(_type_name(each) for each in bare.types if not isinstance(each, inspect.NoneType))
    if isinstance(bare, inspect.LiteralType | inspect.EnumType):
        return "one of " + ", ".join(f"`{each}`" if each else "empty" for each in _choices(bare))
    if isinstance(bare, inspect.ListType):
        return f"list of {_type_name(bare.item_type)}"
    if isinstance(bare, inspect.DictType):
        return f"table of {_type_name(bare.value_type)}"
    if isinstance(bare, inspect.CustomType):
        return "path"
    return _SCALARS.get(type(bare), "a table")


_KIND_UNITS = {"duration": "s", "size": "bytes"}
_KIND_NAMES = {
    "addresses": "text or list of text",
    "place": "path or URL",
    "token": "path or `discover`",
}
_SCALARS: dict[type, str] = {
    inspect.StrType: "text",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "true or false",
}
