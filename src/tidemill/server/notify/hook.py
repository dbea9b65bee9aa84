"""Web hooks: a digest as JSON, posted by HTTPS and signed as Standard Webhooks wants it.

Signature: https://github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md: `v1,` and the base64 of
HMAC-SHA256 over `ID.TIMESTAMP.BODY`. Where a connection may go: `net/addresses`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from http.client import IncompleteRead
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from tidemill import clock
from tidemill.config.addressee import shown
from tidemill.config.notify import Hook, Notify
from tidemill.errors import ConfigError, blaming
from tidemill.net.addresses import PrivateAddressError, socket_to
from tidemill.net.http_exchange import ExchangeError, HttpServer, TimeLimit
from tidemill.server.errors import LaterError, RefusedError
from tidemill.server.notices.sender import Parcel
from tidemill.server.notify import text
from tidemill.wire.credentials import Credentials, read_key

TIMEOUT_S = 20.0  #: for each step
POST_S = 60.0  #: for all of a post: a host that answers a byte at a time holds up the others no longer
REPLY_BYTES_MAX = 64 * 1024
REDIRECTS_MAX = 3
_GONE = 410  #: RFC 9110 15.5.11: the client should not repeat the request


class HookTarget(NamedTuple):
    """A hook, ready to be posted to. `private`: may its host have an address that is not of the public internet?"""

    url: str
    secret: bytes
    tls: ssl.SSLContext
    private: bool


def sign(secret: bytes, identity: str, at_s: int, body: bytes) -> str:
    """The header `webhook-signature`."""
    signed = f"{identity}.{at_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()


def key_of(secret: bytes) -> bytes:
    """The key of a secret as a file has it: `whsec_` and base64 as the specification wants, or the text itself."""
    if secret.startswith(b"whsec_"):
        try:
            return base64.b64decode(secret.removeprefix(b"whsec_"), validate=True)
        except ValueError:
            raise ConfigError(
                "a hook's secret begins with `whsec_`, and what follows is not valid base64"
            ) from None
    return secret


class Poster:
    """Posts digests. Raises ConfigError at once when a secret or certificates cannot be read."""

    def __init__(
        self, config: Notify, *, now_s: Callable[[], int] = clock.now_s, post_s: float = POST_S
    ) -> None:
        self._now_s, self._post_s = now_s, post_s
        self._config = config
        self._hooks: dict[str, HookTarget] = {
            hook.name: _place(hook, f"notify.hooks[{index}]") for index, hook in enumerate(config.hooks)
        }
        self._given: tuple[bytes, ssl.SSLContext] | None = None
        if config.secret_file is not None:
            with blaming("server.toml: `notify.secret_file`"):
                secret = key_of(read_key(config.secret_file))
            self._given = secret, ssl.create_default_context()

    def send(self, parcel: Parcel) -> None:
        """Post a digest; the answer must be 2xx. Raises RefusedError or LaterError."""
        place = self._find(parcel.where)
        body = msgspec.json.encode(parcel.digest)
        at_s = self._now_s()
        headers = {
            "content-type": "application/json",
            "webhook-id": parcel.digest.id,
            "webhook-timestamp": str(at_s),
            "webhook-signature": sign(place.secret, parcel.digest.id, at_s, body),
            "connection": "close",
        }
        url = place.url
        for _ in range(REDIRECTS_MAX + 1):
            status, location = post(url, body, headers, place=place, post_s=self._post_s)
            if 200 <= status < 300:
                return
            if status not in (307, 308):
                break
            url = _followed(url, location)
        if status == _GONE:
            raise RefusedError(
                f"hook `{shown(parcel.where)}` answers {status}: it is gone for good", transient=False
            )
        raise LaterError(f"hook `{shown(parcel.where)}` answers {status}", hint="expected 2xx")

    def release(self) -> None:
        """No connection is kept."""

    def _find(self, where: str) -> HookTarget:
        if "://" not in where:
            target = self._hooks.get(where)
            if target is None:
                raise LaterError(
                    f"there is no hook `{where}` any more", hint="`[[notify.hooks]]` in server.toml"
                )
            return target
        host = urlsplit(where).hostname or ""
        if self._given is None or not self._config.allows("https", host):
            raise RefusedError(f"`notify.allowed` does not have `https://{host}` any more", transient=False)
        return HookTarget(where, *self._given, private=False)


def _place(hook: Hook, table: str) -> HookTarget:
    with blaming(f"server.toml: `{table}.ca`"):
        tls = Credentials(ca=hook.ca).context()
    with blaming(f"server.toml: `{table}.secret_file`"):
        secret = key_of(read_key(hook.secret_file))
    return HookTarget(hook.url, secret, tls, hook.may_be_private)


def _followed(url: str, location: str | None) -> str:
    """Where a redirect leads, if that is the same place. Raises LaterError."""
    target = location or ""
    if target.startswith("/") and not target.startswith("//"):
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc}{target}"
    if _origin(target) != _origin(url):
        where = f"`{shown(text.clean(target))[:200]}`" if _origin(target)[0] else "an invalid address"
        raise LaterError(f"`{shown(url)}` sends us on to {where}", hint="a hook may not lead to another host")
    return target


def _origin(url: str) -> tuple[str, str | None, int | None]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # no host, or a port that is not a number
        return "", None, None
    return parts.scheme, parts.hostname, port


def post(
    url: str, body: bytes, headers: Mapping[str, str], *, place: HookTarget, post_s: float
) -> tuple[int, str | None]:
    """Status of the answer, and where it sends us on to, within `post_s`. Raises LaterError."""
    parts = urlsplit(url)
    host, tls = parts.hostname or "", place.tls if parts.scheme == "https" else None
    try:
        port = parts.port or (443 if tls else 80)
        reach = partial(socket_to, host, port, private=place.private)
        server = HttpServer(host, port, timeout_s=TIMEOUT_S, tls=tls, connect=reach)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        answer = server.ask("POST", path, headers=headers, body=body, bound=TimeLimit(post_s))
        with closing(answer):
            try:
                answer.body(REPLY_BYTES_MAX)
            except ExchangeError as error:  # the status counts, whether or not its reply is whole
                if not isinstance(error.reason, IncompleteRead):
                    raise
            return answer.status, answer.headers.get("location")
    except ExchangeError as error:
        if error.is_illegal:
            raise _illegal(url) from error
        is_private = isinstance(error.reason, PrivateAddressError)
        hint = (
            "if the operator means it: write that address into the hook's `url`, or set the hook's `ca`"
            if is_private
            else None
        )
        where = f"`{parts.scheme}://{host}:{port}`"
        raise LaterError(f"failed to post to {where}: {error}", hint=hint) from error
    except ValueError as error:  # a port that is not a number
        raise _illegal(url) from error


def _illegal(url: str) -> LaterError:
    return LaterError(f"`{shown(url)}` has a host, port or path that is not valid")
