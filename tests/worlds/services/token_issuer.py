"""Who signs tokens: a world's server believes them where the extension `tokens` is installed."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tests.worlds.services.access_world import AUDIENCE, ISSUER, Key


class Issuer:
    """Signs tokens."""

    def __init__(self, folder: Path) -> None:
        self.key: Key = ec.generate_private_key(ec.SECP256R1())
        self.other: Key = ec.generate_private_key(ec.SECP256R1())
        self.rsa = rsa.generate_private_key(65537, 2048)
        self.jwks = folder / "jwks.json"
        self.write([("ec", self.key), ("rsa", self.rsa)])

    def write(self, keys: list[tuple[str, Key]]) -> None:
        found = []
        for kid, key in keys:
            algorithm = (
                jwt.algorithms.ECAlgorithm
                if isinstance(key, ec.EllipticCurvePrivateKey)
                else jwt.algorithms.RSAAlgorithm
            )
            found.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"})  # type: ignore[arg-type]
        self.jwks.write_text(json.dumps({"keys": found}))

    def token(
        self, *, key: Any = None, alg: str = "ES256", kid: str | None = "ec", drop: str = "", **claims: Any
    ) -> str:
        now = int(time.time())
        told = {
            "iss": ISSUER, "sub": "carol", "aud": AUDIENCE, "iat": now, "nbf": now, "exp": now + 3600, "jti": "t1",
            "wlcg.ver": "1.0", "scope": "compute.read compute.create compute.cancel compute.modify",
        }  # fmt: skip
        told |= claims
        told.pop(drop, None)
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(told, self.key if key is None else key, algorithm=alg, headers=headers)


def altered(token: str, **claims: Any) -> str:
    """The same token with other claims and the old signature."""
    head, body, signature = token.split(".")
    told = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))) | claims
    changed = base64.urlsafe_b64encode(json.dumps(told).encode()).decode().rstrip("=")
    return f"{head}.{changed}.{signature}"
