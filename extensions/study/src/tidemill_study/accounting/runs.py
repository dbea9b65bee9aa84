"""How often a job id was seen before: requeued jobs have several records with one id. Bounded memory."""

from __future__ import annotations

from array import array

from tidemill.model.number import whole

PAGE = 1 << 12
NUMBER_MAX = 1 << 33
OTHERS_MAX = 1_000_000


class SeenRuns:
    """Ids that were seen, with a fingerprint of the last record of each.

    Numbers take 4 bytes each where they lie close together, as job numbers do; other ids (`123_4`, `12[3].server`) are
    kept whole, OTHERS_MAX of them: beyond, they are taken as new, and `is_full` says so.
    """

    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}
        self._others: dict[str, int] = {}
        self._runs: dict[str, tuple[int, set[int]]] = {}
        self.is_full = False

    def run(self, id: str, what: tuple[object, ...]) -> int:
        """How many runs of this id were seen before this one; -1: `what` is a record that was seen already."""
        mark = (hash(what) & 0xFFFFFFFF) or 1
        before = self._swap(id, mark)
        if not before:
            return 0
        runs, marks = self._runs.get(id) or (1, {before})
        if mark in marks:
            return -1
        self._runs[id] = (runs + 1, marks | {mark})
        return runs

    def _swap(self, id: str, mark: int) -> int:
        """Keep a mark; the one before it, 0 = none."""
        number = whole(id)
        if number is not None and number < NUMBER_MAX:
            place, index = divmod(number, PAGE)
            page = self._pages.get(place)
            if page is None:
                page = self._pages[place] = array("I", bytes(4 * PAGE))
            before = page[index]
            page[index] = mark
            return before
        known = self._others.get(id, 0)
        if known or len(self._others) < OTHERS_MAX:
            self._others[id] = mark
        else:
            self.is_full = True
        return known
