"""Slurm's client commands as far as the adapter calls them, on a JSON file: for queues that no test machine can hold,
slow controllers and refusals. They answer in a clean environment only (tests/fakes/environment.py).
`install` puts the commands into a folder for PATH; they are compiled once, and start without `site`: some tests bound
what a call takes.

State: `delay_s` (each command takes so long), `refuse` (it prints this on stderr and fails), `warn` (only prints it),
`user`, `cluster` (sbatch prints `id;cluster`), `jobs` (records), `crowd` ({"running", "waiting", "nodes"}: so many
more of other users), `config` (lines of `scontrol show config`), `accounted` (lines of sacct), `associations` (lines
of sacctmgr), `allow` (what may be updated), `calls` (a file to which each call's words are appended), `sdiag_bytes`
(sdiag prints so many, no counter), `hides` (squeue shows no job whose name begins so), `deaf` (scancel does nothing,
and says so of nothing).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.fakes.environment import refusal

ROOT = Path(__file__).resolve().parents[3]
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.fakes.slurm.fake import main; sys.exit(main())"
COMMANDS = ("squeue", "sinfo", "scontrol", "sbatch", "scancel", "sacct", "sdiag", "sacctmgr")
LIVING = {"PD": "PENDING", "R": "RUNNING", "CG": "COMPLETING", "S": "SUSPENDED"}
SHORT = {word: short for short, word in LIVING.items()} | {
    "CANCELLED": "CA",
    "COMPLETED": "CD",
    "FAILED": "F",
}
State = dict[str, Any]


def install(folder: Path, state: State) -> Path:
    """Write the commands and their state; the state's path."""
    import shlex  # not for the commands themselves

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "state.json"
    path.write_text(json.dumps(state))
    for name in COMMANDS:
        words = shlex.join([sys.executable, "-I", "-S", "-c", START, str(path), name])
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / name).chmod(0o755)
    return path


def main() -> int:
    """Run one command."""
    path, command, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if refusal():
        sys.stderr.write(f"{refusal()}\n")
        return 1
    state: State = json.loads(path.read_text())
    if state.get("calls"):
        with Path(state["calls"]).open("a") as file:
            file.write(" ".join([command, *words]) + "\n")
    time.sleep(state.get("delay_s", 0))
    if state.get("refuse"):
        sys.stderr.write(f"{command}: error: {state['refuse']}\n")
        return 1
    if state.get("warn"):
        sys.stderr.write(f"{command}: {state['warn']}\n")
    if (
        command == "scontrol"
        and "update" in words
        and words[-1].partition("=")[0] not in state.get("allow", [])
    ):
        sys.stderr.write("Access/permission denied\n")
        return 1
    sys.stdout.writelines(f"{line}\n" for line in ACTS[command](state, words))
    if command in ("sbatch", "scancel", "scontrol"):
        path.write_text(json.dumps(state))
    return 0


def option(words: list[str], name: str) -> str:
    """The value of `--name=value`, empty where there is none."""
    return next((word.partition("=")[2] for word in words if word.startswith(f"--{name}=")), "")


def submit(state: State, words: list[str]) -> Iterator[str]:
    """A job that waits; an array is one row."""
    assert sys.stdin.read().startswith("#!"), "sbatch: error: This does not look like a batch script."
    if "--test-only" in words:
        return
    number = 1 + max((job["id"] for job in state.setdefault("jobs", [])), default=1_000_000)
    job = {"id": number, "name": option(words, "job-name"), "comment": option(words, "comment")}
    job |= {"user": state.get("user", "me"), "state": "PENDING", "elements": option(words, "array")}
    job |= {"minutes": int(option(words, "time") or 10), "nodes": 1}
    state["jobs"].append(job)
    yield f"{number};{state['cluster']}" if "cluster" in state else str(number)


def cancel(state: State, words: list[str]) -> list[str]:
    """By number, whole arrays."""
    numbers = set() if state.get("deaf") else {word.partition("_")[0] for word in words}
    for job in state.get("jobs", []):
        if str(job["id"]) in numbers:
            job["state"] = "CANCELLED"
    return []


