"""Slurm's JSON, of openapi v0.0.37 (21.08) to data_parser v0.0.44 (25.11) and what looks alike. Pure.

The releases differ in how they write numbers (`5`, null, `{"set":true,"infinite":false,"number":5}`) and states (a
word, a word with flags beside it, a list of words): one function reads each, whatever the release.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import msgspec

from tidemill.batch.contract import FAR_FUTURE_S
from tidemill.batch.slurm.hostlist import expand, expand_elements
from tidemill.batch.slurm.text import COUNT_MAX, ELEMENTS_MAX, devices, make_node, read_features
from tidemill.batch.slurm.words import is_eligible, job_state, node_state
from tidemill.errors import UNDECODABLE, ProtocolError
from tidemill.model.machine import Node, Queued, Reservation, Running
from tidemill.model.state import ALLOCATION_FINAL, AllocationState

INFINITE = FAR_FUTURE_S
ELEMENTS_SHOWN_MAX = 10_000
"""Of an array that waits: more could not start soon on any machine."""


def number(value: Any) -> float | None:
    """A number of any release; None = not set. Raises ProtocolError."""
    if value is None or value == "":
        return None
    if isinstance(value, dict):
        if value.get("infinite"):
            return INFINITE
        return number(value.get("number")) if value.get("set", True) else None
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            found = float(value)  # versions are texts since 23.11
        except (ValueError, OverflowError):
            found = math.inf if isinstance(value, int) else math.nan
        if found > COUNT_MAX:
            return INFINITE  # such as 18446744073709551614, NO_VAL64 of slurm.h
        if found >= -COUNT_MAX:
            return found
    raise ProtocolError(f"Slurm's JSON has `{ascii(value)[:100]}` for a number")


def states(value: Any, flags: Any = None) -> list[str]:
    """State words of any release, upper case: a word, a list, or a word and a list of flags. Raises ProtocolError."""
    if not all(isinstance(part, str | list | None) for part in (value, flags)):
        raise ProtocolError(f"Slurm's JSON has `{ascii(value)[:100]}`, `{ascii(flags)[:100]}` for words")
    found = [each for part in (value, flags) for each in ([part] if isinstance(part, str) else part or [])]
    return [str(each).strip().upper() for each in found if each]


def read(content: bytes, key: str) -> list[dict[str, Any]]:
    """The records of a document. Raises ProtocolError, also when Slurm put errors in it."""
    document = _document(content)
    result = document.get(key)
    if not isinstance(result, list) or not all(isinstance(each, dict) for each in result):
        errors = document.get("errors") or "no errors named"
        raise ProtocolError(f"Slurm's JSON has no `{key}`: {str(errors)[:300]}")
    return result


def _document(content: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except UNDECODABLE as error:
        raise ProtocolError(f"Slurm's JSON cannot be read: {error}") from error


def release(content: bytes) -> str:
    """Slurm's release as the document states it: `24.05.4`; empty where it is missing. Raises ProtocolError."""
    meta = _document(content).get("meta")
    about = (meta.get("slurm") or meta.get("Slurm")) if isinstance(meta, dict) else None
    return str(about.get("release", "")) if isinstance(about, dict) else ""


def jobs(content: bytes, is_ours: Callable[[str, str, str], bool]) -> tuple[list[Running], list[Queued]]:
    """All users' running jobs, and their waiting ones by falling priority. Jobs that have ended, which `squeue --json`
    shows too, are left out. Raises ProtocolError."""
    running: list[Running] = []
    queued: list[Queued] = []
    for job in read(content, "jobs"):
        words = states(job.get("job_state"))
        found = {job_state(word)[0] for word in words} or {AllocationState.QUEUED}
        if "COMPLETING" in words or (found == {AllocationState.ACTIVE}):
            running.append(_running(job, is_ours))
        elif not found & ALLOCATION_FINAL and "PENDING" in words:
            queued += _queued(job, is_ours)
        elif not found & ALLOCATION_FINAL:
            running.append(_running(job, is_ours))
    queued.sort(key=lambda each: -each.priority)
    return running, queued


def _names(job: dict[str, Any]) -> tuple[str, str]:
    """Id and name of a job, or of an array's element."""
    array, element = number(job.get("array_job_id")), number(job.get("array_task_id"))
    name = str(job.get("name", ""))
    if array and element is not None:
        return f"{array:.0f}_{element:.0f}", f"{name}.{element:.0f}"
    return f"{number(job.get('job_id')) or 0:.0f}", name


