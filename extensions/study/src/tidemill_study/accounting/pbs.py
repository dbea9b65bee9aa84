"""Accounting logs of PBS Professional, OpenPBS and Torque: `MM/DD/YYYY HH:MM:SS;TYPE;ID;key=value key=value ...`.

Facts: PBS Professional Administrator's Guide, "Accounting"; Torque 6 Administrator's Guide, "Accounting records". E
ends a job, R a run of a job that is started again, S starts one, D and A end one that may not have started, Q queues
one. Times in the attributes are seconds since 1970; the time before a record is that of the server's clock, without a
zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from tidemill.batch.pbs.places import count_cores, count_hosts
from tidemill.batch.slurm.times import parse_span
from tidemill.model.number import whole
from tidemill_study.accounting.past_jobs import PastJob, Remark, Remarks
from tidemill_study.accounting.runs import SeenRuns

RECORD = re.compile(r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;(\w+);([^;]*);(.*)", re.DOTALL)
_ATTRIBUTE = re.compile(r'(?<!\S)([\w.]+)=("(?:[^"\\]|\\.)*"|\S*)')
RUNNING_MAX = 1_000_000
"""Jobs that have started and not ended, or that are queued; beyond, the oldest is taken as lost from the log."""
JOB_RECORDS = frozenset("SERDA")
DAY_S = 86_400
ZONE_STEP_S = 900
"""Zones of the world differ from UTC by multiples of a quarter of an hour."""
WALLTIME_EXCEEDED = -29
"""Exit_status (job.h of OpenPBS)."""


def read(lines: Iterable[tuple[int, str]], remarks: Remarks) -> Iterator[PastJob]:
    """The runs of a log in the order of their ends, then what still runs."""
    log = _Log(remarks)
    for number, line in lines:
        if not line.strip():
            continue
        remarks.lines += 1
        job = log.job(number, line)
        if job is not None:
            remarks.jobs += 1
            yield job
    for number, job in log.still_running():
        remarks.add(Remark.RUNNING, number, f"job {job.id[:40]}")
        remarks.jobs += 1
        yield job


class _Log:
    """What has started and not ended yet, and which runs were read."""

    def __init__(self, remarks: Remarks) -> None:
        self._remarks = remarks
        self._seen = SeenRuns()
        self.running: dict[str, tuple[int, PastJob]] = {}
        self._queued: dict[str, tuple[int, int | None]] = {}
        """(the server's clock, its zone's seconds ahead of UTC if known) of each record Q."""
        self._ahead_s: int | None = None

    def job(self, number: int, line: str) -> PastJob | None:
        """The run that a record ends; None for other records and for what cannot be read, which is counted."""
        remarks = self._remarks
        if not line.endswith("\n"):
            remarks.add(Remark.CUT, number)
            return None
        text = line.rstrip("\r\n")
        match = RECORD.fullmatch(text)
        if match is None:
            remarks.add(Remark.UNREADABLE, number, f"not a record of PBS: `{line.strip()[:60]}`")
            return None
        kind, id, attributes = match.groups()
        if kind not in JOB_RECORDS:
            remarks.passed[kind] += 1
        is_new = id not in self.running
        try:
            self._note_times(kind, id, text[:19], attributes)
            job = self._ended(kind, id, attributes, number)
        except ValueError as error:
            remarks.add(Remark.UNREADABLE, number, f"record {kind} of {id[:40]}: {error}"[:160])
            return None
        if job is None or job.start_s is None:
            if job is not None or (kind in ("D", "A") and is_new):
                remarks.add(Remark.NOT_STARTED, number, f"job {id[:40]}")
            return None
        job = self._submitted(job, kind)
        run = self._seen.run(id, (job.start_s, job.end_s, kind))
        if run:
            remarks.add(Remark.REPEATED if run < 0 else Remark.REQUEUED, number, f"job {id[:40]}")
        return None if run < 0 else msgspec.structs.replace(job, requeue=run)

    def _note_times(self, kind: str, id: str, stamp: str, attributes: str) -> None:
        """Keep when a job was queued, and how far the server's clock is ahead of UTC. Raises ValueError."""
        if kind == "Q":
            if len(self._queued) >= RUNNING_MAX:
                del self._queued[next(iter(self._queued))]
            self._queued.setdefault(id, (_clock_s(stamp), self._ahead_s))
        elif kind in ("S", "E") and self._queued:
            match = re.search(r"\bstart=(\d{1,12})\b" if kind == "S" else r"\bend=(\d{1,12})\b", attributes)
            ahead_s = _clock_s(stamp) - int(match[1]) if match else None
            if ahead_s is not None and abs(ahead_s) < DAY_S:
                self._ahead_s = round(ahead_s / ZONE_STEP_S) * ZONE_STEP_S

    def _submitted(self, job: PastJob, kind: str) -> PastJob:
        """The job with the time of its record Q, if it has no other time of submission."""
        queued = self._queued.pop(job.id, None) if kind == "E" else self._queued.get(job.id)
        if job.submit_s is not None or queued is None:
            return job
        at_s, ahead_s = queued
        ahead_s = self._ahead_s if ahead_s is None else ahead_s
        return job if ahead_s is None else msgspec.structs.replace(job, submit_s=at_s - ahead_s)

    def still_running(self) -> Iterator[tuple[int, PastJob]]:
        """(line, job) of what has started and not ended at the end of the log."""
        return ((number, self._submitted(job, "S")) for number, job in self.running.values())

    def _ended(self, kind: str, id: str, text: str, number: int) -> PastJob | None:
        """What a record ends. Raises ValueError for what cannot be read."""
        if kind == "S":
            if len(self.running) >= RUNNING_MAX:
                del self.running[next(iter(self.running))]
            self.running[id] = (number, _job(id, text, "RUNNING"))
        elif kind == "E":
            self.running.pop(id, None)
            job = _job(id, text, "")
            if job.start_s is not None and job.end_s is None:
                raise ValueError("it does not say when the job ended")
            return job
        elif kind == "R":
            return _rerun(id, text, self.running.pop(id, None))
        return None


