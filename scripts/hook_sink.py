#!/usr/bin/env python3
"""A real HTTPS receiver of web hooks for tests: keeps each post as a file, on loopback only, until it is killed.

    scripts/hook_sink.py DIR PORT [--cert FILE --key FILE] [--die-before-answer N]

DIR/000001.json, ...: path, headers and body of each post, in order. Without a certificate it speaks plain HTTP.
`--die-before-answer`: the N-th post is kept, and the process killed before it says so. Prints `ready PORT`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import ssl
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any


def handler_of(args: argparse.Namespace) -> type[BaseHTTPRequestHandler]:
    """What keeps posts."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 20

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            number = 1 + len(list(args.dir.glob("*.json")))
            path = args.dir / f"{number:06d}.json"
            headers = {name.lower(): value for name, value in self.headers.items()}
            kept = {"path": self.path, "headers": headers, "body": body.decode()}
            path.with_suffix(".part").write_text(json.dumps(kept))
            path.with_suffix(".part").rename(path)
            if number == args.die_before_answer:
                os.kill(os.getpid(), signal.SIGKILL)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *words: Any) -> None:
            pass

    return Handler


def main() -> None:
    """Read the command line; serve until killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dir", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--cert", type=Path)
    parser.add_argument("--key", type=Path)
    parser.add_argument("--die-before-answer", type=int, default=0)
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    try:
        server = HTTPServer(("127.0.0.1", args.port), handler_of(args))
    except OSError as error:
        sys.exit(f"cannot listen on port {args.port}: {error}")
    if args.cert is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(args.cert, args.key)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    print("ready", server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
