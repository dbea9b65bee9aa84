"""`tidemill simulate`: replay a machine's log with the broker in the loop."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.cli.arguments import Command, Parser, count
from tidemill.cli.terminal import say, show, show_json, show_table
from tidemill.errors import ConfigError
from tidemill.files import write_whole
from tidemill.harvest.plan.policies import Policy
from tidemill.model.quantities import counted_text

if TYPE_CHECKING:
    from tidemill.harvest.account.waits import MeanDelay
    from tidemill_study.accounting.history import History
    from tidemill_study.simulation.experiment import ClassResult, Result, Study
    from tidemill_study.simulation.swf import Trace

KINDS = ("swf", "sacct", "pbs", "availability")
PROBED_LINES = 20  #: a header of an availability log is shorter
SIMULATED = [Policy.YIELD, Policy.PREEMPT, Policy.CAPPED, Policy.TITAN, Policy.WINDOWS]


def seconds(text: str) -> float:
    """Seconds, as a number or a duration such as `5m`."""
    from argparse import ArgumentTypeError

    from tidemill.clock import parse_duration_s

    try:
        value = float(text)
    except ValueError:
        try:
            value = float(parse_duration_s(text))
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from error
    if not 0 <= value < 1e9:
        raise ArgumentTypeError(f"`{text}` is not a number of seconds")
    return value


def define(parser: Parser) -> None:
    """Options of `simulate`."""
    parser.add_argument(
        "trace",
        metavar="TRACE",
        type=Path,
        help="log of a machine, plain or gzip, or a directory of daily PBS logs",
    )
    parser.add_argument(
        "--policy",
        action="append",
        choices=[policy.value for policy in SIMULATED],
        help="how the broker behaves; may be repeated (default: yield)",
    )
    parser.add_argument(
        "--kind",
        choices=KINDS,
        help="`swf`: jobs, Standard Workload Format; `sacct`, `pbs`: accounting of Slurm or PBS; `availability`: lines "
        "of time and free nodes (default: by its first lines)",
    )
    parser.add_argument(
        "--partition",
        metavar="NAME",
        help="only jobs of this partition or queue of sacct or PBS (default: all)",
    )
    parser.add_argument(
        "--event-s",
        type=seconds,
        default=300.0,
        metavar="S",
        help="seconds of one event on a node (default: 300)",
    )
    define_times(parser)
    parser.add_argument(
        "--seeds",
        type=count,
        default=4,
        metavar="N",
        help="paired runs with jittered submissions (default: 4)",
    )
    parser.add_argument(
        "--replicas", type=count, metavar="N", help="pairs in a seed (default: 170,000 / jobs, 1 to 24)"
    )
    define_bounds(parser)
    parser.add_argument(
        "--nodes",
        type=count,
        metavar="N",
        help="size of the machine in nodes; a job with a part of a node counts as one with all of it (default: as the "
        "log's header says, of sacct and PBS the most nodes busy at once)",
    )
    parser.add_argument(
        "--workers", type=count, metavar="N", help="processes, one seed each at a time (default: all cores)"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the tide of seed 1 as SVG (default: not)"
    )


def define_bounds(parser: Parser) -> None:
    """Options about jitter and allocations."""
    parser.add_argument(
        "--jitter-s",
        type=seconds,
        default=120.0,
        metavar="S",
        help="jobs arrive up to S seconds later (default: 120)",
    )
    parser.add_argument(
        "--jobs-max",
        type=count,
        metavar="N",
        help="allocations held or asked for at most (default: no bound)",
    )
    parser.add_argument(
        "--width-min", type=count, default=1, metavar="N", help="nodes of an allocation at least (default: 1)"
    )


def define_times(parser: Parser) -> None:
    """Options that are times, the length of events left out."""
    for name, value, text in (
        ("--startup-s", 120.0, "prolog and start of a pilot until it works"),
        ("--poll-s", 30.0, "pause between two polls of the machine"),
        ("--cycle-s", 30.0, "pause between two backfill cycles of the scheduler"),
        ("--death-s", 5.0, "from cancel, or the end of a limit, to free nodes"),
        ("--walltime-max-s", 86400.0, "longest allocation"),
    ):
        parser.add_argument(
            name, type=seconds, default=value, metavar="S", help=f"{text} (default: {value:.0f})"
        )
    parser.add_argument(
        "--glance-s",
        type=seconds,
        metavar="S",
        help="least pause before a short query between two polls, 0 = none (default: poll-s / 6)",
    )
    parser.add_argument(
        "--calls-per-min-max",
        type=count,
        default=30,
        metavar="N",
        help="commands of the batch system per minute, which set the pace of glances (default: 30)",
    )
    parser.add_argument(
        "--no-headroom",
        action="store_true",
        help="leave no idle nodes for small jobs that are about to come (default: as many as they repay)",
    )
    parser.add_argument(
        "--lead-s",
        type=seconds,
        metavar="S",
        help="a poll acts S seconds before the scheduler's cycle (default: death-s + 1)",
    )
    parser.add_argument(
        "--unaligned",
        action="store_true",
        help="polls know nothing of the scheduler's cycle (default: they come just before it; with a log of PBS, which "
        "does not show its cycle, always so)",
    )
    parser.add_argument(
        "--unordered",
        action="store_true",
        help="the broker does not know the order of the queue and releases nodes for every job that could start "
        "(default: it knows it; with a log of PBS, which does not show the order, always so)",
    )


def run(args: Namespace) -> int:
    """Simulate and print."""
    from tidemill_study.simulation.experiment import results_of, run_all, too_little

    kind = args.kind or kind_of(args.trace)
    trace = read(args, kind)
    study = study_of(args, trace, is_pbs=kind == "pbs")
    trace.notes.extend(too_little(study))
    for note in notes_of(trace):
        say(note)
    if args.plot is not None:
        draw(args.plot, study, trace)
    results = results_of(study, run_all(study))
    if args.json:
        show_json(report_of(args, study, trace, results, kind=kind))
    else:
        print_tables(study, trace, results)
    return 0


def read(args: Namespace, kind: str) -> Trace:
    """The trace of the command line, a log of this kind. Raises ConfigError."""
    if kind in ("sacct", "pbs"):
        from tidemill_study.accounting.log import LogKind, history_of
        from tidemill_study.accounting.past_jobs import Remark
        from tidemill_study.simulation.swf import NEVER_STARTED

        history = history_of(args.trace, kind=LogKind(kind), partition=args.partition)
        trace = history.trace(history.machine(args.nodes), len(history))
        for remark in history.remarks.sentences(
            but=(Remark.NOT_STARTED,) if NEVER_STARTED in trace.skipped else ()
        ):
            say(remark)
        trace.notes.extend(parts_of(history))
        return trace
    if args.partition is not None:
        raise ConfigError(
            f"--partition needs a log of sacct or PBS: `{args.trace}` is read as {kind}",
            hint="--kind sacct or --kind pbs if it is one",
        )
    if kind == "availability":
        from tidemill_study.simulation import availability

        return availability.read(args.trace, nodes=args.nodes)
    from tidemill_study.simulation import swf

    return swf.read(args.trace, nodes=args.nodes)


def parts_of(history: History) -> list[str]:
    """A warning if many jobs seem to have a part of a node."""
    from tidemill_study.simulation.sharing import PARTS_SHARE_MAX

    cores = history.whole_cores()
    parts = history.part_nodes(cores)
    if parts <= PARTS_SHARE_MAX * len(history):
        return []
    return [
        f"{counted_text(parts, 'job')} of {len(history):,} had fewer cores than {cores} a node and count as whole "
        "nodes: figures are too high for this machine if jobs share nodes"
    ]


def kind_of(path: Path) -> str:
    """What a log is, by its first lines. Raises ConfigError if it cannot be read."""
    from tidemill_study.accounting.lines import log_lines
    from tidemill_study.accounting.log import LogKind, kind_of_file
    from tidemill_study.accounting.past_jobs import Remarks
    from tidemill_study.simulation.availability import is_sample

    kind = kind_of_file(path)
    if kind is not LogKind.SWF:
        return str(kind)
    lines = (line for _, line in islice(log_lines(path, Remarks()), PROBED_LINES))
    records = [line for line in lines if line.strip() and line.lstrip()[0] not in "#;"]
    return "availability" if any(is_sample(line) for line in records[:2]) else "swf"


def study_of(args: Namespace, trace: Trace, *, is_pbs: bool) -> Study:
    """What the command line asks for. Raises ConfigError for what cannot be.

    On a machine of PBS (`is_pbs`) the agent sees neither the scheduler's cycles nor the order of the queue.
    """
    from tidemill_study.simulation.experiment import Study, horizon_of, replicas_for
    from tidemill_study.simulation.simulator import World

    for name in ("event_s", "poll_s", "cycle_s", "walltime_max_s"):
        if getattr(args, name) <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be more than 0")
    if args.width_min > trace.nodes:
        raise ConfigError(f"--width-min {args.width_min} is more than the machine's {trace.nodes} nodes")
    world = World(
        nodes=trace.nodes,
        outages=trace.outages,
        event_s=args.event_s,
        startup_s=args.startup_s,
        poll_s=args.poll_s,
        glance_s=args.glance_s,
        calls_per_min_max=args.calls_per_min_max,
        has_headroom=not args.no_headroom,
        lead_s=args.lead_s,
        is_aligned=not (args.unaligned or is_pbs),
        is_order_known=not (args.unordered or is_pbs),
        cycle_s=args.cycle_s,
        death_s=args.death_s,
        jobs_max=args.jobs_max or 1_000_000,
        width_min=args.width_min,
        walltime_max_s=args.walltime_max_s,
        horizon_s=horizon_of(trace.jobs),
    )
    policies = list(dict.fromkeys(Policy(name) for name in args.policy or [Policy.YIELD.value]))
    return Study(
        world=world,
        jobs=trace.jobs,
        policies=policies,
        seeds=args.seeds,
        replicas=args.replicas or replicas_for(len(trace.jobs)),
        jitter_s=int(args.jitter_s),
        workers=args.workers or os.cpu_count() or 1,
        has_submissions=trace.has_submissions,
    )


def notes_of(trace: Trace) -> list[str]:
    """What is to be known of a log, for people."""
    from tidemill_study.simulation.swf import skipped_text

    lines = [f"{trace.name}: {size_text(len(trace.jobs), trace.nodes)} ({trace.nodes_from})"]
    if trace.skipped:
        lines.append(f"left out: {skipped_text(trace.skipped)}")
    if trace.outages:
        hours = sum(end - start for start, end in trace.outages) / 3600
        lines.append(f"left out: {counted_text(len(trace.outages), 'outage')}, {hours:,.0f} h")
    return lines + trace.notes


def size_text(jobs: int, nodes: int) -> str:
    """`629 jobs on 64 nodes`."""
    return f"{counted_text(jobs, 'job')} on {counted_text(nodes, 'node')}"


def report_of(
    args: Namespace, study: Study, trace: Trace, results: dict[str, Result], *, kind: str
) -> dict[str, Any]:
    """The JSON document."""
    from tidemill.harvest.plan.pace import least_pause_s
    from tidemill.harvest.plan.phase import lead

    first = next(iter(results.values()))
    world = study.world
    return {
        "trace": trace.name,
        "nodes": trace.nodes,
        "nodes_from": trace.nodes_from,
        "jobs": len(trace.jobs),
        "skipped": trace.skipped,
        "outages": len(trace.outages),
        "notes": trace.notes,
        "seeds": study.seeds,
        "replicas": study.replicas,
        "idle_share": first.idle_share,
        "seconds": sum(each.seconds for each in results.values()),
        "parameters": {
            "kind": kind,
            "event_s": world.event_s,
            "startup_s": world.startup_s,
            "poll_s": world.poll_s,
            "glance_s": least_pause_s(world.poll_s) if world.glance_s is None else world.glance_s,
            "calls_per_min_max": world.calls_per_min_max,
            "headroom": world.has_headroom,
            "lead_s": None
            if not world.is_aligned
            else lead(world.death_s)
            if args.lead_s is None
            else args.lead_s,
            "order_known": world.is_order_known,
            "cycle_s": world.cycle_s,
            "death_s": world.death_s,
            "jitter_s": study.jitter_s,
            "jobs_max": args.jobs_max,
            "width_min": world.width_min,
            "walltime_max_s": world.walltime_max_s,
            "horizon_s": world.horizon_s,
        },
        "policies": results,
    }


def draw(path: Path, study: Study, trace: Trace) -> None:
    """Write the plot of the first policy."""
    from tidemill_study.report.tide import tide
    from tidemill_study.simulation.experiment import tide_of

    policy = study.policies[0]
    tally = tide_of(study, policy)
    drawn = tide(
        tally.tide,
        nodes=trace.nodes,
        until_s=study.world.horizon_s,
        outages=trace.outages,
        title=f"{trace.name}, {policy}",
    )
    write_whole(path, drawn.encode(), mode=0o644, failure=ConfigError)
    say(f"wrote `{path}`")


def print_tables(study: Study, trace: Trace, results: dict[str, Result]) -> None:
    """The figures as tables."""
    heads = [
        "POLICY",
        "USEFUL",
        "SAME RUN",
        "OCCUPIED",
        "WAIT",
        "95 %",
        "STARTS/H",
        "CANCELS/H",
        "CALLS/MIN",
        "CPU S",
    ]
    show_table(
        heads,
        [
            [
                name,
                percent(each.useful),
                percent(each.useful_same_run),
                percent(each.occupied),
                signed(each.wait_change.mean),
                f"{signed(each.wait_change.low)} .. {signed(each.wait_change.high)}",
                f"{each.starts_per_h:,.0f}",
                f"{each.cancels_per_h:,.0f}",
                f"{each.calls_per_min:.1f}",
                f"{each.seconds:.1f}",
            ]
            for name, each in results.items()
        ],
        right=tuple(range(1, len(heads))),
    )
    for name, each in results.items():
        show("")
        print_classes(name, each)
    first = next(iter(results.values()))
    show("")
    seeds = counted_text(study.seeds, "seed")
    show(f"{percent(first.idle_share)} of {counted_text(trace.nodes, 'node')} idle without Tidemill; {seeds}")


def print_classes(policy: str, result: Result) -> None:
    """Waits by class of a policy, and the promise."""
    from tidemill.harvest.account.promise import SENTENCE, PromiseState

    moved = result.wait_change
    jobs = sum(each.jobs for each in result.by_size)
    total = [
        *(
            "all",
            f"{jobs:,}",
            f"{result.wait_without_s:,.0f} s",
            f"{result.wait_s:,.0f} s",
            signed(moved.mean),
        ),
        *(
            f"{signed(moved.low)} .. {signed(moved.high)}",
            *delay_texts(result.delay_s),
            result.mean_bound.text,
            result.promise.mean.text,
        ),
    ]
    groups: tuple[tuple[list[ClassResult], Callable[[ClassResult], str]], ...] = (
        (result.by_size, nodes_text),
        (result.by_length, lambda each: f"run {long_text(each)}"),
        (result.by_limit, lambda each: f"asked for {long_text(each)}"),
        (result.by_size_and_length, lambda each: f"{nodes_text(each)}, {long_text(each)}"),
    )
    rows = [class_row(text(each), each) for classes, text in groups for each in classes]
    show_table(
        [
            policy.upper(),
            "JOBS",
            "WAIT WITHOUT US",
            "WITH US",
            "CHANGE",
            "95 %",
            "LATER",
            "95 %",
            "BOUND",
            "PROMISE",
        ],
        [total, *rows],
        right=tuple(range(1, 9)),
    )
    if result.promise.verdict is PromiseState.UNJUDGED:
        show(
            f"{policy}: no verdict: the log does not say when jobs were submitted, so waits cannot be judged"
        )
        return
    show(f"{policy}: promise {result.promise.verdict.text}; the promise is: {SENTENCE}")
    if result.delay_s.low is None:
        show("one pair of runs gives no 95 % interval, so no verdict: raise --seeds or --replicas")


def class_row(text: str, each: ClassResult) -> list[str]:
    """A class as a row."""
    return [
        *(
            text,
            f"{each.jobs:,}",
            f"{each.wait_without_s:,.0f}",
            f"{each.wait_s:,.0f}",
            signed(each.wait_change),
        ),
        f"{signed(each.low)} .. {signed(each.high)}",
        *delay_texts(each.delay_s),
        each.bound.text,
        each.verdict.text,
    ]


def delay_texts(delay_s: MeanDelay) -> tuple[str, str]:
    """Seconds and their interval."""
    bounds = "-" if delay_s.low is None else f"{delay_s.low:+,.1f} .. {delay_s.high:+,.1f}"
    return f"{delay_s.mean:+,.1f} s", bounds


def nodes_text(each: ClassResult) -> str:
    """A class of size."""
    return f"{each.nodes_min}-{each.nodes} nodes"


def long_text(each: ClassResult) -> str:
    """A class of length."""
    from tidemill.model.figures.job_classes import length_text

    return length_text(each.over_s, each.up_to_s)


def percent(value: float | None) -> str:
    """A share for people."""
    return "-" if value is None else f"{value:.1%}"


def signed(value: float | None) -> str:
    """A change for people."""
    return "-" if value is None else f"{value:+.2%}"


COMMANDS = {
    "simulate": Command(
        define, run, "tidemill simulate machine.swf.gz --policy yield --policy titan --seeds 8", talks=False
    )
}
