"""Untrusted server certificates: each reason gets its own hint, and none counts as a refusal by the server."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.unit.transfer.http_origin import origin

from tidemill.config.transfer import Endpoint
from tidemill.model.failure import FailureClass
from tidemill.transfer.contract import TransferError
from tidemill.transfer.mover import Mover
from tidemill.transfer.patience import MovePatience

x509 = pytest.importorskip("cryptography.x509")
DAY = timedelta(days=1)

CASES = {
    "expired": ("certificate has expired", "its operators have to renew it"),
    "to come": ("certificate is not yet valid", "check the clocks of this host"),
    "foreign": ("match", "it is for another host"),
    "unknown": ("unable to get local issuer certificate", "name its certification authority in `ca`"),
}


class Certificates:
    """Two authorities, and server certificates of the first."""

    def __init__(self, folder: Path) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca = self._written("ca", self._signed("Authority", self._key, None, days=(-9, 9)))
        other = ec.generate_private_key(ec.SECP256R1())
        self.other = self._written("other", self._signed("Other", other, None, days=(-9, 9), by=other))

    def context(self, case: str) -> ssl.SSLContext:
        """A server with such a certificate."""
        from cryptography.hazmat.primitives.asymmetric import ec

        days = {"expired": (-3, -1), "to come": (1, 3)}.get(case, (-3, 3))
        host = "elsewhere.example.org" if case == "foreign" else "localhost"
        key = ec.generate_private_key(ec.SECP256R1())
        path = self._written(case, self._signed("server", key, host, days=days), key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def trusted(self, case: str) -> Path:
        return self.other if case == "unknown" else self.ca

    def _signed(self, name: str, key: Any, host: str | None, *, days: tuple[int, int], by: Any = None) -> Any:
        from cryptography.hazmat.primitives import hashes

        def named(text: str) -> Any:
            return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

        now = datetime.now(UTC)
        issuer = named(name if host is None else "Authority")
        made = x509.CertificateBuilder(
            issuer,
            named(name),
            key.public_key(),
            x509.random_serial_number(),
            now + days[0] * DAY,
            now + days[1] * DAY,
        )
        made = made.add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        if host is not None:
            made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return made.sign(by or self._key, hashes.SHA256())

    def _written(self, name: str, certificate: Any, key: Any = None) -> Path:
        from cryptography.hazmat.primitives import serialization

        content = certificate.public_bytes(serialization.Encoding.PEM)
        if key is not None:
            plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            content += key.private_bytes(serialization.Encoding.PEM, *plain)
        path = self._folder / f"{name}.pem"
        path.write_bytes(content)
        return path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def refusal(endpoint: Endpoint, folder: Path) -> TransferError:
    mover = Mover([endpoint], MovePatience(tries_max=1, stall_s=10), size_max=1 << 30)
    with pytest.raises(TransferError) as error:
        mover.get(endpoint.url + "f", folder / "in", mover.watch())
    return error.value


def check(error: TransferError, case: str) -> None:
    words, hint = CASES[case]
    assert error.failure is FailureClass.CREDENTIAL
    assert "the server's certificate is not trusted: " in error.message
    assert words in error.message
    assert "refuses us" not in error.message
    assert hint in str(error.hint)
    assert ("certification authority in `ca`" in str(error.hint)) is (case == "unknown")


@pytest.mark.parametrize("case", CASES)
def test_a_certificate_of_an_https_server_that_does_not_hold_is_told_by_its_reason(
    certificates: Certificates, tmp_path: Path, case: str
) -> None:
    with origin(certificates.context(case)) as server:
        check(refusal(Endpoint(url=server.base + "/", ca=certificates.trusted(case)), tmp_path), case)


@pytest.mark.parametrize("case", CASES)
def test_a_certificate_of_an_s3_service_that_does_not_hold_is_told_by_its_reason(
    certificates: Certificates, tmp_path: Path, case: str
) -> None:
    pytest.importorskip("boto3")
    keys = tmp_path / "keys"
    keys.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    with origin(certificates.context(case)) as server:
        endpoint = Endpoint(
            url="s3://bucket/", service=server.base, credentials_file=keys, ca=certificates.trusted(case)
        )
        check(refusal(endpoint, tmp_path), case)
