"""Connection -> Identity: on the Unix socket the server's own user; on TCP a client certificate, token or secret.

Decides who asks, not what that one may do (`model/identity.py`). Refusals are logged, without the credential.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import msgspec

from tidemill import clock, log
from tidemill.model.identity import LOCAL, Identity, Role, Via
from tidemill.net.addresses import is_loopback
from tidemill.server.errors import StrangerError
from tidemill.server.identity.bearer import TokenVerifier
from tidemill.server.identity.certificates import Certificates
from tidemill.server.identity.revocations import Revoked
from tidemill.wire.api import ErrorReply

OPEN_PATHS = ("/v1/health", "/health")
IDENTITY = "tidemill.identity"  #: in the ASGI scope: who asks; missing on the open path
PEER = "tidemill.peer"  #: in the ASGI scope: `socket`, or the client's certificate (DER), or None
_LOG = log.Log("server")


class Authenticator(msgspec.Struct, kw_only=True):
    """Judges credentials: secret, certificates, tokens, revocations. `on_refused` gets subject or address, and why."""

    secret: bytes | None = None
    certificates: Certificates | None = None
    tokens: TokenVerifier | None = None
    revoked: Revoked = msgspec.field(default_factory=lambda: Revoked(None))
    on_refused: Callable[[str, str], None] = lambda _who, _why: None

    async def identify(self, scope: Any) -> Identity:
        """Who asks. Raises StrangerError."""
        peer = scope.get(PEER)
        if peer == "socket":
            return LOCAL
        if _is_cross_site(scope):
            raise StrangerError("another web site made this request: `Origin` is not this server")
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) > 1:
            raise StrangerError("two credentials in one request")
        if given:
            host, _ = scope.get("client") or ("", 0)
            identity = await self._of_header(
                given[0], encrypted=scope["scheme"] == "https", stays_here=is_loopback(host)
            )
        elif peer is not None and self.certificates is not None:
            identity = self.certificates.identity(peer)
        else:
            raise StrangerError(
                "no credential was given: a client certificate, a token or the server's secret"
            )
        return self.checked(identity)

    async def _of_header(self, value: bytes, *, encrypted: bool, stays_here: bool) -> Identity:
        kind, _, text = value.partition(b" ")
        text = text.strip()
        if kind.lower() != b"bearer" or not text:
            raise StrangerError("the request's `Authorization` is not `Bearer ...`")
        secret = self.secret
        if secret is not None and hmac.compare_digest(text, secret):
            if not (encrypted or stays_here):
                raise StrangerError(
                    "the secret came in clear text from another machine: replace it, and use https"
                )
            return Identity(role=Role.OPERATOR, name="", via=Via.SECRET, subject="the server's secret")
        tokens = self.tokens
        if tokens is None or text.count(b".") != 2:
            raise StrangerError("the secret is missing or wrong")
        if not encrypted:
            raise StrangerError("the token came in clear text: do not use it again, ask for another")
        identity = tokens.known(text)
        if identity is not None:
            return identity
        return await tokens.wait_for(text)

    def checked(self, identity: Identity) -> Identity:
        """The same identity, unless it has expired or is revoked. Raises StrangerError."""
        if identity.expires_us is not None and identity.expires_us <= clock.now_us():
            raise StrangerError(f"the credential of `{identity.subject}` has expired")
        revoked = self.revoked.why(identity)
        if revoked is not None:
            raise StrangerError(f"the credential of `{identity.subject}` is revoked: `{revoked}`")
        return identity

    def believes(self, identity: Identity) -> bool:
        """Whether an identity that was accepted earlier still would be."""
        try:
            self.checked(identity)
        except StrangerError:
            return False
        return True


class Guard:
    """ASGI: finds out who asks and puts that into the scope; answers 401 to strangers."""

    def __init__(self, app: Any, authenticator: Authenticator) -> None:
        self._app, self._authenticator = app, authenticator

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request."""
        if scope["type"] == "http":
            try:
                scope[IDENTITY] = await self._authenticator.identify(scope)
            except StrangerError as stranger:
                if scope["path"] not in OPEN_PATHS:
                    peer = scope.get("client") or ("unknown", 0)
                    why = str(stranger)
                    _LOG.warning("access.refused", peer=f"{peer[0]}:{peer[1]}", path=scope["path"], why=why)
                    self._authenticator.on_refused(f"{peer[0]}", why)
                    await _refuse(send, why)
                    return
        await self._app(scope, receive, send)


def _is_cross_site(scope: Any) -> bool:
    """Whether a browser says that a page of another site makes a request that may change something. The browser sends
    the user's certificate with requests of any page; no page can set the `Origin` header (RFC 6454, section 7)."""
    if scope["method"] in ("GET", "HEAD"):
        return False
    told = dict(scope["headers"])
    origin, host = told.get(b"origin"), told.get(b"host", b"")
    return origin is not None and origin.partition(b"://")[2] != host


async def _refuse(send: Any, why: str) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"www-authenticate", b"Bearer"),
        (b"connection", b"close"),
    ]
    reply = ErrorReply(error=why, hint="name your certificate, your token or the server's secret file")
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(reply)})
