"""The jobs of an executor's workers: as many as its calls can use, started again where they end, and not kept after it.

A thread of its own, so that a server that is slow or away delays no call of the workers that run.
"""

from __future__ import annotations

import threading
import uuid

from tidemill import clock
from tidemill.client.client import Client
from tidemill.client.ended import FINAL
from tidemill.errors import TidemillError, is_transient
from tidemill.log import Log
from tidemill.model.job import JobSpec
from tidemill.wire.api import JobRow
from tidemill.wire.server_connection import NotFoundError
from tidemill_calls.call import CallError
from tidemill_calls.switchboard import Switchboard

LOOK_S = 0.2
POLL_S = 2.0  #: interval between two queries of the jobs while workers are missing
FAILED_MAX = 3  #: workers in a row that end in failure without having connected, before the calls fail
_log = Log("executor")


def missing(*, wanted: int, workers_max: int, live: int) -> int:
    """How many workers to start: one for each call, `workers_max` at most, without those that run or wait."""
    return max(0, min(wanted, workers_max) - live)


class Crew:
    """Keeps workers for a switchboard."""

    def __init__(
        self, client: Client, board: Switchboard, spec: JobSpec, *, campaign: str, workers_max: int
    ) -> None:
        self._client, self._board, self._spec = client, board, spec
        self._campaign, self._workers_max = campaign, workers_max
        self._live: set[int] = set()  # jobs that have not ended, as far as is known
        self._failed = 0  # in a row
        self._key = uuid.uuid4().hex
        self._polled_s = 0.0
        self._is_away = False
        self._ends = threading.Event()
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidemill-workers", daemon=True)

    def start(self) -> None:
        """Start the thread that submits workers."""
        self._thread.start()

    def ring(self) -> None:
        """Calls wait for a worker."""
        self._bell.set()

    def end(self) -> None:
        """Cancel all workers that are left, and end."""
        self._ends.set()
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join()

    def why(self, job: int) -> str:
        """Why a worker ended, as the server recorded it; empty without a record, or if the server is unreachable."""
        if not job:
            return ""
        try:
            found = list(self._client.failures(job=job, limit=1))
        except TidemillError:
            return ""
        if not found:
            return ""
        evidence = found[0].evidence
        tail = f"\n{evidence.stderr_tail}" if evidence.stderr_tail else ""
        return f"{evidence.message}{tail}"

    def _run(self) -> None:
        while not self._ends.is_set() and not self._board.is_over:
            self._bell.wait(LOOK_S if self._board.waits else None)
            self._bell.clear()
            if self._ends.is_set():
                break
            try:
                self._tend()
                self._is_away = False
            except (TidemillError, OSError) as error:
                if not is_transient(error):
                    self._board.fail_pending(error)
                elif not self._is_away:
                    self._is_away = True
                    _log.warning("executor.waits", error=str(error))
        self._cancel_rest()

    def _tend(self) -> None:
        now_s = clock.monotonic_s()
        if self._live and now_s > self._polled_s + POLL_S:
            self._polled_s = now_s
            self._poll()
        if self._failed >= FAILED_MAX:
            last = max(self._ended, default=0)
            self._failed = 0
            self._board.fail_pending(
                CallError(
                    f"no call can run: {FAILED_MAX} workers failed before they connected, the last as job {last}: "
                    f"{self.why(last) or 'the server knows no cause'}",
                    hint=f"see `tidemill job logs {last}`; nodes must reach this machine and see this Python",
                )
            )
            return
        count = missing(wanted=self._board.wanted(), workers_max=self._workers_max, live=len(self._live))
        if count:
            sent = self._client.submit(self._spec, campaign=self._campaign, repeat=[count], key=self._key)
            self._key = uuid.uuid4().hex
            self._live.update(sent.jobs)

    _ended: frozenset[int] = frozenset()

    def _poll(self) -> None:
        """Which workers have ended since the last poll."""
        rows = self._rows()
        ended = {each.id: each for each in rows if each.id in self._live and each.state in FINAL}
        self._ended = frozenset(ended)
        self._live.difference_update(ended)
        if self._board.connected():
            self._failed = 0
        else:
            self._failed += sum(1 for each in ended.values() if each.state == "FAILED")

    def _rows(self) -> list[JobRow]:
        try:
            return list(self._client.rows(self._live))
        except NotFoundError:  # of another server than before
            self._live.clear()
            return []

    def _cancel_rest(self) -> None:
        """Workers that are connected leave by themselves; those that are not would look for a pool that is gone. Where
        all calls have ended, none of these is missing."""
        left = sorted(self._live - self._board.jobs())
        if not left:
            return
        aborted = self._board.aborted
        reason = "its executor was shut down" + ("" if aborted else ", and all calls had ended")
        try:
            self._client.cancel(left, reason=reason, unneeded=not aborted)
        except TidemillError as error:
            _log.warning("executor.cancel_failed", jobs=len(left), error=error.message)
