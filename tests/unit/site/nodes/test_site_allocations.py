"""What the site makes of the batch system's word on its allocations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tidemill import clock
from tidemill.batch.contract import Answer, Ending, Status
from tidemill.config.site import Cluster, NodeUse, SiteConfig
from tidemill.model.state import AllocationState
from tidemill.site.nodes.allocations import AllocationRequest, Allocations
from tidemill.site.nodes.batch_calls import Actions, ActionsDone
from tidemill.site.nodes.costs import Costs
from tidemill.site.nodes.quarantine import NodeQuarantine
from tidemill.site.state import site_state
from tidemill.site.state.log import SiteLog, restore

pytestmark = pytest.mark.timing(batch={"UNKNOWN_S": 600})

CONFIG = SiteConfig(name="here", server="unix:/s", batch="slurm", cluster=Cluster())
ASK = AllocationRequest(fleet="e1-1", nodes=1, cores=4, memory_mb=0, walltime_s=600)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SiteLog]:
    (tmp_path / "log").mkdir()
    restored = restore(tmp_path / "log", "here")
    log = SiteLog(tmp_path / "log", 1, restored.pool, lines_max=1000)
    log.apply(site_state.Opened(epoch=1, host="h", pid=1, at_us=0, read=restored.read))
    log.apply(site_state.FleetOpened(fleet="e1-1", at_us=0))
    yield log
    log.close()


@pytest.fixture
def book(log: SiteLog, tmp_path: Path) -> Allocations:
    nodes = NodeQuarantine(tmp_path / "quarantine.json", CONFIG, Costs(10))
    return Allocations(log, CONFIG, binary=Path("/node"), fleets=tmp_path, nodes=nodes)


def state_of(log: SiteLog, name: str) -> AllocationState:
    return log.pool.state.allocations[name].state


def test_gpus_of_the_site_s_nodes_are_asked_for_with_each_allocation(log: SiteLog, tmp_path: Path) -> None:
    nodes = NodeQuarantine(tmp_path / "quarantine.json", CONFIG, Costs(10))
    for gpus, asked in ((4, 4), (0, 0), (None, 0)):
        config = msgspec.structs.replace(CONFIG, node=NodeUse(gpus=gpus))
        book = Allocations(log, config, binary=Path("/node"), fleets=tmp_path, nodes=nodes)
        assert book.intend(ASK).gpus == asked
        assert book.intend(msgspec.structs.replace(ASK, nodes=2, wide=True)).gpus == asked


def test_what_the_adapter_has_waited_for_is_lost_at_once(log: SiteLog, book: Allocations) -> None:
    submission = book.intend(ASK)
    book.note(ActionsDone(acts=Actions(submissions=[submission]), submitted={submission.name: "7"}))
    assert state_of(log, submission.name) is AllocationState.QUEUED
    book.apply_statuses({submission.name: Status(answer=Answer.UNCLEAR)})
    assert state_of(log, submission.name) is AllocationState.QUEUED
    book.apply_statuses({submission.name: Status(answer=Answer.GONE)})
    assert state_of(log, submission.name) is AllocationState.LOST
    assert len(book.leftovers) == 1


def test_what_has_ended_is_remembered_for_its_files(book: Allocations) -> None:
    submission = book.intend(ASK)
    book.note(ActionsDone(acts=Actions(submissions=[submission]), submitted={submission.name: "7"}))
    assert len(book.leftovers) == 0
    done = Status(answer=Answer.FOUND, state=AllocationState.COMPLETED, batch_id="7", ending=Ending.DONE)
    book.apply_statuses({submission.name: done})
    assert len(book.leftovers) == 1


def test_a_hold_counts_until_tidemill_has_canceled_what_is_held(log: SiteLog, book: Allocations) -> None:
    """An operator may resume the site before the next poll: the hold of the last one must not stop it again."""
    submission = book.intend(ASK)
    book.note(ActionsDone(acts=Actions(submissions=[submission]), submitted={submission.name: "7"}))
    book.apply_statuses(
        {
            submission.name: Status(
                answer=Answer.FOUND, state=AllocationState.QUEUED, batch_id="7", held="Hold_Types s"
            )
        }
    )
    assert book.held == [(submission.name, "Hold_Types s")]
    log.apply(site_state.Ordered(cancel=[submission.name], at_us=1))
    assert book.held == []


def test_wide_allocations_queue_like_anybodys_and_pilots_behind_them(book: Allocations) -> None:
    assert book.intend(ASK).polite
    assert not book.intend(msgspec.structs.replace(ASK, nodes=4, wide=True)).polite


def test_an_intent_whose_call_may_still_be_under_way_is_not_lost_yet(log: SiteLog, book: Allocations) -> None:
    submission = book.intend(ASK)
    book.apply_statuses({submission.name: Status(answer=Answer.GONE)})
    assert state_of(log, submission.name) is AllocationState.INTENDED


def run_on(book: Allocations, name: str, *hosts: str) -> None:
    active = Status(
        answer=Answer.FOUND, state=AllocationState.ACTIVE, batch_id="7", nodes=hosts, started_s=clock.now_s()
    )
    book.apply_statuses({name: active})


def submitted(book: Allocations, **changes: int) -> str:
    submission = book.intend(msgspec.structs.replace(ASK, **changes))
    book.note(ActionsDone(acts=Actions(submissions=[submission]), submitted={submission.name: "7"}))
    return submission.name


@pytest.mark.parametrize("domain", ["", ".cluster.org"])
def test_starts_that_fail_everywhere_pause_whatever_hosts_call_themselves(
    log: SiteLog, book: Allocations, domain: str
) -> None:
    """The start has the batch system's name of a node, the end that of `uname -n`, which may have a domain."""
    for number in range(40):
        name, host = submitted(book), f"n{number % 10}"
        run_on(book, name, host)
        failed = Status(
            answer=Answer.FOUND,
            state=AllocationState.FAILED,
            batch_id="7",
            ending=Ending.FAILED,
            nodes=(host + domain,),
        )
        book.apply_statuses({name: failed})
        assert log.pool.state.allocations[name].hosts == [host]
    verdict = book.nodes.judge(clock.now_s())
    assert verdict.pause_s > 500
    assert (verdict.exclude, verdict.tries) == ((), 1)


