"""`tidemill run --resume`, also with changes, and with `--dry-run`, which changes nothing."""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.home.homes import TIDEMILL, Home, started_home, wait_for

from tidemill.cli.verbs import VERBS, load, parser_of
from tidemill.client import Client
from tidemill.model.job import Input, JobSpec

#: allocates and touches 300 MB, then stays long enough to be measured
HUNGRY = ["python3", "-c", "x = bytearray(300 << 20); import time; time.sleep(3)"]


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


def state_of(home: Home) -> tuple[Any, ...]:
    """All that a dry run must not change: jobs and their specifications, files of the user and of `run`."""
    client = Client(home=home.path)
    jobs = [
        (row.id, row.state, row.events_done, row.events_failed, client.job(row.id).spec)
        for row in client.jobs()
    ]
    files = {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for folder in (home.work, home.path / "inputs")
        for path in sorted(folder.rglob("*"))
    }
    return jobs, files


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_a_dry_resume_runs_nothing(home: Home) -> None:
    ran = home.work / "ran.log"
    words = [
        "--name",
        "dry",
        "--events",
        "3",
        "--retries",
        "0",
        "--",
        "sh",
        "-c",
        f"echo ran >> {ran}; exit 1",
    ]
    assert home.run("run", *words).returncode == 1
    assert lines_of(ran) == 3
    before = state_of(home)
    done = home.run("run", "--resume", "dry", "--memory", "1G", "--dry-run")
    assert (done.returncode, state_of(home), lines_of(ran)) == (0, before, 3), done.stderr
    assert "would run   3 events of 1 job" in done.stdout
    assert "1,000 MB of memory" in done.stdout
    assert "nothing was submitted" in done.stderr
    assert home.data("run", "--resume", "dry", "--dry-run")["events"] == 3


def test_a_dry_resume_starts_no_server(tmp_path: Path) -> None:
    words = [*TIDEMILL, "run", "--home", str(tmp_path / "h"), "--resume", "x", "--dry-run"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, "no server is named, and none runs" in done.stderr) == (2, True)
    assert not (tmp_path / "h" / "up.json").exists()


def verbs_with_dry_run() -> set[str]:
    """All verbs that have the option."""
    return {verb for verb in VERBS if "--dry-run" in parser_of(verb, load(verb)).option_names()}


def test_no_verb_changes_anything_in_a_dry_run(home: Home) -> None:
    card, ended = home.work / "card", home.work / "made"
    card.write_text("1\n")
    job_file = home.work / "jobs.toml"
    job_file.write_text(f'campaign = "wet"\n[[job]]\ncommand = ["touch", "{ended}"]\n')
    store, cache = home.work / "store", home.work / "cache"
    store.mkdir()
    cache.mkdir()
    (cache / "file").write_text("kept")
    (home.path / "executor" / "1-gone").mkdir(parents=True, exist_ok=True)
    one = ["--name", "wet", "--", "touch", str(ended)]
    runs: dict[str, list[list[str]]] = {
        "run": [
            ["run", "--dry-run", *one],
            [
                "run",
                "--dry-run",
                "--each",
                str(card),
                "--input",
                str(card),
                "--dir",
                str(home.work / "d"),
                *one,
            ],
            ["run", "--dry-run", "--sweep", "a=1,2", "--name", "w2", "--", "touch", f"{ended}{{a}}"],
            ["run", "--dry-run", "--resume", "dry"],
            [
                "run",
                "--dry-run",
                "--resume",
                "dry",
                "--memory",
                "1G",
                "--dir",
                str(home.work / "e"),
                "--env",
                "A=1",
            ],
            ["run", "--resume", "dry", "--dry-run", "--retries", "3", "--json"],
            ["run", "--dry-run", "--name", "dry", "--", "touch", str(ended)],
        ],
        "submit": [
            ["submit", str(job_file), "--dry-run"],
            ["submit", str(job_file), "--dry-run", "--wait"],
            ["submit", str(job_file), "--campaign", "dry", "--dry-run", "--wait", "--json"],
        ],
        "clean": [["clean", "--dry-run"], ["clean", "--dry-run", "--json"]],
        "server upgrade": [["server", "upgrade", "--dry-run"]],
        "image gc": [["image", "gc", "--dry-run", "--keep", "1", "--store", str(store)]],
        "cache purge": [["cache", "purge", str(cache), "--dry-run"]],
    }
    assert set(runs) == verbs_with_dry_run()
    before = state_of(home)
    for verb, lines in runs.items():
        for words in lines:
            done = home.run(*words)
            assert state_of(home) == before, f"{words}: {done.stderr}"
            assert not ended.exists(), verb
            assert (home.path / "executor" / "1-gone").exists(), verb


