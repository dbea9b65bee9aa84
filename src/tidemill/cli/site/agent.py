"""`tidemill site run|drain|resume|deny|allow`: a site's agent, and how its operator stops it, or one submitter."""

from __future__ import annotations

import shlex
from argparse import Namespace

from tidemill.cli.arguments import Command, Parser, define_log_format
from tidemill.cli.site.directory import define_directory, read_site, site_directory
from tidemill.cli.terminal import hint, say
from tidemill.errors import ConfigError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def define_run(parser: Parser) -> None:
    """Options of `site run`."""
    define_directory(parser)
    parser.add_argument(
        "--take-over", action="store_true", help="serve the site even if another agent seems to live"
    )
    parser.add_argument(
        "--only",
        choices=["transfer"],
        help="`transfer`: only move data, for an agent elsewhere whose `transfer.where` is `apart` (default: all)",
    )
    parser.add_argument("--once", action="store_true", help="do what is due and end, for cron")
    parser.add_argument(
        "--stop-pilots",
        action="store_true",
        help="give all allocations back at the end (default: they go on)",
    )
    parser.add_argument(
        "--log-level", choices=LEVELS, default="INFO", help="what is logged to stderr (default: INFO)"
    )
    define_log_format(parser)
    parser.add_argument(
        "--with-parent", type=int, metavar="PID", help="end when this parent process ends (default: none)"
    )


def define_reason(parser: Parser) -> None:
    """Options of `site drain` and `site resume`."""
    define_directory(parser)
    parser.add_argument(
        "--reason", required=True, metavar="TEXT", help="why, for those who ask later (required)"
    )


def define_submitter(parser: Parser) -> None:
    """Options of `site deny` and `site allow`."""
    parser.add_argument(
        "submitter",
        metavar="SUBMITTER",
        help="the submitter's name, as `tidemill site status` or a log shows it",
    )
    define_reason(parser)


def run(args: Namespace) -> int:
    """Run the site's agent."""
    from tidemill import log
    from tidemill.cli.supervise import end_with_parent
    from tidemill.site.run import run_agent

    directory = site_directory(args)
    if args.with_parent is not None:
        end_with_parent(args.with_parent)
    log.to_stderr(args.log_level, args.log_format)
    config = read_site(directory)
    if args.only == "transfer":
        from tidemill.site.data.transfer_node import run_mover

        if config.transfer.where != "apart":
            raise ConfigError(
                f"the agent of site `{config.name}` moves its data itself",
                hint='set `where = "apart"` in `[transfer]` of site.toml and start the agent again',
            )
        return run_mover(directory, config, once=args.once, take_over=args.take_over)
    return run_agent(
        directory,
        config,
        once=args.once,
        take_over=args.take_over,
        stop_pilots=args.stop_pilots,
    )


def drain(args: Namespace) -> int:
    """Write the STOP file: the agent takes no more work, pilots finish what they have and leave."""
    from tidemill.site.staff.drain import drained, request_drain, way_out

    directory = site_directory(args)
    end = way_out(shlex.quote(str(args.dir)) if args.dir else "", stop_file=read_site(directory).stop_file)
    before = drained(directory)
    if before is not None:
        say(f"already stopped: {before or 'no reason given'}")
        hint(end)
        return 0
    request_drain(directory, args.reason)
    say("stopped: nothing new starts, nodes are released within a minute; a restart does not change that")
    hint(end)
    return 0


def resume(args: Namespace) -> int:
    """Let the site work again; both reasons are kept in SITE/resumed.log."""
    from tidemill.site.staff.drain import drained, paused, request_resume

    directory = site_directory(args)
    config = read_site(directory)
    before = drained(directory)
    if before is None and paused(directory) is None and not (config.stop_file and config.stop_file.exists()):
        say("it was not stopped")
        return 0
    request_resume(directory, args.reason, stop_file=config.stop_file)
    say("resumed")
    return 0


def deny(args: Namespace) -> int:
    """Let nothing of a submitter run here, whatever the server says: the agent ends his payloads within seconds."""
    from tidemill.site.staff import denials

    directory = site_directory(args)
    read_site(directory)
    if not denials.deny(directory, args.submitter, args.reason):
        say(f"`{args.submitter}` is denied already")
        return 0
    say(
        f"denied `{args.submitter}`: what runs of him ends, and goes back to the server; it stays so through restarts"
    )
    hint("`tidemill site allow SUBMITTER --reason TEXT` undoes it")
    return 0


def allow(args: Namespace) -> int:
    """Let a submitter's jobs run here again; who said so and why is kept in SITE/denied.log."""
    from tidemill.site.staff import denials

    directory = site_directory(args)
    read_site(directory)
    denials.allow(directory, args.submitter, args.reason)
    say(f"allowed `{args.submitter}`: jobs that were returned run here again after `tidemill job retry`")
    return 0


COMMANDS = {
    "site run": Command(define_run, run, "tidemill site run DIR", talks=False),
    "site drain": Command(define_reason, drain, "tidemill site drain --reason 'maintenance on Monday'", talks=False),
    "site resume": Command(define_reason, resume, "tidemill site resume --reason 'maintenance is over'", talks=False),
    "site deny": Command(define_submitter, deny, "tidemill site deny mallory --reason 'mines coins'", talks=False),
    "site allow": Command(define_submitter, allow, "tidemill site allow ada --reason 'it was her cat'", talks=False),
}  # fmt: skip
