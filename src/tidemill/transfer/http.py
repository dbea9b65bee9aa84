"""http(s):// and dav(s)://, with ranges, digests and WebDAV's names.

Resumes by `Range` with `If-Range` (RFC 9110, 13.1.5 and 14), asks for checksums by `Want-Digest` (RFC 3230, which
XRootD, dCache and StoRM answer), makes directories by MKCOL and gives names by MOVE (RFC 4918). Redirections are
followed here, each judged by the allow-list; a token goes only to the endpoint that it was configured for.
"""

from __future__ import annotations

import base64
import http.client
import os
import queue
import socket
import ssl
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from io import FileIO
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import quote, urljoin

from tidemill import clock
from tidemill.config.transfer import Endpoint
from tidemill.model.failure import FailureClass
from tidemill.model.number import whole
from tidemill.net.http import ExchangeError, HttpAnswer, HttpServer
from tidemill.transfer import allowed, credentials
from tidemill.transfer.checksum import Growing, Summer, canonical, summer
from tidemill.transfer.contract import (
    DIRECTORIES_MAX,
    Direction,
    RemoteFile,
    Stat,
    TooLargeError,
    TransferError,
    Watch,
    of_os_error,
)

REDIRECTS_MAX = 8
PIECE_BYTES = 1 << 18
"""Progress is reported, and a cancel noticed, after each piece of this size."""

PIECES_MAX = 8
"""Pieces between the socket and the checksum's thread."""

WAIT_S = 30.0
"""The time limit for a connection or an answer; the watch handles stalls of the body."""

INVITED_BYTES_MIN = 1 << 20
"""A body of this size waits until the server asks for it (`Expect`): one that refuses or redirects gets none of it."""

_DIGESTS = {"adler32": "adler32", "sha256": "sha-256", "md5": "md5"}  # RFC 3230, RFC 5843


class _Reply(NamedTuple):
    """What a server answered, and which place of it: redirections lead from one to another."""

    place: RemoteFile
    answer: HttpAnswer


