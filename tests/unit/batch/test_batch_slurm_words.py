"""Slurm's words for times, hosts, states and reasons; the words that we say to it."""

from __future__ import annotations

import pwd
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.timing import timing

from tidemill.batch.contract import Answer, BatchSubmission, Ending
from tidemill.batch.run import CommandResult, Refusal, recognise
from tidemill.batch.slurm import own
from tidemill.batch.slurm.hostlist import compress, expand, expand_elements, fold
from tidemill.batch.slurm.limits import AGAIN_S, GUESSED_S, OwnLimit, Walltimes, longest, read_walltimes
from tidemill.batch.slurm.script import Asked, script_text, submit_words
from tidemill.batch.slurm.system import SlurmBatchSystem
from tidemill.batch.slurm.text import FIELD, OwnJob
from tidemill.batch.slurm.times import minutes_up, parse_span, parse_time, time_text
from tidemill.batch.slurm.words import (
    REFUSALS,
    held,
    hopeless,
    is_eligible,
    is_too_long,
    job_state,
    limit_named,
    node_state,
    node_words,
)
from tidemill.config.site import Cluster, SiteConfig
from tidemill.errors import ProtocolError, SiteError
from tidemill.model.machine import NodeState
from tidemill.model.state import AllocationState

KEY = "0123456789abcdef"
FIXTURES = Path(__file__).parents[2] / "fixtures" / "slurm"
S = AllocationState


def test_times_and_durations() -> None:
    assert parse_time("2026-11-21T03:12:11") == 1795230731.0
    assert time_text(1795230730.2) == "2026-11-21T03:12:11"
    assert [parse_time(word) for word in ("N/A", "Unknown", "(null)", "", "soon")] == [None] * 5
    spans = {"5": 300, "5:30": 330, "1:00:00": 3600, "1-0": 86400, "1-2:30": 95400, "2-00:00:01": 172801}
    assert {word: parse_span(word) for word in spans} == spans
    assert [parse_span(word) for word in ("UNLIMITED", "NOT_SET", "Partition_Limit", "x")] == [None] * 4
    assert [minutes_up(seconds) for seconds in (0, 1, 60, 60.4, 3600)] == [1, 1, 1, 2, 60]


def test_host_lists() -> None:
    assert expand("n[01-03,7],m1,r[1-2]c[08-09]x") == (
        "n01", "n02", "n03", "n7", "m1", "r1c08x", "r1c09x", "r2c08x", "r2c09x",
    )  # fmt: skip
    assert [expand(word) for word in ("", "(null)", "None assigned")] == [()] * 3
    for bad in ("n[1-", "n[a-b]", "n[1-99999999]", "n]1["):
        with pytest.raises(ProtocolError):
            expand(bad)


def test_hosts_are_folded_by_their_last_number_and_unfold_again() -> None:
    assert compress(["n3", "n1", "n2", "login", "g1"]) == "g1,login,n[1-3]"
    assert compress(["n09", "n10", "n11", "n8", "r1n1", "r2n1"]) == "n8,n[09-11],r1n1,r2n1"
    names = [f"n{k:04}" for k in range(8000) if k % 7] + [f"c{k}-{j}x" for k in range(3) for j in range(20)]
    assert sorted(expand(compress(names))) == sorted(names)
    assert compress([]) == ""


def test_elements_of_arrays() -> None:
    def elements(text: str) -> list[int]:
        return [index for each in expand_elements(text, 1000) for index in each]

    assert elements("0-3,7,10-14:2%5") == [0, 1, 2, 3, 7, 10, 12, 14]
    assert elements("1-2,...") == [1, 2]
    assert fold([3, 1, 2, 9, 2]) == "1-3,9"
    with pytest.raises(ProtocolError):
        elements("a-b")


