"""Bearer tokens by the WLCG Common JWT Profile 1.0 (doi:10.5281/zenodo.3460258): who stands behind one.

Checked: signature by a key of a configured issuer, `iss`, `aud`, `exp`, `nbf`, `iat`, `wlcg.ver`, the lifetime. A
token is never logged and never stored; a digest of it is kept in memory for a while.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jwt

from tidemill import clock
from tidemill.config.tls import RoleMember
from tidemill.errors import ConfigError
from tidemill.model.identity import Identity, Role, Via
from tidemill.server.errors import StrangerError
from tidemill.server.identity.bearer import TokenIssuers
from tidemill_tokens import constants
from tidemill_tokens.issuers import ALGORITHMS, IssuerKeys
from tidemill_tokens.settings import Issuer, Tokens

TOKEN_BYTES_MAX = 16 * 1024
KNOWN_MAX = 10_000  #: tokens whose verification is remembered
KNOWN_S = 300.0  #: how long, so that a key that its issuer withdraws is not accepted much longer
SUBJECT_MAX = 150
LIFETIME_S_MAX = 6 * 3600.0  #: a token that lives longer is refused: at most this by the WLCG profile
KEYS_KEPT_S = (
    3600.0  #: an issuer's keys are fetched again after this time, so that a withdrawn one ends within it
)
_ALGORITHMS = frozenset(each for several in ALGORITHMS.values() for each in several)


class _Unasked(StrangerError):
    """The token's key is not known, or has had its time: its issuer is to be asked first."""

    def __init__(self, issuer: Issuer) -> None:
        super().__init__(f"issuer `{issuer.name}` has no key that this token names")
        self.issuer = issuer


def issuers_of(settings: Tokens) -> TokenIssuers:
    """What the server gets of these settings."""
    names = tuple(each.name for each in settings.issuers)
    return TokenIssuers(names, partial(WlcgTokens, settings))


