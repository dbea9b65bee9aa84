"""Payloads that leave crowds of processes, flood their logs, or hide files in memory: they cost only themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.worlds.home.processes import snapshot
from tests.worlds.home.world import World, world

from tidemill.model.job import JobSpec, Resources

MARK = "71042"
LEFT = {
    "a crowd in sessions of their own": f"for i in $(seq 200); do setsid sleep {MARK} & done; sleep 0.2",
    "deaf to every signal": f"(trap '' TERM HUP INT QUIT USR1 USR2 PIPE ALRM; setsid sleep {MARK}) &",
    "twice forked, without descriptors": f"( ( setsid sleep {MARK} < /dev/null > /dev/null 2>&1 & ) & )",
    "named as Tidemill's program": f"(exec -a tidemill-node sleep {MARK}) & (exec -a '[kworker/0:1]' sleep {MARK}) &",
    "stopped": f"sleep {MARK} & kill -STOP $!",
    "one that breeds": f"breed() {{ sleep {MARK} & sleep 0.05; breed & }}; breed & sleep 0.5",
}
FLOODS = {
    "NUL and ESC": "head -c 300000000 /dev/zero >&2; yes $(printf '\\033[2J\\033]0;x\\007') | head -c 50000000 >&2",
    "lines": "yes | head -c 400000000 >&2",
    "one line": "yes | tr -d '\\n' | head -c 400000000",
    "both at once": "(yes | head -c 200000000 >&2) & yes x | head -c 200000000; wait",
    "after its end": "(setsid yes >&2) & exit 0",
}


@pytest.fixture(scope="module")
def it() -> Iterator[World]:
    with world(nodes=1, cores=2) as here:
        yield here


def bash(script: str, *, events: int = 1, memory_mb: int = 400) -> JobSpec:
    return JobSpec(
        command=["/bin/bash", "-c", script], events=events, retries=0,
        resources=Resources(event_s=0.1, memory_mb=memory_mb),
    )  # fmt: skip


def left() -> list[tuple[str, ...]]:
    return [each.argv for each in snapshot().values() if any(MARK in word for word in each.argv)]


def test_whatever_kinds_of_payloads_leave_at_once_is_gone_with_them(it: World) -> None:
    ends = ["exit 0", "exit 1"]
    specs = [bash(f"{script}\n{end}", events=2) for script in LEFT.values() for end in ends]
    jobs = it.submit("left", *specs)
    it.wait_campaign("left")
    states = [it.client.job(job).row.state for job in jobs]
    assert states == ["COMPLETED", "FAILED"] * len(LEFT)
    it.wait_for(lambda: not left(), "nothing is left", timeout_s=30)


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_its_log_ends_as_the_payload_does_and_is_bounded(it: World, flood: str) -> None:
    campaign = "flood-" + flood.replace(" ", "-")
    (job,) = it.submit(campaign, bash(FLOODS[flood]))
    it.wait_campaign(campaign)
    assert it.client.job(job).row.state == "COMPLETED", it.client.job(job).row.reason
    log = it.client.log(job)
    assert len(log.stdout) + len(log.stderr) < 1_000_000
    assert (
        "\x1b" not in it.run("job", "logs", str(job)).stdout.replace("\x1b[0m", "") or flood == "NUL and ESC"
    )


@pytest.mark.parametrize("size", ["100T", "5G"])
def test_a_hole_in_memory_costs_nothing_and_a_full_file_its_payload_alone(it: World, size: str) -> None:
    hole, full, other = it.submit(
        f"memory-{size}",
        bash(f"truncate -s {size} /dev/shm/hole || truncate -s 1G /dev/shm/hole; ls -s /dev/shm"),
        bash("head -c 2G /dev/zero > /dev/shm/full || exit 1", memory_mb=200),
        bash("sleep 2", memory_mb=200),
    )
    it.wait_campaign(f"memory-{size}")
    assert it.client.job(hole).row.state == "COMPLETED", it.client.job(hole).row.reason
    assert it.client.job(full).row.state == "FAILED"
    detail = it.client.job(other)
    assert (detail.row.state, detail.failures, len(detail.attempts)) == ("COMPLETED", [], 1), (
        "it had the same pilot"
    )
