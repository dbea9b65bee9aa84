"""`tidemill-node trace` counts what strace counts, as root and as a user; traced programs end as they always do."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.trace import Case, build_mix, count_by_strace, count_by_trace

from tidemill.image.profile import parse_profile
from tidemill.node.binary import find_binary

ROOT = Path(__file__).parents[3]
LIMIT_S = 60
ISOLATE = ("unshare", "-pf", "--kill-child", "--mount-proc")  # nothing that is traced outlives its test
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
WAYS = [(), ("--plain",)]  #: with results by diversion, and with a second stop each
#: the Python of the system: an ordinary user may not reach the one that runs the tests
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def prefix(user: str) -> tuple[str, ...]:
    """Words before a command that run it as this user in a PID namespace of its own."""
    if os.geteuid() != 0:
        return ()
    return (*ISOLATE, *NOBODY) if user == "nobody" else ISOLATE


@pytest.fixture(params=["root", "nobody"])
def user(request: pytest.FixtureRequest) -> str:
    """Who traces; without root, only the one who runs the tests."""
    name: str = request.param
    if os.geteuid() != 0 and name == "root":
        pytest.skip("needs root")
    return name


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that everyone may write to, with the binary and the programs to trace."""
    path = Path(tempfile.mkdtemp(prefix="tm-trace-"))
    path.chmod(0o777)
    shutil.copy(find_binary(), path / "tidemill-node")
    (path / "tidemill-node").chmod(0o755)
    source = ROOT / "tests" / "payloads" / "metadata_trouble.c"
    subprocess.run(["gcc", "-O1", "-pthread", "-o", path / "trouble", source], check=True, timeout=LIMIT_S)
    unseen = source.with_name("metadata_unseen.c")
    subprocess.run(["gcc", "-O1", "-o", path / "unseen", unseen], check=True, timeout=LIMIT_S)
    (path / "main.cc").write_text("#include <map>\n#include <string>\nint main() { return 0; }\n")
    (path / "out").mkdir(mode=0o777)
    (path / "out").chmod(0o777)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def reachable_binary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_NODE_BINARY", str(folder / "tidemill-node"))


def counts_are_equal(case: Case, folder: Path, user: str) -> None:
    subprocess.run([*prefix(user), *case.command], check=True, capture_output=True, timeout=LIMIT_S)
    theirs = count_by_strace(case, folder / "out", prefix=prefix(user))
    for options in WAYS:
        ours, profile = count_by_trace(case, folder / "out", *options, prefix=prefix(user))
        assert ours == theirs, options
        assert sum(ours.values()) > 100
        sums_agree(profile)


def sums_agree(profile: Any) -> None:
    """By call, by second, by path, by area: all the same."""
    calls = [each["ok"] + sum(each["errors"].values()) for each in profile["ops"].values()]
    assert sum(calls) == sum(each["ok"] + each["failed"] for each in profile["bins"])
    named = sum(ok + failed for _, _, ok, failed, _ in profile["paths"])
    assert named == sum(area["ops"] for area in profile["areas"])
    assert 0 <= sum(calls) - named <= 0.02 * sum(calls)  # not named: the empty path, closed descriptors
    assert parse_profile(json.dumps(profile).encode(), source="test").ops_total == sum(calls)
    assert not profile["truncated"]


def test_threads_forks_a_static_program_dirfd_and_chdir_are_counted_like_strace_counts(
    folder: Path, user: str
) -> None:
    counts_are_equal(Case(build_mix(folder)), folder, user)


def test_a_python_import_is_counted_like_strace_counts(folder: Path, user: str) -> None:
    code = "import email.mime.text, sqlite3, subprocess, xml.dom.minidom; subprocess.run(['true'])"
    counts_are_equal(Case([PYTHON, "-B", "-c", code]), folder, user)


def test_a_compiler_is_counted_like_strace_counts(folder: Path, user: str) -> None:
    command = ["g++", "-c", "-o", str(folder / "out" / f"{user}.o"), str(folder / "main.cc")]
    counts_are_equal(Case(command), folder, user)


def test_find_is_counted_like_strace_counts(folder: Path, user: str) -> None:
    counts_are_equal(Case(["find", "/usr/share/doc", "-size", "+1000k"]), folder, user)


