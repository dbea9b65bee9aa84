"""What a person reads while a probe waits."""

from __future__ import annotations

import pytest

from tidemill.batch.contract import Answer, Ending, Status
from tidemill.model.state import AllocationState
from tidemill.site.setup.probe import probe_news


def status(state: AllocationState, reason: str = "", nodes: tuple[str, ...] = ()) -> Status:
    return Status(answer=Answer.FOUND, state=state, reason=reason, nodes=nodes, ending=Ending.NONE)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "the probe waits for a free core (the batch system says: Resources)"),
        ("Priority", "jobs of other users that come first"),
        ("QOSMaxJobsPerUserLimit", "a limit of your account or QOS (the batch system says: QOSMax"),
        ("AssocGrpCpuLimit", "a limit of your account or QOS"),
        ("PartitionTimeLimit", "its partition: its limit or state does not let it start"),
        (
            "Not Running: Insufficient amount of resource: ncpus",
            "a compute node (the batch system says: Not Running",
        ),
        ("", "the probe waits for a compute node"),
    ],
)
def test_a_waiting_probe_says_what_it_waits_for_and_quotes_the_batch_system(reason: str, words: str) -> None:
    assert words in probe_news(status(AllocationState.QUEUED, reason), "")


def test_a_probe_that_runs_has_ended_or_cannot_be_asked_for_says_so() -> None:
    assert probe_news(status(AllocationState.ACTIVE, nodes=("n3",)), "") == "the probe runs on n3"
    assert "report is awaited" in probe_news(status(AllocationState.COMPLETED), "")
    assert probe_news(None, "it is away") == "the batch system cannot be asked: it is away"
    assert probe_news(None, "") == "the probe waits for a compute node"
