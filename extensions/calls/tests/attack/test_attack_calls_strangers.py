"""Another user of the machine tries what an Executor and its worker listen on and hold open."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.strangers import open_of, own_processes, probed
from tests.worlds.home.processes import said_of
from tests.worlds.home.world import world

from tidemill import Client, Executor
from tidemill_calls import channel

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


def test_no_port_or_file_of_an_executor_answers_another_user() -> None:
    with world() as it:
        client = Client(f"unix:{it.home}/server/api.sock", home=it.home)
        with Executor(client, workers=1) as pool:
            assert pool.submit(os.getpid).result(60)
            own = own_processes(it)
            _, sockets, paths = open_of(own)
            ports = [each.getsockname()[1] for each in pool._board._listeners]
            hello = channel.MAGIC + bytes(channel.HELLO_BYTES - len(channel.MAGIC))
            paths += [str(pool._scratch), str(pool._scratch / "pool")]

            said, opened = probed(ports, sockets, paths, hello)

            assert said == [(port, "") for port in ports for _ in range(2)]
            everybodys = {*map(str, it.home.parents), str(Path(sys.executable).with_name("tidemill-node"))}
            assert opened <= everybodys, opened
            assert pool.submit(os.getpid).result(60), "it works on"
            for number in own:
                assert pool._board.key.hex() not in said_of(number, "cmdline")
