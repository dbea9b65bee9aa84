"""What batch systems and the kernel tell."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Any

from tests.fuzz.parser import Parser

from tidemill.batch import processes
from tidemill.batch.pbs import command as pbs_command
from tidemill.batch.pbs import glance as pbs_glance
from tidemill.batch.pbs import nodes as pbs_nodes
from tidemill.batch.pbs import order as pbs_order
from tidemill.batch.pbs import replies as pbs
from tidemill.batch.pbs import reservations as pbs_reservations
from tidemill.batch.pbs import survey as pbs_survey
from tidemill.batch.pbs.comments import OwnLimits
from tidemill.batch.pbs.requests import Hosts
from tidemill.batch.slurm import document, node_time, own, text
from tidemill.batch.slurm.hostlist import expand, expand_elements, fold
from tidemill.batch.slurm.times import parse_span, parse_time
from tidemill.errors import ProtocolError, SiteError
from tidemill.model.file_systems import file_system
from tidemill.transfer.program import parse_io

NOW_S = 1_795_300_000.0


def _ours(user: str, name: str, comment: str) -> bool:
    return (user, name[:3], comment[:9]) == ("me", "tm-", "tidemill ")


def _jobs_text(content: bytes) -> object:
    return text.everybody(content, _ours, nodes=1000).running


def _own_text(content: bytes) -> object:
    jobs = text.own_jobs(content)
    names = [job.name for job in jobs] + [f"{job.name}.3" for job in jobs]
    found = own.match(names, jobs, key="k", numbers={job.name: job.number for job in jobs})
    own.ids_to_cancel([(name, each[0]) for name, each in found.items()])
    return [own.status_of(each) for several in found.values() for each in several]


def _accounted(content: bytes) -> object:
    return own.accounted(content, ["tm-bonn-e1-7.3", "tm-a"], key="k", numbers={"tm-a": "12"})


def _node_time(content: bytes) -> object:
    cores = {"cn001": 8, "cn002": 8, "cn003": 8}
    found = node_time.shares(
        node_time.read(content.decode("utf-8", "replace"), cores),
        cores,
        ["cn003"],
        (int(NOW_S) - 86_400, int(NOW_S)),
    )
    assert 0 <= found.part <= 1 - found.idle <= 1
    return found.idle < 1 and found


def _tables(content: bytes) -> object:
    return [
        text.partitions(content, preempts=True), text.reservations(content, "ours"), text.settings(content),
        text.plan_time(content),
    ]  # fmt: skip


def _words(content: bytes) -> object:
    word = content.decode(errors="replace")
    parse_time(word)
    parse_span(word)
    text.megabytes(word)
    text.read_features(word)
    text.devices(word)
    return expand(word)


def _documents(content: bytes) -> object:
    release = document.release(content)
    return [release, document.jobs(content, _ours)]


def _elements(content: bytes) -> object:
    found = expand_elements(content.decode(errors="replace"), 1_000_000)
    numbers = sorted(set(islice(chain.from_iterable(found), 2000)))
    if numbers:
        again = chain.from_iterable(expand_elements(fold(numbers), 1_000_000))
        assert sorted(again) == numbers, "what is folded is not what was told"
    return found


def _reservations_json(content: bytes) -> object:
    return document.reservations(content, "ours")


_AROUND = pbs_survey.Surroundings(
    hosts=Hosts({}), queues={}, reservations={}, own=OwnLimits(groups=lambda: ())
)


def _jobs_pbs(records: dict[str, pbs.Record] | None) -> object:
    found: list[Any] = []
    for number, job in (records or {}).items():
        pbs.variables(job)
        pbs_command.ending_of(pbs.text_of(job, "Exit_status"))
        found.append(pbs_survey._running(number, job, {}, ours=True))
        queue = {"Priority": pbs.text_of(job, "Priority")}
        formula = pbs_order.read_formula(pbs.text_of(job, "comment"))
        priority = pbs_order.priority(job, queue, formula)
        found.append(pbs_survey._queued(number, job, _AROUND, ours=False, priority=priority))
    return found


def _machine_pbs(content: bytes) -> object:
    vnodes = pbs.read_json(content, "nodes") or {}
    queues = pbs.read_json(content, "Queue") or {}
    nodes = pbs_nodes.read_nodes(vnodes, queues)
    return [nodes, pbs_nodes.read_partitions(queues, nodes, "workq")]


def _reservations_pbs(content: bytes) -> object:
    records = pbs.read_reservations(content)
    vnodes = {"a0": {"resv": "S12"}, "b": {"resv": "M9"}}
    read = pbs_reservations.read(records, user="me", now_s=NOW_S, vnodes=vnodes, hosts={})
    return read, pbs_reservations.queues(records, vnodes=vnodes)


def _mountinfo(content: bytes) -> object:
    return file_system(Path("/tmp/a"), content.decode("utf-8", "surrogateescape"))


def _process(content: bytes) -> object:
    """/proc/N/stat: as it stands, and of a process that calls itself so."""
    text = content.decode("utf-8", "replace")
    named = processes.parse_stat(7, f"7 ({text}) R 6 5 4 0 -1 {' '.join(map(str, range(13)))} 99 0 0\n")
    assert named == processes.Process(7, "R", 6, 4, 99, 7), "a name was read as numbers"
    found = processes.parse_stat(7, text)
    return found is not None and (found.is_dead, abs(found.parent) + abs(found.session) + abs(found.started))


def _bytes_read(content: bytes) -> object:
    found = parse_io(content.decode("utf-8", "replace"))
    assert 0 <= found < 1 << 64, "no counter of the kernel"
    return found


_P = (ProtocolError,)
PARSERS = [
    Parser("slurm-squeue", _jobs_text, _P),
    Parser("slurm-own", _own_text, _P),
    Parser("slurm-nodes", text.nodes, _P, ("slurm/nodes-22.05.txt",)),
    Parser("slurm-tables", _tables, _P, ("slurm/partitions-22.05.txt", "slurm/reservations-22.05.txt")),
    Parser("slurm-counts", text.counts, (), ("slurm/sdiag-22.05.txt",)),
    Parser("pbs-counts", pbs_glance.read_counts, (), ("pbs/server.json",)),
    Parser("slurm-accounts", _accounted),
    Parser("slurm-hosts", _words, _P),
    Parser("slurm-elements", _elements, _P),
    Parser("slurm-jobs-json", _documents, _P, ("slurm/jobs-*.json",)),
    Parser("slurm-nodes-json", document.nodes, _P, ("slurm/nodes-*.json",)),
    Parser("slurm-reservations-json", _reservations_json, _P, ("slurm/reservations-24.05.json",)),
    Parser("pbs-jobs", lambda c: _jobs_pbs(pbs.read_json(c, "Jobs")), (), ("pbs/jobs*.json",)),
    Parser("pbs-jobs-text", lambda c: _jobs_pbs(pbs.read_text(c, "Job Id:")), (), ("pbs/jobs.txt",)),
    Parser("pbs-machine", _machine_pbs, (), ("pbs/nodes.json", "pbs/queues.json")),
    Parser("pbs-reservations", _reservations_pbs, (), ("pbs/rstat.txt",)),
    Parser("pbs-submit", pbs_command.read_id, (SiteError,)),
    Parser("accounting-nodes", _node_time, _P),
    Parser("mountinfo", _mountinfo),
    Parser("proc-stat", _process),
    Parser("proc-io", _bytes_read),
]  # fmt: skip
