"""A small certificate authority in a directory: key pairs for the server, submitters, sites and operators.

    ca.pem       its certificate, then its list of revoked certificates (CRL); every server and client needs it
    ca.key       its private key, mode 0600; who holds it can impersonate any user: keep it on a host without services
    NAME.pem/.key  a certificate and key that were issued here

Certificates name their role in the subject (`OU=site, CN=lrz`). Keys are P-256: NIST SP 800-57 part 1, table 2,
accepts them beyond 2030, and every TLS library supports them. Needs the package `cryptography`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from tidemill import clock
from tidemill.errors import ConfigError, install_hint
from tidemill.files import make_directories, write_durable
from tidemill.wire.credentials import check_private

CA, KEY = "ca.pem", "ca.key"
BACK_S = 300  #: certificates are valid from this time before their issue, since clocks differ
CLIENT_ROLES = ("submitter", "site", "operator")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 @:._+-]{0,63}")  # 64: the longest CN of RFC 5280, appendix A.1


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be issued. `csr`: a request whose key stays where it is; then none is made here."""

    role: str
    name: str
    days: int
    also: tuple[str, ...] = ()
    renew: bool = False
    csr: Path | None = None


class Issued(msgspec.Struct, frozen=True, kw_only=True):
    """Where certificate and key are; `key` is None for a request. It ends when its CA does, if not before."""

    certificate: Path
    key: Path | None
    serial: str
    until_us: int


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate in words."""

    path: str
    subject: str
    issuer: str
    role: str
    name: str
    serial: str
    hosts: list[str]
    from_us: int
    until_us: int


class Authority:
    """The CA of a directory; `create` or `read` it."""

    def __init__(self, place: Path, certificate: Any, key: Any) -> None:
        self._place, self._certificate, self._key = place, certificate, key

    @property
    def certificate_path(self) -> Path:
        """The file with the CA's certificate and its CRL."""
        return self._place / CA

    @property
    def key_path(self) -> Path:
        """The file with the CA's private key."""
        return self._place / KEY

    @classmethod
    def create(cls, place: Path, *, name: str, days: int) -> Authority:
        """Make one. Raises ConfigError if there is one."""
        x509, ec, hashes = _libraries()
        if (place / KEY).exists() or (place / CA).exists():
            raise ConfigError(f"`{place}` holds a CA already", hint="name another directory with --dir")
        _check_days(days)
        make_directories(place, 0o077)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(x509.oid.NameOID.ORGANIZATION_NAME, "Tidemill"),
                x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, _checked(name)),
            ]
        )
        builder = _begun(x509, subject, subject, key.public_key(), _now() + timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(x509, ca=True), critical=True)
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        made = cls(place, builder.sign(key, hashes.SHA256()), key)
        write_durable(place / KEY, _key_text(key), failure=ConfigError)
        made._write_ca([])
        return made

    @classmethod
    def read(cls, place: Path) -> Authority:
        """The one that is there. Raises ConfigError."""
        x509, _, _ = _libraries()
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            if (place / KEY).exists():
                check_private(place / KEY)
            key = load_pem_private_key((place / KEY).read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((place / CA).read_bytes())
        except FileNotFoundError as error:
            raise ConfigError(
                f"`{place}` holds no CA: no `{error.filename}`", hint=f"`tidemill certs init --dir {place}`"
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"the CA in `{place}` cannot be read: {error}") from error
        return cls(place, certificate, key)

    def issue(self, wanted: Wanted, place: Path) -> Issued:
        """A certificate (and its key) in a directory. Raises ConfigError if they are there, unless they are renewed,
        and if a key is there that is not that of the request: the certificate would stand beside it as if it were."""
        x509, ec, hashes = _libraries()
        name = _checked(wanted.name)
        _check_days(wanted.days)
        stem = re.sub(r"[ @:]", "-", name)
        certificate_path, key_path = place / f"{stem}.pem", place / f"{stem}.key"
        _finish_pair(certificate_path, key_path)
        if certificate_path.name == CA:
            raise ConfigError("`ca` is the CA's own name", hint="choose another one")
        written = (certificate_path, key_path) if wanted.csr is None else (certificate_path,)
        there = [each for each in written if each.exists()]
        if there and not wanted.renew:
            raise ConfigError(f"`{there[0]}` exists already", hint="`--renew` replaces certificate and key")
        key = None if wanted.csr is not None else ec.generate_private_key(ec.SECP256R1())
        public = key.public_key() if key is not None else _requested(wanted.csr)
        if key is None and key_path.exists():
            _check_pair(key_path, public)
        subject = x509.Name(
            [
                x509.NameAttribute(x509.oid.NameOID.ORGANIZATION_NAME, "Tidemill"),
                x509.NameAttribute(x509.oid.NameOID.ORGANIZATIONAL_UNIT_NAME, wanted.role),
                x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name),
            ]
        )
        signed = self._builder(wanted, subject, public).sign(self._key, hashes.SHA256())
        make_directories(place, 0o077)
        if key is not None:
            _write_pair(certificate_path, _pem(signed), key_path, _key_text(key))
        else:
            write_durable(certificate_path, _pem(signed), mode=0o644, failure=ConfigError)
        return Issued(
            certificate=certificate_path, key=None if key is None else key_path,
            serial=f"{signed.serial_number:x}", until_us=_us(signed.not_valid_after_utc),
        )  # fmt: skip

    def _builder(self, wanted: Wanted, subject: Any, public: Any) -> Any:
        x509, _, _ = _libraries()
        ends = self._certificate.not_valid_after_utc
        if ends <= _now():
            raise ConfigError(
                f"the CA `{self.certificate_path}` ended at {ends.isoformat()}",
                hint="make another one: `tidemill certs init --dir DIR`",
            )
        until = min(ends, _now() + timedelta(days=wanted.days))
        builder = _begun(x509, subject, self._certificate.subject, public, until)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(x509, ca=False), critical=True)
        own = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False
        )
        uses = x509.oid.ExtendedKeyUsageOID
        if wanted.role in CLIENT_ROLES:
            return builder.add_extension(x509.ExtendedKeyUsage([uses.CLIENT_AUTH]), critical=False)
        hosts = [_host(x509, each) for each in (wanted.name, *wanted.also)]
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        both = [
            uses.SERVER_AUTH,
            uses.CLIENT_AUTH,
        ]  # it is a client of the message broker; no role of our API names it
        return builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)

    def revoke(self, paths: Sequence[Path], listed: Path) -> list[str]:
        """Add certificates to a list of what is revoked, and to the CRL; the new lines. Raises ConfigError."""
        found = [describe(path) for path in paths]
        x509, _, _ = _libraries()
        for path in paths:
            try:
                x509.load_pem_x509_certificate(path.read_bytes()).verify_directly_issued_by(self._certificate)
            except Exception as error:
                raise ConfigError(
                    f"`{path}` is not of this CA: {error}", hint="name its CA with --dir"
                ) from error
        lines = [f"serial {each.serial} # {each.subject}" for each in found]
        known = listed.read_text(encoding="utf-8") if listed.exists() else ""
        known += "" if known.endswith("\n") or not known else "\n"
        new = [line for line in lines if line not in known.splitlines()]
        write_durable(
            listed, "".join([known, *(f"{line}\n" for line in new)]).encode(), mode=0o644, failure=ConfigError
        )
        self._write_ca([int(each.serial, 16) for each in found])
        return lines

    def _write_ca(self, serials: Sequence[int]) -> None:
        """The certificate and the CRL, with these serial numbers added; the CRL lasts as long as the CA."""
        x509, _, hashes = _libraries()
        now = _now()
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._certificate.subject)
        builder = builder.last_update(now - timedelta(seconds=BACK_S))
        builder = builder.next_update(self._certificate.not_valid_after_utc)
        gone = {each.serial_number: each for each in self._crl()}
        for serial in serials:
            if serial not in gone:
                gone[serial] = (
                    x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
                )
        for each in gone.values():
            builder = builder.add_revoked_certificate(each)
        crl = builder.sign(self._key, hashes.SHA256())
        write_durable(
            self.certificate_path, _pem(self._certificate) + _pem(crl), mode=0o644, failure=ConfigError
        )

    def _crl(self) -> list[Any]:
        x509, _, _ = _libraries()
        if not self.certificate_path.exists():
            return []
        text = self.certificate_path.read_bytes()
        return list(x509.load_pem_x509_crl(text[text.index(b"-----BEGIN X509 CRL") :]))


