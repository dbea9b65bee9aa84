"""A TCP proxy that makes a server far away: for tests and benches where the kernel has no netem.

    scripts/delay_proxy.py LISTEN_PORT HOST:PORT RTT_MS WINDOW_KB [--control PORT]

Each way takes half of RTT_MS, and at most WINDOW_KB are under way in each direction of a connection until the other end
has acknowledged them, so that one connection carries WINDOW_KB / RTT_MS, as with TCP. A new connection costs one round
trip more. Port 0 = a free one. The first line of stdout is `{"port": ..., "control": ...}`.

The control port of loopback takes one command a line and answers with one line of JSON, always the counts so far:

    count          nothing else
    cut            end all connections at once, with a reset
    refuse         end connections, and refuse new ones until `accept`
    accept         accept connections again
    rtt MS         another round trip from now on
    reset          set the counts to zero

`up` and `down` are bytes that were read from clients and from the server, `connections` those that reached the server,
`open` those that are there now. A cut may lose bytes that were counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "extensions" / "caches" / "src"))

from tidemill_caches.study.line import DelayedLine, obey


async def main(args: argparse.Namespace) -> None:
    """Listen on both ports until killed."""
    host, _, port = args.target.rpartition(":")
    line = DelayedLine(host, int(port), rtt_ms=args.rtt_ms, window_bytes=args.window_kb * 1024)

    async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while words := (await reader.readline()).decode().split():
            writer.write(f"{obey(line, words)}\n".encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(line.serve, "127.0.0.1", args.listen_port, backlog=1024)
    controls = await asyncio.start_server(control, "127.0.0.1", args.control)
    ports = {"port": server.sockets[0].getsockname()[1], "control": controls.sockets[0].getsockname()[1]}
    print(json.dumps(ports), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("listen_port", type=int)
    parser.add_argument("target", metavar="HOST:PORT")
    parser.add_argument("rtt_ms", type=float)
    parser.add_argument("window_kb", type=int)
    parser.add_argument("--control", type=int, default=0)
    asyncio.run(main(parser.parse_args()))
