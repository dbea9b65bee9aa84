"""Pages of jobs: the listing, one job with its life line, output of payloads; cancel and retry."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.errors import did_you_mean
from tidemill.model.arrival import comes_when
from tidemill.model.campaign.workers import WORKER_NAME, WORKERS_FOLDED_MIN
from tidemill.model.failure import POLICY
from tidemill.model.identity import Act
from tidemill.model.intervals import IntervalSet
from tidemill.model.state import JobState
from tidemill.server.audit import payload_times
from tidemill.server.core import rights
from tidemill.server.database.store import values
from tidemill.server.errors import MissingError, RequestError
from tidemill.server.read import activity, api_pages, web_pages
from tidemill.server.read.job_search import Filter, Sort
from tidemill.server.web import files, payloads, progress
from tidemill.server.web.files import Download
from tidemill.server.web.progress import ProgressCounts
from tidemill.server.web.query import own_path, to, with_values
from tidemill.server.web.render import PageRequest, Pages
from tidemill.wire.api import ActionRequest, JobDetail, JobRow, OutputRow

SORTS = {
    Sort.NEWEST: "newest first", Sort.OLDEST: "oldest first", Sort.ENDED: "ended last first", Sort.NAME: "by name",
}  # fmt: skip
CHOICES_MAX = 500
JOBS_MAX = 200
LOG_TRIES_MAX = 20
LOG_PAUSE_S = 2


def listing(ask: PageRequest, made: Pages) -> str:
    """`/jobs`: a page of jobs, filtered, searched and sorted."""
    owner = ask.own(Act.READ)
    query, key = ask.query, ask.campaign()
    filters = Filter(
        state=query.text("state"), app=query.text("app"), site=query.text("site"),
        campaign=None if key is None else key.number, begins=query.text("q"), owner=owner,
    )  # fmt: skip
    sort = Sort(query.choice("sort", tuple(SORTS)))
    after, size = query.text("after"), query.size()
    if key is not None and key.is_archived:
        page = web_pages.archived_jobs(
            ask.session, ask.dispatcher.rules.archive, filters, after=after, size=size
        )
    else:
        page = web_pages.jobs(ask.session, filters, sort, after=after, size=size)
    total = page.found.total
    if not filters.by_legs and filters.begins is None:
        total = api_pages.counts(ask.session).jobs
    workers = [] if filters.begins else [row for row in page.rows if row.name == WORKER_NAME]
    if len(workers) < WORKERS_FOLDED_MIN:
        workers = []
    rows = [row for row in page.rows if row.name != WORKER_NAME] if workers else page.rows
    return made.show(
        ask, "jobs.html", page=page, rows=rows, workers=workers, found=page.found, total=total, sorts=SORTS, sort=sort,
        states=[str(state) for state in JobState], owners=owner is None, choices=choices(ask, owner),
        can=_rights(ask, [row.id for row in page.rows]), after=web_pages.reached(ask.session),
    )  # fmt: skip


def choices(ask: PageRequest, owner: str | None) -> dict[str, list[str]]:
    """What filters of jobs can be set to."""
    apps = "apps_known" if owner is None else "apps_known_to"
    about = {} if owner is None else {"owner": owner}
    return {
        "campaign": web_pages.campaign_choices(ask.session, owner),
        "app": values(ask.session, apps, limit=CHOICES_MAX, **about),
        "site": sorted(row.name for row in ask.session.rows("site_names"))[:CHOICES_MAX],
    }


def _rights(ask: PageRequest, jobs: list[int]) -> dict[str, bool]:
    """Whether any of these may be canceled or retried: then the listing has boxes to tick."""
    found = set(web_pages.owners(ask.session, jobs).values())
    return {
        "cancel": any(ask.may(Act.CANCEL, owner=owner) for owner in found),
        "retry": any(ask.may(Act.RETRY, owner=owner) for owner in found),
    }


def job(ask: PageRequest, made: Pages) -> str:
    """`/jobs/ID`: everything about a job."""
    detail, owner = _detail(ask)
    row, is_open = detail.row, not detail.archived
    last = detail.failures[0] if detail.failures else None
    ran = None
    if detail.spec.timed is True:
        times = payload_times.latest(ask.session, row.id)
        ran = payloads.view(
            times, at_once=detail.spec.running_max, now_us=ask.now_us, is_over=row.ended_us is not None
        )
    found = activity.of_job(ask.session, ask.dispatcher.rules.archive, row.id)
    counts = ProgressCounts(
        row.events - row.events_canceled,
        row.events_done,
        row.events_failed,
        row.started_us,
        row.ended_us,
        detail.usage,
        is_idle=bool(row.phase) or row.state == "WAITING",
    )
    return made.show(
        ask, "job.html", ran=ran, progress=progress.view(found, counts, ask.now_us),
        job=detail, row=row, owner=owner, policy=POLICY, last=last,
        failures=web_pages.alike(detail.failures),
        open_attempts=[each for each in detail.attempts if each.state == "ACTIVE"],
        logs=web_pages.logs(ask.session, row.id), after=web_pages.reached(ask.session),
        can={
            "cancel": is_open and row.state in ("WAITING", "RUNNING") and ask.may(Act.CANCEL, owner=owner),
            "retry": is_open and _is_retriable(row) and ask.may(Act.RETRY, owner=owner),
            "accept": is_open and row.state in ("FAILED", "CANCELED") and detail.kept is not None
            and ask.may(Act.ACCEPT, owner=owner),
            "log": is_open and bool(detail.attempts) and ask.may(Act.LOG, owner=owner),
        },
        end_us=row.ended_us or ask.now_us,
        arrived=[_arrived(each) for each in detail.outputs],
        comes={each.name: comes_when(detail.spec, each) for each in detail.spec.outputs or []},
        gets=[files.may_download(ask.identity, each.url) for each in detail.outputs],
        has_page=ask.may(Act.SITES) and any(row.app == each.app.name for each in api_pages.applications(ask.session)),
    )  # fmt: skip


def _arrived(output: OutputRow) -> int | None:
    """The number of events whose files have come while the job goes on; None = the output is delivered, 0 =
    not known."""
    if output.sha256:
        return None
    return len(IntervalSet.parse(output.events)) if output.events else 0


def _detail(ask: PageRequest) -> tuple[JobDetail, str]:
    number = ask.at["job"]
    owner = _owner(ask, Act.READ, number)
    archive = ask.dispatcher.rules.archive
    return api_pages.job(ask.session, number, cache=ask.specs, silent=ask.unheard(), archive=archive), owner


def _owner(ask: PageRequest, act: Act, number: int) -> str:
    """Whose a job is. Raises MissingError if it does not exist, or belongs to another than may be asked about."""
    rights.check_jobs(ask.session, ask.identity, act, [number])
    owner = web_pages.owners(ask.session, [number]).get(number)
    if owner is None:
        raise rights.missing_job(number)
    return owner


def download(ask: PageRequest) -> Download:
    """`/jobs/ID/files/N`: the N-th delivered file. Raises ForbiddenError, MissingError."""
    detail, _ = _detail(ask)
    number = ask.at["number"]
    if number >= len(detail.outputs):
        raise MissingError(
            f"job {detail.row.id} has {len(detail.outputs)} delivered files, there is no {number}"
        )
    return files.opened(ask.identity, detail.row.id, detail.outputs[number])


def log(ask: PageRequest, made: Pages) -> str:
    """`/jobs/ID/log/REQUEST`: stdout and stderr of a payload, once the site has sent them."""
    detail, owner = _detail(ask)
    ask.require(Act.LOG, owner=owner)
    found = web_pages.log(ask.session, detail.row.id, ask.at["number"])
    if found is None:
        raise MissingError(
            f"output {ask.at['number']} of job {detail.row.id} is not kept any more",
            hint="ask the site for it again",
        )
    tries = ask.query.number("n") or 0
    again = None
    if not found.answered and tries < LOG_TRIES_MAX:
        again = with_values(ask.query.path, n=tries + 1)
    return made.show(ask, "log.html", row=detail.row, log=found, again=again, pause_s=LOG_PAUSE_S)


# ---- what is done ---------------------------------------------------------------------------------------------------

Form = Mapping[str, list[str]]


def ask_log(ask: PageRequest, form: Form) -> str:
    """Ask the site for a payload's output; where it will be shown."""
    number = int(ask.at["job"])
    _owner(ask, Act.LOG, number)
    text = form.get("event", [""])[0].strip()
    if text and not (text.isdecimal() and text.isascii() and len(text) < 19):
        raise RequestError(
            f"`{text[:40]}` is not the number of an event", hint="leave it empty for the latest payload"
        )
    request = ask.dispatcher.ask_log(number, int(text) if text else None, ask.identity)
    if request is None:
        raise RequestError(f"no site has had {f'event {text}' if text else 'an event'} of job {number} yet")
    return to("jobs", number, "log", request)


