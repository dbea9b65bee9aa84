"""SIGTERM while a server starts, before uvicorn handles it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tidemill.server.run import ending_at_sigterm

START = """
import json, os, signal, sys, threading
from tidemill.server.run import entry

plain = threading.Thread.start

def start(thread):
    if thread.name == "writer":
        os.kill(os.getpid(), signal.SIGTERM)
    plain(thread)

threading.Thread.start = start
sys.exit(entry(json.loads(sys.argv[1])))
"""  #: a server that gets SIGTERM just before its writer's thread starts


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


def test_a_server_that_gets_sigterm_before_its_writer_starts_ends_well(tmp_path: Path) -> None:
    """Before, it ended with a traceback and status 1."""
    folder = tmp_path / "server"
    text = json.dumps({"dir": os.fspath(folder)})
    done = subprocess.run([sys.executable, "-c", START, text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not (folder / "api.sock").exists()