@pytest.mark.parametrize(
    ("word", "reason", "state", "ending"),
    [
        ("PENDING", "Priority", S.QUEUED, Ending.NONE),
        ("REQUEUE_HOLD", "", S.QUEUED, Ending.NONE),
        ("COMPLETING", "", S.ACTIVE, Ending.NONE),
        ("COMPLETED", "None", S.COMPLETED, Ending.DONE),
        ("FAILED", "NonZeroExitCode", S.FAILED, Ending.FAILED),
        ("FAILED", "JobLaunchFailure", S.FAILED, Ending.LAUNCH),
        ("CANCELLED by 54321", "", S.CANCELED, Ending.CANCELED),
        ("CANCELLED+", "", S.CANCELED, Ending.CANCELED),
        ("CANCELLED", "DeadLine", S.CANCELED, Ending.DEADLINE),
        ("DEADLINE", "DeadLine", S.CANCELED, Ending.DEADLINE),
        ("TIMEOUT", "TimeLimit", S.COMPLETED, Ending.WALLTIME),
        ("PREEMPTED", "None", S.CANCELED, Ending.PREEMPTED),
        ("NODE_FAIL", "None", S.FAILED, Ending.NODE),
        ("OUT_OF_MEMORY", "OutOfMemory", S.FAILED, Ending.MEMORY),
        ("BOOT_FAIL", "", S.FAILED, Ending.LAUNCH),
        ("TELEPORTING", "", S.ACTIVE, Ending.NONE),
    ],
)
def test_states_of_jobs(word: str, reason: str, state: AllocationState, ending: Ending) -> None:
    assert job_state(word, reason) == (state, ending)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("IDLE", NodeState.IDLE), ("IDLE+PLANNED", NodeState.IDLE), ("idle-", NodeState.IDLE),
        ("IDLE+CLOUD", NodeState.IDLE),
        ("ALLOCATED", NodeState.BUSY), ("MIXED", NodeState.SHARED), ("MIXED+DRAIN", NodeState.AWAY),
        ("IDLE*", NodeState.AWAY), ("IDLE+NOT_RESPONDING", NodeState.AWAY), ("DOWN", NodeState.AWAY),
        ("IDLE+CLOUD+POWERED_DOWN", NodeState.SLEEPING), ("idle~", NodeState.SLEEPING),
        ("IDLE+POWER", NodeState.SLEEPING),
        ("ALLOCATED+CLOUD+POWERING_UP", NodeState.WAKING), ("idle#", NodeState.WAKING), ("idle%", NodeState.AWAY),
        ("IDLE+REBOOT_ISSUED", NodeState.WAKING), ("ALLOCATED+REBOOT_REQUESTED", NodeState.BUSY),
        ("IDLE+COMPLETING", NodeState.ENDING), ("ALLOCATED+COMPLETING", NodeState.ENDING),
        ("IDLE+MAINT+RESERVED", NodeState.RESERVED), ("IDLE+RESERVED", NodeState.RESERVED),
        ("idle$", NodeState.RESERVED),
        ("ALLOCATED+MAINT", NodeState.BUSY), ("IDLE+INVALID_REG", NodeState.AWAY), ("FUTURE", NodeState.AWAY),
        ("IDLE+SHINY", NodeState.IDLE), ("SHINY", NodeState.AWAY), ("", NodeState.AWAY),
    ],
)  # fmt: skip
def test_states_of_nodes(text: str, state: NodeState) -> None:
    assert node_state(node_words(text)) is state


def test_holds_are_by_staff_or_a_used_up_grant_and_not_by_limits_that_pass() -> None:
    for reason in (
        "JobHeldAdmin",
        "JobHeldUser",
        "InvalidAccount",
        "AssocGrpCPUMinutesLimit",
        "AssocGrpBillingMinutes",
    ):
        assert held(reason) == reason
        assert not is_eligible(reason, 1)
    for reason in (
        "AssocMaxJobsLimit",
        "QOSMaxJobsPerUserLimit",
        "AssocGrpCPURunMinutesLimit",
        "QOSGrpNodeLimit",
    ):
        assert held(reason) == ""
        assert not is_eligible(reason, 1)
    assert is_eligible("Resources", 1)
    assert is_eligible("ReqNodeNotAvail, UnavailableNodes:n1", 1)
    assert not is_eligible("Resources", 0), "priority 0 is a hold"


