"""Sessions of the pages: signed cookies that hold an identity for a limited time, and tokens against forged forms.

Without a file `session.key` the key exists in this process alone: a restart ends every session. A cookie is signed but
readable, so it holds no secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

import msgspec

from tidemill.model.identity import SCOPES, Identity

COOKIE_BYTES_MAX = 4_000
ENDED_MAX = 10_000  #: sessions that were left before their time, remembered until it is over
KEY_BYTES = 32
_SCOPES = frozenset(SCOPES.values())


class WebSession(msgspec.Struct, frozen=True, kw_only=True):
    """One login. `number` is random; `ends_us`: when it has to be renewed."""

    number: str
    identity: Identity
    ends_us: int


class Sessions:
    """Makes, reads and ends sessions. From the event loop's thread only."""

    def __init__(self, life_s: float, secret: bytes | None = None) -> None:
        """`secret`: what both servers of a pair sign by; None = of this process alone."""
        self.life_s = life_s
        own = secrets.token_bytes(KEY_BYTES)
        self._key = own if secret is None else hashlib.sha256(b"tidemill sessions\0" + secret).digest()
        self._ended: dict[str, int] = {}

    def begin(self, identity: Identity, now_us: int) -> WebSession:
        """A session of this identity that ends no later than its credential."""
        ends_us = now_us + int(self.life_s * 1e6)
        if identity.expires_us is not None:
            ends_us = min(ends_us, identity.expires_us)
        # Tokens may name hundreds of scopes, and browsers drop cookies above 4 kB: those that mean something here.
        identity = msgspec.structs.replace(identity, scopes=identity.scopes & _SCOPES)
        return WebSession(number=secrets.token_urlsafe(16), identity=identity, ends_us=ends_us)

    def write(self, session: WebSession) -> str:
        """The cookie's value."""
        body = base64.urlsafe_b64encode(msgspec.json.encode(session)).rstrip(b"=")
        return f"{body.decode()}.{self._sign(b'session', body)}"

    def read(self, value: str, now_us: int) -> WebSession | None:
        """The session in a cookie; None if this server did not sign it, or the session expired or was logged out."""
        body, dot, signature = value.partition(".")
        if not dot or len(value) > COOKIE_BYTES_MAX or not value.isascii():
            return None
        if not hmac.compare_digest(signature, self._sign(b"session", body.encode())):
            return None
        session = msgspec.json.decode(
            base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=WebSession
        )
        if session.ends_us <= now_us or session.number in self._ended:
            return None
        return session

    def end(self, session: WebSession, now_us: int) -> None:
        """End a session: its cookie is worth nothing any more."""
        self._ended[session.number] = session.ends_us
        self._ended = {number: ends for number, ends in self._ended.items() if ends > now_us}
        while len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def form_token(self, session: WebSession) -> str:
        """What every form of a session carries, and no other site can know."""
        return self._sign(b"form", session.number.encode())

    def is_form_token(self, session: WebSession, given: str) -> bool:
        """Whether a form carries this session's token."""
        return hmac.compare_digest(given.encode(), self.form_token(session).encode())

    def _sign(self, purpose: bytes, text: bytes) -> str:
        digest = hmac.new(self._key, purpose + b"\0" + text, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
