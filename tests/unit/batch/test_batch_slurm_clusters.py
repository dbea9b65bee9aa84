"""`sbatch --parsable` prints `id;cluster` if there are several clusters: only the queried cluster is accepted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fakes.slurm.fake import install

from tidemill.batch.contract import BatchSubmission
from tidemill.batch.slurm import SlurmBatchSystem
from tidemill.config.site import Cluster
from tidemill.errors import SiteError

SUBMISSION = BatchSubmission(
    name="tm-here-e1-1", command=["true"], nodes=1, cores=1, memory_mb=0, walltime_s=60.0
)


def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cluster: str) -> tuple[SlurmBatchSystem, Path]:
    state = install(tmp_path / "bin", {"cluster": cluster, "config": ["ClusterName = genius"]})
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return SlurmBatchSystem(tmp_path / "site", Cluster(launcher="fork"), key="0123456789abcdef"), state


def test_the_name_of_our_own_cluster_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, _ = slurm(tmp_path, monkeypatch, cluster="genius")
    assert batch.submit(SUBMISSION) == "1000001"


def test_a_job_that_went_to_another_cluster_is_canceled_there_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, state = slurm(tmp_path, monkeypatch, cluster="wice")
    with pytest.raises(
        SiteError, match="to cluster `wice`, but Tidemill does not read its queue; it was canceled"
    ) as caught:
        batch.submit(SUBMISSION)
    assert not caught.value.transient
    assert [job["state"] for job in json.loads(state.read_text())["jobs"]] == ["CANCELLED"]
    with pytest.raises(SiteError, match="to cluster `wice`"):
        batch.submit(SUBMISSION)
