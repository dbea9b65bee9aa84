"""Submissions whose replies were lost, and queries of many allocations at once, on complete fake commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.pbs.test_pbs_endings import client, is_final, runs, submission, wait
from tests.worlds.batch.batch_pbs import PbsWorld, world
from tests.worlds.batch.batch_world import KEY

from tidemill.batch.contract import Answer
from tidemill.batch.pbs import PbsBatchSystem, command
from tidemill.errors import SiteError
from tidemill.model.state import AllocationState

NAME = "tm-here-e1-1"


@pytest.fixture
def pbs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PbsWorld]:
    with world(request, tmp_path) as made:
        yield made


def lose(pbs: PbsWorld, batch: PbsBatchSystem, name: str = NAME, count: int = 1) -> None:
    """Submit; PBS takes the job, and no reply comes."""
    (pbs.state / "mute").touch()
    with pytest.raises(SiteError, match="expected a number"):
        batch.submit(msgspec.structs.replace(submission("sleep 600", name), count=count))
    (pbs.state / "mute").unlink()


def test_what_was_submitted_without_a_reply_can_be_canceled(pbs: PbsWorld) -> None:
    batch = client(pbs)
    lose(pbs, batch)
    assert wait(batch, NAME, runs).batch_id == "1.fake-pbs"
    batch.cancel([NAME])
    assert wait(batch, NAME, is_final).state is AllocationState.CANCELED
    assert pbs.commands("qdel") == ["qdel 1.fake-pbs"]


def test_the_limit_of_what_was_submitted_without_a_reply_can_be_lowered(pbs: PbsWorld) -> None:
    batch = client(pbs)
    lose(pbs, batch)
    started_s = wait(batch, NAME, runs).started_s or 0.0
    assert batch.shorten({NAME: started_s + 100}) == {NAME: started_s + 100}


def test_elements_of_an_array_without_a_reply_are_canceled_one_by_one(pbs: PbsWorld) -> None:
    batch = client(pbs)
    lose(pbs, batch, count=2)
    wait(batch, f"{NAME}.1", runs)
    batch.cancel([f"{NAME}.1"])
    assert wait(batch, f"{NAME}.1", is_final).state is AllocationState.CANCELED
    assert batch.status([f"{NAME}.0"])[f"{NAME}.0"].state is AllocationState.ACTIVE
    assert pbs.commands("qdel") == ["qdel 1[1].fake-pbs"]
    assert batch.status([f"{NAME}.2"])[f"{NAME}.2"].answer is Answer.GONE, "it has two elements"


def test_a_number_that_was_found_is_known_to_the_next_agent(pbs: PbsWorld) -> None:
    """An agent that was killed between `qsub` and its note: nothing is looked for any more once it was found."""
    first = client(pbs)
    lose(pbs, first)
    first.status([NAME])
    before = len(pbs.commands("qselect"))
    client(pbs).cancel([NAME])
    assert len(pbs.commands("qselect")) == before
    assert pbs.commands("qdel") == ["qdel 1.fake-pbs"]


def test_all_lost_submissions_are_looked_for_by_one_command_each_of_two(pbs: PbsWorld) -> None:
    batch = client(pbs)
    names = [f"tm-here-e1-{number}" for number in range(1, 10)]
    with pbs.away():
        for name in names[1:]:
            with pytest.raises(SiteError):
                batch.submit(submission("sleep 600", name))
    lose(pbs, batch, names[0])
    before = batch.calls.queries
    told = batch.status(names)
    assert batch.calls.queries - before == 3, "qselect, qstat of what it lists, and of what was found"
    assert [told[name].answer for name in names] == [Answer.FOUND, *[Answer.UNCLEAR] * 8]
    before = batch.calls.queries
    batch.status(names)
    assert batch.calls.queries - before == 1


def test_the_server_is_asked_for_all_allocations_by_one_request(pbs: PbsWorld) -> None:
    """Without `-E`, `qstat` connects and asks once for each number."""
    batch = client(pbs)
    names = [f"tm-here-e1-{number}" for number in (1, 2, 3)]
    for name in names:
        batch.submit(submission("sleep 600", name))
    told = batch.status([*reversed(names), "tm-here-e1-4"])
    assert [told[name].batch_id for name in names] == [f"{number}.fake-pbs" for number in (1, 2, 3)]
    assert pbs.commands("qstat") == ["qstat -E -f 3.fake-pbs 2.fake-pbs 1.fake-pbs"]
    batch.cancel(["tm-here-e1-2"])
    assert wait(batch, "tm-here-e1-2", is_final).state is AllocationState.CANCELED
    assert batch.status(names[::2])["tm-here-e1-3"].answer is Answer.FOUND


def test_a_qstat_that_cannot_group_is_asked_so_once(pbs: PbsWorld) -> None:
    (pbs.state / "old").touch()
    batch = client(pbs)
    batch.submit(submission("sleep 600"))
    wait(batch, NAME, runs)
    batch.status([NAME])
    said = pbs.commands("qstat")
    assert said[0] == "qstat -E -f 1.fake-pbs"
    assert set(said[1:]) == {"qstat -f 1.fake-pbs"}


def test_many_numbers_are_spread_over_commands(pbs: PbsWorld) -> None:
    (pbs.state / "no-scheduler").touch()
    batch = client(pbs)
    count = command.IDS_MAX + 1
    names = [f"{NAME}.{index}" for index in range(count)]
    batch.submit(msgspec.structs.replace(submission("true"), count=count))
    before = batch.calls.queries
    assert {each.answer for each in batch.status(names).values()} == {Answer.FOUND}
    assert batch.calls.queries - before == 2
    batch.cancel(names)
    assert [len(line.split()) - 1 for line in pbs.commands("qdel")] == [command.IDS_MAX, 1]


def test_cancel_looks_at_once_for_a_submission_that_was_not_there_a_moment_ago(pbs: PbsWorld) -> None:
    batch = client(pbs)
    with pbs.away(), pytest.raises(SiteError):
        batch.submit(submission("sleep 600"))
    assert batch.status([NAME])[NAME].answer is Answer.UNCLEAR
    number = pbs.plant(name=NAME, comment=f"tidemill {KEY}", stranger=False)  # as if `qsub` came late
    batch.cancel([NAME])
    assert pbs.commands("qdel") == [f"qdel {number}"]


@pytest.mark.timing(batch={"UNKNOWN_S": 0.3})
def test_cancel_of_a_lost_submission_is_an_error_until_it_counts_as_gone(pbs: PbsWorld) -> None:
    batch = client(pbs)
    lives = msgspec.structs.replace(submission("sleep 600"), name="tm-here-e1-2")
    batch.submit(lives)
    with pbs.away(), pytest.raises(SiteError):
        batch.submit(submission("sleep 600"))
    with pytest.raises(SiteError, match=f"1 of 2 allocations .* `{NAME}`") as caught:
        batch.cancel([NAME, lives.name])
    assert caught.value.transient
    assert pbs.commands("qdel") == ["qdel 1.fake-pbs"], "the other one is deleted"
    wait(batch, NAME, lambda each: each.answer is Answer.GONE)
    batch.cancel([NAME])


@pytest.mark.parametrize(
    "said", ["", "qstat: garbage", "Job Id: 1.fake-pbs", "Job Id: 1.fake-pbs\n    job_state = R"]
)
def test_cancel_by_a_reply_that_shows_nothing_is_an_error_and_can_be_ordered_again(
    pbs: PbsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    batch = client(pbs)
    batch.submit(submission("sleep 600"))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "qstat").write_text(f"#!/bin/sh\necho '{said}'\n")
    (broken / "qstat").chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{broken}:{os.environ['PATH']}")
        with pytest.raises(SiteError) as caught:
            batch.cancel([NAME])
    assert caught.value.transient
    batch.cancel([NAME])
    assert pbs.commands("qdel") == ["qdel 1.fake-pbs"]
