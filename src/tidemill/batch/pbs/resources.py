"""What the hosts of a machine show of one resource, and which of them have what a chunk asks for. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping

from tidemill.batch.pbs.replies import read_amount

LEVELS_MAX = 64
"""Amounts of one resource that distinguish hosts. Without a bound their number would be hosts times jobs, if each
host has a different amount, as of free disk space, and each job asks for another."""

_AMOUNTS = {
    "ncpus", "mem", "vmem", "ngpus", "naccelerators", "accelerator_memory", "hbmem", "mpiprocs", "ompthreads",
}  # fmt: skip
"""Those of pbs_resources(7), and `ngpus`, which the administrator's guide has sites define."""

_UNITS = (("pb", 2**50), ("tb", 2**40), ("gb", 2**30), ("mb", 2**20), ("kb", 2**10), ("b", 1))


class Resource:
    """What each host shows of a resource, one text for each of its vnodes; empty text where it is not set."""

    def __init__(self, name: str, shown: Mapping[str, list[str]], *, is_used: bool = False) -> None:
        """`is_used`: nodes show how much of it jobs use. They do for amounts only (openpbs, src/server/node_func.c)."""
        self._hosts: dict[str, set[str]] = {}
        for host, texts in shown.items():
            for word in {word for text in texts for word in text.split(",")}:
                self._hosts.setdefault(word, set()).add(host)
        kinds = {text for texts in shown.values() for text in texts}
        figures = {text: read_amount(text) for text in kinds if text}
        self.is_boolean = kinds <= {"", "True", "False"}
        self.is_amount = None not in figures.values()
        self._has_figures = any(figures.values())
        self._is_sure = is_used or name in _AMOUNTS
        self._is_size = any(text[-1].isalpha() for text in figures)
        self.totals = {
            host: sum(figures.get(text) or 0 for text in texts)
            for host, texts in (shown.items() if self.is_amount else ())
        }
        self._levels = sorted(set(self.totals.values()))
        ((self.usual, _),) = Counter(filter(None, self.totals.values())).most_common(1) or [(0, 0)]
        self._told: list[int] = []

    def hosts(self, word: str) -> set[str]:
        """Hosts that have a word in their lists. A boolean that is not set is False."""
        result = self._hosts.get(word, set())
        if self.is_boolean and word == "False":
            result = result | self._hosts.get("", set())
        return result

    def hosts_with(self, amount: int) -> set[str]:
        """Hosts that have at least this amount, on all of their vnodes together."""
        return {host for host, total in self.totals.items() if total >= amount}

    def amount(self, value: str) -> int | None:
        """A value as an amount, of which hosts need at least as much; None for a word. A number that a host shows
        may be a name, such as that of a rack: then only hosts with exactly this value are sure to do."""
        amount = read_amount(value)
        if not self.is_amount or amount is None:
            return None
        is_name = value in self._hosts and not value[-1].isalpha() and not self._is_sure
        return None if is_name else amount

    def used_up(self, value: str) -> int | None:
        """How much of the resource a chunk uses up; None if that is not clear."""
        amount = read_amount(value)
        if not amount or not self._has_figures:
            return 0
        return self.amount(value)

    def level(self, value: str) -> int | None:
        """The smallest amount of a host that is enough for a value: all values between two hosts' amounts want the same
        hosts. More than all hosts have stays what it is. None for a word."""
        amount = self.amount(value)
        if amount is None:
            return None
        place = bisect_left(self._levels, amount)
        return self._near(self._levels[place]) if place < len(self._levels) else amount

    def spell(self, amount: int) -> str:
        """An amount as PBS prints it, in the largest unit of which it is a multiple."""
        if not self._is_size:
            return str(amount)
        return next(f"{amount // scale}{unit}" for unit, scale in _UNITS if amount % scale == 0)

    def _near(self, level: int) -> int:
        """The level, or, where there are many already, the next lower one of these: more hosts count, not fewer."""
        place = bisect_right(self._told, level)
        if place and self._told[place - 1] == level:
            return level
        if len(self._told) >= LEVELS_MAX:
            return self._told[place - 1] if place else self._levels[0]
        self._told.insert(place, level)
        return level
