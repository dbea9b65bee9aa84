"""The types that keys of a configuration file may have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec

CREDENTIALS = {
    "certificate": "Certificate to show (PEM, with its intermediate CAs), or a proxy with its key",
    "key": "Key of the certificate (PEM, mode 0600); none = in the same file",
    "ca": "CAs that the other side's certificate must be from: a PEM file, or a directory by hash as X509_CERT_DIR; "
    "none = the system's",
    "token_file": "File (mode 0600) with a bearer token that something else renews, as htgettoken does",
    "secret_file": "File (mode 0600) with a secret that both sides know",
}
"""Keys that mean the same in every table (recognised by the last part of their name), and what they mean."""

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


HTTP = frozenset({"http", "https", "unix"})
"""The schemes of servers' addresses that are the core's: no transport of an extension has them."""


def refuse_password(server: str) -> None:
    """Raise ValueError, which does not quote it, for a password in a `server`, whatever its scheme."""
    for each in addresses(server):
        _, mark, rest = each.partition("://")
        where = rest if mark else each
        first, at, _ = where.partition("@")  # a password may hold a `/`
        host = where.split("/")[0]
        last = host.rpartition("@")[0]  # and a user an `@`
        port = host.rpartition("@")[2].rpartition(":")[2] if ":" in host else "0"
        is_both = not port.isdecimal() and "@" in where[len(host) :]
        if at and (":" in first + last or is_both) and not each.startswith("unix:"):
            raise ValueError(
                "`server` holds a password before the `@`, where none is read: remove it, and change it where it is "
                "used, for others may have read it; write such as `https://HOST:PORT`"
            )


def name_of(characters_max: int, signs: str, *, letters: str = "A-Za-z") -> msgspec.Meta:
    """What a name may be, as annotation of a field: letters, digits and some signs, the first one no sign."""
    kind = "letters" if letters == "A-Za-z" else "small letters"
    return msgspec.Meta(
        pattern=f"^[{letters}0-9][{letters}0-9{signs}]{{0,{characters_max - 1}}}$",
        extra={
            "expected": f"a name of at most {characters_max} characters: {kind}, digits and `{signs}`, the first one a "
            "letter or digit"
        },
    )


def doc(text: str) -> msgspec.Meta:
    """What a key is for, as annotation of a field."""
    return msgspec.Meta(description=text)


def shown_url(url: str) -> str:
    """A URL for messages, without what stands before an `@` and after a `?`: it may be a password or a token."""
    head, at, rest = url.rpartition("@")
    bare, mark, _ = (f"{head.partition('://')[0]}://...@{rest}" if at else url).partition("?")
    return f"{bare}?..." if mark else bare
