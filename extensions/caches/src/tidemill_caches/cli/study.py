"""`tidemill cache study`: what a cache would do for one data set, measured here and now."""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, count, duration, option_type
from tidemill.cli.findings import wrapped
from tidemill.cli.terminal import say, say_lines, show_json, show_lines, show_table
from tidemill.errors import ConfigError, SiteError, install_hint
from tidemill.model.quantities import bytes_text, duration_text
from tidemill_caches.cli.init import size

if TYPE_CHECKING:
    from tidemill_caches.study.advice import StudyAdvice, StudyPass, StudyRow
    from tidemill_caches.study.dataset import StudyFile
    from tidemill_caches.study.measure import Bench
    from tidemill_caches.study.plan import StudySetting, StudySize

BYTES = 64_000_000
SECONDS = 900
ROUNDS_MAX, SETTINGS_MAX, RTTS_MAX, URLS_MAX, FILES_MAX = 20, 8, 8, 100, 32
RTT_MS_MAX = 2000.0


def _milliseconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= RTT_MS_MAX:
        raise ValueError(f"`{text}` is not between 0 and {RTT_MS_MAX:.0f} ms")
    return value


def _blocks(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 128:
        raise ValueError(f"`{text}` is not between 0 and 128 blocks")
    return value


def define(parser: Parser) -> None:
    """Options of `cache study`."""
    parser.add_argument(
        "urls", nargs="+", metavar="URL",
        help="a file `root://HOST:PORT//PATH`, or a directory: its files of about median size up to --bytes are read",
    )  # fmt: skip
    parser.add_argument(
        "--pattern", action="append", choices=["whole", "sequential", "random", "vector"], metavar="P",
        help="a read pattern: whole, sequential, random or vector; several are possible (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--prefetch", action="append", type=option_type(_blocks, "number"), metavar="N",
        help="blocks to read ahead; several are possible (default: 0 and 10)",
    )  # fmt: skip
    parser.add_argument(
        "--block", action="append", type=size, metavar="SIZE", help="block size; several are possible (default: 1 MiB)"
    )  # fmt: skip
    parser.add_argument(
        "--rtt", action="append", type=option_type(_milliseconds, "time"), metavar="MS",
        help="add a round trip of MS milliseconds to the origin; repeatable (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--reads", type=count, default=2, metavar="N",
        help="passes over the same data that the setting is for (default: 2)",
    )  # fmt: skip
    parser.add_argument(
        "--rounds",
        type=count,
        default=1,
        metavar="N",
        help="repeat all N times and take medians (default: 1)",
    )
    parser.add_argument(
        "--files", type=count, default=1, metavar="N",
        help="read up to N files of a directory in a pass, together up to --bytes (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--bytes",
        type=size,
        default=BYTES,
        metavar="SIZE",
        help="read at most SIZE in each pass (default: 64MB)",
    )
    parser.add_argument(
        "--time",
        type=duration,
        default=SECONDS,
        metavar="T",
        help="end the study after this time (default: 15m)",
    )
    parser.add_argument(
        "--scratch", type=Path, default=None, metavar="DIR",
        help="local directory with a short path for the temporary caches (default: TMPDIR)",
    )  # fmt: skip
    parser.add_argument(
        "--plot", type=Path, default=Path("cache-study.svg"), metavar="FILE",
        help="write the plot there (default: cache-study.svg)",
    )  # fmt: skip


def study(args: Namespace) -> int:
    """Measure, print, draw; 3 where nothing could be compared."""
    from tidemill import clock
    from tidemill_caches.engine.supervisor import check_host
    from tidemill_caches.study import advice, measure
    from tidemill_caches.study.dataset import choose, files_of

    _check(args)
    check_host()
    deadline_s = clock.monotonic_s() + args.time
    found = [each for url in args.urls for each in files_of(url, dict(os.environ))]
    files = choose(found, bytes_max=args.bytes, files_max=args.files)
    size_bytes = sum(each.size_bytes for each in files)
    plan, left_out = _plan(args, size_bytes)
    natural_ms = measure.round_trip_ms(files[0].origin)
    parent = args.scratch if args.scratch is not None else Path(tempfile.gettempdir())
    with measure.scratch_directory(parent.absolute(), size_bytes) as scratch:
        bench = measure.Bench(files, scratch, bytes_max=args.bytes, deadline_s=deadline_s)
        passes, missed = _measure(bench, plan, quiet=args.json)
    rows = advice.table(passes, natural_ms)
    notes = left_out + _notes(passes, missed)
    if not rows:
        raise SiteError("nothing could be compared: " + "; ".join(notes))
    advised = advice.advise(rows, reads=args.reads)
    _draw(args.plot, rows, f"{_named(files)} ({bytes_text(size_bytes)})")
    if args.json:
        show_json(
            {
                "file": files[0].origin.url, "read_files": [each.origin.url for each in files],
                "size_bytes": size_bytes, "files": len(found),
                "natural_rtt_ms": natural_ms,
                "reads": args.reads, "rows": rows, "advice": advised, "notes": notes, "plot": args.plot,
                "passes": passes,
            }
        )  # fmt: skip
        return 0
    show_lines(
        f"{files[0].origin.url}{_more(files)}: {bytes_text(size_bytes)}, of {len(found)} files; "
        f"round trip {natural_ms:.1f} ms"
    )
    _show(rows, advised)
    for note in notes:
        say_lines(wrapped("note     ", note))
    say(f"plot: {args.plot}")
    return 0


def _check(args: Namespace) -> None:
    """What can be refused before the origin is asked. Raises ConfigError."""
    from tidemill_caches.study.advice import READS_MAX

    if len(args.urls) > URLS_MAX or args.reads > READS_MAX or args.files > FILES_MAX:
        raise ConfigError(f"at most {URLS_MAX} URLs, {READS_MAX} passes and {FILES_MAX} files are possible")
    if args.rtt and any(each.lower().startswith("roots://") for each in args.urls):
        raise ConfigError(
            "`--rtt` cannot be used with `roots://`: the certificate of the origin does not name the line that the "
            "study inserts",
            hint="leave `--rtt` out: the study then measures the origin's own round trip",
        )


def _named(files: Sequence[StudyFile]) -> str:
    return files[0].origin.path.rpartition("/")[2] + _more(files)


def _more(files: Sequence[StudyFile]) -> str:
    return f" and {len(files) - 1} more" if len(files) > 1 else ""


def _plan(args: Namespace, size_bytes: int) -> tuple[StudySize, list[str]]:
    """What to measure, and what of it is not possible here."""
    from tidemill_caches.study import measure
    from tidemill_caches.study.plan import ReadPattern, StudySetting, StudySize

    patterns = [ReadPattern(each) for each in dict.fromkeys(args.pattern or ReadPattern)]
    notes = []
    if ReadPattern.WHOLE in patterns and size_bytes > args.bytes:
        patterns.remove(ReadPattern.WHOLE)
        notes.append(f"`whole` is left out: its file has more than {bytes_text(args.bytes)} (`--bytes`)")
    others = [each for each in patterns if each is not ReadPattern.WHOLE]
    if others and not measure.has_client():
        patterns = [each for each in patterns if each is ReadPattern.WHOLE]
        notes.append(
            f"{', '.join(f'`{each}`' for each in others)} left out: this Python has no XRootD client; "
            f"{install_hint('far')}"
        )
    if not patterns:
        raise ConfigError("no pattern can be measured: " + "; ".join(notes))
    settings = [
        StudySetting(block_bytes=block, prefetch_blocks=prefetch)
        for block in dict.fromkeys(args.block or [1 << 20])
        for prefetch in dict.fromkeys(args.prefetch or [0, 10])
    ]
    rtts = list(dict.fromkeys(args.rtt or [None]))
    if len(settings) > SETTINGS_MAX or len(rtts) > RTTS_MAX or args.rounds > ROUNDS_MAX:
        raise ConfigError(
            f"at most {SETTINGS_MAX} settings, {RTTS_MAX} round trips and {ROUNDS_MAX} rounds are possible"
        )
    return StudySize(patterns=patterns, settings=settings, rtts_ms=rtts, rounds=args.rounds), notes


def _measure(bench: Bench, plan: StudySize, *, quiet: bool) -> tuple[list[StudyPass], int]:
    """The passes until time is up, and how many steps are missing."""
    from tidemill_caches.study.plan import steps

    todo = list(steps(plan))
    passes: list[StudyPass] = []
    for number, step in enumerate(todo):
        if bench.left_s <= 0:
            return passes, len(todo) - number
        found = bench.measure(step)
        passes.append(found)
        if not quiet:
            way = "direct" if step.setting is None else step.setting.text
            at = "" if step.rtt_ms is None else f", {step.rtt_ms:g} ms more"
            took = found.failure or " / ".join(
                _seconds(each) for each in (found.first_s, found.second_s) if each
            )
            say(f"{number + 1}/{len(todo)}  {step.pattern}, {way}{at}: {took}")
    return passes, 0


def _notes(passes: list[StudyPass], missed: int) -> list[str]:
    notes = []
    if missed:
        notes.append(
            f"time was up {missed} steps before the end: give more (`--time`) or less to read (`--bytes`)"
        )
    for each in passes:
        if each.failure:
            way = "direct" if each.step.setting is None else each.step.setting.text
            notes.append(f"`{each.step.pattern}`, {way}: {each.failure}")
    return list(dict.fromkeys(notes))


def _show(rows: list[StudyRow], advised: list[StudyAdvice]) -> None:
    lines = []
    for row in rows:
        for k, each in enumerate(row.tries):
            head = (
                [f"{row.rtt_ms:.0f}", row.pattern.value, _seconds(row.direct_s)] if k == 0 else ["", "", ""]
            )
            again = "never" if each.pays_from is None else str(each.pays_from)
            fetched = f"{bytes_text(each.fetched_bytes)} ({each.amplification:.1f}x)"
            lines.append(
                [*head, each.setting.text, _seconds(each.cold_s), _seconds(each.warm_s), fetched, again]
            )
    show_table(
        ["RTT ms", "pattern", "direct", "cache", "first", "second", "fetched", "pays from pass"], lines
    )
    for one in advised:
        use = "no cache: read directly" if one.setting is None else f"{one.setting.text} ({_toml(one)})"
        show_lines(wrapped(f"at {one.rtt_ms:.0f} ms: ", f"use {use}; {one.why}"))


def _toml(advised: StudyAdvice) -> str:
    assert advised.setting is not None
    setting = advised.setting
    return f"`prefetch_blocks = {setting.prefetch_blocks}`, `block_bytes = {setting.block_bytes}`"


def _draw(path: Path, rows: list[StudyRow], what: str) -> None:
    from tidemill.charts.groups import BarGroup, BarPanel, GroupedBar, panels
    from tidemill.files import write_whole

    found = [
        BarPanel(
            f"round trip {rtt_ms:.0f} ms",
            [
                BarGroup(
                    row.pattern.value,
                    [
                        GroupedBar("direct", row.direct_s),
                        *(
                            GroupedBar(f"{name}, {_short(each.setting)}", value)
                            for each in row.tries
                            for name, value in (("first", each.cold_s), ("second", each.warm_s))
                        ),
                    ],
                )
                for row in rows
                if row.rtt_ms == rtt_ms
            ],
        )
        for rtt_ms in dict.fromkeys(row.rtt_ms for row in rows)
    ]
    title = f"Seconds to read {what}"
    write_whole(path, panels(found, title=title, text=_seconds).encode(), mode=0o644, failure=ConfigError)


def _short(setting: StudySetting) -> str:
    block = "" if setting.block_bytes == 1 << 20 else f" {setting.block_bytes >> 10} kiB"
    return f"prefetch {setting.prefetch_blocks}{block}"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value < 60 else duration_text(value)


COMMANDS = {
    "cache study": Command(
        define, study, "tidemill cache study root://storage.example:1094//store/run7/ --reads 5", talks=False
    )
}
