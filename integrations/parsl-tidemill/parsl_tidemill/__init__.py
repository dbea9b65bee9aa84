"""`TidemillProvider`: Parsl's blocks as Tidemill jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parsl.jobs.states import JobState, JobStatus
from parsl.providers.base import ExecutionProvider
from parsl.providers.errors import SubmitException
from parsl.utils import RepresentationMixin

from tidemill import Client, JobSpec, Resources, TidemillError
from tidemill.client.client import new_campaign

__all__ = ["TidemillProvider"]

PASSED = ("PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
BLOCK_S = 60.0  #: a block needs an allocation that lasts at least this long
STATES = {
    "WAITING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "COMPLETED": JobState.COMPLETED,
    "PARTIAL": JobState.FAILED,
    "FAILED": JobState.FAILED,
    "CANCELED": JobState.CANCELLED,
}


class TidemillProvider(ExecutionProvider, RepresentationMixin):
    """A block is a Tidemill job of one event, in a slot of `cores` cores.

    `memory_mb` None = the site's; `site` None = any; `tidemill` None = the server that `tidemill` finds.
    """

    def __init__(
        self,
        cores: int = 1,
        memory_mb: int | None = None,
        site: str | None = None,
        init_blocks: int = 1,
        min_blocks: int = 0,
        max_blocks: int = 10,
        parallelism: float = 1.0,
        worker_init: str = "",
        tidemill: Client | None = None,
    ) -> None:
        self.cores, self.memory_mb, self.site = cores, memory_mb, site
        self.init_blocks, self.min_blocks, self.max_blocks = init_blocks, min_blocks, max_blocks
        self.parallelism, self.worker_init, self.nodes_per_block = parallelism, worker_init, 1
        self.tidemill = tidemill
        self._client = tidemill or Client()
        self._campaign = new_campaign("parsl")
        self.script_dir: str | None = None
        self.resources: dict[object, Any] = {}

    @property
    def label(self) -> str:
        """The provider's name."""
        return "tidemill"

    @property
    def cores_per_node(self) -> int:
        """Cores of a block."""
        return self.cores

    @cores_per_node.setter
    def cores_per_node(self, value: int | None) -> None:
        pass  # as the base class wants; a block has `cores`

    @property
    def mem_per_node(self) -> float | None:
        """Memory of a block, GB."""
        return None if self.memory_mb is None else self.memory_mb / 1000

    @mem_per_node.setter
    def mem_per_node(self, value: float | None) -> None:
        pass

    @property
    def status_polling_interval(self) -> int:
        """Seconds between polls."""
        return 2

    def submit(self, command: str, tasks_per_node: int, job_name: str = "parsl") -> object:
        """Submit a block; its id."""
        text = f"cd {Path.cwd()!s} && {self.worker_init}\n{command}" if self.worker_init else command
        spec = JobSpec(
            command=["/bin/bash", "-c", text],
            name="block",
            outputs=[],
            retries=0,
            resources=Resources(cores=self.cores, memory_mb=self.memory_mb, event_s=BLOCK_S),
            site=self.site,
            env={name: os.environ[name] for name in PASSED if name in os.environ},
        )
        try:
            (job,) = self._client.submit(spec, campaign=self._campaign).jobs
        except TidemillError as error:
            raise SubmitException(job_name, error.message) from error
        return str(job)

    def status(self, job_ids: Sequence[object]) -> list[JobStatus]:
        """State of each block."""
        return [self._status(int(str(each))) for each in job_ids]

    def _status(self, job: int) -> JobStatus:
        try:
            row = self._client.job(job).row
        except TidemillError as error:
            return JobStatus(JobState.UNKNOWN, message=error.message)
        return JobStatus(STATES.get(row.state, JobState.UNKNOWN), message=row.reason or None)

    def cancel(self, job_ids: Sequence[object]) -> list[bool]:
        """Cancel blocks."""
        try:
            self._client.cancel([int(str(each)) for each in job_ids], reason="Parsl scales in")
        except TidemillError:
            return [False for _ in job_ids]
        return [True for _ in job_ids]
