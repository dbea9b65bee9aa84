"""The state of the fake PBS, and how it runs jobs. See fake_pbs.py."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = os.environ.get("TIDEMILL_FAKE_PBS", "")
SERVER = "fake-pbs"
KILL_DELAY_S = 1.0
KILLED = 256 + 9  #: `Exit_status` of a job that KILL ended
UNKNOWN, FINISHED, DENIED, INVALID = 153, 35, 159, 156
AWAY = {"qstat": 255, "pbsnodes": 1}
AWAY_OTHERS = 162
EXPRESS = 150  #: `preempt_queue_prio`: jobs of such queues take nodes from others
NEVER = "Can Never Run: Not enough total nodes available"
TOO_MANY = "too many failed attempts to run"
RUNS_MAX = 20  #: a job whose starts fail more often is held
NOT_YET = "Not Running: Not enough free nodes available"
OVER = "FX"
"""States of what has ended: an element of an array is X until the whole array has ended."""


Job = dict[str, Any]
State = dict[str, Any]
Config = dict[str, Any]


def path(*parts: str) -> Path:
    return Path(HERE, *parts)


def user() -> str:
    return os.environ.get("TIDEMILL_FAKE_PBS_USER") or pwd.getpwuid(os.getuid()).pw_name


def ctime(seconds: float) -> str:
    return time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(seconds))


def seconds_of(text: str) -> int:
    total = 0
    for piece in text.split(":"):
        total = total * 60 + int(piece)
    return total


def clock_of(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


class Failed(Exception):
    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


# ---- the server's state ----


@contextlib.contextmanager
def server() -> Iterator[tuple[State, Config]]:
    with path("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with path("state.json").open() as file:
                state = json.load(file)
        except FileNotFoundError:
            state = {"next": 1, "jobs": {}}
        with path("config.json").open() as file:
            config = json.load(file)
        advance(state, config)
        try:
            yield state, config
        finally:  # also what a command that fails has started stays started
            advance(state, config)
            with path("state.new").open("w") as file:
                json.dump(state, file)
            path("state.new").replace(path("state.json"))


def advance(state: State, config: Config) -> None:
    for job in state["jobs"].values():
        if job["state"] in "RS" and (is_dead(job) or path("end", job["key"]).exists()):
            told = path("end", job["key"])
            if told.exists() and time.time() - told.stat().st_mtime < config.get("end_s", 0):
                continue  # the MoM has not looked yet
            job["exit"] = int(told.read_text()) if told.exists() else KILLED
            finish(job)
            state["due"] = True
    used = dict.fromkeys(config["nodes"], 0)
    for job in state["jobs"].values():
        if job["state"] == "R":
            take(job, used, config)
    # a cycle begins after an event, or when there was none for `scheduler_iteration`: not because somebody asks
    iteration_s = float(config["server"].get("scheduler_iteration", 600))
    is_due = state.get("due", True) or time.time() - state.get("cycle", 0) >= iteration_s
    if is_due and not path("no-scheduler").exists():
        state.update(due=False, cycle=time.time())
        schedule(state, config, used)
    close_arrays(state)
    if config["server"].get("job_history_enable") != "True":
        state["jobs"] = {key: job for key, job in state["jobs"].items() if job["state"] != "F"}


def is_dead(job: Job) -> bool:
    """Whether the process that runs a job is gone, perhaps with the test's namespace: it holds a lock as it lives."""
    try:
        with path("runs", job["key"]).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def schedule(state: State, config: Config, used: dict[str, int]) -> None:
    """One cycle: queues by priority, in each first in, first out; what was suspended goes on where it was.

    With `strict_ordering` the first blocked job has a planned start, and others are backfilled before it."""
    waiting = [job for job in state["jobs"].values() if job["state"] in "QS" and not job.get("holds")]
    planned_s: float | None = None  #: start of the first job that is blocked (`strict_ordering`)
    not_started(waiting)
    for job in sorted(waiting, key=lambda each: -queue_priority(each, config)):
        if job["state"] == "S":
            if all(fits(job, name, used, config) for name in job["hosts"]):
                take(job, used, config)
                job["state"] = "R"
                path("signal", f"{job['key']}@{int(signal.SIGCONT)}").touch()
            continue
        if len(places({**job, "wanted": {}}, dict.fromkeys(used, 0), config)) < job["nodes"]:
            job["comment"] = NEVER
            continue
        free = places(job, used, config)
        if len(free) < job["nodes"] and queue_priority(job, config) >= EXPRESS:
            preempt(state, config, used, job["nodes"])
            free = places(job, used, config)
        if len(free) < job["nodes"] or not is_before(job, planned_s):
            if not config.get("strict_ordering"):
                break
            if planned_s is None:
                planned_s = job["planned"] = planned_start_s(state, job, len(free))
            continue
        job["hosts"] = free
        if path("broken").exists() and set(job["hosts"]) & set(path("broken").read_text().split()):
            fail_starts(job, state)
            continue
        take(job, used, config)
        start(job)