@pytest.mark.parametrize(
    ("errors", "refusal"),
    [
        ("scancel: error: Kill job error on job id 5: Invalid job id specified", Refusal.UNKNOWN),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", Refusal.AWAY),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", Refusal.AWAY),
        ("slurm_load_jobs error: Rate limit exceeded, please retry momentarily", Refusal.BUSY),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination",
            Refusal.DENIED,
        ),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            Refusal.LIMIT,
        ),
        ("something new", Refusal.OTHER),
    ],
)
def test_refusals(errors: str, refusal: Refusal) -> None:
    assert recognise(CommandResult("x", 1, b"", errors, 0.1), REFUSALS) is refusal


def job(
    number: str, name: str, word: str = "RUNNING", comment: str = f"tidemill {KEY} x", **changes: object
) -> OwnJob:
    plain = OwnJob(number, None, (), word, "me", "None", "n1", 1.0, 2.0, 0.0, name, comment)
    return plain._replace(**changes)  # type: ignore[arg-type]


def test_ours_have_the_name_and_the_key() -> None:
    jobs = [
        job("1", "tm-a-e1-1"),
        job("2", "tm-a-e1-2", comment="tidemill fedcba9876543210 x"),
        job("3", "tm-a-e1-3", comment=""),
        job("4", "pretty"),
        job("5", "tm-a-e1-9"),
    ]
    names = [f"tm-a-e1-{i}" for i in range(1, 7)]
    numbers = {"tm-a-e1-4": "4", "tm-a-e1-5": "5", "tm-a-e1-2": "2"}
    found = own.match(names, jobs, key=KEY, numbers=numbers)
    assert {name: each[0].job.number for name, each in found.items()} == {"tm-a-e1-1": "1", "tm-a-e1-4": "4"}
    assert own.status_of(found["tm-a-e1-4"][0]).reason == "renamed to `pretty`"


def test_what_runs_counts_before_what_waits_and_what_has_ended() -> None:
    jobs = [job("9", "tm-a-e1-1", "COMPLETED"), job("7", "tm-a-e1-1", "PENDING"), job("8", "tm-a-e1-1")]
    (matches,) = own.match(["tm-a-e1-1"], jobs, key=KEY, numbers={}).values()
    assert [(each.job.number, each.surplus) for each in matches] == [("8", False), ("7", True), ("9", False)]


def test_elements_to_cancel_are_folded() -> None:
    jobs = [
        job("5", "tm-a-e1-1", "PENDING", folded=(range(0, 8),)),
        job("5", "tm-a-e1-1", element=9),
        job("6", "tm-a-e1-2"),
    ]
    names = ["tm-a-e1-1.0", "tm-a-e1-1.1", "tm-a-e1-1.9", "tm-a-e1-2", "tm-a-e1-1.8"]
    found = own.match(names, jobs, key=KEY, numbers={})
    assert "tm-a-e1-1.8" not in found
    pairs = [(name, each) for name, matches in found.items() for each in matches]
    assert own.ids_to_cancel(pairs) == ["6", "5_[0-1,9]"]


def test_waiting_elements_that_were_canceled_are_canceled_whatever_slurm_shows_of_them() -> None:
    """Rows of squeue and sacct of 22.05.8: after `scancel 13`, `scancel 15_[1-2]`, `scancel -u USER`."""
    names = [f"tm-a-e1-1.{k}" for k in range(4)]
    folded = job("13", "tm-a-e1-1", "CANCELLED", folded=(range(0, 4),))
    emptied = job("13", "tm-a-e1-1", "CANCELLED")
    for row in (folded, emptied):
        found = own.match(names, [row], key=KEY, numbers={})
        assert [own.status_of(found[name][0]).ending for name in names] == [Ending.CANCELED] * 4
    runs = own.match(names, [emptied, job("13", "tm-a-e1-1", element=0)], key=KEY, numbers={})
    assert own.status_of(runs[names[0]][0]).state is S.ACTIVE

    rest = [job("13", "tm-a-e1-1", "PENDING", folded=(range(0, 1), range(3, 4)))]
    missing, waited_s = names[1:3], dict.fromkeys(names, 100.0)

    def gone(jobs: list[OwnJob], now_s: float, waited_s: dict[str, float] = waited_s) -> list[str]:
        return [*own.withdrawn(missing, jobs, waited_s, key=KEY, since_s=now_s - 300)]

    assert gone(rest, 160.0) == missing
    assert gone([], 160.0) == [], "nothing of the array is shown: the controller may have lost it"
    assert gone(rest, 401.0) == [], "they may have started, ended, and been forgotten"
    assert gone([each._replace(is_cut=True) for each in rest], 160.0) == [], (
        "squeue has not shown all of the list"
    )
    assert gone(rest, 160.0, {}) == [], "they were not seen waiting: they may yet appear"
    assert gone([job("13", "tm-a-e1-1", comment="")], 160.0) == []


