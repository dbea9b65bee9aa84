"""Which of our user's jobs are which of our allocations, and what is said of each. Pure."""

from __future__ import annotations

import pwd
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from tidemill.batch.contract import Answer, Ending, Status, split_element
from tidemill.batch.names import carries_key, is_allocation_name
from tidemill.batch.slurm.hostlist import expand, expand_elements, fold
from tidemill.batch.slurm.text import ELEMENTS_MAX, FIELD, OwnJob, records, value
from tidemill.batch.slurm.times import parse_time
from tidemill.batch.slurm.words import held, hopeless, job_state
from tidemill.errors import ProtocolError
from tidemill.model.number import whole
from tidemill.model.state import ALLOCATION_FINAL, AllocationState

RECORD_FORMAT = "JobID,State,ExitCode,Start,End,NodeList,AllocCPUS,AllocTRES,Comment,JobName"
"""sacct(1), with FIELD between."""

_BY = re.compile(r"CANCELLED by ([0-9]{1,10})")
_RANK = {AllocationState.ACTIVE: 0, AllocationState.QUEUED: 1}


class Match(NamedTuple):
    """A job that is one of our allocations. `surplus`: it lives, but another one of the same name counts."""

    job: OwnJob
    renamed: bool
    surplus: bool


def match(
    names: Collection[str], jobs: Collection[OwnJob], *, key: str, numbers: Mapping[str, str]
) -> dict[str, list[Match]]:
    """The jobs of each allocation, the one that counts first: what runs before what waits before what has ended.

    Tidemill's jobs carry the key and the name. A job under another name that carries the key and the number received at
    submission (`numbers`, by the name of the submission) was renamed. A number alone proves nothing.
    """
    singles: dict[tuple[str, int | None], list[OwnJob]] = {}
    folded: dict[str, list[OwnJob]] = {}
    for job in jobs:
        if not carries_key(job.comment, key):
            continue
        base = job.name if is_allocation_name(job.name) else f"#{job.number}"
        for each in {base, job.name}:
            if job.folded:
                folded.setdefault(each, []).append(job)
            else:
                singles.setdefault((each, job.element), []).append(job)
    found: dict[str, list[Match]] = {}
    for name in names:
        base, index = split_element(name)
        for label in (base, f"#{numbers.get(base, '')}"):
            fitting = singles.get((label, index), [])
            if index is not None:
                fitting = fitting + [
                    job for job in folded.get(label, []) if any(index in each for each in job.folded)
                ]
                fitting += [job for job in singles.get((label, None), []) if _is_emptied(job)]
            if fitting:
                found[name] = _ordered(fitting, renamed=label != base)
                break
    return found


def _is_emptied(job: OwnJob) -> bool:
    """Whether this row stands for what waited of an array until it was canceled: `15 CANCELLED` without elements, where
    these went one by one (`scancel -u`, `scancel -t PENDING`; 22.05.8, tried)."""
    return job_state(job.word, job.reason)[0] is AllocationState.CANCELED


def canceled_by(word: str) -> str:
    """Who canceled a job by sacct's word, `CANCELLED by 54321`: the user's name, else the number; empty = it does not
    say."""
    match = _BY.match(word)
    if match is None:
        return ""
    try:
        return pwd.getpwuid(int(match[1])).pw_name
    except (KeyError, OverflowError):
        return match[1]


def canceled_while_waiting(batch_id: str, by: str = "") -> Status:
    """The status of an element of an array that was canceled while it waited: Slurm keeps no record of it (22.05.8,
    tried)."""
    return Status(
        answer=Answer.FOUND,
        state=AllocationState.CANCELED,
        batch_id=batch_id,
        ending=Ending.CANCELED,
        reason="canceled while it waited",
        canceled_by=by,
    )


def withdrawn(
    missing: Collection[str],
    jobs: Collection[OwnJob],
    waited_s: Mapping[str, float],
    *,
    key: str,
    since_s: float,
) -> dict[str, Status]:
    """Elements of arrays that were canceled alone while they waited: Slurm shows others of the array and not these.

    `waited_s`: when each allocation was last seen waiting; `since_s`: since when Slurm has kept all jobs (MinJobAge).
    An element that was seen later, and that Slurm does not show, has not started.
    """
    shown = {job.name: job.number for job in jobs if carries_key(job.comment, key)}
    for job in jobs:
        if job.is_cut:
            shown.pop(job.name, None)  # which elements it lacks is not known
    result = {}
    for name in missing:
        base, index = split_element(name)
        seen_s = waited_s.get(name)
        if index is not None and seen_s is not None and base in shown and seen_s > since_s:
            result[name] = canceled_while_waiting(f"{shown[base]}_{index}")
    return result


def _ordered(jobs: list[OwnJob], *, renamed: bool) -> list[Match]:
    """The one that counts first; the newest of those that have ended, the oldest of those that live."""

    def rank(job: OwnJob) -> tuple[int, int]:
        order = _RANK.get(job_state(job.word, job.reason)[0], 2)
        number = whole(job.number) or 0
        return order, -number if order == 2 else number

    ordered = sorted(jobs, key=rank)
    return [Match(job, renamed, surplus=place > 0 and rank(job)[0] < 2) for place, job in enumerate(ordered)]


