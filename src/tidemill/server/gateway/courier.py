"""Notifications by message: a digest goes to the states queue of the submitter whom it is for."""

from __future__ import annotations

import msgspec

from tidemill.errors import SiteError
from tidemill.server.errors import AwayError, LaterError, RefusedError
from tidemill.server.notify.channel import Parcel
from tidemill.wire.amqp import STATES, Type
from tidemill.wire.link import Link, Message, UnroutedError

CONFIRM_S = 30.0


class Courier:
    """A way to tell people, for `notify`: done when the broker has the message."""

    def __init__(self, link: Link, names: frozenset[str]) -> None:
        self._link, self._names = link, names

    def send(self, parcel: Parcel) -> None:
        """Publish it. Raises RefusedError, LaterError or AwayError."""
        if parcel.where not in self._names:
            raise RefusedError(
                f"`{parcel.where}` gets no messages", hint="name it in server.toml, `[amqp.submitters]`"
            )
        if not self._link.is_up:
            raise AwayError(self._link.down().message)
        body = msgspec.json.encode(parcel.digest)
        message = Message(STATES, parcel.where, body, Type.NOTICE, id=parcel.digest.id)
        try:
            self._link.publish(message).result(CONFIRM_S)
        except UnroutedError as error:
            raise LaterError(error.message, hint=error.hint) from error
        except TimeoutError as error:
            raise AwayError(f"the broker did not confirm a notice within {CONFIRM_S:.0f} s") from error
        except SiteError as error:  # its queue is full, or the connection broke
            raise (LaterError if self._link.is_up else AwayError)(error.message) from error

    def rest(self) -> None:
        """The connection is the gateway's."""