def test_what_lacked_memory_is_resumed_with_more(home: Home) -> None:
    words = ["--name", "mem", "--memory", "100M", "--events", "2", "--retries", "0"]
    done = home.run("run", *words, "--", *HUNGRY)
    assert (done.returncode, "its limit is 100 MB" in done.stderr) == (1, True), done.stderr
    done = home.run("run", "--resume", "mem", "--memory", "1500M")
    assert done.returncode == 0, done.stderr
    assert "1,500 MB of memory" in done.stderr
    (row,) = home.jobs("mem")
    spec = Client(home=home.path).job(row.id).spec
    assert (row.state, spec.resources.memory_mb) == ("COMPLETED", 1500)


def test_what_lacked_time_is_resumed_with_more(home: Home) -> None:
    words = ["--name", "time", "--wall", "1s", "--retries", "0", "--", "sleep", "3"]
    assert home.run("run", *words).returncode != 0
    done = home.run("run", "--resume", "time", "--wall", "1m")
    assert done.returncode == 0, done.stderr


def test_environment_retries_and_bounds_are_taken_by_what_is_resumed(home: Home) -> None:
    script = 'test "$SIDE" = right && test "$(cat "$FLAG" 2>/dev/null)" = on'
    flag = home.work / "flag"
    words = [
        "--name",
        "env",
        "--retries",
        "0",
        "--events",
        "2",
        "--env",
        "SIDE=wrong",
        "--env",
        f"FLAG={flag}",
    ]
    assert home.run("run", *words, "--", "sh", "-c", script).returncode == 1
    flag.write_text("on")
    words = ["--env", "SIDE=right", "--retries", "1", "--failed-max", "1", "--at-once", "1", "--cores", "1"]
    words += ["--scratch", "60M"]
    done = home.run("run", "--resume", "env", *words)
    assert done.returncode == 0, done.stderr
    (row,) = home.jobs("env")
    spec = Client(home=home.path).job(row.id).spec
    assert (spec.env["SIDE"], spec.env["FLAG"]) == ("right", str(flag))
    assert (spec.retries, spec.failed_max, spec.at_once) == (1, 1, 1)
    assert spec.resources.scratch_mb == 60


def test_a_command_whose_files_found_no_room_gets_more_as_its_failure_says(home: Home) -> None:
    words = ["--name", "big", "--retries", "0", "--scratch", "60MB", "--output", "big"]
    done = home.run("run", *words, "--", "sh", "-c", "head -c 80000000 /dev/zero > big")
    assert done.returncode == 1
    assert "may take 60 MB together" in done.stderr
    assert "raise `--scratch` of `run` or `job retry`" in done.stderr, done.stderr
    (job,) = home.jobs("big")
    again = home.run("job", "retry", str(job.id), "--scratch", "200M", "--wait")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("option", [["--cores", "999"], ["--memory", "99999G"]])
def test_what_no_slot_can_take_is_refused_at_a_resume_and_a_retry_as_by_run(
    home: Home, option: list[str]
) -> None:
    name = f"large-{option[0][2:]}"
    assert home.run("run", "--name", name, "--retries", "0", "--", "false").returncode == 1
    (job,) = home.jobs(name)
    before = state_of(home)
    for words in (
        ["run", "--resume", name], ["run", "--resume", name, "--dry-run"], ["job", "retry", str(job.id)],
        ["job", "retry", "--campaign", name],
    ):  # fmt: skip
        done = home.run(*words, *option)
        assert (done.returncode, "no slot of any site has" in done.stderr) == (2, True), done.stderr
        assert f"{option[0]} " in done.stderr.partition("the most that fits is")[2]
    assert state_of(home) == before