def _running(job: dict[str, Any], is_ours: Callable[[str, str, str], bool]) -> Running:
    job_id, name = _names(job)
    user = str(job.get("user_name", ""))
    return Running(
        id=job_id,
        name=name,
        user=sys.intern(user),
        nodes=expand(str(job.get("nodes") or "")),
        width=int(number(job.get("node_count")) or 1),
        started_s=number(job.get("start_time")) or 0.0,
        ends_s=number(job.get("end_time")) or FAR_FUTURE_S,
        submitted_s=number(job.get("submit_time")),
        partition=sys.intern(str(job.get("partition", ""))),
        cores=int(number(job.get("cpus")) or 0),
        whole=_is_whole(job),
        ours=is_ours(user, str(job.get("name", "")), str(job.get("comment", ""))),
    )


def _queued(job: dict[str, Any], is_ours: Callable[[str, str, str], bool]) -> list[Queued]:
    job_id, name = _names(job)
    user, reason = str(job.get("user_name", "")), str(job.get("state_reason", ""))
    priority = number(job.get("priority")) or 0.0
    limit = number(job.get("time_limit"))
    features, exact = read_features(str(job.get("features") or ""))
    planned = expand(str(job.get("scheduled_nodes") or ""))
    only = Queued(
        id=job_id,
        name=name,
        user=sys.intern(user),
        width=int(number(job.get("node_count")) or 1),
        walltime_s=FAR_FUTURE_S if limit in (None, INFINITE) else (limit or 0.0) * 60,
        cores=int(number(job.get("cpus")) or 0),
        memory_mb_per_node=int(number(job.get("memory_per_node")) or 0),
        submitted_s=number(job.get("submit_time")),
        priority=priority,
        partitions=tuple(str(job.get("partition", "")).split(",")),
        features=features,
        is_feature_list_exact=exact,
        planned_s=number(job.get("start_time")) or None if planned else None,
        planned_nodes=planned,
        reservation=str(job.get("resv_name") or ""),
        eligible=is_eligible(reason, priority) and not job.get("hold"),
        whole=_is_whole(job),
        reason=reason,
        ours=is_ours(user, str(job.get("name", "")), str(job.get("comment", ""))),
    )
    folded = str(job.get("array_task_string") or "")
    if not folded:
        return [only]
    array = f"{number(job.get('array_job_id')) or number(job.get('job_id')) or 0:.0f}"
    return [
        msgspec.structs.replace(only, id=f"{array}_{index}", name=f"{job.get('name', '')}.{index}")
        for index in islice(chain.from_iterable(expand_elements(folded, ELEMENTS_MAX)), ELEMENTS_SHOWN_MAX)
    ]


def _is_whole(job: dict[str, Any]) -> bool:
    """`shared` has been a word, null and a list; `exclusive` was there from 23.11 to 24.05, `whole` is since 24.05."""
    resources = job.get("job_resources")
    where = resources.get("nodes") if isinstance(resources, dict) else None
    if isinstance(where, dict) and where.get("whole"):
        return True
    return any(word in ("NO", "NONE", "TRUE", "EXCLUSIVE") for word in states(job.get("exclusive"))) or (
        states(job.get("shared") or "OK") in (["NONE"], ["NO"], ["EXCLUSIVE"])
    )


def nodes(content: bytes) -> list[Node]:
    """Nodes, each once (some releases repeat them by partition). Raises ProtocolError."""
    found: dict[str, Node] = {}
    for node in read(content, "nodes"):
        words = states(node.get("state"), node.get("state_flags"))
        total, usable = number(node.get("cpus")) or 0, number(node.get("effective_cpus"))
        name = sys.intern(str(node.get("name", "")))
        found[name] = make_node(
            name,
            node_state(words),
            cores=(int(min(total, usable or total)), int(number(node.get("alloc_cpus")) or 0)),
            memory_mb=int(number(node.get("real_memory")) or 0),
            rest=(
                _words(node.get("partitions")),
                _words(node.get("active_features")) or _words(node.get("features")),
                devices(str(node.get("gres") or "")),
                "+".join(words),
            ),
        )
    return list(found.values())


def reservations(content: bytes, own: str) -> list[Reservation]:
    """Reservations; `own`: the one that we may run in. Raises ProtocolError."""
    result = []
    for each in read(content, "reservations"):
        start_s = number(each.get("start_time"))
        if start_s is None:
            continue
        name = str(each.get("name", ""))
        result.append(
            Reservation(
                name=name,
                start_s=start_s,
                end_s=number(each.get("end_time")) or FAR_FUTURE_S,
                nodes=expand(str(each.get("node_list") or "")),
                maintenance="MAINT" in states(each.get("flags")),
                usable=bool(own) and name == own,
            )
        )
    return result


def _words(value: Any) -> tuple[str, ...]:
    """A list, or words between commas."""
    found = value.split(",") if isinstance(value, str) else value or []
    if not isinstance(found, list):
        raise ProtocolError(f"Slurm's JSON has `{ascii(value)[:100]}` for words")
    return tuple(sys.intern(str(each)) for each in found if each)
