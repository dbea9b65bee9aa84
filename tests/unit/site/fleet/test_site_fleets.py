"""Fleets whose pilots read files: nothing is lost where one journal cannot be read, nothing written by who must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from tests.wire_values import program

from tidemill import clock
from tidemill.batch.contract import BatchSubmission
from tidemill.config import loads
from tidemill.config.site import Harvest, SiteConfig
from tidemill.errors import SiteError
from tidemill.model.state import AllocationState
from tidemill.node.fleet import WorkOrder
from tidemill.node.framed import frame
from tidemill.site.fleet.fleets import RETIRE_S, Fleets, GrantNeeds, OpenFleet
from tidemill.site.fleet.handout import Seat
from tidemill.site.state import site_state
from tidemill.site.state.epoch import SupersededError
from tidemill.wire.node import Grant, InputDef, JobDef, Returned, WorkFile

Tcp = Literal["open", "lead", "nodes", "closed"]
CONFIG = SiteConfig(name="here", server="unix:/x", harvest=Harvest(tcp="nodes"))


@pytest.fixture
def fleets(tmp_path: Path) -> Fleets:
    return Fleets(tmp_path / "fleets", CONFIG, binary=tmp_path / "tidemill-node")


@pytest.fixture
def opened(fleets: Fleets) -> OpenFleet:
    return fleets.create(site_state.SiteFleet(name="f1", epoch=1, created_us=1))


def write(opened: OpenFleet, pilot: str, number: int) -> None:
    record = Returned(p=pilot, s=number, grant=1, job=1, first=number, count=1, reason="yield")
    with (opened.fleet.journal / f"{pilot}.log").open("ab") as file:
        file.write(frame(msgspec.json.encode(record)))


def found(fleets: Fleets, opened: OpenFleet) -> list[tuple[str, int]]:
    return [(record.p, record.s) for each in fleets.read(opened, hurry=True) for record in each.records]


def test_what_was_read_comes_also_where_what_is_retired_cannot_be_read(
    fleets: Fleets, opened: OpenFleet
) -> None:
    good, bad = "a.1.r0.i1", "a.2.r0.i1"
    write(opened, good, 1)
    opened.retiring["a.2"] = 0.0
    (opened.fleet.journal / f"{bad}.log").mkdir()  # opens, and cannot be read
    assert found(fleets, opened) == [(good, 1)]
    with pytest.raises(SiteError, match=bad):
        found(fleets, opened)
    assert list(opened.retiring) == ["a.2"]
    (opened.fleet.journal / f"{bad}.log").rmdir()
    write(opened, bad, 1)
    assert found(fleets, opened) == [(bad, 1)]
    assert not opened.retiring


@pytest.mark.parametrize(
    ("changes", "is_over"),
    [
        ({"pilots": 1, "pilots_ended": 1}, True),
        ({"pilots": 1}, False),
        ({"pilots": 2, "pilots_ended": 1}, False),
        ({"pilots": 1, "pilots_ended": 1, "requeued": 1}, False),
        ({}, False),
        ({"state": AllocationState.CANCELED}, True),
        ({"state": AllocationState.CANCELED, "started_us": 1}, False),
        ({"state": AllocationState.CANCELED, "requeued": 1}, False),
    ],
)
def test_a_fleet_without_a_lead_is_not_over_before_what_its_pilots_wrote_last_can_be_seen(
    fleets: Fleets, opened: OpenFleet, changes: dict[str, Any], is_over: bool
) -> None:
    """Results that were safe ran again: the fleet was finished, and their records came later."""
    state = site_state.SiteState(site="here")
    failed = site_state.Allocation(
        name="a.1", fleet="f1", nodes=1, cores=4, intended_us=1, ended_us=clock.now_us(),
        state=AllocationState.FAILED,
    )  # fmt: skip
    ended = state.allocations["a.1"] = msgspec.structs.replace(failed, **changes)
    other = msgspec.structs.replace(ended, name="b.1", fleet="f2", pilots=1, pilots_ended=0)
    state.allocations["b.1"] = other
    assert fleets.has_ended(opened, state) is is_over
    ended.ended_us -= int((RETIRE_S + 1) * 1e6)
    assert fleets.has_ended(opened, state)


def test_first_work_is_not_written_where_a_newer_agent_serves_the_site(
    fleets: Fleets, opened: OpenFleet
) -> None:
    def check() -> None:
        raise SupersededError("a newer agent serves this site")

    state = site_state.SiteState(site="here")
    state.allocations["a.1"] = site_state.Allocation(
        name="a.1",
        fleet="f1",
        nodes=1,
        cores=4,
        intended_us=1,
        walltime_s=600,
        submission="a.1",
        state=AllocationState.QUEUED,
    )
    asked = BatchSubmission(name="a.1", command=["pilot"], nodes=1, cores=4, memory_mb=0, walltime_s=600)
    before = opened.fleet.next_number
    with pytest.raises(SupersededError):
        fleets.first_work(state, [asked], check)
    assert opened.fleet.next_number == before
    (told,) = fleets.first_work(state, [asked], lambda: None)
    assert told.command == ["pilot", "--work-from", str(before)]


@pytest.mark.parametrize("named", ["/local/scratch", "$DW_JOB_STRIPED", "${BB_DIR}/in"])
def test_one_fast_directory_is_for_inputs_and_for_work_directories(tmp_path: Path, named: str) -> None:
    """As it is written: nodes fill in its variables."""
    text = f'name = "here"\nserver = "unix:/x"\nfast_dir = "{named}"'
    config = loads(text, SiteConfig, source=tmp_path / "site.toml")
    fleets = Fleets(tmp_path / "fleets", config, binary=tmp_path / "tidemill-node")
    settings = fleets.create(site_state.SiteFleet(name="f1", epoch=1, created_us=1)).fleet.manifest.settings
    assert (settings.fast_dir, settings.spill) == (named, named)


def test_without_a_fast_directory_nothing_is_held_in_one(opened: OpenFleet) -> None:
    settings = opened.fleet.manifest.settings
    assert (settings.fast_dir, settings.spill) == (None, None)
    for wrong in ("scratch", "~/scratch"):
        with pytest.raises(ValueError, match="absolute path"):
            SiteConfig(name="here", server="unix:/x", fast_dir=wrong)


@pytest.mark.parametrize(
    ("tcp", "lead", "peers", "readers"),
    [
        ("open", "beside", True, 1),
        ("lead", "beside", False, 16),
        ("nodes", "none", True, 1),
        ("closed", "none", False, 16),
    ],
)
def test_pilots_are_sent_what_they_reach(
    tmp_path: Path, tcp: Tcp, lead: str, peers: bool, readers: int
) -> None:
    manifest = Giving(tmp_path / "fleets", tcp).opened.fleet.manifest
    settings = manifest.settings
    assert (manifest.lead, settings.peers, settings.stage_readers) == (lead, peers, readers)


CARD = InputDef(name="card", kind="shared", path="/stage/7/card", lines=None, first=0, sha256=None, bytes=7)


class Giving:
    """One fleet that is given events of one job, one after the other."""

    def __init__(self, directory: Path, tcp: Tcp) -> None:
        config = msgspec.structs.replace(CONFIG, harvest=Harvest(tcp=tcp))
        self.fleets = Fleets(directory, config, binary=directory / "tidemill-node")
        self.opened = self.fleets.create(site_state.SiteFleet(name="f1", epoch=1, created_us=1))
        self.grants = 0

    def give(self, params: str, *, began: int = 1, cancels: bool = False) -> WorkFile:
        """The work file by which a pilot gets the next event."""
        self.grants += 1
        grant = Grant(grant=self.grants, job=7, first=self.grants, count=1, chunk_max=None)
        job = JobDef(job=7, program=1, argv=[], env={}, params=params, seed_base=0, events=9, inputs=[CARD])
        self.fleets.give(
            self.opened,
            grants=[grant],
            needs=GrantNeeds({1: program()}, {7: job}, {7: began}),
            order=WorkOrder(cancel_jobs=[7] if cancels else []),
        )
        if self.opened.mailbox is not None:
            self.opened.mailbox.first_shares([Seat(allocation=f"a.{self.grants}", cores=1, memory_mb=10_000)])
        return self.opened.fleet.read_work(self.opened.fleet.next_number - 1)


@pytest.mark.parametrize("tcp", ["nodes", "open"])
def test_a_job_that_was_over_and_comes_back_is_told_again_once(tmp_path: Path, tcp: Tcp) -> None:
    giving = Giving(tmp_path / "fleets", tcp)
    assert not giving.give("1").cancel_jobs
    back = giving.give("2", began=2)
    assert (back.cancel_jobs, [job.params for job in back.jobs]) == ([7], ["2"])
    assert [grant.grant for grant in back.grants] == [2]
    more = giving.give("2", began=2)
    assert (more.cancel_jobs, [grant.grant for grant in more.grants]) == ([], [3])


@pytest.mark.parametrize("tcp", ["nodes", "open"])
def test_a_job_that_is_canceled_and_comes_back_at_once_loses_only_what_it_was_granted_before(
    tmp_path: Path, tcp: Tcp
) -> None:
    giving = Giving(tmp_path / "fleets", tcp)
    giving.give("1")
    back = giving.give("2", cancels=True)
    assert (back.cancel_jobs, [job.params for job in back.jobs]) == ([7], ["2"])
    assert [grant.grant for grant in back.grants] == [2]
