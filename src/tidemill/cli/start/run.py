"""`tidemill run`: one person, one command, any number of events, no configuration."""

from __future__ import annotations

import argparse
import uuid
from argparse import Namespace
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.arguments import (
    Command,
    Parser,
    count,
    count_or_zero,
    define_raw,
    memory_span,
    size_mb,
    wall_span,
)
from tidemill.cli.command.places import check_output_dir
from tidemill.cli.jobs.dry_run import check_places, show_plan
from tidemill.cli.jobs.follow import follow
from tidemill.cli.jobs.outcome import Telling, tell_outcome
from tidemill.cli.jobs.submit import define_gpus, define_width
from tidemill.cli.start.composing import RETRIES, CommandFiles, compose
from tidemill.cli.start.resume import dry_resume, refuse_others, resume
from tidemill.cli.start.up import define_credentials
from tidemill.cli.terminal import about_campaign, say, stderr_is_terminal
from tidemill.errors import ConfigError, TidemillError

if TYPE_CHECKING:
    from tidemill.client.client import Client, Submission
    from tidemill.model.job import JobSpec

OUTPUT_DIR = Path("tidemill-out")


def define(parser: Parser) -> None:
    """Options of `run`."""
    parser.usage = "tidemill run [OPTIONS] -- CMD [ARG ...]"
    _define_events(parser)
    parser.add_argument("--cores", type=count, metavar="C", help="cores of each CMD (default: 1)")
    parser.add_argument(
        "--memory",
        type=memory_span,
        metavar="SIZE",
        help="memory of each CMD: `2G`, `500MB`, or MB; `2G..8G`: 2 GB, and up to 8 GB for events that need more "
        "(default: the site's, 2000 MB)",
    )
    parser.add_argument(
        "--scratch",
        type=size_mb,
        metavar="SIZE",
        help="room for work directory, inputs and /tmp of each CMD: `4G`, or MB (default: what --memory leaves of a "
        "core's part of the node's memory, 50 to 1000 MB)",
    )
    define_gpus(parser)
    define_width(parser)
    parser.add_argument(
        "--wall",
        type=wall_span,
        metavar="T",
        help="kill a CMD after this: `30s`, `90m` or HH:MM:SS; `10m..2h`: 10 minutes, and up to 2 hours for events "
        "that need longer (default: never)",
    )
    parser.add_argument("--site", metavar="NAME", help="run only there (default: any site)")
    parser.add_argument(
        "--at-once",
        type=count,
        metavar="N",
        help="run at most N CMDs at the same time (default: as many as there are slots)",
    )
    parser.add_argument(
        "--retries",
        type=count_or_zero,
        metavar="N",
        help=f"retry a failed event up to N times (default: {RETRIES}; 0 for a single event)",
    )
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument(
        "--failed-max",
        type=count_or_zero,
        metavar="N",
        help="accept up to N failed events, stop at more (default: go on, and exit 1 if any failed)",
    )
    bound.add_argument(
        "--fail-fast", action="store_true", help="stop at the first failed event (default: go on)"
    )
    _define_files(parser)
    _define_environment(parser)
    _define_campaign(parser)
    define_raw(parser)
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- CMD",
        help="the command; {event} {seed} {line} {first_event} {last_event} {events} {cores} and the names of columns "
        "are filled in, other braces stay",
    )


def _define_events(parser: Parser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--events", type=count, metavar="N", help="run CMD for N events, numbered from 0 (default: 1)"
    )
    which.add_argument(
        "--each",
        type=Path,
        metavar="FILE",
        help="one event for each line of FILE, available as {line}; for each row of FILE.csv or FILE.tsv, whose first "
        "line names the columns, available as {COLUMN}; `-` reads lines from stdin (default: none)",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="one event for each value, `mass=100,125,150` or `n=1..10`, available as {NAME}; repeatable: all "
        "combinations",
    )
    parser.add_argument(
        "--zip",
        action="store_true",
        help="take the lists of --sweep value by value (default: all combinations)",
    )


