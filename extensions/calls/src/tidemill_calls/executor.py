"""A `concurrent.futures.Executor` whose calls run in workers: jobs that take call after call, where a site allows it.

    from tidemill import Executor

    with Executor() as pool:
        print(list(pool.map(math.sqrt, range(200))))

Workers run this very interpreter (`sys.executable`) with this very `sys.path`, and connect to this process: nodes must
see the one and reach the other, so this is for a laptop, one's own account or a cluster, not for far sites.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor as BaseExecutor
from pathlib import Path
from typing import ParamSpec, TypedDict, TypeVar, Unpack

import msgspec

from tidemill.client.client import Client, new_campaign
from tidemill.errors import ConfigError
from tidemill.files import make_private
from tidemill.model.campaign.workers import WORKER_NAME
from tidemill.model.job import Input, JobSpec, Resources
from tidemill_calls.call import CallError, CallFuture, CallTimeoutError, RemoteTraceback, pickled
from tidemill_calls.crew import Crew
from tidemill_calls.functions import FunctionPickles
from tidemill_calls.switchboard import Switchboard

P = ParamSpec("P")
T = TypeVar("T")

__all__ = ["CallError", "CallFuture", "CallTimeoutError", "Executor", "ExecutorOptions", "RemoteTraceback"]

WORKER_S = 60.0  #: a worker needs an allocation that lasts at least this long
IDLE_S = 60.0


class ExecutorOptions(TypedDict, total=False):
    """Optional arguments of `Executor`."""

    workers: int  #: at most this number at once (default: the number of slots of the sites)
    resources: Resources  #: of each worker: cores, memory_mb, devices (default: one core)
    site: str  #: run only there (default: any)
    campaign: str  #: the workers' campaign (default: a new one)
    timeout_s: float  #: a call that runs for longer is killed (default: none)
    retries: int  #: tries after the first of a call whose process died (default: 0)
    idle_s: float  #: a worker without calls leaves after this time (default: 60)
    listen: str  #: where workers connect: `tcp:HOST`, `unix:PATH` (default: loopback for your own site, else this host)


class Executor(BaseExecutor):
    """Runs calls on a server's sites, in workers that keep what they have imported.

    Each future resolves when its own call ends. `cancel` also ends calls that run. A call whose worker is lost (its
    node was released, the server was restarted) runs again: calls run at least once. An exception is a result and is
    never retried. `submit` raises ConfigError for objects that cannot be pickled.
    """

    def __init__(self, client: Client | None = None, **options: Unpack[ExecutorOptions]) -> None:
        self.client = client or Client()
        self.campaign = options.get("campaign") or new_campaign("calls")
        self._scratch = _scratch(self.client.home)
        self._board = Switchboard(
            self._scratch,
            timeout_s=options.get("timeout_s"),
            retries=options.get("retries", 0),
            idle_s=options.get("idle_s", IDLE_S),
            path=[str(Path(each).absolute()) for each in sys.path],
        )
        pool_file = self._write_pool(options.get("listen"))
        self._crew = Crew(
            self.client,
            self._board,
            _spec(pool_file, options.get("resources"), options.get("site")),
            campaign=self.campaign,
            workers_max=options.get("workers") or _slots(self.client, options.get("resources")),
        )
        self._is_shut = False
        self._functions = FunctionPickles()
        self._board.start(self._crew.why, self._crew.ring)
        self._crew.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> CallFuture[T]:
        """A future of `fn(*args, **kwargs)`."""
        spool = pickled((fn, args, kwargs), self._scratch, self._functions)
        future: CallFuture[T] = CallFuture(self._board.cancelled)
        try:
            self._board.add(spool, future)
        except RuntimeError:
            spool.close()
            raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. `wait` for the results; `cancel_futures` cancels the calls that are not over."""
        self._board.close(cancel=cancel_futures)
        if wait and not self._is_shut:
            self._is_shut = True
            self._board.join()
            self._crew.end()
            shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def workers(self) -> int:
        """How many workers are connected now."""
        return self._board.connected()

    def _write_pool(self, listen: str | None) -> Path:
        """Write the file with the address and the key that workers connect with; only this user can read it."""
        if listen is None:
            is_own = self.client.place.address.startswith("unix:")
            listen = "tcp:127.0.0.1" if is_own else f"tcp:{socket.getfqdn()}"
        try:
            address = self._board.listen(listen)
        except OSError as error:
            raise ConfigError(
                f"failed to listen at `{listen}`: {error}",
                hint='pass `listen="tcp:HOST"` with an address of this machine',
            ) from error
        file = self._scratch / "pool"
        with open(file, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
            json.dump({"addresses": [address], "key": self._board.key.hex()}, out)
        return file


def _spec(pool_file: Path, resources: Resources | None, site: str | None) -> JobSpec:
    asked = resources or Resources()
    root = str(Path(__file__).parents[1])
    return JobSpec(
        command=[sys.executable, "-m", "tidemill_calls.worker", "pool"],
        name=WORKER_NAME,
        inputs=[Input(name="pool", url=pool_file.as_uri())],
        outputs=[],
        resources=msgspec.structs.replace(asked, event_s=asked.event_s or WORKER_S),
        retries=0,
        site=site,
        env={**_environment(), "PYTHONPATH": os.pathsep.join([root, *_python_path()])},
    )


def _slots(client: Client, resources: Resources | None) -> int:
    """How many workers the sites can run at once, at least one."""
    cores = (resources.cores if resources else None) or 1
    shapes = [
        (each.capacity.get("nodes", 1), each.capacity.get("slot_cores_max", 1)) for each in client.sites()
    ]
    if not shapes:  # a site that starts has not been heard yet
        return max(1, len(os.sched_getaffinity(0)) // cores)
    return max(1, sum(int(nodes) * (int(node_cores) // cores) for nodes, node_cores in shapes))


def _scratch(home: Path) -> Path:
    """A directory of this executor in the home: sites of other machines that share the home can read it."""
    parent = home / "executor"
    make_private(parent, failure=ConfigError)
    try:
        return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
    except OSError as error:
        raise ConfigError(f"failed to create a directory in `{parent}`: {error.strerror}") from error


def _environment() -> dict[str, str]:
    names = ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
    return {name: os.environ[name] for name in names if name in os.environ}


def _python_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
