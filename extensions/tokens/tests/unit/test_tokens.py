"""Tokens as connections show them: an issuer that hangs delays its own only; clocks that differ are forgiven."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from extensions.tokens.tests.iam import Iam, iam
from tests.timing import timing

from tidemill.config.tls import RoleMember
from tidemill.model.identity import Identity, Role
from tidemill.server.errors import StrangerError
from tidemill.server.identity.access import Authenticator
from tidemill_tokens.settings import Issuer, Tokens
from tidemill_tokens.verifier import WlcgTokens, issuers_of

__all__ = ["iam"]

KEY = ec.generate_private_key(ec.SECP256R1())
HERE = "https://here.example.org/"


def jwks() -> bytes:
    key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key()))
    return json.dumps({"keys": [{**key, "kid": "k"}]}).encode()


def authenticator(folder: Path, *more: Issuer) -> Authenticator:
    path = folder / "jwks.json"
    path.write_bytes(jwks())
    here = Issuer(name="here", issuer=HERE, audience=["a"], jwks=str(path))
    tokens = WlcgTokens(Tokens(issuers=[here, *more]), members=[])
    return Authenticator(tokens=tokens)


def token(issuer: str, sub: str = "ada", *, ends_s: int = 600) -> str:
    now = int(time.time())
    claims: dict[str, Any] = {
        "iss": issuer, "sub": sub, "aud": "a", "iat": now - 3600, "exp": now + ends_s, "wlcg.ver": "1.0",
        "scope": "compute.create",
    }  # fmt: skip
    return jwt.encode(claims, KEY, "ES256", {"kid": "k"})


async def asked(authenticator: Authenticator, text: str) -> Identity:
    headers = [(b"authorization", b"Bearer " + text.encode())]
    return await authenticator.identify({"method": "GET", "scheme": "https", "headers": headers})


def test_an_issuer_that_hangs_delays_its_own_tokens_only(tmp_path: Path, iam: Iam) -> None:
    iam.publish()
    iam.pages["/jwks"] = (200, jwks())
    iam.answers.clear()
    door = authenticator(tmp_path, Issuer(name="slow", issuer=iam.url, audience=["a"]))

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        slow = [asyncio.create_task(asked(door, token(iam.url, f"u{number}"))) for number in range(8)]
        while not iam.asked:
            await asyncio.sleep(0.01)
        try:
            assert (await asyncio.wait_for(asked(door, token(HERE)), 5)).name == "ada@here"
            assert not any(each.done() for each in slow)
        finally:
            iam.answers.set()
        names = {each.name for each in await asyncio.gather(*slow)}
        assert names == {f"u{number}@slow" for number in range(8)}
        assert iam.asked == ["/.well-known/openid-configuration", "/jwks"]

    asyncio.run(run())


def test_a_token_is_believed_so_long_after_its_end_as_clocks_may_differ(tmp_path: Path) -> None:
    ended = token(HERE, ends_s=-20)
    assert asyncio.run(asked(authenticator(tmp_path), ended)).name == "ada@here"
    with timing(tokens={"CLOCK_LEEWAY_S": 10}), pytest.raises(StrangerError, match="expired"):
        asyncio.run(asked(authenticator(tmp_path), ended))


@pytest.mark.timing(tokens={"CLOCK_LEEWAY_S": 22})
def test_a_token_that_was_believed_ends_with_the_leeway(tmp_path: Path) -> None:
    door = authenticator(tmp_path)
    ended = token(HERE, ends_s=-20)

    async def run() -> None:
        assert (await asked(door, ended)).name == "ada@here"
        await asyncio.sleep(2.5)
        with pytest.raises(StrangerError, match="expired"):
            await asked(door, ended)

    asyncio.run(run())


@pytest.mark.parametrize("algorithm", [["ES256"], {"ES256": 1}, None, 1, "none", "HS256"])
def test_an_algorithm_that_is_none_is_refused(tmp_path: Path, algorithm: Any) -> None:
    head = base64.urlsafe_b64encode(json.dumps({"alg": algorithm, "kid": "k"}).encode()).decode().rstrip("=")
    text = ".".join([head, *token(HERE).split(".")[1:]])
    with pytest.raises(StrangerError, match=r"not believed|can be read"):
        asyncio.run(asked(authenticator(tmp_path), text))


def test_the_server_gets_a_verifier_that_knows_its_members(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks())
    settings = Tokens(issuers=[Issuer(name="here", issuer=HERE, audience=["a"], jwks=str(path))])
    found = issuers_of(settings)
    assert found.names == ("here",)
    door = Authenticator(tokens=found.verifier([RoleMember.parse("robot@here", "site lrz")]))
    assert asyncio.run(asked(door, token(HERE, "robot"))).role is Role.SITE
    assert asyncio.run(asked(door, token(HERE))).role is Role.SUBMITTER
