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
from tests.timing import timing
from tests.unit.server.test_server_issuers import Iam, iam

from tidemill.config.tls import Issuer
from tidemill.config.tls import Tokens as Section
from tidemill.model.identity import Identity
from tidemill.server.errors import StrangerError
from tidemill.server.identity.access import Authenticator
from tidemill.server.identity.tokens import TokenVerifier

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
    tokens = TokenVerifier(Section(issuers=[here, *more]), members=[])
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


SECRET = b"0123456789abcdef"


@pytest.mark.parametrize(
    ("scheme", "client", "is_taken"),
    [
        ("https", "10.0.0.7", True), ("http", "127.0.0.1", True), ("http", "::1", True),
        ("http", "::ffff:127.0.0.1", True), ("http", "10.0.0.7", False), ("http", "2001:db8::1", False),
    ],
)  # fmt: skip
def test_the_secret_is_refused_in_clear_text_from_another_machine(
    scheme: str, client: str, is_taken: bool
) -> None:
    headers = [(b"authorization", b"Bearer " + SECRET)]
    scope = {"method": "GET", "scheme": scheme, "headers": headers, "client": (client, 40_000)}
    authenticator = Authenticator(secret=SECRET)
    if is_taken:
        assert asyncio.run(authenticator.identify(scope)).is_local_admin
        return
    with pytest.raises(StrangerError, match="in clear text from another machine"):
        asyncio.run(authenticator.identify(scope))


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
    with timing(server={"CLOCK_LEEWAY_S": 10}), pytest.raises(StrangerError, match="expired"):
        asyncio.run(asked(authenticator(tmp_path), ended))


@pytest.mark.timing(server={"CLOCK_LEEWAY_S": 22})
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