def describe(path: Path) -> Described:
    """What the first certificate of a PEM file says. Raises ConfigError."""
    x509, _, _ = _libraries()
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"failed to read certificate `{path}`: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"`{path}` holds no certificate in PEM") from error
    units = [
        each.value for each in found.subject.get_attributes_for_oid(x509.oid.NameOID.ORGANIZATIONAL_UNIT_NAME)
    ]
    names = [each.value for each in found.subject.get_attributes_for_oid(x509.oid.NameOID.COMMON_NAME)]
    try:
        more = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [str(each.value) for each in more]
    except x509.ExtensionNotFound:
        hosts = []
    return Described(
        path=str(path), subject=found.subject.rfc4514_string(), issuer=found.issuer.rfc4514_string(),
        role=str(units[0]) if len(units) == 1 and units[0] in (*CLIENT_ROLES, "server") else "",
        name=str(names[0]) if names else "", serial=f"{found.serial_number:x}", hosts=hosts,
        from_us=_us(found.not_valid_before_utc), until_us=_us(found.not_valid_after_utc),
    )  # fmt: skip


def _libraries() -> tuple[Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError(
            f"certificates need the package `cryptography`: {error}", hint=install_hint("certs")
        ) from error
    return x509, ec, hashes


def _begun(x509: Any, subject: Any, issuer: Any, public: Any, until: datetime) -> Any:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - timedelta(seconds=BACK_S))
        .not_valid_after(until)
    )


