"""Whatever is sent as a token: it is a good token, or it is refused; nothing else happens."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from tidemill.server.errors import StrangerError
from tidemill_tokens.settings import Issuer, Tokens
from tidemill_tokens.verifier import WlcgTokens

KEY = ec.generate_private_key(ec.SECP256R1())
ISSUER = "https://iam.example.org/"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
CLAIMS = ["iss", "sub", "aud", "exp", "nbf", "iat", "jti", "scope", "wlcg.ver", "wlcg.groups"]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> WlcgTokens:
    path = tmp_path_factory.mktemp("jwks") / "jwks.json"
    key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key()))
    path.write_text(json.dumps({"keys": [{**key, "kid": "k"}]}))
    return WlcgTokens(
        Tokens(issuers=[Issuer(name="iam", issuer=ISSUER, audience=["a"], jwks=str(path))]), members=[]
    )


def good() -> dict[str, Any]:
    now = int(time.time())
    return {
        "iss": ISSUER, "sub": "ada", "aud": "a", "iat": now, "nbf": now, "exp": now + 600, "wlcg.ver": "1.0",
        "scope": "compute.create",
    }  # fmt: skip


def test_a_good_token_is_believed(tokens: WlcgTokens) -> None:
    text = jwt.encode(good(), KEY, "ES256", {"kid": "k"}).encode()
    assert tokens.identity(text).name == "ada@iam"
    assert tokens.known(text) is not None


@given(st.binary(max_size=200))
def test_bytes_are_refused(tokens: WlcgTokens, content: bytes) -> None:
    with pytest.raises(StrangerError):
        tokens.identity(content)


@given(JSON, JSON, st.binary(max_size=70))
def test_heads_and_bodies_of_any_kind_are_refused(
    tokens: WlcgTokens, head: Any, body: Any, signature: bytes
) -> None:
    parts = (json.dumps(head).encode(), json.dumps(body).encode(), signature)
    with pytest.raises(StrangerError):
        tokens.identity(b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts))


@given(st.sampled_from(CLAIMS), JSON)
def test_signed_claims_of_any_kind_end_in_a_name_or_a_refusal(
    tokens: WlcgTokens, claim: str, value: Any
) -> None:
    try:
        text = jwt.encode({**good(), claim: value}, KEY, "ES256", {"kid": "k"})
    except (TypeError, ValueError):
        return  # the library does not sign it
    try:
        found = tokens.identity(text.encode())
    except StrangerError:
        return
    assert found.name.endswith("@iam")
    assert found.expires_us is not None
