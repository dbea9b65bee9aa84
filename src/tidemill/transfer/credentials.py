"""Credentials for endpoints: certificates, proxies, bearer tokens; and whether they still hold.

Secrets go to clients by files and environment, never by arguments, which every user of a machine can read.
"""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tidemill import clock
from tidemill.config.transfer import Endpoint
from tidemill.errors import UNDECODABLE, ConfigError
from tidemill.files import why_unseen
from tidemill.model.failure import FailureClass
from tidemill.transfer.contract import RemoteFile, TransferError
from tidemill.wire.credentials import LAST_PLACE, Credentials, read_secret

PASSED = ("PATH", "HOME", "LD_LIBRARY_PATH", "USER", "LOGNAME", "TMPDIR", "XDG_RUNTIME_DIR")
"""Variables of the agent's environment that clients inherit: none of their own settings that may be set there."""

SECRET = (
    "X509_USER_PROXY",
    "X509_USER_KEY",
    "BEARER_TOKEN_FILE",
    "KRB5CCNAME",
    "AWS_SHARED_CREDENTIALS_FILE",
)
"""Variables by which clients find secret files where the configuration names none."""

OWN = ("X509_USER_PROXY", "X509_USER_CERT", "X509_USER_KEY", "X509_CERT_DIR", "X509_VOMS_DIR", "KRB5CCNAME")
"""Credentials of the agent, for endpoints that name none."""

REFUSED = re.compile(
    r"(?i)permission denied|not authori[sz]ed|unauthori[sz]ed|authentication|login incorrect|credential|certificate|"
    r"gss_|\b(530|535|401)\b|auth failed|no protocols left|proxy"
)
"""Words in a client's output that show a refusal for want of a valid credential."""

END_S_MAX = 4_102_444_800.0  #: the year 2100

CONTEXTS_MAX = 64
"""Of TLS, kept: endpoints of a site that are in use."""


def credential_error(place: RemoteFile, why: str, hint: str | None = None) -> TransferError:
    """Class `credential`: what we showed was refused, or we have nothing to show."""
    which = "" if place.sent_by is None else ": that"
    return TransferError(
        f"{place.named}{which} refuses us: {why}",
        hint=hint or _renewal(place.endpoint),
        transient=False,
        failure=FailureClass.CREDENTIAL,
    )


_CLOCK = "if it has been renewed, check the clocks of this host and of the server"
_ANOTHER_NAME = 62
_HINTS_BY_CODE = {
    9: _CLOCK,
    10: f"its operators have to renew it, or `ca` of the endpoint names an authority that has expired; {_CLOCK}",
    _ANOTHER_NAME: "it is for another host: check the URL, or ask its operators for a certificate with this name",
    64: "it is for another address: write the host's name in the URL",
}
"""Hints by X509_V_ERR_* of OpenSSL's x509_vfy.h: not yet valid, expired, another name, another address."""


def untrusted(place: RemoteFile, error: BaseException) -> TransferError:
    """Class `credential`: the server's certificate is not trusted, so no request was sent. `error`: from OpenSSL's
    verification, or from another library that compares the host's name."""
    words, code = str(error), _ANOTHER_NAME
    if isinstance(error, ssl.SSLCertVerificationError):
        words, code = error.verify_message, error.verify_code
    ca = f"name its certification authority in `ca` of the endpoint `{place.endpoint.url}`"
    return TransferError(
        f"{place.named}: the server's certificate is not trusted: {words}",
        hint=_HINTS_BY_CODE.get(code, ca),
        transient=False,
        failure=FailureClass.CREDENTIAL,
    ).unasked()


