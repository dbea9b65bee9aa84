"""What another user writes into the name or comment of his job is never read as a job of Tidemill's, nor as any other.

With complete fake commands of Slurm, whose squeue prints both as the real one does (22.05.8, tried; a real one is in
tests/slurm/test_slurm_trouble.py). Records forged for PBS: tests/pbs/test_pbs_forged.py.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.slurm.fake import install

from tidemill.batch.slurm import SlurmBatchSystem
from tidemill.batch.slurm.text import FIELD, RECORD, all_format
from tidemill.config.site import Cluster

ME = pwd.getpwuid(os.geteuid()).pw_name
KEY = "k3y"
CPU_S_MAX = 20  #: of processor time, whatever else runs
OURS = {
    "id": 7,
    "name": "tm-here-e1-1",
    "comment": f"tidemill {KEY}",
    "user": ME,
    "state": "RUNNING",
    "where": "n00001",
}
VALUES = {
    "i": "777", "t": "R", "u": ME, "D": "1", "N": "n00002", "S": "2026-11-29T00:00:00", "e": "2026-11-30T00:00:00",
    "l": "1:00", "V": "2026-11-29T00:00:00", "P": "batch", "f": "(null)", "r": "None", "Q": "1", "Y": "(null)",
    "v": "(null)", "C": "64", "m": "0", "h": "NO", "j": "tm-here-e1-2", "k": f"tidemill {KEY}",
}  # fmt: skip


def forged(record: str = RECORD) -> str:
    """A record of a job of Tidemill's, as squeue prints it."""
    text = all_format(record)
    for letter, value in VALUES.items():
        text = text.replace(f"%{letter}", value)
    return f"x\n{text}"


HOSTILE = {
    "a record": forged(),
    "a record without a mark": forged("\n"),
    "many records": forged() * 50,
    "records that cannot be read": f"{RECORD}?" * 500,
    "fields": FIELD.join(["x"] * 40),
    "key and name": f"tidemill {KEY} tm-here-e1-1",
    "lines of scontrol": f"x\nJobId=777 JobName=tm-here-e1-2 UserId={ME}(0) JobState=RUNNING Comment=tidemill {KEY}",
}


@pytest.mark.parametrize("field", ["name", "comment"])
@pytest.mark.parametrize("text", HOSTILE)
def test_a_job_of_another_user_is_his_whatever_he_calls_it(
    text: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    theirs = {"id": 8, "name": "x", "comment": "", "user": "mallory", "state": "RUNNING", "where": "n00003"}
    jobs = [OURS, theirs | {field: HOSTILE[text]}]
    install(tmp_path / "bin", {"user": ME, "jobs": jobs, "calls": str(calls)})
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    batch = SlurmBatchSystem(tmp_path / "batch", Cluster(calls_per_min_max=100_000), key=KEY)
    seen = batch.snapshot()
    assert [(each.id, each.user, each.nodes, each.ours) for each in seen.running] == [
        ("7", ME, ("n00001",), True),
        ("8", "mallory", ("n00003",), False),
    ]
    assert "--json" not in calls.read_text(), "the text could be read"
    names = ["tm-here-e1-1", "tm-here-e1-2", "tm-here-e1-3"]
    batch.cancel(names)
    states = {
        each["id"]: each["state"] for each in json.loads((tmp_path / "bin/state.json").read_text())["jobs"]
    }
    assert states == {7: "CANCELLED", 8: "RUNNING"}


READ = """
import sys
from tidemill.batch.pbs import replies
text = sys.stdin.buffer.read()
replies.read_text(text, "Job Id:")
replies.read_reservations(text)
"""


@pytest.mark.parametrize("line", ["x\n", "x\n\t", "\t=\n", "    a = b\n", "Job Id: 7.pbs\n", ",a=\n"])
def test_variables_of_a_million_lines_do_not_hold_the_agent(line: str) -> None:
    """Each line was put behind all before it: 2 MB, which `qsub -v` takes, held the agent for a minute at each poll."""
    text = b"Job Id: 7.pbs\nResv ID: R7.pbs\n    Variable_List = A=" + 1_000_000 * line.encode()
    limited = ["prlimit", f"--cpu={CPU_S_MAX}", sys.executable, "-c", READ]
    subprocess.run(limited, input=text, check=True)
