"""Records that a user writes into the variables of his job never count as allocations, on complete fake commands."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pbs.test_pbs_endings import client, is_final, runs, submission, wait
from tests.pbs.test_pbs_lost import lose
from tests.worlds.batch.batch_pbs import PbsWorld, person, world
from tests.worlds.batch.batch_world import KEY

from tidemill.batch.open import asked_cluster
from tidemill.batch.pbs import PbsBatchSystem
from tidemill.config.site import SiteConfig

NAMES = ("tm-here-e1-1", "tm-here-e1-2")
HERE = {NAMES[0]: "1.fake-pbs", NAMES[1]: "2.fake-pbs"}


@pytest.fixture
def pbs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PbsWorld]:
    with world(request, tmp_path) as made:
        yield made


def forge(pbs: PbsWorld, number: str, name: str, nodes: str = "(n1:ncpus=4)+(n2:ncpus=4)") -> None:
    """A stranger's job in whose variables stands a record of a job that runs for Tidemill."""
    record = (
        f"Job Id: {number}\n    Job_Owner = {pwd.getpwuid(os.getuid()).pw_name}@login1\n    job_state = R\n"
        f"    exec_vnode = {nodes}\n    Resource_List.walltime = 24:00:00\n"
        f"    Variable_List = TIDEMILL_KEY={KEY},TIDEMILL_NAME={name}"
    )
    script = pbs.space / "forger"
    script.write_text("sleep 600\n")
    words = ["qsub", "-h", "-v", f"A=x\n{record}", str(script)]
    subprocess.run(words, env=person("stranger"), check=True, capture_output=True)


def full(pbs: PbsWorld) -> PbsBatchSystem:
    """An allocation on each of both nodes."""
    batch = client(pbs)
    for name in NAMES:
        batch.submit(submission("sleep 600", name))
        wait(batch, name, runs)
    return batch


def ours(batch: PbsBatchSystem) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Number and nodes of each allocation that the snapshot shows, by name."""
    running = [each for each in batch.snapshot().running if each.ours]
    assert len({each.name for each in running}) == len(running)
    return {each.name: (each.id, each.nodes) for each in running}


def test_a_client_that_only_asks_and_has_no_numbers_knows_the_allocations(
    pbs: PbsWorld, tmp_path: Path
) -> None:
    """As `tidemill windows` does: else it takes Tidemill's own jobs for regular ones."""
    full(pbs)
    site = tmp_path / "site"
    site.mkdir()
    (site / "key").write_text(KEY)
    with asked_cluster(SiteConfig(name="here", server="unix:/none.sock", batch="pbs"), site) as batch:
        assert isinstance(batch, PbsBatchSystem)
        assert ours(batch).keys() == set(NAMES)
    assert [each.name for each in site.iterdir()] == ["key"]


@pytest.mark.parametrize("name", ["tm-here-e1-9", NAMES[0], "", "../scripts", "tm-here-e1-1.0"])
def test_a_forged_record_of_another_number_is_no_allocation(pbs: PbsWorld, name: str) -> None:
    batch = full(pbs)
    before = ours(batch)
    assert {name: number for name, (number, _) in before.items()} == HERE
    forge(pbs, "900.fake-pbs", name)
    queries = batch.calls.queries
    assert ours(batch) == before
    assert batch.calls.queries - queries == 4, "nothing is in doubt"
    assert [each.id for each in batch.snapshot().running if not each.ours] == ["900.fake-pbs"]


@pytest.mark.parametrize(
    "server", [".fake-pbs", "", ".", ".other", ".fake-pbs.example.org", ".FAKE-PBS", ".fake-pbs (2)"]
)
def test_of_two_records_of_a_number_that_one_counts_which_pbs_shows_when_asked_by_number(
    pbs: PbsWorld, server: str
) -> None:
    """Whichever form of the server's name the forged one has."""
    batch = full(pbs)
    before = ours(batch)
    forge(pbs, f"1{server}", NAMES[0])
    forge(pbs, f"2{server}", NAMES[1])
    forge(pbs, HERE[NAMES[1]], "another")
    assert ours(batch) == before
    assert len(batch.snapshot().running) == 2


def test_a_forged_record_of_an_allocation_that_has_ended_is_none(pbs: PbsWorld) -> None:
    batch = full(pbs)
    batch.cancel([NAMES[0]])
    wait(batch, NAMES[0], is_final)
    forge(pbs, HERE[NAMES[0]], NAMES[0])
    for each in (batch, client(pbs)):
        assert list(ours(each)) == [NAMES[1]]
        assert len(each.snapshot().running) == 1


def test_the_next_agent_knows_the_allocations_of_the_last_one(pbs: PbsWorld) -> None:
    batch = full(pbs)
    assert ours(client(pbs)) == ours(batch)


def test_a_lost_submission_is_known_by_the_number_that_pbs_lists_and_not_by_a_forged_one(
    pbs: PbsWorld,
) -> None:
    batch = client(pbs)
    forge(pbs, "900.fake-pbs", NAMES[0])
    lose(pbs, batch, NAMES[0])
    wait(client(pbs), NAMES[0], runs)
    (pbs.directory / "scripts" / f"{NAMES[0]}.id").unlink()
    assert {name: number for name, (number, _) in ours(client(pbs)).items()} == {NAMES[0]: "2.fake-pbs"}
