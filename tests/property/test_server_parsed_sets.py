"""With its memory of parsed sets the writer reads and writes what it would without, whatever is undone or written by
others meanwhile."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidemill.model.intervals import IntervalSet
from tidemill.server.database.parsed_sets import ParsedSets

edges = st.tuples(st.integers(0, 40), st.integers(0, 40))
keys = st.tuples(st.integers(1, 3), st.sampled_from(["done", "leased"]))
BYTES_MAX = 600


class AsParsed(RuleBasedStateMachine):
    """A database of texts; a transaction has a copy of it."""

    def __init__(self) -> None:
        super().__init__()
        self.parsed = ParsedSets(large_text=4, bytes_max=BYTES_MAX)
        self.committed: dict[tuple[int, str], str] = {}
        self.texts: dict[tuple[int, str], str] = {}
        self.sets: dict[tuple[int, str], IntervalSet] = {}

    def set_of(self, key: tuple[int, str]) -> IntervalSet:
        if key not in self.sets:
            text = self.texts.get(key, "")
            self.sets[key] = self.parsed.parse(key, text)
            assert self.sets[key] == IntervalSet.parse(text)
        return self.sets[key]

    @rule(key=keys)
    def read(self, key: tuple[int, str]) -> None:
        self.set_of(key)

    @rule(key=keys, edge=edges)
    def add(self, key: tuple[int, str], edge: tuple[int, int]) -> None:
        self.set_of(key).add(*edge)

    @rule(key=keys, edge=edges)
    def remove(self, key: tuple[int, str], edge: tuple[int, int]) -> None:
        self.set_of(key).remove(*edge)

    @rule()
    def flush(self) -> None:
        for key, events in self.sets.items():
            self.texts[key] = self.parsed.text(key, events)
            assert self.texts[key] == str(events)

    @rule()
    def commit(self) -> None:
        self.flush()
        self.committed, self.sets = dict(self.texts), {}

    @rule()
    def undo(self) -> None:
        self.texts, self.sets = dict(self.committed), {}

    @rule(key=keys, edge=edges)
    def another_writes(self, key: tuple[int, str], edge: tuple[int, int]) -> None:
        self.committed[key] = str(IntervalSet([edge]))
        self.undo()

    @invariant()
    def is_bounded(self) -> None:
        assert 0 <= self.parsed.bytes <= BYTES_MAX


TestAsParsed = AsParsed.TestCase
