"""The types that keys of a configuration file may have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec

Duration = Annotated[float, msgspec.Meta(extra={"kind": "duration", "unit": "s"})]
"""Seconds, as a number or a text: `90`, `90m`, `HH:MM:SS`, `D-HH:MM:SS`."""

Size = Annotated[int, msgspec.Meta(extra={"kind": "size", "unit": "bytes"})]
"""Bytes, as a number or a text: `2GB`, `500MB`, `64KiB`."""


Addresses = Annotated[str, msgspec.Meta(extra={"kind": "addresses"})]
"""An address, or those of both servers of a pair: a list, or a text with commas. Read as a text with commas."""

Place = Annotated[str, msgspec.Meta(extra={"kind": "place"})]
"""A path, or a URL. A relative path is made absolute as other paths are; `path_in` and `url_in` tell them apart."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|https?:")


def url_in(place: str) -> str:
    """The place if it is a URL, else an empty text."""
    return place if _URL.match(place) else ""


def path_in(place: str) -> Path | None:
    """The place if it is a path, else None."""
    return Path(place) if place and not url_in(place) else None


DISCOVER = Path("discover")
"""The token that the WLCG's order finds, instead of a file. A file of this name is written `./discover`."""

TokenFile = Annotated[Path, msgspec.Meta(extra={"kind": "token"})]
"""A file with a bearer token, or `discover`."""


def addresses(text: str) -> list[str]:
    """Each address of a text with commas, in its order; the text itself if there is none."""
    return [each.strip() for each in text.split(",") if each.strip()] or [text]


def doc(text: str) -> msgspec.Meta:
    """What a key is for, as annotation of a field."""
    return msgspec.Meta(description=text)
