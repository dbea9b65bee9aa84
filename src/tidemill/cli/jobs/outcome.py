"""How one job of a campaign ended, for the person who waited: its output, its files, its failures, its exit status."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidemill.cli.jobs.follow import counts_text, hint_undelivered, tell_failures
from tidemill.cli.terminal import hint, pass_on, say, show_json
from tidemill.errors import ConfigError, SiteError, TidemillError
from tidemill.model.quantities import bytes_text, count_text, duration_text, rate_text, ratio

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.client.outputs import DirectoryFile
    from tidemill.wire.api import CampaignRow, JobDetail, JobOutput, JobRow

LOG_S = 3.0
"""How long the site may take to send a single event's stderr."""

PLACES_SHOWN = 5  #: results whose place is printed after a wait, and jobs that are asked for theirs

RUNS_SHOWN = 5  #: of files of one output, with gaps between them

FAILED = 1
SIGNALED = 128
"""A shell adds the number of the signal that ended a command."""

STDOUT = "stdout"
LEFT = "tidemill: removed from the work directory, since no output names it: "
"""Start of the line that names files that a payload left, in its log (`crates/slot`, `scratch`)."""


class Telling(NamedTuple):
    """How much is printed. `failed_max`: failed events that are accepted, None = as the job says; `with_files`: also of
    a single event."""

    as_json: bool = False
    raw: bool = False
    failed_max: int | None = None
    with_files: bool = False
    interrupted: bool = False


def tell_outcome(client: Client, job: int, row: CampaignRow, how: Telling) -> int:
    """Print how a job ended; the exit code: of a single event that of its command, else 0 or 1."""
    detail = client.job(job)
    outputs = list(client.outputs(job=job))
    good = is_good(detail, how.failed_max)
    code = 0 if good else exit_status(detail)
    if how.as_json:
        show_json(
            {
                "job": detail.row, "outputs": outputs, "usage": row.usage, "failures": row.failures,
                "exit_status": code,
            }
        )  # fmt: skip
        return code
    has_stderr = detail.row.events == 1 and _print_as_command(client, detail, outputs, how)
    wall_s = (
        ((detail.row.ended_us or 0) - (detail.row.started_us or 0)) / 1e6 if detail.row.started_us else 0.0
    )
    if detail.row.events > 1 or not good:
        rate = rate_text(ratio(detail.row.events_done, wall_s))
        say(f"{counts_text(detail.row)}, {duration_text(wall_s)}, {rate} events/s")
    if outputs and (detail.row.events > 1 or how.with_files):
        for each in outputs:
            if detail.row.events > 1 or each.output.name != STDOUT:
                say(f"    {place_text(each)}")
    if detail.row.events > 1 and detail.row.events_done and not how.interrupted:
        _tell_left(client, detail)
    if not good and not how.interrupted:
        tell_failures(client, detail, with_stderr=not has_stderr)
    elif not good:
        _tell_interrupted(detail)
    return code


def _tell_interrupted(detail: JobDetail) -> None:
    """What Ctrl-C has left, and why what is done is not delivered."""
    from tidemill.cli.jobs.job import undelivered_text

    row = detail.row
    if (why := undelivered_text(detail)) is not None and detail.kept is not None:
        say(f"error: {_events_text(detail.kept.events)} not delivered: {why}")
        hint_undelivered(detail)
    if row.events_done < row.events:
        hint(f"`tidemill run --resume {row.campaign}` runs the rest; what is done stays done")


def _events_text(events: str) -> str:
    """`event 3 is`, `events 0-1 are`: the subject of a sentence."""
    return f"event {events} is" if events.isdecimal() else f"events {events} are"


def is_good(detail: JobDetail, failed_max: int | None = None) -> bool:
    """Whether a job ended as its owner accepts: with at most `failed_max` failed events, None = as its specification
    says. `run` without --failed-max goes on whatever fails, but accepts no failure."""
    row, spec = detail.row, detail.spec
    if not may_be_missed(row):
        return row.state in ("COMPLETED", "PARTIAL")
    if failed_max is not None:
        return row.events_failed <= failed_max
    return spec.failed_max < spec.events - 1


def may_be_missed(row: JobRow) -> bool:
    """Whether a job is PARTIAL, and its specification has to say whether its owner accepts that. The server has it end
    as FAILED where more events fail than `failed_max`; its owner has accepted one with events that never ran."""
    is_command = not row.app
    ended = row.events_done + row.events_failed + row.events_canceled
    return row.state == "PARTIAL" and is_command and ended == row.events


