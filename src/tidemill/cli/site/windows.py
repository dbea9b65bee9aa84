"""`tidemill windows`: which nodes are idle now and until when no job needs them. A `showbf` for Slurm and PBS.

Needs no site directory: the batch commands on PATH are enough. Submits nothing and changes nothing.
"""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, count, duration
from tidemill.cli.terminal import say, show, show_json, show_table
from tidemill.errors import ConfigError, SiteError
from tidemill.model.quantities import count_text, duration_text
from tidemill.site import constants

if TYPE_CHECKING:
    from tidemill.harvest.snapshot.windows import Request, Step, Windows
    from tidemill.model.machine import Snapshot

TOLD_MAX = 10
"""Ids of jobs that are listed by name."""

PLAN_AGE_S_MAX = 120.0
"""An older plan is reported as such: four of Slurm's default cycles."""


def define(parser: Parser) -> None:
    """Options of `windows`."""
    from tidemill.batch import kinds

    parser.add_argument(
        "dir",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="a site's directory (default: the batch system whose commands are on PATH, else HOME/site)",
    )
    parser.add_argument(
        "--batch", choices=kinds.names(), help="the batch system (default: the one whose commands are here)"
    )
    parser.add_argument(
        "--partition",
        metavar="P",
        help="partition or queue, several with commas (default: the site's, else the batch system's default)",
    )
    parser.add_argument(
        "--feature", action="append", default=[], metavar="F", help="only nodes that have it; repeatable"
    )
    parser.add_argument(
        "--cores", type=count, metavar="C", help="count nodes with C free cores (default: whole nodes)"
    )
    parser.add_argument(
        "--width", type=count, metavar="N", help="only how long N nodes are free (default: all steps)"
    )
    parser.add_argument(
        "--guard",
        type=duration,
        metavar="TIME",
        help="taken off each window: the scheduler's cycle and resolution (default: 90 s)",
    )


def run(args: Namespace) -> int:
    """Print the staircase of nodes and times."""
    from tidemill.harvest.snapshot.windows import windows

    snapshot, request = _inspect_machine(args)
    found = windows(snapshot, request)
    steps = [step for step in found.steps if step.nodes >= (args.width or 1)]
    if args.width is not None:
        steps = steps[:1]
    if args.json:
        import msgspec

        show_json(msgspec.structs.replace(found, steps=steps))
        return 0
    _tell_steps(found, steps, width=args.width or 1)
    for line in unseen(found):
        say(line)
    return 0


def _inspect_machine(args: Namespace) -> tuple[Snapshot, Request]:
    """The machine, and what is asked about."""
    from tempfile import TemporaryDirectory

    from tidemill.batch.open import asked_cluster, open_batch, open_cluster
    from tidemill.cli.site.directory import read_site
    from tidemill.harvest.snapshot.windows import GUARD_S, Request
    from tidemill.site.setup.shell import first_cluster

    if args.dir is not None and args.batch is not None:
        raise ConfigError("name a site's directory or a batch system, not both")
    kind, directory = _choose(args)
    cluster = first_cluster(None, kind, os.environ)
    wake_nodes = False
    if directory is not None:
        config = read_site(directory)
        cluster, wake_nodes = config.cluster, constants.WAKE_NODES
        if config.batch == "local":  # its table is in the site directory
            snapshot = open_batch(config, directory).snapshot()
        else:
            with asked_cluster(config, directory) as batch:
                snapshot = batch.snapshot()
    else:
        try:
            with TemporaryDirectory(prefix="tidemill-") as scratch:
                snapshot = open_cluster(kind, Path(scratch), cluster).snapshot()
        except SiteError as error:
            if args.batch is not None:
                raise
            raise SiteError(
                f"the commands of {kind} are on PATH, and no cluster answers: {error.message}",
                hint=error.hint or "log in to a login node, or name a site's directory",
                transient=error.transient,
            ) from error
    request = Request(
        partition=cluster.partition if args.partition is None else args.partition,
        reservation=cluster.reservation,
        features=tuple(args.feature or cluster.features),
        cores=args.cores or 0,
        exclude=frozenset(cluster.exclude),
        wake_nodes=wake_nodes,
        guard_s=GUARD_S if args.guard is None else args.guard,
    )
    return snapshot, request


def _choose(args: Namespace) -> tuple[str, Path | None]:
    """The batch system, and the site whose configuration counts (None = no site's)."""
    from tidemill.batch import kinds
    from tidemill.cli.site.directory import read_site, site_directory
    from tidemill.client.home import home_dir

    if args.dir is not None:
        return "", site_directory(args)
    if args.batch is not None:
        missing = [name for name in kinds.kind_of(args.batch).query_commands if shutil.which(name) is None]
        if missing:
            raise SiteError(
                f"the commands of {args.batch} are not on PATH: {', '.join(missing)}",
                hint="log in to a login node, or load the centre's module",
                transient=False,
            )
        return args.batch, None
    here = kinds.kinds_here(submits=False)
    site = home_dir(args.home) / "site"
    if (site / "site.toml").is_file() and (not here or read_site(site).batch in here):
        return "", site.absolute()
    if not here:
        known = [kinds.commands_of(kind, submits=False) for kind in kinds.names()]
        lasts = [f"`{each[-1]}`" for each in known if each]  # none of an extension that is at fault
        looked = " and ".join(filter(None, [", ".join(lasts[:-1]), lasts[-1]]))
        raise SiteError(
            f"no batch system was found: {looked} are not on PATH, and `{site}` is not a site",
            hint="log in to a login node, or name a site's directory",
            transient=False,
        )
    return here[0], None


def _tell_steps(windows: Windows, steps: list[Step], *, width: int) -> None:
    where = f"partition {windows.partition}" if windows.partition else "the machine"
    if not steps:
        wanted = f"{count_text(width)} nodes" if width > 1 else "a node"
        show(f"no window of {wanted}: {windows.idle} of {windows.nodes} nodes of {where} are idle")
        return
    show_table(
        ["NODES", "FOR", "UNTIL", "LIMITED BY"],
        [
            [
                count_text(step.nodes),
                duration_text(step.seconds),
                clock.utc_text(int(step.until_s * 1e6)) if step.by else "-",
                step.by or "nothing",
            ]
            for step in steps
        ],
        right=(0, 1),
    )
    say(f"{windows.idle} of {windows.nodes} nodes of {where} are idle")


def unseen(windows: Windows) -> list[str]:
    """What the windows do not know, in one line; none if they know all."""
    if windows.starts_nothing:
        return [f"no job starts now: {windows.starts_nothing}"]
    parts = [f"hidden: {'; '.join(windows.hidden)}"] if windows.hidden else []
    if windows.promised:
        parts.append(f"{windows.promised} idle nodes are kept for jobs that are not shown (left out)")
    if windows.unplanned:
        more = len(windows.unplanned) - TOLD_MAX
        ids = ", ".join(windows.unplanned[:TOLD_MAX]) + (f" and {count_text(more)} more" if more > 0 else "")
        parts.append(f"no planned start, may start at any time: {ids}")
    if windows.plan_age_s is None:
        parts.append("the age of the scheduler's plan")
    elif windows.plan_age_s > PLAN_AGE_S_MAX and not windows.is_queue_empty:
        parts.append(f"the scheduler's plan is {duration_text(windows.plan_age_s)} old")
    return [f"not seen: {'; '.join(parts)}"] if parts else []


COMMANDS = {"windows": Command(define, run, "tidemill windows --partition batch --width 16", talks=False)}
