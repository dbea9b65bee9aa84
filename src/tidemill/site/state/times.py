"""When payloads of timed jobs ran, taken from the pilots' records for `tidemill stress`. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tidemill.site.state import site_state
from tidemill.wire import node
from tidemill.wire.api import PayloadTime, TimesReport

TIMES_MAX = 1_000  #: in one report


class Times:
    """Takes the records of one read of one fleet's journals. `nodes`: names of pilots' nodes."""

    def __init__(self, jobs: Mapping[int, site_state.SiteJob], nodes: Mapping[str, str]) -> None:
        self._jobs, self._nodes = jobs, nodes
        self._times: dict[int, list[PayloadTime]] = defaultdict(list)

    def add(self, record: node.Done | node.Failed) -> None:
        """Keep the record's times if its job is timed."""
        job = self._jobs.get(record.job)
        if job is not None and job.spec.timed is True:
            self._times[record.job].append(time_of(record, self._nodes.get(record.p, "")))

    def reports(self) -> list[TimesReport]:
        """What was added, in bounded reports."""
        return [
            TimesReport(n=0, job=job, times=times[at : at + TIMES_MAX])
            for job, times in self._times.items()
            for at in range(0, len(times), TIMES_MAX)
        ]


def time_of(record: node.Done | node.Failed, name: str) -> PayloadTime:
    """A record as a time. One that failed says when it ended and how long it took."""
    if isinstance(record, node.Done):
        return PayloadTime(
            record.first, record.count, record.payloads, name or place_of(record.p), record.slot, record.started_us,
            record.ended_us, record.wall_us, record.setup_us, record.user_us, record.system_us,
        )  # fmt: skip
    return PayloadTime(
        record.first, record.count, 1, name or place_of(record.p), record.slot, record.at_us - record.wall_us,
        record.at_us, record.wall_us, 0, record.user_us, record.system_us, record.failure,
    )  # fmt: skip


def place_of(pilot: str) -> str:
    """Allocation and rank of a pilot (`ALLOCATION.rRANK.iINCARNATION`): its node, where no name is known."""
    return pilot.rpartition(".")[0] or pilot
