"""Every error that the server answers a request with, and those of its senders. `api/refusal` holds the statuses.

TidemillError
├── JobError
│   ├── RequestError            the request is not legal                                           (400)
│   │   └── MissingError        what it names does not exist, or belongs to another                 (404)
│   ├── ForbiddenError          the one who asks may not do this                                   (403)
│   ├── QuotaError              it would take more than one submitter may have                     (403)
│   ├── RoomError               there is no room for more jobs of any submitter                    (507)
│   ├── PaceError               the one who asks has asked too much of late                        (429)
│   └── ConflictError           it contradicts what the server knows: an old epoch, a used key     (409)
└── SiteError                   database, network or broker did not do their part                  (503)
    ├── StandbyError            this server is the standby of a pair: the other one writes           (503)
    ├── RefusedError            a notification that sending again cannot help
    └── LaterError              this addressee cannot be reached now; others may be
        └── AwayError           no addressee can be reached by this channel now
Exception
└── StrangerError               a credential that gives no role here                               (401)
AssertionError
└── WrongEdgeError              a change of state that no table allows: a bug, undone              (500)
"""

from __future__ import annotations

from tidemill.errors import JobError, SiteError

FIXED = "the same on every server: no setting changes it"
"""What a refusal says of a bound that is a constant: asking the operator for more is in vain."""


class _OwnedError(JobError):
    """`of_another`: what it names belongs to another, for the log alone: who asks gets the same answer as if it did not
    exist."""

    def __init__(self, message: str, *, hint: str | None = None, of_another: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.of_another = of_another


class RequestError(_OwnedError):
    """The request is not legal (HTTP 400)."""


class MissingError(RequestError):
    """What the request names does not exist, or not for the one who asks (HTTP 404)."""


class ForbiddenError(JobError):
    """The one who asks may not do this (HTTP 403)."""


class QuotaError(JobError):
    """The request would take more than one submitter may have (HTTP 403); the text names the quota."""


class RoomError(JobError):
    """There is no room for more jobs of any submitter (HTTP 507): nothing was stored."""


class PaceError(JobError):
    """The one who asks has asked too much of late (HTTP 429): the same may be asked again after `wait_s`."""

    def __init__(self, message: str, *, wait_s: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.wait_s = wait_s


class ConflictError(_OwnedError):
    """The request contradicts what the server knows: an old epoch, a key used for other content (HTTP 409)."""


class StandbyError(SiteError):
    """This server is the standby of a pair, or was the active one until now (HTTP 503): nothing was changed."""

    def __init__(self) -> None:
        super().__init__(
            "this server is the standby of a pair: it answers reads, and changes nothing",
            hint="send the same to the pair's other address; this one takes over when the other ends",
        )


class RefusedError(SiteError):
    """Sending this notification again cannot help, such as when there is no such mailbox."""


class LaterError(SiteError):
    """This addressee cannot be reached now; others may be. With `wait_s` it is not a failure: try again after that."""

    def __init__(self, message: str, *, hint: str | None = None, wait_s: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.wait_s = wait_s


class AwayError(LaterError):
    """No addressee can be reached by this channel now."""


class StrangerError(Exception):
    """A certificate or token is not valid, or its owner has no role here (HTTP 401); the text is the reason."""


class WrongEdgeError(AssertionError):
    """A change of state that stands in no table of `model/state.py`: a bug, which undoes its request."""
