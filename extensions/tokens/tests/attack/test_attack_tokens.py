"""Tokens that name their own key, algorithm or critical extension, or have claims of wrong types: none is believed.

What is wrong in one claim each (issuer, audience, times, signature, `none`, HMAC with the public key) is tried in
tests/local/server/test_access.py; whatever claims there may be, in tests/property/test_tokens_fuzzed.py of this
extension.
"""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.worlds.services.access_world import AUDIENCE, ISSUER, submission
from tests.worlds.services.attack_world import Attacked, attacked

__all__ = ["attacked"]


class Bait:
    """A web server with an attacker's key, and what was asked of it."""

    def __init__(self, keys: bytes) -> None:
        self.asked: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(keys)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/keys"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Forger:
    """Signs what he likes with a key of his own."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.jwk = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key())), "kid": "mine"}

    def token(self, headers: dict[str, Any], **claims: Any) -> str:
        now = int(time.time())
        told = {
            "iss": ISSUER, "sub": "carol", "aud": AUDIENCE, "iat": now, "nbf": now, "exp": now + 3600, "jti": "f",
            "wlcg.ver": "1.0", "scope": "compute.create compute.read", **claims,
        }  # fmt: skip
        return jwt.encode(told, self.key, algorithm="ES256", headers=headers)


@pytest.fixture(scope="module")
def forger() -> Forger:
    return Forger()


@pytest.fixture
def bait(forger: Forger) -> Iterator[Bait]:
    made = Bait(json.dumps({"keys": [forger.jwk]}).encode())
    yield made
    made.server.shutdown()
    made.server.server_close()


def refused(world: Attacked, tokens: dict[str, str]) -> None:
    before = world.content()
    for name, token in tokens.items():
        body = msgspec.json.encode(submission("forged", f"forged {name}"))
        status, _, answer = world.ask(f"token:{token}", "POST", "/v1/jobs", body)
        assert status == 401, (name, answer)
    assert world.content() == before


def test_a_key_that_the_token_brings_or_points_to_is_not_used(
    attacked: Attacked, forger: Forger, bait: Bait
) -> None:
    kids = [
        None,
        "ec",
        "mine",
        "../../../../dev/null",
        "/etc/passwd",
        "ec' OR '1'='1",
        "x" * 5000,
        "",
        "\x00",
    ]
    tokens: dict[str, str] = {}
    for kid in kids:
        named = {} if kid is None else {"kid": kid}
        tokens |= {
            f"jwk {kid!r}": forger.token({"jwk": forger.jwk, **named}),
            f"jku {kid!r}": forger.token({"jku": bait.url, **named}),
            f"x5u {kid!r}": forger.token({"x5u": bait.url, **named}),
            f"x5c {kid!r}": forger.token({"x5c": ["MIIB"], **named}),
        }
    refused(attacked, tokens)
    assert bait.asked == []


def test_an_extension_that_must_be_understood_is_not_passed_over(attacked: Attacked) -> None:
    """RFC 7515, 4.1.11: also where the signature is right."""
    key, good = attacked.issuer.key, attacked.issuer.token()
    claims = jwt.decode(good, options={"verify_signature": False})
    odd: list[dict[str, Any]] = [
        {"crit": ["exp"], "exp": 1}, {"crit": ["b64"], "b64": False}, {"crit": ["unknown"], "unknown": 1},
        {"crit": []}, {"crit": "exp"},
    ]  # fmt: skip
    tokens = {str(each): jwt.encode(claims, key, "ES256", {"kid": "ec", **each}) for each in odd}
    refused(attacked, tokens)


def test_algorithms_are_those_of_the_key_in_the_set(attacked: Attacked) -> None:
    good = attacked.issuer.token()
    _, body, signature = good.split(".")
    tokens: dict[str, str] = {}
    for algorithm in (
        "none",
        "None",
        "nOnE",
        "NONE",
        "",
        "HS256",
        "ES384",
        "RS256",
        "PS256",
        "EdDSA",
        "ES256K",
        "dir",
    ):
        head = (
            base64.urlsafe_b64encode(json.dumps({"alg": algorithm, "kid": "ec"}).encode())
            .decode()
            .rstrip("=")
        )
        tokens[f"{algorithm!r}"] = f"{head}.{body}.{signature}"
        tokens[f"{algorithm!r} unsigned"] = f"{head}.{body}."
    # signed as it says, with a key that stands in the set under another name
    tokens["key of another algorithm"] = attacked.issuer.token(key=attacked.issuer.rsa, alg="RS256", kid="ec")
    refused(attacked, tokens)


SOON = "in a minute, as a text"


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": "9999999999"}, {"exp": True}, {"exp": 1e300}, {"exp": float("inf")}, {"exp": [9999999999]},
        {"exp": None}, {"exp": 10**400}, {"exp": -(10**400)}, {"exp": SOON}, {"iat": -(10**400)},
        {"iat": "0"}, {"exp": float("nan")}, {"iat": float("nan")}, {"nbf": float("-inf")}, {"jti": ["x"]},
        {"aud": [AUDIENCE, 5]}, {"sub": "\ud800"}, {"sub": "a\u202eb"},
        {"nbf": "0x"}, {"iat": {"a": 1}}, {"iat": 9_999_999_999}, {"iss": ISSUER.rstrip("/")},
        {"iss": ISSUER.upper()}, {"aud": {AUDIENCE: 1}}, {"aud": []}, {"aud": AUDIENCE + "/"}, {"aud": [[AUDIENCE]]},
        {"sub": ""}, {"sub": ["carol"]}, {"sub": 7}, {"wlcg.ver": 1}, {"scope": ["compute.create"]},
    ],
    ids=str,
)  # fmt: skip
def test_claims_of_odd_types_are_refused_although_the_issuer_signed_them(
    attacked: Attacked, claims: dict[str, Any]
) -> None:
    if claims == {"exp": SOON}:  # now, not in the name of the test, which two workers have to call alike
        claims = {"exp": str(int(time.time()) + 60)}
    refused(attacked, {str(claims): attacked.issuer.token(**claims)})


def test_a_subject_or_group_like_a_members_has_no_right_of_the_member(attacked: Attacked) -> None:
    sync = msgspec.json.encode(attacked.busy(site="cori"))
    for claims in (
        {"sub": "Robot-Cori"}, {"sub": "robot-cori "}, {"sub": "robot\u2010cori"}, {"sub": "robot-cori\x00"},
        {"wlcg.groups": ["/tide/operators/x"]}, {"wlcg.groups": ["/tide"]}, {"wlcg.groups": "/tide/operators"},
        {"groups": ["/tide/operators"]}, {"role": "operator"}, {"roles": ["operator", "site"]},
    ):  # fmt: skip
        who = "token:" + attacked.issuer.token(**claims)
        assert attacked.ask(who, "GET", "/v1/campaigns/ada-1")[0] in (401, 403, 404), claims
        assert attacked.ask(who, "POST", "/v1/sync", sync)[0] in (401, 403), claims


def test_a_token_that_is_nested_too_deeply_is_refused(attacked: Attacked) -> None:
    text = "[" * 1_800 + "]" * 1_800
    good = attacked.issuer.token()
    for part in (0, 1):
        parts = good.split(".")
        told = base64.urlsafe_b64decode(parts[part] + "=" * (-len(parts[part]) % 4)).decode()
        parts[part] = base64.urlsafe_b64encode(f'{told[:-1]},"x":{text}}}'.encode()).decode().rstrip("=")
        refused(attacked, {f"part {part}": ".".join(parts)})


@pytest.mark.parametrize(
    "groups", [{"/tide/operators": 1}, [["/tide/operators"]], ["/tide/operators/"], [{}, None, 1.5]]
)
def test_groups_of_odd_types_are_none(attacked: Attacked, groups: Any) -> None:
    who = "token:" + attacked.issuer.token(**{"wlcg.groups": groups})
    assert attacked.ask(who, "GET", "/v1/campaigns/ada-1")[0] == 404, "she is a submitter, and no operator"


@pytest.mark.parametrize("place", ["?access_token={}", "?token={}", "?authorization=Bearer%20{}"])
def test_a_token_counts_in_its_header_only(attacked: Attacked, place: str) -> None:
    token = attacked.issuer.token()
    assert attacked.ask(None, "GET", "/v1/jobs" + place.format(token))[0] == 401
    assert attacked.ask(None, "GET", "/v1/jobs", Cookie=f"__Host-tidemill={token}")[0] == 401
    for words in (
        f"bearer: {token}",
        f"Basic {token}",
        token,
        f"Bearer  {token} x",
        f"Bearer {token}, {token}",
    ):
        assert attacked.ask(None, "GET", "/v1/jobs", Authorization=words)[0] == 401, words[:10]
