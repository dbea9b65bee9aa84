"""A real slurmdbd with MariaDB on this machine for tests: `scripts/slurmdbd.sh`, and jobs as slurmctld records them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.worlds.batch.slurm_cluster import UID

from tidemill_study.accounting.sacct import COLUMNS

SCRIPT = Path(__file__).parents[4] / "scripts" / "slurmdbd.sh"
RUNNING, COMPLETED, CANCELED, REQUEUED = 1, 3, 4, 1024
"""Words of the column `state`, as slurmdbd 22.05.8 writes them."""
NO_TASK = 4294967294  #: of a job outside of any array
ROWS_AT_ONCE = 2000


@dataclass(frozen=True, kw_only=True)
class Record:
    """A row of slurmdbd's table of jobs. Times in seconds since 1970; `end_s` 0: it runs. `array`: (number, task)."""

    id: int
    submit_s: int
    start_s: int
    end_s: int
    nodes: int
    cores: int
    limit_min: int
    state: int = COMPLETED
    array: tuple[int, int] | None = None

    def row(self) -> dict[str, int | str]:
        """The row's columns, as slurmctld 22.05.8 filled them for jobs that it ran (arrays, requeued ones, one that was
        canceled before its start). Those that are left out have a default in the table."""
        number, task = self.array or (0, NO_TASK)
        asked = f"1={self.cores},2={4000 * self.nodes},4={self.nodes},5={self.cores}"
        ran = self.state != CANCELED
        return {
            "id_job": self.id, "id_array_job": number, "id_array_task": task, "id_user": UID, "id_group": UID,
            "id_assoc": 0, "id_qos": 1, "id_resv": 0, "id_wckey": 0, "het_job_id": 0, "het_job_offset": NO_TASK,
            "job_name": "job", "partition": "batch", "priority": 100, "state": self.state, "state_reason_prev": 0,
            "cpus_req": self.cores, "timelimit": self.limit_min,
            "nodelist": f"n[1-{self.nodes}]" if ran else "None assigned", "nodes_alloc": self.nodes if ran else 0,
            "tres_req": asked, "tres_alloc": asked if ran else "",
            "time_submit": self.submit_s, "time_eligible": self.submit_s,
            "time_start": self.start_s, "time_end": self.end_s,
        }  # fmt: skip


def insertion(records: Sequence[Record]) -> str:
    """One statement of SQL for all of them."""
    rows = [record.row() for record in records]
    names = ",".join(f"`{name}`" for name in rows[0])
    values = (",".join(f"'{value}'" for value in row.values()) for row in rows)
    return (
        f"insert into tidemill_job_table ({names}) values\n"
        + ",\n".join(f"({each})" for each in values)
        + ";\n"
    )


class SlurmDatabase:
    """slurmdbd, MariaDB and munged of the cluster `tidemill`. `env`: in it sacct asks them; times are in UTC."""

    def __init__(self) -> None:
        """Start them. Skips the test where they cannot run, which fails in CI."""
        self.directory = Path(tempfile.mkdtemp(prefix="tm-db-"))
        self.directory.chmod(0o755)
        self.place = self.directory / "d"
        done = subprocess.run([SCRIPT, "start", self.place], capture_output=True, text=True, check=False)
        if done.returncode:
            self.stop()
            reason = f"slurmdbd does not start: {done.stderr.strip()}"
            pytest.skip(reason)
        self.conf = Path(done.stdout.strip())

    @property
    def env(self) -> dict[str, str]:
        """Environment of programs that ask this slurmdbd."""
        return {**os.environ, "SLURM_CONF": str(self.conf), "TZ": "UTC"}

    def load(self, records: Sequence[Record]) -> None:
        """Put past jobs into the table, as `sacctmgr archive load` does."""
        path = self.directory / "jobs.sql"
        with path.open("w") as file:
            for first in range(0, len(records), ROWS_AT_ONCE):
                file.write(insertion(records[first : first + ROWS_AT_ONCE]))
        subprocess.run([SCRIPT, "load", self.place, path], check=True, capture_output=True, text=True)

    def sacct(self, *words: str, columns: str = COLUMNS) -> str:
        """What sacct prints in the form of the documentation."""
        command = ["sacct", "-a", "-D", "-X", "-P", "--noconvert", "-o", columns, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=self.env, timeout=60)
        return done.stdout

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """A while in which it does not answer; what it knows is there afterwards."""
        subprocess.run([SCRIPT, "stop", self.place], check=True, capture_output=True)
        yield
        subprocess.run([SCRIPT, "start", self.place], check=True, capture_output=True)

    def stop(self) -> None:
        """End all three, and remove their folder."""
        subprocess.run([SCRIPT, "stop", self.place], check=True, capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)
