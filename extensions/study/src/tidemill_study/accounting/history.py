"""The past of a machine as columns of numbers: 40 bytes a job, so that ten million fit into half a gigabyte."""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tidemill.errors import ConfigError
from tidemill.model.quantities import counted_text
from tidemill_study.accounting.past_jobs import PastJob, Remark, Remarks
from tidemill_study.simulation import sharing, swf
from tidemill_study.simulation.swf import Raw, Trace
from tidemill_study.simulation.timeline import BusyNodes, empty_spells, most_busy, overfull_share

JOBS_MAX = 50_000_000
UNKNOWN = -1
RUNAWAY_S = 86_400
"""A job without an end that is this far past its limit has ended unseen by slurmdbd (sacctmgr(1), "RunAwayJobs")."""
EARLY_SHARE_MAX = 0.1
NAMES_MAX = 5
LEFT_OUT = {
    Remark.RUNAWAY: "no end",
    Remark.BACKWARDS: "an end before the start",
    Remark.NO_NODES: "no number of nodes",
}
WHOLE_SHARE_MIN = 0.1
SHARED_SHARE_MIN = 0.01
"""On machines with shared nodes, few jobs have a whole node."""
NO_SUBMIT_SHARE_MAX = 0.05
"""Waits are not judged if more jobs lack a time of submission: they seem to have waited for nothing."""
RUN_UP_S = 86_400
EVER_S = 1 << 40
"""A later time is unreadable: it is 35,000 years after the epoch."""
TIMES_MAX = (1 << 31) - 1


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """How large the machine is, where that is from, and whether the log's starts can be trusted.

    `outages` are (start, end) of the whole machine, in the log's times.
    """

    nodes: int
    nodes_from: str
    outages: list[tuple[int, int]]
    is_trusted: bool
    note: str


