"""What the sender of every channel does: mail, web hook, message."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tidemill.wire.notification import Digest


class Parcel(NamedTuple):
    """A message to one addressee: where it goes (an address, a hook, nothing) and what it says."""

    where: str
    digest: Digest


class Sender(Protocol):
    """Sends one message after the other. Called by one thread only."""

    def send(self, parcel: Parcel) -> None:
        """Hand the message over; it is sent when this returns. Raises RefusedError, LaterError or AwayError."""

    def release(self) -> None:
        """Close connections: nothing is to be sent for a while."""
