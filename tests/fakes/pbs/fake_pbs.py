#!/usr/bin/env python3
"""A PBS made of commands alone: qsub, qstat, qdel, qalter, qselect, qsig, qhold, pbsnodes, pbs_rstat, pbsdsh (links).

There is no daemon: every command takes the lock of `$TIDEMILL_FAKE_PBS`, notes which jobs have ended, starts what fits,
and does its work. Jobs are really run, each by a process of its own that keeps its limit. Outputs, messages and exit
statuses are those of OpenPBS 23.06 as recorded, with what is wrong in them: JSON tells only the first of several
numbers, and makes numbers of variables that look like one.

    $TIDEMILL_FAKE_PBS/config.json   nodes {name: processors}, server {attribute: value}, queues, preempt_order,
                                     strict_ordering, vnodes (parts of each host, 1)
    $TIDEMILL_FAKE_PBS/no-scheduler  while it is there, nothing starts
    $TIDEMILL_FAKE_PBS/broken        names of nodes on which every start fails
    $TIDEMILL_FAKE_PBS/mute          while it is there, `qsub` takes jobs and prints nothing
    $TIDEMILL_FAKE_PBS/old           while it is there, `qstat` does not know `-E`, as before 2016
    $TIDEMILL_FAKE_PBS/commands      the commands so far, a line each
    $TIDEMILL_FAKE_PBS/away          while it is there, the server does not answer
    $TIDEMILL_FAKE_PBS/slow          seconds that every command takes, if it is there
    $TIDEMILL_FAKE_PBS/rstat         what `pbs_rstat -f` prints
    $TIDEMILL_FAKE_PBS_USER          a person calls, of this name; without it Tidemill does, in a clean environment
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.fakes.environment import refusal
from tests.fakes.pbs.server import (
    AWAY,
    AWAY_OTHERS,
    DENIED,
    FINISHED,
    INVALID,
    OVER,
    SERVER,
    UNKNOWN,
    Config,
    Failed,
    Job,
    State,
    ctime,
    finish,
    hold_job,
    path,
    run_job,
    seconds_of,
    server,
    user,
)
from tests.fakes.pbs.told import array, as_json, as_text, attributes, state_count

# ---- commands ----


def options(words: list[str], valued: str, flags: str) -> tuple[dict[str, list[str]], list[str]]:
    found: dict[str, list[str]] = {}
    rest: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        if word.startswith("-") and word[1:2] in valued and word[1:2]:
            found.setdefault(word[1], []).append(word[2:] or words.pop(0))
        elif word.startswith("-") and word[1:] and set(word[1:]) <= set(flags):
            for letter in word[1:]:
                found.setdefault(letter, []).append("")
        else:
            rest.append(word)
    return found, rest


def check_environment() -> None:
    """Users call with any environment, Tidemill with a clean one."""
    why = "" if "TIDEMILL_FAKE_PBS_USER" in os.environ else refusal("TIDEMILL_FAKE_PBS")
    if why:
        raise Failed(why, INVALID)


def check_server(words: list[str]) -> None:
    if path("slow").exists():
        time.sleep(float(path("slow").read_text()))
    if not path("away").exists():
        return
    if "json" in words:
        sys.stdout.write(
            '{\n  "timestamp":1751498039,\n  "pbs_version":"23.06.06",\n  "pbs_server":"fake-pbs"\n}\n'
        )
    words_of = {"qdel": f"Couldn't connect to cluster: {SERVER}", "pbs_rstat": "pbs_rstat: cannot connect to server "
                "(errno=15010)", "pbsnodes": f"pbsnodes: cannot connect to server {SERVER}, error=15010"}  # fmt: skip
    usual = f"{NAME}: cannot connect to server {SERVER} (errno=15010)"
    raise Failed(f"Connection refused\n{words_of.get(NAME, usual)}", AWAY.get(NAME, AWAY_OTHERS))


def check_words(given: dict[str, list[str]], name: str, priority: str) -> None:
    """What qsub itself refuses, before it asks the server."""
    if not re.fullmatch(r"[+-]?[0-9]+", priority) or not -1024 <= int(priority) <= 1023:
        raise Failed(f"qsub: illegal -p value\n{USAGE}", 2)
    if "J" in given and given.get("r", ["y"])[-1] == "n":
        raise Failed(f"qsub:  cannot submit non-rerunable Array Job\n{USAGE}", 2)
    if len(name) > 230:
        raise Failed("qsub: Job name is too long ", 2)
    if not re.fullmatch(r"[A-Za-z0-9_.+-]+", name):
        raise Failed("qsub: illegal -N value", 2)


def qsub(words: list[str]) -> None:
    options_end = words.index("--") if "--" in words else len(words)
    command = words[options_end + 1 :]  #: `qsub -- COMMAND`: PBS copies no script
    given, rest = options(words[:options_end], "SojlrmqvNJAPWpk", "zVIXh")
    rest = rest or command[-1:]
    resources = dict(each.partition("=")[::2] for each in given.get("l", []))
    name, priority = given.get("N", [Path(rest[0]).name])[0], given.get("p", ["0"])[-1]
    check_words(given, name, priority)
    count, *chunk = resources.get("select", "1:ncpus=1").split(":")
    wanted = dict(each.partition("=")[::2] for each in chunk)
    ncpus = int(wanted.pop("ncpus", 1))
    wanted.pop("mem", None)
    with server() as (state, config):
        queue = given.get("q", ["workq"])[-1]
        if queue not in config["queues"]:
            raise Failed("qsub: Unknown queue", 170)
        if not count.isdecimal():
            raise Failed("qsub: Illegal attribute or resource value Resource_List.select", 166)
        if unknown := [
            key for key in wanted if key not in config.get("resources", ()) and not has_feature(config, key)
        ]:
            raise Failed(f"qsub: Unknown resource: {unknown[0]}", 187)
        number = state["next"]
        state.update(next=number + 1, due=True)
        if not command:
            shutil.copy(rest[0], path("script", str(number)))
        variables = dict(pair.partition("=")[::2] for pair in given.get("v", [""])[0].split(",") if pair)
        plain = {
            "name": name, "owner": user(), "queue": queue, "nodes": int(count), "ncpus": ncpus, "wanted": wanted,
            "select": resources.get("select", "1"), "place": resources.get("place", "free"),
            "walltime": seconds_of(resources.get("walltime", "3600")), "variables": variables, "exit": None,
            "excl": "excl" in resources.get("place", ""),
            "command": command or ["/bin/sh", str(path("script", str(number)))],
            "qtime": time.time(), "state": "H" if "h" in given else "Q", "index": None, "parent": None,
            "holds": "u" if "h" in given else "",
            "priority": int(priority),
        }  # fmt: skip
        if "J" in given:
            first, last = given["J"][-1].split("-")
            if int(last) - int(first) >= int(config["server"].get("max_array_size", 10000)):
                raise Failed("qsub: Array job exceeds server or queue size limit", 3)
            for index in range(int(first), int(last) + 1):
                key = f"{number}[{index}]"
                state["jobs"][key] = {**plain, "key": key, "index": index, "parent": f"{number}[]"}
            answer(f"{number}[].{SERVER}\n")
        else:
            state["jobs"][str(number)] = {**plain, "key": str(number)}
            answer(f"{number}.{SERVER}\n")


def answer(text: str) -> None:
    if not path("mute").exists():
        sys.stdout.write(text)


def has_feature(config: Config, key: str) -> bool:
    return any(key in each for each in config.get("features", {}).values())


def find(state: State, word: str) -> list[Job]:
    key = word.partition(".")[0]
    found = [job for job in state["jobs"].values() if job["key"] == key or job["parent"] == key]
    if not found:
        raise Failed(f"{NAME}: Unknown Job Id {word}", UNKNOWN)
    return found


def each_job(state: State, words: list[str], act: Callable[[Job, str], None]) -> None:
    """Do it for each; the last failure is the exit status, as in PBS."""
    failed = None
    for word in words:
        try:
            for job in find(state, word):
                act(job, word)
        except Failed as error:
            sys.stderr.write(f"{error}\n")
            failed = error
    if failed is not None:
        raise Failed("", failed.status)


def own(job: Job, word: str) -> None:
    if job["owner"] != user():
        raise Failed(f"{NAME}: Unauthorized Request  {word}", DENIED)
    if job["state"] in OVER:
        raise Failed(f"{NAME}: Job has finished {word}", FINISHED)


def qdel(words: list[str]) -> None:
    def delete(job: Job, word: str) -> None:
        own(job, word)
        if job["state"] in "RS":
            job["deleted_by"] = user()
            path("delete", job["key"]).touch()
        else:
            finish(job)

    with server() as (state, _):
        each_job(state, words, delete)


def qsig(words: list[str]) -> None:
    given, rest = options(words, "s", "")
    number = getattr(signal, "SIG" + given.get("s", ["TERM"])[0].removeprefix("SIG"))

    def send(job: Job, word: str) -> None:
        own(job, word)
        path("signal", f"{job['key']}@{int(number)}").touch()

    with server() as (state, _):
        each_job(state, rest, send)


def qhold(words: list[str]) -> None:
    """An operator's: whose job it is does not matter. Elements of a held array that wait stay Q."""
    given, rest = options(words, "h", "")

    def hold(job: Job, word: str) -> None:
        if job["state"] in "QH":
            hold_job(job, given.get("h", ["u"])[0], f"Job held by {user()} on {ctime(time.time())}")

    with server() as (state, _):
        each_job(state, rest, hold)


