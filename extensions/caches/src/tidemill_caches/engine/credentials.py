"""When the credentials of a cache end: certificates and proxies (X.509), and bearer tokens that are JWTs.

Reads one field of a certificate: the package `cryptography`, which does more, is not needed on a cache's host.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill.errors import UNDECODABLE, SiteError
from tidemill.files import read_bounded
from tidemill_caches.settings import CacheConfig

BYTES_MAX = 1 << 20
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_SEQUENCE, _INTEGER, _VERSION, _UTC_TIME, _GENERAL_TIME = 0x30, 0x02, 0xA0, 0x17, 0x18


class CredentialEnd(NamedTuple):
    """A credential and when it ends. `own`: the cache shows it to origins; otherwise to its clients."""

    path: Path
    ends_us: int
    own: bool


class _Claims(msgspec.Struct):
    exp: float | None = None


def ends_of(config: CacheConfig) -> list[CredentialEnd]:
    """The credentials that cache.toml names and whose end can be read."""
    result = []
    for path, own in (
        (config.credential.certificate, True),
        (config.credential.token_file, True),
        (config.tls.certificate, False),
    ):
        ends_us = None if path is None else end_of(path)
        if path is not None and ends_us is not None:
            result.append(CredentialEnd(path, ends_us, own))
    return result


def end_of(path: Path) -> int | None:
    """When the credential in a file ends, in microseconds since 1970; None where the file does not say."""
    try:
        content = read_bounded(path, BYTES_MAX)
    except SiteError:
        return None
    if content is None:
        return None
    return certificates_end(content) if b"-----BEGIN" in content else token_end(content)


def certificates_end(content: bytes) -> int | None:
    """When the first certificate of a PEM file ends: a proxy is good as long as each of its chain. Pure."""
    ends = []
    for each in _PEM.finditer(content):
        try:
            ends.append(_not_after(base64.b64decode(each[1])))
        except (ValueError, IndexError, binascii.Error):
            return None
    return min(ends, default=None)


def token_end(content: bytes) -> int | None:
    """When a JWT ends (RFC 7519, `exp`); None for a token of another form. Pure."""
    parts = content.strip().split(b".")
    if len(parts) != 3:
        return None
    try:
        body = base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4))
        claims = msgspec.json.decode(body, type=_Claims)
        return None if claims.exp is None else int(claims.exp * 1e6)
    except (*UNDECODABLE, OverflowError):
        return None


def _not_after(certificate: bytes) -> int:
    """The end of a certificate's validity (RFC 5280, 4.1). Raises ValueError, IndexError."""
    outer = _inside(certificate, 0, _SEQUENCE)
    fields = _inside(outer, 0, _SEQUENCE)
    at = _next(fields, 0) if fields[0] == _VERSION else 0
    if fields[at] != _INTEGER:
        raise ValueError("it has no serial number")
    for _ in range(3):  # serial number, signature algorithm, issuer
        at = _next(fields, at)
    validity = _inside(fields, at, _SEQUENCE)
    at = _next(validity, 0)
    text = _inside(validity, at, validity[at]).decode("ascii")
    if validity[at] == _UTC_TIME:
        text = f"{'20' if int(text[:2]) < 50 else '19'}{text}"
    elif validity[at] != _GENERAL_TIME:
        raise ValueError("its validity is not a time")
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1e6)


def _size(content: bytes, at: int) -> tuple[int, int]:
    """Where the content of an element begins, and where it ends."""
    size = content[at + 1]
    begin = at + 2
    if size & 0x80:
        count = size & 0x7F
        if not 1 <= count <= 4:
            raise ValueError("an element has no definite size")
        size = int.from_bytes(content[begin : begin + count], "big")
        begin += count
    if begin + size > len(content):
        raise ValueError("an element is cut short")
    return begin, begin + size


def _inside(content: bytes, at: int, tag: int) -> bytes:
    if content[at] != tag:
        raise ValueError(f"element {content[at]:#x} stands in the place of {tag:#x}")
    begin, end = _size(content, at)
    return content[begin:end]


def _next(content: bytes, at: int) -> int:
    return _size(content, at)[1]
