"""The services around a server and a site are killed, or the way between the two is cut, in mid-campaign.

Nothing is lost or doubled, and nobody has to do anything: every output is there once with its bytes, the accounting
adds up, states are told in order without a gap, and all mails come.
"""

from __future__ import annotations

import random
import threading
import time

import pytest
from tests.fault.edge_production import CAMPAIGN, JOBS, Production, Shape, production
from tests.fault.edge_services import services

pytestmark = [pytest.mark.fault, pytest.mark.long]

KILLS = 2  #: of each service
LAST = 2  #: jobs that are submitted when all kills are done
PAUSE_S = 2.0  #: between two submissions
CUT_S = 60.0


def kill_all(it: Production, rng: random.Random) -> list[str]:
    """Kill each service `KILLS` times at random moments, and start it again after a while; what was done."""
    told, busy = [], 0
    victims = [name for name in it.around.parts for _ in range(KILLS)]
    rng.shuffle(victims)
    for name in victims:
        time.sleep(rng.uniform(0.5, 2.5))
        busy += it.cms.campaign(CAMPAIGN).states.get("RUNNING", 0) > 0
        it.around.crash(name)
        away_s = rng.uniform(0.1, 3.0)
        time.sleep(away_s)
        it.around.start(name)
        told.append(f"{name} for {away_s:.1f} s")
    assert busy > len(victims) / 2, f"jobs ran at {busy} of {len(victims)} kills only: {told}"
    return told


@pytest.mark.timeout(400)
def test_killed_services_lose_and_double_nothing(rare_seed: int) -> None:
    """Odd seeds: work comes by the broker, which is killed as well; even ones: by https."""
    with_broker = rare_seed % 2 == 1
    rng = random.Random(rare_seed)
    failed: list[Exception] = []
    killed = threading.Event()

    def submit(it: Production) -> None:
        try:
            for number in range(1, JOBS):
                killed.wait(None if number == JOBS - LAST else PAUSE_S)
                it.submit_one(number)
        except Exception as error:  # noqa: BLE001 - told by the test's end
            failed.append(error)
        finally:
            it.cms.connection.close()  # this thread's

    with services(with_broker=with_broker) as around, production(around, Shape()) as it:
        it.submit_one(0)
        submitting = threading.Thread(target=submit, args=(it,), daemon=True)
        submitting.start()
        told = kill_all(it, rng)
        killed.set()
        submitting.join(120)
        said = f"seed {rare_seed}, killed {told}"
        assert not failed, f"{failed}: {said}"
        it.wait_campaign(CAMPAIGN, 150)
        it.check(JOBS, said)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("with_broker", [True, False], ids=["amqps", "https"])
@pytest.mark.parametrize(("reset", "site_lost_s"), [(False, 600.0), (True, 20.0)], ids=["silent", "reset"])
def test_a_minute_without_a_way_between_server_and_site_loses_and_doubles_nothing(
    with_broker: bool, reset: bool, site_lost_s: float
) -> None:
    """`silent`: what is sent waits, and comes late. `reset`: connections break, and the server gives the site's work
    up while the site goes on with it."""
    jobs = JOBS // 2
    shape = Shape(relayed=True, site_lost_s=site_lost_s)
    with services(with_broker=with_broker) as around, production(around, shape) as it:
        assert it.relay is not None
        for number in range(jobs - 1):
            it.submit_one(number)
        it.wait_for(lambda: it.cms.campaign(CAMPAIGN).events_done > 0, "work is under way")
        it.relay.cut(reset=reset)
        began = time.monotonic()
        it.submit_one(jobs - 1)
        time.sleep(CUT_S - (time.monotonic() - began))
        before = it.cms.campaign(CAMPAIGN)
        assert before.states.get("COMPLETED", 0) < jobs
        it.relay.heal()
        it.wait_campaign(CAMPAIGN, 90)
        assert it.cms.campaign(CAMPAIGN).events_done > before.events_done
        it.check(jobs, f"cut with {reset=}", given_up=site_lost_s < CUT_S)
