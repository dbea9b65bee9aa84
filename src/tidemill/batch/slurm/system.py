"""The client of Slurm: one squeue for all our jobs, one scancel, one scontrol for limits that are lowered alike.

DIR/scripts/NAME.sh   what was submitted; there before sbatch runs, so that a name is never submitted twice unseen
DIR/scripts/NAME.id   the number that sbatch printed
DIR/output/NAME       what an allocation prints; NAME.INDEX for an element of an array
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from tidemill import clock
from tidemill.batch import constants
from tidemill.batch.contract import (
    FAR_FUTURE_S,
    PLAIN_MAX,
    Answer,
    BatchSubmission,
    Ending,
    Facts,
    MachineTotals,
    PlainReply,
    Status,
    split_element,
)
from tidemill.batch.launch import detect
from tidemill.batch.names import carries_key, check_name, compose_comment, is_allocation_name
from tidemill.batch.polite import Budget
from tidemill.batch.run import CommandResult, Refusal
from tidemill.batch.slurm import own, text
from tidemill.batch.slurm.facts import find_facts, find_refusal
from tidemill.batch.slurm.script import Asked, output_path, script_text, submit_words
from tidemill.batch.slurm.survey import Survey, can_account, job_age_s
from tidemill.batch.slurm.times import minutes_up, time_text
from tidemill.batch.slurm.words import REFUSALS, limit_named
from tidemill.batch.submissions import remove
from tidemill.config.site import Cluster
from tidemill.errors import SiteError
from tidemill.files import make_directories, write_durable
from tidemill.log import Log
from tidemill.model.machine import JobCounts, NodeState, Snapshot
from tidemill.model.state import ALLOCATION_FINAL, AllocationState

ENDED_MAX = 100_000
"""Allocations whose end is remembered after Slurm has forgotten it."""

ACCOUNTED_NAMES_MAX = 500
ACCOUNTED_DAYS = 14
TRIAL_S = 60.0
"""Limit of a job that is never submitted: within every limit of a partition."""

USED_MARGIN_S = 60.0
"""A limit is never set below the time used and this: a limit in the past kills at once, one in minutes rounds."""

TAIL_BYTES = 2000
TAIL_CHARS = 500
_log = Log("slurm")


class SlurmBatchSystem:
    """Slurm as a batch system of `batch/contract.py`. `key`: of the site directory, in the comment of each job."""

    def __init__(self, directory: Path, config: Cluster, *, key: str, account: str = "") -> None:
        self._directory = directory
        self._config = config
        self._key = key
        self._account = account
        self._budget = Budget(config, REFUSALS)
        self.calls = self._budget.calls
        self._survey = Survey(self._budget, config)
        self._launcher = detect(config.launcher, own="srun")
        self._user = pwd.getpwuid(os.geteuid()).pw_name
        self._numbers: dict[str, str] = {}  # of submissions, by name
        self._ended: dict[str, Status] = {}
        self._canceled: set[str] = set()  #: that this agent canceled, and that have not been seen to end
        self._missing_since: dict[str, float] = {}
        self._waited_s: dict[
            str, float
        ] = {}  #: allocations that waited when Slurm was last asked, and when that was
        try:
            for name in ("scripts", "output"):
                make_directories(directory / name, 0o022)
        except OSError as error:
            raise SiteError(f"failed to make `{directory}/{name}`: {error.strerror}") from error

    def submit(self, submission: BatchSubmission) -> str:
        """Submit with `sbatch` and return the job's number; a name that was submitted before keeps its number."""
        name = check_name(submission.name)
        script = script_text(submission, self._launcher, head=self._config.script_head)
        words = submit_words(submission, self._config, self._asked(submission))
        if self._is_submitted(name):
            known = self._number(name) or self._find_number(name)
            if known:
                return known
        write_durable(self._script(name), script, mode=0o644)
        reply = self._budget.act(words, stdin=script)
        line = (reply.output.decode(errors="replace").strip().splitlines()[-1:] or [""])[0]
        number, _, cluster = line.partition(";")  # `id` or `id;cluster`
        if reply.status != 0 or not number.isdecimal():
            self._survey.expire()  # a limit that has changed may be why
            self._survey.own_limit.met(submission.walltime_s, limit_named(reply.errors))
            raise self._not_submitted(name, reply)
        if cluster and cluster != self._survey.settings().get("ClusterName", cluster):
            raise self._sent_elsewhere(name, number, cluster)
        self._note_number(name, number)
        return number

    def status(self, names: Collection[str]) -> dict[str, Status]:
        """Return the status of each allocation. One that was submitted from here and that Slurm does not know is
        unclear for `UNKNOWN_S`, then gone. Of two that run under one name, because Slurm accepted a submission without
        confirming it, the surplus one is canceled."""
        if not names:
            return {}
        jobs = self._own_jobs()
        matches = own.match(names, jobs, key=self._key, numbers=self._read_numbers(names))
        news = {name for name in matches if name not in self._ended}
        answers = {
            name: self._status_to_report(name, own.status_of(found[0])) for name, found in matches.items()
        }
        missing = [name for name in names if name not in answers]
        answers |= {name: self._ended[name] for name in missing if name in self._ended}
        missing = [name for name in missing if name not in answers]
        answers |= self._withdrawn(missing, jobs)
        self._note_waiting(answers)
        self._note_limits(matches, answers)
        answers |= self._by_others(answers, news.union(missing))
        missing = [name for name in missing if name not in answers]
        left = [name for name in missing if self._is_submitted(split_element(name)[0])]
        if left and can_account(self._survey.settings()):
            answers |= self._accounted(left[:ACCOUNTED_NAMES_MAX])
        for name in answers:
            self._missing_since.pop(name, None)
        answers |= {name: self._vanished(name) for name in missing if name not in answers}
        self._cancel_surplus(matches)
        return answers

    def plain(self, names: Collection[str]) -> PlainReply:
        """Ask `scontrol show job` for each number: filters of squeue, and programs in its place, have no effect."""
        shown: dict[str, str] = {}
        numbers = dict(sorted(self._read_numbers(names).items())[:PLAIN_MAX])
        for number in numbers.values():
            reply = self._budget.query(["scontrol", "-o", "show", "job", number])
            if reply.status != 0 and self._budget.refusal(reply) is not Refusal.UNKNOWN:
                self._budget.check(reply)
            shown |= own.shown(reply.output, names, key=self._key, numbers=numbers)
        command = "; ".join(f"scontrol show job {number}" for number in numbers.values())
        return PlainReply(shown=shown, command=command, usual="squeue --me -t all")

    def cancel(self, names: Collection[str]) -> None:
        """Cancel the jobs of these allocations that have not ended, by one `scancel`. The plain query finds those that
        squeue does not show."""
        if not names:
            return
        self._canceled.update(names)
        matches = own.match(names, self._own_jobs(), key=self._key, numbers=self._read_numbers(names))
        living = [
            (name, each)
            for name, found in matches.items()
            for each in found
            if own.status_of(each).state not in ALLOCATION_FINAL
        ]
        self._scancel(own.ids_to_cancel(living))
        for name, each in living:
            if (
                each.job.folded
            ):  # Slurm keeps no record of a waiting element that was canceled (22.05.8, tried)
                self._remember(name, own.canceled_while_waiting(each.job.id))
        unseen = [name for name in names if name not in matches and name not in self._ended]
        if unseen:
            self._scancel([*self.plain(unseen).shown.values()])

    def shorten(self, ends_s: Mapping[str, float]) -> dict[str, float]:
        """Lower limits by EndTime, to the second; where Slurm refuses that, by TimeLimit, to the minute."""
        if not ends_s:
            return {}
        found = self._running(ends_s)
        now_s = clock.now_s()
        groups: dict[str, list[str]] = {}
        done: dict[str, float] = {}
        for name, status in found.items():
            end_s = max(ends_s[name], now_s + 1)
            if status.ends_s is not None and status.ends_s <= end_s:
                done[name] = status.ends_s  # it ends before that, and only operators may raise a limit
            else:
                groups.setdefault(time_text(end_s), []).append(name)
        refused = []
        for end, group in sorted(groups.items()):
            ids = ",".join(found[name].batch_id for name in group)
            if not self._update(ids, f"EndTime={end}"):
                refused += group
        if refused:
            self._limit(refused, ends_s)
        if groups:
            after = self._running(ends_s)
            done |= {name: status.ends_s for name, status in after.items() if status.ends_s is not None}
        return done

    def machine(self) -> MachineTotals:
        """Sum up the nodes of the configured, or else the default, partition."""
        nodes = self._survey.nodes()
        partitions = self._survey.partitions()
        wanted = [
            each
            for each in partitions
            if (each.name == self._config.partition if self._config.partition else each.is_default)
        ]
        inside = {name for each in wanted for name in each.nodes}
        ours = [node for node in nodes if node.name in inside] if wanted else nodes
        free = sum(node.state is NodeState.IDLE for node in ours)
        return MachineTotals(
            nodes=len(ours),
            nodes_free=free,
            cores_per_node=min((node.cores for node in ours), default=1),
            memory_mb_per_node=min((node.memory_mb for node in ours), default=1),
        )

    def snapshot(self) -> Snapshot:
        """Take a snapshot of the machine."""
        return self._survey.snapshot(self._is_ours)

    def glance(self) -> JobCounts | None:
        """Read slurmctld's counters of jobs."""
        return self._survey.glance()

    def facts(self) -> Facts:
        """Gather what a newcomer needs to know about the machine."""
        facts = find_facts(self._budget, self._survey, self._user)
        if not self._config.partition and not any(each.is_default for each in facts.partitions):
            return facts  # `sbatch` needs the name of one
        trial = BatchSubmission(
            name="tm-trial", command=["/bin/true"], nodes=1, cores=1, memory_mb=0, walltime_s=TRIAL_S
        )
        words = submit_words(trial, self._config, self._asked(trial))
        refused = find_refusal(self._budget, words, script_text(trial, self._launcher))
        return msgspec.structs.replace(facts, refused=refused)

    def output(self, name: str) -> Path:
        """Return the file that holds what the allocation printed."""
        return output_path(self._directory, name)

    def forget(self, names: Collection[str], submissions: Collection[str]) -> None:
        """Delete the files of these allocations and submissions, and forget what is known about them."""
        for name in names:
            self._ended.pop(name, None)
            self._missing_since.pop(name, None)
        for name in submissions:
            self._numbers.pop(name, None)
        scripts = [self._script(name) for name in submissions]
        remove([*map(self.output, names), *scripts, *(each.with_suffix(".id") for each in scripts)])

    def _asked(self, submission: BatchSubmission) -> Asked:
        return Asked(
            directory=self._directory,
            comment=compose_comment(self._key, submission.comment),
            account=self._account,
            launcher=self._launcher,
            now_s=clock.now_us() / 1e6,
        )

    def _own_jobs(self) -> list[text.OwnJob]:
        """All jobs of our user, by one query."""
        command = ["squeue", "--me", "-h", "-t", "all", "-o", text.OWN_FORMAT]
        jobs = text.own_jobs(self._budget.check(self._budget.query(command, kind="own")))
        for job in jobs[:1]:
            self._user = job.user
        return jobs

    def _is_ours(self, user: str, name: str, comment: str) -> bool:
        return user == self._user and is_allocation_name(name) and carries_key(comment, self._key)

    def _status_to_report(self, name: str, status: Status) -> Status:
        """The status to report, with the last lines of what failed; an end is remembered."""
        if status.state not in ALLOCATION_FINAL:
            self._ended.pop(name, None)
            return status
        if name in self._ended and self._ended[name].batch_id == status.batch_id:
            return self._ended[name]
        return self._remember(name, status)

    def _remember(self, name: str, status: Status) -> Status:
        if status.ending in (Ending.FAILED, Ending.LAUNCH):
            status = _with_tail(status, self.output(name))
        while len(self._ended) >= ENDED_MAX:
            self._ended.pop(next(iter(self._ended)))
        self._ended[name] = status
        return status

    def _note_limits(self, matches: Mapping[str, list[own.Match]], answers: Mapping[str, Status]) -> None:
        """Learn from jobs that a limit keeps from ever starting: the limits have changed since they were read."""
        told = {(answers[name].hopeless, found[0].job.limit_s or 0.0) for name, found in matches.items()}
        for reason, limit_s in sorted(each for each in told if each[0]):
            self._survey.expire()
            self._survey.own_limit.met(limit_s, reason)

    def _note_waiting(self, answers: Mapping[str, Status]) -> None:
        now_s = clock.monotonic_s()
        self._waited_s = {
            name: now_s for name, each in answers.items() if each.state is AllocationState.QUEUED
        }

    def _withdrawn(self, missing: Collection[str], jobs: Collection[text.OwnJob]) -> dict[str, Status]:
        """Allocations that were canceled while they waited, by `own.withdrawn`. Nothing is asked for where no
        such element was seen waiting before."""
        if not any(name in self._waited_s for name in missing):
            return {}
        since_s = clock.monotonic_s() - job_age_s(self._survey.settings())
        found = own.withdrawn(missing, jobs, self._waited_s, key=self._key, since_s=since_s)
        return {name: self._remember(name, status) for name, status in found.items()}

    def _vanished(self, name: str) -> Status:
        """Neither queue nor accounting know it."""
        if not self._is_submitted(split_element(name)[0]):
            return Status(answer=Answer.GONE, reason="it was never submitted from here")
        now_s = clock.monotonic_s()
        since_s = self._missing_since.setdefault(name, now_s)
        if now_s - since_s < constants.UNKNOWN_S:
            return Status(answer=Answer.UNCLEAR, reason="Slurm does not know it; it may yet appear")
        return Status(answer=Answer.GONE, reason=f"Slurm has not known it for {constants.UNKNOWN_S:g} s")

    def _by_others(self, answers: Mapping[str, Status], news: Collection[str]) -> dict[str, Status]:
        """Allocations whose end is news and that this agent did not cancel, with the user who did where the accounting
        knows: squeue does not. For people: nothing depends on its reply."""
        canceled = {name for name in news if name in answers and answers[name].ending is Ending.CANCELED}
        unknown = [name for name in canceled - self._canceled if not answers[name].canceled_by]
        self._canceled -= {name for name, each in answers.items() if each.state in ALLOCATION_FINAL}
        if not unknown or not can_account(self._survey.settings()):
            return {}
        try:
            found = self._records(sorted(unknown)[:ACCOUNTED_NAMES_MAX])
        except SiteError as error:
            _log.info("slurm.unaccounted", reason=error.message)
            return {}
        told = {
            name: found[name].canceled_by for name in unknown if name in found and found[name].canceled_by
        }
        return {
            name: self._remember(name, msgspec.structs.replace(answers[name], canceled_by=by))
            for name, by in told.items()
        }

    def _accounted(self, names: list[str]) -> dict[str, Status]:
        return {name: self._remember(name, status) for name, status in self._records(names).items()}

    def _records(self, names: list[str]) -> dict[str, Status]:
        """What the accounting says of these allocations that have ended."""
        bases = sorted({split_element(name)[0] for name in names})
        command = ["sacct", "-n", "-P", "-X", f"--delimiter={text.FIELD}", "-o", own.RECORD_FORMAT]
        command += ["-S", f"now-{ACCOUNTED_DAYS}days", f"--name={','.join(bases)}"]
        reply = self._budget.query(command)
        if reply.status != 0 and self._budget.refusal(reply) is Refusal.UNKNOWN:
            return {}
        output = self._budget.check(reply)
        return own.accounted(output, names, key=self._key, numbers=self._read_numbers(names))

    def _cancel_surplus(self, matches: Mapping[str, list[own.Match]]) -> None:
        surplus = [(name, each) for name, found in matches.items() for each in found[1:] if each.surplus]
        if surplus:
            _log.warning("slurm.submitted_twice", ids=[each.job.id for _, each in surplus])
            self._scancel(own.ids_to_cancel(surplus))

    def _scancel(self, ids: list[str]) -> None:
        if not ids:
            return
        reply = self._budget.act(["scancel", *ids])
        refusal = self._budget.refusal(reply) if reply.status or reply.errors else Refusal.UNKNOWN
        if refusal is not Refusal.UNKNOWN:  # unknown or ended: as good as done
            self.calls.failures += 1
            raise reply.error(transient=refusal is not Refusal.DENIED)

    def _running(self, names: Collection[str]) -> dict[str, Status]:
        matches = own.match(names, self._own_jobs(), key=self._key, numbers=self._read_numbers(names))
        told = {name: own.status_of(found[0]) for name, found in matches.items()}
        return {name: status for name, status in told.items() if status.state is AllocationState.ACTIVE}

    def _limit(self, names: list[str], ends_s: Mapping[str, float]) -> None:
        """Lower limits in whole minutes, those that come out alike by one call."""
        now_s = clock.now_s()
        groups: dict[int, list[str]] = {}
        for name, status in self._running(names).items():
            started_s = status.started_s or now_s
            minutes = minutes_up(max(ends_s[name], now_s + USED_MARGIN_S) - started_s)
            if started_s + minutes * 60 < (status.ends_s or FAR_FUTURE_S):
                groups.setdefault(minutes, []).append(status.batch_id)
        for minutes, ids in sorted(groups.items()):
            self._update(",".join(ids), f"TimeLimit={minutes}")

    def _update(self, ids: str, change: str) -> bool:
        """Whether Slurm did it for all. Raises SiteError when it could not be asked."""
        reply = self._budget.act(["scontrol", "update", f"JobId={ids}", change])
        if reply.status == 0:
            return True
        if self._budget.refusal(reply) in (Refusal.AWAY, Refusal.BUSY):
            self.calls.failures += 1
            raise reply.error()
        _log.info("slurm.not_shortened", ids=ids, change=change, reason=reply.last_words)
        return False

    def _script(self, name: str) -> Path:
        return self._directory / "scripts" / f"{name}.sh"

    def _is_submitted(self, name: str) -> bool:
        return name in self._numbers or self._script(name).exists()

    def _not_submitted(self, name: str, reply: CommandResult) -> SiteError:
        """What to raise. Only what Slurm clearly refused is forgotten: anything else may have become a job."""
        self.calls.failures += 1
        refusal = self._budget.refusal(reply)
        if refusal in (Refusal.DENIED, Refusal.LIMIT):
            self._script(name).unlink(missing_ok=True)
        hint = "a limit of jobs; it passes" if refusal is Refusal.LIMIT else None
        return reply.error(transient=refusal is not Refusal.DENIED, hint=hint)

    def _sent_elsewhere(self, name: str, number: str, cluster: str) -> SiteError:
        """Cancel a job that `sbatch` sent to a cluster that Tidemill does not query, and return the error to raise."""
        self.calls.failures += 1
        reply = self._budget.act(["scancel", f"--clusters={cluster}", number])
        if reply.status == 0:
            self._script(name).unlink(missing_ok=True)
        done = "it was canceled" if reply.status == 0 else f"and it cannot be canceled: {reply.last_words}"
        return SiteError(
            f"`sbatch` sent job {number} to cluster `{cluster}`, but Tidemill does not read its queue; {done}",
            hint="remove `--clusters` from `cluster.directives`, and set SLURM_CONF to the slurm.conf of one cluster",
            transient=False,
        )

    def _find_number(self, name: str) -> str:
        """The number of a job that an unconfirmed submission has become; empty where there is none."""
        for job in self._own_jobs():
            if job.name == name and carries_key(job.comment, self._key):
                self._note_number(name, job.number)
                return job.number
        return ""

    def _note_number(self, name: str, number: str) -> None:
        self._numbers[name] = number
        write_durable(self._script(name).with_suffix(".id"), number.encode(), mode=0o644)

    def _number(self, name: str) -> str:
        """The number that sbatch printed for a submission, perhaps to an earlier agent; empty where it is not known."""
        if name not in self._numbers:
            try:
                self._numbers[name] = self._script(name).with_suffix(".id").read_text().strip()
            except OSError:
                return ""
        return self._numbers[name]

    def _read_numbers(self, names: Collection[str]) -> dict[str, str]:
        bases = {split_element(name)[0] for name in names}
        return {base: number for base in bases if (number := self._number(base))}


def _with_tail(status: Status, path: Path) -> Status:
    """The status, with the last lines of the output."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            tail = file.read().decode(errors="replace").strip()
    except OSError:
        return status
    return msgspec.structs.replace(status, output_tail=tail[-TAIL_CHARS:])
