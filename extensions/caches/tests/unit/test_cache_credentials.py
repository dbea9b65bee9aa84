"""When a cache's credentials end, and that it is said in time."""

from __future__ import annotations

import base64
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from tidemill_caches.cli.status import process_lines
from tidemill_caches.engine.credentials import CredentialEnd, certificates_end, end_of, ends_of, token_end
from tidemill_caches.engine.health import Readings, findings
from tidemill_caches.engine.state import CacheState
from tidemill_caches.settings import CacheConfig, CacheCredential, CacheSpace, CacheTls

HOUR_US = 3_600_000_000
NOW_US = 1_795_000_000_000_000
CONFIG = CacheConfig(origins=["root://a.example:1094//store/"], space=CacheSpace(max=10**9))


def certificate(ends: datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cache.example")])
    made = x509.CertificateBuilder(
        issuer_name=name, subject_name=name, public_key=key.public_key(), serial_number=2**150,
        not_valid_before=datetime(2020, 1, 1, tzinfo=UTC), not_valid_after=ends,
    ).sign(key, hashes.SHA256())  # fmt: skip
    return made.public_bytes(Encoding.PEM) + key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )


@pytest.mark.parametrize(
    "ends", [datetime(2026, 11, 23, 12, 30, 5, tzinfo=UTC), datetime(2071, 2, 3, tzinfo=UTC)]
)
def test_the_end_of_a_certificate_is_read(ends: datetime) -> None:
    assert certificates_end(certificate(ends)) == int(ends.timestamp() * 1e6)


def test_a_chain_ends_with_its_first(tmp_path: Path) -> None:
    first, second = datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    path = tmp_path / "proxy"
    path.write_bytes(certificate(second) + certificate(first))
    assert end_of(path) == int(first.timestamp() * 1e6)


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_what_is_no_certificate_says_nothing(content: bytes, at: int, value: int) -> None:
    real = bytearray(base64.b64decode(REAL))
    real[at % len(real)] = value
    for each in (content, bytes(real)):
        text = b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(each) + b"\n-----END CERTIFICATE-----\n"
        found = certificates_end(text)
        assert found is None or isinstance(found, int)
    assert token_end(content) is None or content.count(b".") == 2


REAL = certificate(datetime(2030, 1, 1, tzinfo=UTC)).split(b"-----")[2].replace(b"\n", b"")


def test_the_end_of_a_token_is_read_and_other_tokens_say_nothing(tmp_path: Path) -> None:
    def jwt(**claims: object) -> bytes:
        return b"e30." + base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=") + b".c2ln\n"

    path = tmp_path / "token"
    path.write_bytes(jwt(exp=1795000000, sub="cache"))
    assert end_of(path) == NOW_US
    assert token_end(jwt(exp=1e300)) is None or token_end(jwt(exp=1e300))
    assert [token_end(each) for each in (jwt(), jwt(exp="x"), b"secret", b"a.b.c", b"")] == [None] * 5
    assert end_of(tmp_path / "none") is None


def test_credentials_of_a_cache_are_told_apart_by_who_sees_them(tmp_path: Path) -> None:
    for name in ("proxy", "host"):
        (tmp_path / name).write_bytes(certificate(datetime(2030, 1, 1, tzinfo=UTC)))
    config = CacheConfig(
        origins=CONFIG.origins,
        space=CONFIG.space,
        credential=CacheCredential(certificate=tmp_path / "proxy"),
        tls=CacheTls(certificate=tmp_path / "host", key=tmp_path / "host"),
    )
    assert [(each.path.name, each.own) for each in ends_of(config)] == [("proxy", True), ("host", False)]


@pytest.mark.parametrize(
    ("left_us", "own", "state", "text"),
    [
        (3 * HOUR_US, True, "", ""),
        (HOUR_US, True, "warn", "`/x/proxy` ends in 1 h: origins refuse the cache then"),
        (-HOUR_US, True, "fail", "`/x/proxy` ended at 2026-11-18T"),
        (8 * 24 * HOUR_US, False, "", ""),
        (24 * HOUR_US, False, "warn", "`/x/proxy` ends in 1 d: clients refuse to connect then"),
    ],
)
def test_a_warning_comes_before_the_end(left_us: int, own: bool, state: str, text: str) -> None:
    ends = CredentialEnd(Path("/x/proxy"), NOW_US + left_us, own)
    found = findings(CONFIG, Readings(running=True, answers=True, credentials=[ends], now_us=NOW_US))
    assert [each.state for each in found] == ([state] if state else [])
    assert all(each.found.startswith(text) for each in found)


def test_the_status_shows_when_the_credential_ends() -> None:
    made = CacheState(
        host="h", port=1, phase="running", at_us=1, supervisor_pid=os.getpid(), supervisor_started_us=1,
        credential_ends_us=NOW_US,
    )  # fmt: skip
    assert any(
        each.startswith("expires  credential towards origins: ") for each in process_lines(made, runs=True)
    )
