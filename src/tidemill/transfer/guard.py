"""Ends reads of a socket that no time limit of its own ends."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.transfer.contract import TransferError, Watch
from tidemill.wire.cut import cut

LOOK_S = 0.2
"""The watch is asked so often."""


@contextmanager
def guarded(taken: socket.socket | None, watch: Watch) -> Iterator[None]:
    """Break off what this socket is waited for when the watch says so: a server that sends a byte now and then keeps
    reads, which wait for many, from returning, and no time limit of the socket tells."""
    is_over, told = threading.Event(), list[TransferError]()

    def look() -> None:
        while not is_over.wait(LOOK_S):
            try:
                watch.check()
            except TransferError as error:
                told.append(error)
                if taken is not None:
                    cut(taken)
                return

    thread = threading.Thread(target=look, name="guard", daemon=True)
    thread.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if told:
            raise told[0] from None
        raise
    finally:
        is_over.set()
        thread.join()
    if told:
        raise told[0]
