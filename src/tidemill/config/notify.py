"""`[mail]` and `[notify]` of `server.toml`: how notices are sent, who else may receive them, and of what."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from tidemill.config.addressee import Occasion, parse_target, shown
from tidemill.config.keys import CREDENTIALS, doc, name_of
from tidemill.config.outlets import FORMS, PLAIN, SmtpServer, parse_server

_HOST = re.compile(r"[A-Za-z0-9.*?-]+")
Name = Annotated[str, name_of(100, "._+-")]


class Mail(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How mail goes out."""

    server: Annotated[
        str,
        doc(
            f"SMTP server: {FORMS}, without a login only. What is asked for is never left out because the server does "
            "not offer it; empty = no mail"
        ),
    ] = ""
    ca: Annotated[Path | None, doc(CREDENTIALS["ca"])] = None
    sender: Annotated[str, doc("Sender's address; required with `server`")] = ""
    secret_file: Annotated[
        Path | None,
        doc(
            "File (mode 0600) with the user on its first line and the password on its second; none = no login"
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse what cannot work, and a password in the clear."""
        if self.server:
            server = parse_server(self.server)
            if server.security == "none" and self.secret_file is not None:
                raise ValueError(
                    f"`secret_file` with a server `{PLAIN}://...` would send the password in the clear"
                )
        if self.server and not self.sender:
            raise ValueError(
                "`server` is set and `sender` is not: a mail could be neither answered nor returned"
            )
        if self.sender:
            parse_target(f"mail:{self.sender}")

    @property
    def place(self) -> SmtpServer:
        """Where and how to connect, of a record with `server`."""
        return parse_server(self.server)


class Hook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A web hook that may be named `hook:NAME`."""

    name: Annotated[Name, doc("Its name, for `hook:NAME`")]
    url: Annotated[
        str,
        doc(
            "Where digests are posted to: `https`, or `http`, which every host on the way can read. The host may have "
            "a private address if the URL holds that address itself or `localhost`, or if `ca` is set"
        ),
    ]
    secret_file: Annotated[
        Path, doc("File (mode 0600) with the secret that signs the digests, 16 characters or more")
    ]
    ca: Annotated[Path | None, doc(CREDENTIALS["ca"])] = None

    @property
    def may_be_private(self) -> bool:
        """Whether its host may have an address that is not of the public internet.

        The address itself is the operator's word. A name is not: the owner of its DNS could lead us to any
        machine inside, unless that must show a certificate of the CA that the operator names.
        """
        parts = urlsplit(self.url)
        return is_literal(parts.hostname or "") or (parts.scheme == "https" and self.ca is not None)

    def __post_init__(self) -> None:
        """Refuse a URL that nothing can be posted to."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("https", "http") or not parts.hostname or parts.username is not None:
            raise ValueError(
                f"`{shown(self.url)}` is not a URL such as `https://host/path` without user and password"
            )


def is_literal(host: str) -> bool:
    """Whether a host is an address, or this machine by its name, so that no answer of the DNS decides where it is."""
    try:
        return host == "localhost" or bool(ipaddress.ip_address(host))
    except ValueError:
        return False


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An addressee that receives notices of all campaigns."""

    to: Annotated[str, doc("`mail:ADDRESS`, `hook:NAME` or `message:NAME` (a submitter at a message broker)")]
    when: Annotated[list[Occasion], msgspec.Meta(min_length=1), doc("Of what")]
    campaign: Annotated[str, doc("Of which campaigns, `*` for anything, such as `mc26-*`")] = "*"

    def __post_init__(self) -> None:
        """Refuse an invalid addressee."""
        target = parse_target(self.to)
        if not target.where:
            raise ValueError(f"`{self.to}`: say who gets the messages, `message:NAME`")
        if target.is_url:
            raise ValueError(
                f"`{self.to}`: give the hook a name in `[[notify.hooks]]`, and write `hook:NAME`"
            )


class Notify(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is notified, and how often at most."""

    rules: Annotated[list[Rule], doc("Addressees of notices of all campaigns")] = []
    hooks: Annotated[list[Hook], doc("Web hooks that may be named")] = []
    allowed: Annotated[
        list[str],
        doc(
            "What submitters may have notified, besides messages to themselves, `*` for anything: "
            "`mail:*@example.org`, `hook:NAME`, or any web hook at a host, `https://*.example.org`; none = only the "
            "rules of this file notify"
        ),
    ] = []
    secret_file: Annotated[
        Path | None,
        doc(
            "File (mode 0600) with the secret that signs what goes to the hosts of `allowed`, 16 characters or more; "
            "required with such a host"
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse what cannot work together."""
        names = [hook.name for hook in self.hooks]
        if len(set(names)) < len(names):
            raise ValueError(f"two of `hooks` have one name: {', '.join(sorted(names))}")
        if self.allowed_in("https") and self.secret_file is None:
            raise ValueError("a URL in `allowed` needs `secret_file`: what goes to that host is signed")
        for each in self.allowed:
            self._check(each, names)
        for rule in self.rules:
            target = parse_target(rule.to)
            if target.channel == "hook" and target.where not in names:
                raise ValueError(f"a rule notifies `{rule.to}`, but `hooks` has no `{target.where}`")

    def _check(self, allowed: str, hooks: list[str]) -> None:
        kind, _, where = allowed.partition(":")
        if kind == "https":
            if not where.startswith("//") or not _HOST.fullmatch(where[2:]):
                raise ValueError(
                    f"`{allowed}` in `allowed`: expected a host alone, such as `https://*.example.org`"
                )
        elif kind == "hook":
            if not any(fnmatch.fnmatchcase(each, where) for each in hooks):
                raise ValueError(f"`{allowed}` in `allowed`: `hooks` has no `{where}`")
        elif kind != "mail" or "@" not in where:
            raise ValueError(
                f"`{allowed}` in `allowed`: expected `mail:*@example.org`, `hook:NAME` or `https://*.example.org`"
            )

    def allowed_in(self, kind: str) -> list[str]:
        """The patterns of `allowed` of this kind, without it: `mail` addresses, `hook` names, `https` hosts."""
        found = (each.partition(":") for each in self.allowed)
        return [where.removeprefix("//") for its, _, where in found if its == kind]

    def allows(self, kind: str, where: str) -> bool:
        """Whether submitters may have this address, hook or host notified. Case counts in names of hooks only."""
        patterns = self.allowed_in(kind)
        if kind != "hook":
            where, patterns = where.lower(), [each.lower() for each in patterns]
        return any(fnmatch.fnmatchcase(where, each) for each in patterns)
