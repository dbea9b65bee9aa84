"""Throw darts: each event is one line, a function of its seed alone, so the joined output never depends on ranges.

Standard library only; also runs by hand: TIDEMILL_COUNT=3 python throw.py
"""

from __future__ import annotations

import random

import tidemill_payload as tidemill  # type: ignore[import-not-found]  # the pilot puts it on the path

PATH = "hits.txt"


def throw(seed: int, darts: int) -> int:
    """How many of the darts hit the quarter circle. `random.random` keeps its sequence over Python versions."""
    source = random.Random(seed)
    return sum(source.random() ** 2 + source.random() ** 2 < 1.0 for _ in range(darts))


def main() -> None:
    """Answer ranges until there are no more."""
    darts = int(tidemill.params().get("darts", 1000))
    for r in tidemill.ranges():
        with open(PATH, "w", encoding="ascii") as out:  # noqa: PTH123
            for event in r.events():
                seed = r.seed_of(event)
                out.write(f"{event} {seed} {throw(seed, darts)} {darts}\n")
        r.done(outputs={"hits": PATH})


if __name__ == "__main__":
    main()
