"""Follow jobs to their end, and say how they ended: after `run`, and after a retry that waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from tidemill.cli.arriving import ArrivalNotice
from tidemill.cli.progress import Progress, WaitingCause, WaitingNotice
from tidemill.cli.terminal import hint, say
from tidemill.errors import TidemillError
from tidemill.model.quantities import count_text, counted_text

if TYPE_CHECKING:
    from tidemill.client.causes import CauseGroup
    from tidemill.client.client import Client, Submission
    from tidemill.wire.api import CampaignRow, FailureRow, JobDetail, JobRow

FAILURES_TOLD = 20  #: jobs whose failures are printed after a retry: two requests for each
JOBS_NAMED = 8  #: in a sentence, where they are not all of a range
CAUSES_SHOWN = 3  #: of the failures of a job, the most frequent ones
EVENTS_CHARACTERS_MAX = 200  #: of a list of failed events


def follow(
    client: Client, sent: Submission, *, quiet: bool, cancels: bool = True
) -> tuple[CampaignRow, bool]:
    """Wait until jobs have ended (none named = all of the campaign). The first Ctrl-C cancels them, the second stops
    waiting; without `cancels` the first one does."""
    interrupted = False
    client.notice = None if quiet else say
    if not quiet:
        what = jobs_text(sent.jobs) if sent.jobs else "all jobs"
        say(f"following {what} of campaign `{sent.campaign}`")
    patience = WaitingNotice(WaitingCause(client, set(sent.jobs)))
    arrival = ArrivalNotice(client, sent.jobs)

    def look(row: CampaignRow) -> None:
        progress(row)
        patience(row)
        if not quiet:
            arrival(row)

    with Progress(what=sent.campaign, quiet=quiet) as progress:
        while True:
            try:
                return client.wait_end(sent, on_progress=look), interrupted
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
        campaign = None if sent.jobs else sent.reference
        client.cancel(sent.jobs, campaign=campaign, reason="interrupted by Ctrl-C")
    except (TidemillError, KeyboardInterrupt):
        _leave(sent)
        raise


def _leave(sent: Submission) -> None:
    """Say that jobs go on without the command that submitted them, and how to end them."""
    if sent.jobs:
        first, more = sent.jobs[0], len(sent.jobs) - 1
        what = f"job {first}" + (f" and {more} more go on" if more else " goes on")
    else:
        what = f"campaign `{sent.campaign}` goes on"
    say(
        f"{what} at the server: `tidemill attach {sent.campaign}` follows it, `tidemill job cancel --campaign "
        f"{sent.campaign}` ends it"
    )


def follow_jobs(client: Client, jobs: list[int], *, quiet: bool) -> int:
    """Wait for the end of jobs that were retried, as after `run`; 0 if all are COMPLETED, else 1."""
    from tidemill.client.client import Submission

    (first,) = client.rows(jobs[:1])
    _, interrupted = follow(
        client, Submission(campaign=first.campaign, owner=first.owner, jobs=jobs, repeated=False), quiet=quiet
    )
    bad = 0
    told: list[JobRow] = []
    for row in client.rows(jobs):
        if not quiet:
            say(f"job {row.id} {counts_text(row)}")
        bad += row.state != "COMPLETED"
        if row.state != "COMPLETED" and len(told) < FAILURES_TOLD:
            told.append(row)
    for row in told if not quiet else ():
        if interrupted:
            hint(f"`tidemill job retry {row.id}` runs the rest; what is done stays done")
        else:
            tell_failures(client, client.job(row.id), again=f"tidemill job retry {row.id} --wait")
    if bad > len(told) and not quiet:
        hint(
            f"`tidemill errors --campaign {first.campaign}` shows the failures of {bad - len(told)} more jobs"
        )
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
    canceled = f", {count_text(row.events_canceled)} canceled" if row.events_canceled else ""
    return f"{row.state}: {count_text(row.events_done)} of {count_text(row.events)} events done{failed}{canceled}"


def tell_failures(
    client: Client, job: JobDetail, *, again: str | None = None, with_stderr: bool = True
) -> None:
    """Print why a job ended without success: its failed events, the most frequent causes, and the next step. `again`:
    the command that runs what failed, None = the one that goes on with the campaign; `with_stderr`: also the last lines
    of stderr."""
    groups = _failure_groups(client, job)
    if job.row.reason and (job.row.events > 1 or not groups):
        say(
            f"error: {job.row.reason}"
            + (f": {_shortened(job.failed)}" if job.row.events > 1 and job.failed else "")
        )
    for group in groups[:CAUSES_SHOWN]:
        _tell_cause(group, with_stderr=with_stderr)
    from tidemill.cli.jobs.job import is_acceptable
    from tidemill.model.failure import NOT_FOUND, lacks_file

    if any(lacks_file(each.evidence) for group in groups[:CAUSES_SHOWN] for each in group.examples):
        hint(NOT_FOUND)
    if is_acceptable(job):
        hint(f"`tidemill job accept {job.row.id}` delivers what is done as it is")
    campaign, what = job.row.campaign, "it" if job.row.events == 1 else "what failed"
    if hint_undelivered(job):
        return
    again = again or f"tidemill run --resume {campaign}"
    hint(f"`tidemill errors --campaign {campaign}` groups them, `{again}` runs {what} again")


def hint_undelivered(job: JobDetail) -> bool:
    """Say how to get the outputs that their place did not take; whether there are any."""
    from tidemill.cli.jobs.job import undelivered_text

    if undelivered_text(job) is None:
        return False
    again = f"tidemill run --resume {job.row.campaign}"
    hint(f"`{again}` delivers what is done once its directory takes it, `{again} --dir OTHER` to another one")
    return True


def _failure_groups(client: Client, job: JobDetail) -> list[CauseGroup]:
    from tidemill.client.causes import group_failures

    return group_failures(standing(job, client.failures(job=job.row.id, limit=1000)))


def standing(job: JobDetail, failures: Iterable[FailureRow]) -> Iterator[FailureRow]:
    """The failures, the newest first, that are why events are not done, or not delivered: of each event its last one.
    Pure."""
    from tidemill.client.event_states import listed_events
    from tidemill.model.failure import FailureClass

    done, seen = listed_events(job.done), set[int]()
    for each in failures:
        if each.event is None:
            if each.evidence.failure is not FailureClass.STAGE_OUT or job.kept is not None:
                yield each
        elif each.event not in done and each.event not in seen:
            seen.add(each.event)
            yield each


def _tell_cause(group: CauseGroup, *, with_stderr: bool = True) -> None:
    example = group.examples[0]
    where = "" if example.event is None else f" (event {example.event}, seed {example.seed})"
    say(f"error: {group.failure}: {example.evidence.message}{where}")
    lines = example.evidence.stderr_tail.strip().splitlines() if with_stderr else []
    for line in lines[-5:]:
        say(f"  | {line}")


def tell_jobs(client: Client, bad: Iterable[JobRow]) -> None:
    """Print how jobs ended that did not succeed, and the causes of their failures; each cause once."""
    told = set()
    for row in bad:
        say(f"job {row.id} is {row.state}" + (f": {row.reason}" if row.reason else ""))
        for group in _failure_groups(client, client.job(row.id))[:CAUSES_SHOWN]:
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
