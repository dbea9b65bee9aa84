"""Pages of a home's server, asked for on its socket as its own user."""

from __future__ import annotations

import socket
from pathlib import Path


def get_page(home: Path, path: str) -> tuple[str, str]:
    """Head and body of the answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(home / "server" / "api.sock"))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    head, _, body = answer.decode("latin-1").partition("\r\n\r\n")
    return head, body