def test_a_resume_names_every_option_that_it_does_not_take(home: Home) -> None:
    words = [
        "--output",
        "x.txt",
        "--cores",
        "2",
        "--site",
        "here",
        "--no-keep-stdout",
        "--fail-fast",
        "--events",
        "9",
    ]
    before = state_of(home)
    done = home.run("run", "--resume", "dry", *words, "--", "true")
    assert (done.returncode, state_of(home)) == (2, before)
    for name in ("`--output`", "`--site`", "`--no-keep-stdout`", "`--fail-fast`", "`--events`", "a command"):
        assert name in done.stderr, done.stderr
    assert "`--cores`" not in done.stderr.splitlines()[0]
    assert "hint: it takes --memory, --scratch, --wall, --cores, --dir" in done.stderr


def test_outputs_that_could_not_be_delivered_go_elsewhere_at_a_resume(home: Home) -> None:
    place = home.work / "full"
    place.mkdir()
    script = f"rm -rf {place}/out; echo block > {place}/out; echo x > x-$1.txt"
    words = ["--name", "away", "--dir", str(place / "out"), "--output", "x-{event}.txt", "--events", "2"]
    done = home.run("run", *words, "--", "sh", "-c", script, "sh", "{event}")
    assert done.returncode == 1, done.stderr
    assert "could not be delivered" in done.stderr, done.stderr
    other = home.work / "other"
    done = home.run("run", "--resume", "away", "--dir", str(other))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (other / "away").glob("x-*")) == ["x-0.txt", "x-1.txt"]
    assert [row.events_failed for row in home.jobs("away")] == [0]


def test_memory_grows_for_the_events_that_need_it(home: Home) -> None:
    script = f"import sys; sys.argv[1] == '1' and exec({HUNGRY[2]!r})"
    words = ["--name", "grow", "--memory", "100M..1500M", "--events", "3", "--retries", "0"]
    done = home.run("run", *words, "--", "python3", "-c", script, "{event}")
    assert done.returncode == 0, done.stderr
    failures = list(Client(home=home.path).failures(campaign="grow"))
    told = [each.evidence.message for each in failures]
    assert 1 <= len(told) <= 2, told
    assert all("its limit is" in each and "; it runs again with" in each for each in told), told
    assert {each.event for each in failures} <= {1, None}
    (row,) = home.jobs("grow")
    assert (row.state, row.events_done) == ("COMPLETED", 3)
    shown = home.run("job", "show", str(row.id)).stdout
    assert "100 MB, up to 1,500 MB" in shown


def test_memory_is_doubled_at_the_second_try(home: Home) -> None:
    done = home.run("run", "--name", "second", "--memory", "200M..1500M", "--", *HUNGRY)
    assert done.returncode == 0, done.stderr
    (failure,) = Client(home=home.path).failures(campaign="second")
    assert "its limit is 200 MB; it runs again with 400 MB" in failure.evidence.message


def test_300_megabytes_are_there_at_the_third_try_at_the_latest_where_100_are_the_first(home: Home) -> None:
    """At the second try if the slot measured all 300 MB before it killed the command."""
    done = home.run("run", "--name", "third", "--memory", "100M..1500M", "--", *HUNGRY)
    assert done.returncode == 0, done.stderr
    assert 1 <= len(list(Client(home=home.path).failures(campaign="third"))) <= 2


def test_what_needs_more_than_the_most_fails_and_says_so(home: Home) -> None:
    done = home.run("run", "--name", "toomuch", "--memory", "100M..200M", "--", *HUNGRY)
    assert done.returncode != 0
    assert "its limit is 200 MB, the most that it may grow to" in done.stderr, done.stderr


def test_time_grows_for_what_needs_longer(home: Home) -> None:
    done = home.run("run", "--name", "longer", "--wall", "1s..1m", "--", "sleep", "3")
    assert done.returncode == 0, done.stderr
    told = [each.evidence.message for each in Client(home=home.path).failures(campaign="longer")]
    assert told
    assert all("it runs again with" in each for each in told), told


