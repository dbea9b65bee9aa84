"""Whether an XRootD server answers: the handshake of its protocol, without logging in.

XRootD protocol specification 5.0, section 2 (initial handshake): 20 bytes (0, 0, 0, 4, 2012) are answered by a stream
id, a status, a length of 8, the version of the protocol and the type of server.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from tidemill import clock

HANDSHAKE = struct.pack(">5i", 0, 0, 0, 4, 2012)
ANSWER_BYTES = 16
_DATA_SERVER = 1


class Greeting(NamedTuple):
    """What came of a handshake: `why` it failed, empty where it did not."""

    why: str
    redirects: bool = False  #: a redirector: it holds no files itself

    @property
    def answers(self) -> bool:
        """Whether an XRootD server is there."""
        return not self.why


def greet(host: str, port: int, timeout_s: float) -> Greeting:
    """Shake hands with a server; takes `timeout_s` for each address of the host and for the whole answer, at
    most."""
    try:
        with socket.create_connection((host.strip("[]"), port), timeout_s) as connection:
            connection.sendall(HANDSHAKE)
            answer, until_s = b"", clock.monotonic_s() + timeout_s
            while len(answer) < ANSWER_BYTES:
                left_s = until_s - clock.monotonic_s()
                if left_s <= 0:  # it answers byte by byte
                    return Greeting(f"no whole answer within {timeout_s:g} s")
                connection.settimeout(left_s)
                piece = connection.recv(ANSWER_BYTES - len(answer))
                if not piece:
                    break
                answer += piece
    except OSError as error:
        return Greeting(error.strerror or str(error) or type(error).__name__)
    return parse_greeting(answer)


def parse_greeting(answer: bytes) -> Greeting:
    """What the answer to a handshake says."""
    if not answer:
        return Greeting("it ends connections at once: it may not know this host")
    if len(answer) < ANSWER_BYTES or answer[:2] != b"\0\0":
        return Greeting("what answers is not an XRootD server")
    status, length, _, kind = struct.unpack(">HIII", answer[2:])
    if status != 0 or length != 8:
        return Greeting("what answers is not an XRootD server")
    return Greeting("", redirects=kind != _DATA_SERVER)
