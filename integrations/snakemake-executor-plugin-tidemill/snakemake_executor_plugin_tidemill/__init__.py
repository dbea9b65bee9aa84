"""Snakemake's executor `tidemill`: each Snakemake job or group of jobs is a Tidemill job of one event."""

import os
import shlex
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from tidemill import Client, JobSpec, Resources, TidemillError
from tidemill.client.client import new_campaign
from tidemill.client.ended import FINAL

OWN_MB = 300
"""Memory for Snakemake itself, which runs in the job beside the program. Measured with 9.27: 100 MB for one rule or a
group of shell rules, 220 MB for a group in which two `run:` rules run at the same time."""
PASSED = ("PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "XDG_CACHE_HOME")


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Options of the command line, `--tidemill-...`."""

    server: Optional[str] = field(  # noqa: UP045 -- Snakemake reads it
        default=None,
        metadata={"help": "Address of the Tidemill server (default: as for `tidemill`)", "env_var": False},
    )
    site: Optional[str] = field(  # noqa: UP045 -- Snakemake reads it
        default=None, metadata={"help": "Run only at this site (default: any)", "env_var": False}
    )
    campaign: Optional[str] = field(  # noqa: UP045 -- Snakemake reads it
        default=None,
        metadata={"help": "Name of the campaign (default: `snakemake-` and the time)", "env_var": False},
    )


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=True,
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=1,
)


class Executor(RemoteExecutor):
    """Submits jobs, and asks the server for those that have ended."""

    def __post_init__(self) -> None:
        """Find the server."""
        settings: ExecutorSettings = self.workflow.executor_settings or ExecutorSettings()
        self._site = settings.site
        self._campaign = settings.campaign or new_campaign("snakemake")
        try:
            self._client = Client(settings.server)
            self._client.health()
        except TidemillError as error:
            raise WorkflowError(
                f"no Tidemill server can be used: {error.message} (hint: {error.hint})"
            ) from error
        self.logger.info(f"Tidemill: jobs are submitted as campaign {self._campaign}")

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit one job."""
        site = job.resources.get("tidemill_site", self._site)
        try:
            spec = JobSpec(
                command=[
                    "/bin/bash",
                    "-c",
                    f"cd {shlex.quote(str(Path.cwd()))} && {self.format_job_exec(job)}",
                ],
                name=_name(job),
                outputs=[],
                resources=self._fitted(_resources(job), site) if job.is_group() else _resources(job),
                retries=0,
                site=site,
                env={name: os.environ[name] for name in PASSED if name in os.environ},
            )
            (number,) = self._client.submit(spec, campaign=self._campaign).jobs
        except TidemillError as error:
            raise WorkflowError(f"failed to submit {_name(job)} to Tidemill: {error.message}") from error
        self.report_job_submission(SubmittedJobInfo(job=job, external_jobid=str(number)))

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report jobs that have ended; yield the others."""
        try:
            states = self._states([int(each.external_jobid or 0) for each in active_jobs])
        except TidemillError as error:
            if not getattr(error, "transient", False):
                raise
            self.logger.warning(f"Tidemill's server does not answer; jobs go on meanwhile: {error.message}")
            states = {}
        for each in active_jobs:
            number = int(each.external_jobid or 0)
            state = states.get(number, "WAITING")
            if state not in FINAL:
                yield each
            elif state == "COMPLETED":
                self.report_job_success(each)
            else:
                self.report_job_error(each, msg=f"Tidemill job {number} is {state}: {self._why(number)}\n")

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel what was submitted."""
        numbers = [int(each.external_jobid or 0) for each in active_jobs]
        if numbers:
            try:
                self._client.cancel(numbers, reason="the Snakemake workflow was cancelled")
            except TidemillError as error:
                self.logger.error(f"failed to cancel {len(numbers)} Tidemill jobs: {error.message}")

    def _states(self, numbers: Sequence[int]) -> dict[int, str]:
        return {row.id: row.state for row in self._client.rows(numbers)}

    def _fitted(self, asked: Resources, site: str | None) -> Resources:
        """A group asks for the sum of what may run at the same time in it; in a smaller slot less of it does."""
        shapes = [each.capacity for each in self._client.sites() if site in (None, each.name)]
        slots = [
            (int(each.get("slot_cores_max", 0)), int(each.get("slot_memory_mb_max", 0))) for each in shapes
        ]
        cores, memory = max(slots, default=(0, 0))
        return Resources(
            cores=min(asked.cores or 1, cores) if cores else asked.cores,
            memory_mb=min(asked.memory_mb, memory) if asked.memory_mb and memory else asked.memory_mb,
            devices=asked.devices,
            timeout_s=asked.timeout_s,
        )

    def _why(self, number: int) -> str:
        try:
            for failure in self._client.failures(job=number, limit=1):
                tail = f"\n{failure.evidence.stderr_tail}" if failure.evidence.stderr_tail else ""
                return f"{failure.evidence.message}{tail}"
            return str(self._client.job(number).row.reason)
        except TidemillError as error:
            return error.message


def _name(job: JobExecutorInterface) -> str:
    return f"group-{job.jobid}" if job.is_group() else f"{job.name}-{job.jobid}"


def _resources(job: JobExecutorInterface) -> Resources:
    """What a rule asks for, in Tidemill's words; group jobs come with sums and maxima that Snakemake has worked out."""
    asked: dict[str, Any] = dict(job.resources)
    runtime = asked.get("runtime")
    gpus = asked.get("gpu")
    memory = asked.get("mem_mb")
    return Resources(
        cores=int(job.threads),
        memory_mb=int(memory) + OWN_MB if isinstance(memory, int) and memory > 0 else None,
        devices={"gpu": int(gpus)} if isinstance(gpus, int) and gpus > 0 else None,
        timeout_s=60 * int(runtime) if isinstance(runtime, int) and runtime > 0 else None,
    )
