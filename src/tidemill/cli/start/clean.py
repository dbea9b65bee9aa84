"""`tidemill clean`: removes what dead processes have left in your home. Never touches results or running things."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill import clock
from tidemill.cli.arguments import Command, Parser
from tidemill.cli.terminal import say, show, show_json
from tidemill.errors import SiteError, TidemillError
from tidemill.model.quantities import bytes_text

if TYPE_CHECKING:
    from tidemill.client.client import Client

INPUTS_AGE_S = 30 * 86_400.0
"""Stdin, lines and directories that `run` kept for its job; a job that is retried after a month is rare."""


def define(parser: Parser) -> None:
    """Options of `clean`."""
    parser.add_argument("--dry-run", action="store_true", help="only print what would be removed")


def run(args: Namespace) -> int:
    """Remove leftovers."""
    from tidemill.client.home import home_dir

    found = sorted(leftovers(home_dir(args.home)))
    sizes = [_size(path) for path in found]
    if not args.dry_run:
        for path in found:
            _remove(path)
    if args.json:
        show_json([{"path": str(path), "size_bytes": size} for path, size in zip(found, sizes, strict=True)])
        return 0
    for path, size in zip(found, sizes, strict=True):
        show(f"{path}  {bytes_text(size)}")
    verb = "would remove" if args.dry_run else "removed"
    say(f"{verb} {len(found)} leftovers, {bytes_text(sum(sizes))}")
    return 0


def leftovers(home: Path) -> Iterator[Path]:
    """Scratch directories of executors that are gone, logs that were moved aside, files of an `up` that is gone, and
    what `run` wrote for jobs of long ago."""
    from tidemill.client.home import up_runs

    old_s = clock.now_us() / 1e6 - INPUTS_AGE_S
    old = [path for path in home.glob("inputs/*") if path.is_dir() and path.stat().st_mtime < old_s]
    if old:
        from tidemill.client.client import Client

        try:
            client = Client(home=home, retry_s=0.0)
        except TidemillError:
            pass  # no server says that they are not needed
        else:
            yield from (path for path in old if not is_needed(path, client))

    for path in home.glob("executor/*-*"):
        pid = path.name.partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            yield path
    yield from home.glob("*.log.1")
    if not up_runs(home):
        yield from home.glob("up.json")
        yield from home.glob(".up.json.*tmp")


def is_needed(directory: Path, client: Client) -> bool:
    """Whether a job may still read what `run` wrote for it: its campaign has not ended, or no server says so."""
    from tidemill.client.client import has_ended
    from tidemill.wire.server_connection import NotFoundError

    names = {directory.name, directory.name.rpartition("-")[0] or directory.name}  # CAMPAIGN, CAMPAIGN-2
    # one's own, and that of the only owner who has one: a person may have had another name then
    for named in [*map(client.own, names), *names]:
        try:
            if not has_ended(client.campaign(named)):
                return True
        except NotFoundError:
            continue
        except TidemillError:
            return True
    return False


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.lstat().st_size
    return sum(
        os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
        for folder, _, names in os.walk(path)
        for name in names
    )


def _remove(path: Path) -> None:
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise SiteError(f"failed to remove `{path}`: {error.strerror}") from error


COMMANDS = {"clean": Command(define, run, "tidemill clean --dry-run", talks=False)}