def _define_files(parser: Parser) -> None:
    parser.add_argument(
        "--keep-stdout",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep what CMD prints, as output `stdout` (default: --keep-stdout; job files: `keep_stdout = false`)",
    )
    stdin = parser.add_mutually_exclusive_group()
    stdin.add_argument(
        "--stdin",
        action="store_true",
        help="give CMD the rest of stdin (default: the same, unless a loop reads stdin, too)",
    )
    stdin.add_argument(
        "--no-stdin", action="store_true", help="give CMD no stdin (default: a single event gets all of it)"
    )
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="PATH",
        help="a file that CMD leaves, such as hits-{event}.root; `DIR/` or 'hist*.root' as a tar archive; repeatable "
        "(default: none)",
    )
    parser.add_argument(
        "--pack",
        choices=("files", "tar"),
        metavar="HOW",
        help="deliver each --output as `files`, one for each event, or as one `tar` archive (default: files up to "
        "4,096 events, else tar; stdout: tar)",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="a file, directory or pattern such as 'cards/*.dat' that CMD finds in its work directory, read-only and "
        "executable (`cp --no-preserve=mode IN OUT` makes a plain, writable copy); repeatable",
    )
    parser.add_argument(
        "--dir", type=Path, metavar="DIR",
        help="outputs go to DIR/CAMPAIGN (default: ./tidemill-out; with a server by http or https, where the site "
        "keeps outputs)",
    )  # fmt: skip


def _define_environment(parser: Parser) -> None:
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]", help="a variable for CMD; repeatable"
    )
    parser.add_argument(
        "--env-all",
        action="store_true",
        help="pass all variables of this shell, except those of the login session and those that may hold secrets "
        "(default: pass those by which programs are found: PATH, conda and virtual environments, ROOTSYS and the like)",
    )
    parser.add_argument(
        "--container",
        metavar="IMAGE",
        help="run CMD in this image: a directory, a .sif file, or NAME@sha256:DIGEST (default: none)",
    )
    define_credentials(parser)


def _define_campaign(parser: Parser) -> None:
    parser.add_argument(
        "--name", metavar="NAME", help="the campaign's name, not used before (default: CMD and the time)"
    )
    parser.add_argument(
        "--resume",
        metavar="NAME",
        help="go on with this campaign: follow it, or run failed and unfinished events again; takes no CMD, and of the "
        "other options only --memory, --scratch, --wall, --cores, --dir, --env, --retries, --failed-max and --at-once "
        "(default: none)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print jobs, events, files, cost and end; submit and run nothing",
    )


def run(args: Namespace) -> int:
    """Submit, follow, print how it ended."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.resume is not None:
        refuse_others(args, command, define)
        if args.dry_run:
            return dry_resume(args, _running(args))
        return resume(args, _client(args), _telling(args)._replace(with_files=True))
    if not command:
        raise ConfigError("`tidemill run` needs a command", hint="tidemill run --events 10 -- ./prog {event}")
    from tidemill.client.client import check_name, new_campaign
    from tidemill.client.home import home_dir

    args.cores = args.cores or 1
    args.keep_stdout = args.keep_stdout is not False
    if args.name is not None:
        check_name(args.name, "campaign")
    campaign = args.name or new_campaign(Path(command[0]).name)
    spool = CommandFiles(home_dir(args.home) / "inputs" / campaign, dry=args.dry_run)
    if args.dry_run:
        return _dry_run(args, command, campaign, spool)
    is_far = _is_far(args)
    _place(args, campaign, is_far=is_far)
    is_checked = bool(args.name) and _refuse_known(args, campaign)  # before stdin is read
    try:
        spec = compose(args, command, campaign=campaign, spool=spool, reads_here=not is_far)
        client = _client(args)
        if args.name and not is_checked:  # the server has just started
            _refuse_known(args, campaign)
        check_places(client, [spec], refuse=True)
    except BaseException:
        spool.drop()
        raise
    sent = _send(client, spec, campaign, spool)
    # One event is as if its command ran here: without a terminal only its own output is printed.
    quiet = args.json or (spec.events == 1 and not stderr_is_terminal())
    row, interrupted = follow(client, sent, quiet=quiet)
    with about_campaign(campaign):
        return tell_outcome(client, sent.jobs[0], row, _telling(args)._replace(interrupted=interrupted))


def _send(client: Client, spec: JobSpec, campaign: str, spool: CommandFiles) -> Submission:
    """Submit. After Ctrl-C the server may have the job although no answer has come: sent again with the same key it is
    the same job, which is canceled."""
    from tidemill.client.client import Wishes

    # of two commands with the same name at the same time, the server accepts one
    submit = partial(client.submit, spec, campaign=campaign, key=uuid.uuid4().hex, wishes=Wishes(new=True))
    try:
        return submit()
    except TidemillError as error:
        spool.drop_if_refused(error)
        raise
    except KeyboardInterrupt:
        say("canceling what was submitted; Ctrl-C again leaves at once")
        with suppress(TidemillError):  # the server refuses it, or does not answer
            client.cancel(submit().jobs, reason="interrupted by Ctrl-C")
        raise


def _telling(args: Namespace) -> Telling:
    return Telling(as_json=args.json, raw=args.raw, failed_max=args.failed_max, with_files=bool(args.output))


def _running(args: Namespace) -> Client:
    """The server that is named or found. Raises ConfigError if there is none: a dry run starts no server."""
    from tidemill.client.client import Client

    return Client(args.server, secret_file=args.secret_file, home=args.home)


def _dry_run(args: Namespace, command: list[str], campaign: str, spool: CommandFiles) -> int:
    """Check everything, print what would happen; starts and writes nothing."""
    from tidemill.client.client import Client
    from tidemill.client.home import find_server

    is_far = _is_far(args)
    _place(args, campaign, is_far=is_far)
    spec = compose(args, command, campaign=campaign, spool=spool, reads_here=not is_far)
    place = find_server(args.server, secret_file=args.secret_file, home=args.home)
    client = None
    if place is not None:
        client = Client(args.server, secret_file=args.secret_file, home=args.home)
        if args.name:
            _refuse_known(args, campaign)
        check_places(client, [spec], refuse=True)
    show_plan(client, [(spec, 1)], as_json=args.json)
    return 0


def _place(args: Namespace, campaign: str, *, is_far: bool) -> None:
    """Choose where outputs go. Raises ConfigError for a directory on this machine that cannot be written."""
    if is_far:
        return
    if args.dir is None:
        args.dir = OUTPUT_DIR
    if args.keep_stdout or args.output:
        check_output_dir(args.dir, campaign, writes=not args.dry_run)


def _is_far(args: Namespace) -> bool:
    """Whether the server is far; a server that is still to be started will be the user's own."""
    from tidemill.client.home import find_server

    place = find_server(args.server, secret_file=args.secret_file, home=args.home)
    return place is not None and place.is_far