def test_accounting_names_the_elements_that_never_started_together() -> None:
    def line(number: str, state: str, end: str = "2026-11-29T15:47:35") -> str:
        return (
            FIELD.join([number, state, "0:0", "None", end, "None assigned", "0", "", "", "tm-a-e1-1"]) + "\n"
        )

    names = [f"tm-a-e1-1.{k}" for k in range(5)]
    rows = line("16_0", "COMPLETED") + line("16_[0-3]", "CANCELLED by 1") + line("17_[4]", "CANCELLED by 1")
    found = own.accounted(rows.encode(), names, key=KEY, numbers={"tm-a-e1-1": "16"})
    assert {name[-1]: each.ending for name, each in found.items()} == {
        "0": Ending.DONE, "1": Ending.CANCELED, "2": Ending.CANCELED, "3": Ending.CANCELED,
    }  # fmt: skip
    assert {each.canceled_by for each in found.values()} == {"", pwd.getpwuid(1).pw_name}
    assert (
        own.accounted(line("16_[0-3]", "PENDING").encode(), names, key=KEY, numbers={"tm-a-e1-1": "16"}) == {}
    )
    late = line("16_[0-1]", "CANCELLED by 1") + line("16_0", "RUNNING")
    found = own.accounted(late.encode(), names, key=KEY, numbers={"tm-a-e1-1": "16"})
    assert [name[-1] for name in found] == ["1"], "0 has run, and its end is not written yet"


def test_accounting_is_believed_with_the_key_or_the_number() -> None:
    def line(number: str, state: str, comment: str, name: str = "tm-a-e1-1") -> str:
        return (
            FIELD.join([
                number, state, "1:0", "2026-11-21T03:00:00", "2026-11-21T04:00:00", "n[1-2]", "16",
                "billing=16,cpu=16,gres/gpu=4,gres/gpu:a100=4,mem=8G,node=2", comment, name,
            ])
            + "\n"
        )  # fmt: skip

    names, numbers = ["tm-a-e1-1", "tm-a-e1-2.4"], {"tm-a-e1-1": "5", "tm-a-e1-2": "6"}

    def ask(text: str) -> dict[str, Ending]:
        found = own.accounted(text.encode(), names, key=KEY, numbers=numbers)
        assert all(each.answer is Answer.FOUND for each in found.values())
        return {name: each.ending for name, each in found.items()}

    assert ask(line("5", "FAILED", "")) == {"tm-a-e1-1": Ending.FAILED}
    (told,) = own.accounted(line("5", "FAILED", "").encode(), names, key=KEY, numbers=numbers).values()
    assert (told.cores, told.gpus) == (16, 4)
    assert (told.ended_s or 0) - (told.started_s or 0) == 3600
    assert ask(line("99", "FAILED", "")) == {}, "another's number, no comment"
    assert ask(line("99", "CANCELLED by 0", f"tidemill {KEY} x")) == {"tm-a-e1-1": Ending.CANCELED}
    for word, by in [
        ("CANCELLED by 0", "root"),
        ("CANCELLED by 4000000000", "4000000000"),
        ("CANCELLED", ""),
    ]:
        (told,) = own.accounted(line("5", word, "").encode(), names, key=KEY, numbers=numbers).values()
        assert told.canceled_by == by
    assert ask(line("5", "FAILED", "tidemill fedcba9876543210 x")) == {}
    assert ask(line("5", "RUNNING", "")) == {}
    assert ask(line("5", "NODE_FAIL", "") + line("5", "COMPLETED", "")) == {"tm-a-e1-1": Ending.DONE}, (
        "the last"
    )
    assert ask(line("6_4", "TIMEOUT", "", "tm-a-e1-2")) == {"tm-a-e1-2.4": Ending.WALLTIME}
    assert ask("half a line\n" + FIELD.join(["JobID", "State"]) + "\n") == {}


