"""A campaign on a pair of servers: the active one is killed, paused and cut off, and PostgreSQL crashes."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.worlds.home.oracle import expected_hits, output_bytes
from tests.worlds.home.world import Options
from tests.worlds.services.amqp_world import BrokerWorld
from tests.worlds.services.pair_world import TAKE_OVER_S, PairServer, PairWorld
from tests.worlds.services.sync_ways import broker_at

from tidemill.model.job import JobSpec
from tidemill.server.audit.audit_log import FOLDER, verify
from tidemill.wire.api import Change, SubmitRequest
from tidemill_messages.messenger import Messenger

EVENTS, DARTS = 8, 60_000

pytestmark = pytest.mark.fault


@pytest.fixture
def pair() -> Iterator[PairWorld]:
    it = PairWorld(Options(nodes=2, timing={"site": {"SYNC_INTERVAL_S": 0.2, "SYNC_TIMEOUT_S": 5}}))
    try:
        it.start()
        yield it
    finally:
        it.close()


class Submitter:
    """Submits one job after the other until it is stopped, whatever becomes of the servers."""

    def __init__(self, pair: PairWorld) -> None:
        self._pair, self._ending = pair, threading.Event()
        self.jobs: list[int] = []
        self.refused: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(0.5):
            try:
                spec = JobSpec(app="pi", events=EVENTS, params={"darts": DARTS}, retries=50)
                self.jobs += self._pair.home.client.submit(spec, campaign="c", key=f"k{len(self.jobs)}").jobs
            except Exception as error:  # noqa: BLE001 - told by the test's end
                self.refused.append(error)
                return

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(120)
        assert not self._thread.is_alive()


def kill(pair: PairWorld, active: PairServer, standby: PairServer, rng: random.Random) -> float:
    active.signal(signal.SIGKILL)
    took_s = take_over_s(pair, active)
    time.sleep(rng.uniform(0.0, 1.0))
    active.start()
    return took_s


def pause(pair: PairWorld, active: PairServer, standby: PairServer, rng: random.Random) -> float:
    """The paused one has a submission in its socket, and may be inside of a transaction."""
    active.signal(signal.SIGSTOP)
    try:
        late = SubmitRequest(key=f"late-{rng.random()}", campaign="late", jobs=[JobSpec(app="pi")])
        thread, status = active.post_later(msgspec.json.encode(late))
        took_s = take_over_s(pair, active)
        time.sleep(rng.uniform(0.0, 2.0))
    finally:
        active.signal(signal.SIGCONT)
    thread.join(60)
    assert status == [503], f"a server that was taken over from took a submission\n{pair.tails()}"
    return took_s


def cut(pair: PairWorld, active: PairServer, standby: PairServer, rng: random.Random) -> float:
    active.relay.cut(reset=rng.random() < 0.3)
    took_s = take_over_s(pair, active)
    time.sleep(rng.uniform(0.0, 4.0))
    active.relay.heal()
    return took_s


def crash_database(pair: PairWorld, active: PairServer, standby: PairServer, rng: random.Random) -> float:
    pair.database.end("crash")
    time.sleep(rng.uniform(0.0, 3.0))
    pair.database.start()
    began_s = time.monotonic()
    pair.wait_active()
    return time.monotonic() - began_s


def take_over_s(pair: PairWorld, active: PairServer) -> float:
    began_s = time.monotonic()
    pair.wait_active(without=active)
    return time.monotonic() - began_s


def check_audit(pair: PairWorld, jobs: list[int]) -> None:
    """Both chains are whole, each submission is noted, and a note that both have is the same in both."""
    noted: dict[int, dict[str, Any]] = {}
    terms: list[int] = []
    for server in pair.servers:
        server.process.terminate()
        server.process.wait(30)
        verify(server.place)
        for path in sorted((server.place / FOLDER).iterdir()):
            lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
            terms += [int(each["on"].split()[1]) for each in lines if each["act"] == "take-over"]
            for each in lines:
                if each["act"] == "submit":
                    told = {key: each[key] for key in ("on", "facts", "act")}
                    assert noted.setdefault(each["o"], told) == told
    assert sorted(each["facts"]["first_job"] for each in noted.values()) == sorted(jobs)
    assert sorted(terms) == list(range(1, len(terms) + 1))


FAULTS: list[Callable[[PairWorld, PairServer, PairServer, random.Random], float]] = [
    kill, pause, cut, crash_database,
]  # fmt: skip


AMQP = """[amqp]
url = "amqps://tm-server@127.0.0.1:{port}/{vhost}"
certificate = "{certificates}/tm-server.pem"
key = "{certificates}/tm-server.key"
ca = "{certificates}/ca.pem"
users = {{ cms = "submitter" }}
"""


@pytest.mark.timeout(200)
@pytest.mark.timing(messages={"HEARTBEAT_S": 2, "RECONNECT_MAX_S": 1})
def test_by_messages_only_the_active_server_takes_jobs_and_tells_of_them_once_each(
    rabbitmq: BrokerWorld,
) -> None:
    vhost = rabbitmq.vhost()
    more = AMQP.format(port=rabbitmq.port, vhost=vhost, certificates=rabbitmq.certificates)
    pair = PairWorld(Options(), more)
    broker = broker_at(rabbitmq, vhost, user="cms")
    messenger, reader = Messenger(broker, "cms", retry_s=120), Messenger(broker, "cms")
    try:
        active, _ = pair.wait_pair()
        jobs = []
        for number in range(12):
            if number == 4:
                active.signal(signal.SIGKILL)
            if number == 8:  # the other one has to stop its gateway, and go on as the standby
                active.start()
                second, _ = pair.wait_pair()
                assert second is not active
                second.relay.cut(reset=True)
                pair.wait_active(without=second)
                second.relay.heal()
            spec = JobSpec(app="pi", site="nowhere")
            jobs += messenger.submit(spec, campaign="m", key=f"cms-{number}").jobs
        assert jobs == list(range(1, 13)), pair.tails()
        client = pair.home.client
        client.cancel(campaign="m")
        told: dict[int, list[str]] = defaultdict(list)
        for change in reader.changes(timeout_s=15):
            assert isinstance(change, Change)
            told[change.job].append(change.state)
            if len(told) == 12 and all(states[-1] == "CANCELED" for states in told.values()):
                break
        assert [told[job].count("CANCELED") for job in jobs] == [1] * 12, pair.tails()
        assert client.health().role == "active"
    finally:
        messenger.close()
        reader.close()
        pair.close()


@pytest.mark.timeout(400)
def test_a_pair_whose_active_server_fails_loses_and_doubles_nothing(
    pair: PairWorld, rare_seed: int, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(rare_seed)
    pair.wait_pair()
    submitter = Submitter(pair)
    took_s: dict[str, float] = {}
    for fault in rng.sample(FAULTS, len(FAULTS)):
        active, standby = pair.wait_pair()
        time.sleep(rng.uniform(0.5, 3.0))
        took_s[fault.__name__] = round(fault(pair, active, standby, rng), 2)
    pair.wait_pair()
    submitter.stop()
    told = f"seed {rare_seed}, take-overs in seconds: {took_s}\n{pair.tails()}"
    record_property("take-overs in seconds", took_s)
    assert not submitter.refused, (submitter.refused, told)
    assert max(took_s.values()) <= TAKE_OVER_S, told
    row = pair.home.wait_campaign("c", 150)
    assert row.states == {"COMPLETED": len(submitter.jobs)}, told
    assert (row.events_done, row.events_failed) == (len(submitter.jobs) * EVENTS, 0), told
    assert len(set(submitter.jobs)) == len(submitter.jobs), told
    for job in pair.home.client.jobs(campaign="c"):
        detail = pair.home.client.job(job.id)
        assert output_bytes(detail) == expected_hits(detail.seed_base, EVENTS, DARTS), told
    assert [each.name for each in pair.home.client.campaigns()] == ["c"], told
    check_audit(pair, submitter.jobs)
