"""Opens a file by the XRootD protocol and reads the ranges that its standard input names, one by one.

A line of it is `OFFSET LENGTH`.

Prints a JSON object: bytes of data, and all bytes that came from the server. So small that each byte is accounted for.
Reference: XRootD protocol 5.0 (xrootd.org/doc/dev50/XRdv500.htm).
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import sys
import time

OK, PARTIAL, ATTENTION, WAIT, WAIT_FOR_REPLY = 0, 4000, 4001, 4005, 4006
CLOSE, LOGIN, OPEN, READ = 3003, 3007, 3010, 3013
FOR_READING = 0x10


class Reader:
    """One connection."""

    def __init__(self, host: str, port: int) -> None:
        self.received = 0
        self._socket = socket.create_connection((host, port), 60)
        self._socket.sendall(struct.pack("!5i", 0, 0, 0, 4, 2012))
        self._take(16)
        self._ask(LOGIN, struct.pack("!i8s4B", 1, b"reader", 0, 0, 4, 0))

    def open(self, path: str) -> bytes:
        """The handle of a file."""
        return self._ask(OPEN, struct.pack("!HH12x", 0, FOR_READING), path.encode())[:4]

    def read(self, handle: bytes, offset: int, length: int) -> bytes:
        """That range of a file."""
        return self._ask(READ, handle + struct.pack("!qi", offset, length))

    def close(self, handle: bytes) -> None:
        """Give the handle back."""
        self._ask(CLOSE, handle + bytes(12))

    def _ask(self, request: int, body: bytes, data: bytes = b"") -> bytes:
        message = struct.pack("!2sH", b"\0\1", request) + body + struct.pack("!i", len(data)) + data
        self._socket.sendall(message)
        answer = b""
        while True:
            status, content = self._answer()
            if status == ATTENTION:
                status, content = struct.unpack("!H", content[10:12])[0], content[16:]
            if status == WAIT:
                time.sleep(struct.unpack("!i", content[:4])[0])
                self._socket.sendall(message)
            elif status in (OK, PARTIAL):
                answer += content
                if status == OK:
                    return answer
            elif status != WAIT_FOR_REPLY:
                raise SystemExit(f"status {status}: {content!r}")

    def _answer(self) -> tuple[int, bytes]:
        _, status, length = struct.unpack("!2sHi", self._take(8))
        return status, self._take(length)

    def _take(self, length: int) -> bytes:
        taken = bytearray()
        while len(taken) < length:
            part = self._socket.recv(length - len(taken))
            if not part:
                raise SystemExit("the server has closed the connection")
            taken += part
        self.received += length
        return bytes(taken)


def main() -> None:
    """HOST PORT PATH; ranges on standard input."""
    host, port, path = sys.argv[1:]
    reader = Reader(host, int(port))
    handle = reader.open(path)
    digest, length = hashlib.sha256(), 0
    for line in sys.stdin:
        offset, wanted = line.split()
        data = reader.read(handle, int(offset), int(wanted))
        digest.update(data)
        length += len(data)
    reader.close(handle)
    sys.stdout.write(
        json.dumps({"data": length, "received": reader.received, "sha256": digest.hexdigest()}) + "\n"
    )


if __name__ == "__main__":
    main()