def _usage(x509: Any, *, ca: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=not ca, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=ca, crl_sign=ca, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _host(x509: Any, text: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _requested(path: Path | None) -> Any:
    x509, _, _ = _libraries()
    assert path is not None
    try:
        request = x509.load_pem_x509_csr(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"`{path}` holds no certificate request: {error}", hint="`openssl req -new` makes one"
        ) from error
    if not request.is_signature_valid:
        raise ConfigError(f"the request `{path}` is not signed by its own key")
    return request.public_key()


def _check_pair(key_path: Path, public: Any) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    hint = "`--out` puts the certificate elsewhere; or move that key away"
    try:
        found = load_pem_private_key(key_path.read_bytes(), None).public_key()
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"failed to check whether `{key_path}` is the key of the request: {error}", hint=hint
        ) from error
    if _public_text(found) != _public_text(public):
        raise ConfigError(f"`{key_path}` is there, and is not the key of the request", hint=hint)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"`{name[:100]}` is not a valid name of a certificate",
            hint="letters, digits, blanks and `@:._+-`, at most 64",
        )
    return name


def _check_days(days: int) -> None:
    if not 1 <= days <= 36500:
        raise ConfigError(f"`--days` is {days}, legal is 1 to 36500")


def _now() -> datetime:
    return datetime.fromtimestamp(clock.now_s(), UTC)


def _us(at: datetime) -> int:
    return int(at.timestamp()) * 1_000_000


def _pem(thing: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    text: bytes = thing.public_bytes(Encoding.PEM)
    return text


def _key_text(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text


def _public_text(public: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    text: bytes = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return text


def _staged(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _write_pair(certificate_path: Path, certificate: bytes, key_path: Path, key: bytes) -> None:
    """Both are on the disk before either takes its place, the key first; `_finish_pair` ends what is cut in between."""
    staged_key, staged = _staged(key_path), _staged(certificate_path)
    write_durable(staged_key, key, failure=ConfigError)
    write_durable(staged, certificate, mode=0o644, failure=ConfigError)
    try:
        staged_key.replace(key_path)
        staged.replace(certificate_path)
    except OSError as error:
        raise ConfigError(f"failed to write `{certificate_path}` and its key: {error.strerror}") from error


def _finish_pair(certificate_path: Path, key_path: Path) -> None:
    """A new certificate whose new key has taken its place already takes its own; what was not begun is dropped."""
    staged_key, staged = _staged(key_path), _staged(certificate_path)
    try:
        if staged_key.exists():
            staged.unlink(missing_ok=True)
            staged_key.unlink()
        elif staged.exists():
            staged.replace(certificate_path)
    except OSError as error:
        raise ConfigError(f"failed to write `{certificate_path}`: {error.strerror}") from error
