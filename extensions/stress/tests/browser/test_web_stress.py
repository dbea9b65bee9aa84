"""The page of a stress test's level while it runs, in Chromium."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from tests.worlds.services.browser import DESK, PHONE
from tests.worlds.services.pages_world import SiteSide, done, stopped
from tests.worlds.services.web_world import Opens, World

from tidemill import clock
from tidemill.model.job import JobSpec, PlannedLevel, StressLevel
from tidemill.wire.api import CancelOrder, LeaseOrder, PayloadTime, TimesReport

LEVEL, LENGTH_S, SPAN_S, S = 12, 20.0, 600.0, 1_000_000
LEVELS = (4, 8, 12, 16)
FOLLOWS_S = 60.0  #: a page that took long to make is asked for again after up to 15 s


def payloads(until_us: int, level: int = LEVEL) -> list[PayloadTime]:
    """A level that is reached in a minute and held, by payloads of random length; one in 20 fails."""
    dice, found = random.Random(7), list[PayloadTime]()
    for slot in range(level):
        at_us = until_us - int(SPAN_S * S) + slot * 5 * S
        while True:
            wall_us = int(LENGTH_S * dice.uniform(0.5, 1.5) * S)
            if at_us + wall_us > until_us:
                break
            found.append(
                PayloadTime(
                    first=0, count=1, payloads=1, node=f"n{slot}", slot=0, started_us=at_us, ended_us=at_us + wall_us,
                    wall_us=wall_us, setup_us=S, user_us=int(0.85 * wall_us), system_us=0,
                    failure="payload" if dice.random() < 0.05 else "",
                )
            )  # fmt: skip
            at_us += wall_us + 20_000
    return found


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_a_level_that_runs_shows_what_runs_and_follows_it(
    web: World, opens: Opens, look: str, tmp_path: Path
) -> None:
    side = SiteSide(web.server, f"hold-{look}", (f"hold-{look}",), 16)
    side.sync()
    spec = JobSpec(
        app=f"hold-{look}", name="mine", events=5_000, at_once=LEVEL, timed=True, retries=0, outputs=[]
    )
    number = web.submit(spec, campaign="stress-levels", owner="ann")
    (lease,) = side.leases(1, 1e9)
    sent = payloads(clock.now_us())
    side.sync(done(lease, 1), TimesReport(n=0, job=number, times=sent))
    olga = opens(
        "olga",
        viewport=PHONE if look == "phone" else DESK,
        color_scheme="dark" if look == "dark" else "light",
    )
    olga.go(f"/jobs/{number}")
    olga.check()
    text = olga.text()
    for words in (
        "Payloads that run",
        "The thin line is what was asked for: 12",
        "CPU/wall",
        "at most 12 events",
    ):
        assert words in text, words
    section = olga.page.locator("section", has=olga.page.locator("h2", has_text="Payloads")).first
    shots = Path(os.environ.get("TIDEMILL_SCREENSHOTS") or tmp_path)
    section.screenshot(path=shots / f"stress-{look}.png")
    more = payloads(clock.now_us())[:50]
    side.sync(done(lease, 2), TimesReport(n=0, job=number, times=more))
    deadline = time.monotonic() + FOLLOWS_S
    while f"Payloads {len(sent) + len(more)}" not in olga.text():
        assert time.monotonic() < deadline, "the page did not follow"
        time.sleep(0.1)
    assert not olga.troubles


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_a_run_shows_all_of_its_levels_and_the_one_that_begins(
    web: World, opens: Opens, look: str, tmp_path: Path
) -> None:
    name, run = f"levels-{look}", f"levels-{look}-20261125T030000Z"
    side = SiteSide(web.server, name, (name,), 16)
    side.sync()
    planned = [PlannedLevel(title=str(level), level=level) for level in LEVELS]

    def submit(number: int) -> int:
        spec = JobSpec(
            app=name, events=5_000, at_once=LEVELS[number - 1], timed=True, retries=0, outputs=[],
            stress=StressLevel(run=run, number=number, planned=planned),
        )  # fmt: skip
        return web.submit(spec, campaign=f"stress-{run}-{number}-{clock.now_us():x}", owner="ann")

    def cancel(lease: LeaseOrder) -> None:
        told = {"jobs": [lease.job], "reason": "stress test: held for 600 s"}
        web.server.call("POST", "/v1/cancel", told)
        (order,) = side.sync()
        assert isinstance(order, CancelOrder)
        side.sync(stopped(lease, 1))

    now_us = clock.now_us()
    for number in (1, 2, 3):
        job = submit(number)
        (lease,) = side.leases(1, 1e9)
        ended_us = now_us - (3 - number) * int(1.1 * SPAN_S * S)
        times = payloads(ended_us, LEVELS[number - 1])
        side.sync(done(lease, 1), TimesReport(n=0, job=job, times=times))
        if number < 3:
            cancel(lease)
    olga = opens(
        "olga",
        viewport=PHONE if look == "phone" else DESK,
        color_scheme="dark" if look == "dark" else "light",
    )
    olga.go(f"/jobs/{job}")
    olga.follow(f"a:text-is('{run}')")
    olga.check()
    text = olga.text()
    for words in ("2 of 4 levels ended; running: 12", "planned", "held for 600 s", "CPU/wall"):
        assert words in text, words
    assert olga.page.locator("path.member").count() == 3  # a line for each level that began
    shots = Path(os.environ.get("TIDEMILL_SCREENSHOTS") or tmp_path)
    olga.page.locator("main").screenshot(path=shots / f"stress-run-{look}.png")
    cancel(lease)
    submit(4)
    deadline = time.monotonic() + FOLLOWS_S
    while "3 of 4 levels ended; running: 16" not in olga.text():
        assert time.monotonic() < deadline, "the page did not follow"
        time.sleep(0.1)
    assert not olga.troubles
