"""Jobs that an agent may leave in the batch system at its end, and how users learn of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.batch.contract import PLAIN_MAX, PlainReply
from tidemill.cli.start.up import _check_batch
from tidemill.errors import SiteError
from tidemill.model.state import AllocationState
from tidemill.site.nodes.unended import UnendedJob, cancel_command, note_unended, read_unended, unended
from tidemill.site.state.site_state import Allocation

SHOWS = PlainReply(shown={"a": "31_0"}, command="scontrol show job 31", usual="squeue --me")


def allocation(
    name: str, state: AllocationState = AllocationState.ACTIVE, *, pilots: int = 1, ended: int = 0
) -> Allocation:
    return Allocation(
        name=name, fleet="f", nodes=1, cores=1, state=state, intended_us=1, batch_id="7", pilots=pilots,
        pilots_ended=ended,
    )  # fmt: skip


def test_a_pilot_that_has_not_signed_off_may_run_whatever_queries_show() -> None:
    first, second = unended([allocation("a"), allocation("b")], SHOWS)
    assert (first.number, first.why) == (
        "31_0",
        "`scontrol show job 31` shows it; its pilot has not signed off",
    )
    assert (second.number, second.why) == ("7", "its pilot has not signed off")


def test_what_has_ended_or_signed_off_is_not_named() -> None:
    assert unended([allocation("a", ended=1), allocation("c", AllocationState.CANCELED)], SHOWS) == []


def test_what_never_had_a_pilot_is_named_where_the_plain_query_shows_it_or_could_not_be_asked() -> None:
    waiting = [allocation(name, AllocationState.QUEUED, pilots=0) for name in ("a", "b")]
    assert [each.name for each in unended(waiting, SHOWS)] == ["a"]
    assert [each.name for each in unended(waiting, None)] == ["a", "b"]
    many = [allocation(f"q{k}", AllocationState.QUEUED, pilots=0) for k in range(PLAIN_MAX + 1)]
    assert [each.name for each in unended(many, SHOWS)] == [f"q{PLAIN_MAX}"], "it was not asked for"


def test_the_file_is_there_while_something_may_run(tmp_path: Path) -> None:
    jobs = [UnendedJob(name="a", number="31", why="x")]
    note_unended(tmp_path, jobs)
    assert read_unended(tmp_path) == jobs
    note_unended(tmp_path, [])
    assert not [*tmp_path.iterdir()]
    assert read_unended(tmp_path) == []
    (tmp_path / "unended.json").write_text("{")
    (unknown,) = read_unended(tmp_path)
    assert "cannot be read" in unknown.why


@pytest.mark.parametrize(("batch", "word"), [("slurm", "scancel"), ("pbs", "qdel")])
def test_a_stop_that_leaves_jobs_behind_says_so_with_the_command_that_ends_them(
    tmp_path: Path, batch: str, word: str
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "site.toml").write_text(f'name = "s"\nserver = "unix:/x"\nbatch = "{batch}"\n')
    _check_batch(tmp_path)
    note_unended(site, [UnendedJob(name="tm-s-e1-1", number="31", why="its pilot has not signed off")])
    with pytest.raises(SiteError) as caught:
        _check_batch(tmp_path)
    assert caught.value.exit_code == 3
    assert caught.value.message == (
        "stopped, but 1 job in the batch system may still run: `tm-s-e1-1` (31): its pilot has not signed off"
    )
    assert caught.value.hint is not None
    assert f"`{word} 31`" in caught.value.hint


def test_a_local_job_counts_only_while_its_processes_live(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "site.toml").write_text('name = "s"\nserver = "unix:/x"\nbatch = "local"\n')
    note_unended(site, [UnendedJob(name="tm-nobody-has-this-e1-1", number="1", why="x")])
    _check_batch(tmp_path)


def test_without_numbers_there_is_no_command() -> None:
    assert cancel_command("slurm", [UnendedJob(name="a", number="", why="x")]) == ""
