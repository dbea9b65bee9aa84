"""`tidemill wait`: returns when jobs or campaigns have ended; for scripts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, client_of, duration
from tidemill.cli.jobs.follow import hint_retry, jobs_text, states_text, tell_jobs
from tidemill.cli.jobs.named import known_campaign, split_names
from tidemill.cli.jobs.outcome import is_good, may_be_missed, tell_places
from tidemill.cli.terminal import hint, say, show_json
from tidemill.errors import ConfigError, SiteError
from tidemill.model.quantities import counted_text

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.wire.api import JobRow

SHOWN = 5


def define(parser: Parser) -> None:
    """Options of `wait`."""
    parser.add_argument(
        "names", nargs="*", metavar="NAME|JOB", help="campaigns, numbers of jobs, or ranges such as 3-9"
    )
    parser.add_argument(
        "--timeout", type=duration, metavar="T", help="wait at most T, then exit with 3 (default: no limit)"
    )


def run(args: Namespace) -> int:
    """Wait; 0 if everything is COMPLETED, or PARTIAL within what its owner accepts; 1 otherwise."""
    from tidemill.client.client import RETRY_S

    jobs, campaigns = split_names(args.names)
    if not args.names:
        raise ConfigError(
            "`tidemill wait` needs a campaign or a job", hint="tidemill wait zmumu, tidemill wait 3-9"
        )
    client = client_of(args)
    names = [known_campaign(client, name) for name in campaigns]
    for job in sorted({*jobs[:1], *jobs[-1:]}):  # before it says that it waits for them
        client.job(job)
    client.retry_s = RETRY_S
    client.notice = None if args.json else say
    rows = _wait(client, [*names, *([jobs] if jobs else [])], timeout_s=args.timeout, quiet=args.json)
    if args.json:
        show_json(rows)
    states: dict[str, int] = {}
    for row in rows:
        states[row.state] = states.get(row.state, 0) + 1
    bad = first_bad(client, rows)
    if not args.json:
        say(states_text(states))
        _tell_places(client, rows)
        tell_jobs(client, bad)
        _hint(bad, names)
    return 1 if bad else 0


def _wait(
    client: Client, what: Sequence[str | list[int]], *, timeout_s: float | None, quiet: bool
) -> list[JobRow]:
    """Wait for campaigns and jobs, and say for which, and why nothing of them runs; their rows."""
    from tidemill import clock
    from tidemill.cli.progress import WaitingCause, WaitingNotice

    deadline = None if timeout_s is None else clock.monotonic_s() + timeout_s
    rows: list[JobRow] = []
    for each in what:
        left = None if deadline is None else max(0.0, deadline - clock.monotonic_s())
        name = f"campaign `{each}`" if isinstance(each, str) else jobs_text(each)
        if not quiet:
            say(f"waiting for {name.rstrip(',')}")
        notice = WaitingNotice(WaitingCause(client, () if isinstance(each, str) else set(each)))
        try:
            rows += client.wait(each, timeout_s=left, on_progress=notice)
        except TimeoutError as error:
            raise SiteError(
                f"{name} had not ended within {timeout_s} s", hint="`tidemill job explain JOB` says why"
            ) from error
    return rows


def _tell_places(client: Client, rows: Sequence[JobRow]) -> None:
    """Say where the results of the first SHOWN campaigns are, and how to list those of the others."""
    of: dict[str, list[int]] = {}
    for row in rows:
        of.setdefault(row.campaign_reference, []).append(row.id)
    for campaign, jobs in list(of.items())[:SHOWN]:
        tell_places(client, campaign, jobs)
    if len(of) > SHOWN:
        hint(unshown_text(list(of)[SHOWN:]))


def unshown_text(campaigns: Sequence[str]) -> str:
    """How to list the results of campaigns whose results are not printed. Pure."""
    lists = f"`tidemill outputs ls --campaign {campaigns[0]}`"
    if len(campaigns) == 1:
        return f"{lists} lists the results of one more campaign"
    return f"{lists} lists results of the next of {counted_text(len(campaigns), 'more campaign')}"


def _hint(bad: Sequence[JobRow], named: Sequence[str]) -> None:
    """What to do next: of campaigns that were named the same as after `submit --wait`, of jobs what explains one."""
    campaigns = dict.fromkeys(
        each for row in bad for each in (row.campaign, row.campaign_reference) if each in named
    )
    for campaign in campaigns:
        hint_retry(campaign)
    if bad and not campaigns:
        hint(f"`tidemill job explain {bad[0].id}` says why, and what to do")


def first_bad(client: Client, rows: Iterable[JobRow]) -> list[JobRow]:
    """The first SHOWN jobs that did not end as their owner accepts. Asks for the specification of a job only where that
    decides."""

    def is_bad(row: JobRow) -> bool:
        if may_be_missed(row):
            return not is_good(client.job(row.id))
        return row.state in ("FAILED", "CANCELED")

    return list(islice(filter(is_bad, rows), SHOWN))


COMMANDS = {"wait": Command(define, run, "tidemill wait zmumu")}