class HttpAdapter:
    """See `contract.Adapter`. `endpoints`: where redirections may lead."""

    resumes = True
    tells_at_once = True
    in_order = True

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints
        self._servers: dict[tuple[object, ...], HttpServer] = {}  #: with connections between two steps
        self._lock = threading.Lock()

    def stat(self, place: RemoteFile, watch: Watch) -> Stat:
        """Size, version and checksums from the headers of HEAD, or of GET if HEAD states no length."""
        headers = {"Want-Digest": "adler32, sha-256", "Accept-Encoding": "identity"}
        answer = self._ask(place, "HEAD", watch, headers).answer
        if answer.status == 200 and "Content-Length" not in answer.headers:
            answer.close()  # Apache 2.4 omits the length of an empty file there
            answer = self._ask(place, "GET", watch, headers).answer
        with closing(answer):
            if answer.status != 200:
                raise _refusal(place, answer, "query")
            length = answer.headers.get("Content-Length", "")
            size_bytes = 0 if _is_chunked(answer) else whole(length)
            if size_bytes is None:
                raise TransferError(
                    f"`{place.shown}`: the server reports no size (`Content-Length: {length}`)",
                    transient=False,
                )
            checksums = _digests(answer)
            validator = _validator(answer) or " ".join(
                f"{name}:{each}" for name, each in sorted(checksums.items())
            )
            if _is_chunked(answer):
                version = f" {validator or clock.now_us()}"  # without a word of the server's, it may differ each time
                return Stat(size_bytes=0, version=version, checksums=checksums, is_told=False)
            return Stat(size_bytes=size_bytes, version=f"{length} {validator}", checksums=checksums)

    def read(
        self, place: RemoteFile, target: Path, stat: Stat, watch: Watch, needed: AbstractSet[str]
    ) -> dict[str, str]:
        """Fetch the file; a range request resumes a partial one if a strong entity tag proves it unchanged."""
        if not stat.is_told:
            return self._read_untold(place, target, stat, watch, needed)
        have = target.stat().st_size if target.exists() else 0
        headers = {"Want-Digest": "adler32", "Accept-Encoding": "identity"}
        validator = stat.version.partition(" ")[2]
        if 0 < have < stat.size_bytes and validator.startswith('"'):
            headers |= {"Range": f"bytes={have}-", "If-Range": validator}
        elif have:
            target.unlink()
            have = 0
        reply = self._ask(place, "GET", watch, headers)
        with closing(reply.answer) as answer:
            if answer.status == 200:
                have = 0
                target.unlink(missing_ok=True)  # sums are made of what the file holds: no earlier bytes
            elif answer.status != 206 or not _continues(answer, have):
                raise _refusal(place, answer, "read")
            size, version = have + _length(answer), _validator(answer)
            if size != stat.size_bytes or (version and f"{size} {version}" != stat.version):
                target.unlink(missing_ok=True)
                raise TransferError(f"`{place.shown}` has changed while it was read")
            at_hand = {each: summer(each) for each in needed & {"adler32"} if not have}  # costs nothing there
            with Growing(target, needed - at_hand.keys()) as growing:
                self._take(reply, target, have, watch, at_hand.values())
                return growing.end() | {name: each.hexdigest() for name, each in at_hand.items()}

    def _read_untold(
        self, place: RemoteFile, target: Path, stat: Stat, watch: Watch, needed: AbstractSet[str]
    ) -> dict[str, str]:
        """All of a file whose size is not known before. Raises TooLargeError."""
        target.unlink(missing_ok=True)
        reply = self._ask(place, "GET", watch, {"Accept-Encoding": "identity"})
        with closing(reply.answer) as answer:
            if answer.status != 200:
                raise _refusal(place, answer, "read")
            version = _validator(answer)
            if not _is_chunked(answer) or (version and f" {version}" != stat.version):
                raise TransferError(f"`{place.shown}` has changed while it was read")
            try:
                with Growing(target, needed) as growing:
                    with target.open("wb", buffering=0) as file:
                        _copy(answer, file, range(stat.size_bytes + 1), watch, ())
                    if target.stat().st_size <= stat.size_bytes:
                        return growing.end()
            except ExchangeError as error:
                raise _broken(reply.place, "read", error.reason) from error
            except OSError as error:
                raise of_os_error(error, f"write `{target}`") from error
        target.unlink()
        raise TooLargeError(f"`{place.shown}` has more than {stat.size_bytes} bytes", transient=False)

    def write(
        self, source: Path, place: RemoteFile, watch: Watch, known: Mapping[str, str]
    ) -> dict[str, str]:
        """Write the file with PUT; makes missing directories (MKCOL) and tries once more. Returns no checksums."""
        for attempt in range(2):
            with FileIO(source) as file:
                answer = self._ask(
                    place, "PUT", watch, {"Content-Type": "application/octet-stream"}, file
                ).answer
            with closing(answer):
                if answer.status in (200, 201, 204):
                    return {}
                if attempt or answer.status not in (404, 409) or place.query:
                    raise _refusal(place, answer, "write")
            self._make_directories(place, watch)
        raise AssertionError("the second attempt ends above")

    def rename(self, place: RemoteFile, final: RemoteFile, watch: Watch) -> None:
        """Give a file that `write` made its final name."""
        answer = self._ask(place, "MOVE", watch, {"Destination": _absolute(final), "Overwrite": "T"}).answer
        with closing(answer):
            if answer.status in (405, 501):
                raise TransferError(
                    f"failed to name `{final.shown}`: the server does not know MOVE",
                    hint=f"set `rename = false` for the endpoint `{final.endpoint.url}`: then outputs are written "
                    "under their final names at once",
                    transient=False,
                )
            if answer.status not in (200, 201, 204):
                raise _refusal(final, answer, "name")
        if _target(final) != final.path:
            self._look_for(final, watch)

    def _look_for(self, final: RemoteFile, watch: Watch) -> None:
        """XRootD 5.5.3 takes the `Destination` of MOVE as it stands, percent signs and all."""
        try:
            self.stat(final, watch)
        except TransferError as error:
            if not error.missing:
                raise
            self.remove(_with_path(final, _target(final)), watch)
            raise TransferError(
                f"failed to name `{final.shown}`: the server gave it another name, and it is removed again",
                hint=f"set `rename = false` for the endpoint `{final.endpoint.url}`, or use names without blanks and "
                "such: this server does not decode them",
                transient=False,
            ) from error

    def checksum(self, place: RemoteFile, algorithm: str, watch: Watch) -> str | None:
        """The checksum that the server states in the headers of HEAD (`Digest`); None if it states none."""
        answer = self._ask(place, "HEAD", watch, {"Want-Digest": _DIGESTS[algorithm]}).answer
        with closing(answer):
            return _digests(answer).get(algorithm) if answer.status == 200 else None

    def digest(self, place: RemoteFile, stat: Stat, watch: Watch) -> str | None:
        """SHA-256 of the file, read back with GET and not stored."""
        answer = self._ask(place, "GET", watch, {"Accept-Encoding": "identity"}).answer
        with closing(answer):
            if answer.status != 200:
                raise _refusal(place, answer, "read back")
            try:
                return _sum_up(answer, watch)
            except ExchangeError as error:
                raise _broken(place, "read back", error.reason) from error

    def remove(self, place: RemoteFile, watch: Watch) -> None:
        """Delete the file; a missing file is not an error."""
        answer = self._ask(place, "DELETE", watch, {}).answer
        with closing(answer):
            if answer.status not in (200, 202, 204, 404, 410):
                raise _refusal(place, answer, "delete")

    def rest(self) -> None:
        """Close the connections that were kept between the steps of a move."""
        with self._lock:
            servers, self._servers = self._servers, {}
        for each in servers.values():
            each.close()

    # ---- one request ----

    def _ask(
        self,
        place: RemoteFile,
        method: str,
        watch: Watch,
        headers: dict[str, str],
        body: FileIO | None = None,
    ) -> _Reply:
        """The answer of the last server of a chain of redirections. It is the caller's to close."""
        direction = Direction.IN if method in ("GET", "HEAD") else Direction.OUT
        if body is not None:
            size_bytes = os.fstat(body.fileno()).st_size
            headers = headers | {"Content-Length": str(size_bytes)}
            if size_bytes >= INVITED_BYTES_MIN:
                headers["Expect"] = "100-continue"
        for _ in range(REDIRECTS_MAX):
            watch.check()
            answer = self._exchange(place, method, headers, body, watch)
            location = answer.headers.get("Location")
            if answer.status == 417 and "Expect" in headers:
                del headers["Expect"]
                answer.close()
            elif answer.status in (301, 302, 303, 307, 308) and location:
                answer.close()
                place = allowed.redirected(_joined(place, location), place, self._endpoints, direction)
            else:
                return _Reply(place, answer)
        raise TransferError(
            f"`{place.shown}`: more than {REDIRECTS_MAX} redirections",
            transient=False,
            failure=direction.failure,
        )

    def _exchange(
        self, place: RemoteFile, method: str, headers: Mapping[str, str], body: FileIO | None, watch: Watch
    ) -> HttpAnswer:
        bearer = _bearer(place)
        if bearer is not None:
            headers = {**headers, "Authorization": f"Bearer {bearer}"}
        pieces = None if body is None else _pieces(body, watch)
        try:
            server = self._server(place, min(WAIT_S, watch.stall_s))
            return server.ask(method, _target(place), headers=headers, body=pieces, bound=watch)
        except ExchangeError as error:
            raise _broken(place, method, error.reason) from error

    def _server(self, place: RemoteFile, wait_s: float) -> HttpServer:
        tls = credentials.tls(place) if place.scheme in ("https", "davs") else None
        host, port = place.host.strip("[]"), place.port
        with self._lock:
            found = self._servers.get((host, port, wait_s, tls))
            if found is None:
                found = HttpServer(host, port, timeout_s=wait_s, tls=tls)
                self._servers[host, port, wait_s, tls] = found
            return found

    def _take(
        self, reply: _Reply, target: Path, have: int, watch: Watch, summers: Collection[Summer]
    ) -> None:
        """Write the body behind what is there, and sum it up."""
        size = have + _length(reply.answer)
        try:
            with target.open("r+b" if have else "wb", buffering=0) as file:
                file.truncate(have)
                file.seek(have)
                _copy(reply.answer, file, range(have, size), watch, summers)
        except ExchangeError as error:
            if not isinstance(error.reason, http.client.IncompleteRead):
                raise _broken(reply.place, "read", error.reason) from error
        except OSError as error:
            raise of_os_error(error, f"write `{target}`") from error
        now = target.stat().st_size
        if now != size:
            raise TransferError(
                f"failed to read `{reply.place.shown}`: the connection ended after {now} of {size} bytes"
            )

    def _make_directories(self, place: RemoteFile, watch: Watch) -> None:
        names = place.path.strip("/").split("/")[:-1][:DIRECTORIES_MAX]
        for depth in range(1, len(names) + 1):
            folder = _with_path(place, "/" + "/".join(names[:depth]) + "/")
            try:
                answer = self._ask(folder, "MKCOL", watch, {}).answer
            except TransferError as error:
                if error.failure is FailureClass.CREDENTIAL:
                    raise
                continue
            answer.close()  # if it failed, the PUT that follows reports why


