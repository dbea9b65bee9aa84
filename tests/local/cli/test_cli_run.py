"""The command line against real processes: server, agent, pilots, payloads, in a PID namespace of their own."""

from __future__ import annotations

import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.homes import WAIT_S, Home, started_home, wait_for
from tests.worlds.home.processes import by_role, send

from tidemill import examples
from tidemill.client import Client
from tidemill.client.home import read_up


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


def _campaign(home: Home) -> str:
    """A name that no other test of this home uses."""
    return f"t{time.monotonic_ns()}-{home.path.name}"


def test_run_gives_every_event_to_the_command_and_keeps_what_it_prints(home: Home) -> None:
    name = _campaign(home)
    done = home.run("run", "--events", "20", "--name", name, "--", "echo", "event", "{event}", "{seed}")
    assert done.returncode == 0, done.stderr + home.logs()
    assert "20 of 20 events done" in done.stderr
    assert done.stdout == ""
    (bundle,) = (home.work / "tidemill-out").rglob(f"{name}/*.tar")
    with tarfile.open(bundle) as tar:
        texts = [tar.extractfile(each).read().decode().split() for each in tar]  # type: ignore[union-attr]
    assert sorted(int(words[1]) for words in texts) == list(range(20))
    assert len({words[2] for words in texts}) == 20


def test_run_of_one_event_prints_what_the_command_prints(home: Home) -> None:
    done = home.run("run", "--", "sh", "-c", "printf 'a\\nb'; printf c >&2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\nb", "c")


def test_a_relative_path_of_a_script_is_found_from_the_work_directory(home: Home) -> None:
    (home.work / "prog.py").write_text("import os, sys; print(sys.argv[1], os.getcwd())")
    (home.work / "data.txt").write_text("not the staged one")
    (home.work / "staged").mkdir()
    (home.work / "staged" / "data.txt").write_text("x")
    words = ["run", "--input", "staged/data.txt", "--", sys.executable, "prog.py", "data.txt"]
    done = home.run(*words)
    assert (done.returncode, done.stdout.split()) == (0, ["data.txt", "/tmp/work"]), done.stderr


def test_a_single_failing_command_exits_as_it_did_with_class_and_its_last_words(home: Home) -> None:
    done = home.run("run", "--", "sh", "-c", "echo it broke >&2; exit 3")
    assert done.returncode == 3
    assert "payload" in done.stderr
    assert "it broke" in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 3", 3), ("kill -SEGV $$", 139), ("true", 1)],
    ids=["status", "signal", "output"],
)
def test_a_single_event_that_fails_prints_what_the_command_prints(
    home: Home, script: str, status: int
) -> None:
    output = ["--output", "missing.txt"] if script == "true" else []
    lines = "".join(f"line {number}\n" for number in range(200))
    words = [
        "sh",
        "-c",
        f'i=0; while [ $i -lt 200 ]; do echo "line $i"; i=$((i+1)); done; echo oops >&2; {script}',
    ]
    done = home.run("run", *output, "--", *words)
    assert (done.returncode, done.stdout) == (status, lines), done.stderr
    assert done.stderr.startswith("oops\n")
    assert done.stderr.count("oops") == 1
    assert "error: payload: " in done.stderr
    assert "hint: " in done.stderr


def test_a_single_event_that_fails_prints_no_stdout_where_none_is_kept(home: Home) -> None:
    done = home.run("run", "--no-keep-stdout", "--", "sh", "-c", "echo unwanted; exit 3")
    assert (done.returncode, done.stdout) == (3, ""), done.stderr


