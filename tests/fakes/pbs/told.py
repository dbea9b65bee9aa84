"""Attributes of jobs as the fake PBS tells them. See fake_pbs.py."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from tests.fakes.pbs.server import OVER, SERVER, Config, Job, clock_of, ctime

# ---- attributes as qstat tells them ----


def attributes(job: Job, config: Config) -> Job:
    told = {
        "Job_Name": job["name"],
        "Job_Owner": f"{job['owner']}@login1",
        "job_state": job["state"],
        "queue": job["queue"],
        "server": SERVER,
        "ctime": ctime(job["qtime"]),
        "Hold_Types": job.get("holds") or "n",
        "Join_Path": "oe",
        "Priority": job["priority"],
        "qtime": ctime(job["qtime"]),
        "Rerunable": "False",
        "Resource_List": {
            "ncpus": job["ncpus"] * job["nodes"],
            "nodect": job["nodes"],
            "place": job["place"],
            "select": job["select"],
            "walltime": clock_of(job["walltime"]),
        },
        "substate": {"R": 42, "S": 45}.get(job["state"], 10),
        "Variable_List": {"PBS_O_HOME": "/u/x", "PBS_NGPUS": 0, "ODD": "it's", **job["variables"]},
        "run_count": job.get("runs", 0),
        "project": "_pbs_project_default",
    }
    if job["state"] in "RSFX" and job.get("stime"):
        cores = config["nodes"]
        told["stime"] = ctime(job["stime"])
        told["exec_host"] = "+".join(f"{name}/0*{job['ncpus']}" for name in job["hosts"])
        parts = config.get("vnodes", 1)
        told["exec_vnode"] = "+".join(
            _vnodes(name, min(job["ncpus"], cores[name]), parts) for name in job["hosts"]
        )
        told["comment"] = job.get("comment", f"Job run at {ctime(job['stime'])} on {told['exec_vnode']}")
    elif "comment" in job:  # none before a cycle has looked at it
        told["comment"] = job["comment"]
    if job.get("planned") and job["state"] == "Q":
        told["estimated"] = {"start_time": ctime(job["planned"])}
    if job["state"] in OVER:
        if job["exit"] is not None:
            told["Exit_status"] = job["exit"]
        told["obittime"] = ctime(job["ended"])
    if job["index"] is not None:
        told["array_id"] = job["parent"] + "." + SERVER
        if job["state"] != "Q":  # an element that waits does not show its index
            told["array_index"] = job["index"]
    return told


def _vnodes(host: str, ncpus: int, parts: int) -> str:
    """A chunk on a host; where that has several vnodes, the chunk is spread over them."""
    if parts == 1:
        return f"({host}:ncpus={ncpus})"
    return "(" + "+".join(f"{host}[{part}]:ncpus={max(1, ncpus // parts)}" for part in range(parts)) + ")"


def array(elements: list[Job], config: Config) -> Job:
    """The record of an array itself: Q until one of its elements began, B until the last one has ended, then F."""
    first = elements[0]
    states = [job["state"] for job in elements]
    told = attributes({**first, "state": "Q", "index": None, "hosts": []}, config)
    has_begun = any(state in "RX" or job.get("stime") for state, job in zip(states, elements, strict=True))
    held = next((each for each in elements if each.get("holds") and each["state"] in "QH"), None)
    told["job_state"] = "F" if set(states) == {"F"} else "H" if held else "B" if has_begun else states[0]
    told["substate"] = 70 if has_begun else 10
    if starts := [job["stime"] for job in elements if job.get("stime")]:
        told["comment"] = f"Job Array Began at {ctime(min(starts))}"
        told["stime"] = ctime(min(starts))
    if held:
        told["Hold_Types"], told["comment"] = held["holds"], held["comment"]
    told.update(
        array="True",
        array_state_count=" ".join(
            f"{title}:{states.count(state)}"
            for title, state in (("Queued", "Q"), ("Running", "R"), ("Exiting", "E"), ("Expired", "X"))
        ),
        array_indices_submitted=f"{first['index']}-{elements[-1]['index']}",
        array_indices_remaining=",".join(str(job["index"]) for job in elements if job["state"] == "Q") or "-",
    )
    return told


def retyped(value: Any) -> Any:
    """Variables that look like numbers become numbers: leading zeros, exponents and many digits are lost."""
    if re.fullmatch(r"[0-9]+", value):
        return int(value)
    return float(value) if re.fullmatch(r"[0-9]+(\.[0-9]*)?([eE][0-9]{1,2})?", value) else value


def as_json(part: str, records: dict[str, Any]) -> str:
    document = {"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": SERVER}
    if records:
        document[part] = {name: _in_json(each) for name, each in records.items()}
    text = json.dumps(document, indent=4)
    text = text.replace('"UNREADABLE', '"UN"READABLE')  # openpbs issue 830
    text = text.replace("it's", "it\\'s")  # openpbs issue 2049
    return text.replace('"PBS_NGPUS": 0', '"PBS_NGPUS":007') + "\n"  # openpbs issue 1255


def _in_json(record: Any) -> Any:
    if "Variable_List" not in record:
        return record
    listed = record["Variable_List"].items()
    return {**record, "Variable_List": {k: retyped(v) if isinstance(v, str) else v for k, v in listed}}


def as_text(head: str, records: dict[str, Any]) -> str:
    lines = []
    for name, record in records.items():
        lines.append(f"{head}{name}")
        for key, value in record.items():
            if key == "Variable_List":
                value = ",".join(f"{k}={v}" for k, v in value.items())
            pairs = (
                [(f"{key}.{k}", v) for k, v in value.items()] if isinstance(value, dict) else [(key, value)]
            )
            for k, v in pairs:
                for line in f"    {k} = {v}".split(
                    "\n"
                ):  # as where a user has taken care that no wrap hits his lines
                    lines.append(line[:79])
                    lines += ["\t" + line[at : at + 70] for at in range(79, len(line), 70)]
        lines.append("")
    return "\n".join(lines) + "\n"


def state_count(jobs: list[Job]) -> str:
    """The server's `state_count`: arrays count once, as their own state, and their elements do not."""
    arrays: dict[str, list[Job]] = {}
    states = []
    for job in jobs:
        if job["parent"]:
            arrays.setdefault(job["parent"], []).append(job)
        else:
            states.append(job["state"])
    for elements in arrays.values():
        ended = [job["state"] in OVER for job in elements]
        begun = any(job.get("stime") for job in elements)
        states.append("F" if all(ended) else "B" if begun else elements[0]["state"])
    names = {
        "T": "Transit",
        "Q": "Queued",
        "H": "Held",
        "W": "Waiting",
        "R": "Running",
        "E": "Exiting",
        "B": "Begun",
    }
    return "".join(f"{name}:{states.count(state)} " for state, name in names.items())
