"""Grid Engine behind the contract of batch systems.

Our jobs carry the key in their context (`-ac`), which `qstat -j` shows to every user, and in the accounting string.
`qstat -u US -r -g t -xml` shows the states of all of them at once; their keys are queried once. A job that ended leaves
qstat at once, so its script records the end (`batch/script.py`). `qacct` is often closed to users and lags by seconds;
it is queried only for jobs whose script could not record it. `qalter -l h_rt` of a running job is accepted and shown by
qstat, but the job runs on (tried with 8.1.9): limits cannot be shortened, pilots end themselves.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from tidemill import clock
from tidemill.batch import constants
from tidemill.batch.contract import (
    PLAIN_MAX,
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
from tidemill.batch.names import check_name, is_allocation_name
from tidemill.batch.polite import Budget
from tidemill.batch.run import Refusal
from tidemill.batch.script import ScriptDialect, compose, node_text
from tidemill.batch.submissions import LEFT_WAITING, Records, SubmissionRecord, ended, tail_of
from tidemill.config.site import Cluster
from tidemill.errors import SiteError
from tidemill.log import Log
from tidemill.model.machine import JobCounts, NodeState, Snapshot
from tidemill.model.state import AllocationState
from tidemill_gridengine import command, survey
from tidemill_gridengine.defaults import query_words, submit_start
from tidemill_gridengine.replies import (
    Row,
    merge,
    read_accounts,
    read_contexts,
    read_rows,
    read_started_tasks,
)
from tidemill_gridengine.settings import GridEngineSettings

WORDS = (
    ("unable to send message to qmaster", Refusal.AWAY),
    ("unable to contact qmaster", Refusal.AWAY),
    ("commlib error", Refusal.AWAY),
    ("can't unpack gdi", Refusal.AWAY),
    ("gdi request", Refusal.AWAY),
    ("does not exist", Refusal.UNKNOWN),
    ("do not exist", Refusal.UNKNOWN),
    ("not found", Refusal.UNKNOWN),
    ("max_u_jobs", Refusal.LIMIT),
    ("allowed number of jobs", Refusal.LIMIT),
    ("only allowed to submit", Refusal.LIMIT),
    ("job rejected", Refusal.DENIED),
    ("unable to run job", Refusal.DENIED),
    ("denied", Refusal.DENIED),
)
"""Words of the commands of 8.1.9, lower case (source and observation)."""

ACCOUNTING_EVERY_S = 10.0
ACCOUNTING_DAYS = 8
IDS_MAX = 2000
_log = Log("gridengine")


class GridEngineBatchSystem:
    """Grid Engine as a batch system of `batch/contract.py`."""

    def __init__(
        self,
        directory: Path,
        config: Cluster,
        *,
        key: str,
        own: GridEngineSettings,
        account: str = "",
    ) -> None:
        self._config, self._own = config, own
        self._key = key
        self._account = account
        self._records = Records(directory)
        self._budget = Budget(config, WORDS)
        self.calls = self._budget.calls
        self._user = pwd.getpwuid(os.getuid()).pw_name
        self._ours: dict[tuple[str, str], bool] = {}
        self._missing_since_s: dict[str, float] = {}
        self._accounts: dict[str, Status] = {}
        self._failed: dict[str, Status] = {}
        self._waited: set[str] = set()  #: allocations that waited when Grid Engine showed them last
        self._asked_accounting_s = -ACCOUNTING_EVERY_S

    # ---- contract ----

    def submit(self, submission: BatchSubmission) -> str:
        """Submit with `qsub` and return the job's number; a name that was submitted before keeps its number."""
        name = check_name(submission.name)
        record = self._records.submitted(name)
        if record is not None:
            return record.batch_id
        if self._records.was_tried(name):
            found = [row for row in self._rows() if row.name == name]
            if found:
                return self._note(submission, found[0].id)
        kind = "fork"
        if submission.nodes > 1 and submission.ranks:
            kind = detect(self._config.launcher)
        dialect = ScriptDialect(directory=self._records.directory, index="SGE_TASK_ID - 1", launcher=kind)
        text = compose(submission, dialect)
        words = command.submit_words(
            submission, self._config, self._own, key=self._key, account=self._account
        )
        script = self._records.prepare(name, text, node_text(submission))
        reply = self._budget.act([*submit_start(), *words, str(script)])
        if reply.status != 0:
            self.calls.failures += 1
            raise reply.error(transient=self._budget.refusal(reply) is not Refusal.DENIED)
        return self._note(submission, command.read_id(reply.output))

    def status(self, names: Collection[str]) -> dict[str, Status]:
        """Return the status of each allocation: by `qstat`, else by its script's file, our cancels or `qacct`."""
        if not names:
            return {}
        found = {row.allocation: row for row in self._rows()}
        answers: dict[str, Status] = {}
        for name in names:
            row = found.get(name)
            if row is not None:
                self._missing_since_s.pop(name, None)
                answers[name] = self._status(name, row)
                is_waiting = answers[name].state is AllocationState.QUEUED
                (self._waited.add if is_waiting else self._waited.discard)(name)
            else:
                answers[name] = self._left(name)
        self._delete_errors([found[name] for name in names if name in found and found[name].is_error])
        unclear = [name for name in names if answers[name].answer is Answer.UNCLEAR]
        if unclear and self._ask_accounting():
            answers.update({name: self._accounts[name] for name in unclear if name in self._accounts})
        return answers

    def plain(self, names: Collection[str]) -> PlainReply:
        """Ask `qstat -j` for the numbers: it knows no filters."""
        numbers: dict[str, str] = {}
        for base in sorted({split_element(name)[0] for name in names})[:PLAIN_MAX]:
            submitted = self._records.submitted(base)
            if submitted is not None:
                numbers[base] = submitted.batch_id
        listed = ",".join(numbers.values())
        usual = f"qstat -u {self._user}"
        if not numbers:
            return PlainReply(shown={}, command="qstat -j NUMBERS", usual=usual)
        reply = self._budget.query(query_words("qstat", "-j", listed, "-xml"))
        if reply.status != 0 and self._budget.refusal(reply) is Refusal.UNKNOWN:
            return PlainReply(shown={}, command=f"qstat -j {listed}", usual=usual)
        output = self._budget.check(reply)
        contexts, tasks = read_contexts(output), read_started_tasks(output)
        shown: dict[str, str] = {}
        for name in names:
            base, index = split_element(name)
            number = numbers.get(base, "")
            if contexts.get(number, {}).get(command.CONTEXT) != self._key:
                continue
            if index is None:
                shown[name] = number
            elif index + 1 in tasks.get(number, ()):
                shown[name] = f"{number}.{index + 1}"
        return PlainReply(shown=shown, command=f"qstat -j {listed}", usual=usual)

    def cancel(self, names: Collection[str]) -> None:
        """Delete the jobs and tasks of these allocations that have not ended, by one `qdel`. The plain query finds
        those that `qstat` does not list."""
        wanted = {name for name in names if self._records.has(name) or self._records.submitted(name)}
        if not wanted:
            return
        rows = [row for row in self._rows() if row.allocation in wanted]
        targets = {
            row.allocation: f"{row.id}.{row.tasks[0]}" if row.tasks else row.id
            for row in rows
            if not row.is_deleted
        }
        unseen = wanted - {row.allocation for row in rows}
        unseen = {name for name in unseen if self._left(name).answer is Answer.UNCLEAR}
        if unseen:
            targets |= self.plain(unseen).shown
        if not targets:
            return
        self._records.note_cancels(targets)
        self._delete([*targets.values()])

    def shorten(self, ends_s: Mapping[str, float]) -> dict[str, float]:
        """Shorten none: Grid Engine cannot lower the limit of a running job."""
        return {}

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
        """Take a snapshot by two queries, and a third for keys of our own jobs that are not known yet."""
        instances, waiting = survey.ask_instances(self._budget)
        reservations = survey.ask_reservations(self._budget, self._user)
        rows = [row for instance in instances for row in instance.rows] + waiting
        mine = {row.id for row in self._mine(rows)}
        return survey.compose(instances, waiting, reservations, mine=mine)

    def glance(self) -> JobCounts | None:
        """Return None: Grid Engine has no command that counts jobs."""
        return None  # `qstat -g c` shows slots, not jobs that wait

    def facts(self) -> Facts:
        """Gather what a newcomer needs to know about the machine."""
        return survey.ask_facts(self._budget, self.snapshot())

    def output(self, name: str) -> Path:
        """Return the file that holds what the allocation printed."""
        return self._records.output(name)

    def forget(self, names: Collection[str], submissions: Collection[str]) -> None:
        """Delete the files of these allocations and submissions, and forget what is known about them."""
        for name in names:
            for kept in (self._missing_since_s, self._accounts, self._failed):
                kept.pop(name, None)
            self._waited.discard(name)
        gone = set(submissions)
        self._ours = {key: is_ours for key, is_ours in self._ours.items() if key[1] not in gone}
        self._records.forget(names, submissions)

    # ---- our jobs ----

    def _rows(self) -> list[Row]:
        """All our jobs and tasks that have not ended. One query; a second for keys that we have not seen."""
        # `-g t` shows all hosts of a job, and overrides another grouping in a file of the user
        words = query_words("qstat", "-u", self._user, "-r", "-g", "t", "-xml")
        reply = self._budget.query(words, kind="status")
        return self._mine(read_rows(self._budget.check(reply)))

    def _mine(self, rows: Iterable[Row]) -> list[Row]:
        """Those of our user, with one of our names and our key."""
        own = [row for row in merge(list(rows)) if row.owner == self._user and is_allocation_name(row.name)]
        unseen = sorted({(row.id, row.name) for row in own} - self._ours.keys())[:IDS_MAX]
        if unseen:
            listed = ",".join(number for number, _ in unseen)
            reply = self._budget.query(query_words("qstat", "-j", listed, "-xml"))
            contexts = read_contexts(self._budget.check(reply))
            for number, name in unseen:
                if number in contexts:
                    self._ours[number, name] = contexts[number].get(command.CONTEXT) == self._key
        return [row for row in own if self._ours.get((row.id, row.name))]

    def _note(self, submission: BatchSubmission, number: str) -> str:
        self._records.note(
            submission.name,
            SubmissionRecord(
                batch_id=number,
                count=submission.count,
                at_s=clock.now_s(),
                walltime_s=submission.walltime_s,
            ),
        )
        self._ours[number, submission.name] = True
        return number

    def _count(self, name: str) -> int:
        submitted = self._records.submitted(name)
        return submitted.count if submitted else 1

    def _delete(self, targets: list[str]) -> None:
        """Delete these by one `qdel`. A job that has ended meanwhile is not an error."""
        if not targets:
            return
        reply = self._budget.act(["qdel", *targets])
        if reply.status != 0 and self._budget.refusal(reply) is not Refusal.UNKNOWN:
            self.calls.failures += 1
            raise reply.error(transient=self._budget.refusal(reply) is not Refusal.DENIED)

    def _delete_errors(self, rows: list[Row]) -> None:
        """Delete jobs in error that were reported as failed: they must not start when their error is cleared."""
        try:
            self._delete([f"{row.id}.{row.tasks[0]}" if row.tasks else row.id for row in rows])
        except SiteError as error:
            _log.warning("delete.failed", reason=error.message)

    # ---- words on one allocation ----

    def _status(self, name: str, row: Row) -> Status:
        ending = self._records.ending(name, row.id)
        if ending is not None and row.is_deleted:
            return ending  # its host does not answer any more: `dr` stays for ever
        if row.is_error:
            reason = f"Grid Engine could not start it: state {row.state}"
            failed = ended(AllocationState.FAILED, Ending.LAUNCH, batch_id=row.id, reason=reason)
            self._failed[name] = failed
            return failed
        ends_s = None
        submitted = self._records.submitted(split_element(name)[0])
        walltime_s = row.walltime_s or (submitted.walltime_s if submitted else None)
        if row.started_s is not None and walltime_s is not None:
            ends_s = row.started_s + walltime_s
        return Status(
            answer=Answer.FOUND,
            state=AllocationState.ACTIVE if row.runs else AllocationState.QUEUED,
            batch_id=row.id,
            reason=row.state,
            held=row.state if row.is_held else "",
            nodes=row.hosts,
            started_s=row.started_s if row.runs else None,
            ends_s=ends_s if row.runs else None,
            cores=row.slots,
            requeued=int("R" in row.state),
        )

    def _left(self, name: str) -> Status:
        """Not in the queue: its own file, our order, the accounting's word; else unclear for a while, then gone."""
        submitted = self._records.submitted(split_element(name)[0])
        number = submitted.batch_id if submitted else ""
        status = self._records.ending(name, number)
        if status is not None:
            return status
        if not self._records.has(name):
            return Status(answer=Answer.GONE)
        if name in self._failed:
            return self._failed[name]
        if self._records.was_canceled(name):
            return ended(
                AllocationState.CANCELED, Ending.CANCELED, batch_id=number, reason="Tidemill ended it"
            )
        if name in self._accounts:
            return self._accounts[name]
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

    def _ask_accounting(self) -> bool:
        """Query `qacct` for all our jobs that ended, rarely: it reads the whole file. Whether it was queried."""
        now_s = clock.monotonic_s()
        if now_s - self._asked_accounting_s < ACCOUNTING_EVERY_S:
            return False
        self._asked_accounting_s = now_s
        account = command.accounting_string(self._key)
        words = ["qacct", "-o", self._user, "-A", account, "-d", str(ACCOUNTING_DAYS), "-j", "tm-*"]
        try:
            reply = self._budget.query(words)
        except SiteError as error:
            _log.info("accounting.away", reason=error.message)
            return False
        for each in read_accounts(reply.output) if reply.status == 0 else []:
            if each.owner != self._user or each.account != account:
                continue
            index = (each.task or 1) - 1
            name = element_name(each.name, index, self._count(each.name))
            reason = f"failed {each.failed} {each.failed_text}, exit status {each.exit_status}"
            state = command.STATES[each.ending]
            tail = tail_of(self.output(name)) if state is AllocationState.FAILED else ""
            self._accounts[name] = ended(state, each.ending, batch_id=each.id, reason=reason, tail=tail)
        return True
