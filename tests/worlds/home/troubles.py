"""Troubles of a site for seeded fault tests: each begins, lasts for a while, and is over; see `faults`."""

from __future__ import annotations

import errno
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.worlds.home.faults import Trouble
from tests.worlds.home.world import World
from tests.worlds.node.faulty_fs import HANGS, FaultyFs

from tidemill.client.authority import Authority, Wanted

STORAGE = {
    "EIO on bundles": ("*/bundle/*", errno.EIO),
    "ESTALE on bundles": ("*/bundle/*", errno.ESTALE),
    "hung bundles": ("*/bundle/*", HANGS),
    "half-made bundle": ("*/bundle/*.idx", errno.EIO),
    "EIO on journals": ("*/journal/*", errno.EIO),
    "ESTALE on journals": ("*/journal/*", errno.ESTALE),
    "hung journals": ("*/journal/*", HANGS),
}
"""What fails below a fleet directory: the paths, and with which error."""


@dataclass
class StorageTrouble:
    """Calls on paths of a file system fail or hang."""

    name: str
    fs: FaultyFs

    def begin(self, it: World) -> None:
        glob, number = STORAGE[self.name]
        self.fs.fail(glob, number)

    def end(self, it: World) -> None:
        self.fs.heal()


@dataclass
class ExpiredProxy:
    """The only credential for inputs has expired, until it is renewed."""

    pem: Path
    name: str = "expired proxy"

    def begin(self, it: World) -> None:
        write_proxy(self.pem, ends=datetime(2026, 1, 1, tzinfo=UTC))

    def end(self, it: World) -> None:
        write_proxy(self.pem, ends=datetime.now(UTC) + timedelta(days=1))


def all_troubles(fs: FaultyFs, proxy: Path) -> dict[str, Trouble]:
    """By name."""
    known: list[Trouble] = [StorageTrouble(name, fs) for name in STORAGE]
    return {each.name: each for each in (*known, ExpiredProxy(proxy))}


def write_proxy(path: Path, *, ends: datetime) -> Path:
    """A certificate with its key that ends then."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(datetime(2025, 1, 1, tzinfo=UTC)).not_valid_after(ends)
    pem = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    pem += key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    temporary = path.with_suffix(".new")
    temporary.touch(mode=0o600)
    temporary.write_bytes(pem)
    temporary.rename(path)
    return path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def https_server(place: Path) -> Iterator[tuple[str, Path, Path]]:
    """An HTTPS server below a directory: its URL, the directory behind it, the CA of its certificate."""
    authority = Authority.create(place / "ca", name="CA", days=2)
    issued = authority.issue(Wanted(role="server", name="127.0.0.1", days=1), place / "certs")
    (place / "data").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(place / "data")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}", place / "data", authority.certificate_path
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
