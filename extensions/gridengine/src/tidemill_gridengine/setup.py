"""What `site init` and `site check` make of a Grid Engine, and of a user's files of default requests for it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping

from tidemill.batch.contract import Facts
from tidemill.batch.kinds import ACCOUNT, PARTITION, ShellSetting
from tidemill.config.site import SiteConfig
from tidemill.config.tables import tables_of
from tidemill_gridengine.defaults import (
    DefaultOption,
    common,
    home,
    knows_cell,
    requests_of_user,
    wanted_of_user,
)
from tidemill_gridengine.survey import ENVIRONMENTS

NAMES_SHOWN = 8
WHOLE_NODE_NAMES = ("smp", "openmp", "threaded", "threads", "shm", "node", "nodes")
_KEY = "gridengine.parallel_environment"
_REQUESTS = {"-P": ACCOUNT, "-q": PARTITION, "-pe": _KEY, "-ar": "cluster.reservation"}
"""Options that have a key of their own; `cluster.directives` takes the others."""


def choices(facts: Facts) -> list[tuple[str, str, str]]:
    """The parallel environment that suits, if its name says so: (key, TOML text, origin)."""
    listed = [note.removeprefix(ENVIRONMENTS) for note in facts.notes if note.startswith(ENVIRONMENTS)]
    names = [name for text in listed for name in text.split(", ") if name != "none"]
    good = [each for each in names if each.lower() in WHOLE_NODE_NAMES] or (names if len(names) == 1 else [])
    told = f"there are: {', '.join(names) or 'none'}; it must give all slots of one node"
    if good:
        return [(_KEY, json.dumps(good[0]), f"by its name; {told}")]
    return [(_KEY, "", f"unknown: name one; {told}")]


def settings(environ: Mapping[str, str]) -> list[ShellSetting]:
    """The project and the queue that the user's own file of default requests names."""
    return [
        ShellSetting(f"{home('.sge_request')}: {flag}", value, key)
        for flag, key in (("-P", ACCOUNT), ("-q", PARTITION))
        if (value := wanted_of_user(flag))
    ]


def remarks(read: SiteConfig | None, sources: set[str]) -> Iterator[tuple[str, str, str]]:
    """What happens to the user's default requests besides those of `sources`, and those that site.toml has."""
    yield from _request_findings(
        each
        for each in requests_of_user()
        if f"{each.source}: {each.flag}" not in sources and not (read and _is_requested(read, each))
    )


def _is_requested(read: SiteConfig, request: DefaultOption) -> bool:
    """Whether site.toml has this request, or another value of its key."""
    if request.flag == "-P":
        return bool(read.accounts)
    if request.flag == "-pe":
        return bool(tables_of(read)["gridengine"].parallel_environment)
    if request.flag in _REQUESTS:
        return bool(getattr(read.cluster, _REQUESTS[request.flag].removeprefix("cluster.")))
    return any(f" {request.text} " in f" {' '.join(line.split())} " for line in read.cluster.directives)


def _request_findings(requests: Iterable[DefaultOption]) -> Iterator[tuple[str, str, str]]:
    """State, finding and hint about requests that site.toml lacks."""
    found = [each for each in requests if each.flag not in ("-clear", "-sync")]
    listed = ", ".join(f"`{each.text}` of `{each.source}`" for each in found[:NAMES_SHOWN])
    listed += f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    keys = {flag: key for flag, key in _REQUESTS.items() if any(each.flag == flag for each in found)}
    named = [f"`{flag}` as `{key}`" for flag, key in keys.items()]
    others = [each.text for each in found if each.flag not in keys]
    named += [f"`cluster.directives = {json.dumps(others[:NAMES_SHOWN])}`"] if others else []
    if not knows_cell():
        folder = common("")
        why = f"`{folder}` is not a directory" if os.environ.get("SGE_ROOT") else "SGE_ROOT is not set"
        applied = f"; your default requests apply to Tidemill's jobs: {listed}" if found else ""
        yield (
            "warn",
            f"{why}, so Tidemill does not find the cluster's default requests: `qsub` runs without `-clear`{applied}",
            "set SGE_ROOT, and SGE_CELL where the cell is not `default`, before the agent starts: your jobs have both "
            "in their environment",
        )
    elif found:
        yield (
            "ok",
            f"no effect on Tidemill: {listed}",
            f"if Tidemill's jobs are to use them, set in site.toml: {', '.join(named)}",
        )
