"""Commented configuration files: drawn from the records that read them, and edited without losing a comment."""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidemill import config, files
from tidemill.errors import UNDECODABLE, ConfigError
from tidemill.files import make_directories

WRAP = 100
BRIEF_WRAP = 118
ABOUT_CHARS_MAX = 100
"""Of what a short file says about a key: its documentation up to the last full thought that fits."""
EXAMPLE = "   # an example"
DEFAULTS = "Keys that are commented out show their defaults"
_KEY = re.compile(r"^(?P<off>#\s?)?(?P<key>[A-Za-z0-9_-]+)\s*=(?P<rest>.*)$")
_TABLE = re.compile(r"^\[(?P<table>[A-Za-z0-9_.-]+)\]\s*(#.*)?$")
_LIST_TABLE = re.compile(r"^\[\[(?P<table>[A-Za-z0-9_.-]+)\]\]\s*(#.*)?$")


def commented(
    record: type[msgspec.Struct],
    *,
    title: str,
    values: Mapping[str, str],
    origins: Mapping[str, str] | None = None,
    tail: str = "",
) -> str:
    """A TOML file with every key of a record: those in `values` (dotted key -> TOML text) set, the others commented.

    `origins` names the source of a value (dotted key -> text), also of keys that stay as they are; `tail` is TOML
    that ends the file, such as lists of tables.
    """
    told = origins or {}
    plain = [key for key in config.describe(record) if "." not in key.key]
    tables: dict[str, list[config.Key]] = {}
    for key in config.describe(record):
        if "." in key.key:
            tables.setdefault(key.key.partition(".")[0], []).append(key)
    lines = [f"# {title}. {DEFAULTS}.", ""]
    for key in plain:
        lines += _entry(key, key.key, values, told)
    for table, keys in tables.items():
        lines += [f"[{table}]", ""]
        for key in keys:
            lines += _entry(key, key.key.partition(".")[2], values, told)
    for key in config.repeated(record):
        form = f"[[{key.key}]]" if key.type.startswith("list") else f"[{key.key}.NAME]"
        lines += [f"# {form}: {key.doc}", ""]
    return "\n".join(lines).rstrip() + "\n" + (f"\n{tail.strip()}\n" if tail else "")


def brief(
    record: type[msgspec.Struct],
    *,
    head: Sequence[str],
    values: Mapping[str, str],
    origins: Mapping[str, str],
    tail: str = "",
) -> str:
    """A short TOML file of the keys in `values` and no others, with a line about each; where a value is empty, the key
    is commented and shows its default.

    `head`: lines of its first comment; the rest as `commented` takes it.
    """
    lines = [f"# {line}" for line in head]
    shown = [key for key in config.describe(record) if key.key in values]
    table = None
    for key in sorted(
        shown, key=lambda key: "." in key.key
    ):  # those of no table come first, as TOML wants it
        inside, _, name = key.key.rpartition(".")
        if inside != table:
            lines += ["", f"[{inside}]"] if inside else [""]
            table = inside
        about = _about(key)
        if key.key in origins:
            about += f"{'' if about.endswith('?') else '.'} -> {origins[key.key]}"
        lines += [f"# {line}" for line in textwrap.wrap(about, BRIEF_WRAP)]
        default = "" if key.default in (None, "none") else f" {key.default}"
        lines.append(f"{name} = {values[key.key]}" if values[key.key] else f"# {name} ={default}")
    return "\n".join(lines) + "\n" + (f"\n{tail.strip()}\n" if tail else "")


def _about(key: config.Key) -> str:
    """What a key is, in a line."""
    text, unit = key.doc or key.key, f" ({key.unit})" if key.unit else ""
    if len(text) > ABOUT_CHARS_MAX:
        ends = (text.rfind(mark, 0, ABOUT_CHARS_MAX) for mark in (". ", "; ", ": "))
        text = text[: next((end for end in ends if end > 0), len(text))]
    return text + unit


def _entry(key: config.Key, name: str, values: Mapping[str, str], origins: Mapping[str, str]) -> list[str]:
    unit = f" ({key.unit})" if key.unit else ""
    about = [f"# {key.doc or name}{unit}; {key.type}"]
    if key.key in origins:
        about += [f"# {line}" for line in textwrap.wrap(f"-> {origins[key.key]}", WRAP)]
    if key.key in values:
        return [*about, f"{name} = {values[key.key]}", ""]
    if key.default is None:
        return [*about, f"{name} =   # required", ""]
    return [*about, f"# {name} = {key.default}" if key.default != "none" else f"# {name} =", ""]


