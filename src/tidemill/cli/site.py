"""`tidemill site run|drain|resume`: a site's agent, and how its operator stops it."""

from __future__ import annotations

from argparse import Namespace

from tidemill.cli.arguments import Command, Parser
from tidemill.cli.site_edit import define_directory, read_site, site_directory
from tidemill.cli.terminal import hint, say

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def define_run(parser: Parser) -> None:
    """Options of `site run`."""
    define_directory(parser)
    parser.add_argument(
        "--take-over", action="store_true", help="serve the site even if another agent seems to live"
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
    parser.add_argument(
        "--with-parent", type=int, metavar="PID", help="end when this parent process ends (default: none)"
    )


def define_reason(parser: Parser) -> None:
    """Options of `site drain` and `site resume`."""
    define_directory(parser)
    parser.add_argument(
        "--reason", required=True, metavar="TEXT", help="why, for those who ask later (required)"
    )


def run(args: Namespace) -> int:
    """Run the site's agent."""
    from tidemill import log
    from tidemill.cli.supervise import end_with_parent
    from tidemill.site.run import run_agent

    directory = site_directory(args)
    if args.with_parent is not None:
        end_with_parent(args.with_parent)
    log.to_stderr(args.log_level)
    return run_agent(
        directory,
        read_site(directory),
        once=args.once,
        take_over=args.take_over,
        stop_pilots=args.stop_pilots,
    )


def drain(args: Namespace) -> int:
    """Write the STOP file: the agent takes no more work, pilots finish what they have and leave."""
    from tidemill.site.drain import drained, request_drain

    directory = site_directory(args)
    before = drained(directory)
    if before is not None:
        say(f"already stopped: {before or 'no reason given'}")
        return 0
    request_drain(directory, args.reason)
    say("stopped: nothing new starts, nodes are given back within a minute; it stays so through restarts")
    hint("`tidemill site resume --reason TEXT` lets it work again")
    return 0


def resume(args: Namespace) -> int:
    """Let the site work again; both reasons are kept in SITE/resumed.log."""
    from tidemill.site.drain import drained, request_resume

    directory = site_directory(args)
    config = read_site(directory)
    before = drained(directory)
    if before is None and not (config.stop_file and config.stop_file.exists()):
        say("it was not stopped")
        return 0
    request_resume(directory, args.reason, stop_file=config.stop_file)
    say("resumed")
    return 0


COMMANDS = {
    "site run": Command(define_run, run, "tidemill site run DIR", talks=False),
    "site drain": Command(define_reason, drain, "tidemill site drain --reason 'maintenance on Monday'", talks=False),
    "site resume": Command(define_reason, resume, "tidemill site resume --reason 'maintenance is over'", talks=False),
}  # fmt: skip
