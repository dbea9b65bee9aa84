"""transfer/program.py: clients that hang."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tidemill.transfer import program
from tidemill.transfer.contract import TransferError, Watch

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
