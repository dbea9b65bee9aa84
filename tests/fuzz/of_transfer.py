"""What servers of data and of mail answer, where URLs point, and what our own server answers to its clients."""

from __future__ import annotations

import os
import socketserver
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.parser import Parser, file_of, folder
from tests.timing import timing

from tidemill.config.notify import Mail
from tidemill.config.transfer import Endpoint
from tidemill.errors import ConfigError, JobError, ProtocolError, SiteError, TidemillError
from tidemill.model.number import CHECKSUM_DIGITS, canonical_checksum
from tidemill.server.errors import AwayError, LaterError, RefusedError
from tidemill.server.notices.sender import Parcel
from tidemill.server.notify.mail import Mailer
from tidemill.transfer.allowed import check_endpoint, is_remote, permit
from tidemill.transfer.contract import Direction, RemoteFile, TransferError, Watch
from tidemill.transfer.file import is_location, local_path
from tidemill.transfer.http import HttpAdapter
from tidemill.transfer.s3 import S3Adapter
from tidemill.transfer.xrootd import XrootdAdapter
from tidemill.wire.api import JobPage
from tidemill.wire.notification import Digest, TrialNews
from tidemill.wire.server_connection import Connection

OBJECT_BYTES_MAX = 1 << 20
MESSAGE_MAX = 2_000
ALL = [
    Endpoint(url="https://dav.example.org/exp/"),
    Endpoint(url="root://*.example.org//store/user", access="both"),
    Endpoint(url="s3://bucket/in/", access="both"),
    Endpoint(url="https://[2001:db8::1]:2811/data", access="both"),
]


class _Says(socketserver.StreamRequestHandler):
    """Says the input, whatever it is asked, and hangs up."""

    timeout = 2

    def handle(self) -> None:
        server: Any = self.server
        if server.listens_first:
            self.rfile.readline(65536)
        try:
            self.wfile.write(server.content)
            self.wfile.flush()
            self.request.shutdown(1)
            while self.rfile.read(65536):
                pass
        except OSError:
            return


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    content = b""
    listens_first = True

    def handle_error(self, *_: object) -> None:
        """A client that went away."""


@cache
def _server(listens_first: bool) -> _Server:
    server = _Server(("127.0.0.1", 0), _Says)
    server.listens_first = listens_first
    threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.05}).start()
    return server


def _place(scheme: str, content: bytes, *, listens_first: bool) -> RemoteFile:
    server = _server(listens_first)
    server.content = content
    base = f"{scheme}://127.0.0.1:{server.server_address[1]}/"
    return permit(base + "data/file", [Endpoint(url=base, access="both")], Direction.IN)


def _watch() -> Watch:
    return Watch(deadline_s=20, stall_s=5)


def _dav(content: bytes) -> object:
    """What an HTTP server says to HEAD, GET, DELETE and MOVE."""
    place = _place("http", content, listens_first=True)
    adapter, found = HttpAdapter([place.endpoint]), []
    target = folder() / "came"
    target.unlink(missing_ok=True)
    for act in (
        lambda: adapter.remove(place, _watch()), lambda: adapter.rename(place, place, _watch()),
        lambda: adapter.checksum(place, "adler32", _watch()),
        lambda: adapter.read(place, target, adapter.stat(place, _watch()), _watch(), {"adler32"}),
    ):  # fmt: skip
        try:
            found.append(act())
        except TransferError as error:
            found.append(error.message[:10])
    return found


def _checked(message: str) -> str:
    """The beginning of an error's message, which people read in logs and on pages."""
    assert len(message) < MESSAGE_MAX, "an answer was repeated whole"
    assert message.isprintable(), "an answer was repeated as it came"
    return message[:10]


@cache
def _mailer(login: bool) -> Mailer:
    """One without login, and one with it, which no configuration lets go without TLS."""
    place = f"smtp+plain://127.0.0.1:{_server(False).server_address[1]}"
    with timing(server={"MAILS_PER_MIN_MAX": 10_000}):
        made = Mailer(Mail(server=place, sender="tide@example.org"))
    made._login = ("tide", "secret") if login else None
    return made


def _smtp(content: bytes) -> object:
    """What a mail server replies, all at once."""
    _server(False).content = content
    found = list[object]()
    digest = Digest(id="5f.1", server="here", made_us=1, items=[TrialNews(first_us=1, last_us=1)])
    for login in (False, True):
        mailer = _mailer(login)
        mailer._sent_s.clear()
        try:
            mailer.send(Parcel("ada@example.org", digest))
            found.append(True)
        except (RefusedError, LaterError, AwayError) as error:
            found.append((type(error).__name__, _checked(error.message)))
        finally:
            mailer.release()
    return found


