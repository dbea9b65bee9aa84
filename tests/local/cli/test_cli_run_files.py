"""`tidemill run` as a tool of the shell: stdin, exit status, files, rows, names; `wait`, `attach`, `--resume`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.homes import TIDEMILL, WAIT_S, Home, started_home, wait_for

from tidemill.client import Client


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


def _campaign(home: Home) -> str:
    """A name that no other test of this home uses."""
    return f"t{time.monotonic_ns()}-{home.path.name}"


def _files(home: Home, campaign: str) -> dict[str, str]:
    """What was delivered as files: name -> content, without the manifest and archives."""
    folder = home.work / "tidemill-out" / campaign
    return {
        path.name: path.read_text()
        for path in folder.iterdir()
        if path.suffix not in (".tar", ".json") and not path.name.endswith("stdout")
    }


def test_stdin_reaches_the_command_of_a_single_event(home: Home) -> None:
    done = home.run("run", "--", "cat", stdin="one\ntwo\n")
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n"), done.stderr


def _typed(script: str) -> str:
    return script.replace("tidemill", " ".join(map(shlex.quote, TIDEMILL)))


def _shell(home: Home, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", _typed(script)], cwd=home.work, env=home.env, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


def test_a_loop_over_the_lines_of_a_file_loses_none_without_a_word(home: Home) -> None:
    (home.work / "list").write_text("a\nb\nc\n")
    done = _shell(home, "while read x; do tidemill run -- echo got $x; done < list")
    assert done.stdout == "got c\n", "nothing is left of the file at its last line"
    assert done.stderr.count("stdin is a file that was read in part before") == 2
    assert "`--no-stdin`" in done.stderr
    done = _shell(home, "while read x; do tidemill run --no-stdin -- echo got $x; done < list")
    assert (done.stdout, done.stderr) == ("got a\ngot b\ngot c\n", "")
    done = _shell(home, "{ read x; tidemill run --stdin -- cat; } < list")
    assert (done.stdout, done.stderr) == ("b\nc\n", "")


def test_what_a_command_takes_of_a_pipe_that_its_loop_reads_is_said(home: Home) -> None:
    (home.work / "list").write_text("a\nb\nc\n")
    done = _shell(home, "cat list | while read x; do tidemill run -- echo got $x; done")
    assert done.stdout == "got a\n"
    said = "remark: CMD reads the rest of stdin (4 B), which is also the stdin of the process that started `tidemill`"
    assert said in done.stderr
    done = _shell(home, "cat list | tidemill run -- cat")
    assert (done.stdout, done.stderr) == ("a\nb\nc\n", "")


@pytest.mark.parametrize("shell", [("bash",), ("bash", "-es"), ("sh",)])
@pytest.mark.parametrize("is_file", [True, False])
def test_commands_that_a_shell_reads_from_stdin_stay_with_the_shell(
    home: Home, tmp_path: Path, shell: tuple[str, ...], is_file: bool
) -> None:
    (home.work / "list").write_text("a\nb\n")
    lines = [
        *("tidemill run -- echo one", "tidemill run --events 2 -- true 2> /dev/null"),
        *("{ tidemill run -- cat; } < list", "echo c | (tidemill run -- cat)", "echo last"),
    ]
    script = tmp_path / "script"
    script.write_text(_typed("\n".join(lines)))
    words = ["bash", "-c", 'exec <"$0" "$@"' if is_file else 'cat "$0" | (exec "$@")', str(script), *shell]
    done = subprocess.run(
        words, cwd=home.work, env=home.env, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.stdout == "one\na\nb\nc\nlast\n", done.stderr


LONG = f"# {'x' * 77}\n" * 200
"""More than dash reads at once: the rest is still on stdin."""


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("way", ["< {script}", "<< 'THE END'\n{text}\nTHE END\n"])
def test_a_script_on_stdin_runs_to_its_end_whatever_descriptors_its_shell_has_inherited(
    home: Home, tmp_path: Path, shell: str, way: str
) -> None:
    (home.work / "list").write_text("a\nb\n")
    text = _typed(
        f"tidemill run -- echo one; : one line\n{LONG}timeout 60 tidemill run -- cat\n"
        "{ tidemill run -- cat; } < list\n{ (tidemill run -- cat; true); } < list\n"
        "count() { tidemill run -- wc -l; }; count < list\n{ tidemill run -- echo two; } 2> err\necho last"
    )
    script = tmp_path / "script"
    script.write_text(text)
    shown = f"flock -n 200 && {shell} {way.format(script=script, text=text)}"
    words = ["bash", "-c", f"( {shown} ) 200> lock 12< /dev/null 14< {script}"]
    done = subprocess.run(
        words, cwd=home.work, env=home.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.stdout == "one\na\nb\na\nb\n2\ntwo\nlast\n", done.stderr


def test_a_script_within_a_script_that_the_same_shell_reads_from_stdin_runs_to_its_end(home: Home) -> None:
    text = _typed("bash << 'THE END'\ntidemill run -- echo one\necho two\nTHE END\necho three\n")
    done = subprocess.run(
        ["bash"],
        cwd=home.work,
        env=home.env,
        input=text,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.stdout == "one\ntwo\nthree\n", done.stderr


def test_braces_are_passed_as_text_and_a_directory_may_be_called_like_a_placeholder(home: Home) -> None:
    folder = home.work / "in {event}"
    folder.mkdir()
    (folder / "prog").write_text("#!/bin/sh\necho $0 $*\n")
    (folder / "prog").chmod(0o755)
    done = _shell(
        home, "cd 'in {event}' && tidemill run -- ./prog {event} '{{event}}' '{{{seed}}}' '{a: {event}}'"
    )
    expected = f"{folder}/prog 0 {{event}} {{{{seed}}}} {{a: 0}}\n"
    assert done.stdout == expected, done.stderr
    done = _shell(
        home,
        "cd 'in {event}' && echo x | tidemill run -- ./prog {event} '{{event}}' '{{{seed}}}' '{a: {event}}'",
    )
    assert done.stdout == expected, done.stderr


def test_a_work_directory_with_a_line_break_can_be_used_where_outputs_go_elsewhere(home: Home) -> None:
    (folder := home.work / "a\nb").mkdir()
    (folder / "prog").write_text("#!/bin/sh\necho hello\n")
    (folder / "prog").chmod(0o755)
    done = _shell(home, f"cd '{folder}' && tidemill run -- ./prog")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a\\nb/tidemill-out`: its path has a line break" in done.stderr
    assert "--dir DIR" in done.stderr
    assert _shell(home, f"cd '{folder}' && tidemill run --dir ../out -- ./prog").returncode == 2
    done = _shell(home, f"cd '{folder}' && tidemill run --dir {home.work}/out -- ./prog")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def test_stdin_that_several_events_cannot_share_is_refused_with_the_ways_out(home: Home) -> None:
    done = home.run("run", "--events", "3", "--", "cat", stdin="data")
    assert done.returncode == 2
    assert "3 events cannot read one stdin" in done.stderr
    assert "`--each -`" in done.stderr


@pytest.mark.parametrize(("script", "status"), [("exit 42", 42), ("kill -KILL $$", 137)])
def test_a_single_event_exits_as_its_command_did(home: Home, script: str, status: int) -> None:
    done = home.run("run", "--", "sh", "-c", script)
    assert done.returncode == status, done.stderr
    (row,) = home.data("jobs", "--limit", "1")
    assert row["state"] == "FAILED"
    assert len(home.data("job", "show", str(row["id"]))["failures"]) == 1, "one event is not tried again"


def test_outputs_are_files_of_the_name_that_was_asked_for_with_the_manifest_beside_them(home: Home) -> None:
    name = _campaign(home)
    script = "printf 'made by %s' $0 > hits-$0.root"
    words = ["--events", "3", "--output", "hits-{event}.root", "--name", name]
    done = home.run("run", *words, "--", "sh", "-c", script, "{event}")
    assert done.returncode == 0, done.stderr
    assert _files(home, name) == {f"hits-{k}.root": f"made by {k}" for k in range(3)}
    (row,) = home.jobs(name)
    manifest = json.loads((home.work / "tidemill-out" / name / f"manifest-{row.id}.json").read_text())
    assert {each["file"] for each in manifest["files"]} >= {"hits-0.root", "hits-1.root", "hits-2.root"}
    copied = home.run("outputs", "get", str(row.id), "--output", "hits.root", "--event", "1", "--to", "one")
    assert (home.work / copied.stdout.strip()).read_text() == "made by 1", copied.stderr
    read = [each for each in Client(home=home.path).results(name) if each.output == "hits.root"]
    assert [(each.first, each.data) for each in read] == [(k, f"made by {k}".encode()) for k in range(3)]


def test_a_retry_adds_the_files_of_what_failed_and_leaves_the_others(home: Home) -> None:
    name = _campaign(home)
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="tm-") as directory:
        flag = Path(directory) / "flag"
        script = f"[ $0 != 1 ] || cat {flag} && echo $0 > out.txt"
        words = ["--events", "3", "--retries", "0", "--output", "out.txt", "--name", name]
        assert home.run("run", *words, "--", "sh", "-c", script, "{event}").returncode == 1
        assert set(_files(home, name)) == {"out-0.txt", "out-2.txt"}
        flag.write_text("there")
        resumed = home.run("run", "--resume", name)
    assert resumed.returncode == 0, resumed.stderr
    assert _files(home, name) == {f"out-{k}.txt": f"{k}\n" for k in range(3)}
    again = home.run("run", "--resume", name)
    assert (again.returncode, again.stdout) == (0, "")
    lines = again.stderr.splitlines()
    assert lines[0] == f"campaign `{name}` is complete: nothing is left to run"
    assert not any("following" in each or "events ended" in each for each in lines), (
        "there is nothing to wait for"
    )
    assert all(f"out-{k}.txt" in again.stderr for k in range(3)), again.stderr
    assert "would run   nothing\n" in home.run("run", "--resume", name, "--dry-run").stdout


def test_pack_tar_makes_one_archive_whose_members_are_named_after_the_output(home: Home) -> None:
    name = _campaign(home)
    words = [
        "--events",
        "2",
        "--pack",
        "tar",
        "--no-keep-stdout",
        "--output",
        "h-{event}.txt",
        "--name",
        name,
    ]
    assert home.run("run", *words, "--", "sh", "-c", "echo > h-$0.txt", "{event}").returncode == 0
    (row,) = home.jobs(name)
    listed = home.data("outputs", "ls", str(row.id), "--files")
    assert [each["name"] for each in listed] == ["h-000000000.txt", "h-000000001.txt"]


def test_pack_files_makes_files_of_stdout_and_outputs_are_told_apart_by_their_directories(
    home: Home,
) -> None:
    name = _campaign(home)
    words = [
        "--events",
        "2",
        "--pack",
        "files",
        "--output",
        "a/o.txt",
        "--output",
        "b/o.txt",
        "--output",
        "stdout",
    ]
    script = "mkdir a b; echo a$0 > a/o.txt; echo b$0 > b/o.txt; echo file > stdout; echo said $0"
    assert home.run("run", *words, "--name", name, "--dry-run", "--", "true").stdout.count("8 files") == 1
    done = home.run("run", *words, "--name", name, "--", "sh", "-c", script, "{event}")
    assert done.returncode == 0, done.stderr
    assert _files(home, name) == {
        "a-o-0.txt": "a0\n", "a-o-1.txt": "a1\n", "b-o-0.txt": "b0\n", "b-o-1.txt": "b1\n",
        "stdout-stdout-0": "said 0\n", "stdout-stdout-1": "said 1\n", "stdout-0": "file\n", "stdout-1": "file\n",
    }  # fmt: skip
    (row,) = home.jobs(name)
    assert home.run("job", "logs", str(row.id), "--event", "1").stdout == "said 1\n"
    assert home.run("run", "--pack", "files", "--", "echo", "one").stdout == "one\n"


def test_each_row_of_a_table_is_an_event_and_its_columns_name_its_files(home: Home) -> None:
    name = _campaign(home)
    (home.work / "points.csv").write_text('mass,label\n125,"a b"\n91,/etc/passwd\n')
    words = ["--each", "points.csv", "--output", "r-{mass}.txt", "--name", name]
    done = home.run("run", *words, "--", "sh", "-c", 'echo "$1=$2" > r-$2.txt', "sh", "{label}", "{mass}")
    assert done.returncode == 0, done.stderr
    assert _files(home, name) == {"r-125.txt": "a b=125\n", "r-91.txt": "/etc/passwd=91\n"}


def test_sweeps_combine_and_lines_come_from_stdin(home: Home) -> None:
    name, other = _campaign(home), _campaign(home)
    words = ["--sweep", "a=1..2", "--sweep", "b=x,y", "--pack", "files", "--name", name]
    assert home.run("run", *words, "--", "echo", "{a}{b}").returncode == 0
    assert sorted(each.data for each in Client(home=home.path).results(name)) == [
        b"1x\n", b"1y\n", b"2x\n", b"2y\n",
    ]  # fmt: skip
    done = home.run("run", "--each", "-", "--name", other, "--", "echo", "<{line}>", stdin="p\nq r\n")
    assert done.returncode == 0, done.stderr
    assert sorted(each.data for each in Client(home=home.path).results(other)) == [b"<p>\n", b"<q r>\n"]


def test_directories_patterns_and_names_with_spaces_come_and_go(home: Home) -> None:
    name = _campaign(home)
    (home.work / "my cards" / "deep").mkdir(parents=True)
    (home.work / "my cards" / "deep" / "run card.dat").write_text("card")
    (home.work / "with space.txt").write_text("space")
    for k in range(2):
        (home.work / f"part{k}.dat").write_text(str(k))
    script = 'cat "my cards/deep/run card.dat" "with space.txt" part0.dat part1.dat'
    script += "; mkdir p; echo 1 > p/a; echo 2 > b.x"
    words = ["--input", "my cards", "--input", "with space.txt", "--input", "part*.dat"]
    words += ["--output", "p/", "--output", "*.x", "--name", name]
    done = home.run("run", *words, "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, "cardspace01"), done.stderr
    folder = home.work / "tidemill-out" / name
    assert {path.name for path in folder.glob("*.tar")} == {"p.tar", "outputs.tar"}


def test_a_name_that_is_taken_is_refused_with_both_ways_out(home: Home) -> None:
    name = _campaign(home)
    assert home.run("run", "--name", name, "--", "true").returncode == 0
    done = home.run("run", "--name", name, "--", "true")
    assert done.returncode == 2
    assert f"`tidemill run --resume {name}`" in done.stderr
    assert "another --name" in done.stderr
    assert len(home.jobs(name)) == 1


def test_what_no_site_can_ever_run_is_refused_with_the_nearest_that_fits(home: Home) -> None:
    before = Client(home=home.path).counts().jobs
    done = home.run("run", "--cores", "999", "--", "true")
    assert done.returncode == 2
    assert "no slot of any site has 999 cores" in done.stderr
    assert "the most that fits is" in done.stderr
    assert "--gpus 0" in home.run("run", "--gpus", "64", "--", "true").stderr
    done = home.run("run", "--nodes", "999", "--", "true")
    assert (done.returncode, "no pilot of any site can start 999 nodes" in done.stderr) == (2, True), (
        done.stderr
    )
    assert "at most 1" in done.stderr
    done = home.run("run", "--site", "locl", "--", "true")
    assert (done.returncode, "did you mean `local`?" in done.stderr) == (2, True), done.stderr
    assert Client(home=home.path).counts().jobs == before


def test_a_dry_run_tells_events_files_and_cost_and_submits_nothing(home: Home) -> None:
    before = Client(home=home.path).counts().jobs
    words = ["--dry-run", "--sweep", "a=1..40", "--output", "h-{a}.root", "--wall", "90m"]
    spools = home.path / "inputs"
    kept = set(spools.glob("*"))  # of other tests
    plan = home.data("run", "--json", *words, "--", "true", "{a}")
    assert (plan["events"], plan["files"], plan["core_h_max"]) == (40, 40, 60.0)
    assert Client(home=home.path).counts().jobs == before
    assert set(spools.glob("*")) == kept


def test_the_environment_that_finds_software_reaches_the_command(home: Home) -> None:
    env = {
        "ROOTSYS": "/opt/root",
        "CONDA_PREFIX": "/opt/conda",
        "MY_DATA": "/opt/conda/share/x",
        "UNRELATED": "u",
        "MY_TOKEN": "s3",
    }
    script = "echo $ROOTSYS $CONDA_PREFIX $MY_DATA [$UNRELATED] [$MY_TOKEN]"
    done = home.run("run", "--", "sh", "-c", script, env=env)
    assert done.stdout == "/opt/root /opt/conda /opt/conda/share/x [] []\n", done.stderr
    done = home.run("run", "--env-all", "--", "sh", "-c", script, env=env)
    assert done.stdout == "/opt/root /opt/conda /opt/conda/share/x [u] []\n", done.stderr
    assert "`MY_TOKEN`" in done.stderr


def test_wait_and_attach_end_with_the_campaign(home: Home) -> None:
    name = _campaign(home)
    with home.running("run", "--name", name, "--", "sleep", "600") as run:
        wait_for(lambda: any(row.state == "RUNNING" for row in home.jobs(name)), home.logs)
        (row,) = home.jobs(name)

        def explained() -> str:
            return home.run("job", "explain", str(row.id)).stdout

        wait_for(lambda: "nothing holds it up: it runs at" in explained(), home.logs)
        told = explained()
        assert "no event of it has a time limit" in told
        done = home.run("wait", name, "--timeout", "1s")
        assert (done.returncode, "had not ended" in done.stderr) == (3, True)
        assert done.stderr.startswith(f"waiting for campaign `{name}`\n")
        with home.running("attach", name) as attached:
            assert home.run("job", "cancel", str(row.id)).returncode == 0
            attached.communicate(timeout=WAIT_S)
            assert attached.returncode == 1
        run.communicate(timeout=WAIT_S)
    done = home.run("wait", name)
    assert (done.returncode, "1 job CANCELED" in done.stderr) == (1, True)
    assert "job retry" in home.run("job", "explain", str(row.id)).stdout


def test_all_verbs_that_wait_say_for_what_and_why_nothing_runs(home: Home) -> None:
    name = _campaign(home)
    (home.work / "nowhere.toml").write_text('[[job]]\ncommand = ["true"]\nsite = "nowhere"\nrepeat = 2\n')
    with home.running("submit", "nowhere.toml", "--campaign", name, "--wait") as submits:
        wait_for(lambda: len(home.jobs(name)) == 2, home.logs)
        first, last = sorted(row.id for row in home.jobs(name))
        with home.running("wait", f"{first}-{last}") as waits, home.running("wait", name) as waits_all:
            processes = {
                submits: f"submitted 2 jobs, {first} to {last}, in campaign `{name}`\n",
                waits: f"waiting for 2 jobs, {first} to {last}\n",
                waits_all: f"waiting for campaign `{name}`\n",
            }
            seen = {process: [_until_waiting(process)] for process in processes}
            assert home.run("job", "cancel", "--campaign", name).returncode == 0
            for process, first_line in processes.items():
                rest = process.communicate(timeout=WAIT_S)[1]
                assert process.returncode == 1
                assert first_line in seen[process][0]
                assert NEVER_JOINED not in rest, "the same cause is printed once"
                assert "2 jobs CANCELED" in rest


NEVER_JOINED = "the only site that it may run at has never joined"


def _until_waiting(process: subprocess.Popen[str]) -> str:
    """What it printed on stderr until it named a cause."""
    assert process.stderr is not None
    lines = ""
    for line in process.stderr:
        lines += line
        if line.startswith(NEVER_JOINED):
            return lines
    raise AssertionError(f"no cause was named: {lines}")


def test_all_verbs_that_wait_end_as_run_does_where_some_events_fail(home: Home) -> None:
    name, accepted = _campaign(home), _campaign(home)
    words = ["--events", "3", "--retries", "0"]
    command = ["sh", "-c", "test $0 != 1", "{event}"]
    assert home.run("run", "--name", name, *words, "--", *command).returncode == 1
    assert (home.run("wait", name).returncode, home.run("attach", name).returncode) == (1, 1)
    assert home.run("run", "--name", accepted, "--failed-max", "1", *words, "--", *command).returncode == 0
    assert (home.run("wait", accepted).returncode, home.run("attach", accepted).returncode) == (0, 0)
    done = home.run("run", *words, "--", "false")
    assert "all 3 events failed: 0-2" in done.stderr, "no bound is named"
    assert "`tidemill run --resume false-" in done.stderr.splitlines()[-1], "the next step"


def test_wait_finds_the_one_job_whose_failure_is_not_accepted_among_many(home: Home) -> None:
    job = '[[job]]\ncommand = ["sh", "-c", "test $0 = 0", "{event}"]\nevents = 3\nretries = 0\n'
    accepted = job.replace("retries", "failed_max = 2\nrepeat = 22\nretries").replace(
        "events = 3", "events = 4"
    )
    accepted = accepted.replace("test $0 = 0", "test $0 -gt 1")
    (home.work / "many.toml").write_text(accepted + job + "failed_max = 2\n" + accepted)
    done = home.run("submit", "many.toml", "--campaign", "many", "--wait")
    assert "45 jobs PARTIAL" in done.stderr, done.stderr
    assert "campaign `many`: " in done.stderr, "the counts are those of all of the campaign"
    done = home.run("wait", "many")
    assert (done.returncode, done.stderr.count(" is PARTIAL")) == (1, 1), done.stderr
    again = "`tidemill job retry --campaign many` runs what failed"
    assert again in done.stderr, "as after `submit --wait`"
    first = min(row.id for row in home.jobs("many"))
    done = home.run("wait", f"{first}-99999")
    assert (done.returncode, "job 99999" in done.stderr, "waiting for" in done.stderr) == (2, True, False), (
        done.stderr
    )


def test_logs_find_a_stdout_of_any_size(home: Home) -> None:
    name = _campaign(home)
    assert home.run("run", "--name", name, "--", "sh", "-c", "yes | head -c 3000000").returncode == 0
    (row,) = home.jobs(name)
    assert len(home.run("job", "logs", str(row.id)).stdout) == 3_000_000


def test_an_explanation_of_what_has_ended_says_what_was_done(home: Home) -> None:
    name = _campaign(home)
    assert home.run("run", "--name", name, "--", "true").returncode == 0
    (row,) = home.jobs(name)
    told = home.run("job", "explain", str(row.id)).stdout
    assert "1 of 1 events done, in " in told
    assert "nothing is left to do" in told


def test_completion_knows_jobs_and_campaigns(home: Home) -> None:
    name = _campaign(home)
    assert home.run("run", "--name", name, "--", "true").returncode == 0
    (row,) = home.jobs(name)
    assert f"{row.id}\tCOMPLETED" in home.run("--complete", "job", "show", str(row.id)).stdout
    assert home.run("--complete", "run", "--resume", name[:8]).stdout.startswith(f"{name}\t")


def test_an_error_is_json_where_json_is_asked_for(home: Home) -> None:
    done = home.run("job", "show", "99999999", "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["exit_code"], "99999999" in error["message"]) == (2, 2, True)


def test_waiting_for_a_job_that_does_not_exist_ends_with_its_number(home: Home) -> None:
    assert home.run("run", "--", "true").returncode == 0
    (row,) = home.data("jobs", "--limit", "1")
    done = home.run("wait", f"{row['id']}-{row['id'] + 30}")
    assert (done.returncode, f"job {row['id'] + 30}" in done.stderr) == (2, True), done.stderr


def test_clean_removes_old_inputs_of_what_has_ended_and_keeps_those_of_what_runs(home: Home) -> None:
    ended, runs = _campaign(home), _campaign(home)
    assert (
        home.run("run", "--each", "-", "--name", ended, "--", "echo", "{line}", stdin="a\n").returncode == 0
    )
    (home.work / "list.csv").write_text("s\n600\n")
    with home.running("run", "--each", "list.csv", "--name", runs, "--", "sleep", "{s}"):
        wait_for(lambda: any(row.state == "RUNNING" for row in home.jobs(runs)), home.logs)
        for name in (ended, runs):
            os.utime(home.path / "inputs" / name, (0, 0))
        assert home.run("clean").returncode == 0
        assert [(home.path / "inputs" / name).exists() for name in (ended, runs)] == [False, True]
        assert home.run("job", "cancel", "--campaign", runs).returncode == 0
