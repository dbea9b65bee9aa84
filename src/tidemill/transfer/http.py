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
import re
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

import msgspec

from tidemill import clock
from tidemill.config.transfer import Endpoint
from tidemill.files import open_private
from tidemill.model.failure import FailureClass
from tidemill.model.number import canonical_checksum, whole
from tidemill.net.http_exchange import ExchangeError, HttpAnswer, HttpServer
from tidemill.transfer import allowed, credentials
from tidemill.transfer.allowed import PATH_SAFE
from tidemill.transfer.checksum import Growing, Summer, summer
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

_HEAD_REFUSED = (400, 401, 403, 405, 501)
"""Statuses of HEAD after which GET may still be answered."""

_ANY_PATH = "".join(map(chr, range(0x21, 0x7F)))
_ANY_QUERY = _ANY_PATH.translate(dict.fromkeys(map(ord, '"<>\\')))

_SIGNATURE = re.compile(
    r"(?i)(?:^|&)(?:x-[a-z]+-[a-z-]+|signature|apikey|(?:[a-z_-]+[_-])?(?:sig|hmac|policy|token|authz?|key))="
)
"""Parameters in a query that authorize the URL by themselves: S3, Azure, Swift, CloudFront, macaroons."""

_DIGESTS = {"adler32": "adler32", "sha256": "sha-256", "md5": "md5"}  # RFC 3230, RFC 5843


class _Reply(NamedTuple):
    """What a server answered, and which place of it: redirections lead from one to another."""

    place: RemoteFile
    answer: HttpAnswer


