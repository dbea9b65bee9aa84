"""Sections of `server.toml`: certificates and roles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NamedTuple, cast, get_args

import msgspec

from tidemill.config.keys import CREDENTIALS, doc

RoleName = Literal["submitter", "site", "operator"]
MEMBER_NAME_MAX = 100  #: characters of the name of a person or site


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tls]`: certificates of the server and of who may talk to it."""

    certificate: Annotated[
        Path | None,
        doc("The server's certificate (PEM, with its intermediate CAs); with it `listen` speaks https only"),
    ] = None
    key: Annotated[Path | None, doc(CREDENTIALS["key"])] = None
    ca: Annotated[
        Path | None,
        doc(
            "Certificate of our own CA, as `tidemill certs init` makes it: what it issues names its role itself"
        ),
    ] = None
    other_ca: Annotated[
        Path | None,
        doc(
            "Other CAs whose certificates are accepted, for the subjects in `roles.members` only: a PEM file, or a "
            "directory by hash such as `/etc/grid-security/certificates`"
        ),
    ] = None
    crl: Annotated[
        Literal["no", "leaf", "chain"],
        doc(
            "Ask the CRLs beside the CAs (`HASH.r0`, or in the PEM file) about client certificates only, or about "
            "their CAs too; a CA without a valid CRL is then refused"
        ),
    ] = "no"


class Bearer(NamedTuple):
    """Whom a member's `who` means: the subject of a certificate, or a claim of an issuer's tokens. The others are
    empty."""

    subject: str = ""  #: of a certificate
    token: str = ""  #: claim `sub`
    group: str = ""  #: in the claim `wlcg.groups`
    issuer: str = ""  #: `name` of the issuer of that token

    @classmethod
    def parse(cls, who: str) -> Bearer:
        """Raises ValueError for a text that names no credential.

        `/...` is a subject, `group:GROUP@ISSUER` a group, and everything else `SUB@ISSUER`, split at the last `@`.
        `subject:` and `token:` in front say which one is meant where a `sub` begins with `/` or one of these words.
        """
        if who != who.strip() or not who.isprintable():
            raise ValueError(f"`{who[:100]!r}` begins or ends with a blank, or holds a control character")
        word, colon, rest = who.partition(":")
        kind = word if colon and word in ("subject", "token", "group") else ""
        text = rest if kind else who
        if kind == "subject" or (not kind and text.startswith("/")):
            if not text.startswith("/") or len(text) == 1:
                raise ValueError(
                    f"`{who[:100]}` is not a subject such as `/DC=org/DC=example/CN=Ada Lovelace`"
                )
            return cls(subject=text)
        claim, _, issuer = text.rpartition("@")
        if not claim or not issuer:
            raise ValueError(
                f"`{who[:100]}` names no credential: expected a certificate's subject (`/DC=org/...`), `SUB@ISSUER` or "
                "`group:GROUP@ISSUER`"
            )
        return cls(group=claim, issuer=issuer) if kind == "group" else cls(token=claim, issuer=issuer)


class RoleMember(NamedTuple):
    """A line of `[roles.members]`: a role for one certificate or token of others."""

    role: RoleName
    name: str  #: of the person or of the site
    who: str
    bearer: Bearer

    @classmethod
    def parse(cls, who: str, said: str) -> RoleMember:
        """Raises ValueError for a `who` that names no credential, or a value that is not `ROLE NAME`."""
        role, _, name = said.strip().partition(" ")
        name = name.strip()
        roles = get_args(RoleName)
        if role not in roles or not 0 < len(name) <= MEMBER_NAME_MAX or not name.isprintable():
            raise ValueError(
                f'`{who[:100]}` is `{said[:120]}`, expected `"ROLE NAME"` with a role of {", ".join(roles)} '
                f"and a name of at most {MEMBER_NAME_MAX} characters"
            )
        return cls(cast(RoleName, role), name, who, Bearer.parse(who))


class Roles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[roles]`: who holds which role; `revoked.txt` in the server's directory says who no longer."""

    members: Annotated[
        dict[str, str],
        doc(
            'Roles of certificates and tokens that others issue: `"WHO" = "ROLE NAME"`, such as '
            '`"/DC=org/DC=example/CN=Ada Lovelace" = "submitter ada"`. WHO is the subject of a certificate of '
            "`tls.other_ca`; `SUB@ISSUER`, the `sub` of a token and the `name` of its issuer; or "
            "`group:/atlas/production@ISSUER`, a group in its `wlcg.groups`. A `sub` that begins with `/`, `group:`, "
            "`subject:` or `token:` is written `token:SUB@ISSUER`. ROLE is `submitter`, `site` or `operator`. "
            "Of a token in several groups the first line that fits counts, in the file's order; a line for its `sub` "
            "counts before them"
        ),
    ] = {}

    def __post_init__(self) -> None:
        """Refuse a member without a credential, a role or a name."""
        try:
            _ = self.listed
        except ValueError as error:
            raise ValueError(f"`members`: {error}") from None

    @property
    def listed(self) -> tuple[RoleMember, ...]:
        """The members, in the order of the file."""
        return tuple(RoleMember.parse(who, said) for who, said in self.members.items())
