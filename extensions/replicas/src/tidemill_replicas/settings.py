"""The settings of this extension: `[replicas]` of site.toml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from tidemill.config.keys import doc, shown_url
from tidemill.config.tables import SettingsTable

_RUCIO = re.compile(r"https?://([A-Za-z0-9._-]{1,100}@)?[^/@?#\s]+(/[^@?#\s]*)?")


class Rucio(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Rucio server that lists the replicas of a file. Give a token, a certificate, or a file with a login."""

    url: Annotated[
        str,
        doc(
            "The server, such as `https://rucio.example.org`; a login names its account, as "
            "`https://ACCOUNT@rucio.example.org`; empty = Rucio is not asked"
        ),
    ] = ""
    site: Annotated[
        str, doc("The site's name in Rucio: replicas of stores with that `site` attribute come first")
    ] = ""
    secret_file: Annotated[
        Path | None,
        doc(
            "File (mode 0600) with the user on its first line and the password on the second; none = no password"
        ),
    ] = None
    certificate: Annotated[
        Path | None, doc("Our certificate or proxy (PEM) for /auth/x509; none = no certificate")
    ] = None
    key: Annotated[Path | None, doc("Key of the certificate (PEM, mode 0600); none = in the same file")] = (
        None
    )
    token_file: Annotated[
        Path | None, doc("File (mode 0600) with a JWT, sent without a login; read for each request")
    ] = None
    ca: Annotated[
        Path | None, doc("Certification authorities: a PEM file or a directory; none = the system's")
    ] = None

    def __post_init__(self) -> None:
        """Refuse what cannot be reached, or cannot log in."""
        if self.url and _RUCIO.fullmatch(self.url) is None:
            raise ValueError(
                f"`replicas.rucio.url` is `{shown_url(self.url)}`, expected a server such as "
                "`https://rucio.example.org`, or with the account that logs in "
                "`https://ACCOUNT@rucio.example.org`; a password belongs into `secret_file`"
            )
        _ = urlsplit(self.url).port  # raises ValueError where it is malformed
        ways = [self.token_file, self.certificate, self.secret_file]
        if sum(each is not None for each in ways) > 1:
            raise ValueError("`replicas.rucio`: give one of `token_file`, `certificate` and `secret_file`")
        if self.token_file is None and any(each is not None for each in ways) and not self.account:
            raise ValueError(
                "`replicas.rucio.url` names no account, and a login needs one: write `https://ACCOUNT@HOST`"
            )
        if self.url.startswith("http:") and any(each is not None for each in ways):
            host = self.address.removeprefix("http://").partition("/")[0].rpartition(":")[0]
            if host not in ("127.0.0.1", "localhost", "[::1]"):
                raise ValueError("`replicas.rucio.url` is not encrypted: write `https://`")

    @property
    def account(self) -> str:
        """The account to log in as; empty = the URL names none."""
        return urlsplit(self.url).username or ""

    @property
    def address(self) -> str:
        """The URL without the account."""
        scheme, colon, rest = self.url.partition("://")
        return f"{scheme}{colon}{rest.rpartition('@')[2]}"


class Replicas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where copies of a far file are. Each URL must be permitted by an endpoint, wherever it comes from."""

    files: Annotated[
        Path | None,
        doc(
            "A file with lines `PATTERN URL ...`: `*` is the rest of the input's URL, and of each copy's; or a "
            "directory of such files, one a dataset, read in the order of their names; none = no list"
        ),
    ] = None
    rucio: Annotated[Rucio, doc("The Rucio server that knows `rucio:SCOPE/NAME`")] = Rucio()


SETTINGS = SettingsTable("site.toml", Replicas)
