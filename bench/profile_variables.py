"""Whether settings of a Tidemill user make regular jobs wait, on a real cluster: `--json` prints one object.

Each round has one trial without settings and one with each setting, in turn on one cluster: a campaign takes all
nodes, then another user's job requests them all. A setting that changes what the agent sees or does shows in one of
three ways: a longer wait, own jobs that the agent does not see, or jobs that are left after `up --stop` has reported
the stop.

--batch slurm        variables in the user's shell; 3 nodes
--batch gridengine   files of default options, `~/.sge_qstat` and `~/.sge_request`; 2 nodes. Tidemill does not release
                     nodes there, so the job waits for the end of limits of about a minute

Needs root; takes 40 minutes for three rounds on Slurm, 15 on Grid Engine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from extensions.gridengine.tests.sge import batch_gridengine, gridengine_shell
from tests.worlds.batch import slurm_shell
from tests.worlds.batch.shell_trial import Trial
from tests.worlds.batch.slurm_cluster import REACH, SlurmCluster

SLURM_NODES = 3
TRIALS = 3

Settings = Mapping[str, str]


@contextmanager
def slurm() -> Iterator[Callable[[Settings], Trial]]:
    """A trial on a Slurm cluster that is started for it."""
    cluster = SlurmCluster("--nodes", str(SLURM_NODES), "--cores", "2", *REACH)
    try:
        yield lambda settings: slurm_shell.trial(cluster, settings, nodes=SLURM_NODES)
    finally:
        cluster.stop()


@contextmanager
def gridengine() -> Iterator[Callable[[Settings], Trial]]:
    """The same with Grid Engine."""
    with batch_gridengine.running("--nodes", str(gridengine_shell.NODES)) as cluster:
        yield lambda settings: gridengine_shell.trial(cluster, settings)


class Part(NamedTuple):
    """Trials on one batch system. `settings`: what makes its commands hide, refuse or change something."""

    nodes: int
    settings: Settings
    all_name: str  #: of all settings together
    cluster: Callable[[], AbstractContextManager[Callable[[Settings], Trial]]]


PARTS = {
    "slurm": Part(SLURM_NODES, slurm_shell.VARIABLES, "all at once", slurm),
    "gridengine": Part(gridengine_shell.NODES, gridengine_shell.HOSTILE, "both files", gridengine),
}


def main() -> None:
    """Run the rounds, print waits and what was wrong."""
    args = parsed()
    part = PARTS[args.batch]
    names = args.only or list(part.settings)
    sets: dict[str, Settings] = {"none": {}, **{name: {name: part.settings[name]} for name in names}}
    if args.only is None:
        sets[part.all_name] = part.settings
    found: dict[str, list[Trial]] = {name: [] for name in sets}
    with part.cluster() as trial:
        for _ in range(args.trials):
            for name, settings in sets.items():
                found[name].append(trial(settings))
                print(f"{name:<22} {found[name][-1]}", file=sys.stderr, flush=True)
    summary = {name: summed(trials, part.nodes) for name, trials in found.items()}
    if args.json:
        told = {"batch": args.batch, "nodes": part.nodes, "trials": args.trials, "settings": summary}
        print(json.dumps(told))
        return
    for name, each in summary.items():
        print(
            f"{name:<22} waits {each['waits_s']} s, own jobs seen {each['seen']}, left after the stop {each['left']}"
        )


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", choices=sorted(PARTS), default="slurm")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these variables or files (default: each)")
    parser.add_argument("--json", action="store_true", help="print one object at the end")
    args = parser.parse_args()
    unknown = set(args.only or ()) - PARTS[args.batch].settings.keys()
    if unknown:
        parser.error(f"no setting of {args.batch}: {', '.join(sorted(unknown))}")
    return args


def summed(trials: list[Trial], nodes: int) -> dict[str, Any]:
    """The figures of the trials with one set of settings."""
    waits = [each.wait_s for each in trials]
    known = [each for each in waits if each is not None]
    return {
        "waits_s": waits,
        "median_s": round(statistics.median(known), 1) if len(known) == len(waits) else None,
        "held": sum(each.held for each in trials),
        "seen": sum(each.seen == {"ACTIVE": nodes} for each in trials),
        "doubted": sum(each.doubted for each in trials),
        "left": sum(each.left for each in trials),
    }


if __name__ == "__main__":
    main()
