"""http(s):// and dav(s)://: by the standard library's client, with ranges, digests and WebDAV's names.

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
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import quote, urljoin

from tidemill.config.transfer import Endpoint
from tidemill.model.failure import FailureClass
from tidemill.model.number import whole
from tidemill.transfer import allowed, credentials
from tidemill.transfer.checksum import Growing, Summer, canonical, summer
from tidemill.transfer.contract import (
    DIRECTORIES_MAX,
    Direction,
    Place,
    Stat,
    TransferError,
    Watch,
    of_os_error,
)
from tidemill.transfer.guard import guarded

REDIRECTS_MAX = 8
ANSWER_BYTES_MAX = 4096
PIECE_BYTES = 1 << 18
"""Progress is told, and a cancel heard, after each."""

PIECES_MAX = 8
"""Pieces between the socket and the checksum's thread."""

WAIT_S = 30.0
"""A connection or an answer may take so long; the body's stalls are the watch's affair."""

_DIGESTS = {"adler32": "adler32", "sha256": "sha-256", "md5": "md5"}  # RFC 3230, RFC 5843


class _Answer(NamedTuple):
    place: Place
    connection: http.client.HTTPConnection
    socket: socket.socket | None
    response: http.client.HTTPResponse

    def close(self) -> None:
        """Let go of both: of a connection that the server ends, the response has the socket."""
        self.response.close()
        self.connection.close()