def submission(**changes: object) -> BatchSubmission:
    plain: dict[str, object] = {
        "name": "tm-a-e1-1",
        "command": ["run", "{allocation}"],
        "nodes": 1,
        "cores": 8,
        "memory_mb": 0,
        "walltime_s": 601,
    }
    return BatchSubmission(**{**plain, **changes})  # type: ignore[arg-type]


ASKED = Asked(
    directory=Path("/s p/50%"), comment="tidemill k x", account="grant", launcher="srun", now_s=1000.0
)


def test_a_site_that_wants_gpus_asks_for_them_on_each_node() -> None:
    assert "--gpus-per-node=4" in submit_words(submission(gpus=4), Cluster(), ASKED)
    assert not [word for word in submit_words(submission(), Cluster(), ASKED) if "gpu" in word]


def test_what_leaves_the_gpus_of_a_node_asks_for_its_cores_and_not_for_all_of_it() -> None:
    """With `--exclusive`, also beside `--gres=none`, sacct says `AllocTRES=...gres/gpu=2`; with `--mincpus` alone all
    cores are allocated and no GPU (22.05.8, tried on select/cons_tres)."""
    words = submit_words(submission(leaves_gpus=True), Cluster(), ASKED)
    assert "--exclusive" not in words
    assert f"--mincpus={submission().cores}" in words


def test_nodes_of_other_pools_are_excluded_while_that_is_short_and_else_by_features() -> None:
    def placed(**changes: object) -> set[str]:
        words = submit_words(submission(**changes), Cluster(exclude=["n9"]), ASKED)
        return {word for word in words if word.startswith(("--exclude", "--constraint"))}

    assert placed(avoid=("g2", "g1")) == {"--exclude=g[1-2],n9"}
    rows = tuple(f"n{k:04}" for k in range(1, 8001))
    assert placed(avoid=rows) == {"--exclude=n9,n[0001-8000]"}
    apart = tuple(f"rack{k}-{word}" for k, word in enumerate(["x", "y", "z"] * 2000))
    assert placed(avoid=apart, avoid_by=("cpu",)) == {"--exclude=n9", "--constraint=cpu"}


def test_words_of_a_submission() -> None:
    config = Cluster(
        partition="batch", qos="low", features=["amd"], exclude=["n1"], directives=["--gres=gpu:4"]
    )
    asked = submission(features=("hdr",), exclude=("n2",), count=5, nodes=4, nodes_min=2)
    asked = msgspec.structs.replace(asked, walltime_min_s=60, start_by_s=1300.0)
    words = submit_words(asked, config, ASKED)
    assert words[-1] == "--gres=gpu:4", "the operator's words come last, and so win"
    for word in (
        "--nodes=2-4", "--time=11", "--time-min=1", "--array=0-4", "--no-requeue",
        "--constraint=amd&hdr", "--exclude=n[1-2]", "--account=grant", "--qos=low", "--nice=1000000", "--exclusive",
        "--output=/s p/50%%/output/tm-a-e1-1.%a",
    ):  # fmt: skip
        assert word in words
    assert not [word for word in words if word.startswith("--deadline")], "22.05 would not use --time-min"
    punctual = submit_words(msgspec.structs.replace(asked, walltime_min_s=None), config, ASKED)
    assert "--deadline=now+960seconds" in punctual
    regular = submit_words(msgspec.structs.replace(asked, polite=False), config, ASKED)
    assert set(words) - set(regular) == {"--nice=1000000"}
    with timing(batch={"NICE": 0}):
        plain = submit_words(submission(partition="p2", account="other"), Cluster(), ASKED)
    assert {"--partition=p2", "--account=other", "--nodes=1"} <= set(plain)
    assert not [
        word for word in plain if word.startswith(("--nice", "--array", "--mem", "--deadline", "--qos"))
    ]


def test_a_part_of_a_node_is_asked_for_by_its_cores_and_keeps_no_other_job_away() -> None:
    words = submit_words(submission(cores=1, memory_mb=500, whole=False), Cluster(), ASKED)
    assert {"--nodes=1", "--cpus-per-task=1", "--mem=500M"} <= set(words)
    assert not [word for word in words if word.startswith(("--exclusive", "--mincpus", "--gpus"))]


