"""How an error is answered, by HTTP or by message: its status and its text."""

from __future__ import annotations

from msgspec import UNSET

from tidemill.errors import SiteError, TidemillError
from tidemill.server.errors import (
    ConflictError,
    ForbiddenError,
    MissingError,
    PaceError,
    QuotaError,
    RoomError,
    StandbyError,
)
from tidemill.wire.api import ErrorReply

BUG = ErrorReply(error="the server has a bug: its log says more", hint=None)


def status_of(error: Exception) -> int:
    """The status of HTTP for an error."""
    match error:
        case MissingError():
            return 404
        case ConflictError():
            return 409
        case ForbiddenError() | QuotaError():
            return 403
        case PaceError():
            return 429
        case RoomError():
            return 507
        case SiteError():
            return 503
        case TidemillError():
            return 400
    return 500


def reply_of(error: Exception) -> ErrorReply:
    """The text of an answer: never a traceback."""
    if not isinstance(error, TidemillError):
        return BUG
    standby = True if isinstance(error, StandbyError) else UNSET
    return ErrorReply(error=error.message, hint=error.hint, standby=standby)
