"""Keys of token issuers that the server asks for lead nowhere inside.

Redirects, decoded answers and floods: `extensions/tokens/tests/unit/test_issuers.py`.
"""

from __future__ import annotations

import itertools
import json

import pytest
from tests.attack.server.test_attack_forgery import Inside, inside

from tidemill.errors import SiteError
from tidemill.net.http_exchange import TimeLimit
from tidemill_tokens.issuers import IssuerKeys, _get
from tidemill_tokens.settings import Issuer

__all__ = ["inside"]

KEY = {"kty": "EC", "crv": "P-256", "x": "eA", "y": "eQ", "kid": "one"}


def test_an_issuer_sends_the_server_to_no_service_inside(inside: Inside) -> None:
    """The issuer's page is believed as to its keys, and not as to where in this network they are asked from."""
    keys = IssuerKeys(Issuer(name="iam", issuer="https://iam.example.org", audience=["a"]), kept_s=3600)
    for scheme, host in itertools.product(
        ("http", "https"), ("127.0.0.1", "localhost", "[::1]", "2130706433")
    ):
        url = f"{scheme}://{host}:{inside.port}/"
        assert not keys._is_trusted(url)
        with pytest.raises(SiteError, match="not of the public internet"):
            _get(url, TimeLimit(5), private=keys._is_trusted(url))
    assert keys._is_trusted("https://iam.example.org/keys")
    assert not inside.asked


def test_keys_may_be_on_the_hosts_that_the_configuration_names(inside: Inside) -> None:
    inside.page = json.dumps({"keys": [KEY]}).encode()
    named = Issuer(
        name="iam",
        issuer="https://iam.example.org",
        audience=["a"],
        jwks=f"http://127.0.0.1:{inside.port}/k",
    )
    assert IssuerKeys(named, kept_s=3600).find("one", "ES256") is not None
