"""Our own small CA: pairs always fit, nothing outlives the CA, and its key is read only if it is private."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from tests.sizes import file_size_max

from tidemill.cli.main import main
from tidemill.client.authority import Authority, Issued, Wanted, describe
from tidemill.errors import ConfigError
from tidemill.server.identity.revocations import parse

DAY_US = 86_400_000_000


def issue(authority: Authority, place: Path, *, renew: bool = False, days: int = 5) -> Issued:
    return authority.issue(Wanted(role="site", name="lrz", days=days, renew=renew), place)


def fits(place: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(place / "lrz.pem", place / "lrz.key")
    except ssl.SSLError:
        return False
    return True


def test_a_renewal_that_fails_leaves_the_pair_that_was_there(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", name="CA", days=10)
    place = tmp_path / "pairs"
    first = issue(authority, place)
    key_bytes = (place / "lrz.key").stat().st_size
    with file_size_max(key_bytes + 50), pytest.raises(ConfigError, match=r"failed to write .*pem"):
        issue(authority, place, renew=True)  # the new key fits, the new certificate does not
    assert fits(place)
    assert describe(first.certificate).serial == first.serial
    second = issue(authority, place, renew=True)
    assert fits(place)
    assert describe(second.certificate).serial == second.serial != first.serial
    assert sorted(each.name for each in place.iterdir()) == ["lrz.key", "lrz.pem"]


def test_a_renewal_that_was_cut_between_key_and_certificate_is_finished(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", name="CA", days=10)
    place, other = tmp_path / "pairs", tmp_path / "other"
    issue(authority, place)
    new = issue(authority, other)
    (other / "lrz.key").replace(place / "lrz.key")  # as a crash leaves it: the new key is in its place,
    (other / "lrz.pem").replace(place / ".lrz.pem.new")  # the new certificate not yet
    assert not fits(place)
    with pytest.raises(ConfigError, match="exists already"):
        issue(authority, place)
    assert fits(place)
    assert describe(place / "lrz.pem").serial == new.serial


def test_a_renewal_that_was_cut_before_it_took_place_is_dropped(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", name="CA", days=10)
    place, other = tmp_path / "pairs", tmp_path / "other"
    first = issue(authority, place)
    issue(authority, other)
    for name in ("lrz.key", "lrz.pem"):
        (other / name).replace(place / f".{name}.new")
    with pytest.raises(ConfigError, match="exists already"):
        issue(authority, place)
    assert fits(place)
    assert describe(place / "lrz.pem").serial == first.serial
    assert sorted(each.name for each in place.iterdir()) == ["lrz.key", "lrz.pem"]


def requested(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    """A request that is signed by this key."""
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "lrz")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    path.write_bytes(request.public_bytes(Encoding.PEM))
    return path


@pytest.mark.parametrize("renew", [False, True])
@pytest.mark.parametrize("kind", ["another", "locked", "none"])
def test_a_request_is_not_signed_beside_a_key_that_is_not_its_own(
    tmp_path: Path, kind: str, renew: bool
) -> None:
    authority = Authority.create(tmp_path / "ca", name="CA", days=10)
    place = tmp_path / "pairs"
    first = issue(authority, place)
    assert first.key is not None
    if kind == "locked":
        key = ec.generate_private_key(ec.SECP256R1())
        locked = BestAvailableEncryption(b"x")
        first.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    elif kind == "none":
        first.key.write_bytes(b"none")
    if not renew:
        first.certificate.unlink()
    before = {each.name: each.read_bytes() for each in place.iterdir()}
    csr = requested(tmp_path / "csr", ec.generate_private_key(ec.SECP256R1()))
    wanted = Wanted(role="site", name="lrz", days=5, csr=csr, renew=renew)
    with pytest.raises(ConfigError, match="key of the request") as caught:
        authority.issue(wanted, place)
    assert "--out" in str(caught.value.hint)
    assert {each.name: each.read_bytes() for each in place.iterdir()} == before
    assert authority.issue(wanted, tmp_path / "elsewhere").key is None


def test_a_request_is_signed_beside_its_own_key(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", name="CA", days=10)
    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "lrz.key").write_bytes(text)
    wanted = Wanted(role="site", name="lrz", days=5, csr=requested(tmp_path / "csr", key))
    authority.issue(wanted, tmp_path)
    assert fits(tmp_path)
    assert (tmp_path / "lrz.key").read_bytes() == text


def test_a_key_that_waits_for_its_certificate_is_not_replaced_without_a_word(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", name="CA", days=10)
    (tmp_path / "lrz.key").write_bytes(b"somebody's")
    with pytest.raises(ConfigError, match=r"lrz\.key` exists already"):
        issue(authority, tmp_path)
    assert (tmp_path / "lrz.key").read_bytes() == b"somebody's"
    issue(authority, tmp_path, renew=True)
    assert fits(tmp_path)


def test_no_certificate_outlives_its_ca(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", name="CA", days=2)
    ends_us = describe(authority.certificate_path).until_us
    long = issue(authority, tmp_path / "long", days=365)
    assert describe(long.certificate).until_us == long.until_us == ends_us
    short = issue(authority, tmp_path / "short", days=1)
    assert 0 < ends_us - short.until_us <= DAY_US + 60_000_000


def test_a_ca_that_has_ended_issues_nothing(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "CA")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.not_valid_before(now - timedelta(days=2)).not_valid_after(now - timedelta(seconds=2))
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.serial_number(7).add_extension(identifier, critical=False)
    ended = Authority(tmp_path, builder.sign(key, hashes.SHA256()), key)
    with pytest.raises(ConfigError, match="ended at"):
        issue(ended, tmp_path / "late", days=1)
    assert not (tmp_path / "late").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_ca_whose_key_is_open_to_others_is_not_used(tmp_path: Path, mode: int) -> None:
    made = Authority.create(tmp_path, name="CA", days=2)
    assert Authority.read(tmp_path).key_path == made.key_path
    made.key_path.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}") as caught:
        Authority.read(tmp_path)
    assert caught.value.hint == f"chmod 0600 {made.key_path}"


def test_a_line_that_somebody_wrote_without_its_end_stays_a_line_of_its_own(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", name="CA", days=10)
    issued = issue(authority, tmp_path / "ca")
    listed = tmp_path / "revoked.txt"
    listed.write_text("name eve")
    authority.revoke([issued.certificate], listed)
    assert parse(listed.read_text(), listed) == {("name", "eve"), ("serial", issued.serial.lstrip("0"))}


def test_a_certificate_of_no_days_is_refused(tmp_path: Path) -> None:
    Authority.create(tmp_path / "ca", name="CA", days=10)
    words = ["certs", "issue", "site", "lrz", "--days", "0", "--dir", str(tmp_path / "ca")]
    assert main(words) == 2
    assert not (tmp_path / "ca" / "lrz.pem").exists()
