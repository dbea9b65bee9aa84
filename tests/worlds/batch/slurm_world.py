"""A whole Tidemill of an ordinary user in front of a real Slurm: server and agent outside, pilots in its namespace."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.timing import Values, merged
from tests.worlds.batch.slurm_cluster import UID, SlurmCluster
from tests.worlds.home.world import FINAL, Options, World

from tidemill.wire.api import JobDetail

SITE = """batch = "slurm"
contact = "operator@example.org"
{top}
[cluster]
partition = "{partition}"
calls_per_min_max = 1200
{cluster_keys}
[harvest]
{harvest}
"""
TIMING: Values = {
    "batch": {"UNKNOWN_S": 3},
    "site": {"CYCLE_S": 1, "STARTUP_S": 0.5, "START_BY_S": 60, "STARTS_PER_NODE_HOUR": 7200},
}
"""Besides that of all worlds."""


class SlurmWorld(World):
    """One home of `nobody`; the tests, being root, read its files and ask its server by its own commands."""

    def ask(self, *words: str) -> Any:
        """What `tidemill WORDS --json` prints."""
        done = self.run(*words, "--json")
        if done.returncode:
            pytest.fail(f"`tidemill {' '.join(words)}`: {done.stderr}{done.stdout}\n{self.tails()}")
        return json.loads(done.stdout)

    def submit_file(self, text: str) -> None:
        """Submit a job file."""
        path = self.home / "me" / "job.toml"
        path.write_text(text)
        path.chmod(0o644)
        self.ask("submit", str(path))

    def jobs(self, campaign: str) -> list[dict[str, Any]]:
        """The campaign's jobs."""
        rows: list[dict[str, Any]] = self.ask("jobs", "--campaign", campaign)
        return rows

    def wait_jobs(self, campaign: str, timeout_s: float = 120.0) -> list[JobDetail]:
        """The campaign's jobs when all of them have ended."""

        def ended() -> bool:
            rows = self.jobs(campaign)
            return bool(rows) and all(row["state"] in FINAL for row in rows)

        self.wait_for(ended, f"campaign {campaign} ends", timeout_s)
        shown = [self.ask("job", "show", str(row["id"])) for row in self.jobs(campaign)]
        return [msgspec.convert(each, JobDetail) for each in shown]


@contextlib.contextmanager
def slurm_world(
    cluster: SlurmCluster,
    *,
    partition: str = "batch",
    top: str = "",
    cluster_keys: str = "",
    harvest: str = "",
    timing: Values | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[SlurmWorld]:
    """A running Tidemill that harvests the cluster's `partition`; ended and removed afterwards.

    `top`: further keys of site.toml; `cluster_keys`, `harvest`: of its tables.
    """
    binary = cluster.directory / "tidemill-node"
    if not binary.exists():
        shutil.copy(Path(sys.executable).parent / "tidemill-node", binary)
        binary.chmod(0o755)
    extra = SITE.format(partition=partition, top=top, cluster_keys=cluster_keys, harvest=harvest)
    options = Options(
        nodes=64,
        user=UID,
        extra=extra,
        timing=merged(TIMING, timing or {}),
        environment={
            "SLURM_CONF": str(cluster.conf),
            "TIDEMILL_NODE_BINARY": str(binary),
            **(environment or {}),
        },
        parent=cluster.directory,
    )
    home = Path(tempfile.mkdtemp(prefix="h-", dir=cluster.directory))
    it = SlurmWorld(home, options)
    try:
        it.start()
        yield it
    finally:
        it.stop()
        shutil.rmtree(home, ignore_errors=True)
