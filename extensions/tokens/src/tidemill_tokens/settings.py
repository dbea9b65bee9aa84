"""The settings of this extension: `[tokens]` of server.toml."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tidemill.config.keys import Place, doc, name_of
from tidemill.config.tables import SettingsTable


class Issuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[tokens.issuers]]`: a service whose signed tokens are believed."""

    name: Annotated[
        str,
        name_of(40, ".-", letters="a-z"),
        doc("Short name: who comes with a token of subject SUB is `SUB@NAME` here"),
    ]
    issuer: Annotated[str, doc("The claim `iss`, exactly; https, except on loopback")]
    audience: Annotated[
        list[str],
        msgspec.Meta(min_length=1),
        doc("What `aud` must hold one of: this server's address, never `https://wlcg.cern.ch/jwt/v1/any`"),
    ]
    jwks: Annotated[
        Place,
        doc(
            "The issuer's public keys: a file, or an https URL; empty = where its `.well-known/openid-configuration` "
            "says"
        ),
    ] = ""
    profile: Annotated[
        Literal["wlcg", "any"], doc("Whether `wlcg.ver` must be there, as in the WLCG profile")
    ] = "wlcg"
    submitters: Annotated[
        bool, doc("Who has a scope `compute.*` of this issuer may submit; else only those in `roles.members`")
    ] = True


class Tokens(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bearer tokens by the WLCG profile."""

    issuers: Annotated[list[Issuer], doc("Services whose tokens are believed")] = []


SETTINGS = SettingsTable(
    "server.toml",
    Tokens,
    examples={
        "issuers": """\
name = "cms"
issuer = "https://cms-auth.example.org/"
audience = ["https://tidemill.example.org:8443"]"""
    },
)