def test_script_of_one_node_becomes_the_command_and_quotes_every_word() -> None:
    odd = 'it\'s $(id) `id` "x" \\ * \n end'
    words = ["printf", "%s|", odd, "{allocation}", "a{allocation}b", "", "-"]
    script = script_text(submission(command=words, count=3, environment={"ODD": odd}), "srun").decode()
    assert script.rsplit("\nexec ", 1)[0].count("export ODD=") == 1
    environ = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "2"}
    done = subprocess.run(["sh", "-s"], input=script, capture_output=True, text=True, env=environ, check=True)
    assert done.stdout == f"{odd}|tm-a-e1-1.2|atm-a-e1-1.2b||-|"


def test_a_job_gets_no_token_and_the_socket_of_its_own_node_only(tmp_path: Path) -> None:
    shown = "echo ${SLURM_JWT-none} ${SLURM_SACK_SOCKET-none}"
    script = script_text(submission(command=["sh", "-c", shown]), "srun").decode()
    here = tmp_path / "sack.socket"
    with socket.socket(socket.AF_UNIX) as kiosk:
        kiosk.bind(str(here))
        for path, kept in ((here, str(here)), (tmp_path / "of-the-login-node", "none")):
            environ = {"PATH": "/usr/bin:/bin", "SLURM_JWT": "a.b.c", "SLURM_SACK_SOCKET": str(path)}
            done = subprocess.run(
                ["sh", "-s"], input=script, capture_output=True, text=True, env=environ, check=True
            )
            assert done.stdout == f"none {kept}\n"


def test_script_of_several_nodes_launches_and_of_a_range_asks_slurm_for_their_number() -> None:
    script = script_text(submission(nodes=4, nodes_min=2), "srun").decode()
    assert 'exec srun --nodes="$SLURM_JOB_NUM_NODES"' in script
    assert "exec srun --nodes=4 " in script_text(submission(nodes=4), "srun").decode()
    assert " --cpu-bind=none " in script, "a pilot has all cores of its node, and binds its slots itself"
    assert "srun" not in script_text(submission(nodes=4, ranks=False), "srun").decode()


def test_burst_buffer_lines_stand_before_every_command_as_they_are() -> None:
    lines = [
        "#BB create_persistent name=data capacity=100",
        "#DW jobdw capacity=1TB access_mode=striped type=scratch",
    ]
    config = Cluster(directives=["--gres=gpu:4", *lines])
    script = script_text(submission(), "srun", head=config.script_head).decode()
    assert script.splitlines()[:3] == ["#!/bin/sh", *lines]
    assert submit_words(submission(), config, ASKED)[-1] == "--gres=gpu:4"
    assert not [word for word in submit_words(submission(), config, ASKED) if word.startswith("#")]
    with pytest.raises(ValueError, match="expected one line"):
        Cluster(directives=["#DW x\nrm -rf /"])
    with pytest.raises(ValueError, match="only Slurm reads lines"):
        SiteConfig(name="s", server="unix:/x", batch="pbs", cluster=config)


def test_script_refuses_what_no_shell_can_say() -> None:
    for changes in ({"environment": {"A B": "x"}}, {"command": ["a\0b"]}):
        with pytest.raises(SiteError) as caught:
            script_text(submission(**changes), "srun")
        assert not caught.value.transient


def test_slurm_gets_the_burst_buffer_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f"#!/bin/sh\ncat > {tmp_path}/got\necho 7\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:/usr/bin:/bin")
    config = Cluster(directives=["#DW jobdw type=scratch capacity=10GB access_mode=striped"])
    assert SlurmBatchSystem(tmp_path / "site", config, key=KEY).submit(submission()) == "7"
    assert (tmp_path / "got").read_text().startswith("#!/bin/sh\n#DW jobdw type=scratch capacity=10GB access")


