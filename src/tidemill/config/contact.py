"""A section of `site.toml`: how the site's contact is reached."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidemill.config.keys import doc


class ContactMail(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where mail to the contact goes out."""

    server: Annotated[str, doc("SMTP server, `host:port`; empty = no mail")] = ""