def jobs(state: State) -> Iterator[dict[str, Any]]:
    """Those of the state, then the crowd's."""
    yield from state.get("jobs", [])
    crowd = state.get("crowd", {})
    names = list(node_names(state))
    now = int(time.time())
    for i in range(crowd.get("running", 0)):
        yield {
            "id": 1000 + i, "name": f"run_{i}", "user": f"user{i % 97}", "state": "RUNNING", "comment": "x" * (i % 40),
            "nodes": 1 + i % 3, "where": names[i % max(1, len(names))], "start": now - i, "minutes": 60 + i % 1440,
        }  # fmt: skip
    for i in range(crowd.get("waiting", 0)):
        yield {
            "id": 100_000 + i, "name": f"wait_{i}", "user": f"user{i % 89}", "state": "PENDING", "comment": "",
            "nodes": 1 + i % 64, "minutes": 30 + i % 2880, "elements": f"0-{i % 50}%7" if i % 10 == 0 else "",
            "reason": ("Priority", "Resources", "Dependency", "QOSMaxJobsPerUserLimit")[i % 4],
        }  # fmt: skip


def squeue(state: State, words: list[str]) -> Iterator[str]:
    """Rows in the format asked for."""
    if "--json" in words:
        yield json.dumps({"jobs": [document(job) for job in jobs(state)], "errors": []})
        return
    form = words[words.index("-o") + 1] if "-o" in words else "%i %j %u %t"
    wanted = words[words.index("-t") + 1] if "-t" in words else "PD,R,CG"
    states = {LIVING[word] for word in wanted.split(",") if word in LIVING}
    form = form.replace("%", "\0")
    for letter in "iTtujkrNSeVDlPfQYvCmh":
        form = form.replace(f"\0{letter}", f"{{{letter}}}")
    me = state.get("user", "me") if "--me" in words else None
    for job in jobs(state):
        if state.get("hides") and job["name"].startswith(state["hides"]):
            continue
        if (me is None or job["user"] == me) and (wanted == "all" or job["state"] in states):
            yield form.format_map(fields(job))


def fields(job: dict[str, Any]) -> dict[str, str]:
    """What squeue shows of a job, by its letter."""
    start, span = job.get("start", 0), job.get("minutes", 10) * 60
    elements = job.get("elements", "")
    return {
        "i": f"{job['id']}_[{elements}]" if elements else str(job["id"]),
        "T": job["state"], "t": SHORT.get(job["state"], job["state"]), "u": job["user"], "j": job["name"],
        "k": job.get("comment") or "(null)", "r": job.get("reason", "None"), "N": job.get("where", ""),
        "S": stamp(start), "e": stamp(start + span) if start else "N/A", "V": stamp(start or 1_795_000_000),
        "D": str(job.get("nodes", 1)), "l": f"{span // 86400}-{span % 86400 // 3600:02}:{span % 3600 // 60:02}:00",
        "P": "batch", "f": job.get("features", "(null)"), "Q": str(job.get("priority", 4_294_000_000 - job["id"])),
        "Y": job.get("planned", "(null)"), "v": "(null)", "C": str(job.get("nodes", 1) * 64), "m": "0", "h": "NO",
    }  # fmt: skip


def document(job: dict[str, Any]) -> dict[str, Any]:
    """As `squeue --json` of 22.05."""
    start = job.get("start", 0)
    return {
        "job_id": job["id"], "array_job_id": 0, "array_task_id": None, "name": job["name"], "user_name": job["user"],
        "comment": job.get("comment", ""), "job_state": job["state"], "nodes": job.get("where", ""),
        "node_count": job.get("nodes", 1), "start_time": start, "end_time": start + job.get("minutes", 10) * 60,
        "time_limit": job.get("minutes", 10), "partition": "batch", "priority": 5, "state_reason": "None",
    }  # fmt: skip


