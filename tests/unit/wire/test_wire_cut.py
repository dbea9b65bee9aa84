"""Connections that are cut by another thread than the one that reads."""

from __future__ import annotations

import socket
import ssl

from tidemill.wire.cut import cut


def test_an_encrypted_connection_that_is_cut_is_never_read_as_a_plain_one() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        secured = ssl.create_default_context().wrap_socket(
            ours, server_hostname="h", do_handshake_on_connect=False
        )
        with secured:
            theirs.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            cut(secured)
            assert secured.recv(100) == b""