def with_examples(text: str, keys: Mapping[str, str], tables: Mapping[str, str]) -> str:
    """A file of `commented` with examples as comments: of `keys` (dotted key -> TOML text) in place of the defaults,
    and of `tables` that a file may have several of (dotted name -> TOML lines)."""
    lines = text.replace(DEFAULTS, f"{DEFAULTS}, or examples where it says so", 1).splitlines()
    for index, table, match in list(_keys(lines)):
        name = "" if match is None else match["key"]
        key = f"{table}.{name}" if table else name
        if match is not None and match["off"] and key in keys:
            lines[index] = f"# {name} = {keys[key]}{EXAMPLE}"
    for name, example in tables.items():
        head = f"# [[{name}]]: "
        index = next(at for at, line in enumerate(lines) if line.startswith(head))
        about = f"# {lines[index].removeprefix(head)}; an example of one:"
        lines[index : index + 1] = [about, *(f"# {line}" for line in [f"[[{name}]]", *example.splitlines()])]
    return "\n".join(lines) + "\n"


def set_keys(text: str, values: Mapping[str, str], *, source: Path) -> str:
    """The file with these keys (dotted key -> TOML text) set and everything else, comments included, as it was.

    A key that is there or commented out is changed in place, others are added at the end of their table.
    Raises ConfigError where the result would not say exactly this, such as for a value of several lines.
    """
    changed = text
    for key, value in values.items():
        changed = _set_key(changed, key, value)
    wanted = _parsed(text, source)
    for key, value in values.items():
        _put(wanted, key, tomllib.loads(f"x = {value}")["x"])
    try:
        found = tomllib.loads(changed)
    except UNDECODABLE:
        found = None
    if found != wanted:
        listed = ", ".join(f"`{key} = {value}`" for key, value in values.items())
        raise ConfigError(
            f"`{source}` is written in a way that cannot be edited safely", hint=f"set {listed} by hand"
        )
    return changed


def _parsed(text: str, source: Path) -> dict[str, Any]:
    try:
        return config.parse_toml(text)
    except UNDECODABLE as error:
        raise config.not_toml(error, source) from error


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    table, dot, name = key.rpartition(".")
    (data.setdefault(table, {}) if dot else data)[name] = value


def _set_key(text: str, key: str, value: str) -> str:
    table, _, name = key.rpartition(".")
    lines = text.splitlines()
    set_at = commented_at = None
    end = 0 if not table else None  # where a new line of the table may stand
    for index, where, match in _keys(lines):
        if where != table:
            continue
        end = index + 1
        if match is None or match["key"] != name:
            continue
        if match["off"] is None:
            set_at = index
        elif commented_at is None:
            commented_at = index
    at = set_at if set_at is not None else commented_at
    line = f"{name} = {value}"
    if at is not None:
        lines[at] = line + (_comment(lines[at]) if at == set_at else "")
    elif end is not None:
        lines.insert(end, line)
    else:
        lines += ["", f"[{table}]", line]
    return "\n".join(lines) + "\n"


def _keys(lines: list[str]) -> Iterator[tuple[int, str, re.Match[str] | None]]:
    """(index, table, match) of every line that names a table (no match) or a key, commented or not."""
    table = ""
    for index, line in enumerate(lines):
        head = _TABLE.match(line)
        if head or _LIST_TABLE.match(line):
            table = head["table"] if head else "[[]]"
            yield index, table, None
            continue
        match = _KEY.match(line)
        if match:
            yield index, table, match


def _comment(line: str) -> str:
    """The comment behind a value; empty where a `#` might belong to a text."""
    value, mark, comment = line.partition(" #")
    return f"   #{comment}" if mark and '"' not in comment and value.count('"') % 2 == 0 else ""


def locate(text: str) -> dict[str, int]:
    """Line number of each key that is set (dotted; of tables in lists only the list itself)."""
    found: dict[str, int] = {}
    lines = text.splitlines()
    for index, table, match in _keys(lines):
        if match is not None and match["off"] is None and table != "[[]]":
            found[f"{table}.{match['key']}" if table else match["key"]] = index + 1
    for index, line in enumerate(lines):
        head = _LIST_TABLE.match(line)
        if head:
            found.setdefault(head["table"], index + 1)
    return found


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet, mode 0600. ConfigError if it does."""
    try:
        make_directories(path.parent, 0o077)
        files.write_new(path, text.encode(), failure=ConfigError)
    except FileExistsError:
        raise ConfigError(f"`{path}` exists already", hint="move it away, or name another file") from None
    except OSError as error:
        raise ConfigError(f"failed to make `{path.parent}`: {error.strerror}") from error