class HttpAdapter:
    """See `contract.Adapter`. `endpoints`: where redirections may lead."""

    resumes = True
    tells_at_once = True
    in_order = True

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints

    def stat(self, place: Place, watch: Watch) -> Stat:
        """See the contract."""
        headers = {"Want-Digest": "adler32, sha-256", "Accept-Encoding": "identity"}
        answer = self._ask(place, "HEAD", watch, headers)
        if answer.response.status == 200 and "Content-Length" not in answer.response.headers:
            answer.close()  # Apache 2.4 tells no length of an empty file there
            answer = self._ask(place, "GET", watch, headers)
        with closing(answer):
            response = answer.response
            if response.status != 200:
                raise _refusal(place, response, "look at")
            length = response.headers.get("Content-Length", "")
            size_bytes = whole(length)
            if size_bytes is None:
                raise TransferError(
                    f"`{place.shown}`: the server tells no size (`Content-Length: {length}`)", transient=False
                )
            checksums = _digests(response)
            validator = _validator(response) or " ".join(
                f"{name}:{each}" for name, each in sorted(checksums.items())
            )
            return Stat(size_bytes=size_bytes, version=f"{length} {validator}", checksums=checksums)

    def read(
        self, place: Place, target: Path, stat: Stat, watch: Watch, needed: AbstractSet[str]
    ) -> dict[str, str]:
        """See the contract."""
        have = target.stat().st_size if target.exists() else 0
        headers = {"Want-Digest": "adler32", "Accept-Encoding": "identity"}
        validator = stat.version.partition(" ")[2]
        if 0 < have < stat.size_bytes and validator.startswith('"'):
            headers |= {"Range": f"bytes={have}-", "If-Range": validator}
        elif have:
            target.unlink()
            have = 0
        answer = self._ask(place, "GET", watch, headers)
        with closing(answer):
            response = answer.response
            if response.status == 200:
                have = 0
                target.unlink(missing_ok=True)  # sums are made of what the file holds: no earlier bytes
            elif response.status != 206 or not _continues(response, have):
                raise _refusal(place, response, "read")
            size, version = have + _length(response), _validator(response)
            if size != stat.size_bytes or (version and f"{size} {version}" != stat.version):
                target.unlink(missing_ok=True)
                raise TransferError(f"`{place.shown}` has changed while it was read")
            at_hand = {each: summer(each) for each in needed & {"adler32"} if not have}  # costs nothing there
            with Growing(target, needed - at_hand.keys()) as growing:
                self._take(answer, target, have, watch, at_hand.values())
                return growing.end() | {name: each.hexdigest() for name, each in at_hand.items()}

    def write(self, source: Path, place: Place, watch: Watch, known: Mapping[str, str]) -> dict[str, str]:
        """See the contract."""
        for attempt in range(2):
            with source.open("rb") as file:
                answer = self._ask(place, "PUT", watch, {"Content-Type": "application/octet-stream"}, file)
            with closing(answer):
                if answer.response.status in (200, 201, 204):
                    return {}
                if attempt or answer.response.status not in (404, 409) or place.query:
                    raise _refusal(place, answer.response, "write")
            self._make_directories(place, watch)
        raise AssertionError("the second attempt ends above")

    def rename(self, place: Place, final: Place, watch: Watch) -> None:
        """Give a file that `write` made its final name."""
        answer = self._ask(place, "MOVE", watch, {"Destination": _absolute(final), "Overwrite": "T"})
        with closing(answer):
            if answer.response.status in (405, 501):
                raise TransferError(
                    f"failed to name `{final.shown}`: the server does not know MOVE",
                    hint=f"set `rename = false` for the endpoint `{final.endpoint.url}`: then outputs are written "
                    "under their final names at once",
                    transient=False,
                )
            if answer.response.status not in (200, 201, 204):
                raise _refusal(final, answer.response, "name")
        if _target(final) != final.path:
            self._look_for(final, watch)

    def _look_for(self, final: Place, watch: Watch) -> None:
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

    def checksum(self, place: Place, algorithm: str, watch: Watch) -> str | None:
        """See the contract."""
        answer = self._ask(place, "HEAD", watch, {"Want-Digest": _DIGESTS[algorithm]})
        with closing(answer):
            return _digests(answer.response).get(algorithm) if answer.response.status == 200 else None

    def digest(self, place: Place, stat: Stat, watch: Watch) -> str | None:
        """See the contract."""
        answer = self._ask(place, "GET", watch, {"Accept-Encoding": "identity"})
        with closing(answer):
            if answer.response.status != 200:
                raise _refusal(place, answer.response, "read back")
            try:
                with guarded(answer.socket, watch):
                    return _sum_up(answer.response, watch)
            except (OSError, http.client.HTTPException) as error:
                raise _broken(place, "read back", error) from error

    def remove(self, place: Place, watch: Watch) -> None:
        """See the contract."""
        answer = self._ask(place, "DELETE", watch, {})
        with closing(answer):
            if answer.response.status not in (200, 202, 204, 404, 410):
                raise _refusal(place, answer.response, "delete")

    def rest(self) -> None:
        """See the contract."""

    # ---- one request ----

    def _ask(
        self, place: Place, method: str, watch: Watch, headers: dict[str, str], body: IO[bytes] | None = None
    ) -> _Answer:
        """The answer of the last server of a chain of redirections. Its connection is the caller's to close."""
        direction = Direction.IN if method in ("GET", "HEAD") else Direction.OUT
        for _ in range(REDIRECTS_MAX):
            watch.check()
            answer = _exchange(place, method, headers, body, watch)
            location = answer.response.headers.get("Location")
            if answer.response.status not in (301, 302, 303, 307, 308) or not location:
                return answer
            answer.close()
            place = allowed.redirected(_joined(place, location), place, self._endpoints, direction)
            if body is not None:
                body.seek(0)
        raise TransferError(
            f"`{place.shown}`: more than {REDIRECTS_MAX} redirections",
            transient=False,
            failure=direction.failure,
        )

    def _take(
        self, answer: _Answer, target: Path, have: int, watch: Watch, summers: Collection[Summer]
    ) -> None:
        """Write the body behind what is there, and sum it up."""
        size = have + _length(answer.response)
        try:
            with target.open("r+b" if have else "wb", buffering=0) as file:
                file.truncate(have)
                file.seek(have)
                with guarded(answer.socket, watch):
                    _copy(answer.response, file, range(have, size), watch, summers)
        except (TimeoutError, ssl.SSLError, http.client.HTTPException, ConnectionError) as error:
            raise _broken(answer.place, "read", error) from error
        except OSError as error:
            raise of_os_error(error, f"write `{target}`") from error
        now = target.stat().st_size
        if now != size:
            raise TransferError(
                f"failed to read `{answer.place.shown}`: the connection ended after {now} of {size} bytes"
            )

    def _make_directories(self, place: Place, watch: Watch) -> None:
        names = place.path.strip("/").split("/")[:-1][:DIRECTORIES_MAX]
        for depth in range(1, len(names) + 1):
            folder = _with_path(place, "/" + "/".join(names[:depth]) + "/")
            try:
                answer = self._ask(folder, "MKCOL", watch, {})
            except TransferError as error:
                if error.failure is FailureClass.CREDENTIAL:
                    raise
                continue
            answer.close()  # what it said is told by the PUT that follows


