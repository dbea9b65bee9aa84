"""Tokens of any client, and keys as issuers publish them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from tests.fuzz.parser import Parser, file_of

from tidemill.errors import ConfigError
from tidemill.server.errors import StrangerError
from tidemill_tokens.issuers import parse as parse_keys
from tidemill_tokens.settings import Issuer, Tokens
from tidemill_tokens.verifier import WlcgTokens

CORPUS = Path(__file__).parent / "corpus"
ISSUER = "https://iam.example.org/"


@cache
def _tokens() -> WlcgTokens:
    key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key()))
    path = file_of(json.dumps({"keys": [{**key, "kid": "ec"}]}).encode(), "jwks.json")
    return WlcgTokens(
        Tokens(issuers=[Issuer(name="iam", issuer=ISSUER, audience=["a"], jwks=str(path))]), members=[]
    )


def _keys(content: bytes) -> object:
    """Keys, each tried on a token that names it."""
    keys = parse_keys(content)
    path = file_of(content, "keys.json")
    tokens = WlcgTokens(
        Tokens(issuers=[Issuer(name="iam", issuer=ISSUER, audience=["a"], jwks=str(path))]), members=[]
    )
    key = ec.generate_private_key(ec.SECP256R1())
    for each in keys[:5]:
        told = {"kid": each["kid"]} if isinstance(each.get("kid"), str) else {}
        try:
            tokens.identity(jwt.encode({"iss": ISSUER, "sub": "a"}, key, "ES256", told).encode())
        except StrangerError:
            continue
    return keys


PARSERS = [
    Parser("token", lambda content: _tokens().identity(content), (StrangerError,), corpus=CORPUS),
    Parser("jwks", _keys, (ValueError, ConfigError), corpus=CORPUS),
]
