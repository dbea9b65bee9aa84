"""GridFTP beside the core: which URLs are its, what site check names, and servers that lie or never end."""

from __future__ import annotations

import base64
import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.transfer.http_origin import served
from tests.unit.transfer.test_transfer_trust import CASES, Certificates, certificates, check, refusal

from tidemill.cli.site.endpoints import examine_endpoints
from tidemill.config.site import SiteConfig
from tidemill.config.transfer import Endpoint
from tidemill.transfer.allowed import check_endpoint, is_remote, permit
from tidemill.transfer.contract import Direction, NotPermittedError, TransferError, Watch
from tidemill_gridftp.adapter import GridFtpAdapter
from tidemill_gridftp.gsi import ANSWER_CHARS_MAX

__all__ = ["certificates"]
FTP = Endpoint(url="gsiftp://ftp.example.org/pnfs/")


def test_doubled_slashes_are_one_and_the_port_is_the_schemes() -> None:
    check_endpoint(FTP)
    place = permit("gsiftp://ftp.example.org//pnfs//a%20b", [FTP], Direction.IN)
    assert (place.path, place.written, place.port) == ("/pnfs/a b", "/pnfs/a%20b", 2811)
    assert permit("gsiftp://ftp.example.org:2811/pnfs/a", [FTP], Direction.IN).port == 2811
    with pytest.raises(NotPermittedError):
        permit("gsiftp://ftp.example.org//data//x", [FTP], Direction.IN)
    with pytest.raises(NotPermittedError):
        permit("ftp://ftp.example.org/pnfs/a", [FTP], Direction.IN)
    assert is_remote("ftp://h/a")
    assert is_remote("GSIFTP://h/a")


def test_a_missing_client_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    config = SiteConfig(name="s", server="unix:/x", endpoints=[Endpoint(url="gsiftp://h.example.org/d/")])
    (found,) = examine_endpoints(config)
    assert (found.state, "globus-gass-copy-progs" in found.hint) == ("fail", True)


def test_an_answer_without_end_does_not_fill_the_agent() -> None:
    plug = socket.create_server(("127.0.0.1", 0))
    sent = [0]

    def answer() -> None:
        peer, _ = plug.accept()
        try:
            while True:
                sent[0] += peer.send(b"220-" + b"x" * 60_000 + b"\r\n")
        except OSError:  # hung up
            peer.close()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    url = f"ftp://127.0.0.1:{plug.getsockname()[1]}/x"
    place = permit(url, [Endpoint(url=url)], Direction.IN)
    with pytest.raises(TransferError, match=f"more than {ANSWER_CHARS_MAX} characters"):
        GridFtpAdapter().stat(place, Watch(deadline_s=5, stall_s=5))
    thread.join(10)
    plug.close()
    assert sent[0] < 100 * ANSWER_CHARS_MAX


class _Gsi(socketserver.StreamRequestHandler):
    """The beginning of a GridFTP session: a TLS handshake in ADAT commands."""

    timeout = 20

    def handle(self) -> None:
        server: Any = self.server
        come, go = ssl.MemoryBIO(), ssl.MemoryBIO()
        secure = server.tls.wrap_bio(come, go, server_side=True)
        self.wfile.write(b"220 ready\r\n")
        while line := self.rfile.readline(65536):
            verb, _, rest = line.strip().partition(b" ")
            if verb == b"AUTH":
                self.wfile.write(b"334 go on\r\n")
                continue
            come.write(base64.b64decode(rest))
            with contextlib.suppress(ssl.SSLWantReadError):
                secure.do_handshake()
            self.wfile.write(b"335 ADAT=" + base64.b64encode(go.read()) + b"\r\n")


class _GsiServer(socketserver.ThreadingTCPServer):
    daemon_threads = False  # closing waits for them
    allow_reuse_address = True
    tls: ssl.SSLContext

    def handle_error(self, *_: object) -> None:
        """Ignore clients that have left."""


@pytest.fixture
def gsi() -> Iterator[_GsiServer]:
    with served(_GsiServer(("127.0.0.1", 0), _Gsi)) as server:
        yield server


@pytest.mark.parametrize("case", CASES)
def test_a_certificate_of_a_gridftp_server_that_does_not_hold_is_told_by_its_reason(
    certificates: Certificates, gsi: _GsiServer, tmp_path: Path, case: str
) -> None:
    gsi.tls = certificates.context(case)
    url = f"gsiftp://localhost:{gsi.server_address[1]}/"
    check(refusal(Endpoint(url=url, ca=certificates.trusted(case)), tmp_path), case)