def stamp(at_s: int) -> str:
    """A time as Slurm prints it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s)) if at_s else "N/A"


def node_names(state: State) -> Iterator[str]:
    """n00001 and so on."""
    return (f"n{i:05}" for i in range(1, state.get("crowd", {}).get("nodes", 4) + 1))


WORDS = ("ALLOCATED", "IDLE", "IDLE+PLANNED", "MIXED", "DOWN*", "IDLE+DRAIN", "ALLOCATED+COMPLETING")


def scontrol(state: State, words: list[str]) -> Iterator[str]:
    """show nodes, partition, reservation, config; update TimeLimit."""
    if "update" in words:
        for job in state.get("jobs", []):
            job["minutes"] = int(words[-1].partition("=")[2])
        return
    what = words[words.index("show") + 1]
    names = list(node_names(state))
    if what == "nodes":
        for i, name in enumerate(names):
            yield (
                f"NodeName={name} Arch=x86_64 CoresPerSocket=32  CPUAlloc=0 CPUEfctv=64 CPUTot=64 CPULoad=0.03 "
                "AvailableFeatures=amd,hdr ActiveFeatures=amd,hdr Gres=gpu:a100:4 NodeAddr=x NodeHostName=x "
                "Version=22.05 OS=Linux 5.14.0 #1 SMP Mon Jan 1 RealMemory=256000 AllocMem=0 FreeMem=1 Sockets=2 "
                f"Boards=1 State={WORDS[i % 7]} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
                "Partitions=batch,debug BootTime=2026-11-01T00:00:00 SlurmdStartTime=2026-11-01T00:00:00 "
                "LastBusyTime=2026-11-01T00:00:00 CfgTRES=cpu=64,mem=250G,billing=64 AllocTRES= CapWatts=n/a"
            )
    elif what == "partition":
        yield (
            "PartitionName=batch AllowGroups=ALL Default=YES MaxNodes=UNLIMITED MaxTime=2-00:00:00 MinNodes=0 "
            f"Nodes=n[00001-{len(names):05}] PriorityTier=1 OverSubscribe=EXCLUSIVE PreemptMode=OFF State=UP "
            "GraceTime=0"
        )
    elif what == "job":
        yield from job_records(state, words[-1])
    elif what == "reservation":
        yield "No reservations in the system"
    elif what == "config":
        yield from ["Configuration data as of 2026-11-21T03:12:11", "SLURM_VERSION = 22.05.8"]
        yield from state.get("config", ["AccountingStorageType = accounting_storage/none"])


def job_records(state: State, number: str) -> Iterator[str]:
    """`scontrol -o show job NUMBER`."""
    for job in state.get("jobs", []):
        if str(job["id"]) == number:
            yield (
                f"JobId={job['id']} JobName={job['name']} UserId={job['user']}(1000) JobState={job['state']} "
                f"Reason=None Comment={job.get('comment', '')}  StdErr=/dev/null StdOut=/dev/null Power= "
            )


def elements(job: dict[str, Any]) -> int:
    """How many jobs a record stands for."""
    first, dash, last = job.get("elements", "").partition("%")[0].partition("-")
    return int(last) - int(first) + 1 if dash else 1


def sdiag(state: State, words: list[str]) -> list[str]:
    """The last plan is 7 s old. The counters are those of the state's jobs; a `crowd` counts as come long ago."""
    del words
    jobs = state.get("jobs", [])
    ended = {word: sum(job["state"] == word for job in jobs) for word in ("COMPLETED", "CANCELLED", "FAILED")}
    if "sdiag_bytes" in state:
        return ["#" * state["sdiag_bytes"]]
    return [
        f"Jobs submitted: {sum(elements(job) for job in jobs)}",
        "Jobs started:   0",
        f"Jobs completed: {ended['COMPLETED']}",
        f"Jobs canceled:  {ended['CANCELLED']}",
        f"Jobs failed:    {ended['FAILED']}",
        f"\tLast cycle when: Sat Nov 21 03:12:11 2026 ({int(time.time()) - 7})",
    ]


def sacct(state: State, words: list[str]) -> list[str]:
    """Whatever is asked."""
    del words
    return list(state.get("accounted", []))


def sacctmgr(state: State, words: list[str]) -> list[str]:
    """The user's associations."""
    del words
    return list(state.get("associations", []))


def sinfo(state: State, words: list[str]) -> list[str]:
    """One line for all nodes."""
    del words
    return [f"batch* up 1-00:00:00 {len(list(node_names(state)))} idle"]


ACTS: dict[str, Callable[[State, list[str]], Iterable[str]]] = {
    "sbatch": submit,
    "scancel": cancel,
    "squeue": squeue,
    "scontrol": scontrol,
    "sdiag": sdiag,
    "sacct": sacct,
    "sinfo": sinfo,
    "sacctmgr": sacctmgr,
}
