"""Gives back the room of jobs that were canceled before anything of them ran.

A large specification of such a job stays for a while, in which the job can be retried: for a month, or for a day where
room is short. Then the job gets a short one that says what it was, and the large one is deleted; the database uses its
pages again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tidemill.model.job import JobSpec
from tidemill.server.core import rights
from tidemill.server.core.limits.storage import Storage
from tidemill.server.database.rows import CANCELED
from tidemill.server.database.store import Session, value, values
from tidemill.server.database.unit_of_work import UnitOfWork, take_numbers

LARGE_BYTES = 2_000  #: a specification of fewer stays: its job can be retried until it is archived
KEEP_S = 30 * 86_400.0  #: a large one stays for this time after the cancellation
KEEP_SHORT_S = 86_400.0  #: the same where room is short: a cancellation by mistake is noticed within a day
LOOK = 1_000  #: ended jobs that are examined in one step
PIECE = 1_000  #: jobs that get a short specification in one transaction; a specification of more jobs stays
PIECE_BYTES = 16_000_000  #: of specifications that are deleted in one transaction, but for the last of them
JUDGED = 100_000  #: specifications that are remembered so that their other jobs do not lead to them again
WORD_MAX = 200  #: characters of a command's program that are kept
_ENCODER = msgspec.json.Encoder()
Write = Callable[[Callable[[UnitOfWork], Any]], Any]


class _Due(NamedTuple):
    """A specification that may be shortened."""

    spec: int
    jobs: int
    bytes: int


class _Walk:
    """A way through the ended jobs, in the order of their ends. `place`: the last one that was examined; `before`: when
    those ended that it examines until it comes to its end, so that all jobs of a specification get the same answer."""

    def __init__(self, place: tuple[int, int]) -> None:
        self.place = place
        self.before: int | None = None
        self.judged: set[int] = set()

    def end(self) -> None:
        """Nothing is left to examine. By the next time, more jobs are old enough."""
        self.before = None
        self.judged.clear()

    def fresh(self, specs: Iterable[int]) -> list[int]:
        """Those that have not been judged since the walk last came to its end."""
        result = sorted(set(specs) - self.judged)
        if len(self.judged) + len(result) > JUDGED:
            self.judged.clear()
        self.judged.update(result)
        return result


class Shortening:
    """Examines ended jobs: each once in the life of the process when its month is over, and once, or once for its
    owner, a day after its end if room is short then or later."""

    def __init__(
        self,
        write: Write,
        storage: Callable[[], Storage],
        *,
        keep_s: float = KEEP_S,
        keep_short_s: float = KEEP_SHORT_S,
    ) -> None:
        self._write, self._storage = write, storage
        self._keep_us, self._keep_short_us = int(keep_s * 1e6), int(keep_short_s * 1e6)
        self._all = _Walk((0, 0))  #: the month is over
        self._short: dict[str | None, _Walk] = {}  #: by the owner whose room is short; None = the room of all
        self._due: list[_Due] = []
        self._before = 0
        self.look, self.piece = LOOK, PIECE

    def step(self, session: Session, now_us: int) -> bool:
        """Examine some jobs, or shorten some specifications in one transaction; False if nothing is left to do now.
        Bounded: at most LOOK jobs are read, or PIECE jobs and about PIECE_BYTES changed."""
        if self._due:
            # What fails is not tried again in the life of the process: it must not hold up the rest.
            piece, self._due = _piece(self._due, self.piece)
            self._write(partial(_shorten, specs=[each.spec for each in piece], before=self._before))
            return True
        if self._examine(session, self._all, now_us - self._keep_us, None):
            return True
        owners = self._storage().short_of(session)
        return any(
            self._examine(session, self._walk(owner), now_us - self._keep_short_us, owner)
            for owner in ([None] if owners is None else owners)
        )

    def _walk(self, owner: str | None) -> _Walk:
        """What the walks for all owners have passed is not examined again for one owner."""
        known = [self._all, *(self._short[each] for each in (None, owner) if each in self._short)]
        place = max(each.place for each in known)
        walk = self._short.setdefault(owner, _Walk(place))
        walk.place = place
        return walk

    def _examine(self, session: Session, walk: _Walk, before: int, owner: str | None) -> bool:
        """Find what is due among the next jobs of a walk; False if there are none."""
        after_us, after = walk.place
        before = walk.before = before if walk.before is None else walk.before
        rows = session.rows("jobs_ended_from", after_us=after_us, after=after, before=before, limit=self.look)
        if not rows:
            walk.end()
            return False
        of = {spec: job for job, spec, state, _ in rows if state == CANCELED}
        due, self._before = _never_run(session, walk.fresh(of), before), before
        owners = {} if owner is None else rights.owners_of(session, [of[each.spec] for each in due])
        self._due = [each for each in due if owner is None or owners.get(of[each.spec]) == owner]
        walk.place = (rows[-1].ended_us, rows[-1].id)
        return True


def _piece(due: list[_Due], most: int = PIECE) -> tuple[list[_Due], list[_Due]]:
    """The first of these that fit into one transaction, at least one, and the rest."""
    jobs = size_bytes = 0
    for number, each in enumerate(due):
        jobs += each.jobs
        if number and (jobs > most or size_bytes > PIECE_BYTES):
            return due[:number], due[number:]
        size_bytes += each.bytes
    return due, []


def _never_run(session: Session, specs: list[int], before: int) -> list[_Due]:
    """Which of these are large, and of few jobs that were all canceled before a time and of which nothing ran."""
    if not specs:
        return []
    rows = session.rows("specs_never_run", ids=specs, least=LARGE_BYTES, most=PIECE, before=before)
    return [_Due(*each) for each in rows]


def _shorten(work: UnitOfWork, *, specs: list[int], before: int) -> None:
    """The jobs of these specifications get short ones, but for those of which one was retried meanwhile."""
    session = work.session
    due = [each.spec for each in _never_run(session, specs, before)]
    if not due:
        return
    jobs = session.rows("jobs_with_specs", ids=due)
    of = {spec: job for job, _, spec in jobs}
    whose = rights.owners_of(session, sorted(of.values()))
    short: dict[tuple[str, bytes], int] = {}
    numbers: dict[int, int] = {}  #: of the short specifications, by the long ones'
    for spec, text in session.rows("specs_by_id", ids=due):
        key = whose[of[spec]], short_of(bytes(text))
        if key not in short:
            short[key] = _short_number(work, *key)
        numbers[spec] = short[key]
    session.many("respecify_jobs", [(job, kind, numbers[spec]) for job, kind, spec in jobs])
    gone: dict[str, int] = {}
    for spec, digest, length in session.rows("delete_specs", ids=due):
        work.memory.forget_spec(spec, bytes(digest))
        owner = whose[of[spec]]
        gone[owner] = gone.get(owner, 0) + int(length)
    for owner in sorted(gone):
        session.run("credit_stored", owner=owner, bytes=gone[owner])


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
    found = value(session, "spec_by_hash", hash=mark)
    if found is not None:
        return int(found)
    number = take_numbers(session, "next_spec", 1)
    session.run("insert_short_spec", id=number, hash=mark, body=body)
    session.run("add_stored", owner=owner, bytes=len(body))
    return number


def shortened(session: Session, jobs: list[int]) -> set[int]:
    """Which of these jobs have only a short specification, and cannot run."""
    return set(values(session, "jobs_shortened", ids=jobs)) if jobs else set()