def _refuse_known(args: Namespace, campaign: str) -> bool:
    """ConfigError if the campaign exists: its jobs and those of this command would be one. False if there is no server
    to ask."""
    from tidemill.client.client import Client
    from tidemill.client.home import find_server
    from tidemill.wire.server_connection import NotFoundError

    if find_server(args.server, secret_file=args.secret_file, home=args.home) is None:
        return False
    try:
        client = Client(args.server, secret_file=args.secret_file, home=args.home)
        row = client.campaign(client.own(campaign))
    except NotFoundError:
        return True
    states = ", ".join(f"{number} {state}" for state, number in sorted(row.states.items()))
    raise ConfigError(
        f"campaign `{campaign}` exists: {row.events_done} of {row.events} events done ({states})",
        hint=f"`tidemill run --resume {campaign}` goes on with it; another --name starts a new one",
    )


def _client(args: Namespace) -> Client:
    """The server named, or found, or a new private one."""
    from tidemill.cli.start.up import start_detached
    from tidemill.client.client import Client
    from tidemill.client.home import find_server, home_dir

    home = home_dir(args.home)
    place = find_server(args.server, secret_file=args.secret_file, home=args.home)
    if place is None or place.is_own:
        _refuse_observing(home)
    if place is not None and args.with_credentials:
        _refuse_hidden(home, args.with_credentials, is_own=place.is_own)
    if place is None:
        up = start_detached(home, with_credentials=args.with_credentials)
        say(
            f"started a server and a site for you in `{home}` (process {up.pid}); `tidemill up --stop` ends them"
        )
    return Client(args.server, secret_file=args.secret_file, home=args.home)


def _refuse_hidden(home: Path, credentials: list[Path], *, is_own: bool) -> None:
    """ConfigError if the site that runs already hides one of these."""
    from tidemill import config
    from tidemill.config.site import SiteConfig

    if not is_own:
        raise ConfigError(
            "--with-credentials shows files to programs on your own site; this server is another one",
            hint="an `--input` brings a file to the program, wherever it runs",
        )
    shown = config.load(home / "site" / "site.toml", SiteConfig).show
    hidden = [each for each in credentials if each not in shown]
    if hidden:
        raise ConfigError(
            f"your site runs already, and hides `{hidden[0]}`",
            hint="`tidemill up --stop` ends it; the next `tidemill run --with-credentials` starts one that shows it",
        )


def _refuse_observing(home: Path) -> None:
    """ConfigError if your own site submits nothing: the command would wait for ever."""
    from tidemill import config
    from tidemill.config.site import SiteConfig

    path = home / "site" / "site.toml"
    if path.exists() and config.load(path, SiteConfig).mode == "observe":
        raise ConfigError(
            f'your site only observes: `{path}` has `mode = "observe"`',
            hint="`tidemill site enable` lets it submit jobs as you; it prints the bounds",
        )


COMMANDS = {
    "run": Command(
        define,
        run,
        "tidemill run --events 1000 --output hits-{event}.root -- ./prog {seed} hits-{event}.root",
    )
}
