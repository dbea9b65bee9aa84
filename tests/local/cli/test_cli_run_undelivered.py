"""What `tidemill run` says of files that it does not deliver: no output names them, or their place refuses them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.home.homes import WAIT_S, Home, started_home, wait_for
from tests.worlds.home.small_disk import small_disk

LEFT = "removed from the work directory, since no output names it: "


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with started_home() as it:
        yield it


@pytest.mark.parametrize(
    "words",
    [
        ["--output", "x-{event}", "--output", "pl/"],
        ["--output", "x-{event}", "--output", "p*/h*.dat"],
        ["--output", "x-{event}", "--output", "pl/", "--input", "folder"],
    ],
)
def test_files_beside_archives_are_named(home: Home, words: list[str]) -> None:
    (home.work / "folder").mkdir(exist_ok=True)
    script = "mkdir pl; echo > pl/h.dat; echo >x-{event}; echo >left.root"
    done = home.run("run", "--events", "2", *words, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert f"event 0: {LEFT}`left.root`; `--output NAME` keeps" in done.stderr


def test_files_are_named_at_once_where_nothing_is_an_output(home: Home) -> None:
    for number in range(3):  # the second one follows while the pilot still waits for work
        words = ["run", "--events", "3", "--no-keep-stdout", "--", "sh", "-c", "echo > result{event}.dat"]
        done = home.run(*words)
        assert f"event 0: {LEFT}`result0.dat`" in done.stderr, (number, done.stderr)


def test_where_an_output_is_missing_the_files_are_named_that_are_there(home: Home) -> None:
    words = ["run", "--retries", "0", "--output", "h.dat", "--", "sh", "-c", "echo > h-{event}.dat"]
    done = home.run(*words)
    assert "`h.dat` is missing; the work directory has `h-0.dat`" in done.stderr


def test_a_full_disk_is_named_while_outputs_wait_for_it(tmp_path: Path) -> None:
    small = tmp_path / "small"
    with small_disk(small, "64k"):
        with started_home() as home:
            script = f"head -c 20000 /dev/zero > x; head -c 100000 /dev/zero > {small}/filler"
            with home.running(
                *("run", "--name", "full", "--events", "2", "--dir", str(small), "--output", "x"),
                *("--", "sh", "-c", f"{script} || true"),
            ) as run:
                assert run.stderr is not None
                said = ""
                while "No space left on device" not in said:  # a pilot that starts slowly is waited for, too
                    said += (line := run.stderr.readline())
                    assert line, said
                (job,) = home.jobs("full")
                told = home.run("job", "explain", str(job.id)).stdout
                (small / "filler").unlink()
                _, rest = run.communicate(timeout=WAIT_S)
        why = f"failed to deliver outputs of job {job.id} to `{small}/full`: No space left on device"
        assert f"the outputs of what is done are being delivered; local: {why}" in said
        assert why in told
        assert run.returncode == 0, rest


def test_after_ctrl_c_it_says_why_what_is_done_is_not_delivered_and_how_it_is(home: Home) -> None:
    name, place, other = "refused", home.work / "place", home.work / "other"
    place.mkdir()
    words = ["--name", name, "--events", "2", "--dir", str(place), "--output", "x"]
    script = "echo {event} > x; [ {event} = 0 ] || sleep 600"
    with home.running("run", *words, "--", "sh", "-c", script) as run:
        wait_for(lambda: any(row.events_done for row in home.jobs(name)), home.logs)
        place.rename(home.work / "place-2")
        place.write_text("a file")
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=WAIT_S)
    assert "error: event 0 is not delivered: " in said
    assert f"`tidemill run --resume {name} --dir OTHER` to another one" in said
    assert f"`tidemill run --resume {name}` runs the rest" in said
    (job,) = home.jobs(name)
    for verb in ("show", "explain"):
        assert "job accept" not in home.run("job", verb, str(job.id)).stdout, "it delivers to the same place"
    done = home.run("job", "retry", str(job.id), "--dir", str(other))
    assert done.returncode == 0, done.stderr
    wait_for(lambda: home.jobs(name)[0].state == "RUNNING", home.logs)
    assert home.run("job", "cancel", str(job.id)).returncode == 0
    wait_for(lambda: (other / name / "x-0").exists(), home.logs)


def test_nobody_is_sent_to_a_log_that_is_empty(home: Home) -> None:
    assert home.run("run", "--name", "mute", "--retries", "0", "--", "false").returncode == 1
    (job,) = home.jobs("mute")
    told = home.run("job", "explain", str(job.id)).stdout
    assert "its stderr is empty, and its site keeps no stdout" in told
    assert "job logs" not in told
    logs = home.run("job", "logs", str(job.id), "--event", "5")
    assert (logs.returncode, logs.stdout) == (1, "")
    assert f"job {job.id} has no event 5: it has one event, 0" in logs.stderr
    words = ["run", "--name", "loud", "--retries", "0", "--", "sh", "-c", "echo why; exit 1"]
    assert home.run(*words).returncode == 1
    (job,) = home.jobs("loud")
    assert "read its stdout, if any: `tidemill job logs" in home.run("job", "explain", str(job.id)).stdout
