"""Inputs of jobs: copied once, hashed once, gone with the last job that needs them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tidemill.config.site import SiteConfig
from tidemill.model.job import Input, InputKind, JobSpec
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.data.staging import STAGED_BYTES_MIN, Stage
from tidemill.transfer.file import Roots

CONTENT = b"x" * STAGED_BYTES_MIN
DIGEST = hashlib.sha256(CONTENT).hexdigest()
OTHER = "0" * 64


pytestmark = pytest.mark.timing(site={"STAGE_CACHE_BYTES_MAX": 0})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "geometry"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


def stage_at(tmp_path: Path) -> Stage:
    directory = tmp_path / "stage"
    directory.mkdir(exist_ok=True)
    return Stage(
        directory,
        SiteConfig(name="s", server="unix:/x"),
        OwnedPlaces(Roots([tmp_path / "data"])),
    )


def staged(stage: Stage, job: int, path: Path, sha256: str | None = None) -> str | None:
    one = Input(name="geo", kind=InputKind.SHARED, url=str(path), sha256=sha256)
    (found,) = stage.stage(job, JobSpec(app="a", events=1, inputs=[one]), [(0, 1)])
    assert found.bytes == path.stat().st_size
    return found.sha256


def digests(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "stage" / "files").glob(".*.sha256"))


def test_a_large_shared_input_is_hashed_once_for_all_jobs_and_agents(tmp_path: Path, data: Path) -> None:
    stage = stage_at(tmp_path)
    assert staged(stage, 1, data) == DIGEST
    (kept,) = digests(tmp_path)
    kept.write_text(OTHER)  # so that reading it is told from hashing again
    assert staged(stage, 2, data) == OTHER
    assert staged(stage_at(tmp_path), 3, data) == OTHER
    assert staged(stage, 1, data) == OTHER


def test_a_digest_that_was_written_half_is_worked_out_again(tmp_path: Path, data: Path) -> None:
    stage = stage_at(tmp_path)
    for damaged in ("", DIGEST[:30], "no digest" * 9):
        staged(stage, 1, data)
        digests(tmp_path)[0].write_text(damaged)
        assert staged(stage, 2, data) == DIGEST
        assert staged(stage, 1, data) == DIGEST
        for job in (1, 2):
            stage.clean(job)
            stage.sweep()


def test_the_last_job_takes_the_copy_and_its_digest_with_it(tmp_path: Path, data: Path) -> None:
    stage = stage_at(tmp_path)
    for job in (1, 2):
        staged(stage, job, data)
    stage.clean(1)
    stage.sweep()
    assert len(digests(tmp_path)) == 1
    stage.clean(2)
    stage.sweep()
    assert list((tmp_path / "stage").iterdir()) == [tmp_path / "stage" / "files"]
    assert list((tmp_path / "stage" / "files").iterdir()) == []


@pytest.mark.timing(site={"STAGE_CACHE_BYTES_MAX": 10 * len(CONTENT)})
def test_a_copy_that_is_kept_serves_the_next_job_after_a_restart(tmp_path: Path, data: Path) -> None:
    stage = stage_at(tmp_path)
    staged(stage, 1, data)
    stage.clean(1)
    inode = next((tmp_path / "stage" / "files").glob("v-*")).stat().st_ino
    stage = stage_at(tmp_path)
    assert staged(stage, 2, data) == DIGEST
    assert (tmp_path / "stage" / "2" / "geo").stat().st_ino == inode
    assert (stage.cache.figures.hits, stage.cache.figures.misses) == (1, 0)


def test_copies_are_removed_once_for_all_jobs_and_not_while_one_is_being_made(
    tmp_path: Path, data: Path
) -> None:
    stage = stage_at(tmp_path)
    for job in (1, 2):
        staged(stage, job, data)
        stage.clean(job)
    with stage._lock:  # as while a thread copies a large file
        stage.sweep()
    assert digests(tmp_path)
    stage.sweep()
    assert list((tmp_path / "stage" / "files").iterdir()) == []


def test_small_inputs_and_those_whose_digest_is_told_need_none(tmp_path: Path, data: Path) -> None:
    small = data.with_name("small")
    small.write_bytes(b"small")
    stage = stage_at(tmp_path)
    assert staged(stage, 1, small) is None
    assert staged(stage, 2, data, DIGEST) == DIGEST
    assert sum(path.name.startswith(".small") for path in (tmp_path / "stage" / "1").iterdir()) == 0
