"""A Tidemill user's settings and other users of a real cluster: a regular job wants all nodes while Tidemill has them.

`slurm_shell` and `gridengine_shell` have the users and their settings; tests and `bench/profile_variables.py` try them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tidemill import clock

HELD_S = 90.0
SEEN_S = 45.0


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one trial."""

    held: bool  #: Tidemill had all nodes before the regular job came
    seen: dict[str, int]  #: the agent's allocations by state then: all ACTIVE if it sees its own jobs
    waiting_seen: (
        bool | None
    )  #: whether `windows` shows that jobs wait; None = not asked, as releases show it
    doubted: bool  #: whether the agent did not believe a reply of the batch system
    wait_s: float | None  #: of the regular job in the queue; None = it did not start
    stopped: str  #: what `up --stop` printed
    left: int  #: Tidemill's jobs that ran or waited after it had printed that


class TrialUser(Protocol):
    """A user of Tidemill on a cluster, and another user's job there."""

    batch: str  #: its name for `--batch`
    nodes: int  #: of the cluster
    yields: bool  #: whether Tidemill releases nodes to waiting jobs there
    space: Path  #: Tidemill's directory is `h` in it
    env: dict[str, str]
    started_s: float  #: so long the regular job may wait

    def make_site(self) -> None:
        """Set up the site."""

    def words(self, *words: str) -> list[str]:
        """The command line of a `tidemill` of this user."""

    def told(self, *words: str) -> str:
        """What a `tidemill` of this user prints, on either stream."""

    def data(self, *words: str) -> Any:
        """Its JSON."""

    def ours(self, *, waiting: bool) -> int:
        """Tidemill's jobs that run, as the batch system shows them to staff; those that wait, too."""

    def submit(self) -> str:
        """The number of a short job of another user on all nodes."""

    def waits(self, number: str) -> bool:
        """Whether that job waits."""


def tried(user: TrialUser) -> Trial:
    """One trial of a user whose commands stay."""
    user.make_site()
    words = user.words("run", "--events", "2000", "--name", "shell", "--", "sleep", "15")
    with subprocess.Popen(
        words, cwd=user.space, env=user.env,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as ran:  # fmt: skip
        held = becomes(lambda: user.ours(waiting=False) >= user.nodes, HELD_S)
        seen: dict[str, int] = {}

        def sees_all() -> (
            bool
        ):  # kept as it was then: where limits are short, the next one may end a moment later
            seen.clear()
            seen.update(_seen(user))
            return seen == {"ACTIVE": user.nodes}

        becomes(sees_all, SEEN_S)
        regular = user.submit()
        began_s = clock.monotonic_s()
        waiting_seen = None if user.yields else _shows_waiting(user)
        started = becomes(lambda: not user.waits(regular), user.started_s)
        wait_s = round(clock.monotonic_s() - began_s, 1) if started else None
        stopped = user.told("up", "--stop").strip()
        left = user.ours(waiting=True)
        ran.kill()
    doubted = "reply.doubted" in (user.space / "h" / "site.log").read_text()
    return Trial(
        held=held, seen=seen, waiting_seen=waiting_seen, doubted=doubted, wait_s=wait_s, stopped=stopped, left=left,
    )  # fmt: skip


def becomes(done: Callable[[], bool], within_s: float) -> bool:
    """Whether it is so within this time."""
    until_s = clock.monotonic_s() + within_s
    while not done():
        if clock.monotonic_s() > until_s:
            return False
        clock.sleep_s(0.2)
    return True


def _seen(user: TrialUser) -> dict[str, int]:
    server = user.data("site", "status").get("server") or {}
    return dict(server.get("allocations", {}))


def _shows_waiting(user: TrialUser) -> bool:
    return not user.data("windows", "--batch", user.batch)["is_queue_empty"]