class HttpAdapter:
    """Moves files over HTTP and WebDAV: a `contract.Adapter`. `endpoints`: where redirections may lead."""

    resumes = True
    tells_at_once = True
    in_order = True

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints
        self._servers: dict[tuple[object, ...], HttpServer] = {}  #: with connections between two steps
        self._lock = threading.Lock()

    def stat(self, place: RemoteFile, watch: Watch) -> Stat:
        """Size, version and checksums from the headers of HEAD, or of GET if HEAD is refused or states no length."""
        reply = self._asked(place, watch)
        with closing(reply.answer) as answer:
            if answer.status not in (200, 206):
                raise _refusal(reply, "query")
            length = _told_length(answer)
            is_untold = not length and _is_chunked(answer)
            size_bytes = 0 if is_untold else whole(length)
            if size_bytes is None:
                raise TransferError(
                    f"{reply.place.named}: the server reports no size (`Content-Length: {length}`)",
                    transient=False,
                )
            checksums = _digests(answer)
            validator = _validator(answer) or " ".join(
                f"{name}:{each}" for name, each in sorted(checksums.items())
            )
            if is_untold:
                version = f" {validator or clock.now_us()}"  # without a word of the server's, it may differ each time
                return Stat(size_bytes=0, version=version, checksums=checksums, is_told=False)
            return Stat(size_bytes=size_bytes, version=f"{length} {validator}", checksums=checksums)

    def _asked(self, place: RemoteFile, watch: Watch) -> _Reply:
        """The answer whose headers describe the file. A signed URL is valid for one method only, and some servers lack
        HEAD: then ask for the file's first byte."""
        headers = {"Want-Digest": "adler32, sha-256", "Accept-Encoding": "identity"}
        reply = self._ask(place, "HEAD", watch, headers)
        if reply.answer.status in _HEAD_REFUSED:
            reply.answer.close()
            reply = self._ask(place, "GET", watch, headers | {"Range": "bytes=0-0"})
            status = reply.answer.status
            if status in (200, 401, 403, 404, 410) or (status == 206 and _told_length(reply.answer)):
                return reply
        elif reply.answer.status != 200 or "Content-Length" in reply.answer.headers:
            return reply
        reply.answer.close()  # Apache 2.4 omits the length of an empty file at HEAD; such a file has no first byte
        return self._ask(place, "GET", watch, headers)

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
                raise _refusal(reply, "read")
            told, version = _size_of(answer, have), _validator(answer)
            size = stat.size_bytes if told is None else told
            if size != stat.size_bytes or (version and f"{size} {version}" != stat.version):
                target.unlink(missing_ok=True)
                raise TransferError(f"{reply.place.named} has changed while it was read")
            at_hand = {each: summer(each) for each in needed & {"adler32"} if not have}  # costs nothing there
            with Growing(target, needed - at_hand.keys()) as growing:
                self._append_body(reply, target, range(have, size), watch, at_hand.values())
                return growing.end() | {name: each.hexdigest() for name, each in at_hand.items()}

    def _read_untold(
        self, place: RemoteFile, target: Path, stat: Stat, watch: Watch, needed: AbstractSet[str]
    ) -> dict[str, str]:
        """All of a file whose size is not known before. Raises TooLargeError."""
        target.unlink(missing_ok=True)
        reply = self._ask(place, "GET", watch, {"Accept-Encoding": "identity"})
        with closing(reply.answer) as answer:
            if answer.status != 200:
                raise _refusal(reply, "read")
            version = _validator(answer)
            if not _is_chunked(answer) or (version and f" {version}" != stat.version):
                raise TransferError(f"{reply.place.named} has changed while it was read")
            try:
                with Growing(target, needed) as growing:
                    with open_private(target, "wb", buffering=0) as file:
                        _copy(answer, file, range(stat.size_bytes + 1), watch, ())
                    if target.stat().st_size <= stat.size_bytes:
                        return growing.end()
            except ExchangeError as error:
                raise _broken(reply.place, "read", error) from error
            except OSError as error:
                raise of_os_error(error, f"write `{target}`") from error
        target.unlink()
        raise TooLargeError(f"{reply.place.named} has more than {stat.size_bytes} bytes", transient=False)

    def write(
        self, source: Path, place: RemoteFile, watch: Watch, known: Mapping[str, str]
    ) -> dict[str, str]:
        """Write the file with PUT; makes missing directories (MKCOL) and tries once more. Returns no checksums."""
        for attempt in range(2):
            with FileIO(source) as file:
                reply = self._ask(place, "PUT", watch, {"Content-Type": "application/octet-stream"}, file)
            with closing(reply.answer) as answer:
                if answer.status in (200, 201, 204):
                    return {}
                if attempt or answer.status not in (404, 409) or place.query:
                    raise _refusal(reply, "write")
            self._make_directories(place, watch)
        raise AssertionError("the second attempt ends above")

    def rename(self, place: RemoteFile, final: RemoteFile, watch: Watch) -> None:
        """Give a file that `write` made its final name."""
        reply = self._ask(place, "MOVE", watch, {"Destination": _absolute(final), "Overwrite": "T"})
        with closing(reply.answer) as answer:
            if answer.status in (405, 501):
                raise TransferError(
                    f"failed to name `{final.shown}`: the server does not know MOVE",
                    hint=f"set `rename = false` for the endpoint `{final.endpoint.url}`: then outputs are written "
                    "under their final names at once",
                    transient=False,
                )
            if answer.status not in (200, 201, 204):
                raise _refusal(reply._replace(place=_named_as(reply.place, final)), "name")
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
        reply = self._ask(place, "GET", watch, {"Accept-Encoding": "identity"})
        with closing(reply.answer) as answer:
            if answer.status != 200:
                raise _refusal(reply, "read back")
            try:
                return _sum_up(answer, watch)
            except ExchangeError as error:
                raise _broken(reply.place, "read back", error) from error

    def remove(self, place: RemoteFile, watch: Watch) -> None:
        """Delete the file; a missing file is not an error."""
        reply = self._ask(place, "DELETE", watch, {})
        with closing(reply.answer) as answer:
            if answer.status not in (200, 202, 204, 404, 410):
                raise _refusal(reply, "delete")

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
            f"{place.named}: more than {REDIRECTS_MAX} redirections",
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
            raise _broken(place, method, error) from error

    def _server(self, place: RemoteFile, wait_s: float) -> HttpServer:
        tls = credentials.tls(place) if place.scheme in ("https", "davs") else None
        host, port = place.host.strip("[]"), place.port
        with self._lock:
            server = self._servers.get((host, port, wait_s, tls))
            if server is None:
                server = HttpServer(host, port, timeout_s=wait_s, tls=tls)
                self._servers[host, port, wait_s, tls] = server
            return server

    def _append_body(
        self, reply: _Reply, target: Path, span: range, watch: Watch, summers: Collection[Summer]
    ) -> None:
        """Append the body, which holds these bytes of the file, and sum it up."""
        have, size = span.start, span.stop
        upto = size + _is_chunked(reply.answer)  # a chunked body may go on: one more byte shows that
        try:
            with open_private(target, "r+b" if have else "wb", buffering=0) as file:
                file.truncate(have)
                file.seek(have)
                _copy(reply.answer, file, range(have, upto), watch, summers)
        except ExchangeError as error:
            if not isinstance(error.reason, http.client.IncompleteRead):
                raise _broken(reply.place, "read", error) from error
        except OSError as error:
            raise of_os_error(error, f"write `{target}`") from error
        now = target.stat().st_size
        if now > size:
            target.unlink()
            raise TransferError(f"{reply.place.named} has changed while it was read")
        if now != size:
            raise TransferError(
                f"failed to read {reply.place.named}: the connection ended after {now} of {size} bytes"
            )

    def _make_directories(self, place: RemoteFile, watch: Watch) -> None:
        names = place.path.strip("/").split("/")[:-1][:DIRECTORIES_MAX]
        for depth in (number for number, name in enumerate(names, 1) if name):
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

    def add(self, piece: bytes) -> None:
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
        watch.progress(at)


