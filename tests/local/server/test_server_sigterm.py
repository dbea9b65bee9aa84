"""SIGTERM while a server starts, before uvicorn handles it."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tidemill.server.run import ending_at_sigterm


def test_sigterm_ends_a_start_at_once() -> None:
    with pytest.raises(SystemExit) as ended, ending_at_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 0


def test_what_is_held_is_finished_first_so_that_its_threads_can_be_joined() -> None:
    """Before, a signal between the making of the writer's thread and its start made the server's end raise."""
    thread = threading.Thread(target=lambda: None)

    def start() -> None:
        with ending_at_sigterm() as ending:
            with ending.held():
                os.kill(os.getpid(), signal.SIGTERM)
                thread.start()
            pytest.fail("it went on")

    with pytest.raises(SystemExit) as ended:
        start()
    thread.join()
    assert ended.value.code == 0


def test_a_failed_start_is_what_is_said_even_if_sigterm_came() -> None:
    def start() -> None:
        with ending_at_sigterm() as ending, ending.held():
            os.kill(os.getpid(), signal.SIGTERM)
            raise OSError("the port is in use")

    with pytest.raises(OSError, match="in use"):
        start()
