"""Public keys of token issuers (JWKS, RFC 7517): from a file, or asked from the issuer, kept, and asked for seldom."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from tidemill import clock, log
from tidemill.config.keys import path_in, url_in
from tidemill.errors import ConfigError, SiteError, TidemillError
from tidemill.net.addresses import socket_to
from tidemill.net.http_exchange import ExchangeError, HttpServer, TimeLimit
from tidemill_tokens.settings import Issuer

ANSWER_BYTES_MAX = 1024 * 1024
KEYS_MAX = 100
ASK_TIMEOUT_S = 10.0  #: for each step
ASK_S_MAX = (
    20.0  #: for all queries at a time: an issuer that answers a byte at a time delays callers no longer
)
ASK_AGAIN_S = 60.0  #: least time between queries, whatever key a token names: strangers must not cause them
KEPT_AWAY_S = 86400.0  #: how long keys are used while their issuer does not answer
#: Signatures that are believed, by type of key; neither `none` nor HMAC, which the public key itself would satisfy
#: (RFC 8725, sections 2.1 and 3.1)
ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LOG = log.Log("server")


class IssuerKeys:
    """Keys of one issuer, shared by threads. One of them at a time asks; the others see what is there meanwhile."""

    def __init__(
        self,
        issuer: Issuer,
        *,
        kept_s: float,
        ask_s: float = ASK_S_MAX,
        monotonic_s: Callable[[], float] = clock.monotonic_s,
    ) -> None:
        """Raises ConfigError for an issuer that cannot be asked. Clock and `ask_s` are arguments for tests."""
        self._monotonic_s, self._ask_s = monotonic_s, ask_s
        self._issuer, self._kept_s = issuer, kept_s
        self._asking = threading.Lock()
        self._keys: list[dict[str, Any]] = []
        self._read_s = self._asked_s = float("-inf")
        self._file, self._url = path_in(issuer.jwks), url_in(issuer.jwks)
        if self._file is not None:
            try:
                self._keys = parse(self._file.read_bytes())
            except (OSError, ValueError) as error:
                raise ConfigError(f"keys of issuer `{issuer.name}` cannot be read: {error}") from error
        else:
            for url in (self._url or issuer.issuer, issuer.issuer):
                _check_url(url)

    def known(self, kid: str | None, algorithm: str) -> dict[str, Any] | None:
        """The key that a token names, or the only one that fits if it names none. Never blocks: None also means that
        the issuer is to be asked first. While it is, keys that have had their time are used by the others."""
        now_s = self._monotonic_s()
        age_s = now_s - self._read_s
        if age_s > KEPT_AWAY_S or (age_s > self._kept_s and now_s - self._asked_s >= ASK_AGAIN_S):
            return None
        return self._fitting(kid, algorithm)

    def find(self, kid: str | None, algorithm: str) -> dict[str, Any] | None:
        """The key that a token names; asks the issuer if need be: blocks while it does, or while another
        thread asks."""
        result = self.known(kid, algorithm)
        if result is None:
            with self._asking:
                self._refresh(self._monotonic_s())
            result = self._fitting(kid, algorithm)
        return result

    def _fitting(self, kid: str | None, algorithm: str) -> dict[str, Any] | None:
        fits = [
            key
            for key in self._keys
            if algorithm in ALGORITHMS.get(str(key.get("kty")), ())
            and key.get("alg", algorithm) == algorithm
            and key.get("use", "sig") == "sig"
            and (kid is None or key.get("kid") == kid)
        ]
        return fits[0] if len(fits) == 1 else None

    def _refresh(self, now_s: float) -> None:
        if now_s - self._asked_s < ASK_AGAIN_S:
            return
        self._asked_s = now_s
        bound = TimeLimit(self._ask_s)
        try:
            if self._file is not None:
                self._keys = parse(self._file.read_bytes())
            else:
                url = self._where(bound)
                self._keys = parse(_get(url, bound, private=self._is_trusted(url)))
            self._read_s = now_s
        except (OSError, ValueError, TidemillError) as error:
            if now_s - self._read_s > KEPT_AWAY_S:
                self._keys = []
            _LOG.warning(
                "issuer.away", issuer=self._issuer.name, error=str(error), keys_in_use=len(self._keys)
            )

    def _where(self, bound: TimeLimit) -> str:
        if self._url:
            return self._url
        page = _get(
            self._issuer.issuer.rstrip("/") + "/.well-known/openid-configuration", bound, private=True
        )
        told = _decoded(page)
        if not isinstance(told, dict) or str(told.get("issuer")).rstrip("/") != self._issuer.issuer.rstrip(
            "/"
        ):
            raise SiteError(f"{self._issuer.issuer} describes another issuer")
        _check_url(str(told.get("jwks_uri")))
        return str(told["jwks_uri"])

    def _is_trusted(self, url: str) -> bool:
        """Whether keys may be asked from a private address there: a host that the configuration names, or a program of
        this machine where the issuer is one. What an issuer says of another host leads to the public internet only."""
        named = {urlsplit(each).hostname for each in (self._issuer.issuer, self._url) if each}
        return urlsplit(url).hostname in named or not named.isdisjoint(_LOOPBACK)


def parse(text: bytes) -> list[dict[str, Any]]:
    """The keys of a JWKS. Raises ValueError that says what is wrong."""
    found = _decoded(text)
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise ValueError("it is not a JSON object with a list `keys`")
    if len(keys) > KEYS_MAX:
        raise ValueError(f"{len(keys)} keys, at most {KEYS_MAX}")
    return keys


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ConfigError(f"keys cannot be asked from `{url}`", hint="only https can be believed")


def _get(url: str, bound: TimeLimit, *, private: bool) -> bytes:
    """The page there. Redirections are not followed: who redirects decides whose keys we believe. `private`: its host
    may have an address that is not public. Raises SiteError."""
    parts = urlsplit(url)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        host, port = parts.hostname or "", parts.port or (443 if tls else 80)
        reach = partial(socket_to, host, port, private=private)
        server = HttpServer(host, port, timeout_s=ASK_TIMEOUT_S, tls=tls, connect=reach)
        with closing(server.ask("GET", path, headers={}, bound=bound)) as answer:
            text = answer.body(ANSWER_BYTES_MAX + 1)
    except ExchangeError as error:
        raise SiteError(f"{url} does not answer: {error}") from error
    if answer.status != 200:
        raise SiteError(f"{url} answers {answer.status} {answer.reason}")
    if len(text) > ANSWER_BYTES_MAX:
        raise SiteError(f"the answer of {url} exceeds {ANSWER_BYTES_MAX} bytes")
    return text