def test_all_nodes_of_a_wide_allocation_are_remembered_when_its_script_knows_its_first_one_alone(
    log: SiteLog, book: Allocations
) -> None:
    name = submitted(book, nodes=3)
    run_on(book, name, "n1", "n2", "n3")
    book.apply_statuses(
        {name: Status(answer=Answer.FOUND, state=AllocationState.FAILED, ending=Ending.FAILED, nodes=("n1",))}
    )
    assert log.pool.state.allocations[name].hosts == ["n1", "n2", "n3"]


def test_the_hosts_of_an_end_that_the_accounting_reports_with_its_start_count(
    log: SiteLog, book: Allocations
) -> None:
    name = submitted(book)
    run_on(book, name, "n1")
    done = Status(
        answer=Answer.FOUND,
        state=AllocationState.COMPLETED,
        ending=Ending.DONE,
        nodes=("n2",),
        started_s=clock.now_s(),
    )
    book.apply_statuses({name: done})
    assert log.pool.state.allocations[name].hosts == ["n2"], "it was queued again between two polls"


def test_a_node_is_not_healthy_for_ever_because_an_allocation_left_it(
    log: SiteLog, book: Allocations
) -> None:
    lost, moved = submitted(book), submitted(book)
    run_on(book, lost, "n1")
    run_on(book, moved, "n2")
    book.apply_statuses({lost: Status(answer=Answer.GONE)})
    assert state_of(log, lost) is AllocationState.LOST
    book.apply_statuses(
        {moved: Status(answer=Answer.FOUND, state=AllocationState.QUEUED, batch_id="7", requeued=1)}
    )
    run_on(book, moved, "n3")
    failing = submitted(book)
    run_on(book, failing, "n4")
    book.apply_statuses(
        {
            failing: Status(
                answer=Answer.FOUND, state=AllocationState.FAILED, ending=Ending.FAILED, nodes=("n4",)
            )
        }
    )
    book.apply_statuses({moved: Status(answer=Answer.GONE)})
    verdict = book.nodes.judge(clock.now_s() + 1)
    assert verdict.why.startswith("starts fail on 1 node and work on 0")
