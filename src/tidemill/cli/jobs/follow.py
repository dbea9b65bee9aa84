"""Follow jobs to their end, and say how they ended: after `run`, and after a retry that waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from tidemill.cli.terminal import hint, say
from tidemill.errors import TidemillError
from tidemill.model.quantities import count_text, counted_text

if TYPE_CHECKING:
    from tidemill.client.client import Client, Submission
    from tidemill.report.query import CauseGroup
    from tidemill.wire.api import CampaignRow, JobDetail, JobRow

JOBS_NAMED = 8  #: in a sentence, where they are not all of a range
CAUSES_SHOWN = 3  #: of the failures of a job, the most frequent ones
EVENTS_CHARACTERS_MAX = 200  #: of a list of failed events


def follow(
    client: Client, sent: Submission, *, quiet: bool, cancels: bool = True
) -> tuple[CampaignRow, bool]:
    """Wait for the end; the first Ctrl-C cancels the job, the second leaves it to itself. Without `cancels` the first
    one leaves it."""
    from tidemill.cli.progress import Progress, WaitingCause, WaitingNotice

    interrupted = False
    client.notice = None if quiet else say
    if not quiet and sent.jobs:
        say(f"following {jobs_text(sent.jobs)} of campaign `{sent.campaign}`")
    patience = WaitingNotice(WaitingCause(client, set(sent.jobs)))

    def look(row: CampaignRow) -> None:
        progress(row)
        patience(row)

    with Progress(what=sent.campaign, quiet=quiet) as progress:
        while True:
            try:
                client.wait(sent, on_progress=look)
                return client.campaign(sent.campaign), interrupted
            except KeyboardInterrupt:
                if not cancels:
                    _leave(sent)
                    raise
                if interrupted:
                    say(f"left; `tidemill outputs ls --campaign {sent.campaign}` shows what is delivered")
                    raise
                interrupted = True
                say("canceling, and delivering what is done; Ctrl-C again leaves at once")
                _cancel(client, sent)
            except TidemillError:
                _leave(sent)
                raise


def _cancel(client: Client, sent: Submission) -> None:
    try:
        client.cancel(sent.jobs, reason="interrupted by Ctrl-C")
    except (TidemillError, KeyboardInterrupt):
        _leave(sent)
        raise


def _leave(sent: Submission) -> None:
    """Say that jobs go on without the command that submitted them, and how to end them."""
    first, more = sent.jobs[0], len(sent.jobs) - 1
    what = f"job {first}" + (f" and {more} more go on" if more else " goes on")
    say(
        f"{what} at the server: `tidemill attach {sent.campaign}` follows it, `tidemill job cancel --campaign "
        f"{sent.campaign}` ends it"
    )


def follow_jobs(client: Client, jobs: list[int], *, quiet: bool) -> int:
    """Wait for the end of jobs that were retried, as after `run`; 0 if all are COMPLETED, else 1."""
    from tidemill.client.client import Submission

    first = client.job(jobs[0]).row
    _, interrupted = follow(
        client, Submission(campaign=first.campaign, jobs=jobs, repeated=False), quiet=quiet
    )
    details = [client.job(job) for job in jobs]
    bad = [each for each in details if each.row.state != "COMPLETED"]
    for each in details if not quiet else ():
        say(f"job {each.row.id} {counts_text(each.row)}")
    for each in bad if not quiet else ():
        if interrupted:
            hint(f"`tidemill job retry {each.row.id}` runs the rest; what is done stays done")
        else:
            tell_failures(client, each, again=f"tidemill job retry {each.row.id} --wait")
    return 1 if bad else 0


def jobs_text(jobs: Collection[int]) -> str:
    """`job 7`; `3 jobs, 7 to 9,` and `2 jobs, 1 and 6,` as the subject of a sentence."""
    numbers = sorted(set(jobs))
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"job {first}"
    if last - first + 1 == len(numbers):
        which = f"{first} to {last}"
    elif len(numbers) <= JOBS_NAMED:
        which = f"{', '.join(map(str, numbers[:-1]))} and {last}"
    else:
        which = f"of {first} to {last}"
    return f"{counted_text(len(numbers), 'job')}, {which},"


def states_text(states: Mapping[str, int]) -> str:
    """`3 jobs COMPLETED; 1 job FAILED`."""
    return "; ".join(f"{counted_text(number, 'job')} {state}" for state, number in sorted(states.items()))


def counts_text(row: JobRow) -> str:
    """`PARTIAL: 980 of 1,000 events done, 20 failed`."""
    failed = f", {count_text(row.events_failed)} failed" if row.events_failed else ""
    return f"{row.state}: {count_text(row.events_done)} of {count_text(row.events)} events done{failed}"


def tell_failures(client: Client, job: JobDetail, *, again: str | None = None) -> None:
    """Print why a job ended without success: its failed events, the most frequent causes, and the next step. `again`:
    the command that runs what failed, None = the one that goes on with the campaign."""
    groups = _failure_groups(client, job.row.id)
    if job.row.reason and (job.row.events > 1 or not groups):
        say(
            f"error: {job.row.reason}"
            + (f": {_shortened(job.failed)}" if job.row.events > 1 and job.failed else "")
        )
    for group in groups[:CAUSES_SHOWN]:
        _tell_cause(group)
    from tidemill.cli.jobs.job import is_acceptable

    if is_acceptable(job):
        hint(f"`tidemill job accept {job.row.id}` delivers what is done as it is")
    campaign, what = job.row.campaign, "it" if job.row.events == 1 else "what failed"
    again = again or f"tidemill run --resume {campaign}"
    hint(f"`tidemill errors --campaign {campaign}` groups them, `{again}` runs {what} again")


def _failure_groups(client: Client, job: int) -> list[CauseGroup]:
    from tidemill.report.query import group_failures

    return group_failures(client.failures(job=job, limit=1000))


def _tell_cause(group: CauseGroup) -> None:
    example = group.examples[0]
    where = "" if example.event is None else f" (event {example.event}, seed {example.seed})"
    say(f"error: {group.failure}: {example.evidence.message}{where}")
    for line in example.evidence.stderr_tail.strip().splitlines()[-5:]:
        say(f"  | {line}")


def tell_jobs(client: Client, bad: Iterable[JobRow]) -> None:
    """Print how jobs ended that did not succeed, and the causes of their failures; each cause once."""
    told = set()
    for row in bad:
        say(f"job {row.id} is {row.state}" + (f": {row.reason}" if row.reason else ""))
        for group in _failure_groups(client, row.id)[:CAUSES_SHOWN]:
            if (group.failure, group.cause) not in told:
                told.add((group.failure, group.cause))
                _tell_cause(group)


def hint_retry(campaign: str) -> None:
    """Say how to go on with a campaign that was submitted, and of which jobs ended without success."""
    hint(
        f"`tidemill errors --campaign {campaign}` groups the failures, `tidemill job retry --campaign {campaign}` "
        "runs what failed; what is done stays done"
    )


def _shortened(events: str) -> str:
    if len(events) <= EVENTS_CHARACTERS_MAX:
        return events
    return events[:EVENTS_CHARACTERS_MAX].rpartition(",")[0] + ",..."
