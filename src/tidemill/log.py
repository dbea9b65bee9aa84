"""One event per line, as JSON, to stderr or a file: time, level, component, fixed event name, ids as fields.

Never pass a secret, a token or a whole environment.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import msgspec

from tidemill import clock


class Log:
    """Writes events of one component. `log.info("lease.received", lease=7, job=3)`."""

    def __init__(self, component: str) -> None:
        self._logger = logging.getLogger(f"tidemill.{component}")

    def debug(self, event: str, **fields: Any) -> None:
        """Explain a decision."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Tell the life of a job, allocation or service."""
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
        line = {
            "at": clock.utc_text(int(record.created * 1e6)),
            "level": record.levelname.lower(),
            "component": record.name.removeprefix("tidemill."),
            "event": record.getMessage(),
            **getattr(record, "tidemill_fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def to_stderr(level: str = "INFO") -> None:
    """Send every component's events of at least this level to stderr."""
    _install(logging.StreamHandler(sys.stderr), level)


def to_file(path: Path, level: str = "INFO") -> None:
    """Append every component's events of at least this level to a file (mode 0600 if new)."""
    path.touch(mode=0o600, exist_ok=True)
    _install(logging.FileHandler(path, encoding="utf-8"), level)


def _install(handler: logging.Handler, level: str) -> None:
    handler.setFormatter(_JsonFormatter())
    root = logging.getLogger("tidemill")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
