"""What keeps Tidemill's jobs from starting, and the names of the nodes on which they run, on complete fake commands."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.pbs.test_pbs_endings import client, is_final, kill, runs, submission, wait
from tests.worlds.batch.batch_pbs import PbsWorld, person, world

from tidemill.batch.contract import Status
from tidemill.batch.pbs import PbsBatchSystem
from tidemill.batch.pbs.command import node_aliases, node_name
from tidemill.batch.pbs.places import read_hosts
from tidemill.model.state import AllocationState

NAME = "tm-here-e1-1"


@pytest.fixture
def pbs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PbsWorld]:
    with world(request, tmp_path) as made:
        yield made


def array(batch: PbsBatchSystem, count: int) -> list[Status]:
    """The elements of a new array."""
    batch.submit(msgspec.structs.replace(submission("sleep 600"), count=count))
    return elements(batch, count)


def elements(batch: PbsBatchSystem, count: int) -> list[Status]:
    names = [f"{NAME}.{index}" for index in range(count)]
    told = batch.status(names)
    return [told[name] for name in names]


def hold(number: str) -> None:
    subprocess.run(["qhold", "-h", "s", number], env=person(), check=True)


def test_a_job_that_the_staff_hold_is_held(pbs: PbsWorld) -> None:
    (pbs.state / "no-scheduler").touch()
    batch = client(pbs)
    hold(batch.submit(submission("sleep 600")))
    told = batch.status([NAME])[NAME]
    assert (told.held, told.hopeless) == ("Hold_Types s", "")


def test_elements_that_wait_in_an_array_that_the_staff_hold_are_held(pbs: PbsWorld) -> None:
    """Two nodes: two of four elements run, and the others have the state Q whatever holds their array."""
    batch = client(pbs)
    array(batch, 4)
    wait(batch, f"{NAME}.1", runs)
    hold("1[]")
    told = elements(batch, 4)
    assert [each.state for each in told] == [AllocationState.ACTIVE] * 2 + [AllocationState.QUEUED] * 2
    assert [each.held for each in told] == ["", "", "Hold_Types s", "Hold_Types s"]
    assert [each.hopeless for each in told] == [""] * 4


def test_what_pbs_holds_after_failed_starts_can_never_start_and_is_not_held_by_staff(pbs: PbsWorld) -> None:
    (pbs.state / "broken").write_text("n1")
    batch = client(pbs)
    batch.submit(submission("sleep 600"))
    told = batch.status([NAME])[NAME]
    assert (told.state, told.held) == (AllocationState.QUEUED, "")
    assert told.hopeless == "job held, too many failed attempts to run"
    hold("1")
    assert batch.status([NAME])[NAME].held == "Hold_Types s", "now it is the staff's"


def test_elements_of_an_array_that_pbs_holds_after_failed_starts_can_never_start(pbs: PbsWorld) -> None:
    (pbs.state / "broken").write_text("n1")
    batch = client(pbs)
    told = array(batch, 3)
    assert [each.held for each in told] == [""] * 3
    assert [bool(each.hopeless) for each in told] == [True] * 3
    batch.cancel([f"{NAME}.{index}" for index in range(3)])
    assert wait(batch, f"{NAME}.2", is_final).state is AllocationState.CANCELED


def test_nodes_are_told_by_the_names_of_hosts_while_it_runs_and_in_the_history(pbs: PbsWorld) -> None:
    """Hosts of several vnodes: pools and quarantine know hosts."""
    pbs.configure(vnodes=2, job_history_enable="True")
    batch = client(pbs)
    assert sorted(node.name for node in batch.snapshot().nodes) == ["n1", "n2"]
    kill(batch)
    assert batch.status([NAME])[NAME].nodes == ("n1",)
    assert wait(batch, NAME, is_final).nodes == ("n1",)


def test_a_host_that_calls_itself_otherwise_has_the_name_of_the_machine() -> None:
    aliases = node_aliases(["n1", "n2.cluster.org", "n3.left", "n3.right"])
    said = ["n1", "n1.cluster.org", "n2", "n2.cluster.org", "n3.left", "n3", "n4.cluster.org"]
    assert [node_name(host, aliases) for host in said] == [
        "n1", "n1", "n2.cluster.org", "n2.cluster.org", "n3.left", "n3", "n4.cluster.org",
    ]  # fmt: skip


def test_hosts_are_read_once_each() -> None:
    assert read_hosts("n1/0*4+n1/1*4+n2/0") == ["n1", "n2"]
    assert read_hosts("") == []


def test_the_node_of_a_start_that_failed_before_a_poll_has_the_name_of_the_machine(pbs: PbsWorld) -> None:
    """Its script alone knows where it ran, by `uname -n`."""
    batch = client(pbs)
    batch.submit(submission("exit 1"))
    wait(batch, NAME, is_final)
    (pbs.directory / "exit" / NAME).write_text("1 ran n1.cluster.org\n")
    batch = client(pbs)
    batch.snapshot()
    assert batch.status([NAME])[NAME].nodes == ("n1",)