class _Follower:
    """Makes SHA-256 in a thread beside the one that reads: both of them leave Python's lock while they work."""

    def __init__(self) -> None:
        self._pieces: queue.Queue[bytes | None] = queue.Queue(PIECES_MAX)
        self._summer = summer("sha256")
        self._thread = threading.Thread(target=self._work, name="checksum", daemon=True)
        self._thread.start()

    def take(self, piece: bytes) -> None:
        """The next piece."""
        self._pieces.put(piece)

    def end(self) -> str:
        """The checksum of all pieces."""
        self._pieces.put(None)
        self._thread.join()
        return self._summer.hexdigest()

    def _work(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self._summer.update(piece)


def _copy(
    answer: HttpAnswer, file: IO[bytes], span: range, watch: Watch, summers: Collection[Summer]
) -> None:
    """Write these bytes of a file, or as many as come, and sum them up."""
    at = span.start
    while at < span.stop and (piece := answer.read(min(PIECE_BYTES, span.stop - at))):
        for each in summers:
            each.update(piece)
        view = memoryview(piece)
        while view:
            view = view[file.write(view) :]
        at += len(piece)
        watch.tell(at)


def _sum_up(answer: HttpAnswer, watch: Watch) -> str:
    """SHA-256 of all that comes, which is kept nowhere."""
    follower = _Follower()
    length, done = _length(answer), 0
    try:
        while done < length:
            piece = answer.read(min(PIECE_BYTES, length - done))
            if not piece:
                raise TransferError(f"the connection ended after {done} of {length} bytes")
            follower.take(piece)
            done += len(piece)
            watch.tell(done)
    finally:
        digest = follower.end()
    return digest


def _pieces(body: FileIO, watch: Watch) -> Iterator[memoryview]:
    """A file as it is sent, from its beginning; each piece is sent before the next one is asked for."""
    body.seek(0)
    buffer = memoryview(bytearray(PIECE_BYTES))
    moved = 0
    while count := body.readinto(buffer):
        yield buffer[:count]
        moved += count
        watch.tell(moved)


def _bearer(place: RemoteFile) -> str | None:
    bearer = credentials.token(place)
    if bearer is not None and place.scheme in ("http", "dav"):
        raise credentials.credential_error(
            place, "a token would travel without encryption", "use `https://`, or no token"
        )
    return bearer


def _target(place: RemoteFile) -> str:
    return quote(place.path, safe="/!$&'()*+,;=:@~") + (f"?{place.query}" if place.query else "")


def _absolute(place: RemoteFile) -> str:
    scheme = {"dav": "http", "davs": "https"}.get(place.scheme, place.scheme)
    return f"{scheme}://{place.host}:{place.port}{_target(place)}"


def _joined(place: RemoteFile, location: str) -> str:
    try:
        return urljoin(_absolute(place), location)
    except ValueError as error:
        raise TransferError(
            f"`{place.shown}` sends us on to `{ascii(location)[:200]}`, which is not a URL", transient=False
        ) from error


def _with_path(place: RemoteFile, path: str) -> RemoteFile:
    return RemoteFile(
        url=f"{place.scheme}://{place.host}:{place.port}{quote(path)}",
        scheme=place.scheme,
        host=place.host,
        port=place.port,
        path=path,
        query="",
        endpoint=place.endpoint,
    )


def _length(answer: HttpAnswer) -> int:
    size_bytes = whole(answer.headers.get("Content-Length", ""))
    if size_bytes is None:
        raise TransferError("the server reports no size of what it sends", transient=False)
    return size_bytes


def _is_chunked(answer: HttpAnswer) -> bool:
    """Whether the server states no size but marks the end of the body, so that a truncated one is noticed."""
    is_chunked = answer.headers.get("Transfer-Encoding", "").strip().lower() == "chunked"
    return is_chunked and "Content-Length" not in answer.headers


def _validator(answer: HttpAnswer) -> str:
    """A strong entity tag, else the date of the last change."""
    tag = answer.headers.get("ETag", "")
    return tag if tag.startswith('"') else answer.headers.get("Last-Modified", "")


def _continues(answer: HttpAnswer, have: int) -> bool:
    return answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _digests(answer: HttpAnswer) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in ",".join(answer.headers.getlist("Digest")).split(","):
        name, _, text = each.strip().partition("=")
        if name.lower() == "sha-256":
            with suppress(ValueError):
                text = base64.b64decode(text, validate=True).hex()
        algorithm = {word: ours for ours, word in _DIGESTS.items()}.get(name.lower())
        value = None if algorithm in (None, "md5") else canonical(str(algorithm), text)
        if algorithm is not None and value is not None:
            found[algorithm] = value
    return found


def _broken(place: RemoteFile, verb: str, error: Exception) -> TransferError:
    """A connection that failed or ended; TLS that does not trust, or is not trusted."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return credentials.credential_error(
            place,
            f"its certificate is not trusted: {error.verify_message}",
            "name its certification authority in `ca` of the endpoint",
        )
    if isinstance(error, ssl.SSLError) and "ALERT" in str(error).upper().replace(" ", "_"):
        return credentials.credential_error(place, f"TLS: {error.reason or error}")
    if isinstance(error, socket.gaierror):
        return TransferError(
            f"failed to reach `{place.shown}`: there is no host `{place.host}`",
            hint="check the URL, and the name service",
        )
    words = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return TransferError(
        f"failed to {verb.lower()} `{place.shown}`: {words}",
        hint="the server or the network is unreachable: it is tried again",
    )


def _refusal(place: RemoteFile, answer: HttpAnswer, verb: str) -> TransferError:
    status = answer.status
    what = f"failed to {verb} `{place.shown}`: the server said {status} {answer.reason}"
    if status in (401, 403):
        return credentials.credential_error(place, f"the server said {status} {answer.reason}")
    if status in (404, 410):
        return TransferError(what, transient=False, missing=True)
    if status == 507:
        return TransferError(what, hint="there is no space left there: free some, or wait until others do")
    transient = status >= 500 or status in (408, 423, 425, 429)
    return TransferError(what, transient=transient)
