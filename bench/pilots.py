"""Starts by a whole Tidemill: what a campaign of one application asks of a slow shared file system, and its length.

Server, agent, lead and pilots of the local batch system (tests/worlds/home/world.py) run in namespaces of their own.
"""

from __future__ import annotations

import contextlib
import getpass  # noqa: F401 (the client imports it late, when `acting_as` may keep us from our own Python)
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.slowfs.mount import Reading, SlowFs
from tests.worlds.home.world import World

from tidemill.model.job import JobSpec

PATIENCE_S = 900.0
NAME = "start"
APP = """name = {name}
executable = {executable}
arguments = {arguments}
trace_every = 0
resources = {{ cores = 1, memory_mb = {memory_mb}, event_s = 1.0 }}
{more}
[environment]
{environment}
"""
SITE = 'affinity = "none"\n'


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A campaign from submitting to its end: what arrived at the server, in all and in each bin."""

    wall_s: float
    used: Reading
    bin_s: float
    bins: list[int]


def application(
    command: Sequence[str], environment: Mapping[str, str], *, memory_mb: int = 200, more: str = ""
) -> str:
    """An application's file: one start per event. `more`: further keys."""
    return APP.format(
        name=json.dumps(NAME),
        executable=json.dumps(command[0]),
        arguments=json.dumps(list(command[1:])),
        memory_mb=memory_mb,
        more=more,
        environment="\n".join(f"{name} = {json.dumps(value)}" for name, value in environment.items()),
    )


@contextlib.contextmanager
def acting_as(user: int | None) -> Iterator[None]:
    """Files are this user's meanwhile, and so are connections to a server, which asks who calls."""
    if user is None:
        yield
        return
    before = os.geteuid()
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(before)


def forget(paths: Sequence[Path], names_s: float) -> None:
    """What this kernel has read of these files is read again; names that it knows are forgotten after `names_s`."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    time.sleep(names_s)


def run_starts(
    it: World, shared: SlowFs, text: str, starts: int, *, ready: Callable[[], None] = lambda: None
) -> Ran:
    """Install the application, wait until it is offered, and start it `starts` times. One that fails ends the bench.
    `ready` is called before the starts are submitted."""
    with acting_as(it.options.user):
        (it.home / "site" / "apps" / f"{NAME}.toml").write_text(text)
        offered = lambda: any(each.app.name == NAME for each in it.client.applications())  # noqa: E731
        it.wait_for(offered, "the application is offered")
        ready()
        before, skipped = shared.reading(), len(shared.bins()[1])
        began = time.monotonic()
        it.submit("c", JobSpec(app=NAME, events=starts))
        row = it.wait_campaign("c", PATIENCE_S)
        wall_s = time.monotonic() - began
    bin_s, bins = shared.bins()
    if row.events_done != starts:
        raise SystemExit(f"{row.events_done} of {starts} events are done:\n{it.tails()}")
    return Ran(wall_s=wall_s, used=shared.reading() - before, bin_s=bin_s, bins=bins[skipped:])
