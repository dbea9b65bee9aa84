"""`tidemill site run --only transfer` as a process of its own: limits of endpoints, progress, what a killed one left.

The agent's side is the agent's own (`Apart`); the data server is a slow httpd.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.contract.transfer_world import Server

from tidemill.config.site import SiteConfig
from tidemill.config.transfer import Endpoint, Transfer
from tidemill.site.data.moves import MoveOrder, order_id
from tidemill.site.data.transfer_node import TransferNodeMoves, under_way
from tidemill.transfer.contract import Direction

FILES = 6
BYTES = 700_000
"""3.5 s each: /slow gives 200 kB/s."""


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        made = Server("https", Path(folder))
        yield made
        made.stop()


@contextmanager
def mover(home: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tidemill.cli.main", "site", "run", "--only", "transfer", *words]
    with (home / "mover.log").open("ab") as log:
        process = subprocess.Popen(command, env=os.environ | {"TIDEMILL_HOME": str(home)}, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def until(what: Callable[[], bool], home: Path) -> None:
    deadline = time.monotonic() + 40
    while not what():
        assert time.monotonic() < deadline, (home / "mover.log").read_text()[-3000:]
        time.sleep(0.02)


def parts(stage: Path) -> dict[str, int]:
    """Broken or running attempts: their names, how many bytes they have."""
    found: dict[str, int] = {}
    for path in stage.glob(".*.part"):
        with_size = path.stat().st_size if path.exists() else 0
        found[path.name] = with_size
    return found


@pytest.mark.timeout(240)
def test_a_mover_keeps_limits_tells_progress_and_goes_on_where_a_killed_one_was(
    server: Server, short_path: Path
) -> None:
    home, site = short_path, short_path / "site"
    stage = site / "stage" / "files"
    stage.mkdir(parents=True)
    url = f"{server.base}slow/"
    endpoint = Endpoint(url=url, ca=server.endpoint.ca, transfers_max=2)
    config = SiteConfig(
        name="dtn", server="unix:/nowhere", transfer=Transfer(where="apart"), endpoints=[endpoint]
    )
    (site / "site.toml").write_text(
        f'name = "dtn"\nserver = "unix:/nowhere"\nbatch = "local"\n[transfer]\nwhere = "apart"\n'
        f'[[endpoints]]\nurl = "{url}"\nca = "{endpoint.ca}"\ntransfers_max = 2\n'
    )
    contents = [os.urandom(BYTES) for _ in range(FILES)]
    agent = TransferNodeMoves(site / "transfer", config)
    ids: list[str] = []
    for number, content in enumerate(contents):
        server.make(f"f{number}", content)
        # of a file that changed a second ago Apache tells a weak tag only, and nobody can ask for the rest by that
        os.utime(server.data / f"f{number}", (1_700_000_000 + number, 1_700_000_000 + number))
        name = order_id(Direction.IN, f"{url}f{number}")
        ids.append(name)
        agent.submit(
            MoveOrder(id=name, direction=Direction.IN, url=f"{url}f{number}", path=str(stage / name))
        )

    with mover(home) as first:
        # both have some of their bytes, and are far from their ends
        until(lambda: len(parts(stage)) == 2 and min(parts(stage).values(), default=0) > 100_000, home)
        first.kill()
        first.wait()
        left = parts(stage)
    assert 0 < len(left) <= 2, "more at a time than the endpoint bears"
    assert all(0 < size < BYTES for size in left.values())

    most, told = 0, set[int]()
    with mover(home, "--take-over"):
        until(lambda: bool(under_way(site)), home)
        assert {each.size_bytes for each in under_way(site)} <= {0, BYTES}
        for name, size in left.items():
            assert parts(stage).get(name, size) >= size, "it began anew"
        while not agent.is_done(ids):
            moves = under_way(site)
            most = max(most, len(moves), len(parts(stage).keys() - left.keys()))
            told |= {each.bytes for each in moves}
            time.sleep(0.02)
        outcomes = [agent.pop_outcome(each) for each in ids]
    assert most == 2
    assert told - {0, BYTES}, "nobody could see how far they were"
    assert not (site / "transfer" / "moving.json").exists()
    for content, outcome, name in zip(contents, outcomes, ids, strict=True):
        assert outcome is not None
        outcome.check()
        assert (stage / name).read_bytes() == content
    answers = (server.folder / "access").read_text().splitlines()
    assert sum('" 206 ' in line for line in answers) >= len(left), "the rest of a file was not asked for"