def _sum_up(answer: HttpAnswer, watch: Watch) -> str:
    """SHA-256 of all that comes, which is kept nowhere."""
    follower = _Follower()
    length, done = _size_of(answer, 0), 0
    try:
        while length is None or done < length:
            piece = answer.read(PIECE_BYTES if length is None else min(PIECE_BYTES, length - done))
            if not piece and length is None:
                break  # the end of a chunked body is marked
            if not piece:
                raise TransferError(f"the connection ended after {done} of {length} bytes")
            follower.add(piece)
            done += len(piece)
            watch.progress(done)
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
        watch.progress(moved)


def _bearer(place: RemoteFile) -> str | None:
    bearer = credentials.token(place)
    if bearer is not None and place.scheme in ("http", "dav"):
        raise credentials.credential_error(
            place, "a token would travel without encryption", "use `https://`, or no token"
        )
    return bearer


def _target(place: RemoteFile) -> str:
    return place.written + (f"?{place.query}" if place.query else "")


def _absolute(place: RemoteFile) -> str:
    scheme = {"dav": "http", "davs": "https"}.get(place.scheme, place.scheme)
    return f"{scheme}://{place.host}:{place.port}{_target(place)}"


def _joined(place: RemoteFile, location: str) -> str:
    """The URL of a redirection, read as curl reads it: percent-encodes bytes that are not legal in URLs, and drops the
    part after `#`, which is for browsers (RFC 9110, 10.2.2). XRootD 5.5.3 does not encode names in `Location`."""
    raw = location.strip(" \t").partition("#")[0].encode("latin-1", "replace")  # http.client decodes bytes so
    path, mark, query = raw.partition(b"?")
    path = re.sub(rb"%(?![0-9a-fA-F]{2})", b"%25", path)
    text = quote(path, safe=_ANY_PATH) + mark.decode() + quote(query, safe=_ANY_QUERY)
    try:
        return urljoin(_absolute(place), text)
    except ValueError as error:
        raise TransferError(
            f"`{place.shown}` sends us on to `{ascii(location)[:200]}`, which is not a URL", transient=False
        ) from error


