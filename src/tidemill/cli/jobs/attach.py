"""`tidemill attach`: goes on where a `run` was left: progress, what holds it up, then how it ended."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, client_of, define_raw
from tidemill.cli.jobs.follow import counts_text, follow, states_text, tell_failures
from tidemill.cli.jobs.named import known_campaign, split_names
from tidemill.cli.jobs.outcome import Telling, tell_outcome
from tidemill.cli.terminal import say, show_json_parts
from tidemill.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.wire.api import CampaignRow, JobRow

BAD = ("FAILED", "CANCELED")
FAILURES_SHOWN = 3


def define(parser: Parser) -> None:
    """Options of `attach`."""
    parser.add_argument("name", metavar="NAME|JOB", help="a campaign, or the number of a job")
    define_raw(parser)


def run(args: Namespace) -> int:
    """Follow to the end. Ctrl-C leaves the jobs to themselves; 0 if all ended well."""
    from tidemill.client.client import RETRY_S

    client = client_of(args)
    jobs, names = split_names([args.name])
    if len(jobs) > 1:
        raise ConfigError(
            "`tidemill attach` follows one job or campaign", hint=f"`tidemill wait {args.name}`"
        )
    campaign = known_campaign(client, names[0]) if names else client.job(jobs[0]).row.campaign_reference
    client.retry_s = RETRY_S
    return attach(client, campaign, jobs, Telling(as_json=args.json, raw=args.raw, with_files=True))


def attach(client: Client, campaign: str, jobs: list[int], how: Telling, *, cancels: bool = False) -> int:
    """Follow one job of a campaign, or all of them (`jobs` empty), and print how they ended; the exit code. `cancels`:
    Ctrl-C cancels the jobs, as in `run`; otherwise it stops following. Only `--json` lists all jobs of a campaign."""
    from tidemill.client.client import Submission

    if not jobs and client.campaign(campaign).jobs == 1:
        jobs = [each.id for each in client.jobs(campaign=campaign, limit=1)]
    row, interrupted = follow(
        client, Submission(campaign=campaign, jobs=jobs, repeated=False), quiet=how.as_json, cancels=cancels
    )
    how = how._replace(interrupted=interrupted)
    if len(jobs) == 1:
        return tell_outcome(client, jobs[0], row, how)
    code = 1 if any(row.states.get(state) for state in BAD) else 0
    if how.as_json:
        show_json_parts({"campaign": row}, "jobs", client.jobs(campaign=campaign))
        return code
    say(states_text(row.states))
    for each in _newest_bad(client, row):
        say(f"job {each.id} {counts_text(each)}")
        tell_failures(client, client.job(each.id), again=f"tidemill job retry --campaign {campaign}")
    return code


def _newest_bad(client: Client, row: CampaignRow) -> list[JobRow]:
    """The newest FAILURES_SHOWN jobs of a campaign that ended without success."""
    found = [
        each
        for state in BAD
        if row.states.get(state)
        for each in client.jobs(campaign=row.reference, state=state, limit=FAILURES_SHOWN)
    ]
    return sorted(found, key=lambda each: -each.id)[:FAILURES_SHOWN]


COMMANDS = {"attach": Command(define, run, "tidemill attach zmumu")}
