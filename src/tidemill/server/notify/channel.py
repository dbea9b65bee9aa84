"""What every way of telling somebody offers, and how it says that it could not."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tidemill.errors import SiteError
from tidemill.wire.notification import Digest


class Parcel(NamedTuple):
    """A message to one addressee: where it goes (an address, a hook, nothing) and what it says."""

    where: str
    digest: Digest


class RefusedError(SiteError):
    """Sending this message again cannot help, such as when there is no such mailbox."""


class LaterError(SiteError):
    """This addressee cannot be reached now; others may be. `wait_s`: that is no failure, and over after so long."""

    def __init__(self, message: str, *, hint: str | None = None, wait_s: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.wait_s = wait_s


class AwayError(LaterError):
    """Nobody can be reached now by this way."""


class Sender(Protocol):
    """Sends one message after the other. Called by one thread only."""

    def send(self, parcel: Parcel) -> None:
        """Hand the message over; it is sent when this returns. Raises RefusedError, LaterError or AwayError."""

    def rest(self) -> None:
        """Nothing is to be sent for a while: let go of connections."""
