"""Commented configuration files, drawn from the records that read them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tidemill import config
from tidemill.errors import ConfigError

WRAP = 100


def commented(record: type[msgspec.Struct], *, title: str, values: Mapping[str, str]) -> str:
    """A TOML file with every key of a record: those in `values` (dotted key -> TOML text) set, the others commented."""
    plain = [key for key in config.describe(record) if "." not in key.key]
    tables: dict[str, list[config.Key]] = {}
    for key in config.describe(record):
        if "." in key.key:
            tables.setdefault(key.key.partition(".")[0], []).append(key)
    lines = [f"# {title}. Keys that are commented out show their defaults.", ""]
    for key in plain:
        lines += _entry(key, key.key, values)
    for table, keys in tables.items():
        lines += [f"[{table}]", ""]
        for key in keys:
            lines += _entry(key, key.key.partition(".")[2], values)
    return "\n".join(lines).rstrip() + "\n"


def _entry(key: config.Key, name: str, values: Mapping[str, str]) -> list[str]:
    unit = f" ({key.unit})" if key.unit else ""
    about = f"# {key.doc or name}{unit}; {key.type}"
    if key.key in values:
        return [about, f"{name} = {values[key.key]}", ""]
    if key.default is None:
        return [about, f"{name} =   # required", ""]
    return [about, f"# {name} = {key.default}" if key.default != "none" else f"# {name} =", ""]


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet, mode 0600. ConfigError if it does."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConfigError(f"`{path}` exists already", hint="move it away, or name another file") from None
    except OSError as error:
        raise ConfigError(f"failed to write `{path}`: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
