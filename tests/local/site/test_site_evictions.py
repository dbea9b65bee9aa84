"""A pilot that never speaks does not hold its node for ever, and work goes on as soon as pilots do speak."""

from __future__ import annotations

from pathlib import Path

from tests.worlds.home.world import Options, world

from tidemill.model.job import JobSpec, Resources
from tidemill.node.binary import find_binary


def test_an_allocation_whose_pilot_hangs_is_given_back_with_a_reason(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    binary, flag = tmp_path / "node", tmp_path / "hangs"
    binary.write_text(
        f'#!/bin/sh\n[ "$1" = run ] && [ -e {flag} ] && exec sleep 600\nexec {find_binary()} "$@"\n'
    )
    binary.chmod(0o755)
    flag.touch()
    options = Options(
        nodes=1,
        timing={"site": {"FIRST_RECORD_S": 1}},
        environment={"TIDEMILL_NODE_BINARY": str(binary)},
    )
    with world(options=options) as it:
        it.submit("mute", JobSpec(command=["/bin/true"], events=4, resources=Resources(event_s=0.05)))
        log = it.home / "site.log"
        it.wait_for(lambda: log.read_text().count("allocation.start_failed") > 1, "two starts have failed")
        assert "it has run for 1 s on" in log.read_text()
        assert "no pilot of it was heard" in "".join(
            path.read_text() for path in (it.home / "site" / "harvest").glob("*.jsonl")
        )
        metrics = it.home / "site" / "metrics.prom"
        waits = 'cause="failed_starts"} 1'
        it.wait_for(lambda: waits in metrics.read_text(), "the metric tells why no node is asked for")
        flag.unlink()
        assert it.wait_campaign("mute").states == {"COMPLETED": 1}
        assert '"cause":"cancels"' not in log.read_text()
