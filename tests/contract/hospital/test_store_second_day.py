"""Jobs in wards when servers are restarted, wards and sites renamed, owners act, and a lost home comes back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from tests.contract.hospital.hospital_world import (
    AWAY,
    HOME,
    MEMORY,
    Announced,
    Hospital,
    bounce,
    downtime,
    lose,
    make,
)
from tests.contract.server_world import Site, done, leases

from tidemill.config.hospital import Ward
from tidemill.model.job import JobSpec
from tidemill.server import constants
from tidemill.server.database.store import Store
from tidemill.server.hospital import downtimes
from tidemill.server.hospital.readings import NOWHERE, Downtime
from tidemill.server.read import hospital
from tidemill.wire.api import ActionRequest, CancelOrder, DiscardOrder, LeaseOrder


def down(world: Hospital, *names: str) -> tuple[Site, ...]:
    """The home is lost; the sites that are heard."""
    sites = tuple(Site(world, name) for name in names)
    Site(world, "home").sync(want=0)
    for each in sites:
        each.sync(want=0)
    lose(world, *sites)
    return sites


def test_a_home_that_returns_with_its_old_leases_adds_nothing_to_what_others_have_done(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, AWAY)
    (job,) = world.submit(msgspec.structs.replace(HOME, events=10))
    home, other = Site(world, "home"), Site(world, "a")
    other.sync(want=0)
    (old,) = leases(home.sync())
    home.sync(done(old, 0, 3), want=0)
    lose(world, other)
    (new,) = leases(other.sync())
    assert (new.first, new.count) == (3, 7), "only what came back"

    assert leases(home.sync(done(old, 3, 2))) == [], "it gets nothing of the job again"
    world.round()
    assert leases(home.sync()) == []
    other.sync(done(new), want=0)
    home.sync(done(old, 5, 5), want=0)

    row = world.job(job).row
    assert (row.state, row.events_done) == ("COMPLETED", 10)
    sums = world.rows()["away"]
    assert (sums.cured, sums.there) == (1, 0)


def test_outputs_that_a_lost_home_kept_are_thrown_away_there_once_a_ward_made_them_again(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, AWAY)
    (job,) = world.submit(JobSpec(app="reco", home="home", events=4))
    home, other = Site(world, "home"), Site(world, "a")
    other.sync(want=0)
    (old,) = leases(home.sync())
    home.sync(done(old, 0, 2, outputs=True), want=0)
    lose(world, other)
    (new,) = leases(other.sync())
    assert (new.first, new.count) == (0, 4)
    other.sync(done(new, outputs=True), want=0)

    orders = home.sync(want=0)

    assert any((isinstance(each, DiscardOrder | CancelOrder)) and each.job == job for each in orders), (
        "one copy of each output is delivered: that of the treating site"
    )
    assert world.job(job).row.events_done == 4


def test_a_ward_that_is_renamed_sends_its_jobs_home_and_the_new_one_admits_them(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, AWAY)
    jobs = world.submit(*[HOME] * 3)
    (other,) = down(world, "a")
    (got,) = leases(other.sync(ranges=1))
    world.rules = world.rules._replace(wards=(msgspec.structs.replace(AWAY, name="elsewhere"),))
    world.again()
    other.sync(want=0)
    world.round()
    world.round()
    left = leases(other.sync(done(got)))
    assert sorted([got.job, *(each.job for each in left)]) == jobs
    other.sync(*map(done, left), want=0)
    rows = {row.ward: row for row in hospital.ward_rows(world.reader, world.rules.wards)}
    assert (rows["away"].is_open, rows["away"].cured, rows["away"].home) == (False, 1, 2)
    assert (rows["elsewhere"].cured, rows["elsewhere"].there) == (2, 0)
    assert [world.job(each).row.state for each in jobs] == ["COMPLETED"] * 3


def test_jobs_of_a_ward_whose_site_was_renamed_wait_for_the_rule_and_nothing_is_lost(
    open_worlds: list[Hospital], store: Store
) -> None:
    one = msgspec.structs.replace(AWAY, sites=["a"])
    world = make(open_worlds, store, one)
    (job,) = world.submit(HOME)
    down(world, "a")
    renamed = Site(world, "a2")
    assert leases(renamed.sync()) == []
    world.rules = world.rules._replace(wards=(msgspec.structs.replace(one, sites=["a2"]),))
    world.again()
    assert [each.job for each in leases(renamed.sync())] == [job]


def test_jobs_in_a_ward_are_canceled_and_go_home_when_they_are_retried(
    open_worlds: list[Hospital], store: Store
) -> None:
    world = make(open_worlds, store, AWAY)
    jobs = world.submit(HOME, HOME)
    (other,) = down(world, "a")
    (got,) = leases(other.sync(ranges=1))
    world.dispatcher.handle_cancel(ActionRequest(jobs=jobs, reason="wrong energy"))
    assert any(isinstance(each, CancelOrder) for each in other.sync(want=0))
    row = world.rows()["away"]
    assert (row.canceled, row.there, row.share) == (2, 0, 0.0)

    world.dispatcher.handle_retry(ActionRequest(jobs=jobs))
    home = Site(world, "home")
    home.epoch = 2
    home.sync(want=0)
    world.round()
    assert sorted(each.job for each in leases(home.sync())) == jobs
    assert [len(world.job(each).stays) for each in jobs] == [1, 1]
    assert got.job in jobs


def test_moves_are_counted_over_restarts_and_retries(open_worlds: list[Hospital], store: Store) -> None:
    world = make(open_worlds, store, AWAY)
    (job,) = world.submit(HOME)
    home, other = Site(world, "home"), Site(world, "a")
    bounce(world, home, other, times=4, then=world.again)
    assert len(world.job(job).stays) == constants.MOVES_MAX
    world.dispatcher.handle_cancel(ActionRequest(jobs=[job]))
    world.dispatcher.handle_retry(ActionRequest(jobs=[job]))
    world.round()
    assert len(world.job(job).stays) == constants.MOVES_MAX
    assert leases(other.sync()) == []


@pytest.mark.timing(server={"DOWNTIMES_LEAD_S": 0})
def test_a_downtime_that_begins_while_events_run_moves_the_queue_and_stops_nothing(
    open_worlds: list[Hospital], store: Store
) -> None:
    source = Announced()
    world = make(open_worlds, store, AWAY, downtimes=source.reader)
    jobs = world.submit(*[HOME] * 4)
    home, other = Site(world, "home"), Site(world, "a")
    other.sync(want=0)
    running = leases(home.sync(ranges=2))
    source.say(downtime(datetime.now(UTC) - timedelta(minutes=1)))
    world.dispatcher.read_downtimes()
    world.round()

    orders = home.sync(done(running[0]))
    assert not any(isinstance(each, CancelOrder | LeaseOrder) for each in orders), "none to stop, no new work"
    moved = leases(other.sync())
    home.sync(done(running[1]), want=0)
    other.sync(*map(done, moved), want=0)

    assert [world.job(each).row.state for each in jobs] == ["COMPLETED"] * 4
    assert sorted(str(world.job(each).row.site) for each in jobs) == ["a", "a", "home", "home"]
    assert world.rows()["away"].cured == 2
    world.again()
    assert leases(home.sync()) == [], "the downtime outlives a restart"


def test_a_failure_ward_without_a_site_of_its_own_treats_nobody(
    open_worlds: list[Hospital], store: Store
) -> None:
    gone = Ward(name="gone", home_down=True, sites=["no-such-site"])
    world = make(open_worlds, store, gone, MEMORY)
    (job,) = world.submit(HOME)
    (other,) = down(world, "a")
    assert world.job(job).stays == []
    assert leases(other.sync()) == []
    home = Site(world, "home")
    assert [each.job for each in leases(home.sync())] == [job]


def test_a_downtime_of_a_source_that_is_named_no_more_is_over(
    open_worlds: list[Hospital], store: Store
) -> None:
    source = Announced()
    world = make(open_worlds, store, AWAY, downtimes=source.reader)
    (job,) = world.submit(HOME)
    home = Site(world, "home")
    home.sync(want=0)
    source.say(downtime(datetime.now(UTC) - timedelta(minutes=1)))
    world.dispatcher.read_downtimes()
    world.round()
    assert leases(home.sync()) == []
    world.rules = world.rules._replace(downtimes=NOWHERE)
    world.again()
    home.sync(want=0)
    world.round()
    assert [each.job for each in leases(home.sync())] == [job]


def test_a_source_that_changes_its_format_keeps_the_downtimes_that_are_not_over(
    open_worlds: list[Hospital], store: Store
) -> None:
    source = Announced()
    world = make(open_worlds, store, AWAY, downtimes=source.reader)
    now = downtime(datetime.now(UTC) - timedelta(minutes=1))

    def read(*announced: Downtime, form: str) -> tuple[int, str]:
        source.say(*announced, form=form)
        world.dispatcher.read_downtimes()
        found = downtimes.listed(world.reader, source.reader, now_us=world.dispatcher.server_clock.now_us())
        return len(found.downtimes), found.sources[0].error

    assert read(now, form="TOML") == (1, "")
    for changed in ("JSON of CRIC", "a calendar"):
        count, error = read(form=changed)
        assert count == 1
        assert f"it was TOML with downtimes that are not over, and is {changed} now: " in error
    assert read(form="TOML") == (0, "")
    assert read(form="JSON of CRIC") == (0, ""), "nothing is lost: it may change its format"
    assert read(now, form="JSON of CRIC") == (1, "")
