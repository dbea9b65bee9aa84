"""Frames between an Executor and its workers: authenticated, numbered, never blocking. Standard library only.

A connection begins with a handshake. The worker first proves that it knows the pool's key, so that the listener
reveals nothing to strangers. Each later frame carries a keyed BLAKE2b hash of its direction's sequence number and its
content: a changed, repeated, missing or forged frame ends the connection. Nothing is unpickled before that check.
Frames are not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time
from collections import deque
from typing import NamedTuple

MAGIC = b"tidemill-calls-1"
NONCE_BYTES = 32
MAC_BYTES = 16
FRAME_BYTES_MAX = 1 << 21  #: of a frame: larger calls and results travel in parts
PART_BYTES = 1 << 20
READ_BYTES = 1 << 18
HANDSHAKE_S = 10.0
BEAT_S = 10.0  #: interval at which both ends show that they are alive

_HEAD = struct.Struct("<I")
_NUMBER = struct.Struct("<cQ")

# executor -> worker
SETUP = b"S"  #: JSON: `path`, `timeout_s`
CANCEL = b"C"  #: end this call, whether it runs or waits
RECALL = b"T"  #: give this call back if it has not begun
END = b"E"  #: no more calls: leave
# worker -> executor
HELLO = b"H"  #: JSON: `host`, `pid`, `job`, `python`
STARTED = b"R"  #: the call runs; not said of calls that are over when it could be
ABORTED = b"A"  #: forget the parts of this result
RETURNED = b"G"  #: the call has not begun, and will not
DIED = b"D"  #: JSON: `why`, `stderr`
# both ways
PART = b"P"  #: a piece of a pickled call or result
LAST = b"L"  #: the last piece
BEAT = b"B"


class LinkError(Exception):
    """The connection cannot go on: it ended, or what came is not from who should be at the other end."""


class CallFrame(NamedTuple):
    """One message: what it is, of which call, and its content."""

    kind: bytes
    number: int
    content: bytes


class CallLink:
    """One end of a connection after its handshake. `outgoing` counts the bytes that wait to be sent."""

    def __init__(self, connection: socket.socket, send_key: bytes, receive_key: bytes) -> None:
        self.socket = connection
        self.outgoing = 0
        self._out: deque[memoryview] = deque()
        self._in = bytearray()
        self._send_key, self._receive_key = send_key, receive_key
        self._sent = self._received = 0
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def put(self, kind: bytes, number: int = 0, content: bytes = b"") -> None:
        """Queue a frame; `flush` sends it."""
        body = _NUMBER.pack(kind, number) + content
        data = _HEAD.pack(len(body)) + _mac(self._send_key, self._sent, body) + body
        self._sent += 1
        self._out.append(memoryview(data))
        self.outgoing += len(data)

    def flush(self) -> None:
        """Send what the other end takes now. Raises LinkError if it is gone."""
        try:
            while self._out:
                if len(self._out) > 1 and len(self._out[0]) < READ_BYTES:
                    self._join()
                done = self.socket.send(self._out[0])
                self.outgoing -= done
                if done < len(self._out[0]):
                    self._out[0] = self._out[0][done:]
                    return
                self._out.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            raise LinkError(f"the connection broke: {error}") from error

    def _join(self) -> None:
        """Small frames leave in one call of the kernel."""
        pieces, size = [], 0
        while self._out and size < READ_BYTES:
            piece = self._out.popleft()
            pieces.append(piece)
            size += len(piece)
        self._out.appendleft(memoryview(b"".join(pieces)))

    def receive(self) -> list[CallFrame]:
        """The frames that have arrived. Raises LinkError at the end, and for a frame that does not check."""
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise LinkError(f"the connection broke: {error}") from error
        if not data:
            raise LinkError("the other end closed the connection")
        self._in += data
        return self._frames()

    def _frames(self) -> list[CallFrame]:
        frames, at = [], 0
        head = _HEAD.size + MAC_BYTES
        while len(self._in) - at >= head:
            (size,) = _HEAD.unpack_from(self._in, at)
            if not _NUMBER.size <= size <= FRAME_BYTES_MAX:
                raise LinkError(f"a frame of {size} bytes came")
            if len(self._in) - at < head + size:
                break
            with memoryview(self._in) as view:
                body, mac = (
                    bytes(view[at + head : at + head + size]),
                    bytes(view[at + _HEAD.size : at + head]),
                )
            if not hmac.compare_digest(mac, _mac(self._receive_key, self._received, body)):
                raise LinkError("a frame came whose check is wrong")
            self._received += 1
            kind, number = _NUMBER.unpack_from(body)
            frames.append(CallFrame(kind, number, body[_NUMBER.size :]))
            at += head + size
        del self._in[:at]
        return frames

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def _mac(key: bytes, number: int, body: bytes) -> bytes:
    digest = hashlib.blake2b(number.to_bytes(8, "little"), key=key, digest_size=MAC_BYTES)
    digest.update(body)
    return digest.digest()


def _derive(key: bytes, purpose: bytes, *parts: bytes) -> bytes:
    return hashlib.blake2b(purpose + b"".join(parts), key=key, digest_size=32).digest()


def _channel(connection: socket.socket, key: bytes, nonces: bytes, *, is_worker: bool) -> CallLink:
    up, down = _derive(key, b"up", nonces), _derive(key, b"down", nonces)
    return CallLink(connection, up, down) if is_worker else CallLink(connection, down, up)


# ---- the handshake: worker -> MAGIC nonce proof; executor -> nonce proof ---------------------------------------------

HELLO_BYTES = len(MAGIC) + NONCE_BYTES + 32
REPLY_BYTES = NONCE_BYTES + 32


def connect(connection: socket.socket, key: bytes) -> CallLink:
    """The worker's side, on a connected socket. Raises LinkError if the other end does not know the key."""
    connection.settimeout(HANDSHAKE_S)
    mine = os.urandom(NONCE_BYTES)
    try:
        connection.sendall(MAGIC + mine + _derive(key, b"worker", mine))
        reply = _exactly(connection, REPLY_BYTES)
    except OSError as error:
        raise LinkError(f"no reply came to the handshake: {error}") from error
    theirs = reply[:NONCE_BYTES]
    if not hmac.compare_digest(reply[NONCE_BYTES:], _derive(key, b"executor", mine, theirs)):
        raise LinkError("who listens there does not know the pool's key")
    return _channel(connection, key, mine + theirs, is_worker=True)


