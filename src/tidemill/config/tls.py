"""Sections of `server.toml`: certificates, tokens and roles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tidemill.config.keys import Duration, constant, doc

RoleName = Literal["submitter", "site", "operator"]


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tls]`: certificates of the server and of who may talk to it."""

    certificate: Annotated[
        Path | None,
        doc("The server's certificate (PEM, with its intermediate CAs); with it `listen` speaks https only"),
    ] = None
    key: Annotated[Path | None, doc("Key of the certificate (PEM, mode 0600)")] = None
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
    reload_s: Annotated[
        Duration,
        msgspec.Meta(ge=1),
        constant(
            "Read changed certificates, CAs and CRLs again after this time: a revocation counts within a minute"
        ),
    ] = 60.0


class Issuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[tokens.issuers]]`: a service whose signed tokens are believed."""

    name: Annotated[
        str,
        msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9.-]{0,39}$"),
        doc("Short name: who comes with a token of subject SUB is `SUB@NAME` here"),
    ]
    issuer: Annotated[str, doc("The claim `iss`, exactly; https, except on loopback")]
    audience: Annotated[
        list[str],
        msgspec.Meta(min_length=1),
        doc("What `aud` must hold one of: this server's address, never `https://wlcg.cern.ch/jwt/v1/any`"),
    ]
    jwks_file: Annotated[
        Path | None, doc("The issuer's public keys as a file; none = asked from the issuer")
    ] = None
    jwks_url: Annotated[
        str, doc("Where its keys are; empty = as its `.well-known/openid-configuration` says")
    ] = ""
    profile: Annotated[
        Literal["wlcg", "any"], doc("Whether `wlcg.ver` must be there, as in the WLCG profile")
    ] = "wlcg"
    submitters: Annotated[
        bool, doc("Who has a scope `compute.*` of this issuer may submit; else only those in `roles.members`")
    ] = True


class Tokens(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tokens]`: bearer tokens by the WLCG profile."""

    issuers: Annotated[list[Issuer], doc("Services whose tokens are believed")] = []
    leeway_s: Annotated[
        Duration,
        msgspec.Meta(ge=0, le=300),
        constant("Tolerated difference of clocks (`exp`, `nbf`): machines without NTP drift by seconds"),
    ] = 30.0


class RoleMember(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[roles.members]]`: a role for one certificate or token of others. One of `subject`, `token`, `group`."""

    role: Annotated[RoleName, doc("`submitter`, `site` or `operator`")]
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100), doc("Name of the person or of the site")]
    subject: Annotated[
        str, doc("Subject of a certificate of `tls.other_ca`, as `/DC=org/DC=example/CN=Ada Lovelace`")
    ] = ""
    issuer: Annotated[str, doc("`name` of the token's issuer in `tokens.issuers`")] = ""
    token: Annotated[str, doc("Claim `sub` of a token of `issuer`")] = ""
    group: Annotated[str, doc("A group in the claim `wlcg.groups` of `issuer`, as `/atlas/production`")] = ""


class Roles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[roles]`: who holds which role, and who no longer."""

    members: Annotated[list[RoleMember], doc("Roles of certificates and tokens that others issue")] = []
    revoked_file: Annotated[
        Path | None,
        doc(
            "File of what is no longer believed, one a line: `serial HEX`, `subject /DC=...`, `name NAME` or "
            "`token JTI`; read again whenever it changes"
        ),
    ] = None
    audit_kept_s: Annotated[
        Duration,
        msgspec.Meta(ge=86400),
        doc("Keep the audit log, and the record of who ran where, for this time"),
    ] = 34560000.0