def test_inputs_lines_outputs_and_environment_reach_the_command(home: Home) -> None:
    name = _campaign(home)
    (home.work / "lines.txt").write_text("alpha\nbeta gamma\n")
    (home.work / "conf.txt").write_text("configured")
    script = 'printf "%s|%s|%s" "$1" "$(cat conf.txt)" "$COLOUR" > out.txt'
    done = home.run(
        "run", "--each", "lines.txt", "--input", "conf.txt", "--output", "out.txt", "--env", "COLOUR=blue",
        "--no-keep-stdout", "--name", name, "--", "sh", "-c", script, "sh", "{line}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [each.data.decode() for each in Client(home=home.path).results(name)]
    assert sorted(found) == ["alpha|configured|blue", "beta gamma|configured|blue"]


def test_ctrl_c_cancels_the_job(home: Home) -> None:
    name = _campaign(home)
    with home.running("run", "--name", name, "--", "sleep", "600") as run:
        wait_for(lambda: any(row.state == "RUNNING" for row in home.jobs(name)), home.logs)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=WAIT_S)
    assert run.returncode == 1
    assert "canceling" in said
    assert [row.state for row in home.jobs(name)] == ["CANCELED"]


def test_verbs_that_ask_answer_as_tables_and_as_json(home: Home) -> None:
    name = _campaign(home)
    words = ["--events", "3", "--retries", "0", "--name", name]
    assert home.run("run", *words, "--", "sh", "-c", "exit {event}").returncode == 1
    (row,) = home.data("jobs", "--campaign", name)
    job = str(row["id"])
    assert (row["state"], row["events_done"], row["events_failed"]) == ("PARTIAL", 1, 2)
    for words in (
        ["jobs"], ["job", "show", job], ["job", "explain", name], ["top", "--once"], ["errors", "--campaign", name],
        ["app", "list"], ["site", "status", str(home.path / "site")], ["doctor"],
    ):  # fmt: skip
        done = home.run(*words)
        assert done.returncode == 0, (words, done.stderr)
        home.data(*words)
    assert home.data("job", "show", name)["row"]["id"] == row["id"]
    assert home.run("job", "show", f"{name}x").returncode == 2
    groups = home.data("errors", "--campaign", name)
    assert {(group["failure"], group["count"]) for group in groups} == {("payload", 1)}


def test_outputs_are_listed_and_copied(home: Home) -> None:
    name = _campaign(home)
    assert home.run("run", "--events", "4", "--name", name, "--", "echo", "{event}").returncode == 0
    (listed,) = home.data("outputs", "ls", "--campaign", name)
    done = home.run("outputs", "get", str(listed["job"]), "--to", "copies")
    assert done.returncode == 0, done.stderr
    assert (home.work / done.stdout.strip()).stat().st_size == listed["output"]["size_bytes"]
    assert home.run("outputs", "get", str(listed["job"]), "--output", "nil").returncode == 2
    for words in ([str(listed["job"])], [name]):
        assert home.data("outputs", "ls", *words) == [listed]
        missed = home.run("outputs", "get", *words, "--event", "99")
        assert missed.returncode == 2
        assert f"hint: `tidemill outputs ls {' '.join(words)} --files` lists them" in missed.stderr


def test_retry_runs_what_failed_again(home: Home) -> None:
    name = _campaign(home)
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="tm-") as directory:  # /tmp is the payload's own
        flag = Path(directory) / "flag"
        assert home.run("run", "--name", name, "--", "cat", str(flag)).returncode == 1
        flag.write_text("there")
        (row,) = home.jobs(name)
        assert home.run("job", "retry", str(row.id)).returncode == 0
        (ended,) = Client(home=home.path).wait([row.id], timeout_s=WAIT_S)
    assert ended.state == "COMPLETED"


def test_a_second_up_says_which_one_runs_and_how_to_stop_it(home: Home) -> None:
    done = home.run("up")
    up = read_up(home.path)
    assert done.returncode == 2
    assert up is not None
    assert f"process {up.pid}" in done.stderr
    assert "tidemill up --stop" in done.stderr