def hold_job(job: Job, kinds: str, comment: str) -> None:
    """A hold, as `qhold` and the server set it; elements of an array show the array's, and stay Q."""
    job["holds"] = "".join(sorted({*job.get("holds", ""), *kinds}))
    job["comment"] = comment
    if not job["parent"]:
        job["state"] = "H"


def fail_starts(job: Job, state: State) -> None:
    """All starts of a job fail, in cycle after cycle, until the server holds it, and its array."""
    job["runs"] = RUNS_MAX + 1
    for each in state["jobs"].values():
        if job["parent"] and each["parent"] == job["parent"] and each["state"] == "Q":
            hold_job(each, "s", f"Job Array Held, {TOO_MANY} subjob {job['key']}.{SERVER}")
    hold_job(job, "s", f"job held, {TOO_MANY}")
    job["state"] = "H"


def places(job: Job, used: dict[str, int], config: Config) -> list[str]:
    """The host of each chunk of a job; fewer where not all fit. Chunks share a host unless they are scattered."""
    found: list[str] = []
    for name, cores in config["nodes"].items():
        if fits(job, name, used, config):
            room = 1 if "scatter" in job["place"].split(":") else (cores - used[name]) // max(1, job["ncpus"])
            found += [name] * room
    return found[: job["nodes"]]


def not_started(waiting: list[Job]) -> None:
    """What a cycle says of a job that it does not start."""
    for job in waiting:
        job.pop("planned", None)
        if job["state"] == "Q":
            job["comment"] = NOT_YET


def planned_start_s(state: State, top: Job, free: int) -> float:
    """When the limits of what runs leave enough nodes for the first job that is blocked."""
    ends: list[tuple[float, int]] = sorted(
        (job["stime"] + job["walltime"], len(job["hosts"]))
        for job in state["jobs"].values()
        if job["state"] == "R"
    )
    for end_s, nodes in ends:
        free += nodes
        if free >= top["nodes"]:
            return max(time.time(), end_s)
    return time.time() + 365 * 86400


def is_before(job: Job, planned_s: float | None) -> bool:
    """Whether a job ends by its limit before the planned job starts, so that it may be backfilled."""
    return planned_s is None or time.time() + job["walltime"] <= planned_s


def preempt(state: State, config: Config, used: dict[str, int], nodes: int) -> None:
    """Take nodes from what runs in other queues, the newest first: `preempt_order` D deletes, else it suspends."""
    running = [job for job in state["jobs"].values() if job["state"] == "R"]
    for job in sorted(running, key=lambda each: -each["stime"]):
        if queue_priority(job, config) >= EXPRESS or nodes <= 0:
            continue
        nodes -= len(job["hosts"])
        if config.get("preempt_order") == "D":
            job["deleted_by"] = "Scheduler"
            path("delete", job["key"]).touch()
            continue
        job["state"] = "S"
        path("signal", f"{job['key']}@{int(signal.SIGSTOP)}").touch()
        for name in job["hosts"]:
            used[name] -= config["nodes"][name] if job["excl"] else job["ncpus"]


def queue_priority(job: Job, config: Config) -> int:
    return int(config["queues"][job["queue"]].get("Priority", 0))


def close_arrays(state: State) -> None:
    """Elements that have ended stay as X until the last one of their array has."""
    open_ones = {
        job["parent"] for job in state["jobs"].values() if job["parent"] and job["state"] not in OVER
    }
    for job in state["jobs"].values():
        if job["state"] in OVER and job["parent"]:
            job["state"] = "X" if job["parent"] in open_ones else "F"


def take(job: Job, used: dict[str, int], config: Config) -> None:
    for name in job["hosts"]:
        used[name] += config["nodes"][name] if job["excl"] else job["ncpus"]


