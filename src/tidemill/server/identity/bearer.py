"""Bearer tokens as the server sees them: an extension says who stands behind one (docs/extensions.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tidemill.config.tls import RoleMember
from tidemill.model.identity import Identity

NAME = "tokens"
"""Of the table of settings, and of the entry point."""


class TokenVerifier(Protocol):
    """Who stands behind a token. Shared by threads; it neither logs nor keeps a token."""

    def known(self, text: bytes) -> Identity | None:
        """The token's identity, if this very token was verified a short while ago and has not expired. Never blocks."""

    async def wait_for(self, text: bytes) -> Identity:
        """Whose token it is. Raises StrangerError with the reason. A slow issuer delays its own tokens only."""


class TokenIssuers(NamedTuple):
    """Whose tokens a server believes. `names`: of the issuers, as `SUB@NAME` in `roles.members` has them; `verifier`
    gets the members, and raises ConfigError."""

    names: tuple[str, ...]
    verifier: Callable[[Sequence[RoleMember]], TokenVerifier]
