"""The wall clock of server and agent jumps by years, both ways, while a campaign runs: nothing is lost for it."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from tests.worlds.home.oracle import expected_hits, output_bytes
from tests.worlds.home.world import Options, world

from tidemill.model.job import JobSpec
from tidemill.wire.api import SiteRow

DARTS, EVENTS, YEAR_S = 60_000, 300, 365 * 86_400

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* clock_gettime(CLOCK_REALTIME) plus the seconds that the file $JUMP_FILE holds at this moment */
int clock_gettime(clockid_t clock, struct timespec *at)
{
    static const volatile long long *offset;
    if (!offset) {
        int file = open(getenv("JUMP_FILE"), O_RDONLY | O_CLOEXEC);
        offset = mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (clock == CLOCK_REALTIME) at->tv_sec += *offset;
    return failed;
}
"""


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for the shim")
def test_a_wall_clock_that_jumps_by_years_costs_no_event_and_no_site(tmp_path: Path) -> None:
    """The shim is between Python and libc: server, agent and batch system see the jumps, the static node binary not."""
    (tmp_path / "jump.c").write_text(SHIM)
    shim, offset = tmp_path / "jump.so", tmp_path / "offset"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, tmp_path / "jump.c"], check=True)
    offset.write_bytes(struct.pack("q", 0))

    def jump(seconds: int) -> None:
        with offset.open("r+b") as file:
            file.write(struct.pack("q", seconds))

    environment = {"LD_PRELOAD": str(shim), "JUMP_FILE": str(offset)}
    with world(options=Options(nodes=2, environment=environment)) as it:
        (job,) = it.submit("c", JobSpec(app="pi", events=EVENTS, params={"darts": DARTS}))
        pilots = set[int]()
        for done, seconds in ((20, 2 * YEAR_S), (90, -5 * YEAR_S), (170, 0)):
            it.wait_for(
                lambda done=done: it.client.job(job).row.events_done >= done, f"{done} events are done"
            )
            # not before the first events: a starting pilot has children that look like it
            pilots = pilots or {each.pid for each in it.processes("pilot")}
            jump(seconds)
        row = it.wait_campaign("c")
        stayed = {
            each.pid for each in it.processes("pilot")
        }  # now: idle ones leave while hits are counted again
        detail = it.client.job(job)
        assert (detail.row.state, row.events_done, row.events_failed) == ("COMPLETED", EVENTS, 0), it.tails()
        assert output_bytes(detail) == expected_hits(detail.seed_base, EVENTS, DARTS)
        assert {each.state for each in it.client.get("/v1/sites", list[SiteRow])} == {"UP"}
        assert row.failures == {}, "no lease was lost, nothing ran twice"
        assert pilots == stayed, "no pilot was ended for the time of day"
        assert abs(detail.row.created_us - (detail.row.ended_us or 0)) < 3600 * 10**6
        assert "Traceback" not in it.tails()
        entries = "".join(log.read_text() for log in it.home.glob("site/log/*.log"))
        stamps = [int(text) for text in re.findall(r'"at_us":(\d{15,})', entries)]
        assert max(stamps) - min(stamps) > YEAR_S * 10**6, "the agent did see the jumps"
