"""Submitters whom the site's own staff deny, whatever the server says: a file that command line and agent share.

    SITE/denied.json    list of Denial, by `tidemill site deny` and `site allow`; the agent checks it once a second
    SITE/denied.log     one JSON line for each `deny` and `allow`: when, who, why

A file that cannot be read denies all submitters until it is mended: its reader does not know whom the staff meant.
"""

from __future__ import annotations

import fcntl
import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.errors import ConfigError, SiteError, did_you_mean
from tidemill.files import append_durable, read_bounded, why_not_opened, write_durable

NAME = "denied.json"
LOG = "denied.log"
FILE_BYTES_MAX = 1 << 20
DENIED_MAX = 1_000
REASON_CHARACTERS_MAX = 500
SUBMITTER_CHARACTERS_MAX = 200
RELOAD_S = 1.0


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """A submitter who may not use this site. `by`: the user of this machine who said so."""

    submitter: str
    reason: str
    by: str
    at_us: int


# ---- the staff's side ----


def deny(site_dir: Path, submitter: str, reason: str) -> bool:
    """Deny a submitter; False = that was so already. Raises ConfigError, SiteError."""
    submitter, reason = _checked(submitter, "submitter", SUBMITTER_CHARACTERS_MAX), _reason(reason)
    with _locked(site_dir):
        denials = read(site_dir)
        if any(each.submitter == submitter for each in denials):
            return False
        if len(denials) >= DENIED_MAX:
            raise ConfigError(
                f"{DENIED_MAX} submitters are denied already", hint="`tidemill site drain` stops all"
            )
        denial = Denial(submitter=submitter, reason=reason, by=getpass.getuser(), at_us=clock.now_us())
        _write(site_dir, [*denials, denial], denial, "deny")
    return True


def allow(site_dir: Path, submitter: str, reason: str) -> None:
    """Undo `deny`. Raises ConfigError if the submitter is not denied, SiteError."""
    reason = _reason(reason)
    with _locked(site_dir):
        denials = read(site_dir)
        left = [each for each in denials if each.submitter != submitter]
        if len(left) == len(denials):
            names = [each.submitter for each in denials]
            raise ConfigError(
                f"submitter `{submitter[:SUBMITTER_CHARACTERS_MAX]}` is not denied",
                hint=did_you_mean(submitter, names),
            )
        denial = Denial(submitter=submitter, reason=reason, by=getpass.getuser(), at_us=clock.now_us())
        _write(site_dir, left, denial, "allow")


def read(site_dir: Path) -> list[Denial]:
    """Whom the staff deny. Raises SiteError where the file cannot be read."""
    path = site_dir / NAME
    content = read_bounded(path, FILE_BYTES_MAX)
    if content is None:
        return []
    try:
        return msgspec.json.decode(content, type=list[Denial])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SiteError(
            f"failed to read `{path}`: {error}",
            hint="until it is mended every submitter is denied; its history is in `denied.log` beside it",
            transient=False,
        ) from error


def _write(site_dir: Path, denials: list[Denial], denial: Denial, act: str) -> None:
    line = msgspec.json.encode(
        {"act": act, "at": clock.utc_text(denial.at_us), **msgspec.to_builtins(denial)}
    )
    append_durable(site_dir / LOG, line + b"\n")
    write_durable(site_dir / NAME, msgspec.json.encode(denials))


@contextmanager
def _locked(site_dir: Path) -> Iterator[None]:
    """One writer at a time, on this machine and, where the file system can, on all."""
    try:
        descriptor = os.open(site_dir / LOG, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SiteError(f"failed to open `{site_dir / LOG}`: {why_not_opened(error)}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _reason(reason: str) -> str:
    return _checked(reason, "reason", REASON_CHARACTERS_MAX)


def _checked(text: str, what: str, characters_max: int) -> str:
    text = text.strip()
    if not text:
        raise ConfigError(f"a {what} is missing")
    if len(text) > characters_max or not text.isprintable():
        raise ConfigError(f"the {what} has control characters, or more than {characters_max} characters")
    return text


# ---- the agent's side ----


class Denials:
    """Whom the site denies now."""

    def __init__(self, site_dir: Path, site: str) -> None:
        self._site_dir = site_dir
        self._site = site
        self._mark: tuple[int, ...] | None = None
        self._next_s = 0.0
        self._by_name: dict[str, Denial] = {}
        self.problem = ""  #: why the file cannot be read: then all submitters are denied
        self.reload_if_changed(clock.monotonic_s())

    def reload_if_changed(self, now_s: float) -> bool:
        """Read the file if it is time and it is another one; whether it is."""
        if now_s < self._next_s:
            return False
        self._next_s = now_s + RELOAD_S
        mark = self._marked()
        if mark == self._mark and not self.problem:
            return False
        before = self._by_name, self.problem
        try:
            self._by_name = {each.submitter: each for each in read(self._site_dir)}
            self.problem = ""
        except SiteError as error:
            self.problem = error.message
        self._mark = mark
        return (self._by_name, self.problem) != before

    def why(self, submitter: str) -> str | None:
        """Why this submitter's jobs do not run here; None = they may."""
        if self.problem:
            return f"site `{self._site}` denies all submitters for now: {self.problem}"
        denial = self._by_name.get(submitter)
        return (
            None if denial is None else f"site `{self._site}` denies submitter `{submitter}`: {denial.reason}"
        )

    def names(self) -> list[str]:
        """The names of all denied submitters."""
        return sorted(self._by_name)

    def _marked(self) -> tuple[int, ...] | None:
        try:
            status = (self._site_dir / NAME).stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
