"""`tidemill cache purge`: remove files from a cache, by age, dataset or size; never what is open."""

from __future__ import annotations

from argparse import Namespace

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, duration, option_type
from tidemill.cli.terminal import hint, show_json, show_lines
from tidemill.errors import ConfigError
from tidemill.model.quantities import bytes_text
from tidemill_caches.cli.location import cache_directory, define_directory, path_in


def _size(text: str) -> int:
    from tidemill.config import parse_size

    size = parse_size(text)
    if size < 0:
        raise ValueError(f"`{text}` is less than 0")
    return size


def define(parser: Parser) -> None:
    """Options of `cache purge`."""
    define_directory(parser)
    parser.add_argument(
        "--older", type=duration, metavar="T",
        help="remove only files that were last used longer ago than T (default: of any age)",
    )  # fmt: skip
    parser.add_argument(
        "--dataset", metavar="PATH",
        help="remove files of this dataset and below: its path or its URL at the origin (default: the whole cache)",
    )  # fmt: skip
    parser.add_argument(
        "--to", type=option_type(_size, "size"), metavar="SIZE",
        help="remove only the least recently used files, until at most SIZE is left",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be removed, and remove nothing"
    )


def purge(args: Namespace) -> int:
    """Remove, and print how much."""
    from tidemill_caches.contents.purging import Purge, PurgeRule
    from tidemill_caches.engine import directory as places

    if args.older is None and args.dataset is None and args.to is None:
        raise ConfigError(
            "nothing to purge is named", hint="`--older 30d`, `--dataset /store/d`, `--to 500GB`"
        )
    directory = cache_directory(args)
    data = places.data_of(directory, places.read_cache(directory))
    places.check_place(data)
    rule = PurgeRule(
        below=path_in(args.dataset) if args.dataset is not None else "/",
        before_s=clock.now_s() - args.older if args.older is not None else None,
        to_bytes=args.to,
    )
    done = Purge(directory, data, dry_run=args.dry_run).run(rule)
    if args.json:
        show_json({"dry_run": args.dry_run, **_fields(done)})
        return 0
    verb = "would remove" if args.dry_run else "removed"
    left, left_bytes = done.left_files + done.kept_files, done.left_bytes + done.kept_bytes
    show_lines(
        f"{verb} {done.files:,} files with {bytes_text(done.held_bytes)}; {left:,} files with "
        f"{bytes_text(left_bytes)} are left"
    )
    if done.kept_files:
        show_lines(
            f"of these {done.kept_files:,} files with {bytes_text(done.kept_bytes)} are open and were kept"
        )
        hint(
            "run this again once they are closed; XCache keeps a file open for some 20 s after its last reader"
        )
    return 0


def _fields(done: object) -> dict[str, object]:
    import msgspec

    found: dict[str, object] = msgspec.to_builtins(done)
    return found


COMMANDS = {
    "cache purge": Command(
        define, purge, "tidemill cache purge /scratch/cache --older 30d --dry-run", talks=False
    )
}
