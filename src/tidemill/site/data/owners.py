"""Who owns delivered outputs: each owner has a separate directory below the site's delivery directory.

    OUT/@OWNER/...   only jobs of that owner read and write there
    OUT/...          outputs at a site that serves only the user who runs it, and what earlier versions delivered

Other jobs read a delivered file only as `job:ID/OUTPUT`: the server checks who owns that job and reports it with the
lease, and the manifest beside the file must name the job.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from tidemill.config.site import SiteConfig
from tidemill.errors import UNDECODABLE
from tidemill.files import read_bounded
from tidemill.site.data.routing import Opening
from tidemill.transfer.file import APART, Roots

_MANIFEST = re.compile(r"manifest-\d{1,20}\.json")
MANIFEST_BYTES_MAX = 1 << 30
_NAME_CHARACTERS_MAX = 120


def manifest_path(folder: Path, job: int) -> Path:
    """The manifest of a job's files in a directory of outputs: beside them, where people look."""
    return folder / f"manifest-{job}.json"


def is_manifest_name(name: str) -> bool:
    """Whether a file of that name is a manifest, which says what a job may replace: no output may be called so."""
    return _MANIFEST.fullmatch(name) is not None


class Reader(NamedTuple):
    """Who reads inputs. `from_jobs`: those that were `job:ID/OUTPUT`, as the server says: name of the input -> job;
    `opening`: by which program."""

    owner: str = ""
    from_jobs: Mapping[str, int] = {}
    opening: Opening = Opening()


NOBODY = Reader()


class _Named(msgspec.Struct, frozen=True):
    file: str


class _Claims(msgspec.Struct, frozen=True):
    """What is asked of a manifest here."""

    job: int
    files: list[_Named]


class OwnedPlaces:
    """Where jobs of each owner read and write at `site`. `person`: names of an owner whose outputs get no directory of
    their own; `base`: the delivery directory; None = there is none."""

    def __init__(
        self, roots: Roots, base: Path | None = None, *, person: frozenset[str] = frozenset(), site: str = ""
    ) -> None:
        self.site = site
        self._roots = roots
        self._base = None if base is None else Path(os.path.realpath(base))
        self._person = person

    def directory(self, owner: str) -> Path:
        """Where outputs of this owner go that name no place."""
        assert self._base is not None, "only what delivers asks"
        return self._base if owner in self._person else self._base / directory_name(owner)

    def roots(self, owner: str) -> Roots:
        """What jobs of this owner may read and write."""
        return self._roots if self._base is None else self._roots.opened(self.directory(owner))

    def for_input(self, reader: Reader, path: Path, job: int | None) -> Roots:
        """What may be read for the input at `path`, which is the output of `job`, or of none."""
        roots = self.roots(reader.owner)
        if job is None:
            return roots
        real = Path(os.path.realpath(path))
        return roots.opened(real) if _is_delivered(real, job) else roots


def person_of(config: SiteConfig) -> frozenset[str]:
    """Owners whose outputs get no directory of their own: the site's own person, unless the site serves others."""
    if config.serves_others:
        return frozenset()
    try:
        return frozenset(("", getpass.getuser()))
    except (KeyError, OSError):  # this user has no name
        return frozenset(("",))


def directory_name(owner: str) -> str:
    """The directory of an owner: one plain name, another one for each owner."""
    quoted = quote(owner, safe="")
    if len(quoted) > _NAME_CHARACTERS_MAX:  # `=` is never in a quoted name
        quoted = f"{quoted[:_NAME_CHARACTERS_MAX]}={hashlib.sha256(owner.encode()).hexdigest()}"
    return APART + quoted


def _is_delivered(path: Path, job: int) -> bool:
    """Whether the manifest of a job claims the file."""
    content = read_bounded(manifest_path(path.parent, job), MANIFEST_BYTES_MAX)
    if content is None:
        return False
    try:
        claims = msgspec.json.decode(content, type=_Claims)
    except UNDECODABLE:
        return False
    return claims.job == job and any(each.file == path.name for each in claims.files)
