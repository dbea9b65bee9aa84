"""`tidemill cache check`: compare what a cache holds with the origin, and drop what differs."""

from __future__ import annotations

import os
import secrets
from argparse import Namespace
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, duration, option_type
from tidemill.cli.terminal import say, show_json, show_lines
from tidemill.model.quantities import bytes_text
from tidemill_caches.cli.location import cache_directory, define_directory, path_in

if TYPE_CHECKING:
    from tidemill_caches.contents.verify import CacheCheck, FileCheck

EXIT_BAD, EXIT_UNCHECKED = 1, 3
SHOWN_MAX = 1000
NICE = 19


def _share(text: str) -> float:
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value <= 1:
        raise ValueError(f"`{text}` is not between 0 and 1, or 0% and 100%")
    return value


def define(parser: Parser) -> None:
    """Options of `cache check`."""
    define_directory(parser)
    parser.add_argument(
        "path", nargs="?", default="/", metavar="PATH",
        help="a dataset or a file in the cache: its path or its URL at the origin (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--sample", type=option_type(_share, "share"), default=1.0, metavar="SHARE",
        help="compare about this share of the blocks, others each time: `0.01` or `1%%` (default: all)",
    )  # fmt: skip
    parser.add_argument("--time", type=duration, metavar="T", help="end after this time (default: no limit)")
    parser.add_argument(
        "--keep", action="store_true", help="only report files that differ: by default they are dropped"
    )


def check(args: Namespace) -> int:
    """Compare, drop, and print; 1 where something differed, 3 where something was not compared."""
    from tidemill_caches.contents import verify
    from tidemill_caches.contents.origin_reader import OriginReader
    from tidemill_caches.contents.purging import OpenFiles
    from tidemill_caches.contents.scan import text_of
    from tidemill_caches.engine import directory as places
    from tidemill_caches.engine.configuration import origins_of

    directory = cache_directory(args)
    config = places.read_cache(directory)
    data = places.data_of(directory, config)
    places.check_place(data)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    opened = OpenFiles(directory)
    if not args.keep:
        opened.has(str(data))  # fails here rather than after hours
    told: list[FileCheck] = []

    with OriginReader(config) as reader:
        sample = verify.BlockSample(args.sample, secrets.randbits(32))
        until_s = clock.monotonic_s() + args.time if args.time is not None else None
        comparison = verify.Comparison(
            data, origins_of(config), reader=reader, sample=sample, until_s=until_s
        )

        def tell(result: FileCheck) -> None:
            if result.verdict in verify.BAD and not args.keep:
                comparison.cure(result, opened)
            if result.verdict in (*verify.BAD, *verify.UNCHECKED) and len(told) < SHOWN_MAX:
                result.path = text_of(result.path)
                told.append(result)
                if not args.json:
                    say(_line(result))

        sums = verify.check_cache(verify.files_below(data, path_in(args.path)), comparison, tell=tell)
    return _show(sums, told, as_json=args.json)


def _line(result: FileCheck) -> str:
    done = f"; {result.done}" if result.done else ""
    return f"{result.verdict:<8} {result.path}: {result.why}{done}"


def _show(sums: CacheCheck, told: list[FileCheck], *, as_json: bool) -> int:
    from tidemill_caches.contents import verify

    bad, unchecked = sums.count(verify.BAD), sums.count(verify.UNCHECKED)
    if as_json:
        found: dict[str, Any] = {"sums": sums, "files": told, "bad": bad, "unchecked": unchecked}
        show_json(found)
    else:
        show_lines(
            f"compared {bytes_text(sums.compared_bytes)} of {bytes_text(sums.held_bytes)} cached in {sums.files:,} "
            f"files: {sums.by_verdict.get('good', 0):,} good, {bad:,} bad, {unchecked:,} not compared, "
            f"{sums.by_verdict.get('skipped', 0):,} not in the sample or not cached"
        )
        if sums.ended_early:
            show_lines("the time was up before all files were reached")
    return EXIT_BAD if bad else EXIT_UNCHECKED if unchecked else 0


COMMANDS = {
    "cache check": Command(define, check, "tidemill cache check /scratch/cache --sample 1%", talks=False)
}
