"""TLS of the server, and who stands behind a client certificate. Needs the package `cryptography` for the latter.

OpenSSL has verified the chain, the dates and the purpose before anything here sees a certificate. The role is in the
certificate (OU) only if our own CA signed it, which is checked by its key and not by its name; certificates of other
CAs get the role that `[roles.members]` gives their subject.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidemill import clock, log
from tidemill.config.tls import RoleMember, Tls
from tidemill.errors import ConfigError, blaming, install_hint
from tidemill.model.identity import Identity, Role, Via
from tidemill.server import constants
from tidemill.server.errors import StrangerError
from tidemill.wire.credentials import check_private

_LOG = log.Log("server")
_CRL = {
    "no": ssl.VerifyFlags(0),
    "leaf": ssl.VERIFY_CRL_CHECK_LEAF,
    "chain": ssl.VERIFY_CRL_CHECK_CHAIN,
}
NAME_MAX = 100
SOON_S = 14 * 86400
TOLD_MAX = 100  #: lines a minute about TLS that ended before a request: strangers may come by thousands
_told = {"minute": 0, "lines": 0, "untold": 0}
STAY = "the files that were read before stay in use"
_SHORT = {  #: names of attributes as `openssl x509 -nameopt compat` and grid services write them
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.10": "O", "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC", "0.9.2342.19200300.100.1.1": "UID", "1.2.840.113549.1.9.1": "emailAddress",
    "2.5.4.5": "serialNumber", "2.5.4.4": "SN", "2.5.4.42": "GN",
}  # fmt: skip


class Certificates:
    """Keeps the TLS context fresh, and turns certificates into identities."""

    def __init__(self, tls: Tls, members: Sequence[RoleMember]) -> None:
        """Raises ConfigError for files that cannot be used."""
        if tls.certificate is None:
            raise ConfigError(
                "`tls.key` is set, and `tls.certificate` is not",
                hint="`tidemill certs issue server HOST` makes both",
            )
        if tls.other_ca is not None:
            _library()
        self._tls = tls
        self._members = {each.bearer.subject: each for each in members if each.bearer.subject}
        self._ca: Any = None
        self._seen = self._marks()
        self._current = self._build()
        self.context = self._build()
        self.context.sni_callback = self._choose

    # ---- the context -----------------------------------------------------------------------------------------

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _outer: ssl.SSLContext) -> None:
        """For each new connection the newest context: OpenSSL takes certificate and CAs from what is set here."""
        connection.context = self._current

    async def watch(self) -> None:
        """Read again what has changed, until it is canceled; in a thread, for a directory of CAs has hundreds of files
        and may lie on a network."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(constants.CERTIFICATES_RELOAD_S)
            try:
                await loop.run_in_executor(None, self._refresh)
            except Exception as error:  # noqa: BLE001 - top of a loop: log it and go on
                _LOG.error("tls.unread", error=repr(error), hint=STAY)

    def _refresh(self) -> None:
        seen = self._marks()
        if seen == self._seen:
            return
        try:
            self._current = self._build()
        except ConfigError as error:
            _LOG.error("tls.unread", error=error.message, hint=STAY)
            return
        self._seen = seen
        _LOG.info("tls.reloaded", certificate=str(self._tls.certificate))

    def _marks(self) -> list[tuple[str, int, int]]:
        tls, result = self._tls, []
        for path in (tls.certificate, tls.key, tls.ca, tls.other_ca):
            if path is None:
                continue
            inside = _files_of(path)
            result += [
                (str(each), status.st_mtime_ns, status.st_size) for each in inside if (status := _stat(each))
            ]
        return result

    def _build(self) -> ssl.SSLContext:
        tls = self._tls
        assert tls.certificate is not None
        key = tls.key or tls.certificate
        with blaming(f"server.toml: `{'tls.key' if tls.key else 'tls.certificate'}`"):
            check_private(key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sslobject_class = Handshake
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0  # a resumed session would skip the check against CAs and CRLs
        try:
            context.load_cert_chain(tls.certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"server.toml: `tls.certificate`: certificate `{tls.certificate}` with key `{key}` cannot be used: "
                f"{error}",
                hint="both are PEM, and the key is that of the first certificate",
            ) from error
        for name, path in (("ca", tls.ca), ("other_ca", tls.other_ca)):
            if path is not None:
                with blaming(f"server.toml: `tls.{name}`"):
                    _trust(context, path)
        if tls.ca is not None:
            with blaming("server.toml: `tls.ca`"):
                self._ca = _load_one(tls.ca)
        if tls.ca is not None or tls.other_ca is not None:
            context.verify_mode = ssl.CERT_OPTIONAL  # who has none may have a token
            context.verify_flags |= _CRL[tls.crl]
        _warn_of_end(tls)
        return context

    # ---- identities ------------------------------------------------------------------------------------------

    def identity(self, der: bytes) -> Identity:
        """Who holds a certificate that OpenSSL has verified on this connection. Raises StrangerError."""
        from cryptography import x509

        try:
            certificate = x509.load_der_x509_certificate(der)
            subject = subject_text(certificate.subject)
        except (ValueError, x509.InvalidVersion) as error:  # stricter than OpenSSL, which has let it in
            raise StrangerError(f"the certificate cannot be read: {error}") from error
        expires_us = int(certificate.not_valid_after_utc.timestamp() * 1e6)
        known: dict[str, Any] = {
            "via": Via.CERTIFICATE, "expires_us": expires_us, "subject": subject,
            "credential": f"{certificate.serial_number:x}",
        }  # fmt: skip
        if expires_us <= clock.now_us():  # the connection may be older than the certificate's end
            raise StrangerError(f"the certificate of `{subject}` has expired")
        if self._ca is not None and _is_issued_by(certificate, self._ca):
            role, name = _own(certificate, subject)
            return Identity(role=role, name=name, **known)
        member = self._members.get(subject)
        if member is None:
            raise StrangerError(f"the certificate of `{subject}` is valid, but has no role here")
        return Identity(role=Role(member.role), name=member.name, **known)


def _own(certificate: Any, subject: str) -> tuple[Role, str]:
    from cryptography.x509.oid import NameOID

    names = [each.value for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    units = [
        each.value for each in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    ]
    if len(names) != 1 or len(units) != 1 or units[0] not in set(Role):
        raise StrangerError(f"the certificate of `{subject}` does not name one role and one person or site")
    name = str(names[0])
    if not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise StrangerError(f"the certificate of `{subject}` has no usable name")
    return Role(units[0]), name


def _is_issued_by(certificate: Any, ca: Any) -> bool:
    """Whether the very key of this CA signed it: another CA may carry the same name."""
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def subject_text(name: Any) -> str:
    """A distinguished name as grid services write it: `/DC=org/DC=example/CN=Ada Lovelace`, `/` inside escaped."""
    parts = []
    for attribute in name:
        key = _SHORT.get(attribute.oid.dotted_string, attribute.oid.dotted_string)
        value = str(attribute.value).replace("\\", "\\\\").replace("/", "\\/").replace("\n", "\\n")
        parts.append(f"/{key}={value}")
    return "".join(parts)


def _trust(context: ssl.SSLContext, path: Path) -> None:
    try:
        if path.is_dir():
            context.load_verify_locations(capath=str(path))
        else:
            context.load_verify_locations(cafile=str(path))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"CA `{path}` cannot be read: {error}",
            hint="a PEM file, or a directory of `HASH.0` and `HASH.r0` as `openssl rehash` makes it",
        ) from error


def _library() -> Any:
    try:
        from cryptography import x509
    except ImportError as error:
        raise ConfigError(
            f"client certificates need the package `cryptography`: {error}",
            hint=install_hint("certs"),
        ) from error
    return x509


def _load_one(path: Path) -> Any:
    x509 = _library()
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(
            f"`{path}` holds no certificate in PEM", hint="its first line is `-----BEGIN CERTIFICATE-----`"
        ) from error


def _files_of(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError:
        return [path]


def _warn_of_end(tls: Tls) -> None:
    """Log at each start and reload that the server's own certificate expires soon."""
    if tls.ca is None or tls.certificate is None:
        return
    ends = _load_one(tls.certificate).not_valid_after_utc
    if ends.timestamp() - clock.now_s() < SOON_S:
        _LOG.warning("tls.ends_soon", certificate=str(tls.certificate), at=ends.isoformat())


def _stat(path: Path) -> Any:
    try:
        return path.stat()
    except OSError:
        return None


class Handshake(ssl.SSLObject):
    """TLS of one connection that logs why it ended before a request: a foreign CA, an expired or revoked certificate.

    asyncio says nothing of these, and a centre's staff want to see who tries.
    """

    def do_handshake(self) -> None:
        """Shake hands; raises and logs what `ssl` raises."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            _log_refused(error)
            raise


def _log_refused(error: ssl.SSLError) -> None:
    minute = int(clock.monotonic_s() // 60)
    if minute != _told["minute"]:
        if _told["untold"]:
            _LOG.warning("access.refused", why="tls", more=_told["untold"])
        _told.update(minute=minute, lines=0, untold=0)
    if _told["lines"] >= TOLD_MAX:
        _told["untold"] += 1
        return
    _told["lines"] += 1
    why = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason
    _LOG.warning("access.refused", why=f"tls: {why or error}")