def test_up_survives_the_death_of_server_and_agent(home: Home) -> None:
    name = _campaign(home)
    slow = ["sh", "-c", "sleep 0.1; echo {event}"]
    with home.running("run", "--events", "60", "--name", name, "--", *slow) as run:
        wait_for(lambda: any(row.events_done > 0 for row in home.jobs(name)), home.logs)
        for role in ("server", "agent"):
            (victim,) = by_role(home.path)[role]
            assert send(victim, signal.SIGKILL)
        _, said = run.communicate(timeout=WAIT_S)
    assert run.returncode == 0, said + home.logs()
    (row,) = home.jobs(name)
    assert (row.state, row.events_done) == ("COMPLETED", 60)


def test_homes_do_not_meet_and_everything_ends_with_up() -> None:
    homes = [Home(Path(tempfile.mkdtemp(prefix="tm-"))) for _ in range(2)]
    try:
        for each in homes:
            each.start()
        done = [each.run("run", "--name", "same", "--", "echo", str(each.path)) for each in homes]
        assert [each.stdout.strip() for each in done] == [str(each.path) for each in homes]
        first, second = homes
        (up,) = [each for each in by_role(first.path)["up"] if each.argv[0] == sys.executable]
        assert send(up, signal.SIGTERM)
        wait_for(lambda: not by_role(first.path), first.logs)
        assert read_up(second.path) is not None
        assert second.run("run", "--", "true").returncode == 0
    finally:
        for each in homes:
            each.end()


JOBS = """
[[job]]
name = "count"
command = ["/usr/bin/wc", "-l", "hits"]
keep_stdout = true
inputs = [{ name = "hits", url = "job:throw/hits" }]

[[job]]
name = "throw"
app = "pi"
events = 100
params = { darts = 10 }
"""


def test_a_job_file_runs_in_the_order_of_its_inputs(home: Home) -> None:
    examples.install(home.path / "site" / "apps")
    client = Client(home=home.path)
    wait_for(lambda: any(each.app.name == "pi" for each in client.applications()), home.logs)
    (home.work / "jobs.toml").write_text(JOBS)
    name = _campaign(home)
    done = home.run("submit", "jobs.toml", "--campaign", name, "--wait")
    assert done.returncode == 0, done.stderr
    (lines,) = [each.data for each in client.results(name) if each.output == "stdout"]
    assert lines.split() == [b"100", b"hits"]
    rows = sorted(row.id for row in home.jobs(name))
    assert f"submitted 2 jobs, {rows[0]} to {rows[1]}, in campaign `{name}`\n" in done.stderr
    assert "2 jobs COMPLETED\n" in done.stderr
    places = [line.split()[0] for line in done.stderr.splitlines() if line.startswith("    tidemill-out/")]
    assert len(places) == 2, "hits, and what `count` prints"
    assert all((home.work / each).exists() for each in places), done.stderr


def test_a_submission_that_is_waited_for_prints_why_its_jobs_failed(home: Home) -> None:
    (home.work / "bad.toml").write_text(
        2 * '[[job]]\ncommand = ["sh", "-c", "echo no field map >&2; exit 3"]\nretries = 0\n'
    )
    done = home.run("submit", "bad.toml", "--campaign", _campaign(home), "--wait")
    assert done.returncode == 1
    assert done.stderr.count(" is FAILED: its event failed\n") == 2
    assert done.stderr.count("error: payload: exit status 3 (event 0, ") == 1, "a cause that both have"
    assert "  | no field map\n" in done.stderr


def test_a_wrong_parameter_is_named_with_the_nearest(home: Home) -> None:
    examples.install(home.path / "site" / "apps")
    client = Client(home=home.path)
    wait_for(lambda: any(each.app.name == "pi" for each in client.applications()), home.logs)
    for words, hint in (
        (["--app", "pie"], "did you mean `pi`?"),
        (["--app", "pi", "-p", "drats=3"], "did you mean `darts`?"),
    ):
        done = home.run("submit", *words)
        assert done.returncode == 2
        assert hint in done.stderr
    done = home.run("submit", "--app", "pi", "-p", "darts=0", "--wait")
    assert done.returncode == 2
    assert "darts" in done.stderr
