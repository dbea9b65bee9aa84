"""One event per line, as JSON, to stderr or a file: time, level, component, fixed event name, ids as fields.

Never pass a secret, a token or a whole environment. The log still cuts out what slips through: see `confidential`.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any, Literal, TextIO

import msgspec

from tidemill import clock
from tidemill.confidential import cut, cut_data
from tidemill.printable import printable_line, printable_lines

Form = Literal["json", "text"]
FORMS: tuple[Form, ...] = ("json", "text")
#: Fields by which lines of server, agent and others are joined; each has this name wherever it appears.
JOINED = (
    "campaign", "job", "first", "count", "lease", "site", "fleet", "allocation", "batch_id", "node", "pilot",
    "epoch",
)  # fmt: skip
_bound: dict[str, Any] = {}


def bind(**fields: Any) -> None:
    """Put these fields into every line of this process from now on, such as the site and epoch of an agent."""
    _bound.update(fields)


class Log:
    """Writes events of one component. `log.info("lease.received", lease=7, job=3)`."""

    def __init__(self, component: str) -> None:
        self._logger = logging.getLogger(f"tidemill.{component}")

    @property
    def explains(self) -> bool:
        """Whether `debug` events are written: check this before computing many fields."""
        return self._logger.isEnabledFor(logging.DEBUG)

    def debug(self, event: str, **fields: Any) -> None:
        """Explain a decision, or a step of a single job."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Report a change in the life of a job, allocation or service."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something that an operator should know of; the program goes on."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something that was given up."""
        self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={"tidemill_fields": fields})


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {"event": record.getMessage(), **_bound, **getattr(record, "tidemill_fields", {})}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        line = {
            "at": clock.utc_text(int(record.created * 1e6)),
            "level": record.levelname.lower(),
            "component": record.name.removeprefix("tidemill."),
            **cut_data(fields),
        }
        return printable_line(_encoded(line))


class _TextFormatter(logging.Formatter):
    """Formats a record as one line for people: `2026-11-21T13:05:01Z WARNING agent batch.away reason="..."
    next_try_s=2.0`."""

    def format(self, record: logging.LogRecord) -> str:
        at = clock.utc_text(int(record.created * 1e6))
        fields: dict[str, Any] = cut_data({**_bound, **getattr(record, "tidemill_fields", {})})
        told = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        line = f"{at} {record.levelname} {record.name.removeprefix('tidemill.')} {cut(record.getMessage())}{told}"
        if record.exc_info:
            line += "\n" + cut(self.formatException(record.exc_info))
        return printable_lines(line)


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, int | float) else _encoded(value)


def _encoded(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # names of files that are not UTF-8 have lone surrogates, see PEP 383
        return json.dumps(value)


class _Steady(logging.Handler):
    """Passes over lines that cannot be written, as on a full disk, and reports their number when one can be again.
    What it prints itself about them, a traceback for each, would go to the same place."""

    failed = 0
    why = ""

    def emit(self, record: logging.LogRecord) -> None:
        before = self.failed
        super().emit(record)
        if before and self.failed == before:
            self.failed = 0
            fields = {"lines": before, "reason": self.why}
            told = {
                "name": "tidemill.log",
                "levelno": logging.WARNING,
                "levelname": "WARNING",
                "msg": "log.resumed",
            }
            super().emit(logging.makeLogRecord({**told, "tidemill_fields": fields}))

    def handleError(self, record: logging.LogRecord) -> None:
        self.failed += 1
        self.why = str(sys.exception())[:200]


class _ToStream(_Steady, logging.StreamHandler[TextIO]):
    pass


class _ToFile(_Steady, logging.FileHandler):
    pass


def to_stderr(level: str = "INFO", form: Form = "json") -> None:
    """Send every component's events of at least this level to stderr."""
    _install(_ToStream(sys.stderr), level, form)


def to_file(path: Path, level: str = "INFO") -> None:
    """Append every component's events of at least this level to a file (mode 0600 if new)."""
    path.touch(mode=0o600, exist_ok=True)
    _install(_ToFile(path, encoding="utf-8"), level, "json")


# Python prints unhandled warnings to stderr as bare words; a command without a log reports to its user itself
logging.getLogger("tidemill").addHandler(logging.NullHandler())
# Nor do lines of libraries become tracebacks on stderr where they cannot be written
logging.raiseExceptions = False


def silence(library: str) -> None:
    """Keep a library's log off stderr: the caller reports a failure as an event of its own."""
    logging.getLogger(library).setLevel(logging.CRITICAL + 1)


def _install(handler: logging.Handler, level: str, form: Form) -> None:
    handler.setFormatter(_TextFormatter() if form == "text" else _JsonFormatter())
    root = logging.getLogger("tidemill")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
