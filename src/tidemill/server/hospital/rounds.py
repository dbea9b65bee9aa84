"""The hospital's rounds: jobs that wait at home are admitted to wards, and those that no site there leases go home.

Only kinds of jobs with a home are examined, each through the head of an index. A round is bounded, however many jobs
wait: it goes on in the next transaction where it stopped. Works on a `UnitOfWork`; writes nothing itself.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from tidemill import log
from tidemill.config.hospital import Ward
from tidemill.server import constants
from tidemill.server.database.rows import JobKind, Site, StoredJob
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.hospital import ward_stays
from tidemill.server.hospital.admission import (
    Patient,
    admission,
    goes_home,
    patience_us,
    takes_in,
)
from tidemill.server.hospital.ward_stays import Fits

READ_MAX = 2_000  #: jobs that one transaction reads
LEGS_MAX = 500  #: scans of one transaction
REST_S = 60.0
"""A ward from which a complete scan sent no job home is not read again for this time, unless the home goes down: a
million jobs may wait there that were admitted for another cause."""

TOP = 2**62
_START = (-TOP, 0)
_LOG = log.Log("server")


class RoundWorld(NamedTuple):
    """What a round knows besides the database. `silent`: names of sites that have not been heard for a while."""

    silent: Container[str]
    fits: Fits


class RoundProgress:
    """How far rounds are: the next kind, in each scan the rank and id that was read last, and what rests."""

    def __init__(self) -> None:
        self.kind = 0
        self.after: dict[tuple[int, int], tuple[int, int]] = {}
        self.resting: dict[
            tuple[int, int], int
        ] = {}  #: kind and ward -> until when its jobs are not read to send them home


class RoundResult(NamedTuple):
    """What one transaction did. `more`: it was cut short."""

    admitted: int
    sent_home: int
    more: bool


def down_reason(site: Site, silent: Container[str]) -> str:
    """Why a home site counts as down; empty = it is up."""
    if site.down_us:
        return f"downtime: {site.down_reason}" if site.down_reason else "downtime"
    if site.lost or site.name in silent or site.capacity is None:
        return f"site {site.name} is silent"
    return ""


def step(work: UnitOfWork, progress: RoundProgress, world: RoundWorld) -> RoundResult:
    """One transaction of a round."""
    kinds = sorted(number for number in work.memory.open.of_kind if work.memory.kinds[number].home_site)
    ahead = [each for each in kinds if each >= progress.kind]
    round_ = _Round(work, progress, world)
    for number in ahead:
        round_.visit(work.memory.kinds[number])
        if round_.is_spent:
            progress.kind = number
            return RoundResult(round_.admitted, round_.sent_home, True)
        progress.kind = number + 1
    progress.kind = 0
    known = set(kinds)
    progress.after = {leg: after for leg, after in progress.after.items() if leg[0] in known}
    progress.resting = {leg: until for leg, until in progress.resting.items() if leg[0] in known}
    return RoundResult(round_.admitted, round_.sent_home, False)


class _Sought(NamedTuple):
    """Which jobs a scan returns. `young_us`: none created later, and none behind these of the same rank, which are
    younger; `moves_max`: only jobs that were in fewer wards; None = no limit."""

    young_us: int | None = None
    moves_max: int | None = None


class _Round:
    """One transaction of a round, as it goes."""

    def __init__(self, work: UnitOfWork, progress: RoundProgress, world: RoundWorld) -> None:
        self._work, self._progress, self._world = work, progress, world
        self._left, self._legs = READ_MAX, LEGS_MAX
        self._treatable: dict[tuple[int, int], bool] = {}
        self.admitted = self.sent_home = 0

    @property
    def is_spent(self) -> bool:
        return self._left <= 0 or self._legs <= 0

    def visit(self, kind: JobKind) -> None:
        """The jobs of one kind."""
        memory = self._work.memory
        home = memory.sites.get(kind.home_site)
        if home is None:
            return
        down = down_reason(home, self._world.silent)
        for ward in sorted(
            memory.occupied.get(kind.id, ())
        ):  # first: scans do not see what is not written yet
            self._send_home_from(kind, ward, down)
        able = {number: ward for number, ward in memory.wards.items() if self._is_treatable(kind, number)}
        if takes_in(able, home_down=down):
            self._admit_from(kind, able, down)

    def _admit_from(self, kind: JobKind, wards: Mapping[int, Ward], down: str) -> None:
        work = self._work
        patience = patience_us(wards)
        young_us = None if down else work.now_us - (patience or 0)
        for job in self._read(kind, kind.home_site, _Sought(young_us, constants.MOVES_MAX)):
            patient = Patient(job.waits_since_us, job.moves, ward=job.ward)
            if job.home or job.ward:
                continue  # its outputs bind it to the site
            found = admission(
                wards, patient, home_down=down, now_us=work.now_us, treatable=wards.__contains__
            )
            if found is not None:
                ward_stays.admit(work, job, found)
                work.memory.occupy(kind.id, found.ward)
                self.admitted += 1

    def _send_home_from(self, kind: JobKind, ward: int, down: str) -> None:
        work, resting = self._work, self._progress.resting
        rule = work.memory.wards.get(ward)
        if rule is not None and (down or not rule.home_down):
            resting.pop((kind.id, ward), None)
        elif resting.get((kind.id, ward), 0) > work.now_us:
            return
        is_empty = not work.session.rows("ready_in", kind=kind.id, place=-ward, rank=_START[0], id=0, limit=1)
        self._legs -= 1
        if is_empty:
            work.memory.occupied.get(kind.id, set()).discard(ward)
            return
        if rule is not None and (down or not rule.home_down):
            return
        sent_before = self.sent_home
        jobs = self._read(kind, -ward, _Sought())
        stays = ward_stays.stays_of(work.session, [job.id for job in jobs])
        for job in jobs:
            last = stays.get(job.id, [])
            why = last[-1].why if last else ""
            if not job.n_leased and goes_home(rule, why, home_down=down):
                ward_stays.discharge(work, job)
                self.sent_home += 1
        if self.sent_home == sent_before and (kind.id, -ward) not in self._progress.after:
            resting[kind.id, ward] = work.now_us + int(REST_S * 1e6)

    def _read(self, kind: JobKind, place: int, sought: _Sought) -> list[StoredJob]:
        """The next jobs of a scan, from where it stopped; at its end it starts again in the next round."""
        leg, found = (kind.id, place), list[int]()
        after = self._progress.after.pop(leg, _START)
        while not self.is_spent:
            self._legs -= 1
            limit = min(self._left, 500)
            rows = self._work.session.rows(
                "ready_in", kind=kind.id, place=place, rank=after[0], id=after[1], limit=limit
            )
            skipped = False
            for number, rank, created_us, moves in rows:
                after = (rank, number)
                if sought.young_us is not None and created_us > sought.young_us:
                    after, skipped = (rank, TOP), True
                    break
                if sought.moves_max is None or moves < sought.moves_max:
                    found.append(number)
            self._left -= len(rows)
            if len(rows) < limit and not skipped:
                break
        else:
            self._progress.after[leg] = after
        self._work.load(found)
        return [self._work.jobs[each] for each in found]

    def _is_treatable(self, kind: JobKind, ward: int) -> bool:
        result = self._treatable.get((kind.id, ward))
        if result is None:
            heard = [each for each in self._work.memory.sites.values() if each.name not in self._world.silent]
            rule = self._work.memory.wards[ward]
            result = ward_stays.is_treatable(rule, kind, heard, self._world.fits)
            self._treatable[(kind.id, ward)] = result
        return result


def call_times(work: UnitOfWork, down: dict[str, tuple[int, str]]) -> list[str]:
    """Note which sites are down now by the calendar (name -> until when, why); the sites for which that changed."""
    changed = []
    for site in work.memory.sites.values():
        until_us, reason = down.get(site.name, (0, ""))
        if (site.down_us, site.down_reason) != (until_us, reason):
            if bool(site.down_us) != bool(until_us):
                changed.append(site.name)
                _LOG.info(
                    "site.down" if until_us else "site.up", site=site.name, reason=reason or site.down_reason
                )
            site.down_us, site.down_reason = until_us, reason
            if until_us:
                work.session.run("upsert_down", site=site.id, until_us=until_us, reason=reason)
            else:
                work.session.run("delete_down", site=site.id)
    return changed
