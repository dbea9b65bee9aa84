"""Bytes on the TCP connections of a process, as the kernel counts them: the truth about what origins sent.

sock_diag(7) by netlink: needs no rights for sockets of one's own network namespace. Both counters: Linux 4.2.
Also whose a UDP port is.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tidemill.errors import SiteError

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_FLAGS = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_DONE, _ERROR = 3, 2  # NLMSG_DONE, NLMSG_ERROR
_INFO = 2  # INET_DIAG_INFO
_STATES = 0xFFF & ~(1 << 10)  # all but TCP_LISTEN
_HEAD = struct.Struct("=LHHLL")  # struct nlmsghdr
_REQUEST = struct.Struct("=BBBBL48s")  # struct inet_diag_req_v2
_MESSAGE = struct.Struct("=BBBB HH")  # the head of struct inet_diag_msg, and the first ports
_MESSAGE_BYTES = 72
_COOKIE_AT, _INODE_AT = 44, 68
_ATTRIBUTE = struct.Struct("=HH")
_COUNTERS_AT = 120  # tcpi_bytes_acked, tcpi_bytes_received in struct tcp_info (linux/tcp.h)
_COUNTERS = struct.Struct("=QQ")
_ANSWER_BYTES = 1 << 18
ANSWERS_MAX = 10_000
CONNECTIONS_MAX = 20_000
SILENCE_S = 2.0


class WireConnection(NamedTuple):
    """One connection and its bytes since it began."""

    cookie: bytes  #: the kernel's number, of this connection alone
    port: int  #: of this host
    sent: int  #: and acknowledged by the other end
    received: int


def connections_of(pid: int) -> list[WireConnection]:
    """The TCP connections that a process has now. Raises SiteError."""
    inodes = _sockets_of(pid)
    found = []
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
            link.settimeout(SILENCE_S)
            for family in (socket.AF_INET, socket.AF_INET6):
                found += [each for inode, each in _dump(link, family) if inode in inodes]
    except OSError as error:
        raise SiteError(f"failed to ask the kernel for connections: {error.strerror or error}") from error
    return found[:CONNECTIONS_MAX]


def _sockets_of(pid: int) -> set[int]:
    inodes = set()
    folder = Path(f"/proc/{pid}/fd")
    try:
        for link in folder.iterdir():
            target = str(link.readlink())
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
    except OSError as error:  # it has ended, or is another user's
        raise SiteError(f"failed to read `{folder}`: {error.strerror}") from error
    return inodes


def _dump(link: socket.socket, family: int) -> list[tuple[int, WireConnection]]:
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _STATES, bytes(48))
    link.send(_HEAD.pack(_HEAD.size + len(request), _SOCK_DIAG_BY_FAMILY, _FLAGS, 0, 0) + request)
    found: list[tuple[int, WireConnection]] = []
    for _ in range(ANSWERS_MAX):
        rows, is_over = parse_answer(link.recv(_ANSWER_BYTES))
        found += rows
        if is_over:
            break
    return found


def parse_answer(content: bytes) -> tuple[list[tuple[int, WireConnection]], bool]:
    """Inodes and connections of one answer, and whether it is the last. Pure. Raises OSError: the kernel refuses."""
    rows: list[tuple[int, WireConnection]] = []
    at = 0
    while at + _HEAD.size <= len(content):
        length, kind, *_ = _HEAD.unpack_from(content, at)
        if kind == _DONE or length < _HEAD.size:
            return rows, True
        if kind == _ERROR:
            (number,) = struct.unpack_from("=i", content, at + _HEAD.size)
            raise OSError(-number, os.strerror(-number))
        row = _connection(content[at + _HEAD.size : at + length])
        if row is not None:
            rows.append(row)
        at += (length + 3) & ~3
    return rows, False


def _connection(message: bytes) -> tuple[int, WireConnection] | None:
    if len(message) < _MESSAGE_BYTES:
        return None
    (port,) = struct.unpack_from("!H", message, 4)
    (inode,) = struct.unpack_from("=L", message, _INODE_AT)
    at = _MESSAGE_BYTES
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _INFO and length >= _ATTRIBUTE.size + _COUNTERS_AT + _COUNTERS.size:
            sent, received = _COUNTERS.unpack_from(message, at + _ATTRIBUTE.size + _COUNTERS_AT)
            return inode, WireConnection(message[_COOKIE_AT : _COOKIE_AT + 8], port, sent, received)
        if length < _ATTRIBUTE.size:
            return None
        at += (length + 3) & ~3
    return None


def udp_owners() -> dict[int, int] | None:
    """By each UDP port of this host in use, the number of the user who has it; None where the kernel does not say."""
    found: dict[int, int] = {}
    for name in ("udp", "udp6"):
        try:
            text = Path("/proc/net", name).read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        found.update(parse_udp(text))
    return found or None


def parse_udp(text: str) -> dict[int, int]:
    """Ports and users of /proc/net/udp (proc_pid_net(5): the second field is `address:port`, the eighth the user).
    Pure."""
    found: dict[int, int] = {}
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or not fields[7].isdecimal():
            continue
        with suppress(ValueError):
            found[int(fields[1].rpartition(":")[2], 16)] = int(fields[7])
    return found


class Growth:
    """What connections carried since the last question: those that a cache opened, and those of its clients."""

    def __init__(self) -> None:
        self._before: dict[bytes, WireConnection] = {}

    def update(self, now: list[WireConnection], port: int) -> tuple[int, int]:
        """Bytes received from origins and sent to clients; clients are those at `port` of this host."""
        origin = client = 0
        for each in now:
            connection = self._before.get(each.cookie)
            if each.port == port:
                client += each.sent - (connection.sent if connection else 0)
            else:
                origin += each.received - (connection.received if connection else 0)
        self._before = {each.cookie: each for each in now}
        return origin, client