def qalter(words: list[str]) -> None:
    given, rest = options(words, "l", "")
    limit = seconds_of(dict(each.partition("=")[::2] for each in given["l"])["walltime"])

    def alter(job: Job, word: str) -> None:
        own(job, word)
        if job["parent"]:
            raise Failed(f"qalter: Invalid request {word}", INVALID)
        if job["state"] == "R" and limit > job["walltime"]:
            raise Failed(f"qalter: Unauthorized Request  {word}", DENIED)
        job["walltime"] = limit
        with path("limit", job["key"]).open("w") as file:
            file.write(str(limit))

    with server() as (state, _):
        each_job(state, rest, alter)


def qselect(words: list[str]) -> None:
    given, _ = options(words, "uNs", "x")
    seen: dict[str, None] = {}
    with server() as (state, _):
        for job in state["jobs"].values():
            is_wanted = job["owner"] == given.get("u", [job["owner"]])[0]
            is_wanted &= job["name"] == given.get("N", [job["name"]])[0]
            if is_wanted and (job["state"] not in OVER or "x" in given):
                seen.setdefault(job["parent"] or job["key"])
        for key in seen:
            sys.stdout.write(f"{key}.{SERVER}\n")


def qstat(words: list[str]) -> None:
    given, rest = options(words, "Fu", "xftBQw" if path("old").exists() else "xftBQwE")
    if any(word.startswith("-") for word in rest):
        raise Failed(f"qstat: invalid option -- 'E'\n{QSTAT_USAGE}", 2)
    is_json = given.get("F") == ["json"]
    with server() as (state, config):
        if "B" in given:
            plain = {"default_queue": "workq", "pbs_version": "23.06.06", "max_array_size": 10000}
            plain["state_count"] = state_count(list(state["jobs"].values()))
            tell("Server", "Server: ", {SERVER: {**plain, **config["server"]}}, is_json=is_json)
        elif "Q" in given:
            tell("Queue", "Queue: ", config["queues"], is_json=is_json)
        elif "x" in given and config["server"].get("job_history_enable") != "True":
            sys.stderr.write("qstat: PBS is not configured to maintain job history\n")
            tell("Jobs", "Job Id: ", {}, is_json=is_json)
        else:
            chosen, status = choose(state, rest, ended="x" in given, grouped="E" in given)
            hides = config["server"].get("query_other_jobs") == "False"
            seen = [job for job in chosen if not hides or job["owner"] == user()]
            records = told(state, config, seen, elements="t" in given, asked=rest)
            if is_json and rest:  # openpbs issue 2672
                records = dict(list(records.items())[:1])
            tell("Jobs", "Job Id: ", records, is_json=is_json)
            if status:
                raise Failed("", status)