@cache
def _s3() -> tuple[S3Adapter, RemoteFile]:
    """An S3 client, which takes a second to make, and where it asks."""
    keys = file_of(b"[default]\naws_access_key_id = a\naws_secret_access_key = b\n", "keys")
    service = f"http://127.0.0.1:{_server(True).server_address[1]}"
    endpoint = Endpoint(url="s3://bucket/", service=service, credentials_file=keys, access="both")
    return S3Adapter(), permit("s3://bucket/data/file", [endpoint], Direction.IN)


def _objects(content: bytes) -> object:
    """What an S3 service says to HEAD, DELETE, PUT and GET."""
    adapter, place = _s3()
    _server(True).content = content
    target, source, found = folder() / "object", file_of(b"five\n", "source"), list[object]()

    def read() -> object:
        stat = adapter.stat(place, _watch())
        assert stat.size_bytes >= 0, "less than nothing"
        assert stat.version.isprintable(), "a version of several lines"
        assert all(canonical_checksum(name, told) == told for name, told in stat.checksums.items()), (
            "no checksum"
        )
        if stat.size_bytes > OBJECT_BYTES_MAX:  # as a site's cap
            return stat
        return adapter.read(place, target, stat, _watch(), {"sha256"})

    for act in (
        lambda: adapter.checksum(place, "etag", _watch()), lambda: adapter.remove(place, _watch()),
        lambda: adapter.write(source, place, _watch(), {"sha256": "5f" * 32}), read,
    ):  # fmt: skip
        try:
            found.append(act())
        except TransferError as error:
            found.append(_checked(error.message))
    return found


@cache
def _xrdfs() -> Path:
    """A client program of XRootD that prints the input; its first byte is the exit status."""
    said = folder() / "said"
    said.write_bytes(b"0")
    client = folder() / "bin" / "xrdfs"
    client.parent.mkdir()
    client.write_text(
        f"#!/bin/sh\ntail -c +2 {said}\nexit $(head -c 1 {said} | tr -dc 0-9 | sed 's/^$/0/')\n"
    )
    client.chmod(0o755)
    os.environ["PATH"] = f"{client.parent}:{os.environ['PATH']}"
    return said


def _xrootd(content: bytes) -> object:
    _xrdfs().write_bytes(content)
    base = "root://127.0.0.1:1094//data"
    endpoint = Endpoint(url=base, redirects=["root://127.0.0.2//data"])
    place = permit(base + "/file", [endpoint], Direction.IN)
    adapter = XrootdAdapter()
    try:
        return [adapter.stat(place, _watch()), adapter.checksum(place, "adler32", _watch())]
    except TransferError as error:
        return error.message[:10]


def _url(content: bytes) -> object:
    """Whatever a URL says, what is permitted lies below the endpoint that permits it."""
    url = content.decode(errors="surrogateescape")
    is_remote(url)
    if is_location(url):
        with suppress(SiteError):
            local_path(url)
    place = permit(url, ALL, Direction.IN)
    assert place.path.startswith(("/exp/", "/store/user", "/in/", "/data")), "it leaves the endpoint"
    assert ".." not in place.path.split("/"), "it climbs"
    assert "\n" not in place.path + place.host, "it is two lines"
    return place


def _endpoint(content: bytes) -> object:
    endpoint = Endpoint(url=content.decode(errors="replace"))
    check_endpoint(endpoint)
    return endpoint


def _checksum(content: bytes) -> object:
    text = content.decode(errors="replace")
    found = [canonical_checksum(each, text) for each in (*CHECKSUM_DIGITS, "none")]
    for algorithm, each in zip(CHECKSUM_DIGITS, found, strict=False):
        assert each is None or (len(each) == CHECKSUM_DIGITS[algorithm] and int(each, 16) == int(text, 16)), (
            "another sum"
        )
    return found


def _api(content: bytes) -> object:
    """What a server of ours, or something in its place, says to a client."""
    server = _server(True)
    server.content = content
    connection = Connection(f"http://127.0.0.1:{server.server_address[1]}", timeout_s=5)
    with suppress(TidemillError):
        list(connection.lines("/v1/changes"))
    try:
        return connection.call("GET", "/v1/jobs", JobPage).jobs
    finally:
        connection.close()


PARSERS = [
    Parser("http-answer", _dav),
    Parser("s3-answer", _objects),
    Parser("smtp-answer", _smtp),
    Parser("xrootd-answer", _xrootd),
    Parser("url", _url, (SiteError,)),
    Parser("endpoint", _endpoint, (ConfigError,)),
    Parser("checksum", _checksum),
    Parser("api-answer", _api, (SiteError, ProtocolError, ConfigError, JobError)),
]
