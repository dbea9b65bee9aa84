"""Payloads that fail, hang, print without end, leave children or fill the disk: told as what they are, then gone."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.worlds.home.processes import snapshot
from tests.worlds.home.world import World, world

from tidemill.model.job import JobSpec, Resources
from tidemill.transfer.program import size_of
from tidemill.wire.api import FailureRow, JobDetail

GB = 1_000_000_000
LOG_MAX = 65_536
APP = """name = "talker"
executable = "/usr/bin/head"
arguments = ["-c", "{bytes}", "/dev/zero"]
[parameters.bytes]
type = "int"
[resources]
event_s = 0.1
"""


@pytest.fixture(scope="module")
def it() -> Iterator[World]:
    with world(nodes=1, cores=2) as here:
        (here.home / "site" / "apps" / "talker.toml").write_text(APP)
        here.wait_for(lambda: len(here.client.applications()) == 5, "the applications are offered")
        yield here
        pilots = {each.pid for each in here.processes("pilot")}
        assert ended(here, shell("true")).row.state == "COMPLETED", here.tails()
        assert pilots == {each.pid for each in here.processes("pilot")}, "no payload costs its pilot"


def shell(script: str, *, events: int = 1, retries: int = 0, resources: Resources | None = None) -> JobSpec:
    need = resources or Resources(event_s=0.1)
    return JobSpec(command=["/bin/sh", "-c", script], events=events, retries=retries, resources=need)


def ended(it: World, spec: JobSpec) -> JobDetail:
    (job,) = it.submit(f"c-{it.client.counts().jobs}", spec)
    it.client.wait([job], timeout_s=60)
    return it.client.job(job)


def final(it: World, detail: JobDetail) -> FailureRow:
    (one,) = [each for each in it.client.failures(job=detail.row.id) if each.final]
    return one


def left_over(mark: str) -> list[tuple[str, ...]]:
    return [each.argv for each in snapshot().values() if mark in each.argv]


def test_a_payload_that_exits_non_zero_fails_with_status_and_last_words(it: World) -> None:
    detail = ended(it, shell("echo it broke >&2; exit 7", retries=1))
    one = final(it, detail)
    assert (detail.row.state, one.evidence.failure, one.evidence.exit_status) == ("FAILED", "payload", 7)
    assert one.evidence.stderr_tail == "it broke\n"
    assert one.seed == 1 + detail.seed_base
    assert len(detail.failures) == 2, "tried 1 + retries times"
    text = it.run("errors", "--job", str(detail.row.id)).stdout
    assert "it broke" in text
    assert f"tidemill job logs {detail.row.id}" in text


def test_a_payload_that_hangs_is_killed_at_its_time_limit(it: World) -> None:
    spec = shell("sleep 71001 & sleep 71001", resources=Resources(event_s=0.1, timeout_s=1))
    one = final(it, ended(it, spec))
    assert one.evidence.failure == "walltime"
    assert re.search(r"\b1 s\b|timeout", one.evidence.message), one.evidence.message
    assert left_over("71001") == []


def test_a_payload_that_prints_a_gigabyte_succeeds_and_its_log_is_bounded(it: World) -> None:
    (job,) = it.submit("talks", JobSpec(app="talker", params={"bytes": GB}))
    it.wait_campaign("talks", timeout_s=60)
    detail = it.client.job(job)
    assert (detail.row.state, detail.row.events_done) == ("COMPLETED", 1), it.tails()
    kept = sum(map(size_of, (it.home / "site" / "fleets").rglob("*")))
    assert kept < 3 * LOG_MAX + 1_000_000
    log = it.client.log(job, event=0)
    assert 0 < len(log.stdout) <= LOG_MAX + 200
    assert detail.usage.rss_kb < 100_000, "what it printed was held nowhere"


def test_a_payload_that_prints_a_gigabyte_ends_as_its_exit_says(it: World) -> None:
    one = final(it, ended(it, shell(f"head -c {GB} /dev/zero >&2; echo last words >&2; exit 4")))
    assert (one.evidence.failure, one.evidence.exit_status) == ("payload", 4)
    assert one.evidence.stderr_tail.endswith("last words\n")
    assert len(one.evidence.stderr_tail) <= 4096


def test_a_kept_stdout_of_a_gigabyte_fails_as_the_disk_that_it_would_fill(it: World) -> None:
    """`keep_stdout` makes stdout an output, and outputs are never cut: what does not fit fails, and says so."""
    spec = JobSpec(
        command=["/usr/bin/head", "-c", str(GB), "/dev/zero"], keep_stdout=True, retries=0,
        resources=Resources(event_s=0.1, scratch_mb=20),
    )  # fmt: skip
    detail = ended(it, spec)
    assert detail.row.state == "FAILED"
    assert final(it, detail).evidence.failure == "disk"


def test_children_that_a_payload_leaves_are_gone_afterwards(it: World) -> None:
    script = """
    sleep 71002 &
    setsid sleep 71002 &
    (setsid sh -c 'trap "" TERM HUP; sleep 71002 & sleep 71002' >/dev/null 2>&1 < /dev/null &)
    while [ $(pgrep -fc '^sleep 71002') -lt 4 ]; do :; done
    """
    detail = ended(it, shell(script, events=3))
    assert (detail.row.state, detail.row.events_done) == ("COMPLETED", 3), it.tails()
    assert left_over("71002") == []


def test_a_fork_bomb_in_small_ends_with_its_payload(it: World) -> None:
    spec = shell(
        "for i in $(seq 100); do setsid sleep 71003 & done; exit 3", resources=Resources(event_s=0.1)
    )
    assert final(it, ended(it, spec)).evidence.exit_status == 3
    assert left_over("71003") == []


def test_a_payload_that_fills_its_disk_fails_as_that_and_fills_no_other(it: World) -> None:
    before = os.statvfs("/tmp").f_bavail
    for place in ("big", "/tmp/big", '"$HOME"/big'):
        spec = shell(f"dd if=/dev/zero of={place} bs=1M", resources=Resources(event_s=0.1, scratch_mb=20))
        one = final(it, ended(it, spec))
        assert one.evidence.failure == "disk", one
        assert "No space left" in one.evidence.stderr_tail
    assert before - os.statvfs("/tmp").f_bavail < 100_000  # blocks of 4 KiB: others use this disk, too
    detail = ended(it, shell("dd if=/dev/zero of=fits bs=1M count=15", events=4,
                             resources=Resources(event_s=0.1, scratch_mb=20)))  # fmt: skip
    assert detail.row.state == "COMPLETED", "each payload finds its scratch empty"


def test_outputs_of_sound_events_are_kept_beside_a_broken_one(it: World) -> None:
    spec = JobSpec(
        command=["/bin/sh", "-c", 'test "$1" != 2 && echo "event $1"', "sh", "{event}"], events=4, retries=0,
        failed_max=1, keep_stdout=True, resources=Resources(event_s=0.1),
    )  # fmt: skip
    detail = ended(it, spec)
    assert (detail.row.state, detail.failed) == ("PARTIAL", "2")
    (output,) = detail.outputs
    with tarfile.open(Path(unquote(urlsplit(output.url).path))) as tar:
        texts = [tar.extractfile(each).read().decode() for each in tar]  # type: ignore[union-attr]
    assert sorted(texts) == ["event 0\n", "event 1\n", "event 3\n"]