def told(
    state: State, config: Config, jobs: list[Job], *, elements: bool, asked: list[str]
) -> dict[str, Any]:
    """Records of jobs: of an array its own and, with `-t` or where they were asked for, its elements'."""
    keys = {word.partition(".")[0] for word in asked}
    records: dict[str, Any] = {}
    arrays = {}
    for parent in {job["parent"] for job in jobs} - {None}:
        arrays[parent] = array([each for each in state["jobs"].values() if each["parent"] == parent], config)
    for job in jobs:
        parent = job["parent"]
        if parent and (not keys or parent in keys):
            records[f"{parent}.{SERVER}"] = arrays[parent]
        if not parent or elements or job["key"] in keys:
            records[f"{job['key']}.{SERVER}"] = record = attributes(job, config)
            if parent and job["state"] == "Q":  # an element that waits is made of the array's attributes
                shown = arrays[parent]
                record.update({name: shown[name] for name in ("Hold_Types", "comment") if name in shown})
    return records


def choose(state: State, words: list[str], *, ended: bool, grouped: bool) -> tuple[list[Job], int]:
    """The jobs of these numbers, all without any, and the status of the last failure. `grouped` (`-E`): they are one
    request, sorted, in which those that are not there go unsaid as long as one is."""
    if grouped:
        words = sorted(words, key=lambda word: int(re.match(r"\d*", word)[0] or 0))  # type: ignore[index]
        found: list[Job] = []
        status = 0
        for word in words:
            with contextlib.redirect_stderr(io.StringIO()) as said:
                jobs, failure = choose(state, [word], ended=ended, grouped=False)
            found += jobs
            status, message = failure or status, said.getvalue()
        if not found and words:
            sys.stderr.write(message)
        return found, 0 if found else status
    chosen: list[Job] = []
    status = 0
    for word in words or [""]:
        try:
            found = find(state, word) if word else list(state["jobs"].values())
        except Failed as error:
            sys.stderr.write(f"{error}\n")
            status = error.status
            continue
        for job in found:
            if job["state"] != "F" or ended:
                chosen.append(job)  # elements that are X are told until their array ends
            elif word:
                hint = "use -x or -H to obtain historical job information"
                sys.stderr.write(f"qstat: {word} Job has finished, {hint}\n")
                status = FINISHED
    return chosen, status


