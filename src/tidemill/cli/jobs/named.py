"""Jobs and campaigns as they are named on a command line: `7`, `3-9`, `zmumu`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tidemill.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.client.client import Client

JOBS_MAX = 1_000_000
_JOBS = re.compile(r"(\d+)(?:-(\d+))?")


def split_names(words: Sequence[str]) -> tuple[list[int], list[str]]:
    """Numbers of jobs, ranges of them written out, and names of campaigns. Raises ConfigError."""
    jobs: list[int] = []
    campaigns: list[str] = []
    for word in words:
        found = _JOBS.fullmatch(word)
        if found is None:
            campaigns.append(word)
            continue
        first, last = int(found[1]), int(found[2] or found[1])
        if not 1 <= first <= last < first + JOBS_MAX:
            raise ConfigError(f"`{word}` is not a range of jobs", hint="write FIRST-LAST, such as `3-9`")
        jobs += range(first, last + 1)
    return jobs, campaigns


def one_job(client: Client, word: str) -> int:
    """The job with this number, or the only one of the campaign of this name. Raises ConfigError."""
    jobs, campaigns = split_names([word])
    if len(jobs) == 1:
        return jobs[0]
    if jobs:
        raise ConfigError(f"`{word}` are several jobs", hint="name one of them")
    found = [each.id for each in client.jobs(campaign=known_campaign(client, campaigns[0]), limit=2)]
    if len(found) != 1:
        what = "has several jobs" if found else "has no job"
        hint = f"`tidemill jobs --campaign {word}` lists their numbers" if found else None
        raise ConfigError(f"campaign `{word}` {what}", hint=hint)
    return found[0]


def known_campaign(client: Client, name: str) -> str:
    """The same name or `OWNER/NAME`, if the server knows the campaign; of several owners' campaigns of one name, one's
    own. Raises ConfigError with the server's hint, as all verbs do."""
    from tidemill.wire.http import NotFoundError, RefusedRequestError

    try:
        client.campaign(name)
    except RefusedRequestError:  # several owners have one
        own = client.own(name)
        with suppress(NotFoundError):
            client.campaign(own)
            return own
        raise
    return name
