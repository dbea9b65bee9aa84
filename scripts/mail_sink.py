#!/usr/bin/env python3
"""A real SMTP server (aiosmtpd) for tests: keeps each mail as a file, on loopback only, until it is killed.

    scripts/mail_sink.py DIR PORT [--cert FILE --key FILE [--implicit]] [--login FILE] [--refuse WORD=CODE]
                         [--die-before-answer N] [--slow SECONDS]

DIR/000001.eml, ...: envelope as `X-Env-From`, `X-Env-To`, then the mail. With a certificate STARTTLS is required, with
`--implicit` TLS from the first byte. `--login`: a file with the only user and the password, a line each.
`--refuse`: recipients with WORD in them are refused with CODE. `--die-before-answer`: the N-th mail is kept, and the
process killed before it says so. `--slow`: each mail is answered with this delay. Prints `ready PORT`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import ssl
import sys
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session


class Handler:
    """Keeps mails."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._count = len(list(args.dir.glob("*.eml")))

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Take a recipient, or refuse it."""
        word, _, code = self._args.refuse.partition("=")
        if word and word in address:
            return f"{code} no mail for {address} here"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """Keep a mail."""
        self._count += 1
        path = self._args.dir / f"{self._count:06d}.eml"
        head = f"X-Env-From: {envelope.mail_from}\r\nX-Env-To: {', '.join(envelope.rcpt_tos)}\r\n"
        content = envelope.content if isinstance(envelope.content, bytes) else str(envelope.content).encode()
        path.with_suffix(".part").write_bytes(head.encode() + content)
        path.with_suffix(".part").rename(path)
        if self._count == self._args.die_before_answer:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(self._args.slow)
        return "250 kept"


def server_of(args: argparse.Namespace, tls: ssl.SSLContext | None) -> SMTP:
    """One connection's protocol."""
    user, password = args.login.read_text().splitlines() if args.login else ("", "")

    def check(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        given = (data.login, data.password) if isinstance(data, LoginPassword) else None
        return AuthResult(success=given == (user.encode(), password.encode()), handled=False)

    return SMTP(
        Handler(args),
        hostname="localhost",
        tls_context=None if args.implicit else tls,
        require_starttls=tls is not None and not args.implicit,
        authenticator=check if args.login else None,
        auth_required=bool(args.login),
        auth_require_tls=not args.implicit,
    )


async def serve(args: argparse.Namespace) -> None:
    """Serve until killed."""
    tls = None
    if args.cert is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(args.cert, args.key)
    server = await asyncio.get_running_loop().create_server(
        lambda: server_of(args, tls), "127.0.0.1", args.port, ssl=tls if args.implicit else None
    )
    print("ready", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dir", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--cert", type=Path)
    parser.add_argument("--key", type=Path)
    parser.add_argument("--implicit", action="store_true")
    parser.add_argument("--login", type=Path)
    parser.add_argument("--refuse", default="")
    parser.add_argument("--die-before-answer", type=int, default=0)
    parser.add_argument("--slow", type=float, default=0.0)
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    try:
        asyncio.run(serve(args))
    except OSError as error:
        sys.exit(f"cannot listen on port {args.port}: {error}")


if __name__ == "__main__":
    main()
