"""What a submitter can do, as methods: submit, follow, read results, cancel and retry. Prints nothing, starts nothing.

Every call that a server may have taken although its answer was lost is repeated with the same key, so it counts once.
"""

from __future__ import annotations

import random
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from tidemill import clock
from tidemill.client.ended import FINAL, EndedJobs, number_texts
from tidemill.client.home import ServerPlace, find_server, home_dir
from tidemill.client.outputs import Member, OutputFile, members, output_files
from tidemill.errors import ConfigError, SiteError
from tidemill.model.campaign import FORM_HINT, parse_reference, reference, reference_or_name
from tidemill.model.figures.activity import Activity
from tidemill.model.job import NAME_PATTERN, JobSpec
from tidemill.model.notification import Subscription
from tidemill.model.quantities import duration_text
from tidemill.model.retry.changes import JobChanges
from tidemill.octets import shown
from tidemill.wire.api import (
    PAGE_MAX,
    REQUEST_BYTES_MAX,
    SUBMIT_JOBS_MAX,
    ActionReply,
    ActionRequest,
    AllocationRow,
    AuditRow,
    CampaignRow,
    Change,
    Counts,
    FailurePage,
    FailureRow,
    Health,
    JobDetail,
    JobLog,
    JobOutput,
    JobPage,
    JobRow,
    KeptOutputs,
    OutputPage,
    OwnerRow,
    ResetRequest,
    SharesRequest,
    SiteApplication,
    SiteRow,
    SubmitReply,
    SubmitRequest,
    TimesPage,
)
from tidemill.wire.core_hours import AllocationUse, CoreHoursPage, PlacementRow
from tidemill.wire.credentials import Credentials
from tidemill.wire.hospital import DowntimeList, WardRow
from tidemill.wire.monitoring import SampleReply
from tidemill.wire.server_connection import BusyError, Connection, NotFoundError

T = TypeVar("T")
SILENT_TRIES = 3  #: failed calls in a row, about a second: a server that starts again needs less
RETRY_S = 60.0  #: how long a call is repeated while the server does not answer
RETRY_PAUSE_S = 0.2
BUSY_S = 1_800.0  #: how long a call is repeated while the server answers that it comes too soon
PAGE_VALUES_MAX = 1_900_000  #: the server refuses bodies of more than 2,000,000
PAGE_BYTES_MAX = REQUEST_BYTES_MAX - 1_000_000  #: what else a request holds
POLL_MIN_S = 0.02
POLL_MAX_S = 1.0


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What was submitted: the campaign and the jobs' ids, in the order of the specs."""

    campaign: str
    jobs: list[int]
    repeated: bool
    remark: str = ""  #: of the server, such as a credential that ends before the outputs are delivered
    owner: str = ""  #: of the campaign; empty = not known

    @property
    def reference(self) -> str:
        """The campaign as `OWNER/NAME`, which is unambiguous also for one who sees those of all owners."""
        return reference_or_name(self.owner, self.campaign)


class Wishes(NamedTuple):
    """A submitter's wishes for a campaign: its weight in the fair share (None = unchanged), its subscriptions, and
    whether it must be new: then the server refuses a name that is in use."""

    shares: float | None = None
    notify: Sequence[Subscription] = ()
    new: bool = False


