"""What a message says of campaigns, jobs and sites: read from the database when it is made."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidemill.config.addressee import Occasion
from tidemill.model.campaign import parse_reference
from tidemill.model.failure import POLICY, Evidence, FailureClass, next_step, step_after
from tidemill.server.core import campaign_names
from tidemill.server.database.store import Session
from tidemill.server.notices.gathering import Notice
from tidemill.server.read import api_pages
from tidemill.wire.notification import (
    GROUPS_SHOWN,
    CampaignFigures,
    CampaignNews,
    EndedJob,
    FailureGroup,
    FailuresNews,
    JobsNews,
    News,
    SiteNews,
)

EXAMPLES_SEEN = 500  #: newest failures among which examples are looked for
TEXT_MAX = 400


def news(session: Session, notices: Iterable[Notice]) -> list[News]:
    """News of these notices, with figures of this moment."""
    figures: dict[str, CampaignFigures | None] = {}
    items = []
    for notice in notices:
        name = notice.key.subject
        if notice.key.what != Occasion.SITE and name not in figures:
            figures[name] = campaign_figures(session, name)
        items.append(_item(session, notice, figures.get(name)))
    return items


def _item(session: Session, notice: Notice, figures: CampaignFigures | None) -> News:
    subject, body = notice.key.subject, notice.body
    owner, name = parse_reference(subject)
    of = {"campaign": name, "owner": owner or ""}
    first_us, last_us = notice.first_us, notice.last_us
    match notice.key.what:
        case Occasion.JOB:
            return JobsNews(
                **of, ended=body.ended, jobs=ended_jobs(session, body.jobs), figures=figures,
                first_us=first_us, last_us=last_us,
            )  # fmt: skip
        case Occasion.CAMPAIGN:
            return CampaignNews(**of, figures=figures, first_us=first_us, last_us=last_us)
        case Occasion.FAILURES:
            ended = figures.events_done + figures.events_failed if figures else 0
            share = figures.events_failed / ended if figures and ended else body.limit
            return FailuresNews(
                **of,
                share=share,
                limit=body.limit,
                figures=figures,
                first_us=first_us,
                last_us=last_us,
            )
        case _:
            return SiteNews(
                site=subject,
                state=body.state,
                reason=body.reason,
                moves=body.moves,
                first_us=first_us,
                last_us=last_us,
            )


def ended_jobs(session: Session, jobs: list[tuple[int, str]]) -> list[EndedJob]:
    """Jobs with their names and reasons."""
    rows = {row.id: row for row in api_pages.rows_of(session, [job for job, _ in jobs])}
    return [
        EndedJob(
            job=job,
            state=state,
            name=rows[job].name if job in rows else "",
            reason=rows[job].reason[:TEXT_MAX] if job in rows else "",
        )
        for job, state in jobs
    ]


def campaign_figures(session: Session, subject: str) -> CampaignFigures | None:
    """A campaign as it is now; None = it does not exist. `subject`: its reference."""
    key = campaign_names.look_up(session, subject, None)
    if key is None:
        return None
    row = api_pages.campaign(session, key)
    used = row.usage
    return CampaignFigures(
        states=row.states, jobs=row.jobs, events=row.events, events_done=row.events_done,
        events_failed=row.events_failed, payloads=used.payloads, cpu_us=used.user_us + used.system_us,
        wall_us=used.wall_us, rss_kb=used.rss_kb, first_started_us=row.first_started_us,
        last_ended_us=row.last_ended_us, failures=_groups(session, key.number, row.failures),
        events_canceled=row.events_canceled,
    )  # fmt: skip


def _groups(session: Session, campaign: int, counted: dict[str, int]) -> list[FailureGroup]:
    if not counted:
        return []
    examples: dict[str, tuple[int | None, int | None, Evidence | None]] = {}
    for job, event, text in session.rows("failure_examples", campaign=campaign, limit=EXAMPLES_SEEN):
        evidence = msgspec.json.decode(text, type=Evidence)
        examples.setdefault(evidence.failure, (job, event, evidence))
    groups = []
    for failure, count in sorted(counted.items(), key=lambda pair: -pair[1])[:GROUPS_SHOWN]:
        job, event, seen = examples.get(failure, (None, None, None))
        step = next_step(failure) if seen is None else step_after(seen, job=job, event=event)
        groups.append(
            FailureGroup(
                failure=failure,
                count=count,
                meaning=POLICY[FailureClass(failure)].meaning,
                next_step=step,
                job=job,
                event=event,
                example="" if seen is None else seen.message[:TEXT_MAX],
                node="" if seen is None else seen.node,
            )
        )
    return groups