class History:
    """Jobs that ran, in the order of the log. Times in seconds of the log's clock; -1 = not known."""

    def __init__(self, name: str, remarks: Remarks, *, kind: str = "") -> None:
        self.name = name
        self.kind = kind
        self.remarks = remarks
        self.header: dict[str, int] = {}
        self.left_out: Counter[str] = Counter()  #: jobs that are not replayed, by reason
        self.submit_s = array("q")
        self.wait_s = array("q")
        self.run_s = array("i")
        self.width = array("i")
        self.limit_s = array("i")
        self.cores = array("i")
        self.last_s = 0  #: the latest time that the log knows
        self.begin_s = 0  #: from when on the log is complete
        self.timeline = BusyNodes()
        self._parts = 0  #: jobs of an SWF log that have a part of a node

    def __len__(self) -> int:
        return len(self.submit_s)

    def add_jobs(self, jobs: Iterable[PastJob], *, partition: str | None = None) -> None:
        """Add jobs, then close the log: what still runs, runs until its last time. Raises ConfigError if none is left.

        `partition`: only jobs of this one.
        """
        others: Counter[str] = Counter()
        for job in jobs:
            if partition is None or partition in job.partition.split(","):
                self._add(job)
            else:
                others[job.partition] += 1
        self._close()
        if self.kind == "pbs" and partition is None:  # records of such jobs do not say which queue
            self.left_out[swf.NEVER_STARTED] += self.remarks.count(Remark.NOT_STARTED)
        for remark, reason in LEFT_OUT.items():
            self.left_out[reason] += self.remarks.count(remark)
        if not self.submit_s:
            raise self._nothing(partition, others)

    def _nothing(self, partition: str | None, others: Counter[str]) -> ConfigError:
        """Why no job is left, and what to do; `others`: jobs of other partitions."""
        word = "queue" if self.kind == "pbs" else "partition"
        if others:
            known = ", ".join(
                f"{name or 'no name'} ({count:,})" for name, count in others.most_common(NAMES_MAX)
            )
            hint = f"{word}s in the log: {known}{' and others' if len(others) > NAMES_MAX else ''}"
            return ConfigError(f"`{self.name}` has no job of {word} `{partition}` that ran", hint=hint)
        remarks = self.remarks
        why = list(remarks.sentences())
        hint = ""
        if remarks.passed and not why:
            records = ", ".join(
                f"{count:,} records {name}" for name, count in remarks.passed.most_common(NAMES_MAX)
            )
            why.append(f"{records}, none S or E")
            hint = "jobs that ran have records S (start) and E (end): are the logs of later days missing?"
        elif self.kind == "sacct" and not remarks.lines:
            why.append("it has a header of sacct and no job")
            hint = "`sacct -a` prints the jobs of all users, -S and -E set from when until when"
        elif remarks.count(Remark.UNREADABLE):
            if self.kind == "swf" and remarks.count(Remark.UNREADABLE) == remarks.lines:
                first = remarks.where(remarks.noted[Remark.UNREADABLE].first)
                count = f"{remarks.lines:,} of {counted_text(remarks.lines, 'line')}"
                what = "is not a record" if remarks.lines == 1 else "are not records"
                why = [f"{count} {what} of the Standard Workload Format; the first is {first}"]
            hint = "--kind says what the log is: sacct, pbs or swf"
        return ConfigError(
            f"`{self.name}` has no job that ran ({'; '.join(why) or 'it holds no record'})", hint=hint or None
        )

    def _add(self, job: PastJob) -> None:
        submit_s = job.submit_s
        start_s, line = job.start_s, self.remarks.line
        times = (submit_s, start_s, job.end_s, job.run_s)
        latest_s = max((at for at in times if at is not None), default=0)
        if latest_s > EVER_S:
            self.remarks.add(Remark.UNREADABLE, line, f"job {job.id[:40]}: a time of {latest_s} s")
            return
        self.last_s = max(self.last_s, latest_s)
        if start_s is None and job.run_s is None:
            self.left_out[swf.NEVER_STARTED] += 1
            return
        if job.nodes <= 0 or job.nodes > TIMES_MAX:
            self.remarks.add(Remark.NO_NODES, line, f"job {job.id[:40]}")
            return
        run_s = job.run_s
        if run_s is None:
            run_s = UNKNOWN if job.end_s is None else job.end_s - (start_s or 0)
            if run_s < 0 and job.end_s is not None:
                self.remarks.add(Remark.BACKWARDS, line, f"job {job.id[:40]}")
                return
        if submit_s is None or (start_s is not None and submit_s > start_s):
            if submit_s is None:
                self.remarks.add(Remark.NO_SUBMIT, line, f"job {job.id[:40]}")
            submit_s = start_s or 0
        if run_s == 0 or len(self) >= JOBS_MAX:
            self.left_out[swf.NO_RUN_TIME if run_s == 0 else "no room"] += 1
            return
        self.submit_s.append(submit_s)
        self.wait_s.append(UNKNOWN if start_s is None else start_s - submit_s)
        self.run_s.append(min(run_s, TIMES_MAX))
        self.width.append(job.nodes)
        self.limit_s.append(UNKNOWN if job.limit_s is None else min(job.limit_s, TIMES_MAX))
        self.cores.append(min(job.cores, TIMES_MAX))

    def _close(self) -> None:
        per_node = swf.processors_per_node(self.header)
        self._parts = sum(width % per_node > 0 for width in self.width)
        for k in range(len(self)):
            if per_node > 1:
                self.width[k] = -(-self.width[k] // per_node)
            start_s = self.submit_s[k] + self.wait_s[k]
            if self.run_s[k] == UNKNOWN:
                run_s, limit_s = self.last_s - start_s, self.limit_s[k]
                if limit_s != UNKNOWN and run_s > limit_s + RUNAWAY_S:
                    self.remarks.add(Remark.RUNAWAY, 0)
                    run_s = 0
                self.run_s[k] = max(0, min(run_s, TIMES_MAX))
            if self.wait_s[k] != UNKNOWN:
                self.timeline.add(start_s, start_s + self.run_s[k], self.width[k])

        self.begin_s = self._begin_s()

    def _begin_s(self) -> int:
        """The time from which the log has all jobs. Logs of sacct and PBS hold the jobs that ended after some day:
        of the weeks before the first end they hold only long jobs. SWF logs are cut by submission.

        Up to a day of such an incomplete period changes little. A log with many submissions before its first end is a
        short one.
        """
        first_s = min(self.submit_s, default=0)
        if self.kind == "swf":
            return first_s
        ends = (
            at + wait + run
            for at, wait, run in zip(self.submit_s, self.wait_s, self.run_s, strict=True)
            if run > 0
        )
        end_s = min(ends, default=0)
        if end_s - first_s <= RUN_UP_S:
            return first_s
        early = sum(at < end_s for at in self.submit_s)
        return end_s if early <= EARLY_SHARE_MAX * len(self) else first_s

    @property
    def span(self) -> tuple[int, int]:
        """What is counted: from the log's begin to its last submission; of less than a day, to the last end."""
        last_s = max(self.submit_s)
        return self.begin_s, last_s if last_s - self.begin_s >= 86_400 else max(self.timeline.span[1], last_s)

    def machine(self, nodes: int | None) -> Machine:
        """The machine; `nodes`: as the user gives it. Raises ConfigError for a job that is wider than the machine, and
        for a log of cores on shared nodes."""
        widest = max(self.width)
        is_complete = UNKNOWN not in self.wait_s
        size, source = self._size(nodes, widest, is_complete)
        if widest > size:
            raise ConfigError(
                f"`{self.name}` has a job of {widest:,} nodes on a machine of {size:,} ({source})",
                hint="--nodes N sets the size of the machine",
            )
        overfull = overfull_share(self.timeline, size) if is_complete else None
        if self.kind == "swf":
            cores, parts = swf.processors_per_node(self.header), self._parts
        else:
            cores = self.whole_cores(SHARED_SHARE_MIN)
            parts = self.part_nodes(cores)
        sharing.check(self.name, parts=parts, jobs=len(self), cores=cores, overfull=overfull)
        if overfull is None:
            note = "the log does not record all starts: outages cannot be seen"
            return Machine(nodes=size, nodes_from=source, outages=[], is_trusted=False, note=note)
        if overfull > sharing.OVERFULL_SHARE_MAX:
            note = swf.overfull_note(overfull)
            return Machine(nodes=size, nodes_from=source, outages=[], is_trusted=False, note=note)
        starts = ((at, at + wait) for at, wait in zip(self.submit_s, self.wait_s, strict=True))
        outages = empty_spells(self.timeline, starts)
        return Machine(nodes=size, nodes_from=source, outages=outages, is_trusted=True, note="")

    def _size(self, nodes: int | None, widest: int, is_complete: bool) -> tuple[int, str]:
        if nodes is not None:
            return nodes, "--nodes"
        if self.header.get("MaxNodes", 0) > 0:
            return self.header["MaxNodes"], "MaxNodes of the header"
        if self.header.get("MaxProcs", 0) > 0:
            return self.header["MaxProcs"], "MaxProcs of the header"
        used = most_busy(self.timeline) if is_complete else 0
        if used > widest:
            return used, "the most nodes that the log shows busy at once"
        return widest, "the widest job"

    def recent(self, jobs_max: int) -> list[Raw]:
        """The last jobs to be submitted, at most `jobs_max`, ordered by submission: a simulation replays them."""
        submit_s = self.submit_s
        since_s = self.begin_s
        if len(self) > jobs_max:
            since_s = max(since_s, heapq.nlargest(jobs_max, submit_s)[-1])
        found = [
            Raw(k + 1, at, self.wait_s[k], self.run_s[k], self.width[k], self.limit_s[k])
            for k, at in enumerate(submit_s)
            if at >= since_s and self.run_s[k] > 0
        ]
        found.sort(key=lambda each: each.submit_s)
        return found[-jobs_max:]

    def trace(self, machine: Machine, jobs_max: int) -> Trace:
        """What a simulation replays: the same as `tidemill simulate` makes of the log, if all of it is taken."""
        records = self.recent(jobs_max)
        where = (machine.nodes, machine.nodes_from)
        early = sum(at < self.begin_s and run > 0 for at, run in zip(self.submit_s, self.run_s, strict=True))
        skipped = {**self.left_out, swf.BEFORE_FIRST_END: early}
        skipped = {reason: count for reason, count in skipped.items() if count}
        trace = swf.trace_of(Path(self.name), records, nodes=where, skipped=skipped)
        return msgspec.structs.replace(trace, has_submissions=self.has_submissions)

    @property
    def has_submissions(self) -> bool:
        """Whether the log says when its jobs were submitted, but for a few of them."""
        return self.remarks.count(Remark.NO_SUBMIT) <= NO_SUBMIT_SHARE_MAX * len(self)

    def whole_cores(self, share_min: float = WHOLE_SHARE_MIN) -> int:
        """Cores of a whole node: the most that jobs have on each of their nodes, without values that hold less than
        this share of all nodes of jobs; 0 = not known."""
        nodes: Counter[int] = Counter()
        for cores, width in zip(self.cores, self.width, strict=True):
            if cores > 0:
                nodes[-(-cores // width)] += width
        left = share_min * nodes.total()
        for cores in sorted(nodes, reverse=True):
            left -= nodes[cores]
            if left <= 0:
                return cores
        return 0

    def part_nodes(self, cores_per_node: int) -> int:
        """Jobs that had fewer cores than whole nodes have."""
        return sum(
            0 < cores < width * cores_per_node for cores, width in zip(self.cores, self.width, strict=True)
        )
