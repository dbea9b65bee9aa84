"""Addresses of hosts for callers that may not wait: a thread asks the name server, the caller gets what is known."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from tidemill import clock

ASK_S, AGAIN_S = 600.0, 30.0
NAMES_MAX = 200
ADDRESSES_MAX = 16


class HostNames:
    """Addresses of some hosts, looked up one after the other in a thread of its own. Thread-safe.

    A name server that does not answer holds up the thread, and no caller: the C library gives up after its own time
    (resolv.conf(5): by default 5 s, twice for each server), and there is one thread at a time.
    """

    def __init__(
        self,
        look_up: Callable[[str], list[str]] | None = None,
        *,
        ask_s: float = ASK_S,
        again_s: float = AGAIN_S,
    ) -> None:
        """`look_up`: the addresses of a host; raises OSError.

        A name that is known is looked up again after `ask_s`, one that is not known after `again_s`.
        """
        self._ask_s, self._again_s = ask_s, again_s
        self._look_up = look_up or addresses_of
        self._lock = threading.Lock()
        self._known: dict[str, list[str]] = {}
        self._due_s: dict[str, float] = {}
        self._is_asking = False

    def addresses(self, host: str) -> list[str]:
        """The addresses that are known; none while a look-up is under way or after it has failed. Never waits."""
        literal = literal_address(host)
        if literal:
            return [literal]
        with self._lock:
            if host not in self._due_s and len(self._due_s) < NAMES_MAX:
                self._due_s[host] = clock.monotonic_s()
            known = self._known.get(host, [])
            if self._is_asking or not self._due():
                return known
            self._is_asking = True
        threading.Thread(target=self._ask, name="names", daemon=True).start()
        return known

    def _due(self) -> list[str]:
        """The lock is held."""
        now_s = clock.monotonic_s()
        return [host for host, due_s in self._due_s.items() if now_s >= due_s]

    def _ask(self) -> None:
        """Look up what is due, until nothing is."""
        while True:
            with self._lock:
                due = self._due()
                if not due:
                    self._is_asking = False
                    return
            self._note(due[0])

    def _note(self, host: str) -> None:
        try:
            found = self._look_up(host)[:ADDRESSES_MAX]
        except (OSError, UnicodeError):  # what was known before remains so
            found = []
        with self._lock:
            if found:
                self._known[host] = found
            self._due_s[host] = clock.monotonic_s() + (self._ask_s if found else self._again_s)


def addresses_within(
    host: str, wait_s: float, *, look_up: Callable[[str], list[str]] | None = None
) -> list[str]:
    """The addresses of a host. Raises OSError, also where no name server has answered after `wait_s`; UnicodeError.

    The C library cannot be interrupted: a look-up that takes longer ends later, in a thread of its own.
    """
    literal = literal_address(host)
    if literal:
        return [literal]
    found: SimpleQueue[list[str] | OSError | UnicodeError] = SimpleQueue()

    def run() -> None:
        try:
            found.put((look_up or addresses_of)(host))
        except (OSError, UnicodeError) as error:
            found.put(error)

    threading.Thread(target=run, name="name", daemon=True).start()
    try:
        answer = found.get(timeout=wait_s)
    except Empty:
        raise TimeoutError(
            errno.ETIMEDOUT, f"no name server has answered for `{host}` in {wait_s:g} s"
        ) from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def addresses_of(host: str) -> list[str]:
    """What the system says, each address once. Raises OSError, UnicodeError; waits for name servers."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def literal_address(host: str) -> str:
    """A host that is written as an address, as the system writes it; empty for a name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return ""
    return str(found[0][4][0])
