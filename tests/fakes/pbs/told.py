"""Attributes of jobs as the fake PBS tells them. See fake_pbs.py."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.fakes.pbs.server import SERVER, Config, Job, clock_of, ctime

# ---- attributes as qstat tells them ----


def attributes(job: Job, config: Config) -> Job:
    told = {
        "Job_Name": job["name"],
        "Job_Owner": f"{job['owner']}@login1",
        "job_state": job["state"],
        "queue": job["queue"],
        "server": SERVER,
        "ctime": ctime(job["qtime"]),
        "Hold_Types": "n",
        "Join_Path": "oe",
        "Priority": 0,
        "qtime": ctime(job["qtime"]),
        "Rerunable": "False",
        "Resource_List": {
            "ncpus": job["ncpus"] * job["nodes"],
            "nodect": job["nodes"],
            "place": job["place"],
            "select": job["select"],
            "walltime": clock_of(job["walltime"]),
        },
        "substate": 42 if job["state"] == "R" else 10,
        "Variable_List": {"PBS_O_HOME": "/u/x", "PBS_NGPUS": 0, "ODD": "it's", **job["variables"]},
        "run_count": job.get("runs", 0),
        "project": "_pbs_project_default",
    }
    if job["state"] in "RF" and job.get("stime"):
        cores = config["nodes"]
        told["stime"] = ctime(job["stime"])
        told["exec_host"] = "+".join(f"{name}/0*{job['ncpus']}" for name in job["hosts"])
        told["exec_vnode"] = "+".join(
            f"({name}:ncpus={min(job['ncpus'], cores[name])})" for name in job["hosts"]
        )
        told["comment"] = job.get("comment", f"Job run at {ctime(job['stime'])} on {told['exec_vnode']}")
    else:
        told["comment"] = job.get("comment", "Not Running: Not enough free nodes available")
    if job["state"] == "F":
        if job["exit"] is not None:
            told["Exit_status"] = job["exit"]
        told["obittime"] = ctime(job["ended"])
    if job["index"] is not None:
        told["array_id"], told["array_index"] = job["parent"] + "." + SERVER, job["index"]
    return told


def as_json(part: str, records: dict[str, Any]) -> str:
    document = {"timestamp": int(time.time()), "pbs_version": "22.05.11", "pbs_server": SERVER}
    if records:
        document[part] = records
    text = json.dumps(document, indent=4)
    text = text.replace('"UNREADABLE', '"UN"READABLE')  # openpbs issue 830
    text = text.replace("it's", "it\\'s")  # openpbs issue 2049
    return text.replace('"PBS_NGPUS": 0', '"PBS_NGPUS":007') + "\n"  # openpbs issue 1255


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
                line = f"    {k} = {v}"
                lines.append(line[:79])
                lines += ["\t" + line[at : at + 70] for at in range(79, len(line), 70)]
        lines.append("")
    return "\n".join(lines) + "\n"