def status_of(match: Match) -> Status:
    """The status of an allocation, from its row of `squeue`."""
    job = match.job
    state, ending = job_state(job.word, job.reason)
    reason = "" if job.reason in ("None", "") else job.reason
    if state in ALLOCATION_FINAL and ending is not Ending.DONE:
        reason = reason or job.word
    if match.renamed:
        reason = f"renamed to `{job.name[:100]}`" + (f", {reason}" if reason else "")
    if state is AllocationState.QUEUED:  # its times and nodes are plans
        again = job.reason == "BeginTime" or job.word.startswith(
            "REQUEUE"
        )  # we never ask for a time to begin
        return Status(
            answer=Answer.FOUND,
            state=state,
            batch_id=job.id,
            reason=reason,
            held=held(job.reason),
            hopeless=hopeless(job.reason),
            requeued=int(again),
        )
    return Status(
        answer=Answer.FOUND,
        state=state,
        batch_id=job.id,
        ending=ending,
        reason=reason,
        nodes=expand(job.nodes),
        started_s=job.started_s,
        ends_s=job.ends_s,
        ended_s=job.ends_s if state in ALLOCATION_FINAL else None,
        cores=job.cores,
        gpus=job.gpus,
        suspended=job.word.startswith("SUSPENDED"),
    )


def ids_to_cancel(matches: Collection[tuple[str, Match]]) -> list[str]:
    """Ids for scancel of (name, match); elements of one array folded, so that the command stays short."""
    plain: set[str] = set()
    elements: dict[str, set[int]] = {}
    for name, each in matches:
        index = split_element(name)[1]
        if each.job.element is None and not each.job.folded:
            plain.add(each.job.number)
        elif index is not None:
            elements.setdefault(each.job.number, set()).add(index)
    return [*sorted(plain), *(f"{number}_[{fold(each)}]" for number, each in sorted(elements.items()))]


def shown(output: bytes, names: Collection[str], *, key: str, numbers: Mapping[str, str]) -> dict[str, str]:
    """Waiting and running allocations among these, with their ids, by `scontrol -o show job` of their `numbers`."""
    found: dict[str, str] = {}
    for record in records(output, "JobId"):
        line = f" {record}"
        if not carries_key(line.partition(" Comment=")[2], key):
            continue
        if job_state(value(line, "JobState"), value(line, "Reason"))[0] in ALLOCATION_FINAL:
            continue
        number = value(line, "ArrayJobId") or value(line, "JobId")
        told = value(line, "ArrayTaskId")
        elements = expand_elements(told, ELEMENTS_MAX) if told[:1].isdecimal() else ()
        for name in names:
            base, index = split_element(name)
            if numbers.get(base) != number:
                continue
            if index is None:
                found[name] = number
            elif any(index in each for each in elements):
                found[name] = f"{number}_{index}"
    return found


def accounted(
    output: bytes, names: Collection[str], *, key: str, numbers: Mapping[str, str]
) -> dict[str, Status]:
    """What the accounting says of these allocations, the last record of each. Its comments may be empty (they are kept
    with AccountingStoreFlags=job_comment only): then the number received at submission must match."""
    wanted = set(names)
    found: dict[str, Status] = {}
    folded: list[tuple[str, str, str, str]] = []
    started: set[str] = set()
    for line in output.decode(errors="replace").split("\n"):
        row = line.split(FIELD)
        if len(row) != 10:
            continue  # a comment or a name with a line break
        number, word, code, start, end, nodes, cores, resources, comment, base = row
        number, _, index = number.partition("_")
        if index.startswith("["):
            if carries_key(comment, key) or (not comment and numbers.get(base) == number):
                folded.append((base, number, index, word))
            continue
        name = f"{base}.{index}" if index else base
        if name not in wanted:
            continue
        if not (carries_key(comment, key) or (not comment and numbers.get(base) == number)):
            continue
        state, ending = job_state(word)
        if state not in ALLOCATION_FINAL:
            started.add(name)  # it has run, and its end is not written yet
            continue  # the queue knows better, and it did not know it
        try:
            where = expand(nodes)
        except ProtocolError:
            where = ()
        found[name] = Status(
            answer=Answer.FOUND,
            state=state,
            batch_id=f"{number}_{index}" if index else number,
            ending=ending,
            reason="" if ending is Ending.DONE else f"{word}, exit code {code}",
            nodes=where,
            started_s=parse_time(start),
            ends_s=parse_time(end),
            ended_s=parse_time(end),
            cores=whole(cores) or 0,
            gpus=_gpus(resources),
            canceled_by=canceled_by(word),
        )
    return _unfolded(folded, wanted - started) | found


def _unfolded(rows: Collection[tuple[str, str, str, str]], wanted: Collection[str]) -> dict[str, Status]:
    """The status, from one row, of the elements that never started: `16_[0-3]|CANCELLED by 1` (22.05.8; it
    names those, too, that have rows of their own)."""
    found: dict[str, Status] = {}
    for base, number, text, word in rows:
        if job_state(word)[0] is not AllocationState.CANCELED:
            continue
        try:
            elements = expand_elements(text.strip("[]"), ELEMENTS_MAX)
        except ProtocolError:
            continue
        for name in wanted:
            name_base, index = split_element(name)
            if name_base == base and index is not None and any(index in each for each in elements):
                found[name] = canceled_while_waiting(f"{number}_{index}", canceled_by(word))
    return found


def _gpus(resources: str) -> int:
    """GPUs of sacct's AllocTRES, of all nodes: `billing=8,cpu=8,gres/gpu=2,node=1`."""
    found = dict(each.split("=", 1) for each in resources.split(",") if "=" in each)
    return whole(found.get("gres/gpu", "")) or 0
