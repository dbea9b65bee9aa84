"""Gives back the room of jobs that were canceled before anything of them ran.

A large specification of such a job stays for a while, in which the job can be retried. Then the job gets a short one
that says what it was, and the large one is deleted; the database uses its pages again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from tidemill.model.job import JobSpec
from tidemill.server.core import rights
from tidemill.server.database.rows import CANCELED
from tidemill.server.database.store import Session
from tidemill.server.database.unit_of_work import UnitOfWork

LARGE_BYTES = 2_000  #: a specification of fewer stays: its job can be retried until it is archived
LOOK = 5_000  #: ended jobs that are examined in one step
PIECE = 1_000  #: jobs that get a short specification in one transaction
WORD_MAX = 200  #: characters of a command's program that are kept
_ENCODER = msgspec.json.Encoder()
Write = Callable[[Callable[[UnitOfWork], Any]], Any]


class Shortening:
    """Examines ended jobs in the order of their ends, each once in the life of the process."""

    def __init__(self, write: Write, *, keep_s: float) -> None:
        self._write, self._keep_us = write, int(keep_s * 1e6)
        self._place = (0, 0)

    def step(self, session: Session, now_us: int) -> bool:
        """Shorten what is due among the next jobs; False if there are none. Bounded, but for the jobs of one
        specification."""
        before = now_us - self._keep_us
        rows = session.rows(
            "jobs_ended_from", after_us=self._place[0], after=self._place[1], before=before, limit=LOOK
        )
        if not rows:
            return False
        specs = sorted({spec for _, spec, state, _ in rows if state == CANCELED})
        for number in _never_run(session, specs, before):
            while self._write(partial(_shorten, spec=number, before=before)):
                pass
        self._place = (rows[-1][3], rows[-1][0])
        return True


def _never_run(session: Session, specs: list[int], before: int) -> list[int]:
    """Which of these are large, and only of jobs that were canceled before a time and of which nothing ran."""
    rows = session.rows("specs_never_run", ids=specs, least=LARGE_BYTES, before=before) if specs else []
    return [number for (number,) in rows]


def _shorten(work: UnitOfWork, *, spec: int, before: int) -> bool:
    """Some jobs of a specification get the short one; whether there may be more."""
    session = work.session
    if not _never_run(session, [spec], before):
        return False  # one of its jobs was retried
    jobs = session.rows("jobs_with_spec", spec=spec, limit=PIECE)
    owner = rights.owners_of(session, [jobs[0][0]])[jobs[0][0]]
    ((_, text),) = session.rows("specs_by_id", ids=[spec])
    short = _short_number(work, owner, short_of(bytes(text)))
    session.many("respecify_jobs", [(job, kind, short) for job, kind in jobs])
    for number, digest, length in session.rows("delete_specs", ids=[spec]):
        work.memory.forget_spec(number, bytes(digest))
        session.run("credit_stored", owner=owner, bytes=int(length))
    return len(jobs) == PIECE


def short_of(text: bytes) -> bytes:
    """What is kept of a specification: the application or program, and what it asked for."""
    spec = msgspec.json.decode(text, type=JobSpec)
    command = None if spec.command is None else [each[:WORD_MAX] for each in spec.command[:1]]
    short = JobSpec(app=spec.app, command=command, resources=spec.resources)
    body = _ENCODER.encode(short)
    return body if len(body) <= LARGE_BYTES else _ENCODER.encode(JobSpec(app=spec.app, command=command))


def _short_number(work: UnitOfWork, owner: str, body: bytes) -> int:
    """The number of an owner's short specification, which no submission finds by its text."""
    mark = hashlib.sha256(b"shortened\0" + owner.encode() + b"\0" + body).digest()[:16]
    session = work.session
    rows = session.rows("specs_by_hash", hash=mark)
    if rows:
        return int(rows[0][1])
    number = int(session.rows("take_numbers", name="next_spec", count=1)[0][0]) - 1
    session.run("insert_short_spec", id=number, hash=mark, body=body)
    session.run("add_stored", owner=owner, bytes=len(body))
    return number


def shortened(session: Session, jobs: list[int]) -> set[int]:
    """Which of these jobs have only a short specification, and cannot run."""
    return {job for (job,) in session.rows("jobs_shortened", ids=jobs)} if jobs else set()
