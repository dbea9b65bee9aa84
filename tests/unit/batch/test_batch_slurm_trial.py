"""Whether Slurm would take a job, asked without submitting one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.slurm.fake import install

from tidemill.batch.slurm import SlurmBatchSystem
from tidemill.config.site import Cluster


def test_facts_submit_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    folder = tmp_path / "bin"
    install(folder, {"crowd": {"nodes": 4}, "calls": str(calls)})
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    facts = SlurmBatchSystem(tmp_path / "site", Cluster(partition="batch"), key="k").facts()
    assert facts.refused == ""
    trials = [line for line in calls.read_text().splitlines() if "sbatch" in line]
    assert len(trials) == 1
    assert "--test-only" in trials[0]


@pytest.mark.parametrize(
    "answer", ["sbatch: error: Invalid account or account/partition combination specified"]
)
def test_a_refusal_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    folder = tmp_path / "bin"
    install(folder, {"crowd": {"nodes": 4}})
    (folder / "sbatch").unlink()
    (folder / "sbatch").write_text(f"#!/bin/sh\necho '{answer}' >&2\nexit 1\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    facts = SlurmBatchSystem(tmp_path / "site", Cluster(partition="batch"), key="k").facts()
    assert "Invalid account" in facts.refused


def test_a_job_that_a_wrapper_has_submitted_all_the_same_is_canceled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, canceled = tmp_path / "bin", tmp_path / "canceled"
    install(folder, {"crowd": {"nodes": 4}})
    for name, body in (("sbatch", "echo 4711"), ("scancel", f'echo "$@" >{canceled}')):
        (folder / name).unlink()
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    assert SlurmBatchSystem(tmp_path / "site", Cluster(partition="batch"), key="k").facts().refused == ""
    assert canceled.read_text().split() == ["4711"]
