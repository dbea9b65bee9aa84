"""Outputs of jobs that go on: what has arrived, and when the rest comes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tidemill import clock
from tidemill.cli.terminal import say
from tidemill.model.quantities import bytes_text, count_text

if TYPE_CHECKING:
    from tidemill.client.client import Client
    from tidemill.model.job import JobSpec, Output
    from tidemill.wire.api import CampaignRow, JobDetail, JobOutput, KeptOutputs, OutputRow

OPEN = ("WAITING", "RUNNING")
JOBS_ASKED = 5  #: jobs of a campaign whose outputs are asked for while it runs
LOOK_S = 10.0  #: between two questions, until the first files are there
SHOWN = 8  #: outputs of a job of which it is said when they come


class ArrivalNotice:
    """Prints once, of a campaign of a few jobs, where the first files are and when other outputs come: call it with the
    campaign's row, as often as you like."""

    def __init__(self, client: Client, jobs: Sequence[int]) -> None:
        """`jobs`: of these; empty = of all that the campaign has."""
        self._client, self._jobs = client, list(jobs)
        self._next_s = 0.0
        self._is_over = len(self._jobs) > JOBS_ASKED

    def __call__(self, row: CampaignRow) -> None:
        """See whether something has come since."""
        now_s = clock.monotonic_s()
        if self._is_over or not row.events_done or row.events == row.jobs or now_s < self._next_s:
            return
        if not self._next_s:  # a job that ends in a moment says where its outputs are
            self._next_s = now_s + LOOK_S
            return
        self._next_s = now_s + LOOK_S
        if not self._jobs:
            rows = self._client.jobs(campaign=row.reference, limit=JOBS_ASKED + 1)
            self._jobs = [each.id for each in rows]
        self._is_over = len(self._jobs) > JOBS_ASKED
        details = [] if self._is_over else [self._client.job(each) for each in self._jobs]
        lines = [line for each in details for line in outputs_lines(each)]
        if lines and (any(map(_has_arrived, details)) or not any(map(_awaits_files, details))):
            self._is_over = True
            for line in lines[:SHOWN]:
                say(f"output {line}")


def outputs_lines(detail: JobDetail) -> list[str]:
    """Lines on the outputs of a job that goes on: what has arrived of each, or when it comes. Empty = it has
    ended, or only its application says what its outputs are. Pure."""
    from tidemill.model.arrival import arrives, comes_when

    spec = detail.spec
    if detail.row.state not in OPEN:
        return []
    lines = []
    for each in known_outputs(spec)[:SHOWN]:
        row = _arriving(detail, each.name)
        if row is not None:
            arrived = arrived_text(row, detail.row.events, _before(detail, row))
            lines.append(f"{each.name}: {arrived}; more files arrive while it runs")
        elif arrives(spec, each) and not detail.row.events_done:
            lines.append(f"{each.name}: {comes_when(spec, each)}")
        elif arrives(spec, each):
            lines.append(f"{each.name}: none of its files has arrived yet")
        else:
            lines.append(f"{each.name} {comes_when(spec, each)}")
    return lines


def known_outputs(spec: JobSpec) -> list[Output]:
    """The outputs that a specification names, kept stdout included."""
    from tidemill.model.job import Output

    result = list(spec.outputs or [])
    if spec.keep_stdout and not any(each.name == "stdout" for each in result):
        result.append(Output(name="stdout", path="stdout"))
    return result


def arrived_text(row: OutputRow, events: int, before: Sequence[OutputRow] = ()) -> str:
    """How much of an output has arrived, and where: `14 of 200 events in /data/out/7-hits (1.2 kB)`. `before`: what was
    delivered there before the job went on."""
    from tidemill.client.event_states import listed_events
    from tidemill.client.outputs import local_path

    there = [row, *before]
    found = listed_events(row.events)
    for each in before:
        found.add_all(listed_events(each.events))
    count = count_text(len(found)) if all(each.events for each in there) else "some"
    size = bytes_text(sum(each.size_bytes for each in there))
    return f"{count} of {count_text(events)} events in {local_path(row)} ({size})"


def still_kept(kept: Iterable[KeptOutputs], outputs: Sequence[JobOutput]) -> list[KeptOutputs]:
    """What is done and not delivered, without the events of which files have arrived. Pure."""
    from msgspec.structs import replace

    from tidemill.client.event_states import listed_events
    from tidemill.client.outputs import is_arriving

    rest = []
    for one in kept:
        left = listed_events(one.events)
        for each in outputs:
            if each.job == one.job and is_arriving(each.output):
                left.remove_all(listed_events(each.output.events))
        if left:
            rest.append(replace(one, events=str(left)))
    return rest


def _arriving(detail: JobDetail, name: str) -> OutputRow | None:
    from tidemill.client.outputs import is_arriving

    return next((each for each in detail.outputs if each.name == name and is_arriving(each)), None)


def _before(detail: JobDetail, row: OutputRow) -> list[OutputRow]:
    """What was delivered to the same place before the job went on."""
    return [
        each
        for each in detail.outputs
        if each is not row and (each.name, each.url) == (row.name, row.url) and each.sha256
    ]


def _has_arrived(detail: JobDetail) -> bool:
    return any(_arriving(detail, each.name) for each in known_outputs(detail.spec))


def _awaits_files(detail: JobDetail) -> bool:
    from tidemill.model.arrival import arrives

    return any(arrives(detail.spec, each) for each in known_outputs(detail.spec))
