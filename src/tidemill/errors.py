"""Every error that is not a bug.

    TidemillError
    ├── JobError        the job is wrong: its text, its application, its inputs          (exit code 1)
    │   └── UnfitError  it does not fit this site; another one may take it
    ├── ConfigError     a file, key or option is wrong; names the nearest legal one      (exit code 2)
    ├── SiteError       batch system, storage, network or service; may be `transient`    (exit code 3)
    └── ProtocolError   what another process sent cannot be read; quotes it              (exit code 3)

A message says what was attempted, on what, what came back; `hint` says what to do. Bugs are not TidemillErrors.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

NAME_CHARACTERS_MAX = 1_000
"""A longer name is not a typing error, and comparing it takes time."""


class TidemillError(Exception):
    """What was attempted, on what, and what came back; `hint` is what the reader can do about it."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # a traceback shows it, for those who write Python


class JobError(TidemillError):
    """The job is wrong, wherever it runs."""

    exit_code = 1


class UnfitError(JobError):
    """This site does not run the job as it is; another one may."""


class ConfigError(TidemillError):
    """A configuration file, key, option or argument is wrong."""

    exit_code = 2


@contextmanager
def blaming(key: str) -> Iterator[None]:
    """Begin a ConfigError from inside with the key of a file that it is about, such as ``server.toml: `tls.ca` ``."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{key}: {error.message}", hint=error.hint) from error


class SiteError(TidemillError):
    """A batch system, file system, network or service did not do its part; `transient` = trying again may help."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str | None = None, transient: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.transient = transient


def is_transient(error: Exception) -> bool:
    """Whether trying again may help."""
    return isinstance(error, SiteError) and error.transient


class ProtocolError(TidemillError):
    """Another process sent what cannot be read."""

    exit_code = 3


UNDECODABLE = (ValueError, RecursionError)
"""What decoders of JSON and TOML raise for malformed input: wrong characters, wrong types (`msgspec.DecodeError` is a
ValueError), numbers that are too long, and values that are nested too deeply."""


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.5) -> str | None:
    """The known name that `name` most likely stands for, or None where none is as like it (1: the same name)."""
    if len(name) > NAME_CHARACTERS_MAX:
        return None
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)
    return matches[0] if matches else None


def did_you_mean(name: str, known: Iterable[str], *, most: int | None = None) -> str:
    """A hint for an unknown name: the nearest known one, else all, or `most` of them and how many more there are."""
    names = sorted(known)
    best = nearest(name, names)
    if best is not None:
        return f"did you mean `{best}`?"
    shown = names[:most]
    others = [f"{len(names) - len(shown):,} more"] if len(shown) < len(names) else []
    return "known: " + (", ".join([f"`{each}`" for each in shown] + others) or "none")


def install_hint(extra: str) -> str:
    """A hint for a package that is not installed: how to install the extra that brings it."""
    return (
        f"`pip install --find-links dist 'tidemill[{extra}]'`, `dist` with the wheels of Tidemill; without a network, "
        'see the page "Install Tidemill", Extras'
    )