def act(ask: PageRequest, form: Form) -> str:
    """Cancel, retry or accept jobs or a campaign; where to go on, which says what was done."""
    word = form.get("act", [""])[0]
    acts = {
        "cancel": (Act.CANCEL, ask.dispatcher.handle_cancel),
        "retry": (Act.RETRY, ask.dispatcher.handle_retry),
        "accept": (Act.ACCEPT, ask.dispatcher.handle_accept),
    }
    if word not in acts:
        raise RequestError(
            f"`{word[:40]}` is nothing that can be done to jobs", hint=did_you_mean(word, list(acts))
        )
    wanted, do = acts[word]
    ask.require(wanted)
    campaign = form.get("campaign", [""])[0] or None
    jobs = [] if campaign else _numbers(form.get("job", []))
    if campaign is not None:
        rights.check_campaign(ask.session, ask.identity, wanted, campaign)
    elif not jobs:
        raise RequestError("no job is ticked", hint="go back and tick some")
    rights.check_jobs(ask.session, ask.identity, wanted, jobs)
    events = form.get("events", [""])[0].replace(" ", "")
    request = ActionRequest(jobs=jobs, campaign=campaign, reason=_reason(form), events=events)
    reply = do(request, ask.identity)
    back = own_path(form.get("back", [""])[0])
    said = f"{word}-events" if events else word
    return f"{back}{'&' if '?' in back else '?'}said={said}&n={reply.changed}&m={reply.unchanged}"


def _is_retriable(row: JobRow) -> bool:
    return row.state in ("PARTIAL", "FAILED", "CANCELED") or row.events_canceled > 0


def _reason(form: Form) -> str:
    return form.get("reason", [""])[0].strip()[:200]


def _numbers(texts: list[str]) -> list[int]:
    if len(texts) > JOBS_MAX:
        raise RequestError(
            f"{len(texts)} jobs at once, at most {JOBS_MAX}", hint="act on the whole campaign instead"
        )
    if not all(each.isdecimal() and each.isascii() and len(each) < 19 for each in texts):
        raise RequestError("a job's number cannot be read")
    return [int(each) for each in texts]
