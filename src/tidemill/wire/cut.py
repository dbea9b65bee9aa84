"""Ends connections that another thread waits on."""

from __future__ import annotations

import socket
from contextlib import suppress


def cut(connection: socket.socket) -> None:
    """Have whoever reads from it or writes to it find its end. Where it is encrypted it stays so: `SSLSocket.shutdown`
    makes it a plain one first, and the other thread would read as an answer what nobody has encrypted.
    """
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
