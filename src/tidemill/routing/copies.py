"""More places of a far file: an extension knows them (docs/extensions.md).

Each URL must be permitted by an endpoint, wherever it comes from; `site/data/routing` sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from tidemill.config.site import SiteConfig
from tidemill.config.tables import provided
from tidemill.errors import SiteError
from tidemill.model.far import CatalogueName

NAME = "replicas"
"""Of the table of settings, and of the entry point."""


class CatalogueError(SiteError):
    """The catalogue does not answer, or refuses. `is_credential`: what we show is refused."""

    def __init__(
        self, message: str, *, hint: str | None = None, transient: bool = True, is_credential: bool = False
    ) -> None:
        super().__init__(message, hint=hint, transient=transient)
        self.is_credential = is_credential


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file and its copies, the best first. `why`: why there is none now, in words; the file is asked for again soon.
    `is_partial`: stores were left out of the reply."""

    urls: Sequence[str] = []
    size_bytes: int | None = None
    adler32: str = ""
    is_partial: bool = False
    why: str = ""


LookUp = Callable[[Sequence[CatalogueName]], dict[CatalogueName, CatalogueEntry]]


class KnownCopies(NamedTuple):
    """What a site knows of copies; threads of the agent ask it. An extension makes it of the settings."""

    #: URLs and absolute paths of copies of the file with a URL, the best first; ConfigError where it cannot say
    copies: Callable[[str], list[str]]
    #: the files of these names that the catalogue knows; CatalogueError. None = this site asks no catalogue
    look_up: LookUp | None = None


def _no_copies(url: str) -> list[str]:
    return []


NOWHERE = KnownCopies(_no_copies)


def copies_of(config: SiteConfig) -> KnownCopies:
    """What a site knows of copies. Raises ConfigError: the extension is at fault."""
    return provided(NAME, KnownCopies, config) or NOWHERE
