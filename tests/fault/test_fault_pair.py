"""A campaign on a pair of servers: the active one is killed, paused and cut off, and PostgreSQL crashes."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
from tests.worlds.home.oracle import expected_hits, output_bytes
from tests.worlds.home.world import Options
from tests.worlds.services.pair_world import TAKE_OVER_S, PairServer, PairWorld

from tidemill.model.job import JobSpec
from tidemill.wire.api import SubmitRequest

EVENTS, DARTS = 8, 60_000

pytestmark = pytest.mark.fault


@pytest.fixture
def pair() -> Iterator[PairWorld]:
    it = PairWorld(Options(nodes=2, extra="sync_interval_s = 0.2\nsync_timeout_s = 5"))
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


FAULTS: list[Callable[[PairWorld, PairServer, PairServer, random.Random], float]] = [
    kill, pause, cut, crash_database,
]  # fmt: skip


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
