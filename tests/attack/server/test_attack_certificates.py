"""Certificates that nobody of ours issued, a leaf that plays CA, requests for another's name, and revocation.

A foreign CA of the same name, an expired key, a server's certificate and a CRL are tried in
tests/local/server/test_access.py, as is a revoked certificate on a connection that is open.
"""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.worlds.services.access_world import private, submission, until
from tests.worlds.services.attack_world import Attacked, attacked

from tidemill.client.authority import Wanted

__all__ = ["attacked"]
Pair = tuple[Path, Path]


def key_of(path: Path) -> ec.EllipticCurvePrivateKey:
    found = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(found, ec.EllipticCurvePrivateKey)
    return found


def ends_at_the_handshake(world: Attacked, pair: Pair) -> bool:
    """Whether the server takes no request from who has this pair; None of its answers may be another than 401."""
    try:
        return world.call(pair, "GET", "/v1/jobs")[0] == 401
    except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
        return True


@pytest.mark.parametrize("name", ["ada", "lrz", "olga"])
@pytest.mark.parametrize("chain", [True, False])
def test_a_leaf_is_no_ca(attacked: Attacked, name: str, chain: bool) -> None:
    """Whoever has a certificate signs an operator's with it, and sends his own along."""
    certs = attacked.certs
    leaf, leaf_key = certs.pair(name)
    issuer = x509.load_pem_x509_certificate(leaf.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    made = certs.signed("olga", key, issuer, key_of(leaf_key), unit="operator")
    forged, its_key = certs.store(certs.folder / "leaf", f"{name}-{chain}", made, key)
    if chain:
        forged.write_bytes(forged.read_bytes() + leaf.read_bytes())
    before = attacked.content()
    assert ends_at_the_handshake(attacked, (forged, its_key))
    assert attacked.content() == before


def test_a_ca_that_is_made_up_has_no_roles(attacked: Attacked) -> None:
    """Self-signed, named like ours, with the serial number and subject of one that is believed."""
    certs = attacked.certs
    key = ec.generate_private_key(ec.SECP256R1())
    made = certs.signed("olga", key, None, key, unit="operator")
    assert ends_at_the_handshake(attacked, certs.store(certs.folder / "self", "olga", made, key))
    stolen, _ = certs.pair("olga")  # the certificate is public; its key is not
    other = private(certs.folder / "self" / "other.key", (certs.folder / "self" / "olga.key").read_bytes())
    with pytest.raises(ssl.SSLError, match=r"(?i)mismatch"):
        attacked.call((stolen, other), "GET", "/v1/jobs")


def test_a_request_gets_the_name_that_the_ca_gives_whatever_it_asks_for(
    attacked: Attacked, tmp_path: Path
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    asked = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Tidemill"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "operator"),
            x509.NameAttribute(NameOID.COMMON_NAME, "olga"),
        ]
    )
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(asked)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("tidemill.example.org")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    csr = tmp_path / "mallory.csr"
    csr.write_bytes(request.public_bytes(serialization.Encoding.PEM))
    made = attacked.certs.own.issue(Wanted(role="submitter", name="mallory", days=1, csr=csr), tmp_path)
    issued = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    assert issued.subject.rfc4514_string() == "CN=mallory,OU=submitter,O=Tidemill"
    constraints = issued.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not constraints.ca
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pair = (made.certificate, private(tmp_path / "mallory.key", text))
    assert attacked.call(pair, "GET", "/v1/campaigns/ada-1")[0] == 404
    assert attacked.call(pair, "GET", "/v1/jobs")[1]["jobs"] == []


def feed(world: Attacked, name: str) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPSConnection(
        "127.0.0.1", world.port, timeout=30, context=world.context(world.certs.pair(name))
    )
    connection.request("GET", "/v1/changes")
    return connection, connection.getresponse()


def test_a_feed_that_is_open_ends_with_its_credential(attacked: Attacked) -> None:
    connection, answer = feed(attacked, "eve")
    assert answer.status == 200
    attacked.revoke("name eve\n")
    number = 0
    heard: list[bytes] = []
    try:
        while line := answer.readline():
            heard.append(line)
            number += 1
            attacked.call("ada", "POST", "/v1/jobs", submission("ada-heard", f"k-heard-{number}"))
            assert number < 100, heard[-3:]
    except (ConnectionError, http.client.IncompleteRead):
        pass
    assert not any(b"ada-heard" in line for line in heard)
    connection.close()
    attacked.revoked.write_text("")
    until(lambda: attacked.call("eve", "GET", "/v1/jobs")[0] == 200)


def replace(path: Path, content: bytes) -> None:
    """At once: a server that reads while it is written would take the empty file for the whole list."""
    whole = path.with_name("revoked.new")
    whole.write_bytes(content)
    whole.replace(path)


@pytest.mark.parametrize("damage", ["gone", "half", "binary", "directory", "empty line"])
def test_a_list_that_is_damaged_lets_nobody_back_in(attacked: Attacked, damage: str) -> None:
    path = attacked.revoked
    path.write_text("name eve\n")
    until(lambda: attacked.call("eve", "GET", "/v1/jobs")[0] == 401)
    unread = len(attacked.events("revoked.unread"))
    match damage:
        case "gone":
            path.unlink()
        case "half":
            replace(path, b"name\n")
        case "binary":
            replace(path, b"\xff\xfe\x00")
        case "directory":
            path.unlink()
            path.mkdir()
        case _:
            replace(path, b"revoke all of them\n")
    try:
        # a thread reads the list once a second
        until(lambda: len(attacked.events("revoked.unread")) > unread)
        for _ in range(3):
            status, answer = attacked.call("eve", "GET", "/v1/jobs")
            assert status == 401, json.dumps(answer)
        assert attacked.call("ada", "GET", "/v1/jobs")[0] == 200
    finally:
        if path.is_dir():
            path.rmdir()
        path.write_text("")
    until(lambda: attacked.call("eve", "GET", "/v1/jobs")[0] == 200)
