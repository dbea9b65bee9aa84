"""A campaign by message alone, with syncs by message: broker and server are killed, and nothing is lost or doubled."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest
from tests.timing import Values
from tests.worlds.home.oracle import expected_hits, output_bytes
from tests.worlds.home.world import Options, World
from tests.worlds.services.amqp_world import BrokerWorld
from tests.worlds.services.sync_ways import broker_at

from tidemill.model.job import JobSpec
from tidemill_messages.messenger import Messenger
from tidemill_messages.names import Gap

SUBMITS, EVENTS, DARTS = 24, 8, 60_000

pytestmark = pytest.mark.fault

TIMING: Values = {
    "messages": {"HEARTBEAT_S": 2, "RECONNECT_MAX_S": 1},
    "site": {"SYNC_INTERVAL_S": 0.2, "SYNC_TIMEOUT_S": 5},
}
SERVER = """[amqp]
url = "amqps://tm-server@127.0.0.1:{port}/{vhost}"
certificate = "{certificates}/tm-server.pem"
key = "{certificates}/tm-server.key"
ca = "{certificates}/ca.pem"
users = {{ cms = "submitter", here-agent = "site here" }}
"""
SITE = """server = "amqps://here-agent@127.0.0.1:{port}/{vhost}"
certificate = "{certificates}/here-agent.pem"
key = "{certificates}/here-agent.key"
ca = "{certificates}/ca.pem"
shared = false"""


def make(home: Path, rabbitmq: BrokerWorld) -> World:
    """A home whose server and site know each other by the broker only; the test looks through the server's socket."""
    it = World(home, Options(nodes=2, timing=TIMING))
    told = {"port": rabbitmq.port, "vhost": rabbitmq.vhost(), "certificates": rabbitmq.certificates}
    (home / "server" / "server.toml").write_text(SERVER.format(**told))
    toml = home / "site" / "site.toml"
    socket = f'server = "unix:{home}/server/api.sock"'
    assert socket in toml.read_text()
    toml.write_text(toml.read_text().replace(socket, SITE.format(**told)))
    return it


def submit_all(messenger: Messenger, refused: list[Exception]) -> None:
    """Submit one job after the other, while server and broker are killed."""
    for number in range(SUBMITS):
        try:
            messenger.submit(
                JobSpec(app="pi", events=EVENTS, params={"darts": DARTS}, retries=50),
                campaign="c", key=f"cms-{number}",
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the test shows it at its end
            refused.append(error)
        time.sleep(0.2)


@pytest.mark.timeout(240)
def test_killed_broker_and_server_lose_and_double_nothing(rabbitmq: BrokerWorld, rare_seed: int) -> None:
    rng = random.Random(rare_seed)
    home = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
    broker = broker_at(rabbitmq, rabbitmq.vhost(), user="cms")
    messenger, reader = Messenger(broker, "cms", retry_s=120), Messenger(broker, "cms")
    states: dict[int, list[tuple[int, str]]] = defaultdict(list)
    refused: list[Exception] = []
    it = make(home, rabbitmq)
    try:
        it.start()
        submitting = threading.Thread(target=submit_all, args=(messenger, refused), daemon=True)
        submitting.start()
        for victim in rng.sample(["broker", "server", "broker"], 3):
            time.sleep(rng.uniform(1.0, 3.0))
            if victim == "broker":
                rabbitmq.crash()
                time.sleep(rng.uniform(0.0, 2.0))
                rabbitmq.restart()
            else:
                it.kill("server", rng)
        submitting.join(120)
        assert not refused, refused
        row = it.wait_campaign("c", 120)
        told = f"seed {rare_seed}\n{it.tails()}"
        assert row.states == {"COMPLETED": SUBMITS}, told
        assert (row.events_done, row.events_failed) == (SUBMITS * EVENTS, 0), told
        for job in it.client.jobs(campaign="c"):
            detail = it.client.job(job.id)
            assert output_bytes(detail) == expected_hits(detail.seed_base, EVENTS, DARTS), told
        for change in reader.changes(timeout_s=15):
            assert not isinstance(change, Gap), told
            states[change.job].append((change.number, change.state))
            if len(states) == SUBMITS and all(each[-1][1] == "COMPLETED" for each in states.values()):
                break
        assert len(states) == SUBMITS, told
        for told_of in states.values():
            assert [number for number, _ in told_of] == sorted({number for number, _ in told_of}), told
            assert [state for _, state in told_of] == ["RUNNING", "COMPLETED"], told
    finally:
        messenger.close()
        reader.close()
        it.stop()
        shutil.rmtree(home, ignore_errors=True)
