"""Schemes of URLs that extensions add by entry points of `tidemill.transfer` (docs/extensions.md)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from tidemill import extensions
from tidemill.errors import ConfigError
from tidemill.transfer.contract import Adapter


class TransferScheme(NamedTuple):
    """A scheme of an extension."""

    adapter: Callable[[], Adapter]
    port: int  #: where its URLs name none
    programs: tuple[str, ...] = ()  #: clients that it starts
    package: str = ""  #: Debian's package with them


def added() -> set[str]:
    """The names of these schemes, also of those whose extension is known and not installed."""
    return extensions.names(extensions.TRANSFER)


@cache
def scheme_of(name: str) -> TransferScheme:
    """The scheme of this name. Raises ConfigError: there is none, or its extension is missing or at fault."""
    result = extensions.find(extensions.TRANSFER, name)
    if not isinstance(result, TransferScheme):
        raise ConfigError(f"Tidemill has no transfer for `{name}:`")
    return result
