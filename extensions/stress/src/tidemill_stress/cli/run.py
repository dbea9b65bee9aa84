"""`tidemill stress run|scan`: hold levels of running payloads and measure them."""

from __future__ import annotations

import signal
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill import __version__, clock
from tidemill.cli.arguments import Command, Parser, client_of
from tidemill.cli.terminal import hint, say, show, show_json, show_table
from tidemill.errors import ConfigError

if TYPE_CHECKING:
    from tidemill_stress.analysis import Analysis
    from tidemill_stress.run import Mode, Run, SeriesSource

RUNS = Path("stress-runs")


def define(parser: Parser) -> None:
    """Options of `stress run` and `stress scan`."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE.toml",
        help="the stress test, as extensions/stress/docs/stress.md shows it",
    )
    parser.add_argument(
        "--runs", type=Path, default=RUNS, metavar="DIR", help="where runs are kept (default: ./stress-runs)"
    )
    parser.add_argument(
        "--resume", metavar="ID", help="go on with a run that was interrupted (default: a new run)"
    )
    parser.add_argument(
        "--gate",
        action="store_true",
        help="compare with the newest whole run of the same test; exit code 1 if this one is worse",
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="DIR", help="compare with this run (default: the newest whole one)"
    )


def run(args: Namespace) -> int:
    """Run a stress test over its levels."""
    return _work(args, "run")


def scan(args: Namespace) -> int:
    """Run a stress test over numbers of slots per node."""
    return _work(args, "scan")


def _work(args: Namespace, mode: Mode) -> int:
    from tidemill_stress import plan, store
    from tidemill_stress.runner import Runner, check_sites
    from tidemill_stress.series.node_series import NodeSource
    from tidemill_stress.series.prometheus import PrometheusSource
    from tidemill_stress.series.site_sums import CacheSource, SumsSource

    test = plan.load(args.file)
    steps = plan.scan_steps(test) if mode == "scan" else plan.steps(test)
    key = f"{mode}-{plan.digest(test)}"
    before = _baseline(args, key)
    record = _record(args, test, mode, key)
    directory = args.runs / record.id
    client = client_of(args)
    check_sites(client, record, steps)
    sources: list[SeriesSource] = [
        NodeSource(client), CacheSource(), SumsSource(), PrometheusSource(test.prometheus),
    ]  # fmt: skip
    say(f"the server's page `/stress/{record.id}` shows the run, where the server has the extension `stress`")
    was = signal.signal(signal.SIGTERM, _interrupted)
    try:
        Runner(client, record, directory, sources=sources, say=say).work(steps)
    except KeyboardInterrupt:
        hint(
            f"the level's jobs are canceled; go on with: tidemill stress {mode} {args.file} --resume {record.id}"
        )
        raise
    finally:
        signal.signal(signal.SIGTERM, was)
    analysis = store.finish(directory, record)
    _show(args, record, analysis)
    say(f"wrote `{directory / store.PAGE}`")
    if record.stopped:
        say(f"error: {record.stopped}")
        if record.steps and any(each.failure for each in record.steps[-1].payloads):
            hint(f"`tidemill errors --campaign {record.steps[-1].campaign}` shows why payloads failed")
        return record.exit_code
    return _gate(test.gate.worse_percent, before, analysis) if args.gate else 0


def _record(args: Namespace, test: object, mode: Mode, key: str) -> Run:
    from tidemill_stress import store
    from tidemill_stress.plan import Plan
    from tidemill_stress.run import Run

    assert isinstance(test, Plan)
    if args.resume is None:
        now_us = clock.now_us()
        name = f"{test.name}-{clock.utc_text(now_us).replace(':', '').replace('-', '')}"
        return Run(id=name, mode=mode, plan=test, digest=key, version=__version__, started_us=now_us)
    result = store.load(args.runs / args.resume)
    if result.digest != key:
        raise ConfigError(
            f"run `{args.resume}` is of another test than `{args.file}`: the file has changed since",
            hint="start a new run, without --resume",
        )
    return result


def _baseline(args: Namespace, key: str) -> Path | None:
    """The run to compare with, found before this one writes anything."""
    from tidemill_stress import store

    if args.baseline is not None:
        store.load(args.baseline)
        return Path(args.baseline)
    return store.newest(args.runs, key) if args.gate else None


def _gate(worse_percent: float, before: Path | None, found: Analysis) -> int:
    from tidemill_stress import analysis, compare, store

    if before is None:
        say("gate: there is no earlier whole run of this test; this one is the first baseline")
        return 0
    old = analysis.analyse(store.load(before))
    rows = compare.regressions(compare.compare(old, found, same_test=True), worse_percent)
    for each in rows:
        say(
            f"gate: {each.title}: {each.quantity} is {each.ratio.value:.3f} times that of `{before.name}` "
            f"({each.ratio.low:.3f} to {each.ratio.high:.3f})"
        )
    say(f"gate: {'worse' if rows else 'not worse'} than `{before.name}` by {worse_percent:g} % beyond chance")
    return 1 if rows else 0


def _show(args: Namespace, record: Run, analysis: Analysis) -> None:
    from tidemill_stress import page

    if args.json:
        show_json(analysis)
        return
    show(f"run {record.id}")
    show_table(
        [each.upper() for each in page.HEADS], [page.row(each) for each in analysis.steps], right=range(2, 10)
    )
    for line in page.advice(analysis):
        show(line)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


COMMANDS = {
    "stress run": Command(define, run, "tidemill stress run levels.toml"),
    "stress scan": Command(define, scan, "tidemill stress scan slots.toml"),
}
