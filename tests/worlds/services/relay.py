"""A TCP relay in front of a port that can be cut: bytes stop and nobody is told, or connections are reset."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

CONNECT_S = 10.0
RESET = struct.pack("ii", 1, 0)  # SO_LINGER with zero seconds: close() sends RST, socket(7)


class Relay:
    """Relays connections to `target`, a port of this machine, from `port`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open = threading.Event()
        self._open.set()
        self._resets = self._closed = False
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *, reset: bool) -> None:
        """Carry nothing until `heal`. `reset`: connections are reset, new ones too; else what is sent waits, as packets
        that are sent again and again do, and arrives late."""
        self._resets = reset
        self._open.clear()
        if reset:
            for each in self._sockets:
                _reset(each)

    def heal(self) -> None:
        """Carry again."""
        self._resets = False
        self._open.set()

    def close(self) -> None:
        """End it, and all connections."""
        self._closed = True
        for each in (self._listener, *self._sockets):
            _reset(each)
        self._open.set()

    def _accept(self) -> None:
        while not self._closed:
            with contextlib.suppress(OSError):
                ours, _ = self._listener.accept()
                if self._resets:
                    _reset(ours)
                    continue
                threading.Thread(target=self._serve, args=(ours,), daemon=True).start()

    def _serve(self, ours: socket.socket) -> None:
        self._open.wait()
        try:
            theirs = socket.create_connection(("127.0.0.1", self._target), CONNECT_S)
        except OSError:
            _reset(ours)
            return
        self._sockets += [ours, theirs]
        back = threading.Thread(target=self._carry, args=(theirs, ours), daemon=True)
        back.start()
        self._carry(ours, theirs)

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                self._open.wait()
                other.sendall(data)
            self._open.wait()
            other.shutdown(socket.SHUT_WR)
        except OSError:  # one of them was reset: so is the other, but not before a cut is healed
            self._open.wait()
            _reset(one)
            _reset(other)


def _reset(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        each.shutdown(socket.SHUT_RDWR)
    each.close()
