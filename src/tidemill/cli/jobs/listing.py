"""`tidemill jobs`: list jobs, newest first."""

from __future__ import annotations

from argparse import Namespace

from tidemill.cli.arguments import Command, Parser, client_of, count
from tidemill.cli.terminal import say, show_json, show_table
from tidemill.errors import ConfigError, did_you_mean
from tidemill.model.campaign import shown_names
from tidemill.model.quantities import count_text, duration_text

LIMIT = 50


def define(parser: Parser) -> None:
    """Options of `jobs`."""
    parser.add_argument(
        "--state",
        metavar="STATE",
        help="only these: WAITING, RUNNING, COMPLETED, PARTIAL, FAILED or CANCELED",
    )
    parser.add_argument("--app", metavar="NAME", help="only jobs of this application")
    parser.add_argument("--site", metavar="NAME", help="only jobs at this site")
    parser.add_argument("--campaign", metavar="NAME", help="only jobs of this campaign")
    parser.add_argument("--name", metavar="NAME", help="only jobs of this name")
    parser.add_argument(
        "--archived",
        action="store_true",
        help="jobs of campaigns that have left the database for the archive",
    )
    parser.add_argument(
        "--limit", type=count, default=LIMIT, metavar="N", help=f"list at most N jobs (default: {LIMIT})"
    )


def run(args: Namespace) -> int:
    """List jobs."""
    from tidemill.model.state import JobState, told_reason

    state = args.state.upper() if args.state else None
    if state is not None and state not in list(JobState):
        raise ConfigError(f"`{args.state}` is not a state of a job", hint=did_you_mean(state, list(JobState)))
    client = client_of(args)
    rows = list(
        client.jobs(
            limit=args.limit,
            archived=args.archived,
            state=state,
            app=args.app,
            site=args.site,
            campaign=args.campaign,
            name=args.name,
        )
    )
    if args.json:
        show_json(rows)
        return 0
    if not rows and args.archived:
        say("no such jobs in the archive")
        return 0
    if not rows:
        say("no jobs" if client.counts().jobs == 0 else "no such jobs")
        return 0
    campaigns = shown_names([(row.owner, row.campaign) for row in rows])
    show_table(
        [
            "JOB",
            "STATE",
            "DONE",
            "FAILED",
            "CANCELED",
            "EVENTS",
            "TIME",
            "SITE",
            "APP",
            "NAME",
            "CAMPAIGN",
            "REASON",
        ],
        [
            [
                row.id,
                row.state,
                count_text(row.events_done),
                count_text(row.events_failed) if row.events_failed else "-",
                count_text(row.events_canceled) if row.events_canceled else "-",
                count_text(row.events),
                _time(row.started_us, row.ended_us),
                row.site or "-",
                row.app or "-",
                row.name or "-",
                campaign,
                told_reason(row.state, row.reason, row.ends),
            ]
            for row, campaign in zip(rows, campaigns, strict=True)
        ],
        right=(0, 2, 3, 4, 5, 6),
    )
    if len(rows) == args.limit:
        say(f"the newest {'job' if args.limit == 1 else f'{args.limit:,} jobs'}; --limit shows more")
    return 0


def _time(started_us: int | None, ended_us: int | None) -> str:
    from tidemill import clock

    if started_us is None:
        return "-"
    return duration_text(max(0, (ended_us or clock.now_us()) - started_us) / 1e6)


COMMANDS = {"jobs": Command(define, run, "tidemill jobs --state FAILED --campaign zmumu")}