class WlcgTokens:
    """Verifies tokens; shared by threads."""

    def __init__(self, settings: Tokens, members: Sequence[RoleMember]) -> None:
        """Raises ConfigError for issuers that contradict each other, or cannot be asked."""
        issuers = settings.issuers
        self._issuers = {each.issuer: each for each in issuers}
        if min(len(self._issuers), len({each.name for each in issuers})) < len(issuers):
            raise ConfigError("two of `tokens.issuers` have the same `issuer` or `name`")
        self._keys = {each.issuer: IssuerKeys(each, kept_s=KEYS_KEPT_S) for each in issuers}
        self._askers = {
            each.issuer: ThreadPoolExecutor(1, f"issuer-{each.name}") for each in issuers
        }  #: who waits for an issuer waits in its own thread, and takes none that others need
        self._subjects = {(b.issuer, b.token): each for each in members if (b := each.bearer).token}
        self._groups = [(b.issuer, b.group, each) for each in members if (b := each.bearer).group]
        self._lock = threading.Lock()
        self._known: dict[bytes, tuple[float, Identity]] = {}

    def known(self, text: bytes) -> Identity | None:
        """The token's identity, if this very token was verified a short while ago and has not expired. Never blocks."""
        found = self._known.get(hashlib.sha256(text).digest())
        if found is None or clock.monotonic_s() > found[0]:
            return None
        return found[1]

    async def wait_for(self, text: bytes) -> Identity:
        """As `identity`, for the event loop: an issuer that is slow delays those only who need a key of it."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, partial(self.identity, text, ask=False))
        except _Unasked as unasked:
            asker = self._askers[unasked.issuer.issuer]
        return await loop.run_in_executor(asker, self.identity, text)

    def identity(self, text: bytes, *, ask: bool = True) -> Identity:
        """Whose token it is. Raises StrangerError with the reason. May `ask` the issuer for its keys: blocks."""
        if len(text) > TOKEN_BYTES_MAX:
            raise StrangerError(f"a token of {len(text)} bytes is too long, at most {TOKEN_BYTES_MAX}")
        claims, issuer = self._verified(text, ask)
        identity = self._identity(claims, issuer)
        with self._lock:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[hashlib.sha256(text).digest()] = (clock.monotonic_s() + KNOWN_S, identity)
        return identity

    def _verified(self, text: bytes, ask: bool) -> tuple[dict[str, Any], Issuer]:
        try:
            head = jwt.get_unverified_header(text)
            says: dict[str, Any] = jwt.decode(text, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise StrangerError("the request carries no token that can be read") from error
        algorithm, kid = head.get("alg"), head.get("kid")
        if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS or "crit" in head:
            raise StrangerError(f"tokens signed by `{str(algorithm)[:20]}` are not believed")
        name = says.get("iss")
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise StrangerError(f"tokens of issuer `{str(name)[:200]}` are not believed here")
        keys = self._keys[issuer.issuer]
        key = (keys.find if ask else keys.known)(kid if isinstance(kid, str) else None, algorithm)
        if key is None:
            raise _Unasked(issuer)
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                jwt.PyJWK(key, algorithm=algorithm).key,
                algorithms=[algorithm],
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=constants.CLOCK_LEEWAY_S,
                options={"require": ["iss", "sub", "aud", "exp", "iat"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            raise StrangerError(f"the token of issuer `{issuer.name}` is refused: {error}") from error
        self._check(claims, issuer)
        return claims, issuer

    def _check(self, claims: Mapping[str, Any], issuer: Issuer) -> None:
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_MAX or not subject.isprintable():
            raise StrangerError(f"the token of issuer `{issuer.name}` has no usable `sub`")
        ends, begun = claims["exp"], claims["iat"]
        if not isinstance(ends, int | float) or not isinstance(begun, int | float):
            raise StrangerError(f"`exp` or `iat` of the token of `{subject}` is not a number")
        if ends - begun > LIFETIME_S_MAX:
            raise StrangerError(f"the token of `{subject}` lives for more than {LIFETIME_S_MAX:.0f} s")
        version = claims.get("wlcg.ver")
        if issuer.profile == "wlcg" and not (isinstance(version, str) and version.split(".")[0] == "1"):
            raise StrangerError(
                f"the token of `{subject}` does not follow the WLCG profile 1: it has no `wlcg.ver`"
            )

    def _identity(self, claims: Mapping[str, Any], issuer: Issuer) -> Identity:
        scope = claims.get("scope", "")
        scopes = frozenset(scope.split()) if isinstance(scope, str) else frozenset()
        groups = claims.get("wlcg.groups", [])
        member = self._member(issuer, claims["sub"], groups if isinstance(groups, list) else [])
        ends_s = float(claims["exp"]) + constants.CLOCK_LEEWAY_S  # until then it is believed
        known: dict[str, Any] = {
            "via": Via.TOKEN, "expires_us": int(ends_s * 1e6), "scopes": scopes,
            "subject": f"{issuer.issuer} {claims['sub']}", "credential": str(claims.get("jti", ""))[:200],
        }  # fmt: skip
        if member is not None:
            return Identity(role=Role(member.role), name=member.name, **known)
        if issuer.submitters and any(each.startswith("compute.") for each in scopes):
            return Identity(role=Role.SUBMITTER, name=f"{claims['sub']}@{issuer.name}", **known)
        raise StrangerError(
            f"the token of `{claims['sub']}` of issuer `{issuer.name}` is valid, but has no role here"
        )

    def _member(self, issuer: Issuer, subject: str, groups: list[Any]) -> RoleMember | None:
        """Who is named comes before whose group is; of several groups the first in the file counts."""
        member = self._subjects.get((issuer.name, subject))
        if member is not None:
            return member
        fits = (each for name, group, each in self._groups if name == issuer.name and group in groups)
        return next(fits, None)
