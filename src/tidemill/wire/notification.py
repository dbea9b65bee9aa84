"""Content of notices: one digest per addressee and message. Mails show it, hooks and messages carry its JSON."""

from __future__ import annotations

import msgspec

VERSION = 1
JOBS_SHOWN = 20  #: ended jobs that a digest lists of one campaign; the others are counted
GROUPS_SHOWN = 20  #: groups of failures of one campaign
MOVES_SHOWN = 20  #: changes of a site's state


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of one class, with the newest as the example."""

    failure: str
    count: int
    meaning: str
    next_step: str
    example: str = ""
    node: str = ""
    job: int | None = None
    event: int | None = None


class EndedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that ended."""

    job: int
    state: str
    name: str = ""
    reason: str = ""


class CampaignFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign as it stood when the digest was made. `states`: jobs by state. Times: microseconds since 1970 UTC."""

    states: dict[str, int]
    jobs: int
    events: int
    events_done: int
    events_failed: int
    payloads: int
    cpu_us: int
    wall_us: int
    rss_kb: int
    first_started_us: int | None
    last_ended_us: int | None
    failures: list[FailureGroup] = []
    events_canceled: int = 0


class JobsNews(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="job"):
    """Jobs of a campaign ended. `ended`: how many by state; `jobs`: some of them, those without success first."""

    campaign: str
    ended: dict[str, int]
    jobs: list[EndedJob]
    figures: CampaignFigures | None
    first_us: int
    last_us: int
    owner: str = ""  #: of the campaign


class CampaignNews(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="campaign"):
    """Nothing of a campaign waits or runs any more."""

    campaign: str
    figures: CampaignFigures | None
    first_us: int
    last_us: int
    owner: str = ""  #: of the campaign


class FailuresNews(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="failures"):
    """The share of failed events of a campaign exceeded the limit that its subscription sets."""

    campaign: str
    share: float
    limit: float
    figures: CampaignFigures | None
    first_us: int
    last_us: int
    owner: str = ""  #: of the campaign


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A site came into a state."""

    at_us: int
    state: str
    reason: str = ""


class SiteNews(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="site"):
    """A site was drained, lost, or works again. `moves`: the latest, oldest first."""

    site: str
    state: str
    reason: str
    moves: list[Move]
    first_us: int
    last_us: int


class TrialNews(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="test"):
    """Nothing happened: an operator tries whether messages arrive."""

    first_us: int
    last_us: int


News = JobsNews | CampaignNews | FailuresNews | SiteNews | TrialNews


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one message reports to an addressee. `id` stays the same however often it has to be sent."""

    id: str
    server: str
    made_us: int
    items: list[News]
    version: int = VERSION