class _Follower:
    """Makes SHA-256 in a thread beside the one that reads: both of them leave Python's lock while they work."""

    def __init__(self) -> None:
        self._pieces: queue.Queue[memoryview | None] = queue.Queue(PIECES_MAX)
        self._summer = summer("sha256")
        self._thread = threading.Thread(target=self._work, name="checksum", daemon=True)
        self._thread.start()

    def take(self, piece: memoryview) -> None:
        """A piece that nobody changes until PIECES_MAX further ones were taken."""
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
    response: http.client.HTTPResponse,
    file: IO[bytes],
    span: range,
    watch: Watch,
    summers: Collection[Summer],
) -> None:
    """Write these bytes of a file, or as many as come, and sum them up."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    at = span.start
    while at < span.stop and (count := _fill(response, buffer[: min(PIECE_BYTES, span.stop - at)])):
        view = buffer[:count]
        for each in summers:
            each.update(view)
        while view:
            view = view[file.write(view) :]
        at += count
        watch.tell(at)


def _sum_up(response: http.client.HTTPResponse, watch: Watch) -> str:
    """SHA-256 of all that comes, which is kept nowhere."""
    follower = _Follower()
    buffers = [memoryview(bytearray(PIECE_BYTES)) for _ in range(PIECES_MAX + 2)]
    length, done, number = _length(response), 0, 0
    try:
        while done < length:
            buffer = buffers[number % len(buffers)]
            number += 1
            count = _fill(response, buffer[: min(PIECE_BYTES, length - done)])
            if not count:
                raise TransferError(f"the connection ended after {done} of {length} bytes")
            follower.take(buffer[:count])
            done += count
            watch.tell(done)
    finally:
        digest = follower.end()
    return digest


def _fill(response: http.client.HTTPResponse, buffer: memoryview) -> int:
    """Read until the buffer is full or the body ends. The socket's own time limit tells a server that hangs."""
    filled = 0
    while filled < len(buffer):
        count = response.readinto(buffer[filled:])
        if not count:
            break
        filled += count
    return filled


def _exchange(
    place: Place, method: str, headers: dict[str, str], body: IO[bytes] | None, watch: Watch
) -> _Answer:
    connection = _connect(place, watch)
    try:
        sent = {"User-Agent": "tidemill", **headers}
        bearer = _bearer(place)
        if bearer is not None:
            sent["Authorization"] = f"Bearer {bearer}"
        if body is not None:
            sent["Content-Length"] = str(os.fstat(body.fileno()).st_size)
        connection.connect()
        taken = connection.sock  # who answers and ends takes it away from the connection
        with guarded(taken, watch):
            with suppress(BrokenPipeError, ConnectionResetError):
                # the server may have answered before it had read all: its word is better than the system's
                _request(connection, method, place, sent)
                if body is not None:
                    _send(connection, body, watch)
            return _Answer(place, connection, taken, connection.getresponse())
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise _broken(place, method, error) from error
    except BaseException:
        connection.close()
        raise


