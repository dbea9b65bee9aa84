"""Which records of `qstat -t -f` are those of Tidemill's jobs. Pure.

Key and name stand in the variables of each job, where every user can read them, and any user can write a record with
them into his own (`replies.read_text`). So a record is Tidemill's only with the number that was written down for that
name. What is asked for by number cannot be forged: such a reply has the text of Tidemill's user alone. It decides where
a number comes twice, with whatever form of the server's name, and where PBS did not show the allocation when it was
last asked for by number: that one may have ended.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from tidemill.batch.contract import element_name
from tidemill.batch.pbs.command import NAME, short_id
from tidemill.batch.pbs.replies import Record, copy_of, variables

_ELEMENT = re.compile(r"\[(\d{1,9})\]", re.ASCII)


def name_in(number: str, job: Record) -> str:
    """The name of the allocation by the job's variables and its number `12[3]`; of a whole array the submission's."""
    name = variables(job).get(NAME, "")
    index = _ELEMENT.search(number)
    return name if index is None else element_name(name, int(index[1]), count=2)


def claims(jobs: Mapping[str, Record], is_ours: Callable[[Record], bool]) -> dict[str, str]:
    """The names of allocations in the records that say they are Tidemill's, by the keys of these records."""
    return {key: name_in(key, job) for key, job in jobs.items() if is_ours(job)}


def number_of(key: str) -> str:
    """The number of a record without the server's name, also of the second record that has it."""
    return short_id(key.partition(" ")[0])


def doubtful(
    jobs: Mapping[str, Record], claimed: Collection[str], mine: Mapping[str, str], living: Collection[str]
) -> list[str]:
    """The numbers that have to be asked for. `claimed`: keys of the records that say they are Tidemill's; `mine`: names
    by number; `living`: names that PBS has shown when it was last asked for them by number. Arrays as a whole hold no
    nodes."""
    records = Counter(map(number_of, claimed))
    return [
        number
        for number, name in mine.items()
        if records[number_of(number)] > 1
        or copy_of(number, 2) in jobs
        or ("[]" not in number and name not in living)
    ]


def settled(
    jobs: Mapping[str, Record],
    claimed: Collection[str],
    mine: Mapping[str, str],
    told: Mapping[str, Record | None],
) -> dict[str, Record]:
    """The jobs of the machine, of which only Tidemill's say that they are its own.

    `told`: what PBS shows of the doubtful numbers; all other records of these are forged, but for a regular job with
    the same number of another server. A job of another number loses its variables, and counts as a regular one."""
    known, asked = set(map(number_of, mine)), set(map(number_of, told))
    found: dict[str, Record] = {}
    for key, job in jobs.items():
        number = number_of(key)
        if key not in claimed:
            if number not in asked or key.partition(" ")[0] not in told:
                found[key] = job
        elif number not in asked:
            found[key] = job if number in known else _regular(job)
    for number, record in told.items():
        if record is not None:
            found[number] = record if name_in(number, record) == mine[number] else _regular(record)
    return found


def by_number(numbers: Collection[str], records: Mapping[str, Record]) -> dict[str, Record | None]:
    """The record of each of these numbers, whichever form of the server's name it has; None where there is none."""
    shown: dict[str, Record] = {}
    for key, job in records.items():
        shown.setdefault(short_id(key), job)
    return {number: shown.get(short_id(number)) for number in numbers}


def _regular(job: Record) -> Record:
    return {name: value for name, value in job.items() if name != "Variable_List"}