def _rerun(id: str, text: str, known: tuple[int, PastJob] | None) -> PastJob | None:
    """The run that a record R ends: its times are in it (OpenPBS), or only its start is known (Torque)."""
    job = _job(id, text, "REQUEUED")
    if job.start_s is None and known is not None:
        job = msgspec.structs.replace(known[1], state="REQUEUED", end_s=job.end_s)
    if job.start_s is None:
        return None
    if job.end_s is None:
        used = re.search(r"\bresources_used\.walltime=([\d:]+)", text)
        span_s = parse_span(used[1]) if used else None
        if span_s is None:
            raise ValueError("it does not say when the run ended")
        job = msgspec.structs.replace(job, end_s=job.start_s + int(span_s))
    return job


def _job(id: str, text: str, state: str) -> PastJob:
    """The job of a record's attributes."""
    found = {key: value.strip('"') for key, value in _ATTRIBUTE.findall(text)}
    limit, cpu = found.get("Resource_List.walltime", ""), found.get("resources_used.cput", "")
    cpu_s = parse_span(cpu) if ":" in cpu else whole(cpu)
    limit_s = parse_span(limit) if ":" in limit else whole(limit)
    hosts, vnodes = found.get("exec_host", ""), found.get("exec_vnode", "")
    return PastJob(
        id=id,
        user=found.get("user", ""),
        account=found.get("account", "") or found.get("project", ""),
        partition=found.get("queue", ""),
        name=found.get("jobname", ""),
        submit_s=_time(found, "qtime") or _time(found, "ctime"),
        eligible_s=_time(found, "etime"),
        start_s=_time(found, "start"),
        end_s=_time(found, "end"),
        nodes=count_hosts(hosts, vnodes) or _first(found, "unique_node_count", "Resource_List.nodect"),
        cores=_first(found, "total_execution_slots", "Resource_List.ncpus") or count_cores(hosts),
        limit_s=None if limit_s is None else int(limit_s),
        cpu_s=None if cpu_s is None else int(cpu_s),
        state=state or _ending(found.get("Exit_status", "")),
        reservation=found.get("resvID", "") or found.get("resvname", ""),
    )


def _clock_s(stamp: str) -> int:
    """Seconds from 1970 to a time such as `11/02/2026 00:02:44`, as if it were of UTC. Raises ValueError."""
    at = datetime.strptime(stamp, "%m/%d/%Y %H:%M:%S")  # noqa: DTZ007
    return int(at.replace(tzinfo=UTC).timestamp())


def _time(found: dict[str, str], key: str) -> int | None:
    text = found.get(key)
    if not text:
        return None
    at = whole(text)
    if at is None or at > 1 << 40:
        raise ValueError(f"{key} is `{text[:40]}`")
    return at or None


def _first(found: dict[str, str], *keys: str) -> int:
    """The first of these attributes that is a number over 0, else 0. `Resource_List.nodect` counts chunks, and a host
    may have several (pbs_resources(7)); the two others are Torque's."""
    numbers = (whole(found.get(key, "")) for key in keys)
    return next((number for number in numbers if number), 0)


def _ending(status: str) -> str:
    try:
        code = int(status or 0)
    except ValueError:
        return "UNKNOWN"
    if code == WALLTIME_EXCEEDED:
        return "TIMEOUT"
    return "COMPLETED" if code == 0 else "CANCELLED" if code == 271 else "FAILED"
