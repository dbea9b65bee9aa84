"""A person with an account on the ordinary cluster and a whole Tidemill that polls every two seconds."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.timing import Values, passed_on
from tests.worlds.batch.ordinary_cluster import OrdinaryCluster
from tests.worlds.batch.person import SlurmPerson

QUICK: Values = {
    "site": {
        "CLUSTER_POLL_S": 2, "IDLE_S": 1, "OUTPUT_FLUSH_S": 0.3, "QUEUE_S": 0.5, "SYNC_INTERVAL_MAX_S": 1, "CYCLE_S": 1,
        "STARTUP_S": 1,
    },
    "batch": {"UNKNOWN_S": 4},
}  # fmt: skip
ENDED = {"COMPLETED", "PARTIAL", "FAILED", "CANCELED"}
_numbers = itertools.count()


class Newcomer(SlurmPerson):
    """Take `newcomer_on`. What is shown is read as the person sees it; `cluster` is seen as its administrator does."""

    cluster: OrdinaryCluster

    def __init__(self, cluster: OrdinaryCluster, name: str) -> None:
        super().__init__(cluster, name)
        self.env |= passed_on(QUICK)
        self.beside: list[subprocess.Popen[bytes]] = []

    def run_beside(self, name: str, *words: str) -> int:
        """`tidemill run WORDS` beside the test, its campaign called `name`; the number of its job. What it says is
        `said(name)`. It is killed at the end, as when a terminal is closed."""
        with (self.space / f"{name}.said").open("w") as said:
            command = self.words("run", "--name", name, *words, COLUMNS="2000")
            process = subprocess.Popen(
                command, cwd=self.space, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        self.beside.append(process)
        found: list[int] = []

        def known() -> bool:
            found[:] = [row["id"] for row in self.rows() if row["campaign"] == name]
            return bool(found)

        self.wait(known, f"campaign {name} is there")
        return found[0]

    def said(self, name: str) -> str:
        """What `run` has printed of a campaign, both streams."""
        return (self.space / f"{name}.said").read_text()

    def rows(self) -> list[dict[str, Any]]:
        """The rows of `tidemill jobs`."""
        rows: list[dict[str, Any]] = self.data("jobs")
        return rows

    def job(self, number: int) -> dict[str, Any]:
        """A job as `tidemill jobs` has it."""
        return next(row for row in self.rows() if row["id"] == number)

    def shown(self, *words: str) -> str:
        """What a command prints, unwrapped: one space between words."""
        return " ".join(self.run(*words, COLUMNS="2000").stdout.split())

    def views(self, number: int) -> dict[str, str]:
        """What each command says of a job that waits, by its name."""
        asked = {
            "explain": ("job", "explain", str(number)),
            "status": ("site", "status"),
            "top": ("top", "--once"),
        }
        return {name: self.shown(*words) for name, words in asked.items()}

    def polled_s(self) -> float:
        """When the site last asked Slurm, as its metrics have it; seconds since 1970."""
        value: float = self.data("site", "status")["metrics"]["tidemill_batch_polled_time_seconds"][0][1]
        return value

    def give_back(self) -> None:
        """Cancel every job that has not ended, and wait until no node is held."""
        left = [str(row["id"]) for row in self.rows() if row["state"] not in ENDED]
        if left:
            self.run("job", "cancel", *left)
        self.wait(lambda: self.cluster.allocations() == [], "no allocation is left")

    def wait(self, done: Any, what: str, timeout_s: float = 60.0) -> None:
        """Ask until it is so; a failure shows what the person and the staff see."""
        try:
            self.cluster.wait(done, what, deadline_s=timeout_s)
        except pytest.fail.Exception as failure:
            shown = "\n".join(self.run(*words).stdout for words in (("jobs",), ("site", "status")))
            pytest.fail(f"{failure}\n{shown}\n{self.logs()}")


def settings(text: str, **tables: str) -> str:
    """The text of a site.toml with further lines: `top` of no table, others of the table of that name."""
    text = f"{tables.pop('top', '')}\n{text}"
    for table, lines in tables.items():
        head = re.compile(rf"^\[{table}\]\n", re.MULTILINE)
        changed, count = head.subn(f"[{table}]\n{lines}\n", text)
        text = changed if count else f"{text}\n[{table}]\n{lines}\n"
    return text


@contextmanager
def newcomer_on(cluster: OrdinaryCluster, *, cluster_keys: str = "") -> Iterator[Newcomer]:
    """ada with a site on `short`, whose Tidemill is up; ended afterwards. Pilots reach its lead."""
    person = Newcomer(cluster, f"n{next(_numbers)}")
    with person.staying():
        person.done("site", "init", "--enable", "--no-probe", "--contact", "ada@example.org")
        file = person.site / "site.toml"
        keys = f"calls_per_min_max = 1200\n{cluster_keys}"
        written = file.read_text()
        assert 'tcp = "nodes"' in written  # without a probe: work travels by files, once a minute
        text = written.replace('tcp = "nodes"', 'tcp = "open"')
        file.write_text(settings(text, cluster=keys))
        person.done("up", "--detach")
        try:
            yield person
        finally:
            person.run("up", "--stop")
            for process in person.beside:
                process.kill()
                process.wait()
