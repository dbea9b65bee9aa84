"""`TidemillCluster`: a Dask cluster whose workers are Tidemill jobs, one each."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import dask
from dask.utils import parse_bytes
from distributed.deploy.spec import ProcessInterface, SpecCluster
from distributed.scheduler import Scheduler
from distributed.security import Security

from tidemill import Client, Input, JobSpec, Resources, TidemillError
from tidemill.client.client import new_campaign

__all__ = ["TidemillCluster", "TidemillWorker"]

PASSED = ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
WORKER_S = 60.0  #: a worker needs an allocation that lasts at least this long
LOST_S = "1 hour"
"""Tidemill starts a lost worker's job again, when a node is free. Dask would give the worker up, and this module cancel
its job, after 15 s. An hour, because a worker whose job has failed holds its place in `scale` as long."""
DEATH_S = "60"  #: a worker that has lost its scheduler leaves after this


class TidemillWorker(ProcessInterface):
    """One Dask worker: a Tidemill job of one event."""

    def __init__(
        self, scheduler: str, name: str | None = None, options: dict[str, Any] | None = None
    ) -> None:
        self.options = options or {}
        self.worker_name = name
        self.job: int | None = None
        self.scheduler_address = scheduler
        super().__init__(scheduler=scheduler, name=name)

    async def start(self) -> None:
        """Submit the job."""
        asked = self.options
        tidemill: Client = asked["tidemill"]
        cores: int = asked["cores"]
        command = [
            sys.executable, "-m", "distributed.cli.dask_worker", self.scheduler_address,
            "--name", str(self.worker_name),
            "--nthreads", str(cores), "--protocol", "tls",
            "--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--no-nanny", "--death-timeout", DEATH_S,
            "--local-directory", "/tmp",
        ]  # fmt: skip
        if asked["memory"] is not None:
            command += ["--memory-limit", str(asked["memory"])]
        inputs = []
        for option, path in asked["tls"].items():
            inputs.append(Input(name=Path(path).name, url=Path(path).absolute().as_uri()))
            command += [f"--{option}", Path(path).name]
        spec = JobSpec(
            command=command,
            name="dask-worker",
            inputs=inputs,
            outputs=[],
            retries=0,
            resources=Resources(
                cores=cores,
                memory_mb=None if asked["memory"] is None else -(-asked["memory"] // 1_000_000),
                event_s=WORKER_S,
            ),
            site=asked["site"],
            env={
                "DASK_DISTRIBUTED__WORKER__HTTP__ROUTES": "[]",
                "PYTHONPATH": _module_path(),
                **{name: os.environ[name] for name in PASSED if name in os.environ},
            },
        )
        sent = await asyncio.to_thread(tidemill.submit, spec, campaign=asked["campaign"])
        self.job = sent.jobs[0]
        await super().start()

    async def close(self) -> None:
        """Cancel the job."""
        if self.job is not None:
            job, self.job = self.job, None
            try:
                await asyncio.to_thread(
                    self.options["tidemill"].cancel, [job], reason="its Dask cluster closed it"
                )
            except TidemillError as error:
                print(f"failed to cancel Tidemill job {job}: {error.message}", file=sys.stderr)  # noqa: T201
        await super().close()


class TidemillCluster(SpecCluster):
    """A Dask cluster in Tidemill's nodes. See the README for the arguments."""

    def __init__(
        self,
        cores: int = 1,
        memory: str | int | None = None,
        *,
        n_workers: int = 0,
        security: Security | None = None,
        **more: Any,
    ) -> None:
        tidemill: Client = more.pop("tidemill", None) or Client()
        is_own = tidemill.place.address.startswith("unix:")
        host = more.pop("host", None) or ("127.0.0.1" if is_own else "0.0.0.0")
        security = security or Security.temporary()
        if not security.require_encryption:
            raise ValueError(
                "`security` does not require encryption: a scheduler without it runs anything that any user of this "
                "machine sends; leave `security` out, or pass `Security.temporary()`"
            )
        self.campaign = more.pop("campaign", None) or new_campaign("dask")
        self._tls = tempfile.TemporaryDirectory(prefix="dask-", dir=_shared(tidemill))
        options = {
            "tidemill": tidemill,
            "cores": cores,
            "memory": None if memory is None else parse_bytes(memory),
            "site": more.pop("site", None),
            "campaign": self.campaign,
            "tls": _tls_files(security, Path(self._tls.name)),
        }
        self._new = {"cls": TidemillWorker, "options": {"options": options}}
        scheduler = {
            "cls": Scheduler,
            "options": {"host": host, "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0",
                        "security": security, "protocol": "tls"},
        }  # fmt: skip
        dask.config.set({"distributed.scheduler.http.routes": []})  # its HTTP port asks for no credential
        dask.config.set({"distributed.deploy.lost-worker-timeout": LOST_S})
        super().__init__(
            workers={k: self._new for k in range(n_workers)}, scheduler=scheduler, worker=self._new,
            security=security, name=self.campaign, **more,
        )  # fmt: skip

    async def _close(self) -> None:
        await super()._close()
        self._tls.cleanup()


def _module_path() -> str:
    """Where this process finds modules: a worker that cannot import a task's function loses its connection and ends."""
    return os.pathsep.join(str(Path(each).absolute()) for each in sys.path)


def _shared(tidemill: Client) -> Path:
    """A directory of the user's alone that sites can read."""
    path = tidemill.home / "executor"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def _tls_files(security: Security, directory: Path) -> dict[str, str]:
    """Options of the worker's command line and the files that they name; temporary credentials are written to files
    that only the user can read."""
    found: dict[str, str] = {}
    held: dict[str, Any] = security.get_tls_config_for_role("worker")
    for option, key in (("tls-ca-file", "ca_file"), ("tls-cert", "cert"), ("tls-key", "key")):
        value = held[key]
        if value is None:
            continue
        path = str(value)
        if "-----BEGIN" in path:
            file = directory / f"{option}.pem"
            file.touch(mode=0o600)
            file.write_text(path)
            path = str(file)
        found[option] = path
    return found