def exit_status(detail: JobDetail) -> int:
    """The exit status for a job that failed: its command's, if it has one event and that ran; 1 otherwise."""
    if detail.row.events > 1 or not detail.failures:
        return FAILED
    last = detail.failures[0].evidence
    if last.signal:
        return SIGNALED + last.signal
    return last.exit_status or FAILED


def place_text(each: JobOutput) -> str:
    """Where an output is, and how large."""
    from tidemill.client.outputs import files_of, is_directory, local_path

    size = bytes_text(each.output.size_bytes)
    try:
        path = local_path(each.output)
        place = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
        if not is_directory(each.output):
            return f"{place}  {size}"
        files = files_of(each.job, each.output)
    except TidemillError:
        return f"{each.output.url}  {size}"
    if len(files) == 1:
        return f"{place}/{files[0].name}  {size}"
    return f"{place}/{ranges_text(files)}  {count_text(len(files))} files, {size}"


def ranges_text(files: Sequence[DirectoryFile]) -> str:
    """`val-0.txt ... val-6.txt, val-8.txt ... val-11.txt`: the first and last file of each run of events without a gap;
    of many runs the first ones and the last one. Pure."""
    runs: list[list[DirectoryFile]] = []
    for each in files:
        if runs and each.first == runs[-1][-1].first + runs[-1][-1].count:
            runs[-1].append(each)
        else:
            runs.append([each])
    texts = [run[0].name + (f" ... {run[-1].name}" if len(run) > 1 else "") for run in runs]
    if len(texts) > RUNS_SHOWN:
        texts = [*texts[: RUNS_SHOWN - 1], "...", texts[-1]]
    return ", ".join(texts)


def tell_places(client: Client, campaign: str, jobs: Sequence[int]) -> None:
    """Say where results are: of a few jobs each file, else how to list them."""
    found: list[JobOutput] = []
    if len(jobs) <= PLACES_SHOWN:
        found = list(islice(client.outputs(jobs=jobs), PLACES_SHOWN + 1))
    for each in found[:PLACES_SHOWN]:
        say(f"    {place_text(each)}")
    if len(found) > PLACES_SHOWN or len(jobs) > PLACES_SHOWN:
        hint(f"`tidemill outputs ls --campaign {campaign}` lists all results")


def _print_as_command(client: Client, detail: JobDetail, outputs: list[JobOutput], how: Telling) -> bool:
    """Print stdout and stderr of a single event, as if it had run here; whether its stderr was printed.

    The stdout of a completed event is an output. A failed event keeps no outputs; the site's log has its stdout, up to
    `log_bytes_max`: half from the beginning, half from the end.
    """
    if detail.row.events_done:
        _print_stdout(outputs, raw=how.raw)
    elif not detail.failures:  # no payload ran
        return False
    log = client.log(detail.row.id, timeout_s=LOG_S)
    if not detail.row.events_done and detail.spec.keep_stdout:
        pass_on([log.stdout], raw=how.raw)
    pass_on([log.stderr], to_stderr=True, raw=how.raw)
    return bool(log.stderr)


def _tell_left(client: Client, detail: JobDetail) -> None:
    """Report files that the first event left in its work directory and no output names, from its log."""
    from tidemill.client.event_states import listed_events

    done = listed_events(detail.done)
    if detail.spec.app is not None or not done:
        return
    event = next(iter(done))[0]
    log = client.log(detail.row.id, event=event, timeout_s=LOG_S)
    for line in log.stderr.splitlines():
        if line.startswith(LEFT):
            say(
                f"remark: event {event}: {line.removeprefix('tidemill: ')}; `--output NAME` keeps such a file"
            )


def _print_stdout(outputs: list[JobOutput], *, raw: bool) -> None:
    """Print a single event's stdout, or where it is if its file cannot be read on this machine."""
    from tidemill.client.outputs import members

    for each in outputs:
        if each.output.name != STDOUT:
            continue
        try:
            pass_on((member.data for member in members(each.job, each.output)), raw=raw)
        except (SiteError, ConfigError):
            size = bytes_text(each.output.size_bytes)
            hint(f"its stdout ({size}) cannot be read here: it is at `{each.output.url}`, at its site")
