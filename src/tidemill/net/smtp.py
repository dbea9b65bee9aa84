"""Connections to mail servers: SMTP (RFC 5321) with TLS (RFC 3207, RFC 8314), bounded in what they answer.

The library reads an answer for as long as it goes on: `250-` line after line fills the memory, and one that comes byte
by byte never ends, for its time limit is for each byte. Before TLS anyone on the way can answer.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
from typing import Any, cast

from tidemill import clock
from tidemill.config.outlets import SmtpServer

REPLY_BYTES_MAX = 64 << 10
"""Of one answer: RFC 5321 4.5.3.1.5 gives a line 512 bytes; an answer to EHLO has some 20."""
END_S = 600.0  #: for the answer to the end of a mail


def connect(place: SmtpServer, *, timeout_s: float, context: ssl.SSLContext) -> smtplib.SMTP:
    """A connection, encrypted as `place` says: nothing of it is left out because the server does not offer it.

    `timeout_s`: for each whole answer, here and later. Raises OSError, smtplib.SMTPException.
    """
    if place.security == "tls":
        return _SmtpTls(place.host, place.port, timeout=timeout_s, context=context)
    server = _Smtp(place.host, place.port, timeout=timeout_s)
    try:
        if place.security == "starttls":
            server.starttls(context=context)
    except BaseException:
        server.close()
        raise
    return server


class _Answers:
    """Stands for the socket's file, of which the library only uses these two. What was read too early is dropped with
    it: after STARTTLS the library asks for another."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._read = sock, b""
        self._until_s, self._left_bytes = 0.0, 0

    def begin(self) -> None:
        """Another answer is awaited, for as long as the socket would wait for a byte."""
        self._until_s = clock.monotonic_s() + (self._sock.gettimeout() or END_S)
        self._left_bytes = REPLY_BYTES_MAX

    def readline(self, limit: int) -> bytes:
        """A line, or `limit` bytes of it; less at the end. Raises OSError."""
        timeout_s = self._sock.gettimeout()
        try:
            while b"\n" not in self._read[:limit] and len(self._read) < limit:
                left_s = self._until_s - clock.monotonic_s()
                if left_s <= 0:
                    raise TimeoutError("its answer does not end in time")
                self._sock.settimeout(left_s)
                piece = self._sock.recv(4096)
                if not piece:
                    break
                self._read += piece
        finally:
            self._sock.settimeout(timeout_s)
        end = self._read.find(b"\n", 0, limit) + 1 or limit
        line, self._read = self._read[:end], self._read[end:]
        self._left_bytes -= len(line)
        if self._left_bytes < 0:
            raise OSError(f"its answer has more than {REPLY_BYTES_MAX} bytes")
        return line

    def close(self) -> None:
        """The socket is closed by itself."""


class _Bounded:
    """Bounds the answers. The one to the end of a mail is awaited longer than others: who gives up there sends a mail
    again that was taken (RFC 1047; RFC 5321 4.5.3.2.6 says 10 minutes)."""

    def getreply(self) -> tuple[int, bytes]:
        server = cast(smtplib.SMTP, self)
        if server.file is None:
            assert server.sock is not None
            server.file = _Answers(server.sock)
        server.file.begin()
        found: tuple[int, bytes] = super().getreply()  # type: ignore[misc]
        return found

    def data(self, msg: Any) -> tuple[int, bytes]:
        server = cast(smtplib.SMTP, self)
        assert server.sock is not None
        server.sock.settimeout(max(server.timeout, END_S))
        try:
            found: tuple[int, bytes] = super().data(msg)  # type: ignore[misc]
        finally:
            if server.sock is not None:
                server.sock.settimeout(server.timeout)
        return found


class _Smtp(_Bounded, smtplib.SMTP):
    pass


class _SmtpTls(_Bounded, smtplib.SMTP_SSL):
    pass
