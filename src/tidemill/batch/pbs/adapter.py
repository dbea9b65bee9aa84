"""PBS Professional and OpenPBS behind the contract of batch systems: see docs/batch-pbs.md.

Users cannot set a comment in PBS, so our jobs carry name and key in their variables (`-v`). One `qstat -f` asks
for exactly the allocations in question, by numbers that were written down at submission; one that comes back without
our name and key is a reused number. Jobs that have ended leave the queue, and most sites keep no history: their
scripts note the end (`batch/script.py`), `qstat -x` is asked where they could not.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.batch import constants
from tidemill.batch.contract import (
    Answer,
    BatchSubmission,
    Ending,
    Facts,
    MachineTotals,
    PlainReply,
    Status,
    element_name,
    split_element,
)
from tidemill.batch.launch import detect
from tidemill.batch.names import check_name, is_name
from tidemill.batch.pbs import command, own, survey
from tidemill.batch.pbs.deaths import Deaths
from tidemill.batch.pbs.glance import ask_counts
from tidemill.batch.pbs.places import read_hosts
from tidemill.batch.pbs.replies import (
    Record,
    read_duration,
    read_number,
    read_text,
    read_time,
    text_of,
    variables,
)
from tidemill.batch.polite import Budget
from tidemill.batch.run import CommandResult, Refusal
from tidemill.batch.script import ScriptDialect, compose, node_text
from tidemill.batch.submissions import LEFT_WAITING, Records, SubmissionRecord, ended, tail_of
from tidemill.config.site import Cluster
from tidemill.errors import SiteError
from tidemill.log import Log
from tidemill.model.machine import JobCounts, NodeState, Snapshot
from tidemill.model.state import ALLOCATION_FINAL, AllocationState

HISTORY_EVERY_S = 30.0
LOST_EVERY_S = 30.0
SERVER_EVERY_S = 300.0
"""Interval between two reads of the server's settings and of the scheduler's state."""

_QUEUED, _ACTIVE = set("QHWTM"), set("RESUB")
_OVER = set("FX")
_SUSPENDED = set("SU")  #: by the scheduler for another job, or because a workstation's user is back
_log = Log("pbs")


class PbsBatchSystem:
    """PBS as a batch system of `batch/contract.py`."""

    def __init__(
        self, directory: Path, config: Cluster, *, key: str, account: str = "", deaths: Deaths | None = None
    ) -> None:
        self._config = config
        self._key = key
        self._account = account
        self._records = Records(directory)
        self._budget = Budget(config, command.WORDS)
        self.calls = self._budget.calls
        self._user = pwd.getpwuid(os.getuid()).pw_name
        self._missing_since_s: dict[str, float] = {}
        self._final: dict[str, Status] = {}
        self._living: set[str] = (
            set()
        )  #: that PBS showed when last asked for them, and what was submitted since
        self._suspended: set[str] = set()  #: that the scheduler suspended for another job, when last seen
        self._sought_s: dict[str, float] = {}  #: submissions without a number: when last looked for
        self._is_grouping = True  #: `qstat` knows `-E`
        self._aliases: dict[str, str] = {}  #: `command.node_aliases` of the last poll
        self._asked_history_s = -HISTORY_EVERY_S
        self._deaths = Deaths() if deaths is None else deaths
        self._name_chars_max: int | None = None
        self._server: Record | None = None
        #: False: it submits nothing and has no numbers, such as for `tidemill windows`; jobs are whose they say
        self.knows_numbers = True
        self._asked_server_s = 0.0
        self._is_scheduled = True
        self._waited: set[str] = set()  #: allocations that waited when PBS showed them last
        self._is_planning = False  #: at the last poll, PBS planned the start of a regular job
        self._asked_scheduler_s = -SERVER_EVERY_S

    # ---- contract ----

    def submit(self, submission: BatchSubmission) -> str:
        """Submit with `qsub` and return the job's number; a name that was submitted before keeps its number."""
        name = check_name(submission.name)
        record = self._records.submitted(name)
        if record is not None:
            return record.batch_id
        if self._records.was_tried(name):
            self._find([name])
            if (record := self._records.submitted(name)) is not None:
                return record.batch_id
        kind = "fork"
        if submission.nodes > 1 and submission.ranks:
            kind = detect(self._config.launcher, own="pbsdsh" if shutil.which("pbsdsh") else "")
        dialect = ScriptDialect(directory=self._records.directory, index="PBS_ARRAY_INDEX", launcher=kind)
        script = self._records.prepare(name, compose(submission, dialect), node_text(submission))
        words = command.submit_words(submission, self._config, key=self._key, account=self._account)
        runs = command.script_words(script)
        reply = self._budget.act([*words, "-N", name[: self._name_chars_max], *runs])
        if reply.status != 0 and "illegal -n value" in reply.errors.lower() and self._name_chars_max is None:
            self._name_chars_max = command.OLD_NAME_CHARS_MAX
            reply = self._budget.act([*words, "-N", name[: self._name_chars_max], *runs])
        if reply.status != 0:
            self.calls.failures += 1
            raise reply.error(transient=self._budget.refusal(reply) is not Refusal.DENIED)
        number = command.read_id(reply.output)
        submitted = SubmissionRecord(
            batch_id=number,
            count=submission.count,
            at_s=clock.now_s(),
            walltime_s=submission.walltime_s,
        )
        self._records.note(name, submitted)
        self._living.update(element_name(name, index, submission.count) for index in range(submission.count))
        return number

    def status(self, names: Collection[str]) -> dict[str, Status]:
        """Return the status of each allocation: by `qstat`, else by its script's file, the history or our cancels."""
        found = self._jobs([name for name in names if name not in self._final])
        answers: dict[str, Status] = {}
        for name in names:
            job = found.get(name)
            self._living.discard(name)
            if name in self._final:
                answers[name] = self._final[name]
            elif job is None or text_of(job, "job_state") in _OVER:
                answers[name] = self._left(name, job)
            else:
                self._missing_since_s.pop(name, None)
                self._living.add(name)
                answers[name] = self._status(name, job)
                is_waiting = answers[name].state is AllocationState.QUEUED
                (self._waited.add if is_waiting else self._waited.discard)(name)
        unclear = [name for name in names if answers[name].answer is Answer.UNCLEAR]
        if unclear and self._ask_history(unclear):
            answers.update({name: self._final[name] for name in unclear if name in self._final})
        answers.update(self._preempted(answers))
        answers = {name: self._since_suspended(name, each) for name, each in answers.items()}
        self._measure_deaths()
        self._final.update({name: each for name, each in answers.items() if each.state in ALLOCATION_FINAL
                            and each.answer is Answer.FOUND})  # fmt: skip
        return answers

    def plain(self, names: Collection[str]) -> PlainReply:
        """Ask `qselect` for all jobs of this user. It shows an array as a whole: its elements count as shown only if
        the usual query showed none of them."""
        words = ["qselect", "-u", self._user]
        listed = self._budget.check(self._budget.query(words)).decode(errors="replace").split()
        numbers = {command.short_id(number) for number in listed}
        seen = {split_element(name)[0] for name in self._living}
        shown: dict[str, str] = {}
        for name in names:
            base, index = split_element(name)
            submitted = self._records.submitted(base)
            if submitted is None or command.short_id(submitted.batch_id) not in numbers:
                continue
            if index is None or base not in seen:
                shown[name] = self._id(name)
        return PlainReply(shown=shown, command=" ".join(words), usual="qstat -f NUMBERS")

    def cancel(self, names: Collection[str]) -> None:
        """Delete the jobs of these allocations that have not ended, by one `qdel` (for IDS_MAX of them).

        Raises SiteError, transient, where one of them was not found and is not known to have ended; the others are
        deleted all the same."""
        wanted = [name for name in names if name not in self._final and self._records.has(name)]
        self._seek({split_element(name)[0] for name in wanted}, pause_s=0.0)
        shown = self._records_of([number for name in wanted if (number := self._id(name))])
        jobs = self._named(wanted, shown)
        self._delete(jobs)
        missing = [name for name in wanted if name not in jobs]
        unclear = [name for name in missing if not self._has_left(name, shown)]
        if unclear:
            text = f"PBS does not show {len(unclear)} of {len(wanted)} allocations that are to be deleted, such as"
            raise SiteError(f"{text} `{unclear[0]}`", hint="the agent orders it again")

    def _has_left(self, name: str, shown: Mapping[str, Record]) -> bool:
        """Whether an allocation that is not among the jobs that PBS `shown` has ended: its script says so, PBS shows
        only others, or a job of another user with its number. A submission whose reply was lost may still come."""
        number = self._id(name)
        if self._records.ending(name, number) is not None:
            return True
        if not number:
            now_s = clock.monotonic_s()
            return now_s - self._missing_since_s.setdefault(name, now_s) > constants.UNKNOWN_S
        same = [job for key, job in shown.items() if command.short_id(key) == command.short_id(number)]
        return all(text_of(job, "Job_Owner") and "Variable_List" in job for job in same)

    def _delete(self, jobs: Mapping[str, Record]) -> None:
        states = {name: text_of(job, "job_state") for name, job in jobs.items()}
        living = [name for name, state in states.items() if state not in ("F", "X", "E")]
        if not living:
            return
        self._records.note_cancels(living)
        self._deaths.canceled([name for name in living if states[name] == "R"], clock.now_s())
        if self._is_planning:
            self._announce_ends({name: jobs[name] for name in living if states[name] == "R"})
        for group in _groups([self._id(name) for name in living]):
            reply = self._budget.act(["qdel", *group])
            if reply.status not in {0, *command.GONE_STATUSES}:
                self.calls.failures += 1
                raise reply.error(transient=self._budget.refusal(reply) is not Refusal.DENIED)

    def _announce_ends(self, jobs: Mapping[str, Record]) -> None:
        """Lower the limits of running jobs that are about to be deleted, so that PBS plans with their end.

        It frees their nodes one by one, and counts the others until their limit: with an hour left, it fills the gap
        of the top job with jobs that outlast it. A failure is logged and keeps no job from being deleted.
        """
        running = {
            name: command.RunningLimit(started_s=started_s, limit_s=limit_s)
            for name, job in jobs.items()
            if split_element(name)[1] is None
            and (started_s := _started_s(job)) is not None
            and (limit_s := read_duration(text_of(job, "Resource_List", "walltime"))) is not None
        }
        for walltime_s, names in command.limits_before_end(running, clock.now_s() + self._deaths.death_s):
            try:
                reply = self._alter(walltime_s, names[: command.IDS_MAX])
            except SiteError as error:
                _log.warning("limit.not_lowered", reason=error.message)
                return
            if reply.status not in {0, *command.GONE_STATUSES}:
                _log.warning("limit.not_lowered", reason=reply.last_words)

    def shorten(self, ends_s: Mapping[str, float]) -> dict[str, float]:
        """Lower limits by one `qalter` for each new limit; subjobs of arrays cannot be altered alone."""
        alone = [name for name in ends_s if split_element(name)[1] is None]
        limits: dict[int, dict[str, float]] = {}
        for name, job in self._jobs(alone).items():
            started_s, limit_s = _started_s(job), read_duration(text_of(job, "Resource_List", "walltime"))
            if started_s is None or limit_s is None or text_of(job, "job_state") != "R":
                continue
            wanted_s = max(1, int(ends_s[name] - started_s))
            if wanted_s < limit_s:
                limits.setdefault(wanted_s, {})[name] = started_s + wanted_s
        done: dict[str, float] = {}
        for wanted_s, ends in limits.items():
            for names in _groups([*ends]):
                reply = self._alter(wanted_s, names)
                if reply.status == 0:
                    done |= {name: ends[name] for name in names}
                elif self._budget.refusal(reply) is Refusal.AWAY:
                    raise reply.error()
                else:
                    self.calls.failures += 1
                    _log.warning("shorten.refused", reason=reply.last_words)
        return done

    def _alter(self, walltime_s: int, names: Iterable[str]) -> CommandResult:
        return self._budget.act(["qalter", "-l", f"walltime={walltime_s}", *map(self._id, names)])

    def machine(self) -> MachineTotals:
        """Sum up the nodes and waiting jobs of a snapshot."""
        snapshot = self.snapshot()
        usable = [node for node in snapshot.nodes if node.state is not NodeState.AWAY]
        return MachineTotals(
            nodes=len(snapshot.nodes),
            nodes_free=sum(node.state is NodeState.IDLE for node in usable),
            cores_per_node=min((node.cores for node in usable), default=0),
            memory_mb_per_node=min((node.memory_mb for node in usable), default=0),
            queued=len(snapshot.queued),
        )

    def snapshot(self) -> Snapshot:
        """Take a snapshot by four queries, and now and then two for the server's settings and its scheduler."""
        server = self._ask_server()
        checks = survey.Checks(settle=self._settle, is_scheduled=self._is_at_work)
        seen = survey.ask_snapshot(
            self._budget, server, is_ours=self._is_ours, user=self._user, checks=checks
        )
        self._aliases = command.node_aliases(node.name for node in seen.nodes)
        self._is_planning = any(job.planned_s is not None and not job.ours for job in seen.queued)
        return seen

    def glance(self) -> JobCounts | None:
        """Read the server's counters of jobs."""
        return ask_counts(self._budget)

    def facts(self) -> Facts:
        """Gather what a newcomer needs to know about the machine."""
        return survey.compose_facts(self._ask_server(), self.snapshot())

    def output(self, name: str) -> Path:
        """Return the file that holds what the allocation printed."""
        return self._records.output(name)

    def forget(self, names: Collection[str], submissions: Collection[str]) -> None:
        """Delete the files of these allocations and submissions, and forget what is known about them."""
        for name in names:
            for kept in (self._final, self._missing_since_s):
                kept.pop(name, None)
            for names_kept in (self._suspended, self._living, self._waited):
                names_kept.discard(name)
        for name in submissions:
            self._sought_s.pop(name, None)
        self._records.forget(names, submissions)

    # ---- our jobs ----

    def _ask_server(self) -> Record:
        """The server's settings, asked for every SERVER_EVERY_S."""
        now_s = clock.monotonic_s()
        if self._server is None or now_s - self._asked_server_s >= SERVER_EVERY_S:
            self._server, self._asked_server_s = survey.ask_server(self._budget), now_s
        return self._server

    def _is_at_work(self, jobs: Mapping[str, Record]) -> bool:
        """Whether the scheduler runs: asked for as rarely as the server's settings; at every poll while it is down, so
        that the site goes on when it is back, or while a job waits that no cycle has commented on."""
        now_s = clock.monotonic_s()
        is_doubtful = not self._is_scheduled or survey.is_silent(jobs, clock.now_s())
        if is_doubtful or now_s - self._asked_scheduler_s >= SERVER_EVERY_S:
            is_scheduled = survey.ask_scheduler(self._budget)
            if is_scheduled != self._is_scheduled and self._asked_scheduler_s >= 0:
                _log.warning("scheduler.changed", is_at_work=is_scheduled)
            self._is_scheduled, self._asked_scheduler_s = is_scheduled, now_s
        return self._is_scheduled

    def _is_ours(self, job: Record) -> bool:
        owner = text_of(job, "Job_Owner").partition("@")[0]
        return owner == self._user and variables(job).get(command.KEY) == self._key

    def _settle(self, jobs: dict[str, Record]) -> dict[str, Record]:
        """The jobs of the machine, of which only Tidemill's say that they are its own (`own`). Those of lost
        submissions are looked for first, so that they have numbers."""
        if not self.knows_numbers:
            return jobs
        claimed = own.claims(jobs, self._is_ours)
        bases = {split_element(name)[0] for name in claimed.values()}
        lost = [each for each in bases if is_name(each) and self._records.submitted(each) is None]
        if lost := sorted(filter(self._records.was_tried, lost)):
            self._find(lost)
        mine = {self._id(name): name for key, name in claimed.items() if self._is_number(key, name)}
        doubtful = own.doubtful(jobs, claimed, mine, self._living)
        told = own.by_number(doubtful, self._records_of(doubtful))
        return own.settled(jobs, claimed, mine, told)

    def _is_number(self, key: str, name: str) -> bool:
        """Whether a record has the number that we know of this allocation, or of this array as a whole."""
        base, index = split_element(name)
        if not is_name(base) or (index is not None and not self._records.has(name)):
            return False
        return own.number_of(key) == command.short_id(self._id(name))

    def _id(self, name: str) -> str:
        """The number of an allocation; empty where the reply to its submission never came."""
        base, index = split_element(name)
        submitted = self._records.submitted(base)
        return command.element_id(submitted.batch_id, index) if submitted else ""

    def _seek(self, names: Collection[str], *, pause_s: float = LOST_EVERY_S) -> None:
        """Look for the jobs of those of these submissions that have no number: for all of them at once, as soon as one
        was not looked for within `pause_s`."""
        lost = sorted(name for name in names if self._records.submitted(name) is None)
        now_s = clock.monotonic_s()
        if any(now_s - self._sought_s.get(name, -pause_s) >= pause_s for name in lost):
            self._find(lost)
            self._sought_s |= dict.fromkeys(lost, now_s)

    def _jobs(self, names: Collection[str], *options: str) -> dict[str, Record]:
        """Those of these allocations that the queue knows, by name. One query, as text: JSON shows only the first of
        several numbers (openpbs issue 2672), and turns a key that looks like a number into one."""
        asked = [name for name in names if self._records.has(name)]
        self._seek({split_element(name)[0] for name in asked})
        numbers = [number for name in asked if (number := self._id(name))]
        return self._named(asked, self._records_of(numbers, *options))

    def _named(self, names: Iterable[str], shown: Mapping[str, Record]) -> dict[str, Record]:
        """The records that PBS `shown` of these allocations, by name."""
        ids = {command.short_id(number): name for name in names if (number := self._id(name))}
        found: dict[str, Record] = {}
        for number, job in shown.items():
            name = ids.get(command.short_id(number), "")
            told = variables(job).get(command.NAME, "")
            if name and self._is_ours(job) and told in (name, split_element(name)[0]):
                found[name] = job
        return found

    def _records_of(self, numbers: Sequence[str], *options: str) -> dict[str, Record]:
        """What `qstat` shows of these jobs, by number; some may be unknown by now. Raises SiteError when it could not
        be asked. Without `-E`, which came in 2016, it asks the server for each number by a request of its own."""
        found: dict[str, Record] = {}
        for group in _groups(numbers):
            if self._is_grouping:
                reply = self._budget.query(["qstat", "-E", *options, "-f", *group], kind="status")
                self._is_grouping = not command.is_usage_error(reply)
            if not self._is_grouping:
                reply = self._budget.query(["qstat", *options, "-f", *group], kind="status")
            if reply.status not in {0, *command.GONE_STATUSES}:
                self._budget.check(reply)
            records = read_text(reply.output, "Job Id:")
            if reply.status == 0 and not records and not options:  # without a history, -x prints nothing
                said = reply.output[:200].decode(errors="replace").strip()
                raise SiteError(f"`qstat -f` of {len(group)} jobs printed no job, and no error: `{said}`")
            found |= records
        return found

    def _find(self, names: Sequence[str]) -> None:
        """Note the numbers of those of these submissions that were made, although their replies were lost."""
        words = ["qselect", "-u", self._user]
        if len(names) == 1:
            words += ["-N", names[0][: self._name_chars_max]]
        listed = self._budget.check(self._budget.query(words))
        # The newest come last; more would be other jobs of this user, and cost a command for each IDS_MAX of them.
        numbers = listed.decode(errors="replace").split()[-command.IDS_MAX :]
        for number, job in self._records_of(numbers).items():
            if " " in number:  # a second record of a number: a user has forged one of them
                continue
            name = variables(job).get(command.NAME, "")
            if name in names and self._is_ours(job) and self._records.submitted(name) is None:
                submitted = SubmissionRecord(
                    batch_id=number,
                    count=command.read_array_count(job),
                    at_s=read_time(text_of(job, "qtime"), clock.now_s()) or clock.now_s(),
                    walltime_s=read_duration(text_of(job, "Resource_List", "walltime")) or 0.0,
                )
                self._records.note(name, submitted)

    # ---- words on one allocation ----

    def _status(self, name: str, job: Record) -> Status:
        state = text_of(job, "job_state")
        active = state in _ACTIVE or (state not in _QUEUED and bool(text_of(job, "stime")))
        if state not in _QUEUED | _ACTIVE:
            _log.warning("state.unknown", name=name, state=state)
        started_s = _started_s(job) if active else None
        limit_s = read_duration(text_of(job, "Resource_List", "walltime"))
        comment = text_of(job, "comment")[:500]
        # An element that waits has the state Q although its array is held, with the holds and the comment of the array.
        holds = text_of(job, "Hold_Types").strip("n") if state in _QUEUED else ""
        is_hopeless = state == "Q" and command.is_hopeless(comment)
        if command.has_failed_starts(comment):
            holds, is_hopeless = holds.replace("s", ""), state in _QUEUED  # PBS itself has set the hold `s`
        return Status(
            answer=Answer.FOUND,
            state=AllocationState.ACTIVE if active else AllocationState.QUEUED,
            batch_id=self._id(name),
            reason=comment,
            held=f"Hold_Types {holds}" if holds else "",
            hopeless=comment if is_hopeless and not holds else "",
            nodes=self._hosts(job) if active else (),
            started_s=started_s,
            ends_s=started_s + limit_s if started_s is not None and limit_s is not None else None,
            cores=read_number(text_of(job, "Resource_List", "ncpus")),
            gpus=read_number(text_of(job, "Resource_List", "ngpus")),
            requeued=max(0, read_number(text_of(job, "run_count")) - 1),
            suspended=state in _SUSPENDED,
        )

    def _left(self, name: str, job: Record | None) -> Status:
        """Not in the queue: its own file, the history, our order; else unclear for a while, then gone."""
        number = self._id(name)
        status = self._records.ending(name, number)
        if status is not None:
            nodes = tuple(command.node_name(host, self._aliases) for host in status.nodes)
            return msgspec.structs.replace(status, nodes=nodes)
        if not self._records.has(name):
            return Status(answer=Answer.GONE)
        if job is not None and text_of(job, "job_state") == "F":
            return self._from_history(name, job)
        if self._records.was_canceled(name):
            return ended(
                AllocationState.CANCELED, Ending.CANCELED, batch_id=number, reason="Tidemill ended it"
            )
        now_s = clock.monotonic_s()
        since_s = self._missing_since_s.setdefault(name, now_s)
        if (
            name in self._waited
            and now_s - since_s > constants.WORD_S
            and not self._records.has_started(name)
        ):
            return ended(AllocationState.CANCELED, Ending.CANCELED, batch_id=number, reason=LEFT_WAITING)
        gone = now_s - since_s > constants.UNKNOWN_S
        return Status(answer=Answer.GONE if gone else Answer.UNCLEAR, batch_id=number)

    def _from_history(self, name: str, job: Record) -> Status:
        status, comment = text_of(job, "Exit_status"), text_of(job, "comment")
        ending = command.ending_of(status)
        if "exceeded resource walltime" in comment:
            ending = Ending.WALLTIME  # its exit status is 271 or 143 before 2020
        elif command.is_preempted(comment):
            ending = Ending.PREEMPTED
        state = command.STATES.get(ending, AllocationState.FAILED)
        tail = tail_of(self.output(name)) if state is AllocationState.FAILED else ""
        reason = f"Exit_status {status or 'none'}: {comment[:300]}"
        told = ended(state, ending, batch_id=self._id(name), reason=reason, tail=tail)
        ended_s = read_time(text_of(job, "obittime"), clock.now_s()) if text_of(job, "obittime") else None
        return msgspec.structs.replace(
            told, nodes=self._hosts(job), ended_s=None if ended_s is None else float(ended_s)
        )

    def _hosts(self, job: Record) -> tuple[str, ...]:
        """The nodes of a job by the names that they have in a snapshot."""
        hosts = read_hosts(text_of(job, "exec_host"))
        return tuple(command.node_name(host, self._aliases) for host in hosts)

    def _measure_deaths(self) -> None:
        """Learn from the history, where there is one, how long nodes are kept after a cancel."""
        names = self._deaths.ripe(clock.now_s())
        if not names:
            return
        keeps = self._server is not None and text_of(self._server, "job_history_enable") == "True"
        jobs = self._jobs(names, "-x") if keeps else {}
        for name in names:
            job = jobs.get(name, {})
            if job and text_of(job, "job_state") not in _OVER:
                continue  # its end is not known yet
            ended = text_of(job, "obittime")
            self._deaths.ended(name, read_time(ended, clock.now_s()) if ended else None)
        self.calls.death_s = self._deaths.death_s

    def _preempted(self, answers: Mapping[str, Status]) -> dict[str, Status]:
        """Those that got TERM, not from us, and whose nodes the scheduler took, as the history shows. One query for
        such ends; without a history they stay canceled."""
        names = [
            name
            for name, each in answers.items()
            if each.ending is Ending.CANCELED
            and name not in self._final
            and not self._records.was_canceled(name)
        ]
        jobs = self._jobs(names, "-x") if names else {}
        return {
            name: self._from_history(name, job)
            for name, job in jobs.items()
            if command.is_preempted(text_of(job, "comment"))
        }

    def _since_suspended(self, name: str, status: Status) -> Status:
        """What the scheduler suspended was preempted, although Tidemill itself ended it then."""
        if status.answer is not Answer.FOUND:
            return status
        if status.suspended:
            self._suspended.add(name)
        elif status.state is AllocationState.ACTIVE and not self._records.was_canceled(name):
            self._suspended.discard(name)  # it went on
        elif status.ending is Ending.CANCELED and name in self._suspended:
            reason = f"the scheduler suspended it for another job: {status.reason}"
            return msgspec.structs.replace(status, ending=Ending.PREEMPTED, reason=reason)
        return status

    def _ask_history(self, names: list[str]) -> bool:
        """Ask the server's history, rarely. Where it keeps none, there are no jobs in the reply."""
        now_s = clock.monotonic_s()
        if now_s - self._asked_history_s < HISTORY_EVERY_S:
            return False
        self._asked_history_s = now_s
        for name, job in self._jobs(names, "-x").items():
            if text_of(job, "job_state") in _OVER:
                self._final[name] = self._from_history(name, job)
        return True


def _groups(items: Sequence[str]) -> Iterator[Sequence[str]]:
    """These in as many pieces as there must be commands."""
    for first in range(0, len(items), command.IDS_MAX):
        yield items[first : first + command.IDS_MAX]


def _started_s(job: Record) -> float | None:
    return read_time(text_of(job, "stime"), clock.now_s())
