"""`tidemill server broker-setup`: what RabbitMQ needs for Tidemill, printed or applied."""

from __future__ import annotations

import json
import shlex
import subprocess
from argparse import Namespace
from pathlib import Path

from tidemill.cli.arguments import Command, Parser
from tidemill.cli.server.service import server_config
from tidemill.cli.terminal import hint, say, show, show_lines
from tidemill.errors import SiteError

APPLY_S = 120.0


def define(parser: Parser) -> None:
    """Options of `server broker-setup`."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="server.toml with `[amqp]` (default: HOME/server/server.toml)",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--apply",
        action="store_true",
        help="import it with rabbitmqctl, on the broker's machine (default: print it)",
    )
    how.add_argument(
        "--commands",
        action="store_true",
        help="print lines of shell instead of RabbitMQ's definitions (JSON)",
    )
    parser.add_argument(
        "--queue-type",
        choices=["classic", "quorum"],
        default="classic",
        help="type of the queues; `quorum` where the broker is a cluster (default: classic)",
    )
    parser.add_argument(
        "--rabbitmqctl",
        default="rabbitmqctl",
        metavar="WORDS",
        help="how rabbitmqctl is called, such as `sudo rabbitmqctl` (default: rabbitmqctl)",
    )


def run(args: Namespace) -> int:
    """Print or apply users, rights, exchanges, queues and limits."""
    from tidemill_messages.server.setup import commands, definitions, vhost_of
    from tidemill_messages.settings import amqp_of

    config = amqp_of(server_config(args))
    vhost = vhost_of(config)
    if args.commands:
        for line in commands(config, vhost, ctl=args.rabbitmqctl, queue_type=args.queue_type):
            show(line)
        return 0
    made = definitions(config, vhost, queue_type=args.queue_type)
    if not args.apply:
        show_lines(json.dumps(made, indent=1))
        hint(
            "give it to the broker's staff, for `rabbitmqctl import_definitions FILE`; or use --commands or --apply"
        )
        return 0
    _apply(shlex.split(args.rabbitmqctl), made)
    say(
        f"the broker has virtual host `{vhost}` with {len(made['users'])} users, {len(made['exchanges'])} exchanges "
        f"and {len(made['queues'])} queues"
    )
    return 0


def _apply(ctl: list[str], made: dict[str, object]) -> None:
    """Import. What is there already stays, with the new rights and limits."""
    words = [*ctl, "import_definitions"]
    try:
        done = subprocess.run(
            words, input=json.dumps(made), capture_output=True, text=True, timeout=APPLY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SiteError(
            f"failed to run `{shlex.join(words)}`: {error}",
            hint="run it on the broker's machine, as root or user rabbitmq; or print the definitions and import those",
            transient=False,
        ) from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["nothing was said"]
        raise SiteError(
            f"`{shlex.join(words)}` ended with {done.returncode}: {last[0]}",
            hint="it must run where the broker does, as a user who can read its Erlang cookie",
            transient=False,
        )


COMMANDS = {
    "server broker-setup": Command(
        define, run, "tidemill server broker-setup --config server.toml > definitions.json", talks=False
    ),
}