def accept(connection: socket.socket, hello: bytes, key: bytes) -> CallLink:
    """The executor's side, for the HELLO_BYTES that came first. Raises LinkError; strangers get no byte."""
    begin, nonce, proof = (
        hello[: len(MAGIC)],
        hello[len(MAGIC) : len(MAGIC) + NONCE_BYTES],
        hello[len(MAGIC) + NONCE_BYTES :],
    )
    if begin != MAGIC or not hmac.compare_digest(proof, _derive(key, b"worker", nonce)):
        raise LinkError("a connection came from someone who does not know the pool's key")
    mine = os.urandom(NONCE_BYTES)
    try:
        connection.sendall(mine + _derive(key, b"executor", nonce, mine))
    except OSError as error:
        raise LinkError(f"the connection broke: {error}") from error
    return _channel(connection, key, nonce + mine, is_worker=False)


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        data = connection.recv(size - len(content))
        if not data:
            raise LinkError("the other end closed the connection")
        content += data
    return content


def join(addresses: list[str], key: bytes, *, patience_s: float) -> CallLink:
    """The worker's connection to the first address where its executor answers: `unix:PATH` or `tcp:HOST:PORT`; tried
    again until `patience_s` is over. Raises LinkError."""
    deadline = time.monotonic() + patience_s
    while True:
        refusals = []
        for address in addresses:
            try:
                connection = _dial(address)
            except OSError as error:
                refusals.append(f"{address}: {error}")
                continue
            try:
                return connect(connection, key)
            except LinkError as error:
                connection.close()
                refusals.append(f"{address}: {error}")
        if time.monotonic() > deadline:
            raise LinkError("no address of the executor answers: " + "; ".join(refusals))
        time.sleep(0.5)


def _dial(address: str) -> socket.socket:
    scheme, _, rest = address.partition(":")
    if scheme == "unix":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(HANDSHAKE_S)
        connection.connect(rest)
        return connection
    host, _, port = rest.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=HANDSHAKE_S)
