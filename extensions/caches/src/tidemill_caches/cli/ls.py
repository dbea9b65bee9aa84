"""`tidemill cache ls`: what a cache holds, by dataset, by file, or of one file."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, count
from tidemill.cli.terminal import hint, show_json, show_lines, show_table
from tidemill.model.quantities import bytes_text, percent_text
from tidemill_caches.cli.location import cache_directory, define_directory, path_in

if TYPE_CHECKING:
    from tidemill_caches.contents.scan import CachedFile, ContentsSummary, DatasetContents

LIMIT = 50
LIMIT_MAX = 100_000


def define(parser: Parser) -> None:
    """Options of `cache ls`."""
    define_directory(parser)
    parser.add_argument(
        "path", nargs="?", metavar="PATH",
        help="a dataset or a file in the cache: its path or its URL at the origin (default: all datasets)",
    )  # fmt: skip
    parser.add_argument(
        "--files", action="store_true", help="list the files of a dataset also below its directory"
    )
    parser.add_argument(
        "--limit", type=count, default=LIMIT, metavar="N", help="list at most N lines (default: 50)"
    )


def ls(args: Namespace) -> int:
    """Print the largest datasets, the files of one, or all that is known of a file."""
    from tidemill_caches.contents import scan
    from tidemill_caches.engine import directory as places

    directory = cache_directory(args)
    data = places.data_of(directory, places.read_cache(directory))
    limit = min(args.limit, LIMIT_MAX)
    path = path_in(args.path) if args.path is not None else "/"
    file = scan.find(data, path) if path != "/" else None
    if file is not None:
        _show_file(file, as_json=args.json)
        return 0
    if args.path is None and not args.files:
        _show_summary(scan.summary(scan.datasets(scan.directories(data)), count_max=limit), args.json)
        return 0
    found = (each for _, files in _reach(data, path, deep=args.files) for each in files)
    listed = list(islice(found, limit + 1))
    _show_files(listed[:limit], more=len(listed) > limit, as_json=args.json)
    if not listed and not args.json:
        hint(f"the cache holds nothing at `{path}`: `tidemill cache ls` lists its datasets")
    return 0


def _reach(data: Path, path: str, *, deep: bool) -> Iterator[tuple[str, Iterator[CachedFile]]]:
    from tidemill_caches.contents import scan

    found = scan.directories(data, below=path)
    return found if deep else islice(found, 1)


def _show_summary(summary: ContentsSummary, as_json: bool) -> None:
    if as_json:
        show_json(summary)
        return
    show_datasets(summary.datasets)
    total = summary.total
    show_lines(
        f"{bytes_text(total.held_bytes)} of {total.files:,} files in "
        f"{len(summary.datasets) + summary.left_out:,} datasets"
    )
    if summary.left_out:
        hint(f"{summary.left_out:,} smaller datasets are not listed: `--limit`")


def show_datasets(datasets: Sequence[DatasetContents]) -> None:
    """A table of datasets."""
    show_table(
        ["dataset", "cached", "of", "share", "files", "complete", "opens", "last used"],
        [
            [
                each.dataset, bytes_text(each.held_bytes), bytes_text(each.file_bytes), percent_text(each.share),
                each.files, each.complete, each.opens, _time(each.used_s),
            ]
            for each in datasets
        ],
        right=[1, 2, 3, 4, 5, 6],
    )  # fmt: skip


def _show_files(files: Sequence[CachedFile], *, more: bool, as_json: bool) -> None:
    if as_json:
        show_json({"files": [_row(each) for each in files], "more": more})
        return
    rows = [_row(each) for each in files]
    show_table(
        ["file", "cached", "of", "share", "opens", "last used"],
        [
            [row["path"], row["why"], "", "", "", ""]
            if row["why"]
            else [
                row["path"], bytes_text(row["held_bytes"]), bytes_text(row["file_bytes"]), percent_text(row["share"]),
                row["opens"], _time(row["used_s"]),
            ]
            for row in rows
        ],
        right=[1, 2, 3, 4],
    )  # fmt: skip
    if more:
        hint("there are more files: `--limit`")


def _row(file: CachedFile) -> dict[str, Any]:
    from tidemill_caches.contents.scan import text_of

    info, path = file.info, text_of(file.path)
    if info is None:
        return {"path": path, "disk_bytes": file.disk_bytes, "why": file.why}
    return {
        "path": path, "disk_bytes": file.disk_bytes, "why": "", "held_bytes": info.held_bytes,
        "file_bytes": info.file_bytes, "share": info.held_bytes / info.file_bytes if info.file_bytes else 1.0,
        "complete": info.is_complete, "opens": info.opens, "used_s": info.used_s, "cached_s": info.created_s,
    }  # fmt: skip


def _show_file(file: CachedFile, *, as_json: bool) -> None:
    info = file.info
    if as_json:
        accesses = [each._asdict() for each in info.accesses] if info is not None else []
        show_json({"files": [{**_row(file), "accesses": accesses}], "more": False})
        return
    if info is None:
        show_lines(f"{file.path}: {file.why}; XCache fetches it again\n{bytes_text(file.disk_bytes)} on disk")
        return
    show_lines(
        f"file     {file.path}\n"
        f"cached   {bytes_text(info.held_bytes)} of {bytes_text(info.file_bytes)}: {info.blocks_held:,} of "
        f"{info.blocks:,} blocks of {bytes_text(info.block_bytes)}\n"
        f"since    {_time(info.created_s)}\n"
        f"opens    {info.opens}, last used {_time(info.used_s)}"
    )
    show_table(
        ["opened", "closed", "clients", "from the cache", "from the origin", "not cached"],
        [
            [
                _time(each.opened_s), _time(each.closed_s), each.clients, bytes_text(each.hit_bytes),
                bytes_text(each.missed_bytes), bytes_text(each.bypassed_bytes),
            ]
            for each in info.accesses
        ],
        right=[2, 3, 4, 5],
    )  # fmt: skip


def _time(seconds: int) -> str:
    return clock.utc_text(seconds * 1_000_000) if seconds > 0 else "-"


COMMANDS = {"cache ls": Command(define, ls, "tidemill cache ls /scratch/cache /store/d", talks=False)}
