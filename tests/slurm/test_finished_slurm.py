"""What is finished stays finished on a real Slurm whose nodes are taken away: a campaign with events that fail, stopped
twice and retried. What ran is counted by a file that the payloads append to, outside Tidemill."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.batch.site_slurm import Site, site_on
from tests.worlds.batch.slurm_cluster import OTHER_USER, SlurmCluster

from tidemill.client.outputs import members
from tidemill.model.intervals import IntervalSet
from tidemill.wire.api import OutputRow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EVENTS = 200
BAD = frozenset(range(7, EVENTS, 50))
PROGRAM = """\
n=$1
echo "start $n" >> {log}
sleep 0.4
case " {bad} " in *" $n "*) echo "event $n is broken" >&2; exit 3;; esac
echo "result of $n" > out.txt
echo "end $n" >> {log}
"""


class Campaign:
    """A campaign of one job whose payloads append to a log."""

    def __init__(self, it: Site) -> None:
        self.it, self.log = it, it.staff / "events.log"
        self.log.touch()
        self.log.chmod(0o666)
        program = it.staff / "program.sh"
        program.write_text(PROGRAM.format(log=self.log, bad=" ".join(map(str, sorted(BAD)))))
        program.chmod(0o755)
        words = json.dumps(["/bin/sh", str(program), "{event}"])
        file = it.home / "me" / "finished.toml"
        file.write_text(
            f"[[job]]\ncommand = {words}\nevents = {EVENTS}\nretries = 0\nfailed_max = {EVENTS - 1}\n"
            'resources = { event_s = 0.5 }\n[[job.outputs]]\nname = "result"\npath = "out.txt"\n'
        )
        file.chmod(0o644)
        self.job = int(self.data("submit", str(file))["jobs"][0])

    def data(self, *words: str) -> Any:
        done = self.it.world.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def detail(self) -> Any:
        return self.data("job", "show", str(self.job))

    def ends(self) -> bool:
        return self.detail()["row"]["state"] in ("COMPLETED", "PARTIAL", "FAILED", "CANCELED")

    def lines(self, word: str) -> Counter[int]:
        found = (line.split() for line in self.log.read_text().splitlines())
        return Counter(int(n) for each, n in found if each == word)

    def delivered(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for each in self.detail()["outputs"]:
            for member in members(self.job, OutputRow(**each)):
                assert member.data.decode() == f"result of {member.first}\n"
                found[member.first] += 1  # type: ignore[index]
        return found

    def stop(self, before: set[int], *, more: int) -> set[int]:
        """Let it run, take nodes away from it, cancel it: the events that are delivered then, each of them once."""
        it = self.it
        ended = len(self.lines("end"))
        it.wait(lambda: len(self.lines("end")) > ended + more, "events are done", 90)
        it.cluster.run_as_user(
            "sbatch", "--parsable", "-N3", "-t1", "-o/dev/null", "--wrap", "sleep 3", user=OTHER_USER
        )
        ours = it.ours("R")
        if ours:
            it.cluster.run("scancel", ours[0])
        it.wait(lambda: len(self.lines("end")) > ended + more + 10, "others go on", 90)
        assert self.data("job", "cancel", str(self.job))["changed"] == 1
        it.wait(self.ends, "what is done is delivered", 90)
        row = self.detail()["row"]
        found = self.delivered()
        assert (row["state"], row["events_done"]) == ("CANCELED", len(found))
        assert max(found.values()) == 1
        assert set(found) > before
        return set(found)


def test_a_campaign_whose_nodes_are_taken_away_and_that_is_stopped_twice_repeats_nothing_delivered(
    slurm_cluster: SlurmCluster,
) -> None:
    with site_on(slurm_cluster) as it:
        campaign = Campaign(it)
        first = campaign.stop(set(), more=20)
        ran = campaign.lines("start")
        assert campaign.data("job", "retry", str(campaign.job))["changed"] == 1
        second = campaign.stop(first, more=20)
        ran_then = campaign.lines("start")
        assert campaign.data("job", "retry", str(campaign.job))["changed"] == 1
        it.wait(campaign.ends, "the campaign ends", 120)

        detail = campaign.detail()
        good = set(range(EVENTS)) - BAD
        assert detail["row"]["state"] == "PARTIAL"
        assert IntervalSet.parse(detail["failed"]) == IntervalSet((n, n + 1) for n in BAD)
        assert campaign.delivered() == Counter(good), "every good event is delivered once"
        starts, ends = campaign.lines("start"), campaign.lines("end")
        assert all(starts[n] == ran[n] for n in first), "what was delivered never ran again"
        assert all(starts[n] == ran_then[n] for n in second)
        again = sorted(n for n in good if ends[n] > 1)
        assert len(again) <= EVENTS // 10, f"only what nodes had not kept may run twice: {again}"
        failures = [
            each for each in campaign.data("job", "show", str(campaign.job))["failures"] if each["final"]
        ]
        told = {each["event"]: each["evidence"]["stderr_tail"] for each in failures}
        assert {n: told.get(n) for n in BAD} == {n: f"event {n} is broken\n" for n in BAD}, json.dumps(
            failures
        )
        paths = {Path(each["url"].removeprefix("file://")).parent for each in detail["outputs"]}
        assert [len(list(path.glob(f"manifest-{campaign.job}.json"))) for path in paths] == [1]
