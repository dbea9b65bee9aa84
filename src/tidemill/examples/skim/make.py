"""Write a ROOT file for `skim.py`: a TTree of muon pairs with 20 branches, the same for the same seed.

python make.py events.root --events 1000000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

try:
    import numpy as np
    import uproot
except ImportError as error:
    sys.exit(f"{error} in {sys.executable}; hint: install `uproot` there, or `tidemill[far]`")

BRANCHES = ("mass", "pt", *(f"x{number:02d}" for number in range(18)))
CLUSTER = 50_000  #: events in a basket of each branch
Z_GEV, WIDTH_GEV, PT_GEV = 91.19, 2.5, 15.0


def make(path: Path, *, events: int, seed: int = 1) -> None:
    """Write the file; 80 bytes for each event, which hardly compress."""
    chance = np.random.default_rng(seed)
    with uproot.recreate(path, compression=None) as file:
        tree = file.mktree("events", dict.fromkeys(BRANCHES, "float32"))
        for first in range(0, events, CLUSTER):
            count = min(CLUSTER, events - first)
            values = {name: chance.random(count, dtype="float32") for name in BRANCHES[2:]}
            values["mass"] = chance.normal(Z_GEV, WIDTH_GEV, count).astype("float32")
            values["pt"] = chance.exponential(PT_GEV, count).astype("float32")
            tree.extend(values)


def main() -> int:
    """Write one file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    make(options.path, events=options.events, seed=options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