def trace(folder: Path, *words: str, user: str = "nobody") -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run `trace -o PROFILE WORDS`."""
    profile = folder / "out" / "profile.json"
    profile.unlink(missing_ok=True)
    command = [*prefix(user), str(folder / "tidemill-node"), "trace", "-o", str(profile), *words]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=folder / "out"
    )
    return result, profile


@pytest.mark.parametrize("options", WAYS, ids=["diverted", "plain"])
@pytest.mark.parametrize("mode", ["signals", "stops", "traces", "execs", "vforks", "threads"])
def test_no_operation_is_lost_in_programs_that_are_hard_to_trace(
    folder: Path, mode: str, options: tuple[str, ...]
) -> None:
    result, path = trace(folder, *options, "--", str(folder / "trouble"), mode)

    assert result.returncode == 0, result.stderr
    profile = json.loads(path.read_bytes())
    counted = {name: (ok, failed) for name, _, ok, failed, _ in profile["paths"]}
    assert counted["/no/such/name"] == (0, int(result.stdout))
    sums_agree(profile)


UNSEEN = {
    "ring": ("io_uring", "operations through io_uring are not counted"),
    "foreign": ("architecture", "calls by another architecture's numbers (`int $0x80`) are not counted"),
}


@pytest.mark.parametrize("options", WAYS, ids=["diverted", "plain"])
@pytest.mark.parametrize("mode", UNSEEN)
def test_what_no_filter_sees_is_noted_once_and_named_in_the_profile(
    folder: Path, mode: str, options: tuple[str, ...]
) -> None:
    result, path = trace(folder, *options, "--", str(folder / "unseen"), mode)

    if result.returncode == 77:
        pytest.skip(f"the kernel refuses `{mode}` here")
    assert result.returncode == 0, result.stderr
    profile = json.loads(path.read_bytes())
    cause, note = UNSEEN[mode]
    assert (profile["truncated"], profile["left_out"]) == (True, [cause])
    assert result.stderr.count(note) == 1


@pytest.mark.parametrize("options", [*WAYS, ("--also", "fstat,close")], ids=["diverted", "plain", "also"])
@pytest.mark.parametrize("mode", ["probe", "plain"])
def test_a_failed_probe_of_io_uring_and_calls_with_numbers_of_i386_leave_no_gap(
    folder: Path, mode: str, options: tuple[str, ...]
) -> None:
    result, path = trace(folder, *options, "--", str(folder / "unseen"), mode)

    assert (result.returncode, result.stderr) == (0, "")
    profile = json.loads(path.read_bytes())
    assert (profile["truncated"], profile["left_out"]) == (False, [])
    counted = {name: ok + failed for name, _, ok, failed, _ in profile["paths"]}
    assert counted.get("/no/such/name", 0) == (
        0 if mode == "probe" else 30 if os.uname().machine == "x86_64" else 20
    )


def test_of_killed_programs_all_but_the_call_in_flight_is_counted(folder: Path) -> None:
    result, path = trace(folder, "--", str(folder / "trouble"), "kills")

    assert result.returncode == 0, result.stderr
    profile = json.loads(path.read_bytes())
    counted = {name: failed for name, _, _, failed, _ in profile["paths"]}
    # a child may be killed between its call and its own count of it, or within the call
    assert abs(counted["/no/such/name"] - int(result.stdout)) <= 30
    sums_agree(profile)


def test_the_end_of_the_command_is_the_end_of_the_trace(folder: Path) -> None:
    result, path = trace(folder, "--", "sh", "-c", "exit 7")
    assert result.returncode == 7
    assert json.loads(path.read_bytes())["exit"] == 7
    command = [str(folder / "tidemill-node"), "trace", "-o", str(path), "--", "sh", "-c", "kill -SEGV $$"]
    ended = subprocess.run(command, check=False, timeout=LIMIT_S)
    assert ended.returncode == -signal.SIGSEGV
    assert json.loads(path.read_bytes())["signal"] == signal.SIGSEGV
    assert trace(folder, "--", "no-such-program")[0].returncode == 127


def test_a_signal_reaches_the_command_and_the_profile_is_written(folder: Path) -> None:
    path = folder / "out" / "term.json"
    script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    command = [str(folder / "tidemill-node"), "trace", "-o", str(path), "--", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.terminate()
        assert running.wait(LIMIT_S) == 9
    assert json.loads(path.read_bytes())["exit"] == 9


def test_a_signal_ends_the_wait_for_what_the_command_left(folder: Path) -> None:
    path = folder / "out" / "left.json"
    left = ["sh", "-c", "sleep 600 & echo ready"]
    command = [str(folder / "tidemill-node"), "trace", "-o", str(path), "--", *left]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == b"ready\n"
            deadline = time.monotonic() + LIMIT_S
            while running.poll() is None and time.monotonic() < deadline:
                running.terminate()  # the first may still be the command's
                with contextlib.suppress(subprocess.TimeoutExpired):
                    running.wait(0.05)
            assert running.poll() == -signal.SIGTERM
            assert running.stdout.read() == b"", "what was left has ended too"
        finally:
            running.kill()


CPUS = """
import os, subprocess, threading, time
def ask():
    for _ in range(500):
        os.path.exists("/no/such/name")
def told(after):
    with open("/proc/self/status") as status:
        return after, [line for line in status if line.startswith("Cpus_allowed:")], sorted(os.sched_getaffinity(0))
def look():
    ask()
    answers.append(told("thread"))
    asked.wait()
answers, asked = [], threading.Event()
for _ in range(5):
    ask()
    answers.append(told("asking"))
