"""What PBS prints, with its traps, becomes data."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tidemill.batch.contract import BatchSubmission, Ending
from tidemill.batch.pbs import command, places, replies, reservations
from tidemill.batch.pbs.nodes import read_nodes, read_partitions
from tidemill.config.site import Cluster
from tidemill.errors import SiteError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "pbs"


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


NOW_S = at("2025-07-28T11:00:00")


def read(name: str, part: str) -> dict[str, replies.Record]:
    found = replies.read_json((FIXTURES / name).read_bytes(), part)
    assert found is not None
    return found


def test_names_that_look_like_numbers_stay_text() -> None:
    job = read("jobs.json", "Jobs")["101.pbs01.example.org"]
    assert replies.text_of(job, "Job_Name") == "1e5"
    assert replies.text_of(job, "Exit_status") == "-29"


def test_json_that_is_none_is_repaired() -> None:
    (job,) = read("jobs_broken.json", "Jobs").values()
    told = replies.variables(job)
    assert told["QUOTED"] == "it's a list, of words"
    assert told["ZEROS"] == "005"
    assert told["LONG"] == "1234567890123456789012345678901234567890"
    assert told["BARE"] == "x86_64"
    assert told["TAB"] == "a\tb"
    assert told[command.KEY] == "0123456789012345"
    assert replies.text_of(job, "Resource_List", "walltime") == "00:10:00", "keys that come twice are merged"
    assert replies.text_of(job, "Resource_List", "nodect") == "1"


def test_json_that_cannot_be_repaired_is_told_apart_from_no_jobs() -> None:
    assert replies.read_json(b'{"Jobs":{"1.x":{"comment":"he said "no" to me"}}}', "Jobs") is None
    assert replies.read_json((FIXTURES / "unreachable.json").read_bytes(), "Jobs") == {}


def test_text_goes_on_after_tabs_and_in_shell_functions() -> None:
    jobs = replies.read_text((FIXTURES / "jobs.txt").read_bytes(), "Job Id:")
    assert list(jobs) == ["68350.mycluster", "68351.mycluster"]
    job = jobs["68350.mycluster"]
    assert replies.text_of(job, "Job_Name") == "2013"
    assert replies.text_of(job, "Output_Path").endswith("PTOscaletest/testjob.out")
    assert replies.text_of(job, "Resource_List", "walltime") == "01:00:00"
    told = replies.variables(job)
    assert told[command.KEY] == "0123456789abcdef"
    assert told[command.NAME] == "tm-here-e3-9"
    assert told["LIST"] == "a,b,c"
    assert told["LAST"] == "x"
    assert replies.text_of(job, "comment") == "Not Running: Node is in an ineligible state: offline"


def test_times_that_cannot_be_meant_are_none() -> None:
    assert replies.read_time("Mon Jul 28 10:22:44 2025", NOW_S) == at("2025-07-28T10:22:44")
    assert replies.read_time("1753700000", NOW_S) == 1753700000
    for text in ("UNKNOWN", "", "Thu Jan 01 00:00:00 1970", "0", "Mon Jul 28 10:22:44 2525", "yesterday"):
        assert replies.read_time(text, NOW_S) is None


def test_durations_and_sizes() -> None:
    assert replies.read_duration("8199:09:40") == 8199 * 3600 + 9 * 60 + 40
    assert replies.read_duration("00:00:01.5") == 1.5
    assert replies.read_duration("90") == 90
    assert replies.read_duration("") is None
    assert replies.read_duration("forever") is None
    assert replies.read_size_mb("527672488kb") == 540336
    assert replies.read_size_mb("8gb") == 8589
    assert replies.read_size_mb("0b") == 0
    assert replies.read_size_mb("1mw") == 8


def test_vnodes_of_a_list_that_was_cut() -> None:
    text = "(x1:ncpus=208:ngpus=6)+(x2:ncpus=4+x2[1]:ncpus=8)+(<truncated-this-list>)+(x9:ncpus=208"
    assert places.read_vnodes(text) == [("x1", 208), ("x2", 4), ("x2[1]", 8), ("x9", 208)]


def test_nodes_are_hosts_and_the_worst_word_counts() -> None:
    queues = read("queues.json", "Queue")
    nodes = {node.name: node for node in read_nodes(read("nodes.json", "nodes"), queues)}
    states = {name: node.state.value for name, node in nodes.items()}
    assert states == {
        "a": "shared", "b": "idle", "c": "busy", "d": "away", "e": "waking", "f": "reserved", "g": "sleeping",
        "h": "away", "i": "shared",
    }  # fmt: skip
    assert (nodes["a"].cores, nodes["a"].cores_free, nodes["a"].memory_mb) == (16, 8, 8589)
    assert nodes["b"].devices == (("gpu", 4),)
    assert nodes["i"].partitions == ("special",)
    assert "small" in nodes["a"].partitions
    assert "large" not in nodes["b"].partitions


def test_queues_that_route_are_none_and_lend_their_default() -> None:
    queues = read("queues.json", "Queue")
    nodes = read_nodes(read("nodes.json", "nodes"), queues)
    found = {each.name: each for each in read_partitions(queues, nodes, "prod")}
    assert list(found) == ["small", "large", "special"]
    assert found["small"].is_default
    assert (found["small"].walltime_max_s, found["small"].width_max, found["small"].tier) == (21600, 2, 11)
    assert [each.is_up for each in found.values()] == [True, False, True]


def test_standing_reservations_recur_and_maintenance_is_told() -> None:
    records = replies.read_reservations((FIXTURES / "rstat.txt").read_bytes())
    vnodes = {**{name: {"resv": "M9.pbs01"} for name in "bcd"}, "a0": {"resv": "S3.pbs01, S12.pbs01"}}
    found = reservations.read(records, user="ada", now_s=NOW_S, vnodes=vnodes, hosts={})
    assert [(each.name, each.maintenance, each.usable) for each in found] == [
        ("M9 pm", True, False),
        *[("S12 weekly", False, True)] * 3,
    ]
    assert found[0].nodes == ("b", "c", "d")
    assert [each.start_s - found[1].start_s for each in found[1:]] == [0, 604800, 1209600]


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        ("0", Ending.DONE), ("1", Ending.FAILED), ("271", Ending.CANCELED), ("-29", Ending.WALLTIME),
        ("-1", Ending.LAUNCH), ("-4", Ending.NODE), ("-14", Ending.NODE), ("-27", Ending.MEMORY),
        ("-99", Ending.UNKNOWN), ("", Ending.CANCELED), ("267", Ending.FAILED),
    ],
)  # fmt: skip
def test_exit_statuses(status: str, ending: Ending) -> None:
    assert command.ending_of(status) is ending


def test_a_site_that_wants_gpus_asks_for_them_in_each_chunk() -> None:
    submission = BatchSubmission(
        name="tm-x", command=["x"], nodes=2, cores=8, memory_mb=0, walltime_s=60, gpus=4
    )
    words = command.submit_words(submission, Cluster(), key="k", account="")
    assert "select=2:ncpus=8:ngpus=4" in words


def test_submission_says_all_that_pbs_can_do() -> None:
    submission = BatchSubmission(
        name="tm-here-e1-2", command=["x"], nodes=3, cores=8, memory_mb=100, walltime_s=600.2, count=1,
        walltime_min_s=60, comment="here contact=a,b@c d'e", features=("left", "gpu_type=A100"),
    )  # fmt: skip
    config = Cluster(partition="small", directives=["-l filesystems=home"])
    words = command.submit_words(submission, config, key="k", account="acc")
    assert "select=3:ncpus=8:mem=100mb:left=True:gpu_type=A100" in words
    assert "walltime=601" in words
    assert "min_walltime=60" in words
    assert "TIDEMILL_KEY=k,TIDEMILL_NAME=tm-here-e1-2,TIDEMILL_ABOUT=here_contact_a_b@c_d_e" in words
    assert words[-6:] == ["-q", "small", "-A", "acc", "-l", "filesystems=home"]


def test_jobs_on_idle_nodes_are_behind_all_others_and_those_that_queue_are_not() -> None:
    idle = BatchSubmission(name="tm-x", command=["x"], nodes=1, cores=8, memory_mb=0, walltime_s=60)
    queues = msgspec.structs.replace(idle, nodes=4, polite=False)
    words = command.submit_words(idle, Cluster(), key="k", account="")
    assert words[words.index("-p") + 1] == "-1024"
    assert "-p" not in command.submit_words(queues, Cluster(), key="k", account="")


def test_number_is_found_among_a_sites_own_words() -> None:
    assert (
        command.read_id(b"Project X has 3 hours left\n12[].pbs01.example.org\n") == "12[].pbs01.example.org"
    )
    with pytest.raises(SiteError, match="expected a number"):
        command.read_id(b"thank you\n")


def test_every_test_in_the_table_of_replies_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (FIXTURES / "README.md").read_text()))
    assert len(named) > 30
    text = "".join(path.read_text() for path in FIXTURES.parents[1].rglob("*.py"))
    assert named <= set(re.findall(r"def (test_\w+)", text))


def test_limits_before_a_deletion_are_few_and_only_lower() -> None:
    hour = 3600.0
    jobs = {
        "a": command.RunningLimit(started_s=0.0, limit_s=hour),
        "b": command.RunningLimit(started_s=20.0, limit_s=hour),
        "late": command.RunningLimit(started_s=500.0, limit_s=hour),
        "ends-anyway": command.RunningLimit(started_s=501.0, limit_s=200.0),
    }
    found = command.limits_before_end(jobs, 700.0)
    assert found == [(710, ["a", "b"]), (210, ["late"])]
    many = {
        str(k): command.RunningLimit(started_s=100.0 * k, limit_s=2 * hour)
        for k in range(command.LIMITS_MAX + 4)
    }
    assert len(command.limits_before_end(many, 2000.0)) == command.LIMITS_MAX


def test_the_script_of_an_allocation_leads_its_session() -> None:
    # a copy of it would run below a login shell, and the MoM would notice the end up to 19 s after `qdel`
    assert command.script_words(Path("/site/batch/scripts/tm-x")) == [
        "--",
        "/bin/sh",
        "-l",
        "/site/batch/scripts/tm-x",
    ]


def test_a_boolean_resource_is_a_feature_by_its_name_as_the_configuration_has_it() -> None:
    resources = {"ncpus": "4", "host": "n1", "left": "True", "right": "False", "kind": "a,b"}
    (node,) = read_nodes({"n1": {"state": "free", "resources_available": resources}}, {})
    assert set(node.features) == {"left", "left=True", "right=False", "kind=a,b"}


def test_queues_whose_nodes_go_to_one_job_each_are_not_shared() -> None:
    resources = {"ncpus": 4, "mem": "8gb"}
    queues = {"workq": {"queue_type": "Execution", "enabled": "True", "started": "True"}}

    def queue(*words: str) -> tuple[bool, str]:
        vnodes = {
            f"n{number}": {"state": "free", "sharing": word, "resources_available": resources}
            for number, word in enumerate(words)
        }
        (found,) = read_partitions(queues, read_nodes(vnodes, queues), "workq")
        return found.is_shared, found.sharing

    assert queue("default_excl", "force_exclhost") == (False, "sharing=default_excl,force_exclhost")
    assert queue("default_shared", "default_excl") == (True, "sharing=default_excl,default_shared")
    assert queue("ignore_excl") == (True, "sharing=ignore_excl")