def tell(part: str, head: str, records: dict[str, Any], *, is_json: bool) -> None:
    sys.stdout.write(as_json(part, records) if is_json else as_text(head, records))


def reserved() -> dict[str, str]:
    """The reservations of each node, as its attribute `resv` has them."""
    text = path("rstat").read_text() if path("rstat").exists() else ""
    found: dict[str, list[str]] = {}
    for number, nodes in re.findall(r"(?s)Resv ID: (\S+).*?resv_nodes = (.*?)\n", text):
        for name in re.findall(r"\((.*?):", nodes):
            found.setdefault(name, []).append(number)
    return {name: ", ".join(numbers) for name, numbers in found.items()}


def pbsnodes(words: list[str]) -> None:
    with server() as (state, config):
        records = {}
        for name, cores in config["nodes"].items():
            jobs = [job for job in state["jobs"].values() if job["state"] == "R" and name in job["hosts"]]
            used = sum(job["ncpus"] for job in jobs)
            full = used >= cores or any(job["excl"] for job in jobs)
            records[name] = {
                "Mom": f"{name}.local", "ntype": "PBS",
                "state": config.get("states", {}).get(name, "job-busy" if full and jobs else "free"), "pcpus": cores,
                "resources_available": {"arch": "linux", "host": name, "mem": "4000000kb", "ncpus": cores,
                                        "vnode": name, **config.get("features", {}).get(name, {})},
                "resources_assigned": {"ncpus": used} if used else {},
                "resv_enable": "True", "sharing": "default_shared",
                **({"resv": reserved()[name]} if name in reserved() else {}),
            }  # fmt: skip
            if (
                parts := config.get("vnodes", 1)
            ) > 1:  # the natural vnode has nothing; the others make up the host
                whole = records[name]["resources_available"]
                for part in range(parts):
                    has = {**whole, "vnode": f"{name}[{part}]", "ncpus": cores // parts}
                    records[f"{name}[{part}]"] = {**records[name], "resources_available": has}
                records[name] = {**records[name], "resources_available": {**whole, "ncpus": 0, "mem": "0kb"}}
            if jobs:
                records[name]["jobs"] = [f"{job['key']}.{SERVER}/0" for job in jobs]
        sys.stdout.write(as_json("nodes", records))


def pbs_rstat(words: list[str]) -> None:
    with contextlib.suppress(FileNotFoundError), path("rstat").open() as file:
        sys.stdout.write(file.read())


def qmgr(words: list[str]) -> None:
    """`list sched default state` alone."""
    down = path("no-scheduler").exists()
    sys.stdout.write(f"Sched default\n    state = {'down' if down else 'idle'}\n\n")


def pbsdsh(words: list[str]) -> None:
    """Each node of the job runs the command, which knows little of the job's variables; 0 whatever their statuses are.
    TERM is passed on; USR1 ends this alone."""
    given, command = options(words[: words.index("--")], "nh", "svo")[0], words[words.index("--") + 1 :]
    hosts = path("nodefile", os.environ["PBS_JOBID"].partition(".")[0]).read_text().split()
    passed = {
        name: os.environ[name] for name in os.environ if name.startswith("PBS_") or name in ("PATH", "HOME")
    }
    started = []
    for number, host in enumerate(hosts):
        if given.get("n", [str(number)])[0] == str(number) and given.get("h", [host])[0] == host:
            task = {
                **passed,
                "PBS_NODENUM": str(number),
                "TIDEMILL_FAKE_PBS": os.environ["TIDEMILL_FAKE_PBS"],
            }
            started.append(subprocess.Popen(command, env=task))

    def forward(number: int, _: object) -> None:
        for each in started:
            each.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    for number, each in enumerate(started):
        status = each.wait()
        if status:
            sys.stderr.write(f"pbsdsh: task 0x{number:08} exit status {status}\n")


COMMANDS = {
    each.__name__: each
    for each in (qsub, qstat, qdel, qalter, qselect, qsig, qhold, pbsnodes, pbs_rstat, pbsdsh, qmgr)
}
NAME = Path(sys.argv[0]).name
QSTAT_USAGE = (
    "usage: \nqstat [-f] [-J] [-p] [-t] [-x] [-F format | -w] [ job_identifier... ]\nqstat --version"
)
USAGE = "usage: qsub [-a date_time] [-A account_string] [-c interval]\n\t[-N jobname] [-o path]\n       qsub --version"


def main() -> int:
    if sys.argv[1:2] == ["--run"]:
        run_job(sys.argv[2], sys.argv[3:])
        return 0
    for name in ("end", "limit", "nodefile", "signal", "delete", "script", "runs"):
        path(name).mkdir(exist_ok=True)
    try:
        if NAME != "pbsdsh":
            with path("commands").open("a") as file:
                file.write(" ".join([NAME, *sys.argv[1:]]).replace("\n", " ") + "\n")
            check_environment()
            check_server(sys.argv)
        COMMANDS[NAME](sys.argv[1:])
    except Failed as error:
        if str(error):
            sys.stderr.write(f"{error}\n")
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
