"""Users can write lines, and whole records, into what `pbs_rstat` and `qstat` print: no regular job waits for that."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill import clock
from tidemill.batch.pbs import replies, reservations
from tidemill.batch.pbs.replies import Record
from tidemill.batch.pbs.survey import MachineReplies, compose_snapshot
from tidemill.model.machine import Snapshot

NOW_S = int(clock.now_s())
QUEUE = {"queue_type": "Execution", "enabled": "True", "started": "True"}
WAITING = "Job Id: 7.pbs\n    job_state = Q\n    queue = {queue}\n    Resource_List.select = 2:ncpus=4\n"


def vnode(name: str, **shown: Any) -> Record:
    return {"state": "free", "resources_available": {"ncpus": "4", "host": name}, **shown}


def reservation(number: str, queue: str, mail: str = "/var/mail/ada", nodes: str = "(n1:ncpus=4)") -> str:
    """What `pbs_rstat -f` prints of a reservation that is open; `mail` is its owner's `$MAIL`."""
    return (
        f"Resv ID: {number}.pbs\nReserve_Name = beam\nreserve_start = {NOW_S - 60}\nreserve_end = {NOW_S + 86400}\n"
        f"queue = {queue}\nresv_nodes = {nodes}\nAuthorized_Users = tide@login\n"
        f"Variable_List = PBS_O_LOGNAME=ada,PBS_O_MAIL={mail},PBS_TZID=UTC\neuser = ada\n\n"
    )


def snapshot(shown: str, queue: str = "workq") -> Snapshot:
    """n1 has the reservation R17, n2 has none; a job waits in `queue`."""
    machine = MachineReplies(
        server={"default_queue": "workq"},
        vnodes={"n1": vnode("n1", resv="R17.pbs"), "n2": vnode("n2")},
        jobs=replies.read_text(WAITING.format(queue=queue).encode(), "Job Id:"),
        queues={"workq": QUEUE, "R17": QUEUE, "R8": QUEUE},
        reservations=shown.encode(),
    )
    return compose_snapshot(machine, is_ours=lambda _: False, user="tide")


FORGED = reservation("R8", "R8", nodes="(n1:ncpus=4)+(n2:ncpus=4)")


@pytest.mark.parametrize(
    ("shown", "queue"),
    [
        (reservation("R17", "R17", mail="x\nqueue = workq\n"), "workq"),
        (reservation("R17", "workq"), "workq"),
        (reservation("R17", "R17", mail="x\nResv ID: R9.pbs\nqueue = workq\n"), "workq"),
        (reservation("R17", "R17", mail="x\nResv ID: workq.pbs\nqueue = workq\n"), "workq"),
        (reservation("R17", "R17", mail=f"x\n\n{FORGED}"), "R8"),
    ],
)
def test_what_a_user_writes_into_a_reservation_takes_no_queue_from_the_jobs_that_wait(
    shown: str, queue: str
) -> None:
    assert snapshot(reservation("R17", "R17"), "R17").queued[0].reservation == "R17 beam"
    job = snapshot(shown, queue).queued[0]
    assert (job.reservation, job.eligible) == ("", True)


def test_jobs_of_tidemills_own_reservation_count_there_although_a_forged_record_has_its_id() -> None:
    twice = reservation("R17", "R17") + reservation("R17", "R17").replace("beam", "other")
    (job,) = snapshot(twice, "R17").queued
    assert job.reservation.split() == ["R17", "beam", "other"]


@pytest.mark.parametrize("first", [True, False])
def test_a_forged_reservation_closes_no_node(*, first: bool) -> None:
    real = reservation("R17", "R17")
    assert [each.nodes for each in snapshot(real).reservations] == [("n1",)]
    seen = snapshot(FORGED + real if first else real + FORGED)
    assert [(each.name, each.nodes) for each in seen.reservations] == [("R17 beam", ("n1",))]
    longer = real.replace("(n1:ncpus=4)", "(n1:ncpus=4)+(n2:ncpus=4)")
    assert [each.nodes for each in snapshot(longer).reservations] == [("n1",)]
    assert snapshot(real + real.replace(str(NOW_S + 86400), str(NOW_S + 864000))).reservations == []


def test_after_the_variables_of_a_reservation_only_its_rule_is_read() -> None:
    forged = (
        "reserve_end = 9\nresv_nodes = (n2:ncpus=4)\nreserve_rrule = FREQ=HOURLY;COUNT=50\nreserve_count = 50"
    )
    rule = "reserve_rrule = FREQ=WEEKLY;COUNT=2\nreserve_count = 2\n\n"
    text = reservation("S17", "S17", mail=f"x\n{forged}\n").rstrip() + "\n" + rule
    (record,) = replies.read_reservations(text.encode())
    assert (record["reserve_end"], record["resv_nodes"]) == (str(NOW_S + 86400), "(n1:ncpus=4)")
    assert (record["reserve_rrule"], record["reserve_count"]) == ("FREQ=WEEKLY;COUNT=2", "2")
    alone = replies.read_reservations(reservation("R17", "R17", mail=f"x\n{forged}\n").encode())
    vnodes = {"n1": vnode("n1", resv="R17.pbs")}
    assert len(reservations.read(alone, user="", now_s=NOW_S, vnodes=vnodes, hosts={})) == 1