def _renewal(endpoint: Endpoint) -> str:
    """What would end a refusal: names the file that was shown, and when it ends."""
    rights = "or ask for the right to use the file"
    if endpoint.token_path is not None:
        return f"renew the bearer token in `{endpoint.token_path}`{_ends(token_end_s(endpoint.token_path))}, {rights}"
    if endpoint.certificate is not None:
        ends = _ends(certificate_end_s(endpoint.certificate))
        return f"renew the certificate or proxy `{endpoint.certificate}`{ends}, {rights}"
    if endpoint.credentials_file is not None:
        return f"renew the access keys in `{endpoint.credentials_file}`, {rights}"
    if endpoint.finds_token:
        return f"renew the bearer token that the agent finds (BEARER_TOKEN_FILE), {rights}"
    return (
        f"name a `certificate` or `token_file` of the endpoint `{endpoint.url}` in site.toml, renew the one that the "
        f"agent's environment names, {rights}"
    )


def _ends(end_s: float | None) -> str:
    if end_s is None:
        return ""
    return f", which {'ended' if end_s < clock.now_s() else 'ends'} at {clock.utc_text(int(end_s * 1e6))}"


def certificate_end_s(path: Path) -> float | None:
    """When a certificate or proxy ends; None where that cannot be read."""
    try:
        decoded = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
        return float(ssl.cert_time_to_seconds(decoded["notAfter"]))
    except (OSError, ssl.SSLError, KeyError, ValueError):
        return None


def token_end_s(path: Path) -> float | None:
    """When a bearer token ends that is a JWT; None for others. Its signature is not checked: it is for people."""
    try:
        body = read_secret(path).split(".")[1]
        end = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"]
        return float(end) if 0 <= end < END_S_MAX else None
    except (ConfigError, LookupError, TypeError, *UNDECODABLE):
        return None


def environment(endpoint: Endpoint) -> dict[str, str]:
    """The environment of a client program for this endpoint."""
    environ = {name: os.environ[name] for name in PASSED if name in os.environ}
    environ |= {"LC_ALL": "C", "TZ": "UTC"}
    if endpoint.certificate is None:
        environ |= {name: os.environ[name] for name in OWN if name in os.environ}
    else:
        certificate, key = str(endpoint.certificate), str(endpoint.key or endpoint.certificate)
        environ |= {"X509_USER_CERT": certificate, "X509_USER_KEY": key}
        if endpoint.key is None:
            environ |= {"X509_USER_PROXY": certificate}
    if endpoint.ca is not None:
        environ |= {"X509_CERT_DIR": str(endpoint.ca if _is_directory(endpoint.ca) else endpoint.ca.parent)}
    if endpoint.token_path is not None:
        environ |= {"BEARER_TOKEN_FILE": str(endpoint.token_path)}
    elif endpoint.finds_token:
        environ |= {
            name: os.environ[name] for name in ("BEARER_TOKEN", "BEARER_TOKEN_FILE") if name in os.environ
        }
    return environ


def secret_files(environ: Mapping[str, str]) -> list[Path]:
    """Those that the agent's environment names; of Kerberos, `FILE:PATH` or `DIR:PATH`."""
    words = (environ.get(name, "") for name in SECRET)
    paths = (Path(word.removeprefix("FILE:").removeprefix("DIR:")) for word in words)
    return [path for path in paths if path.is_absolute()]


def token(place: RemoteFile) -> str | None:
    """The bearer token for this place, None if none is to be shown. Raises TransferError."""
    endpoint = place.endpoint
    if endpoint.token_path is not None:
        return _token_in(place, endpoint.token_path)
    return _discovered(place, os.environ) if endpoint.finds_token else None


def tls(place: RemoteFile) -> ssl.SSLContext:
    """The TLS context for this place. Raises TransferError where our files are missing or have expired."""
    endpoint = place.endpoint
    try:
        if endpoint.certificate is not None:
            check_expiry(place, endpoint.certificate)
        files = Credentials(certificate=endpoint.certificate, key=endpoint.key, ca=endpoint.ca or _host_cas())
        return _context(endpoint.ca, endpoint.certificate, endpoint.key, files.marks())
    except (OSError, ssl.SSLError) as error:
        raise credential_error(
            place,
            f"our own files for it cannot be read: {error}",
            f"see `ca`, `certificate` and `key` of the endpoint `{endpoint.url}` in site.toml",
        ).unasked() from error


