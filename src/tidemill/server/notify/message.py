"""Messages: a digest as JSON to one submitter, through whatever publishes for the server."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidemill.errors import SiteError
from tidemill.server.errors import AwayError
from tidemill.server.notify.channel import Parcel

Publish = Callable[[str, str, bytes], None]
"""Publish to a name, with an identity that stays the same over repetitions, and wait until the queue has it. Raises
SiteError."""


class Messenger:
    """Sends digests as messages."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def send(self, parcel: Parcel) -> None:
        """Publish a digest. Raises AwayError."""
        try:
            self._publish(parcel.where, parcel.digest.id, msgspec.json.encode(parcel.digest))
        except SiteError as error:
            raise AwayError(error.message, hint=error.hint) from error

    def rest(self) -> None:
        """The connection is the publisher's."""
