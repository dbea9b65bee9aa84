"""A `concurrent.futures.Executor` whose calls run as events of ad-hoc jobs, where a site allows these.

    from tidemill.client import Executor

    with Executor() as pool:
        print(list(pool.map(math.sqrt, range(200))))

Calls made within 50 ms become one job; each call is an event. Payloads run this very interpreter (`sys.executable`)
with this very `sys.path`: the node must see both, so this is for a laptop, one's own account or a shared software
area, not for far sites. Functions travel by cloudpickle where it is installed, so that lambdas and functions of
`__main__` work; otherwise by pickle, which wants functions that can be imported.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor as BaseExecutor
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from tidemill import clock
from tidemill.client.call import dumps, read_results, write_calls
from tidemill.client.client import FINAL, Client, new_campaign
from tidemill.client.outputs import members
from tidemill.errors import ConfigError, JobError, TidemillError, is_transient
from tidemill.log import Log
from tidemill.model.job import Input, JobSpec, Output, Resources
from tidemill.wire.api import JobRow

P = ParamSpec("P")
T = TypeVar("T")

GATHER_S = 0.05  #: calls made within so long become one job
CALLS_MAX = 10_000  #: calls of one job at most
CALL_S = 0.1  #: first guess of one call's duration, until measured; decides how many share a process
POLL_S = 0.05

_log = Log("executor")


class CallError(JobError):
    """The process that ran a call died (signal, memory, time limit); the message holds the evidence."""


class _Batch(msgspec.Struct, kw_only=True):
    """Calls that become one job."""

    futures: list[Future[Any]]
    directory: Path
    spec: JobSpec
    key: str  #: sent again under the same one, so that it is never two jobs
    job: int = 0  #: 0 = the server has not taken it yet
    canceled: bool = False


class Executor(BaseExecutor):
    """Runs calls on a server's sites. `cores`, `memory_mb`: of each call. `site`: run only there.

    `retries`: how often a call whose process died is tried again; an exception is a result and never retried.
    Raises ConfigError from `submit` for what cannot be pickled.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        resources: Resources | None = None,
        site: str | None = None,
        campaign: str | None = None,
        retries: int = 0,
    ) -> None:
        self.client = client or Client()
        self.campaign = campaign or new_campaign("calls")
        told = resources or Resources()
        self._resources = msgspec.structs.replace(told, event_s=told.event_s or CALL_S)
        self._site = site
        self._retries = retries
        self._dumps = dumps()
        self._lock = threading.Condition()
        self._gathered: list[tuple[bytes, Future[Any]]] = []
        self._closed = False
        self._scratch = _scratch(self.client.home)
        self._thread = threading.Thread(target=self._run, name="tidemill-executor", daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """A future of `fn(*args, **kwargs)`."""
        try:
            call = self._dumps((fn, args, kwargs))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"failed to pickle the call of `{getattr(fn, '__qualname__', fn)}`: {error}",
                hint="`pip install cloudpickle` makes lambdas and local functions work",
            ) from error
        if self._dumps is pickle.dumps and getattr(fn, "__module__", None) == "__main__":
            raise ConfigError(
                f"`{fn.__qualname__}` is a function of `__main__`, which a payload cannot import",
                hint="`pip install cloudpickle`, or move the function to a module",
            )
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("this executor was shut down")
            self._gathered.append((call, future))
            self._lock.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. `wait` for the results; `cancel_futures` cancels the jobs that still run."""
        with self._lock:
            self._closed = True
            if cancel_futures:
                for _, future in self._gathered:
                    future.cancel()
            self._cancel_all = cancel_futures
            self._lock.notify()
        if wait:
            self._thread.join()

    # ---- the thread ------------------------------------------------------------------------------------------

    _cancel_all = False
    _is_away = False  #: the server, at the last call

    def _run(self) -> None:
        """Ships what was gathered, and settles the jobs that have ended, until shut down and empty."""
        batches: list[_Batch] = []
        try:
            while True:
                calls, closed = self._gather(bool(batches))
                if calls:
                    batches.extend(self._ship(calls))
                self._cancel_unwanted(batches)
                batches = self._settle(batches)
                if closed and not batches and not self._gathered:
                    return
        except BaseException as error:
            self._give_up(batches, error)
            raise
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _give_up(self, batches: list[_Batch], error: BaseException) -> None:
        """Nobody waits for ever for a thread that has died of a bug."""
        with self._lock:
            self._closed = True
            futures = [future for _, future in self._gathered]
        for future in [*futures, *(future for batch in batches for future in batch.futures)]:
            if not future.done():
                _fail(future, error)

    def _gather(self, busy: bool) -> tuple[list[tuple[bytes, Future[Any]]], bool]:
        with self._lock:
            if not self._gathered and (busy or not self._closed):
                self._lock.wait(POLL_S if busy else None)
            end = clock.monotonic_s() + GATHER_S
            while 0 < len(self._gathered) < CALLS_MAX and not self._closed:
                left = end - clock.monotonic_s()
                if left <= 0:
                    break
                self._lock.wait(left)
            taken, self._gathered = self._gathered[:CALLS_MAX], self._gathered[CALLS_MAX:]
            return [each for each in taken if not each[1].cancelled()], self._closed

    def _ship(self, calls: list[tuple[bytes, Future[Any]]]) -> list[_Batch]:
        futures = [future for _, future in calls]
        try:
            directory = Path(tempfile.mkdtemp(dir=self._scratch))
            path = directory / "calls"
            with path.open("wb") as file:
                write_calls(
                    file, [call for call, _ in calls], [str(Path(each).absolute()) for each in sys.path]
                )
        except OSError as error:
            for future in futures:
                _fail(future, error)
            return []
        spec = self._spec(path, len(calls))
        return [_Batch(futures=futures, directory=directory, spec=spec, key=uuid.uuid4().hex)]

    def _spec(self, calls: Path, count: int) -> JobSpec:
        command = [
            sys.executable,
            "-m",
            "tidemill.client.call",
            "calls",
            "results",
            "{first_event}",
            "{events}",
        ]
        root = str(Path(__file__).parents[2])
        return JobSpec(
            command=command,
            name="calls",
            events=count,
            inputs=[Input(name="calls", url=calls.as_uri())],
            outputs=[Output(name="results", path="results")],
            output_dir=str(calls.parent),
            resources=self._resources,
            failed_max=count,
            retries=self._retries,
            site=self._site,
            env={**_environment(), "PYTHONPATH": os.pathsep.join([root, *_python_path()])},
        )

    def _cancel_unwanted(self, batches: list[_Batch]) -> None:
        """Cancel the jobs nobody waits for: all their futures are cancelled, or the executor is shut down so."""
        for batch in batches:
            if self._cancel_all:
                for future in batch.futures:
                    future.cancel()
            if batch.job and not batch.canceled and _is_unwanted(batch):
                self._cancel_job(batch)

    def _settle(self, batches: list[_Batch]) -> list[_Batch]:
        """Send what is not sent, take what has ended; the others. While the server is away, calls wait for it."""
        left = []
        for batch in batches:
            try:
                has_ended = self._step(batch)
                self._is_away = False
            except (TidemillError, OSError) as error:
                has_ended = not is_transient(error) or _is_unwanted(batch)
                if has_ended:
                    for future in batch.futures:
                        _fail(future, error)
                elif not self._is_away:
                    self._is_away = True
                    _log.warning("executor.waits", error=str(error))
            if has_ended:
                shutil.rmtree(batch.directory, ignore_errors=True)
            else:
                left.append(batch)
        return left

    def _step(self, batch: _Batch) -> bool:
        """Whether the batch is over, with all its futures resolved."""
        if not batch.job:
            if _is_unwanted(batch):
                return True
            batch.job = self.client.submit(batch.spec, campaign=self.campaign, key=batch.key).jobs[0]
        row = self.client.job(batch.job).row
        if row.state not in FINAL:
            return False
        self._resolve(batch, row)
        return True

    def _resolve(self, batch: _Batch, row: JobRow) -> None:
        found: dict[int, bytes] = {}
        for delivered in self.client.outputs(job=batch.job):
            for member in members(batch.job, delivered.output):
                found.update(enumerate(read_results(member.data), start=member.first or 0))
        failures = {
            each.event: each for each in self.client.failures(job=batch.job, limit=1000) if each.final
        }
        for event, future in enumerate(batch.futures):
            if not future.set_running_or_notify_cancel():
                continue
            if event in found:
                _set_result(future, found[event])
                continue
            failure = failures.get(event) or next(iter(failures.values()), None)
            why = failure.evidence.message if failure else row.reason or f"its job ended {row.state}"
            tail = f"\n{failure.evidence.stderr_tail}" if failure and failure.evidence.stderr_tail else ""
            future.set_exception(
                CallError(f"call {event} of job {batch.job} gave no result: {why}{tail}", hint=None)
            )

    def _cancel_job(self, batch: _Batch) -> None:
        try:
            self.client.cancel([batch.job], reason="its futures were canceled")
        except TidemillError as error:
            _log.warning("executor.cancel_failed", job=batch.job, error=error.message)
        else:
            batch.canceled = True


def _set_result(future: Future[Any], content: bytes) -> None:
    try:
        good, value, *where = pickle.loads(content)
    except Exception as error:  # noqa: BLE001 -- a class that cannot be loaded here: the caller has to know
        future.set_exception(error)
        return
    if good:
        future.set_result(value)
        return
    value.__cause__ = RemoteTraceback(where[0])
    future.set_exception(value)


class RemoteTraceback(Exception):
    """The traceback of the payload, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _is_unwanted(batch: _Batch) -> bool:
    return all(future.cancelled() for future in batch.futures)


def _fail(future: Future[Any], error: BaseException) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def _scratch(home: Path) -> Path:
    """A directory of this executor in the home: sites of other machines that share the home can read it."""
    parent = home / "executor"
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
    except OSError as error:
        raise ConfigError(f"failed to create a directory in `{parent}`: {error.strerror}") from error


def _environment() -> dict[str, str]:
    names = ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
    return {name: os.environ[name] for name in names if name in os.environ}


def _python_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
