"""ASGI: who comes to the pages, by cookie or by the connection; and what no page of another host may do in a browser.

Finds out who asks by `access.Guard`, and remembers it in a signed cookie. Says nothing of rights (`model/identity.py`).
"""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tidemill import clock, log
from tidemill.model.identity import Via
from tidemill.server.errors import StrangerError
from tidemill.server.identity.access import Authenticator
from tidemill.server.web.visits.sessions import Sessions, WebSession
from tidemill.wire.api import ErrorReply

VISIT = "tidemill.visit"  #: in the ASGI scope of a page: a `Visit`
FORGED = "a page of another host sent this request\n"
HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
#: Nothing from other hosts, nothing inline, no frame around us. See the Content Security Policy, Level 3, of the W3C.
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]
_LOG = log.Log("web")


class Visit(NamedTuple):
    """One request for a page. Without a session `why` says what was wrong with the credential, if there was one."""

    session: WebSession | None
    why: str
    comes_from_elsewhere: bool  #: by a link of another host: a SameSite=Strict cookie was not sent then


class Entrance:
    """Stands before `guard`: pages go to `pages` with their visit, all else to the guard. `names`: the first parts of
    the addresses of pages."""

    def __init__(
        self,
        pages: Any,
        guard: Any,
        *,
        authenticator: Authenticator,
        sessions: Sessions,
        names: frozenset[str],
    ) -> None:
        self._pages, self._guard, self._names = pages, guard, names
        self._authenticator, self._sessions = authenticator, sessions

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a connection."""
        if scope["type"] != "http":
            await self._guard(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if scope["method"] not in HARMLESS and is_forged(headers):
            _LOG.warning("request.forged", path=scope["path"], origin=headers.get(b"origin", ""))
            await refuse(send, FORGED, is_call=scope["path"].startswith("/v1/"))
            return
        if (
            scope["path"].strip("/").partition("/")[0] not in self._names
        ):  # `//v1/jobs` is `/v1/jobs` to the router
            await self._guard(scope, receive, send)
            return
        cookies: list[str] = []
        scope[VISIT] = await self._visit(scope, headers, cookies)
        extra = HEADERS + [(b"set-cookie", each.encode()) for each in cookies]
        if scope["scheme"] == "https":
            extra = [*extra, (b"strict-transport-security", b"max-age=31536000")]

        async def send_more(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        await self._pages(scope, receive, send_more)

    async def _visit(self, scope: Any, headers: dict[bytes, str], cookies: list[str]) -> Visit:
        elsewhere = headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin")
        name, why, now_us = cookie_name(scope), "", clock.now_us()
        given = _cookie(headers.get(b"cookie", ""), name)
        session = self._sessions.read(given, now_us) if given else None
        try:
            if session is not None:
                self._authenticator.checked(session.identity)
                return Visit(session, "", elsewhere)
            identity = await self._authenticator.identify(scope)
        except StrangerError as stranger:
            return Visit(None, str(stranger) if given else "", elsewhere)
        if identity.via is Via.SOCKET and not is_local(headers.get(b"host", "")):
            # A name that leads here through a user's tunnel may belong to an attacker (DNS rebinding)
            why = "pages on the server's socket are shown as `localhost` only"
            return Visit(None, why, elsewhere)
        session = self._sessions.begin(identity, now_us)
        cookies.append(set_cookie(scope, self._sessions.write(session), session.ends_us - now_us))
        return Visit(session, "", elsewhere)


def is_forged(headers: dict[bytes, str]) -> bool:
    """Whether a browser says that a page of another host makes it send this. Other programs say nothing."""
    if headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get(b"origin")
    try:
        return origin is not None and urlsplit(origin).netloc != headers.get(b"host", "")
    except ValueError:  # a malformed address
        return True


def is_local(host: str) -> bool:
    """Whether a `Host` header names this machine as seen from itself."""
    try:
        return urlsplit(f"//{host}").hostname in LOCAL_HOSTS
    except ValueError:
        return False


def cookie_name(scope: Any) -> str:
    """`__Host-`: browsers take such a cookie from exactly this host only, over TLS (RFC 6265bis, 4.1.3.2)."""
    return "__Host-tidemill" if scope["scheme"] == "https" else "tidemill"


def set_cookie(scope: Any, value: str, life_us: int) -> str:
    """The header. Without TLS browsers keep `Secure` cookies of `localhost` only, which is what we want."""
    life_s = max(0, life_us // 1_000_000)
    return f"{cookie_name(scope)}={value}; Path=/; Max-Age={life_s}; HttpOnly; Secure; SameSite=Strict"


def _cookie(text: str, name: str) -> str:
    try:
        found = SimpleCookie(text).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


async def refuse(send: Any, words: str, *, is_call: bool = False) -> None:
    """403, in plain text; as JSON where a call of the API is refused."""
    kind = b"application/json" if is_call else b"text/plain"
    body = msgspec.json.encode(ErrorReply(error=words.strip())) if is_call else words.encode()
    await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": body})
