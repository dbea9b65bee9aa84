"""A payload leaves outputs that are to fill the site's disk or to hold up its pilot: sparse, large, special, many."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.processes import send
from tests.worlds.home.world import World, world

from tidemill.client.outputs import local_path
from tidemill.model.job import JobSpec, Output, OutputKind, Resources

MB = 1_000_000
LIMIT_MB = 60
SHORT = {"resources": Resources(memory_mb=300, scratch_mb=100), "retries": 0}


@pytest.fixture(scope="module")
def site() -> Iterator[World]:
    """One core: what holds up the pilot holds up everybody."""
    timing = {"site": {"BUNDLE_BYTES_MAX": MB, "DELIVERY_BYTES_MAX": 150 * MB}}
    with world(nodes=1, cores=1, extra=f'output_bytes_max = "{LIMIT_MB}MB"', timing=timing) as it:
        yield it


def leaving(script: str, *paths: str, **spec: object) -> JobSpec:
    """A command whose outputs are these files."""
    given = {**SHORT, "outputs": [Output(name=path, path=path) for path in paths], **spec}
    return JobSpec(command=["/bin/sh", "-ec", script], **given)  # type: ignore[arg-type]


def on_disk(folder: Path) -> int:
    """Bytes that files below a directory take."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def why(it: World, job: int) -> str:
    """Class and message of a job's failure, once it has failed."""
    it.wait_for(lambda: it.client.job(job).row.state in ("FAILED", "COMPLETED"), f"job {job} ends")
    (failure, *_) = it.client.job(job).failures
    return f"{failure.evidence.failure}: {failure.evidence.message}"


def test_a_sparse_output_of_100_gb_fails_its_job_and_writes_nothing(site: World) -> None:
    job, other = site.submit("sparse", leaving("truncate -s 100G o", "o"), leaving("echo fine > o", "o"))
    text = why(site, job)
    assert text.startswith("payload: "), text
    assert "107374182400 bytes" in text
    assert "`output_bytes_max`" in text
    site.wait_for(lambda: site.client.job(other).row.state == "COMPLETED", "the others' job")
    assert on_disk(site.home / "site" / "fleets") < 20 * MB


def test_outputs_are_counted_together(site: World) -> None:
    (job,) = site.submit("together", leaving("truncate -s 40MB a; truncate -s 40MB b", "a", "b"))
    assert "80000000 bytes with those before it" in why(site, job)


@pytest.mark.parametrize("kind", [OutputKind.EACH, OutputKind.CONCAT])
def test_holes_within_the_limit_are_kept_on_the_way_to_the_owner(site: World, kind: OutputKind) -> None:
    before = on_disk(site.home / "site")
    script = f"printf x > o; truncate -s {LIMIT_MB // 2}MB o; printf y >> o"
    spec = leaving(script, events=2, outputs=[Output(name="o", path="o", kind=kind)])
    (job,) = site.submit(f"holes-{kind}", spec)
    site.wait_campaign(f"holes-{kind}")
    (output,) = site.client.job(job).outputs
    path = local_path(output)
    one = b"x" + bytes(LIMIT_MB // 2 * MB - 1) + b"y"
    if kind is OutputKind.CONCAT:
        assert (
            hashlib.sha256(path.read_bytes()).hexdigest()
            == hashlib.sha256(one * 2).hexdigest()
            == output.sha256
        )
    else:
        assert path.stat().st_size > 2 * len(one)
        assert path.read_bytes().count(one) == 2
    assert on_disk(site.home / "site") < before + 5 * MB


def test_a_job_whose_outputs_are_too_much_together_is_not_delivered(site: World) -> None:
    (job,) = site.submit("much", leaving(f"truncate -s {LIMIT_MB - 1}MB o", "o", events=3))
    text = why(site, job)
    assert text.startswith("stage_out: "), text
    assert "this site delivers at most 150000000 of one job" in text
    assert [path for path in (site.home / "site" / "out").glob("much/*") if path.is_file()] == []


def test_special_files_are_no_outputs_and_many_files_hold_nobody_up(site: World) -> None:
    scripts = {
        "device": "mknod o b 7 0 2>/dev/null || mknod o c 1 5 2>/dev/null || cp -a /dev/zero o",
        "a link to a device": "ln -s /dev/zero o",
        "a pipe": "mkfifo o",
        "a directory of many files": "mkdir o; cd o; seq 20000 | xargs touch",
    }
    jobs = site.submit("special", *(leaving(script, "o") for script in scripts.values()))
    (fine,) = site.submit("special", leaving("seq 20000 | xargs touch; echo fine > o", "o"))
    for what, job in zip(scripts, jobs, strict=True):
        text = why(site, job)
        assert text.startswith("payload: "), f"{what}: {text}"
    site.wait_campaign("special")
    assert site.client.job(fine).row.state == "COMPLETED"


@pytest.fixture(scope="module")
def patient() -> Iterator[World]:
    """A site that keeps outputs as large as a payload can name: a copy takes longer than the tests wait."""
    timing = {"site": {"BUNDLE_BYTES_MAX": MB, "DELIVERY_BYTES_MAX": 8 * 10**12}}
    with world(nodes=1, cores=1, extra='output_bytes_max = "8000GB"', timing=timing) as it:
        yield it


def copying(it: World, campaign: str) -> tuple[int, Path]:
    """A job whose output is on its way into the bundle, and the bundle."""
    known = set(it.home.glob("site/fleets/*/bundle/*.tar"))
    started = {path: path.stat().st_size for path in known}
    marks = "for k in $(seq 100); do printf x | dd of=o bs=1 seek=${k}00M conv=notrunc status=none; done"
    (job,) = it.submit(campaign, leaving(f"{marks}; truncate -s 2000G o", "o"))

    def grown() -> list[Path]:
        found = it.home.glob("site/fleets/*/bundle/*.tar")
        return [path for path in found if path.stat().st_size > started.get(path, 0) + 100 * MB]

    it.wait_for(grown, "a copy is under way")
    return job, grown()[0]


def test_a_copy_ends_with_its_job_and_the_pilot_hears_its_lead_meanwhile(patient: World) -> None:
    job, bundle = copying(patient, "endless")
    (next_job,) = patient.submit("next", leaving("echo fine > o", "o"))
    patient.client.cancel([job])
    patient.wait_for(lambda: patient.client.job(next_job).row.state == "COMPLETED", "the job that follows")
    assert bundle.stat().st_size < 100 * MB
    assert patient.client.job(job).row.state == "CANCELED"


def test_a_copy_ends_with_its_pilot(patient: World) -> None:
    job, _ = copying(patient, "yields")
    (pilot,) = [each for each in patient.processes("pilot") if each.argv[0].endswith("tidemill-node")]
    send(pilot, signal.SIGTERM)
    patient.wait_for(
        lambda: pilot.pid not in {each.pid for each in patient.processes("pilot")}, "the pilot leaves"
    )
    patient.client.cancel([job])
