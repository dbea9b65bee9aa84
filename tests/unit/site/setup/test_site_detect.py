"""From what was found out about a machine to the values of a site.toml and words about it."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from tests.worlds.home.installed import bare_batch

from tidemill import config
from tidemill.batch.contract import Facts, PartitionFacts
from tidemill.cli.site.init import draw, next_steps
from tidemill.config.site import SiteConfig
from tidemill.site.setup.advice import advise, is_unconfigured
from tidemill.site.setup.detection import Login, SiteWishes, Suggestion, elf_machine, of_node, suggest
from tidemill.site.setup.finding import Finding
from tidemill.site.setup.past import last_day
from tidemill.site.setup.probe import NodeFacts, parse

WISHES = SiteWishes(server="unix:/h/server/api.sock", batch="slurm", batch_origin="`sbatch` is on PATH")
LOGIN = Login(host="login1", machine="x86_64", binary="/opt/tidemill-node", binary_machine="x86_64")
BATCH = PartitionFacts(
    name="batch",
    is_default=True,
    nodes=16,
    cores_per_node=8,
    memory_mb_per_node=16000,
    walltime_max_s=86400,
    tier=10,
)
FACTS = Facts(
    system="Slurm 22.05.8",
    partitions=[BATCH, PartitionFacts(name="preempt", nodes=16, tier=1, preempted="requeue")],
    accounts=["sci", "old"],
    array_max=1001,
    scheduler={"ClusterName": "lab"},
)
NODE = NodeFacts(
    host="n01", machine="x86_64", kernel="5.14", cores=8, memory_mb=16000, site="writable", home="writable",
    home_same=True, shm_mb=8000, namespaces="yes", node_status=0, node_said="tidemill-node 0.1.0", network=True,
    reached=["10.0.0.5"], clock_offset_s=0.2,
)  # fmt: skip


def values(suggestion: Suggestion) -> SiteConfig:
    return config.loads(draw(suggestion), SiteConfig, source=Path("/s/site.toml"))


def found(suggestion: Suggestion, check: str) -> Finding:
    (finding,) = [each for each in suggestion.findings if each.check == check]
    return finding


def with_node(**changes: object) -> Suggestion:
    return suggest(WISHES, LOGIN, FACTS, msgspec.structs.replace(NODE, **changes))


def with_facts(**changes: object) -> Suggestion:
    return suggest(WISHES, LOGIN, msgspec.structs.replace(FACTS, **changes), NODE)


def test_a_new_site_observes_with_small_bounds_and_the_cluster_s_name() -> None:
    read = values(suggest(WISHES, LOGIN, FACTS, NODE))
    assert (read.name, read.mode, read.nodes_max, read.harvest.node_hours_max) == ("lab", "observe", 4, 100)
    assert (read.batch, read.cluster.partition) == ("slurm", "batch")
    assert (read.lead_listen, read.harvest.tcp) == ("10.0.0.5:0", "open")
    assert read.data_roots == []
    assert not read.allow_adhoc


def test_a_local_site_runs_as_before() -> None:
    read = values(suggest(SiteWishes(server="unix:/s", batch="local", nodes=3), LOGIN))
    assert (read.name, read.mode, read.local.nodes) == ("local", "run", 3)
    assert read.harvest.node_hours_max is None


def test_a_person_s_own_site_may_run_commands_and_read_that_person_s_files() -> None:
    wishes = msgspec.structs.replace(WISHES, personal=True, enable=True)
    read = values(suggest(wishes, LOGIN, FACTS, NODE))
    assert (read.mode, read.allow_adhoc, read.data_roots) == ("run", True, [Path("/")])


@pytest.mark.parametrize("node", [None, msgspec.structs.replace(NODE, network=False)])
def test_without_a_try_of_the_network_work_travels_by_files(node: NodeFacts | None) -> None:
    suggestion = suggest(WISHES, LOGIN, FACTS, node)
    assert values(suggestion).harvest.tcp == "nodes"
    assert "unknown" in draw(suggestion)


def test_closed_networks_are_told_and_work_travels_by_files() -> None:
    suggestion = with_node(reached=[])
    assert values(suggestion).harvest.tcp == "nodes"
    assert "do not reach this host" in found(suggestion, "network").found


def test_hidden_jobs_mean_windows_only_and_it_says_so() -> None:
    suggestion = with_facts(others_hidden=True)
    assert values(suggestion).harvest.policy == "windows"
    assert "hidden" in found(suggestion, "regular jobs").found


def test_an_account_becomes_a_grant_that_is_to_be_filled_in() -> None:
    suggestion = suggest(msgspec.structs.replace(WISHES, account="sci"), LOGIN, FACTS, NODE)
    (account,) = values(suggestion).accounts
    assert (account.name, account.node_hours) == ("sci", 100)
    assert "its grant is unknown" in found(suggestion, "account").found
    known = suggest(msgspec.structs.replace(WISHES, account="sci", node_hours=40.0), LOGIN, FACTS, NODE)
    assert found(known, "account").found == "sci; its `node_hours` in site.toml: 40"


def test_a_wrong_partition_is_answered_with_the_key_of_the_file() -> None:
    there = suggest(msgspec.structs.replace(WISHES, partition="batsch"), LOGIN, FACTS, NODE)
    assert "`partition` in [cluster] of site.toml" in found(there, "partition").hint


def test_a_partition_that_gives_way_is_pointed_out() -> None:
    assert found(suggest(WISHES, LOGIN, FACTS, NODE), "gentler").hint.startswith("`--partition preempt`")


def test_partitions_that_are_not_used_are_not_taken_for_other_users() -> None:
    assert "preempt" in found(suggest(WISHES, LOGIN, FACTS, NODE), "other partitions").found


def test_short_partitions_shorten_the_walltime() -> None:
    short = msgspec.structs.replace(BATCH, walltime_max_s=1800)
    assert values(with_facts(partitions=[short])).walltime_s == 1800


def test_without_a_usable_partition_each_one_says_why() -> None:
    closed = msgspec.structs.replace(BATCH, usable=False, why_not="it is not up")
    finding = found(with_facts(partitions=[closed]), "partition")
    assert (finding.state, finding.found) == ("fail", "none that you may use: batch: it is not up")


def test_switched_off_arrays_are_told() -> None:
    assert "MaxArraySize 0" in found(with_facts(array_max=0), "arrays").found


def test_words_of_slurm_are_used_for_slurm_only() -> None:
    less = msgspec.structs.replace(FACTS, array_max=0, others_hidden=True)
    shown = {
        batch: [
            found(suggest(msgspec.structs.replace(WISHES, batch=batch), LOGIN, less, NODE), check).found
            for check in ("arrays", "regular jobs")
        ]
        for batch in ("slurm", "pbs")
    }
    assert ["MaxArraySize" in shown["slurm"][0], "PrivateData" in shown["slurm"][1]] == [True, True]
    assert [each.partition(":")[0] for each in shown["pbs"]] == ["switched off", "hidden"]
    assert last_day(FACTS, BATCH, batch="slurm")[1] == "no accounting can be asked (sacct with slurmdbd)"
    assert last_day(FACTS, BATCH, batch="pbs")[1] == "Tidemill reads the accounting of Slurm only"


def test_arrays_are_not_called_switched_off_where_the_kind_has_none(tmp_path: Path) -> None:
    with bare_batch(tmp_path / "installed") as batch:
        wishes = msgspec.structs.replace(WISHES, batch=batch)
        found_here = suggest(wishes, LOGIN, msgspec.structs.replace(FACTS, array_max=0), NODE).findings
    assert "arrays" not in [each.check for each in found_here]


@pytest.mark.parametrize(
    ("changes", "check", "state", "words"),
    [
        ({"machine": "aarch64", "node_status": 126, "node_said": "Exec format error"}, "binary there", "fail",
         "Tidemill's binary is for x86_64, n01 is aarch64"),
        ({"node_status": 126, "node_said": "Permission denied"}, "binary there", "fail", "Permission denied"),
        ({"node_status": 127, "node_said": "not found"}, "binary there", "fail", "does not run on n01"),
        ({"site": "readonly"}, "site there", "fail", "readonly on n01"),
        ({"site": "absent"}, "site there", "fail", "absent on n01"),
        ({"home": "absent"}, "home there", "warn", "your home directory is absent"),
        ({"home_same": False}, "home there", "warn", "another directory"),
        ({"shm_mb": None}, "node memory", "warn", "no /dev/shm"),
        ({"namespaces": "no: unshare: Operation not permitted"}, "isolation", "warn", "Operation not permitted"),
        ({"clock_offset_s": -61.0}, "clock", "warn", "-61 s off"),
    ],
)  # fmt: skip
def test_what_is_wrong_on_a_node_is_said_with_a_hint(
    changes: dict[str, object], check: str, state: str, words: str
) -> None:
    finding = found(with_node(**changes), check)
    assert finding.state == state
    assert words in finding.found
    assert finding.hint


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
         "--account NAME"),
        ("`sinfo -h` ended with status 1: Unable to contact slurm controller (connect failure)", "does not answer"),
        ("there is no program `squeue`", "login node"),
        ("invalid partition specified: nix", "--partition NAME"),
        ("User's group not permitted to use this partition", "may not use it"),
        ("Required partition not available (inactive or drain)", "closed"),
        ("failed to write `/h/site.toml`: Disk quota exceeded", "free some space"),
        ("Job violates accounting/QOS policy (job submit limit)", "limit of the centre"),
        ("qsub: Unauthorized Request", "--account NAME"),
        ("qsub: Unknown queue", "--partition NAME"),
        ("error: unable to contact qmaster using port 6444 on host \"x\"", "does not answer"),
    ],
)  # fmt: skip
def test_errors_of_batch_systems_get_advice(message: str, words: str) -> None:
    assert words in (advise(message) or "")


def test_commands_without_a_cluster_behind_them_are_told_from_one_that_is_down() -> None:
    assert is_unconfigured("sinfo: fatal: Could not establish a configuration source")
    assert is_unconfigured("error: Please set the environment variable SGE_ROOT.")
    assert not is_unconfigured("Unable to contact slurm controller (connect failure)")
    assert advise("something nobody has seen") is None


def test_the_architecture_of_a_program_is_read_from_its_header(tmp_path: Path) -> None:
    arm = tmp_path / "arm"
    arm.write_bytes(b"\x7fELF" + bytes(14) + (183).to_bytes(2, "little"))
    assert elf_machine(arm) == "aarch64"
    assert elf_machine(Path(sys.executable)) in ("x86_64", "aarch64")
    assert elf_machine(tmp_path / "none") == ""
    assert elf_machine(Path(__file__)) == ""


def test_a_doctor_that_cannot_be_understood_on_the_node_is_told_with_what_to_do() -> None:
    ran = "probe=1\nmachine=x86_64\nnode_status=0\n"
    for line in ("doctor=", "doctor=tidemill-node: unknown command"):
        node = parse(ran + line, heard=[])
        (finding,) = [each for each in of_node(node, LOGIN) if each.check == "abilities"]
        assert finding.state == "warn"
        assert "is it of the same version" in finding.hint
    assert not [each for each in of_node(parse(ran, heard=[]), LOGIN) if each.check == "abilities"]


def test_the_file_of_a_new_site_fits_on_a_screen_and_names_where_the_rest_is() -> None:
    wishes = msgspec.structs.replace(
        WISHES, contact="me@x.org", stop_file="/proj/STOP", account="sci", enable=True, personal=True
    )
    facts = msgspec.structs.replace(FACTS, others_hidden=True, qos=["normal", "high"])
    suggestion = suggest(wishes, LOGIN, facts, msgspec.structs.replace(NODE, reached=[]))
    lines = draw(suggestion).splitlines()
    assert len(lines) <= 60
    assert "`tidemill site check --effective`" in "\n".join(lines[:3])
    assert max(map(len, lines)) <= 120
    for key in ("walltime_s", "qos", "directives", "gpus"):
        assert any(line.startswith(f"# {key} =") for line in lines), key
    here = draw(suggest(SiteWishes(server="unix:/s", batch="local"), LOGIN)).splitlines()
    assert len(here) < 30
    assert not [line for line in here if "cluster" in line or "partition" in line]


def steps_of(*, server: str, batch: str = "slurm", default: bool = True, **changes: object) -> str:
    wishes = msgspec.structs.replace(WISHES, server=server, batch=batch, enable=True)
    read = values(suggest(wishes, LOGIN, FACTS if batch == "slurm" else None))
    read = msgspec.structs.replace(read, **changes)
    steps = next_steps(read, Path("/s/site.toml"), is_default=default, failed=False)
    return "\n".join(f"{head}: {text}" for head, text in steps)


@pytest.mark.parametrize("batch", ["slurm", "local"])
def test_the_next_command_of_a_site_is_the_one_that_starts_it(batch: str) -> None:
    own = steps_of(server="unix:/h/server/api.sock", batch=batch)
    assert "next: `tidemill run -- hostname`" in own
    assert "missing" not in own
    far = steps_of(server="https://tide.example.org:7000", batch=batch)
    assert (
        "`tidemill site run`" in far.splitlines()[-1]
        if batch == "local"
        else "next: `tidemill site run`" in far
    )
    assert "`tidemill up" not in far
    assert "`tidemill run" not in far
    assert "missing: `certificate`, `token_file` or `secret_file`" in far
    apart = steps_of(server="unix:/h/server/api.sock", batch=batch, default=False)
    assert "`tidemill site run /s`" in apart


def test_a_site_with_a_credential_lacks_none() -> None:
    assert "missing" not in steps_of(server="https://tide.example.org:7000", token_file=Path("/t"))


def test_what_a_submission_would_meet_is_said_before_the_first() -> None:
    refused = found(
        with_facts(refused="Invalid account or account/partition combination specified"), "submit"
    )
    assert (refused.state, "Invalid account" in refused.found) == ("fail", True)
    assert "--account NAME" in refused.hint
    closed = msgspec.structs.replace(BATCH, accounts=["cms"])
    warned = found(with_facts(partitions=[closed]), "submit")
    assert (warned.state, "these accounts only: cms" in warned.found, "sci" in warned.hint) == (
        "warn",
        True,
        True,
    )
    open_to = msgspec.structs.replace(BATCH, accounts=["cms", "sci"])
    assert not [each for each in with_facts(partitions=[open_to]).findings if each.check == "submit"]


def test_limits_of_partition_account_and_qos_are_listed() -> None:
    narrow = msgspec.structs.replace(BATCH, width_max=2)
    limits = ["account sci: GrpTRES=cpu=64", "QOS normal: MaxWall=02:00:00"]
    text = found(with_facts(partitions=[narrow], jobs_max=8, limits=limits), "limits").found
    assert text == f"of yours at once: jobs 8; partition batch: 2 nodes of a job; {'; '.join(limits)}"