ask()
thread = threading.Thread(target=look)
thread.start()
ask()
answers.append(("other", [], sorted(os.sched_getaffinity(thread.native_id))))
asked.set()
thread.join()
ask()
answers.append(("child", [], subprocess.run(["nproc"], capture_output=True, text=True).stdout))
print(sorted(answers))
"""


@pytest.mark.parametrize("user", ["nobody"], indirect=True)
def test_a_traced_program_sees_the_cpus_that_it_has_untraced(folder: Path, user: str) -> None:
    bare = subprocess.run(
        [*prefix(user), PYTHON, "-c", CPUS], capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    traced, _ = trace(folder, "--", PYTHON, "-c", CPUS, user=user)
    assert traced.stdout == bare.stdout
    assert "asking" in traced.stdout


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU only")
def test_a_thread_that_asks_no_more_is_soon_free_of_the_tracer_s_cpu(folder: Path) -> None:
    """Seen from outside, since what a program asks itself is always as it was."""
    script = (
        "import os, time\nprint(os.getpid(), flush=True)\n"
        "until = time.monotonic() + 1\n"
        "while time.monotonic() < until: os.path.exists('/no/such/name')\n"
        "print('computes', flush=True)\nuntil = time.monotonic() + 3\nwhile time.monotonic() < until: pass\n"
    )
    command = [str(folder / "tidemill-node"), "trace", "-o", str(folder / "out" / "cpus.json"), "--"]
    everywhere = os.sched_getaffinity(0)
    with subprocess.Popen([*command, PYTHON, "-c", script], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        asking = []
        for _ in range(30):
            time.sleep(0.02)
            asking.append(os.sched_getaffinity(pid))
        assert running.stdout.readline() == b"computes\n"
        while os.sched_getaffinity(pid) != everywhere and running.poll() is None:  # it computes for 3 s
            time.sleep(0.01)
        computing = [os.sched_getaffinity(pid) for _ in range(100)]
        assert running.wait(LIMIT_S) == 0
    assert any(len(cpus) == 1 for cpus in asking)
    assert all(cpus == everywhere for cpus in computing)


def test_where_tracing_is_refused_the_command_runs_only_if_that_was_asked_for(folder: Path) -> None:
    inner = [str(folder / "tidemill-node"), "trace", "-o", str(folder / "out" / "inner.json")]
    refused, _ = trace(folder, "--", *inner, "--", "echo", "ran")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "hint:" in refused.stderr
    assert "--best-effort" in refused.stderr
    ran, _ = trace(folder, "--", *inner, "--best-effort", "--", "echo", "ran")
    assert (ran.returncode, ran.stdout) == (0, "ran\n")
    assert "untraced" in ran.stderr
    assert not (folder / "out" / "inner.json").exists()


def test_a_run_reads_at_most_what_the_files_have_that_it_opened_for_that(folder: Path) -> None:
    place = folder / "out" / "sizes"
    place.mkdir()
    place.chmod(0o777)
    for name, size in (("read", 10_000), ("seen", 300)):
        (place / name).write_bytes(b"x" * size)
    (place / "link").symlink_to("read")
    script = (
        f"import os; os.chdir('{place}'); [open(name).read() for name in ('read', 'link', 'read')];"
        "os.stat('seen'); open('new', 'wb').write(b'y' * 500);"
        "open('gone', 'w').write('z'); open('gone').read(); os.unlink('gone')"
    )
    _, path = trace(folder, "--area", str(place), "--", PYTHON, "-B", "-c", script)
    profile = json.loads(path.read_bytes())
    found = {Path(name).name: size for name, *_, size in profile["paths"] if name.startswith(f"{place}/")}
    assert found == {"read": 0, "link": 10_000, "seen": 0, "new": 0, "gone": 0}
    [area] = [area for area in profile["areas"] if area["area"] == str(place)]
    assert area["bytes_read"] == 10_000


def test_areas_kinds_and_limits_are_told(folder: Path) -> None:
    script = "import os; os.listdir('/usr/share/doc'); os.stat('/dev/null'); os.path.islink('/proc/self')"
    options = ["--area", "/usr/share", "--also", "close,getcwd"]
    _, path = trace(folder, *options, "--", PYTHON, "-B", "-c", script)
    profile = json.loads(path.read_bytes())
    kinds = {name: kind for name, kind, *_ in profile["paths"]}
    assert (kinds["/usr/share/doc"], kinds["/dev/null"], kinds["/proc/self"]) == ("D", "o", "l")
    assert {"point", "type", "prefix", "stripe"} == set(profile["mounts"][0])
    assert [each["prefix"] for each in profile["mounts"] if each["prefix"]] == ["/usr/share"]
    assert "/usr/share" in [each["area"] for each in profile["areas"]]
    assert profile["ops"]["close"]["ok"] > 0
    _, path = trace(folder, "--paths-max", "10", "--", PYTHON, "-B", "-c", script)
    short = json.loads(path.read_bytes())
    assert (len(short["paths"]), short["truncated"], short["left_out"]) == (10, True, ["paths"])
    assert sum(each["ops"] for each in short["areas"]) > 100
