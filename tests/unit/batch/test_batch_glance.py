"""A glance is read from what sdiag and qstat print, and is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.slurm.fake import install

from tidemill.batch.pbs.glance import read_counts
from tidemill.batch.polite import GLANCE_BYTES_MAX
from tidemill.batch.slurm import SlurmBatchSystem, text
from tidemill.config.site import Cluster
from tidemill.errors import SiteError
from tidemill.model.machine import JobCounts

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_sdiag_counts_what_was_submitted_and_what_has_ended() -> None:
    output = (FIXTURES / "slurm" / "sdiag-22.05.txt").read_bytes()
    assert text.counts(output) == JobCounts(submitted=1207, ended=911 + 230 + 4)


@pytest.mark.parametrize("output", [b"", b"Jobs submitted: many", b"Jobs submitted: 3", b"\xff\xfe"])
def test_an_sdiag_without_counters_shows_nothing(output: bytes) -> None:
    assert text.counts(output) is None


@pytest.mark.parametrize("form", ["json", "text"])
def test_pbs_counts_what_waits_and_what_runs(form: str) -> None:
    output = (FIXTURES / "pbs" / "server.json").read_bytes()
    if form == "text":
        output = b"Server: head\n    state_count = Transit:0 Queued:3 Held:2 Waiting:0 Running:4 Exiting:1 Begun:2 \n"
    assert read_counts(output) == JobCounts(waiting=3, running=7)


@pytest.mark.parametrize("output", [b"", b"state_count = Transit:0", b'"state_count":"Queued:1"'])
def test_a_pbs_server_without_counts_shows_nothing(output: bytes) -> None:
    assert read_counts(output) is None


def test_a_glance_that_prints_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bin", {"sdiag_bytes": GLANCE_BYTES_MAX + 1})
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    batch = SlurmBatchSystem(tmp_path / "site", Cluster(launcher="fork"), key="0123456789abcdef")
    with pytest.raises(SiteError, match="a glance may have"):
        batch.glance()


def test_a_glance_costs_the_same_whatever_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for waiting in (10, 100_000):
        folder = tmp_path / str(waiting)
        install(folder, {"crowd": {"waiting": waiting, "nodes": 10}})
        with monkeypatch.context() as context:
            context.setenv("PATH", str(folder), prepend=":")
            batch = SlurmBatchSystem(folder / "site", Cluster(launcher="fork"), key="0123456789abcdef")
            assert batch.glance() is not None
        seen.append(batch.calls.bytes)
        assert (batch.calls.queries, batch.calls.glances) == (1, 1)
    assert seen[0] == seen[1]
