"""Reading beside the one writer: a few threads, and a connection for each thread that asks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidemill.server.database.store import Session, Store

THREADS = 3
T = TypeVar("T")


class Readers:
    """Threads that read for the event loop; `close` ends them and every connection."""

    def __init__(self, store: Store) -> None:
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="reader")
        self._store = store
        self._local = threading.local()
        self._sessions: list[Session] = []

    def session(self) -> Session:
        """This thread's connection for reading."""
        found: Session | None = getattr(self._local, "session", None)
        if found is None:
            found = self._local.session = self._store.reader()
            self._sessions.append(found)
        return found

    async def read(self, act: Callable[[Session], T]) -> T:
        """What `act` returns, run in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, lambda: act(self.session()))

    def close(self) -> None:
        """End the threads and all connections."""
        self.threads.shutdown()
        for session in self._sessions:
            session.close()