def test_of_two_runs_of_one_name_at_once_one_is_refused(home: Home) -> None:
    words = ["run", "--name", "twice", "--", "sh", "-c", "sleep 1"]
    with home.running(*words) as one, home.running(*words) as other:
        codes = sorted((one.wait(60), other.wait(60)))
    assert codes == [0, 2]
    assert len(home.jobs("twice")) == 1


def test_a_refusal_of_the_server_is_a_usage_error(home: Home) -> None:
    job_file = home.work / "after.toml"
    job_file.write_text('[[job]]\ncommand = ["true"]\nafter = ["never-submitted"]\n')
    done = home.run("submit", str(job_file))
    assert (done.returncode, "which does not exist" in done.stderr) == (2, True), done.stderr
    done = home.run("run", "--retries", "5000", "--", "true")
    assert (done.returncode, "`retries` must be 0 to 1000" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("trouble", ["a file", "no permission", "below a file", "a dead link"])
def test_a_directory_that_cannot_be_written_is_found_before_anything_runs(home: Home, trouble: str) -> None:
    base = Path(tempfile.mkdtemp(dir=home.work))
    place, ran = base / "out", base / "ran"
    if trouble == "a file":
        place.write_text("")
    elif trouble == "below a file":
        (base / "file").write_text("")
        place = base / "file" / "out"
    elif trouble == "a dead link":
        place.symlink_to(base / "nowhere" / "at" / "all")
    else:
        place = Path("/proc/out")  # not even root may write there
    done = home.run("run", "--name", f"bad-{base.name}", "--dir", str(place), "--", "touch", str(ran))
    assert (done.returncode, ran.exists()) == (2, False), done.stderr
    assert "outputs cannot be written to" in done.stderr
    assert "hint: name another directory: `--dir`" in done.stderr
    assert home.jobs(f"bad-{base.name}") == []
    again = home.run("job", "retry", "1", "--dir", str(place))
    assert (again.returncode, "outputs cannot be written to" in again.stderr) == (2, True), again.stderr


def test_a_dry_run_refuses_a_directory_of_the_kernel_as_a_run_does(home: Home) -> None:
    assert home.run("run", "--name", "kernel", "--retries", "0", "--", "false").returncode == 1
    for words in (
        ["run", "--dir", "/proc/x", "--", "true"],
        ["run", "--resume", "kernel", "--dir", "/proc/x"],
    ):
        for dry in ([], ["--dry-run"]):
            done = home.run(words[0], *dry, *words[1:])
            assert done.returncode == 2, done.stderr
            assert "outputs cannot be written to `/proc/x/" in done.stderr
            assert "belongs to the kernel (`proc`)" in done.stderr


def test_a_campaign_canceled_long_ago_says_which_jobs_cannot_run_again_and_why() -> None:
    with started_home() as home:
        inputs = [
            Input(name=f"i{number}", url=f"file:///data/{number:03}" + "x" * 900) for number in range(5)
        ]
        spec = JobSpec(command=["true"], inputs=inputs, site="nowhere")
        client = Client(home=home.path)
        jobs = client.submit(spec, campaign="old", repeat=[2]).jobs
        assert home.run("job", "cancel", "--campaign", "old").returncode == 0
        home.stop()
        with sqlite3.connect(home.path / "server" / "tidemill.db") as database:
            database.execute("UPDATE jobs SET ended_us = ended_us - 31 * 86400000000")
        database.close()
        home.start()
        client = Client(home=home.path)
        wait_for(lambda: not client.job(jobs[0]).spec.inputs, home.logs)

        why = "2 jobs cannot run again: canceled before anything ran, and the specification has been removed since"
        for words in (["job", "retry", "--campaign", "old"], ["run", "--resume", "old"]):
            done = home.run(*words)
            assert why in done.stderr, done.stderr
            assert "nothing to run again" not in done.stderr
        assert home.data("job", "retry", "--campaign", "old")["gone"] == 2