class Client:
    """A server, as one submitter sees it. Without an address the server is found as `find_server` says.

    May be shared by threads. Raises ConfigError if no server is named and none runs.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        secret_file: Path | None = None,
        credentials: Credentials | None = None,
        home: Path | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        place = find_server(address, secret_file=secret_file, home=home)
        if address is not None and credentials is not None:
            place = ServerPlace(address=address, credentials=credentials, source="as named")
        if place is None:
            raise ConfigError(
                f"no server is named, and none runs in `{home_dir(home)}`",
                hint="`tidemill up --detach` starts your own server and site; --server, $TIDEMILL_SERVER name another",
            )
        self.place = place
        self.home = home_dir(home)
        self.retry_s = retry_s
        #: gets a line for people when the server stops answering, and when it answers again
        self.notice: Callable[[str], None] | None = None
        self.connection = Connection(place.address, credentials=place.credentials)

    # ---- submit ----------------------------------------------------------------------------------------------

    def submit(
        self,
        specs: JobSpec | Sequence[JobSpec],
        *,
        campaign: str | None = None,
        repeat: Sequence[int] | None = None,
        key: str | None = None,
        wishes: Wishes | None = None,
    ) -> Submission:
        """Submit jobs and return their ids. `repeat[k]`: how many times to submit `specs[k]`.

        Jobs are sent in pages of at most 10,000; the server accepts a page whole or not at all. `key` (default: a new
        one) makes a repetition with the same jobs harmless: it returns the ids of the first submission.
        """
        owner = _owner()
        asked = requests(specs, campaign=campaign, repeat=repeat, key=key, wishes=wishes)
        asked = [msgspec.structs.replace(each, owner=owner) for each in asked]
        return submitted(asked, lambda each: self._repeat(partial(self._post, "/v1/jobs", SubmitReply, each)))

    def cancel(
        self,
        jobs: Sequence[int] = (),
        *,
        campaign: str | None = None,
        reason: str = "",
        unneeded: bool = False,
        events: str = "",
    ) -> ActionReply:
        """Cancel jobs, or all of a campaign; jobs that have ended stay as they are. `unneeded`: those of which no event
        has ended become COMPLETED, since nothing that they were for is missing.

        `events`, such as `100-199,205`: only these of one job; those that have ended stay as they are, and the reply
        counts events. The job ends when all others have."""
        return self._act("/v1/cancel", jobs, campaign, reason, unneeded=unneeded, events=events)

    def retry(
        self,
        jobs: Sequence[int] = (),
        *,
        campaign: str | None = None,
        reason: str = "",
        changes: JobChanges | None = None,
        events: str = "",
    ) -> ActionReply:
        """Run what failed or was not done of ended jobs, or of all such jobs of a campaign. What is done stays done.

        `changes`, such as `JobChanges(memory_mb=8000)`, apply to all events that are leased from now on. They also
        apply to jobs that wait or run, and the reply counts these jobs, too.

        `events`, such as `5-9`: only these of one job, which failed or were canceled. Raises RefusedRequestError for
        others.
        """
        if changes is not None and changes.output_dir is not msgspec.UNSET:
            check_places(changes.output_dir)
        return self._act("/v1/retry", jobs, campaign, reason, changes=changes, events=events)

    def accept(
        self, jobs: Sequence[int] = (), *, campaign: str | None = None, reason: str = ""
    ) -> ActionReply:
        """Take what is done of jobs that failed or were canceled for all there is: merge steps run, everything done is
        delivered, and the jobs end as PARTIAL."""
        return self._act("/v1/accept", jobs, campaign, reason)

    def discard(
        self, jobs: Sequence[int] = (), *, campaign: str | None = None, reason: str = ""
    ) -> ActionReply:
        """Have sites delete what they keep of ended jobs and is not delivered; a retry runs those events again."""
        return self._act("/v1/discard", jobs, campaign, reason)

    # ---- ask -------------------------------------------------------------------------------------------------

    def get(self, path: str, reply_type: type[T], **query: str | int | bool | None) -> T:
        """The answer to `GET path`, repeated while the server does not answer (at most `retry_s`)."""
        return self._repeat(lambda: self.connection.call("GET", path, reply_type, query=query))

    def job(self, job: int) -> JobDetail:
        """Return everything about one job."""
        return self.get(f"/v1/jobs/{job}", JobDetail)

    def jobs(
        self, *, limit: int | None = None, archived: bool = False, **filters: str | int | None
    ) -> Iterator[JobRow]:
        """Jobs, newest first, page by page; `archived`: those that have left the database. Filters: state, app, site,
        campaign, name."""
        if archived:
            filters["archived"] = "true"
        left = limit
        before: int | None = None
        while left is None or left > 0:
            size = PAGE_MAX if left is None else min(left, PAGE_MAX)
            page = self.get("/v1/jobs", JobPage, limit=size, before=before, **filters)
            yield from page.jobs
            left = None if left is None else left - len(page.jobs)
            before = page.next
            if before is None:
                return

    def campaign(self, name: str) -> CampaignRow:
        """One campaign, by `NAME` or `OWNER/NAME`: its jobs by state, events, usage and failures."""
        return self.get(_campaign_path(name), CampaignRow, owner=parse_reference(name).owner)

    def own(self, name: str) -> str:
        """How a campaign is named that this client submits: the server's own user submits for the user of this process,
        and sees the campaigns of all owners."""
        place = self.place
        is_servers_user = place.credentials.secret_file is not None or place.address.startswith("unix:")
        return reference(_owner(), name) if is_servers_user else name

    def activity(self, campaign: str) -> Activity:
        """What the payloads of a campaign did over time, in intervals of whole seconds."""
        return self.get(
            f"{_campaign_path(campaign)}/activity", Activity, owner=parse_reference(campaign).owner
        )

    def job_activity(self, job: int) -> Activity:
        """What payloads of a job of 200 events or more did over time; without intervals for a smaller one."""
        return self.get(f"/v1/jobs/{job}/activity", Activity)

    def campaigns(self, *, archived: bool = False) -> list[CampaignRow]:
        """The newest 1,000 campaigns, newest first; `archived`: of those that have left the database."""
        more = {"archived": "true"} if archived else {}
        return self.get("/v1/campaigns", list[CampaignRow], limit=PAGE_MAX, **more)

    def counts(self) -> Counts:
        """Jobs by state and sums over all campaigns."""
        return self.get("/v1/counts", Counts)

    def failures(
        self, *, campaign: str | None = None, job: int | None = None, limit: int | None = None
    ) -> Iterator[FailureRow]:
        """Failures with their evidence, newest first, page by page."""
        left = limit
        before: int | None = None
        while left is None or left > 0:
            size = PAGE_MAX if left is None else min(left, PAGE_MAX)
            page = self.get(
                "/v1/failures", FailurePage, campaign=campaign, job=job, before=before, limit=size
            )
            yield from page.failures
            left = None if left is None else left - len(page.failures)
            before = page.next
            if before is None:
                return

    def rows(self, jobs: Iterable[int]) -> Iterator[JobRow]:
        """Rows of jobs by their numbers, ascending, archived jobs included; 1,000 in a request. Raises NotFoundError
        for a job that does not exist."""
        for text in number_texts(jobs):
            yield from reversed(self.get("/v1/jobs", JobPage, jobs=text).jobs)

    def outputs(
        self, *, campaign: str | None = None, job: int | None = None, jobs: Iterable[int] | None = None
    ) -> Iterator[JobOutput]:
        """Delivered files, newest jobs first, page by page; of `jobs` (by number) the oldest job first. Of a job that
        goes on: directories of files that have arrived, without `sha256`."""
        if jobs is not None:
            for text in number_texts(jobs):
                yield from self._outputs_from(jobs=text)
            return
        before: int | None = None
        while True:
            page = self.get(
                "/v1/outputs", OutputPage, campaign=campaign, job=job, before=before, limit=PAGE_MAX
            )
            yield from page.outputs
            before = page.next
            if before is None:
                return

    def _outputs_from(self, **what: str) -> Iterator[JobOutput]:
        after: int | None = 0
        while after is not None:
            page = self.get("/v1/outputs", OutputPage, after=after, limit=PAGE_MAX, **what)
            yield from page.outputs
            after = page.next

    def kept_outputs(self, *, campaign: str | None = None, job: int | None = None) -> list[KeptOutputs]:
        """What is done and not delivered, of the newest 1,000 such jobs of a campaign."""
        return self.get("/v1/outputs", OutputPage, campaign=campaign, job=job).kept

    def log(self, job: int, *, event: int | None = None, timeout_s: float = 30) -> JobLog:
        """Stdout and stderr of the payload that ran an event (None = the latest of the job), from its site.

        `pending` stays True if the site has not answered within `timeout_s`.
        """
        deadline = clock.monotonic_s() + timeout_s
        while True:
            log = self.get(f"/v1/jobs/{job}/log", JobLog, event=event)
            if not log.pending or clock.monotonic_s() > deadline:
                return log
            clock.sleep_s(RETRY_PAUSE_S)

    def times(self, job: int, *, after: int = 0) -> TimesPage:
        """Payload times of a timed job that arrived after a place (0 = from the start); one page."""
        return self.get(f"/v1/jobs/{job}/times", TimesPage, after=after)

    def sites(self) -> list[SiteRow]:
        """All sites as the server sees them."""
        return self.get("/v1/sites", list[SiteRow])

    def wards(self) -> list[WardRow]:
        """The wards of the hospital, with the outcomes of all stays."""
        return self.get("/v1/wards", list[WardRow])

    def downtimes(self) -> DowntimeList:
        """Downtimes of sites that are not over, and where they were read."""
        return self.get("/v1/downtimes", DowntimeList)

    def applications(self) -> list[SiteApplication]:
        """The applications that sites offer."""
        return self.get("/v1/applications", list[SiteApplication])

    def owners(self) -> Iterator[OwnerRow]:
        """What owners have had of the fair share, by name: of all for an operator, one's own account otherwise."""
        after = ""
        while True:
            rows = self.get("/v1/owners", list[OwnerRow], after=after, limit=PAGE_MAX)
            yield from rows
            if len(rows) < PAGE_MAX:
                return
            after = rows[-1].owner

    def set_shares(self, owner: str, shares: float, *, reason: str = "") -> ActionReply:
        """Give an owner a weight in the fair share; for operators."""
        body = SharesRequest(owner=owner, shares=shares, reason=reason)
        return self._repeat(partial(self._post, "/v1/owners", ActionReply, body))

    def reset_epoch(self, site: str, *, reason: str = "") -> ActionReply:
        """Let the next agent that speaks for a site serve it, whatever its epoch is; for operators. Sent once: a second
        one would take back what the agent has been given since."""
        path = f"/v1/sites/{quote(site, safe='')}/reset-epoch"
        return self.connection.call_once("POST", path, ActionReply, body=ResetRequest(reason=reason))

    def audit(
        self,
        *,
        batch_id: str | None = None,
        node: str | None = None,
        at_us: int | None = None,
        site: str | None = None,
    ) -> list[AuditRow]:
        """Who ran what in an allocation of the batch system, or on a node at a time (microseconds since 1970)."""
        return self.get("/v1/audit", list[AuditRow], batch_id=batch_id, node=node, at_us=at_us, site=site)

    def allocations(self, *, site: str | None = None, limit: int | None = None) -> list[AllocationRow]:
        """Allocations as their sites last reported them, newest first."""
        return self.get("/v1/allocations", list[AllocationRow], site=site, limit=limit)

    def node_samples(self, allocation: str, *, since: int = 0, site: str | None = None) -> SampleReply:
        """What nodes of an allocation did. `since`: `until` of the last reply, for what came after it; `site`: where
        several sites have an allocation of that name. The server holds the last 240 samples of 64 nodes in memory."""
        path = f"/v1/allocations/{quote(allocation, safe='')}/samples"
        return self.get(path, SampleReply, since=since, site=site)

    def placements(self, site: str, *, since_us: int, until_us: int) -> Iterator[PlacementRow]:
        """Allocations of a site that held nodes between two times (microseconds since 1970), by name."""
        after = ""
        while True:
            rows = self.get(
                "/v1/placements",
                list[PlacementRow],
                site=site,
                since_us=since_us,
                until_us=until_us,
                after=after,
                limit=PAGE_MAX,
            )
            yield from rows
            if len(rows) < PAGE_MAX:
                return
            after = rows[-1].name

    def core_hours(self, *, since_us: int = 0, until_us: int = 1 << 62) -> Iterator[AllocationUse]:
        """What allocations that held nodes between two times (microseconds since 1970) held and what payloads used of
        it, by site and name; for a submitter the own parts. Each allocation is whole, also before and after."""
        after = ""
        while True:
            page = self.get(
                "/v1/core-hours",
                CoreHoursPage,
                since_us=since_us,
                until_us=until_us,
                after=after,
                limit=PAGE_MAX,
            )
            yield from page.allocations
            if page.next is None:
                return
            after = page.next

    def health(self) -> Health:
        """Whether the server is well, its version and database. Asked once, not repeated."""
        return self.connection.call("GET", "/v1/health", Health)

    # ---- follow ----------------------------------------------------------------------------------------------

    def changes(self, *, after: int = 0, campaign: str | None = None) -> Iterator[Change]:
        """State changes of jobs as they happen, for ever; a broken connection is opened again where it broke."""
        at = after
        while True:
            try:
                for line in self.connection.lines("/v1/changes", {"after": at, "campaign": campaign}):
                    change = msgspec.json.decode(line, type=Change)
                    at = max(at, change.number)
                    yield change
            except SiteError:
                clock.sleep_s(RETRY_PAUSE_S)
                self.get("/v1/health", Health)  # raises when the server stays away

    def wait(
        self,
        what: Submission | str | Sequence[int],
        *,
        timeout_s: float | None = None,
        on_progress: Callable[[CampaignRow], None] | None = None,
    ) -> list[JobRow]:
        """Wait until all jobs of a submission (or of a campaign, or these jobs) have ended; return their rows.

        `on_progress` is called with the campaign's row at every poll; where the jobs are of several campaigns, with
        the row of one after the other. Raises TimeoutError.
        """
        deadline = None if timeout_s is None else clock.monotonic_s() + timeout_s
        if isinstance(what, str):
            self._wait_campaign(what, deadline, on_progress)
            return list(self.jobs(campaign=what))
        if on_progress is not None:
            for name, jobs in self._by_campaign(what).items():
                self._wait_campaign(name, deadline, on_progress, jobs=jobs)
        return list(self._completed(what, deadline))

    def wait_end(
        self,
        what: Submission | str,
        *,
        timeout_s: float | None = None,
        on_progress: Callable[[CampaignRow], None] | None = None,
    ) -> CampaignRow:
        """Wait as `wait` does, but return only the campaign's row. A campaign, or a submission that names no jobs,
        takes one request per poll, whatever the number of jobs."""
        deadline = None if timeout_s is None else clock.monotonic_s() + timeout_s
        if isinstance(what, str):
            return self._wait_campaign(what, deadline, on_progress)
        return self._wait_campaign(what.reference, deadline, on_progress, jobs=what.jobs)

    def as_completed(
        self, what: Submission | Sequence[int], *, timeout_s: float | None = None
    ) -> Iterator[JobRow]:
        """Rows of jobs as they end. Raises TimeoutError."""
        return self._completed(what, None if timeout_s is None else clock.monotonic_s() + timeout_s)

    def results(self, what: Submission | str | Sequence[int]) -> Iterator[Member]:
        """The delivered outputs of ended jobs: every member (name, events, bytes) of every bundle and file. Of jobs
        that go on: the files of finished events that have arrived.

        Reads the files where they were delivered: they must be reachable from here.
        """
        for delivered in self._delivered(what):
            yield from members(delivered.job, delivered.output)

    def files(self, what: Submission | str | Sequence[int]) -> Iterator[OutputFile]:
        """The delivered files of ended jobs, as paths or file objects, not read yet; of a bundle, each member. Of jobs
        that go on: the files of finished events that have arrived.

        They must be reachable from here.
        """
        for delivered in self._delivered(what):
            yield from output_files(delivered.job, delivered.output)

    def _delivered(self, what: Submission | str | Sequence[int]) -> Iterator[JobOutput]:
        return self._outputs_from(campaign=what) if isinstance(what, str) else self.outputs(jobs=_ids(what))

    def follow(self, what: Submission) -> Iterator[Change]:
        """State changes of a submission's jobs from its beginning, and as they happen, until all of them have ended.

        Changes of numbers only have `progress` set.
        """
        left = set(what.jobs)
        for change in self.changes(campaign=what.reference):
            if change.job not in left:
                continue
            yield change
            if change.state in FINAL and not change.progress:
                left.discard(change.job)
            if not left:  # what was retried meanwhile goes on
                left = {row.id for row in self.rows(what.jobs) if row.state not in FINAL}
            if not left:
                return

    # ---- inside ----------------------------------------------------------------------------------------------

    def _by_campaign(self, what: Submission | Sequence[int]) -> dict[str, list[int]]:
        if isinstance(what, Submission):
            return {what.reference: what.jobs}
        found: dict[str, list[int]] = {}
        for row in self.rows(what):
            found.setdefault(row.campaign_reference, []).append(row.id)
        return found

    def _wait_campaign(
        self,
        name: str,
        deadline: float | None,
        on_progress: Callable[[CampaignRow], None] | None,
        *,
        jobs: Sequence[int] = (),
    ) -> CampaignRow:
        pause = POLL_MIN_S
        ended = EndedJobs(self._page, jobs)
        while True:
            row = self.campaign(name)
            if on_progress is not None:
                on_progress(row)
            # the campaign may have other jobs, which may never end
            if ended.left and len(jobs) < row.jobs:
                deque(ended.poll(), maxlen=0)
            if has_ended(row):
                return row
            if jobs and not ended.left:
                return self.campaign(name)
            pause = _pause(pause, deadline, name)

    def _completed(self, what: Submission | Sequence[int], deadline: float | None) -> Iterator[JobRow]:
        """Costs one request per 1,000 jobs at the first poll, later one per 1,000 jobs that have ended since."""
        ended = EndedJobs(self._page, _ids(what))
        pause = POLL_MIN_S
        while ended.left:
            before = ended.left
            yield from ended.poll()
            if ended.left:
                pause = POLL_MIN_S if ended.left < before else pause
                pause = _pause(pause, deadline, f"{ended.left} jobs")

    def _page(self, **query: str | int | None) -> JobPage:
        return self.get("/v1/jobs", JobPage, **query)

    def _act(
        self, path: str, jobs: Sequence[int], campaign: str | None, reason: str, **more: Any
    ) -> ActionReply:
        request = ActionRequest(
            jobs=list(jobs), campaign=campaign, reason=reason, key=uuid.uuid4().hex, **more
        )
        return self._repeat(lambda: self._post(path, ActionReply, request))

    def _post(self, path: str, reply_type: type[T], body: Any) -> T:
        return self.connection.call("POST", path, reply_type, body=body)

    def _repeat(self, call: Callable[[], T]) -> T:
        """Return the call's result. Retry with growing pauses for at most `retry_s` while no server answers, and when
        the server asks for it for at most `BUSY_S` while it is busy."""
        began_s = clock.monotonic_s()
        deadline = began_s + self.retry_s
        pause = RETRY_PAUSE_S
        tries = 0
        while True:
            try:
                reply = call()
            except BusyError as error:
                now_s = clock.monotonic_s()
                if now_s + error.wait_s > began_s + BUSY_S:
                    raise
                clock.sleep_s(error.wait_s * random.uniform(1.0, 1.2))
                deadline = now_s + error.wait_s + self.retry_s
            except SiteError as error:
                if not error.transient or clock.monotonic_s() + pause > deadline:
                    raise
                tries += 1
                if tries == SILENT_TRIES:
                    self._notify(
                        "the server does not answer; this goes on as soon as it is back, and ends after "
                        f"{duration_text(self.retry_s)} without it"
                    )
                clock.sleep_s(pause * random.uniform(0.5, 1.0))  # not all clients at once after a restart
                pause = min(2 * pause, 5.0)
            else:
                if tries >= SILENT_TRIES:
                    self._notify("the server answers again")
                return reply

    def _notify(self, line: str) -> None:
        if self.notice is not None:
            self.notice(line)


