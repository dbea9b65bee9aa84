"""`tidemill message submit|follow`: jobs in and state changes out by the message broker."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, duration
from tidemill.cli.command.lines import check_lists
from tidemill.cli.terminal import flush, hint, say, show, show_json

if TYPE_CHECKING:
    from tidemill_messages.messenger import Messenger

FILE = "client.toml"
CONNECT_S = 30.0


def define_submit(parser: Parser) -> None:
    """Options of `message submit`."""
    _file(parser)
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="a job file in TOML, as for `tidemill submit`"
    )
    parser.add_argument("--campaign", metavar="NAME", help="the campaign (default: the file's, or a new one)")
    parser.add_argument(
        "--key",
        metavar="KEY",
        help="submit once under this key, however often this is repeated (default: a new key)",
    )


def define_follow(parser: Parser) -> None:
    """Options of `message follow`."""
    _file(parser)
    parser.add_argument("--campaign", metavar="NAME", help="show this campaign's only (default: all)")
    parser.add_argument(
        "--quiet-for", type=duration, metavar="T", help="exit when no message arrives for T (default: go on)"
    )


def _file(parser: Parser) -> None:
    parser.add_argument(
        "--messages",
        type=Path,
        metavar="FILE",
        help=f"a file such as {FILE}, with a broker as its `server` (default: HOME/{FILE})",
    )


def submit(args: Namespace) -> int:
    """Submit a job file by message, and wait for the server's answer."""
    from tidemill.client.jobfile import load_job_file, submit_job_file

    file = load_job_file(args.file)
    check_lists(file.jobs, source=args.file)
    messenger = _messenger(args)
    try:
        sent = submit_job_file(messenger, file, campaign=args.campaign, key=args.key)
    finally:
        messenger.close()
    if args.json:
        show_json(sent)
        return 0
    say(
        f"submitted {len(sent.jobs)} jobs in campaign `{sent.campaign}`"
        + (", earlier" if sent.repeated else "")
    )
    hint(f"`tidemill message follow --campaign {sent.campaign}` shows how they run")
    for job in sent.jobs[:1000]:
        show(str(job))
    return 0


def follow(args: Namespace) -> int:
    """Show state changes as they come. What was shown is gone from the queue."""
    import msgspec

    from tidemill_messages.names import Gap

    messenger = _messenger(args)
    try:
        for change in messenger.changes(timeout_s=args.quiet_for):
            if isinstance(change, Gap):
                say(
                    f"changes {change.first} to {change.last} waited too long and are gone: ask the server itself"
                )
            elif args.campaign in (None, change.campaign):
                if args.json:
                    show(msgspec.json.encode(change).decode())
                else:
                    show(
                        f"{change.number} job {change.job} of {change.campaign}: {change.state}, {_events(change)}"
                    )
                flush()
    finally:
        messenger.close()
    return 0


def _events(change: object) -> str:
    done, failed = getattr(change, "events_done", 0), getattr(change, "events_failed", 0)
    canceled = getattr(change, "events_canceled", 0)
    ended = f", {failed} failed" if failed else ""
    return f"{done} events done{ended}" + (f", {canceled} canceled" if canceled else "")


def _messenger(args: Namespace) -> Messenger:
    from tidemill import config
    from tidemill.client.home import ClientConfig, home_dir
    from tidemill_messages.messenger import open_messenger

    home = home_dir(args.home)
    read = config.load(args.messages or home / FILE, ClientConfig)
    return open_messenger(read, retry_s=CONNECT_S)


COMMANDS = {
    "message submit": Command(
        define_submit, submit, "tidemill message submit jobs.toml --key run-7", talks=False
    ),
    "message follow": Command(
        define_follow, follow, "tidemill message follow --campaign zmumu --json", talks=False
    ),
}
