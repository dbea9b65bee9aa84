"""`tidemill web`: the server's pages in a browser on this machine, or through ssh on another."""

from __future__ import annotations

import contextlib
import getpass
import socket
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, client_of, port
from tidemill.cli.terminal import flush, hint, say, show, show_json
from tidemill.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.client.client import Client


def define(parser: Parser) -> None:
    """Options of `web`."""
    parser.add_argument(
        "--port", type=port, default=0, metavar="P", help="port on 127.0.0.1 (default: any free one)"
    )


def run(args: Namespace) -> int:
    """Print an address that works once, and serve pages until Ctrl-C."""
    client = client_of(args)
    client.health()
    address = client.place.address
    if not address.startswith("unix:"):
        return _elsewhere(args, address)
    return _serve(args, client, Path(address.removeprefix("unix:")))


def _elsewhere(args: Namespace, address: str) -> int:
    """The pages of a server that listens itself."""
    urls = address.split(",")
    if args.json:
        show_json({"url": urls[0] + "/"})
        return 0
    show(urls[0] + "/")
    hint("log in with your client certificate, or paste a token or the server's secret")
    return 0


def _serve(args: Namespace, client: Client, server_socket: Path) -> int:
    import asyncio

    from tidemill.server.web.visits.loopback import TOKEN_S, LoopbackPort

    async def serve() -> None:
        entry = LoopbackPort(server_socket)
        try:
            server = await entry.start(args.port)
        except OSError as error:
            raise ConfigError(
                f"failed to listen on 127.0.0.1:{args.port}: {error.strerror}", hint="leave out --port"
            ) from error
        url = entry.url()
        forward = f"ssh -L {entry.port}:127.0.0.1:{entry.port} {getpass.getuser()}@{socket.gethostname()}"
        if args.json:
            show_json({"url": url, "forward": forward})
        else:
            say("this command shows the pages until you press Ctrl-C; jobs go on without it")
            show(url)
        flush()  # a script that reads the URL from a pipe needs it while this runs
        if not args.json:
            say(f"this URL works once, within {TOKEN_S / 60:.0f} minutes")
            say(f"from another computer, run there first: {forward}")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()  # without a wait for its connections: a page that is open holds one

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
    return 0


COMMANDS = {"web": Command(define, run, "tidemill web")}
