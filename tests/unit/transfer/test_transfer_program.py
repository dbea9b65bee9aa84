"""transfer/program.py and transfer/gsi.py: clients that hang, servers whose answers have no end."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from tidemill.config.transfer import Endpoint
from tidemill.transfer import program
from tidemill.transfer.allowed import permit
from tidemill.transfer.contract import Direction, TransferError, Watch
from tidemill.transfer.gridftp import GridFtpAdapter
from tidemill.transfer.gsi import ANSWER_CHARS_MAX

ENVIRON = {"PATH": os.environ["PATH"]}


@pytest.mark.parametrize("first", ["", "exec >&- 2>&-;"])
def test_a_client_that_hangs_ends_with_its_move(first: str, tmp_path: Path) -> None:
    """Also one that has closed its outputs: then nothing tells that it still runs."""
    watch = Watch(deadline_s=60, stall_s=60)
    threading.Timer(0.5, watch.canceled.set).start()
    ended = tmp_path / "ended"
    with pytest.raises(TransferError, match="canceled"):
        program.run(["sh", "-c", f"{first} sleep 30; echo >{ended}"], watch, environ=ENVIRON)
    assert not ended.exists()


def test_a_client_is_heard_to_its_end() -> None:
    watch = Watch(deadline_s=60, stall_s=60)
    reply = program.run(["sh", "-c", "echo one; echo two >&2; exit 3"], watch, environ=ENVIRON)
    assert (reply.status, reply.output, reply.errors) == (3, "one\n", "two\n")


def test_an_answer_without_end_does_not_fill_the_agent() -> None:
    plug = socket.create_server(("127.0.0.1", 0))
    sent = [0]

    def answer() -> None:
        peer, _ = plug.accept()
        try:
            while True:
                sent[0] += peer.send(b"220-" + b"x" * 60_000 + b"\r\n")
        except OSError:  # hung up
            peer.close()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    url = f"ftp://127.0.0.1:{plug.getsockname()[1]}/x"
    place = permit(url, [Endpoint(url=url)], Direction.IN)
    with pytest.raises(TransferError, match=f"more than {ANSWER_CHARS_MAX} characters"):
        GridFtpAdapter().stat(place, Watch(deadline_s=5, stall_s=5))
    thread.join(10)
    plug.close()
    assert sent[0] < 100 * ANSWER_CHARS_MAX