def _with_path(place: RemoteFile, path: str) -> RemoteFile:
    written = quote(path, safe=PATH_SAFE)
    url = f"{place.scheme}://{place.host}:{place.port}{written}"
    return msgspec.structs.replace(place, url=url, path=path, written=written, query="")


def _named_as(place: RemoteFile, final: RemoteFile) -> RemoteFile:
    """The place as messages name it when a file gets its final name: that name, and the server that answered."""
    return final if place.sent_by is None else msgspec.structs.replace(place, sent_by=final)


def _size_of(answer: HttpAnswer, have: int) -> int | None:
    """The size of a file, from an answer that sends all of it after the first `have` bytes. None: the answer does not
    state it, but marks the end of the body. Raises TransferError if it does neither."""
    size_bytes = whole(answer.headers.get("Content-Length", ""))
    if size_bytes is not None:
        return have + size_bytes
    if not _is_chunked(answer):
        raise TransferError("the server reports no size of what it sends", transient=False)
    return whole(_told_length(answer))


def _told_length(answer: HttpAnswer) -> str:
    """The size of the whole file as the server reports it, also in an answer with a part of it; empty if it does
    not."""
    if answer.status == 206:
        return str(answer.headers.get("Content-Range", "")).strip().rpartition("/")[2].strip("*")
    return str(answer.headers.get("Content-Length", ""))


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
        value = None if algorithm in (None, "md5") else canonical_checksum(str(algorithm), text)
        if algorithm is not None and value is not None:
            found[algorithm] = value
    return found


def _broken(place: RemoteFile, verb: str, exchange: ExchangeError) -> TransferError:
    """A connection that failed or ended; TLS that does not trust, or is not trusted."""
    error = exchange.reason
    if isinstance(error, ssl.SSLCertVerificationError):
        return credentials.untrusted(place, error)
    if isinstance(error, ssl.SSLError) and "ALERT" in str(error).upper().replace(" ", "_"):
        return credentials.credential_error(place, f"TLS: {error.reason or error}").unasked()
    if isinstance(error, http.client.InvalidURL):
        return TransferError(
            f"failed to {verb.lower()} {place.named}: HTTP cannot send this URL: {error}", transient=False
        )
    if isinstance(error, socket.gaierror):
        return TransferError(
            f"failed to reach {place.named}: host `{place.host}` has no address: {error.strerror or error}",
            hint="check the URL, and the name service",
        )
    words = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return TransferError(
        f"failed to {verb.lower()} {place.named}: {words}",
        hint="the server or the network is unreachable: it is tried again",
    )


def _is_by_itself(place: RemoteFile) -> bool:
    """Whether the job's URL authorizes itself, without a credential of the endpoint."""
    query, endpoint = (place.sent_by or place).query, place.endpoint
    if not query:
        return False
    shows_nothing = place.sent_by is None and endpoint.certificate is None and endpoint.token_file is None
    return shows_nothing or _SIGNATURE.search(query) is not None


def _refusal(reply: _Reply, verb: str) -> TransferError:
    place, status = reply.place, reply.answer.status
    said = f"the server said {status} {reply.answer.reason}".rstrip()
    what = f"failed to {verb} {place.named}: {said}"
    if status in (400, 401, 403) and _is_by_itself(place):
        return TransferError(
            what,
            hint="the URL carries its own signature or key, which has expired or is for something else: give the job a "
            "new URL, valid until its events have run and its outputs are delivered",
            transient=False,
        )
    if status in (401, 403) and place.query and place.sent_by is not None:
        # the first server signs a new URL for each request
        return TransferError(what, hint="the next try asks the first server for another URL")
    if status in (401, 403):
        return credentials.credential_error(place, said)
    if status in (404, 410):
        return TransferError(what, transient=False, missing=True)
    if status == 507:
        return TransferError(what, hint="there is no space left there: free some, or wait until others do")
    transient = status >= 500 or status in (408, 423, 425, 429)
    return TransferError(what, transient=transient)