def fits(job: Job, name: str, used: dict[str, int], config: Config) -> bool:
    has = config.get("features", {}).get(name, {})
    if any(has.get(key) != value for key, value in job["wanted"].items()):
        return False
    if job["excl"]:
        return used[name] == 0
    return bool(used[name] + job["ncpus"] <= config["nodes"][name])


def finish(job: Job) -> None:
    job["state"] = "F"
    job["ended"] = time.time()
    job["comment"] = {None: "Job terminated", 0: "Job run and finished"}.get(
        job["exit"], "Job run and failed"
    )
    if job["exit"] == -29:
        job["comment"] += " and exceeded resource walltime"
    if job.get("deleted_by"):
        job["comment"] = (
            f"Job run at {ctime(job.get('stime', 0))} and terminated by {job['deleted_by']}@{SERVER}"
        )


def start(job: Job) -> None:
    job.update(state="R", stime=time.time(), runs=job.get("runs", 0) + 1)
    job.pop("planned", None)
    del job["comment"]
    with path("limit", job["key"]).open("w") as file:
        file.write(str(job["walltime"]))
    with path("nodefile", job["key"]).open("w") as file:
        file.write("".join(f"{name}\n" for name in job["hosts"]))
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "TIDEMILL_FAKE_PBS") if name in os.environ}
    environ.update(
        job["variables"],
        PBS_JOBID=f"{job['key']}.{SERVER}",
        PBS_JOBNAME=job["name"],
        PBS_NODEFILE=str(path("nodefile", job["key"])),
        PBS_ENVIRONMENT="PBS_BATCH",
    )
    if job["index"] is not None:
        environ["PBS_ARRAY_INDEX"] = str(job["index"])
    words = [
        sys.executable,
        str(Path(__file__).resolve().with_name("fake_pbs.py")),
        "--run",
        job["key"],
        *job["command"],
    ]
    with path("runs", job["key"]).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runner = subprocess.Popen(
            words,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )
    runner.returncode = 0  # nobody waits for it


# ---- running one job ----


def members(session: int, but: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        name = entry.name
        try:
            with (entry / "stat").open() as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and int(name) != but and fields[0] not in "ZX":
            found.append(int(name))
    return found


def signal_all(session: int, but: int, number: int) -> None:
    for pid in members(session, but):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def run_job(key: str, command: list[str]) -> None:
    """The MoM: limit, signals, end. Everything of the job is in a PID namespace where that is allowed."""
    outer = (
        ["unshare", "-pf", "--kill-child", "--mount-proc"]
        if os.getuid() == 0 and shutil.which("unshare")
        else []
    )
    # not as a login shell: the profile of the test's machine would take the fake commands from PATH
    words = [word for word in command if word != "-l"]
    child = subprocess.Popen([*outer, *words], start_new_session=True, cwd="/")
    try:
        status = watch(key, child, child.pid if outer else 0)
    finally:  # whatever went wrong here, nothing of the job stays
        signal_all(child.pid, 0, signal.SIGKILL)
    with path("end", f".{key}").open("w") as file:
        file.write(str(status))
    path("end", f".{key}").replace(path("end", key))


def is_orphaned() -> bool:
    """Whether the test that started all this is gone: it holds a lock as long as it lives."""
    try:
        with path("alive").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def watch(key: str, child: subprocess.Popen[bytes], but: int) -> int:
    """Follow a job until its end; its exit status as PBS tells it."""
    started, told, why = time.monotonic(), None, 0
    while child.poll() is None:
        if is_orphaned():
            raise Failed("the test is gone", 1)
        now = time.monotonic()
        with path("limit", key).open() as file:
            limit = float(file.read() or 1e9)
        for order in list(path("signal").iterdir()):
            target, _, number = order.name.rpartition("@")
            if target == key and members(child.pid, but):  # `unshare` may not have started the job yet
                order.unlink()
                signal_all(child.pid, but, int(number))
        if told is None and (path("delete", key).exists() or now - started > limit):
            told, why = now, 0 if path("delete", key).exists() else -29
            signal_all(child.pid, but, signal.SIGTERM)
        elif told is not None and now - told > KILL_DELAY_S:
            signal_all(child.pid, 0, signal.SIGKILL)
        time.sleep(0.01)
    status = child.returncode
    if why:
        status = why
    elif status < 0:
        status = 256 - status
    elif told is not None and status > 128:
        status = 256 + status - 128
    return status