def has_ended(row: CampaignRow) -> bool:
    """Whether every job of a campaign has ended."""
    return sum(count for state, count in row.states.items() if state in FINAL) >= row.jobs


def new_campaign(stem: str) -> str:
    """A campaign name that is not in use: STEM, date and time (UTC), four hexadecimal digits."""
    safe = re.sub(r"[^A-Za-z0-9._+-]", "-", stem).strip("-._+")[:60] or "run"
    stamp = clock.utc_text(clock.now_us()).replace("-", "").replace(":", "").replace("T", "-").rstrip("Z")
    return f"{safe}-{stamp}-{uuid.uuid4().hex[:4]}"


def check_name(name: str, what: str) -> str:
    """The name if it is fit for a file name on any system; ConfigError otherwise."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(
            f"`{shown(name)}` is not a valid name of a {what}",
            hint="letters, digits, `.`, `_`, `+` and `-`, at most 100, first a letter or digit",
        )
    return name


def _campaign_path(text: str) -> str:
    """The path of a campaign's row. Raises NotFoundError for a reference without a name, whose path is the list's."""
    name = parse_reference(text).name
    if not name:
        raise NotFoundError(f"`{shown(text)}` names no campaign", hint=FORM_HINT)
    return f"/v1/campaigns/{quote(name, safe='', errors='replace')}"


def _ids(what: Submission | Iterable[int]) -> list[int]:
    return what.jobs if isinstance(what, Submission) else list(what)


def _pause(pause: float, deadline: float | None, what: str) -> float:
    if deadline is not None and clock.monotonic_s() + pause > deadline:
        raise TimeoutError(f"{what} had not ended in time")
    clock.sleep_s(pause)
    return min(1.15 * pause, POLL_MAX_S)  # a seventh of the time so far at most is lost at the end


def pages(jobs: list[JobSpec], counts: list[int]) -> Iterator[tuple[list[JobSpec], list[int]]]:
    """Pieces of at most SUBMIT_JOBS_MAX jobs, repetitions counted, and of no more than the server takes at once."""
    page: list[JobSpec] = []
    page_counts: list[int] = []
    room = SUBMIT_JOBS_MAX
    size = _PageSize(0, 0)
    for spec, count in zip(jobs, counts, strict=True):
        left, own = count, _size_of(spec)
        while left:
            size = _PageSize(size.size_bytes + own.size_bytes, size.values + own.values)
            if page and (room == 0 or size.size_bytes > PAGE_BYTES_MAX or size.values > PAGE_VALUES_MAX):
                yield page, page_counts
                page, page_counts, room, size = [], [], SUBMIT_JOBS_MAX, own
            take = min(left, room)
            page.append(spec)
            page_counts.append(take)
            left -= take
            room -= take
    if page:
        yield page, page_counts


class _PageSize(NamedTuple):
    size_bytes: int
    values: int


def _size_of(spec: JobSpec) -> _PageSize:
    """What a job takes of a request: bytes, and values as the server counts them, or somewhat more."""
    text = msgspec.json.encode(spec)
    return _PageSize(len(text) + 16, text.count(b",") + text.count(b"[") + text.count(b"{") + 2)


def requests(
    specs: JobSpec | Sequence[JobSpec],
    *,
    campaign: str | None,
    repeat: Sequence[int] | None,
    key: str | None,
    wishes: Wishes | None,
) -> list[SubmitRequest]:
    """A submission in pages, as `Client.submit` says, each with a key of its own. Raises ConfigError."""
    jobs = [specs] if isinstance(specs, JobSpec) else list(specs)
    counts = [1] * len(jobs) if repeat is None else list(repeat)
    if not jobs or len(counts) != len(jobs) or min(counts) < 1:
        raise ConfigError(
            "there is nothing to submit", hint="give at least one job, and a repeat >= 1 for each"
        )
    for job in jobs:
        check_places(job.output_dir, {each.name: each.url for each in job.outputs or ()})
    name = campaign or new_campaign(jobs[0].name or jobs[0].app or "run")
    base = key or uuid.uuid4().hex
    return [
        SubmitRequest(
            key=base if number == 0 else f"{base}-{number}",
            campaign=name,
            jobs=page,
            repeat=page_counts if max(page_counts) > 1 else None,
            shares=None if wishes is None else wishes.shares,
            notify=[] if wishes is None else list(wishes.notify),
            new=True if wishes is not None and wishes.new and number == 0 else msgspec.UNSET,
        )
        for number, (page, page_counts) in enumerate(pages(jobs, counts))
    ]


def check_places(directory: str | None, outputs: Mapping[str, str | None] | None = None) -> None:
    """Raises ConfigError where outputs would go to a relative path, which means nothing at a site. `outputs`: URLs."""
    places = {"`output_dir`": directory} | {
        f"`url` of output `{name}`": url for name, url in (outputs or {}).items()
    }
    for what, place in places.items():
        if place is not None and not place.startswith("/") and ":" not in place.partition("/")[0]:
            raise ConfigError(
                f"{what} is `{shown(place)}`, a relative path",
                hint="give an absolute path, such as `str(Path(...).absolute())`, or a URL",
            )


def submitted(requests: Sequence[SubmitRequest], send: Callable[[SubmitRequest], SubmitReply]) -> Submission:
    """What the server makes of all pages of a submission."""
    replies = [send(each) for each in requests]
    return Submission(
        campaign=requests[0].campaign,
        owner=replies[0].owner,
        jobs=[job for reply in replies for job in range(reply.first_job, reply.first_job + reply.count)],
        repeated=any(reply.repeated for reply in replies),
        remark=next((reply.remark for reply in replies if reply.remark), ""),
    )


def _owner() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user that has no name
        import os

        return str(os.geteuid())
