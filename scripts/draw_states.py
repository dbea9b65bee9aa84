"""Draw the state tables of `tidemill.model.state` into docs/states.md; `--check` says whether it is as drawn."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from inspect import cleandoc

from page import settle

from tidemill.model import state

HEAD = """# States

This reference lists the states of jobs, leases and allocations, and every change between them.

<!-- Drawn by `make gen` from `src/tidemill/model/state.py`: edit that. -->

A change of state that is in no table is a bug.
"""
TABLES: list[tuple[str, type[StrEnum], Mapping[tuple[StrEnum, StrEnum], str]]] = [
    ("Jobs", state.JobState, state.JOB_TRANSITIONS),  # type: ignore[list-item]  # a mapping's keys are invariant
    ("Leases", state.LeaseState, state.LEASE_TRANSITIONS),  # type: ignore[list-item]
    ("Allocations", state.AllocationState, state.ALLOCATION_TRANSITIONS),  # type: ignore[list-item]
]


def diagram(states: type[StrEnum], transitions: Mapping[tuple[StrEnum, StrEnum], str]) -> str:
    """A Mermaid diagram: states without an edge into them start, states without one out of them end."""
    left = {before for before, _ in transitions}
    entered = {after for _, after in transitions}
    lines = [f"    [*] --> {each}" for each in states if each not in entered or each is next(iter(states))]
    lines += [f"    {before} --> {after}" for before, after in transitions]
    lines += [f"    {each} --> [*]" for each in states if each not in left]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def table(transitions: Mapping[tuple[StrEnum, StrEnum], str]) -> str:
    """A Markdown table: from, to, when."""
    rows = [f"| {before} | {after} | {reason} |" for (before, after), reason in transitions.items()]
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows])


def drawn() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, states, transitions in TABLES:
        meaning = cleandoc(states.__doc__ or "")
        parts.append(f"## {title}\n\n{meaning}\n\n{diagram(states, transitions)}\n\n{table(transitions)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(settle("states.md", drawn()))