def test_reasons_that_never_pass_are_limits_of_one_job_and_not_those_of_all_jobs_of_a_user() -> None:
    long = ["PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit"]
    long += ["AssocMaxCpuMinutesPerJobLimit", "QOSMaxCpuMinutesPerJobLimit"]
    never = [
        "PartitionNodeLimit",
        "QOSMaxCpuPerJobLimit",
        "AssocMaxNodePerJobLimit",
        "QOSMaxCpuPerNode",
        "QOSMinGRES",
    ]
    passing = [
        "Resources",
        "Priority",
        "QOSMaxCpuPerUserLimit",
        "AssocMaxJobsLimit",
        "QOSGrpCpuLimit",
        "AssocGrpCPURunMinutesLimit",
    ]
    for word in (*long, *never):
        assert (hopeless(word), is_too_long(word)) == (word, word in long)
    assert [hopeless(word) for word in passing] == [""] * len(passing)
    assert hopeless("Resources,PartitionTimeLimit") == "PartitionTimeLimit"
    waits = own.Match(job("9", "tm-a-e1-1", "PENDING", reason="PartitionTimeLimit"), False, False)
    assert own.status_of(waits).hopeless == "PartitionTimeLimit"
    refused = (
        "sbatch: error: QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed: "
        "Job violates accounting/QOS policy"
    )
    assert limit_named(refused) == "QOSMaxWallDurationPerJobLimit"
    assert recognise(CommandResult("x", 1, b"", refused, 0.1), REFUSALS) is Refusal.DENIED


def test_limits_of_qos_and_association_are_read_and_the_next_shorter_one_is_kept() -> None:
    known = read_walltimes((FIXTURES / "assoc_mgr-22.05.txt").read_bytes(), "ada")
    assert known == Walltimes(qos=(180.0,), associations=(600.0,))
    assert read_walltimes((FIXTURES / "assoc_mgr-22.05.txt").read_bytes(), "bob") == Walltimes(qos=(180.0,))
    assert longest(3600.0, "AssocMaxWallDurationPerJobLimit", known) == 600.0
    assert longest(600.0, "QOSMaxWallDurationPerJobLimit", known) == 180.0
    many = Walltimes(qos=(180.0, 1200.0, 7200.0))
    assert longest(3600.0, "QOSMaxWallDurationPerJobLimit", many) == 1200.0
    assert longest(1200.0, "QOSMaxWallDurationPerJobLimit", many) == 180.0, "it was another one"
    assert longest(3600.0, "QOSMaxWallDurationPerJobLimit", None) == 1800.0, "not shown: half of it is tried"
    assert longest(2700.0, "QOSMaxWallDurationPerJobLimit", None) == 1320.0, (
        "whole minutes, as Slurm's limits are"
    )


class ShownLimits:
    """A budget whose queries show limits of QOS, in minutes; None = the query fails."""

    def __init__(self, *minutes: int) -> None:
        self.minutes: tuple[int, ...] | None = minutes

    def query(self, command: Sequence[str]) -> list[int]:
        if self.minutes is None:
            raise SiteError("no answer", transient=True)
        return [*self.minutes]

    def check(self, minutes: Sequence[int]) -> bytes:
        return b"".join(b"QOS=q%d(%d) MaxWallPJ=%d\n" % (each, each, each) for each in minutes)


def test_a_limit_that_was_raised_is_forgotten_whatever_shorter_ones_other_qos_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before, the limit of a debug QOS was kept for ever instead."""
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    shown = ShownLimits(30, 60)
    limit = OwnLimit(shown, "ada")  # type: ignore[arg-type]

    def known() -> float | None:
        return limit.walltime_s

    limit.met(7200.0, "QOSMaxWallDurationPerJobLimit")
    assert known() == 3600.0
    now_s[0] += AGAIN_S
    limit.refresh()
    assert known() == 3600.0
    shown.minutes = None
    now_s[0] += AGAIN_S
    limit.refresh()
    assert known() == 3600.0, "it could not be read"
    shown.minutes = (30, 1440)
    now_s[0] += AGAIN_S
    limit.refresh()
    assert known() is None
    shown.minutes = None
    limit.met(7200.0, "QOSMaxWallDurationPerJobLimit")
    assert known() == 3600.0, "a guess"
    now_s[0] += GUESSED_S
    limit.refresh()
    assert known() is None
