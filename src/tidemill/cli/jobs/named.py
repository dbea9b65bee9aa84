"""Jobs, campaigns and events as they are named on a command line: `7`, `3-9`, `zmumu`, `--events 100-199,205`."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tidemill.cli.arguments import Parser
from tidemill.errors import ConfigError, JobError
from tidemill.model.intervals import IntervalSet
from tidemill.model.quantities import count_text, counted_text

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.wire.api import JobDetail

JOBS_MAX = 1_000_000
_JOBS = re.compile(r"(\d+)(?:-(\d+))?")


def split_names(words: Sequence[str]) -> tuple[list[int], list[str]]:
    """Numbers of jobs, ranges of them written out, and names of campaigns. Raises ConfigError."""
    jobs: list[int] = []
    campaigns: list[str] = []
    for word in words:
        match = _JOBS.fullmatch(word)
        if match is None:
            campaigns.append(word)
            continue
        first, last = int(match[1]), int(match[2] or match[1])
        if first < 1:
            raise ConfigError(f"`{word}`: jobs are numbered from 1")
        if not first <= last < first + JOBS_MAX:
            raise ConfigError(f"`{word}` is not a range of jobs", hint="write FIRST-LAST, such as `3-9`")
        jobs += range(first, last + 1)
    return jobs, campaigns


class NamedJobs(NamedTuple):
    """What a command line names: jobs by their numbers, or all jobs of a campaign; none = all."""

    jobs: list[int]
    campaign: str | None

    @property
    def job(self) -> int | None:
        """The only job by number."""
        return self.jobs[0] if self.jobs else None


def named(words: Sequence[str], campaign: str | None, *, verb: str, several: bool = True) -> NamedJobs:
    """Numbers of jobs, or one campaign, by its name alone or by `--campaign`. Raises ConfigError. Pure."""
    jobs, names = split_names(words)
    names += [] if campaign is None else [campaign]
    if jobs and names:
        raise ConfigError(f"`tidemill {verb}` takes jobs by their numbers or a campaign, and not both")
    if len(names) > 1:
        raise ConfigError(f"`tidemill {verb}` takes one campaign", hint=f"tidemill {verb} {names[0]}")
    if len(jobs) > 1 and not several:
        raise ConfigError(f"`tidemill {verb}` takes one job", hint="name one of them, or their campaign")
    return NamedJobs(jobs, names[0] if names else None)


def needed(named: NamedJobs, verb: str) -> NamedJobs:
    """The jobs or the campaign that were named. Raises ConfigError if nothing was. Pure."""
    if not named.jobs and named.campaign is None:
        raise ConfigError(
            f"`tidemill {verb}` needs a job or a campaign", hint=f"tidemill {verb} 7, tidemill {verb} zmumu"
        )
    return named


def one_job(client: Client, word: str) -> int:
    """The job with this number, or the only one of the campaign of this name. Raises ConfigError."""
    jobs, campaigns = split_names([word])
    if len(jobs) == 1:
        return jobs[0]
    if jobs:
        raise ConfigError(f"`{word}` are several jobs", hint="name one of them")
    found = [each.id for each in client.jobs(campaign=known_campaign(client, campaigns[0]), limit=2)]
    if len(found) != 1:
        what = "has several jobs" if found else "has no job"
        hint = f"`tidemill jobs --campaign {word}` lists their numbers" if found else None
        raise ConfigError(f"campaign `{word}` {what}", hint=hint)
    return found[0]


def known_campaign(client: Client, name: str) -> str:
    """The same name or `OWNER/NAME`, if the server knows the campaign; of several owners' campaigns of one name, one's
    own. Raises ConfigError with the server's hint, as all verbs do."""
    from tidemill.wire.server_connection import NotFoundError, RefusedRequestError

    try:
        client.campaign(name)
    except RefusedRequestError:  # several owners have one
        own = client.own(name)
        with suppress(NotFoundError):
            client.campaign(own)
            return own
        raise
    return name


def define_events(parser: Parser, what: str) -> None:
    """The option `--events`."""
    parser.add_argument(
        "--events", type=events_list, metavar="LIST", help=f"{what}, such as `100-199,205` (default: all)"
    )


def events_list(text: str) -> IntervalSet:
    """`100-199,205`. Raises ValueError."""
    from argparse import ArgumentTypeError

    try:
        events = IntervalSet.parse(text.replace(" ", ""))
    except ValueError as error:
        raise ArgumentTypeError(f"{error}; write a list such as `100-199,205`") from error
    if not events:
        raise ArgumentTypeError("it names no event; write a list such as `100-199,205`")
    return events


def job_of_events(client: Client, args: Namespace, verb: str) -> int:
    """The one job whose events are named. Raises ConfigError."""
    found = named(args.jobs, args.campaign, verb=f"job {verb}")
    if found.campaign is not None:
        return one_job(client, found.campaign)
    if len(found.jobs) != 1:
        raise ConfigError(
            f"`tidemill job {verb} --events` needs one job: events are numbered within a job",
            hint=f"`tidemill job {verb} JOB --events {args.events}`, or the name of a campaign of one job",
        )
    return found.jobs[0]


def check_events(detail: JobDetail, events: IntervalSet) -> None:
    """Raises JobError if a job does not have all of these events. Pure."""
    from tidemill.client.event_states import shown

    outside = events.copy()
    outside.remove(0, detail.row.events)
    if outside:
        last = detail.row.events - 1
        has = f"its events are 0 to {count_text(last)}" if last else "its only event is 0"
        raise JobError(f"job {detail.row.id} has no event {shown(outside)}", hint=has)


def outcome_text(changed: int, unchanged: int, *, done: str, not_done: str) -> str:
    """`100 events canceled, 3 had ended already`. Pure."""
    return f"{counted_text(changed, 'event')} {done}" + (
        f", {count_text(unchanged)} {not_done}" if unchanged else ""
    )
