"""Whether a waiting job could start if nodes were free, by what the scheduler says of it. Pure but for `own_groups`.

The comments are those of src/scheduler/job_info.cpp, table `fctt`, after `Not Running: `. A job that waits at a limit
which Tidemill may fill itself, such as one of the server, of a queue or of a node, can start once Tidemill has left:
only limits of other users, projects and groups than Tidemill's own keep a job from free nodes.
"""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Callable, Collection
from functools import cache

import msgspec

from tidemill.batch.pbs.replies import Record, text_of

_NEVER = (
    "can never run",
    "queue not started",
    "queue not an execution queue",
    "primetime only",
    "dedicated time",
    "job will cross into",
    "zero shares",
    "under job_sort_formula threshold",
    "number of concurrent running subjobs limit",
)
_USER = ("user has reached", "per-user limit", "limit reached for user", "would exceed user ")
_PROJECT = ("project has reached", "per-project limit", "limit reached for project", "would exceed project ")
_GROUP = re.compile(r"(?:limit reached for|would exceed) group (\S+?)(?:'s |\s|$)")


def own_groups() -> frozenset[str]:
    """Names of the groups of this process. Reads a file, or asks a directory service, for each of them."""
    names = set()
    for number in {os.getegid(), *os.getgroups()}:
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return frozenset(names)


class OwnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Whose limits Tidemill's jobs count for. Made for each snapshot."""

    user: str = ""
    projects: Collection[str] = ()
    groups: Callable[[], Collection[str]] = msgspec.field(default_factory=lambda: cache(own_groups))
    """Asked for only where a comment names one, and then read once."""


def may_start(job: Record, queue: Record, own: OwnLimits) -> bool:
    """Whether free nodes might start a job that is queued; in doubt, they would."""
    if text_of(queue, "started") == "False" or text_of(queue, "queue_type").startswith("R"):
        return False
    comment = text_of(job, "comment")
    words = comment.lower()
    if any(each in words for each in _NEVER):
        return False
    if any(each in words for each in _USER):
        return text_of(job, "Job_Owner").partition("@")[0] == own.user
    if any(each in words for each in _PROJECT):
        return text_of(job, "project") in own.projects
    group = _GROUP.search(comment)
    return group is None or group[1] in own.groups()
