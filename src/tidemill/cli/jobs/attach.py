"""`tidemill attach`: goes on where a `run` was left: progress, what holds it up, then how it ended."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, client_of, define_raw
from tidemill.cli.jobs.follow import counts_text, follow, states_text, tell_failures
from tidemill.cli.jobs.named import known_campaign, split_names
from tidemill.cli.jobs.outcome import Telling, tell_outcome
from tidemill.cli.terminal import say, show_json
from tidemill.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.client.client import Client

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
    campaign = known_campaign(client, names[0]) if names else client.job(jobs[0]).row.campaign
    client.retry_s = RETRY_S
    return attach(client, campaign, jobs, Telling(as_json=args.json, raw=args.raw, with_files=True))


def attach(client: Client, campaign: str, jobs: list[int], how: Telling, *, cancels: bool = False) -> int:
    """Follow jobs of a campaign (none named = all) and print how they ended; the exit code. `cancels`: Ctrl-C does, as
    in `run`; else it leaves."""
    from tidemill.client.client import Submission

    ids = jobs or sorted(row.id for row in client.jobs(campaign=campaign))
    row, interrupted = follow(
        client, Submission(campaign=campaign, jobs=ids, repeated=False), quiet=how.as_json, cancels=cancels
    )
    how = how._replace(interrupted=interrupted)
    if len(ids) == 1:
        return tell_outcome(client, ids[0], row, how)
    details = [each for each in client.jobs(campaign=campaign) if each.id in set(ids)]
    bad = [each for each in details if each.state in ("FAILED", "CANCELED")]
    if how.as_json:
        show_json({"campaign": row, "jobs": details})
        return 1 if bad else 0
    say(states_text(row.states))
    for each in bad[:FAILURES_SHOWN]:
        say(f"job {each.id} {counts_text(each)}")
        tell_failures(client, client.job(each.id), again=f"tidemill job retry --campaign {campaign}")
    return 1 if bad else 0


COMMANDS = {"attach": Command(define, run, "tidemill attach zmumu")}
