"""Options with which a retry changes what runs from then on, for `run --resume` and `job retry`."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.cli.arguments import Parser, count, count_or_zero, memory_span, size_mb, wall_span

if TYPE_CHECKING:
    from tidemill.model.retry.changes import JobChanges

CHANGING: dict[str, dict[str, Any]] = {
    "memory": {
        "type": memory_span,
        "metavar": "SIZE",
        "help": "memory per slot: `2G`, MB, or `2G..8G` (default: as before)",
    },
    "scratch": {
        "type": size_mb,
        "metavar": "SIZE",
        "help": "room for work directory, inputs and /tmp per slot: `4G`, or MB (default: as before)",
    },
    "wall": {
        "type": wall_span,
        "metavar": "T",
        "help": "longest time of an event: `90m`, HH:MM:SS, or `10m..2h` (default: as before)",
    },
    "cores": {"type": count, "metavar": "C", "help": "cores per slot (default: as before)"},
    "dir": {
        "type": Path,
        "metavar": "DIR",
        "help": "deliver outputs that are not delivered yet to DIR/CAMPAIGN (default: as before)",
    },
    "env": {
        "action": "append",
        "default": [],
        "metavar": "NAME[=VALUE]",
        "help": "add or replace a variable; repeatable",
    },
    "retries": {
        "type": count_or_zero,
        "metavar": "N",
        "help": "retry a failed event up to N times (default: as before)",
    },
    "failed_max": {
        "type": count_or_zero,
        "metavar": "N",
        "help": "accept up to N failed events (default: as before)",
    },
    "at_once": {
        "type": count,
        "metavar": "N",
        "help": "run at most N events at the same time (default: as before)",
    },
}
"""Options that a retry may change; `run` describes them in its own words."""


def option_of(name: str) -> str:
    """The option on a command line: `--failed-max` for `failed_max`."""
    return f"--{name.replace('_', '-')}"


def define_changes(parser: Parser) -> None:
    """Define the options that change what runs from now on."""
    group = parser.add_argument_group("changes to what runs from now on")
    for name, how in CHANGING.items():
        group.add_argument(option_of(name), **how)


def changes_of(args: Namespace) -> JobChanges | None:
    """What the options change in jobs; None = nothing. Raises ConfigError."""
    from tidemill.cli.command.environment import captured
    from tidemill.model.retry.changes import JobChanges, limits

    words: dict[str, Any] = limits(memory=args.memory, wall=args.wall)
    for name in ("cores", "retries", "failed_max", "at_once"):
        if getattr(args, name) is not None:
            words[name] = getattr(args, name)
    if args.scratch is not None:
        words["scratch_mb"] = args.scratch
    if args.dir is not None:
        words["output_dir"] = str(args.dir.absolute())
    if args.env:
        found = captured(os.environ, args.env).variables
        words["env"] = {name: found[name] for name in (text.partition("=")[0] for text in args.env)}
    return JobChanges(**words) if words else None
