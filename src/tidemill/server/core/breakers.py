"""What sites no longer take for a cause of their own, as they report it: respected when work is leased. Pure.

A breaker that is open holds back work that would meet its cause, but for as many ranges as the site has room for to try
again. What a site reports here can only hurt that site.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill.model.job import JobSpec
from tidemill.model.trouble import EXAMPLES_MAX, TEXT_MAX, TROUBLES_MAX, Scope, Trouble, concerns, meets
from tidemill.server.database.rows import Site, clean
from tidemill.server.database.writer_memory import PassedKinds

PASSED_S = 5.0
"""A kind whose jobs were all held back is not read again for this time: there may be a million of them."""

PASSED_MIN = 64  #: jobs of it that were read, at least
ROOM_MAX = 16
PASSED_OVER_MAX = 64
TIME_US_MAX = 4_102_444_800_000_000  #: the year 2100: what a site says later is nonsense


def bounded(troubles: Sequence[Trouble]) -> list[Trouble]:
    """What is kept of a site's words."""
    return [
        msgspec.structs.replace(
            each, failure=clean(each.failure, 50), scope=clean(each.scope, 50), name=clean(each.name, TEXT_MAX),
            message=clean(each.message, TEXT_MAX), hint=clean(each.hint, TEXT_MAX),
            owner=clean(each.owner, TEXT_MAX), examples=each.examples[:EXAMPLES_MAX],
            passed_over=[clean(one, TEXT_MAX) for one in each.passed_over[:PASSED_OVER_MAX]],
            room=max(0, min(each.room, ROOM_MAX)),
            since_us=max(0, min(each.since_us, TIME_US_MAX)), next_us=max(0, min(each.next_us, TIME_US_MAX)),
        )
        for each in troubles[:TROUBLES_MAX]
    ]  # fmt: skip


def troubles_of(site: Site) -> list[Trouble]:
    """What the site said last."""
    return [] if site.capacity is None else site.capacity.troubles


def met(
    site: Site, app: str, spec: JobSpec | None, *, owner: str | None = None, is_open: bool = True
) -> Trouble | None:
    """The first trouble that a job of this application and owner meets there; no owner: only what all meet. `is_open`:
    only what holds it back."""
    urls = [] if spec is None else [each.url for each in spec.inputs]
    found = (
        each
        for each in troubles_of(site)
        if (each.is_open or not is_open)
        and concerns(each.owner, owner)
        and meets(each.scope, each.name, app=app, urls=urls)
    )
    return next(found, None)


def waiting_for(site: Site, job: int, app: str, spec: JobSpec, *, owner: str) -> Trouble | None:
    """The trouble for which a job of this owner waits at the site that has it."""
    for each in troubles_of(site):
        urls = [one.url for one in spec.inputs]
        is_met = concerns(each.owner, owner) and meets(each.scope, each.name, app=app, urls=urls)
        is_unnamed = each.jobs > len(each.examples) and is_met
        if job in each.examples or is_unnamed:
            return each
    return None


class BreakerGate:
    """The open breakers of one site in one sync. `passed`: what earlier syncs found."""

    def __init__(self, site: Site, passed: PassedKinds, now_us: int) -> None:
        self._open = [each for each in troubles_of(site) if each.is_open]
        self._room = [each.room for each in self._open]
        mark: tuple[tuple[str | int, ...], ...] = tuple(
            (each.scope, each.name, each.owner, each.room, *each.passed_over) for each in self._open
        )
        if mark != passed.mark:
            passed.mark, passed.until_us = mark, {}
        self._passed, self._now_us = passed, now_us
        self._seen: dict[int, list[int]] = {}  #: kind -> jobs that were read, jobs that were held back

    @property
    def is_open(self) -> bool:
        """Whether everything passes."""
        return not self._open

    def admits_kind(self, kind: int, app: str, owner: str) -> bool:
        """Whether to read jobs of a kind at all. `owner`: of its campaign."""
        if not self._open:
            return True
        if self._passed.until_us.get(kind, 0) > self._now_us:
            return False
        return not any(
            self._is_shut(k, owner)
            and concerns(each.owner, owner)
            and (each.scope == Scope.ALL or (each.scope == Scope.APP and each.name == app))
            for k, each in enumerate(self._open)
        )

    def _is_shut(self, number: int, owner: str) -> bool:
        """Whether the site wants no job of this owner to try again with."""
        return not self._room[number] or owner in self._open[number].passed_over

    def admits(self, kind: int, app: str, spec: JobSpec, owner: str) -> bool:
        """Whether the site may have a job; one with which it tries again uses up its room."""
        if not self._open:
            return True
        urls = [each.url for each in spec.inputs]
        held = [
            k
            for k, each in enumerate(self._open)
            if concerns(each.owner, owner) and meets(each.scope, each.name, app=app, urls=urls)
        ]
        seen = self._seen.setdefault(kind, [0, 0])
        seen[0] += 1
        if any(self._is_shut(k, owner) for k in held):
            seen[1] += 1
            return False
        for k in held:
            self._room[k] -= 1
        return True

    def close(self) -> None:
        """The sync is over: remember the kinds of which nothing passed."""
        for kind, (read, held) in self._seen.items():
            if read == held >= PASSED_MIN:
                self._passed.until_us[kind] = self._now_us + int(PASSED_S * 1e6)