@lru_cache(CONTEXTS_MAX)
def _context(
    ca: Path | None, certificate: Path | None, key: Path | None, marks: tuple[object, ...]
) -> ssl.SSLContext:
    """Kept, because reading the CAs of a host takes 40 ms, for each request; `marks`: of the files, so that new ones
    count. Not `Credentials.context`: what newer Pythons refuse there (VERIFY_X509_STRICT) CAs of grids still have."""
    if ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(**{"capath" if _is_directory(ca) else "cafile": str(ca)})
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def _is_directory(path: Path) -> bool:
    """Also False where we may not look: who reads the file says so then."""
    return os.path.isdir(path)  # noqa: PTH112 -- Path.is_dir raises PermissionError there


def _host_cas() -> Path | None:
    """Where the CAs are that this host trusts, if anywhere."""
    paths = ssl.get_default_verify_paths()
    found = paths.cafile or paths.capath
    return None if found is None else Path(found)


def check_expiry(place: RemoteFile, certificate: Path) -> None:
    """Raise TransferError if a certificate or proxy has expired: the server's own message would be unclear."""
    ends_s = certificate_end_s(certificate)  # the code that loads it reports an unreadable one
    if ends_s is not None and ends_s < clock.now_s():
        ended = clock.utc_text(int(ends_s * 1e6))
        raise credential_error(
            place,
            f"our certificate `{certificate}` expired at {ended}",
            f"renew `{certificate}`, as voms-proxy-init or your centre's renewal of proxies does",
        ).unasked()


class TokenPlace(NamedTuple):
    """A place where the WLCG's order looks for a token. `path` None: it is the text of the variable itself."""

    name: str
    path: Path | None
    is_set: bool  #: whether a token is looked for there and nowhere after it


def token_places(environ: Mapping[str, str]) -> Iterator[TokenPlace]:
    """WLCG Bearer Token Discovery 1.0 (doi:10.5281/zenodo.3937438): variable, file by variable, two usual files. A file
    is looked up when its turn comes, and not if an earlier place has a token. One in a directory that is closed to us
    counts as not there."""
    yield TokenPlace("$BEARER_TOKEN", None, bool(environ.get("BEARER_TOKEN")))
    named = environ.get("BEARER_TOKEN_FILE")
    yield TokenPlace("$BEARER_TOKEN_FILE", Path(named) if named else None, bool(named))
    name = f"bt_u{os.geteuid()}"
    folders = [environ["XDG_RUNTIME_DIR"]] if environ.get("XDG_RUNTIME_DIR") else []
    for path in (Path(folder) / name for folder in [*folders, str(LAST_PLACE)]):
        yield TokenPlace(f"`{path}`", path, not why_unseen(path))


def found_at(environ: Mapping[str, str]) -> TokenPlace | None:
    """Where a token is found; None = nowhere."""
    return next((each for each in token_places(environ) if each.is_set), None)


def _discovered(place: RemoteFile, environ: Mapping[str, str]) -> str | None:
    found = found_at(environ)
    if found is None:
        return None
    return environ["BEARER_TOKEN"].strip() if found.path is None else _token_in(place, found.path)


def _token_in(place: RemoteFile, path: Path) -> str:
    try:
        return read_secret(path)
    except ConfigError as error:
        if isinstance(error.__cause__, FileNotFoundError):  # the server was not asked yet
            kind = "`token_file`" if path == place.endpoint.token_path else "bearer token file"
            raise TransferError(
                f"`{place.shown}`: its {kind} `{path}` does not exist",
                hint="make it: `htgettoken` and oidc-agent write such files; or correct the path in site.toml",
                transient=False, failure=FailureClass.CREDENTIAL,
            ).unasked() from error  # fmt: skip
        raise TransferError(  # nor was it asked here
            f"`{place.shown}`: no token to show: {error.message}", hint=error.hint or _renewal(place.endpoint),
            transient=False, failure=FailureClass.CREDENTIAL,
        ).unasked() from error  # fmt: skip
