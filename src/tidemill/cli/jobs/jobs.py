"""`tidemill jobs`: list jobs, newest first."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, client_of, count
from tidemill.cli.progress import site_waits_text
from tidemill.cli.terminal import say, show_json, show_table
from tidemill.errors import ConfigError, did_you_mean
from tidemill.model.campaign import shown_names
from tidemill.model.campaign.workers import WORKER_NAME
from tidemill.model.quantities import count_text, duration_text

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.wire.api import JobRow

LIMIT = 50
READ_MAX = 1_000  #: jobs that are read for LIMIT lines, where lines fold, or are a part of what is read


def define(parser: Parser) -> None:
    """Options of `jobs`."""
    parser.add_argument(
        "--state",
        metavar="STATE",
        help="only these: WAITING, ASSIGNED (a site has it, and nothing of it runs yet), RUNNING, COMPLETED, PARTIAL, "
        "FAILED or CANCELED",
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
        "--all",
        action="store_true",
        help="each worker of an Executor in a line of its own (default: one for all)",
    )
    parser.add_argument(
        "--limit", type=count, default=LIMIT, metavar="N", help=f"list at most N jobs (default: {LIMIT})"
    )


def run(args: Namespace) -> int:
    """List jobs."""
    from tidemill.model.state import JobState, Phase

    state = args.state.upper() if args.state else None
    states = [*JobState, Phase.ASSIGNED]
    if state is not None and state not in states:
        raise ConfigError(f"`{args.state}` is not a state of a job", hint=did_you_mean(state, states))
    client = client_of(args)
    is_folding = not (args.all or args.json or args.name)
    is_split = state in (Phase.ASSIGNED, JobState.RUNNING)  # of which the server makes no difference
    limit = max(args.limit, READ_MAX) if is_folding or is_split else args.limit
    rows = list(
        client.jobs(
            limit=limit,
            archived=args.archived,
            state=JobState.RUNNING if state == Phase.ASSIGNED else state,
            app=args.app,
            site=args.site,
            campaign=args.campaign,
            name=args.name,
        )
    )
    is_full = len(rows) == limit
    if is_split:
        rows = [row for row in rows if (row.phase == Phase.ASSIGNED) == (state == Phase.ASSIGNED)]
    if args.json:
        show_json(rows[: args.limit])
        return 0
    if not rows and args.archived:
        say("no such jobs in the archive")
        return 0
    if not rows:
        say("no jobs" if client.counts().jobs == 0 else "no such jobs")
        return 0
    groups = (folded(rows) if is_folding else [[row] for row in rows])[: args.limit]
    campaigns = shown_names([(group[0].owner, group[0].campaign) for group in groups])
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
            _cells(group[0], campaign) if len(group) == 1 else _folded_cells(group, campaign)
            for group, campaign in zip(groups, campaigns, strict=True)
        ],
        right=(0, 2, 3, 4, 5, 6),
    )
    for line in sites_waiting(client, {row.site for row in rows if row.phase == Phase.ASSIGNED and row.site}):
        say(line)
    if is_full or len(groups) == args.limit:
        say(f"the newest {'job' if args.limit == 1 else f'{args.limit:,} jobs'}; --limit shows more")
    return 0


def sites_waiting(client: Client, names: Collection[str]) -> list[str]:
    """What the work of these sites waits for: a sentence for each site that says it."""
    if not names:
        return []
    found = [site for site in client.sites() if site.name in names]
    return [f"site {site.name}: {text}" for site in found if (text := site_waits_text(site))]


def folded(rows: Sequence[JobRow]) -> list[list[JobRow]]:
    """The jobs in groups: the workers of a campaign's Executor in one, where the newest stands; all others alone."""
    groups: list[list[JobRow]] = []
    of_workers: dict[tuple[str, str], list[JobRow]] = {}
    for row in rows:
        key = (row.owner, row.campaign)
        if row.name == WORKER_NAME and key in of_workers:
            of_workers[key].append(row)
            continue
        groups.append([row])
        if row.name == WORKER_NAME:
            of_workers[key] = groups[-1]
    return groups


def _cells(row: JobRow, campaign: str) -> list[object]:
    from tidemill.model.state import told_reason

    return [
        row.id,
        row.shown_state,
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


def _folded_cells(group: Sequence[JobRow], campaign: str) -> list[object]:
    """One line for the workers of an Executor, in the state of the one that is furthest from its end."""
    states = {row.shown_state for row in group}
    state = next(
        (each for each in ("RUNNING", "ASSIGNED", "WAITING") if each in states), group[0].shown_state
    )
    failed = sum(row.events_failed for row in group)
    canceled = sum(row.events_canceled for row in group)
    return [
        f"{group[-1].id}..{group[0].id}",
        state,
        count_text(sum(row.events_done for row in group)),
        count_text(failed) if failed else "-",
        count_text(canceled) if canceled else "-",
        count_text(sum(row.events for row in group)),
        "-",
        ",".join(sorted({row.site for row in group if row.site})) or "-",
        "-",
        f"{len(group)} workers",
        campaign,
        "an Executor's; --all lists them",
    ]


def _time(started_us: int | None, ended_us: int | None) -> str:
    from tidemill import clock

    if started_us is None:
        return "-"
    return duration_text(max(0, (ended_us or clock.now_us()) - started_us) / 1e6)


COMMANDS = {"jobs": Command(define, run, "tidemill jobs --state FAILED --campaign zmumu")}
