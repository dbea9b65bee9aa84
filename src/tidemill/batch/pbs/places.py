"""Where a job of PBS or Torque has its processors. Pure.

The live survey, the adapter and the reader of accounting logs share this reader of `exec_host` and `exec_vnode`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tidemill.batch.pbs.replies import read_number
from tidemill.model.number import whole

_SLOTS_MAX = 1_000_000  #: processors of one host; a larger range is damaged
_INDEX = re.compile(r"\[[^\]]*\]$")
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")


def read_vnodes(text: str) -> list[tuple[str, int]]:
    """Vnodes and their processors in `(n1:ncpus=8)+(n2:ncpus=8+n3:ncpus=4)`. A list that was cut ends early."""
    found: list[tuple[str, int]] = []
    for piece in text.replace("(", "").replace(")", "").split("+"):
        name, *resources = piece.strip().split(":")
        if re.fullmatch(r"[\w.\[\]-]+", name):
            wanted = dict(each.partition("=")[::2] for each in resources)
            found.append((name, read_number(wanted.get("ncpus", "0"))))
    return found


def read_hosts(exec_host: str) -> list[str]:
    """Hosts in `n1/0*4+n2/0*4`, each once. `exec_vnode` names vnodes instead, and a host may have several."""
    names = (piece.partition("/")[0].strip() for piece in exec_host.split("+"))
    return list(dict.fromkeys(name for name in names if name))


def count_cores(exec_host: str) -> int:
    """Processors in an `exec_host`, in each of its forms; 0 if it shows none.

    PBS writes `HOST/INDEX*NCPUS` for a chunk, and leaves out `*NCPUS` if it is 1 (pbs_job_attributes(7)). Torque writes
    `HOST/CORE` for each core, from 5.1 on `HOST/0-1,5,11` (in the logs of APEL's issue 100). An unreadable part counts
    as one processor.
    """
    return sum(_slots(piece.partition("/")[2]) for piece in exec_host.split("+") if piece.strip())


def _slots(text: str) -> int:
    index, star, ncpus = text.strip().partition("*")
    if star:
        told = whole(ncpus)
        return 1 if told is None else told
    count = 0
    for each in index.split(","):
        match = _RANGE.fullmatch(each)
        if match is None:
            return 1
        count += int(match[2] or match[1]) - int(match[1]) + 1
    return count if 0 < count <= _SLOTS_MAX else 1


def count_hosts(exec_host: str, exec_vnode: str) -> int:
    """The number of a job's hosts; 0 if neither attribute shows any.

    `exec_host` names hosts, but on Cray machines it names the login nodes that started the job (PBS Professional
    Administrator's Guide, "Cray"). So vnodes count if their names do not match. A host with several vnodes, `uv[0]`
    and `uv[1]`, counts once.
    """
    hosts = read_hosts(exec_host)
    vnodes = list(dict.fromkeys(_INDEX.sub("", name) for name, _ in read_vnodes(exec_vnode)))
    if not vnodes or (hosts and _are_of(vnodes, hosts)):
        return len({_INDEX.sub("", name) for name in hosts})
    return len(vnodes)


def _are_of(vnodes: Sequence[str], hosts: Sequence[str]) -> bool:
    """Whether each vnode belongs to one of these hosts: its name is the host's name, or begins with it."""
    known = {part for name in hosts for part in (_INDEX.sub("", name), name.partition(".")[0]) if part}
    return all(vnode.startswith(tuple(known)) for vnode in vnodes)