def _request(
    connection: http.client.HTTPConnection, method: str, place: Place, headers: Mapping[str, str]
) -> None:
    connection.putrequest(method, _target(place), skip_accept_encoding="Accept-Encoding" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()


def _bearer(place: Place) -> str | None:
    bearer = credentials.token(place)
    if bearer is not None and place.scheme in ("http", "dav"):
        raise credentials.credential_error(
            place, "a token would travel without encryption", "use `https://`, or no token"
        )
    return bearer


def _connect(place: Place, watch: Watch) -> http.client.HTTPConnection:
    wait_s = min(WAIT_S, watch.stall_s)
    host = place.host.strip("[]")
    if place.scheme in ("https", "davs"):
        return http.client.HTTPSConnection(
            host, place.port, timeout=wait_s, context=credentials.tls(place), blocksize=PIECE_BYTES
        )
    return http.client.HTTPConnection(host, place.port, timeout=wait_s, blocksize=PIECE_BYTES)


def _send(connection: http.client.HTTPConnection, body: IO[bytes], watch: Watch) -> None:
    buffer = memoryview(bytearray(PIECE_BYTES))
    moved = 0
    with open(body.fileno(), "rb", buffering=0, closefd=False) as file:
        while count := file.readinto(buffer):
            connection.send(buffer[:count])
            moved += count
            watch.tell(moved)


def _target(place: Place) -> str:
    return quote(place.path, safe="/!$&'()*+,;=:@~") + (f"?{place.query}" if place.query else "")


def _absolute(place: Place) -> str:
    scheme = {"dav": "http", "davs": "https"}.get(place.scheme, place.scheme)
    return f"{scheme}://{place.host}:{place.port}{_target(place)}"


def _joined(place: Place, location: str) -> str:
    try:
        return urljoin(_absolute(place), location)
    except ValueError as error:
        raise TransferError(
            f"`{place.shown}` sends us on to `{ascii(location)[:200]}`, which is no URL", transient=False
        ) from error


def _with_path(place: Place, path: str) -> Place:
    return Place(
        url=f"{place.scheme}://{place.host}:{place.port}{quote(path)}",
        scheme=place.scheme,
        host=place.host,
        port=place.port,
        path=path,
        query="",
        endpoint=place.endpoint,
    )


def _length(response: http.client.HTTPResponse) -> int:
    size_bytes = whole(response.headers.get("Content-Length", ""))
    if size_bytes is None:
        raise TransferError("the server tells no size of what it sends", transient=False)
    return size_bytes


def _validator(response: http.client.HTTPResponse) -> str:
    """A strong entity tag, else the date of the last change."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _digests(response: http.client.HTTPResponse) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in ",".join(response.headers.get_all("Digest") or []).split(","):
        name, _, text = each.strip().partition("=")
        if name.lower() == "sha-256":
            with suppress(ValueError):
                text = base64.b64decode(text, validate=True).hex()
        algorithm = {word: ours for ours, word in _DIGESTS.items()}.get(name.lower())
        value = None if algorithm in (None, "md5") else canonical(str(algorithm), text)
        if algorithm is not None and value is not None:
            found[algorithm] = value
    return found


def _broken(place: Place, verb: str, error: Exception) -> TransferError:
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
        hint="the server or the network is away: it is tried again",
    )


def _refusal(place: Place, response: http.client.HTTPResponse, verb: str) -> TransferError:
    status = response.status
    what = f"failed to {verb} `{place.shown}`: the server said {status} {response.reason}"
    if status in (401, 403):
        return credentials.credential_error(place, f"the server said {status} {response.reason}")
    if status in (404, 410):
        return TransferError(what, transient=False, missing=True)
    if status == 507:
        return TransferError(what, hint="there is no space left there: free some, or wait until others do")
    transient = status >= 500 or status in (408, 423, 425, 429)
    return TransferError(what, transient=transient)
