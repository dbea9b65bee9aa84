"""How long one move is tried."""

from __future__ import annotations

import msgspec

from tidemill.transfer import constants


class MovePatience(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one move. What is left out is the constant of that name."""

    deadline_s: float = msgspec.field(default_factory=lambda: constants.DEADLINE_S)
    stall_s: float = msgspec.field(default_factory=lambda: constants.STALL_S)
    tries_max: int = msgspec.field(default_factory=lambda: constants.TRIES_MAX)
    pause_s: float = msgspec.field(default_factory=lambda: constants.PAUSE_S)
