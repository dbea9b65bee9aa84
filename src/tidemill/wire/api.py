"""Clients and sites <-> server. The HTTP API (version 1) and any other transport carry these very messages as JSON.

`sync` is the whole site protocol. Both directions are numbered logs. The site sends the reports that the server has
not acknowledged, and `have`, the highest number of the server's orders that are durable at the site; the server
answers with `acked`, the highest report number that is committed, and the orders after `have`. Any message may be
repeated or lost.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.model.application import Parameter
from tidemill.model.campaign import reference, reference_or_name
from tidemill.model.failure import Evidence
from tidemill.model.job import JobSpec
from tidemill.model.notification import Subscription
from tidemill.model.retry.changes import JobChanges
from tidemill.model.trouble import RefusedApplication
from tidemill.wire.activity import ActivityReport, RanReport
from tidemill.wire.activity import PayloadTime as PayloadTime
from tidemill.wire.activity import TimesPage as TimesPage
from tidemill.wire.activity import TimesReport as TimesReport
from tidemill.wire.capacity import HOLDS_MAX as HOLDS_MAX
from tidemill.wire.capacity import NEAR_MAX as NEAR_MAX
from tidemill.wire.capacity import UNSTARTED_CHARACTERS_MAX as UNSTARTED_CHARACTERS_MAX
from tidemill.wire.capacity import Capacity as Capacity
from tidemill.wire.far import CacheView, RouteView
from tidemill.wire.hospital import Cure, StayRow
from tidemill.wire.monitoring import (
    SiteSums,
)
from tidemill.wire.protocol import PROTOCOL

# ---- limits: also in the OpenAPI document --------------------------------------------------------------------------

SUBMIT_JOBS_MAX = 10_000
PAGE_MAX = 1_000
REQUEST_BYTES_MAX = 32 * 1024 * 1024
REPORTS_MAX = 20_000
ORDERS_MAX = 20_000
ORDER_NUMBER_MAX = 1 << 62  #: no order has this number or a higher one
ORDER_JUMP_MAX = 10_000_000
"""An order's number exceeds `have` by less than this. Gaps come from void orders, so they are small; and a server that
inflates the numbers would need thousands of years to leave none for its successor."""

EPOCH_JUMP_MAX = 1_000_000
"""A site's epoch exceeds the last one by at most this: an agent that starts every minute gets there in two years."""

SPEC_BYTES_MAX = 8_000_000  #: of one job, as JSON: 1,000 inputs with URLs of 4,096 characters, twice
ORDERS_BYTES_MAX = 16_000_000  #: of the orders of one sync, besides the last one's
ARRIVED_TEXT_MAX = 100_000
"""Characters of the list of events whose files have arrived while their job goes on; a longer one is left out."""


# ---- clients --------------------------------------------------------------------------------------------------------


class SubmitRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All jobs or none. The same `key` with the same content again answers as the first time; with other it is refused.

    `jobs` may repeat one spec: `repeat` lists of the same length as `jobs`, None = each once.
    """

    key: str
    campaign: str
    jobs: list[JobSpec]
    repeat: list[int] | None = None
    owner: str = ""
    shares: float | None = None  #: weight of the campaign in the fair share, on creation 1.0
    notify: list[Subscription] = []  #: subscriptions to add to those of the campaign
    #: the campaign must be new: the server refuses the submission if it exists; none = its jobs are added to it
    new: bool | msgspec.UnsetType = msgspec.UNSET


class SubmitReply(msgspec.Struct, kw_only=True):
    """Ids are consecutive: `first_job .. first_job + count - 1`, in the order of the request."""

    campaign: str
    first_job: int
    count: int
    repeated: bool
    owner: str = ""  #: of the campaign: `OWNER/NAME` names it where other owners' campaigns are seen, too
    remark: str = ""  #: what the submitter should know, such as a credential that ends too early


class PayloadUsage(msgspec.Struct, kw_only=True):
    """Sums over payloads."""

    payloads: int = 0
    wall_us: int = 0
    setup_us: int = 0
    user_us: int = 0
    system_us: int = 0
    rss_kb: int = 0  #: maximum
    read_bytes: int = 0
    write_bytes: int = 0


class JobRow(msgspec.Struct, kw_only=True):
    """A job in a listing. Times: microseconds since 1970 UTC."""

    id: int
    campaign: str
    name: str
    app: str
    state: str
    site: str | None
    events: int
    events_done: int
    events_failed: int
    events_leased: int
    priority: int
    created_us: int
    started_us: int | None
    ended_us: int | None
    reason: str
    owner: str = ""  #: of the campaign; empty = not known
    ends: str = (
        ""  #: the state that it gets once what is done of it is delivered; empty = it goes on, or has ended
    )
    events_canceled: int = 0  #: that its owner has canceled
    #: of a RUNNING job that does not run: `ASSIGNED` (sites have it, and no payload of it runs) or `WAITING` (nothing
    #: of it is leased now); empty = as `state` says
    phase: str = ""

    @property
    def shown_state(self) -> str:
        """The state for people."""
        return self.phase or self.state

    @property
    def campaign_reference(self) -> str:
        """The job's campaign as `OWNER/NAME`, or as `NAME` if the server does not name the owner."""
        return reference_or_name(self.owner, self.campaign)


class JobPage(msgspec.Struct, kw_only=True):
    """`next`: pass as `before` for the following page; None on the last. Newest first.

    With `jobs` and `ended_after`, the page is complete up to the number `reached` of the feed: pass it as `ended_after`
    to get the jobs that end later. None: the feed no longer holds what happened since; ask for the jobs by number. With
    `ended_after`, `next` is `reached` if there are more pages, else None.
    """

    jobs: list[JobRow]
    next: int | None
    reached: int | None = None


class FailureRow(msgspec.Struct, kw_only=True):
    """One failure of a job; `event` None = not one event's. `final`: the event is in the failed set."""

    job: int
    event: int | None
    seed: int | None
    site: str
    final: bool
    evidence: Evidence


class OutputRow(msgspec.Struct, kw_only=True):
    """One delivered file of a job; or a directory of files, whose URL ends with `/`: `sha256` is then that of the lines
    `SHA256  NAME` of its files in event order, and the manifest in the directory lists them. A directory without
    `sha256` has the files that have arrived so far, while the job runs."""

    name: str
    url: str
    size_bytes: int
    sha256: str
    events: str = ""  #: whose outputs are in it, as interval text; empty = not known


class Attempt(msgspec.Struct, kw_only=True):
    """A lease of a job, for its life line."""

    lease: int
    site: str
    state: str
    first: int
    count: int
    leased_us: int
    ended_us: int | None
    reason: str


AT_WORK = "running"
"""`waits_for` of a job of which nothing waits."""


class JobDetail(msgspec.Struct, kw_only=True):
    """Everything about one job. `failed`, `done`: interval texts (`0-9,12`). `waits_for`: the one binding cause."""

    row: JobRow
    spec: JobSpec
    seed_base: int
    done: str
    failed: str
    usage: PayloadUsage
    attempts: list[Attempt]
    failures: list[FailureRow]
    outputs: list[OutputRow]
    waits_for: str | None
    waits_hint: str | None
    canceled: str = ""  #: as `done`: what its owner has canceled
    leased: str = ""  #: as `done`: what sites have now
    remark: str = ""  #: the warning at its submission, such as of a credential that ends too early
    archived: bool = False  #: it is in the archive: it cannot be retried
    kept: KeptOutputs | None = None  #: outputs that are not delivered; None = there are none
    routes: list[RouteView] = []  #: by which ways its payloads read what they open, as its sites said last
    stays: list[StayRow] = []  #: in wards of the hospital, in their order


class KeptOutputs(msgspec.Struct, kw_only=True):
    """Outputs of done events that are not delivered. `events`: interval text; `sent`: those of them of which only the
    merge steps are missing; `under_way`: they are being delivered."""

    job: int
    site: str
    events: str
    sent: str = ""
    under_way: bool = False


class CampaignRow(msgspec.Struct, kw_only=True):
    """A campaign; `states`: number of jobs by state."""

    name: str
    owner: str
    shares: float
    created_us: int
    jobs: int
    states: dict[str, int]
    events: int
    events_done: int
    events_failed: int
    usage: PayloadUsage
    failures: dict[str, int]  #: by class
    first_started_us: int | None
    last_ended_us: int | None
    archived: bool = False  #: it is in the archive: nothing of it changes any more
    events_canceled: int = 0
    phase: str = ""  #: as `JobRow.phase`, where it holds for all its RUNNING jobs

    @property
    def reference(self) -> str:
        """The campaign as `OWNER/NAME`."""
        return reference(self.owner, self.name)


class Change(msgspec.Struct, kw_only=True):
    """One line of the feed of state changes (`GET /v1/changes`, server-sent events). Numbers ascend, with gaps."""

    number: int
    at_us: int
    campaign: str
    job: int
    state: str
    events_done: int
    events_failed: int
    owner: str = ""  #: of the campaign; empty also in what servers wrote that did not note it
    progress: bool = False  #: only the numbers of events have changed; the state is what it was
    ward: str = ""  #: of the hospital, in which the job is or was treated last; empty = in none
    events_canceled: int = 0


class FailurePage(msgspec.Struct, kw_only=True):
    """Newest first; `next`: pass as `before` for the following page; None on the last."""

    failures: list[FailureRow]
    next: int | None


class JobOutput(msgspec.Struct, kw_only=True):
    """A delivered file and the job that it is of."""

    job: int
    output: OutputRow


class OutputPage(msgspec.Struct, kw_only=True):
    """Newest jobs first; `next`: pass as `before` (a job id) for the following page; None on the last. `kept`: what is
    not delivered, on the first page only, of the newest jobs."""

    outputs: list[JobOutput]
    next: int | None
    kept: list[KeptOutputs] = []


class Counts(msgspec.Struct, kw_only=True):
    """Jobs by state and sums over all campaigns."""

    jobs: int
    states: dict[str, int]
    events: int
    events_done: int
    events_failed: int
    campaigns: int
    events_canceled: int = 0


class JobLog(msgspec.Struct, kw_only=True):
    """Answer of `GET /v1/jobs/{id}/log`. `pending`: the site has not answered in time; ask again."""

    job: int
    event: int | None
    found: bool
    pending: bool
    stdout: str
    stderr: str


class SiteApplication(msgspec.Struct, kw_only=True):
    """An application and the site that offers it."""

    site: str
    app: AppOffer


class AllocationRow(msgspec.Struct, kw_only=True):
    """An allocation as its site last reported it."""

    site: str
    name: str
    batch_id: str
    state: str
    nodes: int
    cores: int
    at_us: int
    reason: str
    busy_us: int
    slot_us: int


class AuditRow(msgspec.Struct, kw_only=True):
    """A job's part in an allocation. `subject`, `credential`: as the submitter's credential names him, and its serial
    number; `events`: interval text of what pilots recorded there; `step`: a merge step of the job instead of events;
    `digest`: of the application as the site had approved it then. `job` None: nothing ran there. `archived`: the job is
    in the archive; without a campaign, it was not read from there."""

    site: str
    allocation: str
    batch_id: str
    nodes: list[str]
    started_us: int
    ended_us: int | None
    job: int | None = None
    events: str = ""
    step: int | None = None
    campaign: str = ""
    owner: str = ""
    subject: str = ""
    credential: str = ""
    app: str = ""
    version: str = ""
    digest: str = ""
    archived: bool = False


class Problem(msgspec.Struct, kw_only=True):
    """Something that is wrong with the server: its name, and in words what it is and what to do."""

    name: str
    text: str
    hint: str


class Health(msgspec.Struct, kw_only=True):
    """Answer of `GET /v1/health`, the only route that needs no secret. `/health` is the same, with 503 if it fails."""

    status: str  #: `ok`; `degraded`, it works in spite of its problems; `full` or `failing`, it does not
    version: str
    database: str  #: `sqlite` or `postgresql`
    now_us: int
    role: str = "active"  #: `standby`: of a pair, answers reads only
    problems: list[Problem] = []


class ActionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Cancel or retry these jobs, or all of a campaign: `NAME`, or `OWNER/NAME`."""

    jobs: list[int] = []
    campaign: str | None = None
    reason: str = ""
    key: str = ""  #: if given, the request counts once, however often it comes within a month
    unneeded: bool = False  #: of a cancellation: jobs of which no event has ended become COMPLETED
    #: only these events, of one job, as interval text such as `100-199,205`; the reply counts events then. A retry lets
    #: those run again that failed or were canceled
    events: str = ""
    #: of a retry: changes for all that runs from now on, also in jobs that wait or run; none = no changes
    changes: JobChanges | None = None


class DrainRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Let a site take no more work (`drain`), or take work again."""

    drain: bool
    reason: str = ""


class ResetRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Forget which agent has served a site, and take back what it was given: the next agent to speak serves it."""

    reason: str = ""


class SharesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Set the weight of an owner of campaigns in the fair share between owners; the default is 1.0."""

    owner: str
    shares: float
    reason: str = ""


class OwnerRow(msgspec.Struct, kw_only=True):
    """An owner's account in the fair share. `used_core_s` decays; who has had the least per share goes first."""

    owner: str
    shares: float
    used_core_s: float
    at_us: int  #: when that was reckoned
    stored_bytes: int = 0  #: what its jobs in the database count for under the quotas


class ActionReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`changed`: how many jobs (or sites, or events with `events`) the action applied to; the others were in no state
    for it."""

    changed: int
    unchanged: int
    gone: int = 0  #: of the unchanged, jobs whose specifications were removed; 0 if `repeated`
    repeated: bool = False  #: this was done before, under this key; nothing changed now


class ErrorReply(msgspec.Struct, kw_only=True):
    """Body of every 4xx and 5xx answer."""

    error: str
    hint: str | None = None
    #: true = the server is the standby of a pair and changed nothing: ask its other address; otherwise left out
    standby: bool | msgspec.UnsetType = msgspec.UNSET


# ---- sites ----------------------------------------------------------------------------------------------------------


class StartCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one start of an application asks of file systems on average, from traced payloads."""

    runs: int  #: traced payloads
    ops: int  #: metadata operations
    failed: int  #: of them
    files: int  #: different files of all runs
    areas: dict[str, int] = {}  #: operations per area for which the site has a budget
    bytes: dict[str, int] = {}  #: bytes that it reads there at most; empty = the tracer did not report them
    opens: int = 0  #: files opened
    opens_failed: int = 0
    closes: int | None = None  #: None = they were not counted: `close` asks no server


class AppOffer(msgspec.Struct, kw_only=True):
    """An application approved at a site, as the server and users need to know it."""

    name: str
    version: str
    digest: str
    mode: str
    parameters: dict[str, Parameter]
    outputs: list[str]
    cores: int
    memory_mb: int
    event_s: float
    help: str = ""
    nodes_max: int = 1  #: nodes that a payload may span
    ranks_max: int = 0  #: ranks that a payload may have; 0 = no launcher starts it
    images: list[str] = []  #: `NAME@sha256:...` of those that its payloads see
    start: StartCost | None = None  #: None = nothing was traced yet
    container: str = ""  #: `RUNTIME: IMAGE` that its payloads run in
    setup: list[str] = []  #: shell lines whose environment they get
    #: names of the inputs that jobs may give, with `*` for any characters; None = they are not known
    inputs: list[str] | None = None


class DoneReport(msgspec.Struct, kw_only=True, tag_field="t", tag="done"):
    """Events of a lease are kept. `outputs`: the site keeps output files for them; no other result may replace them."""

    n: int
    lease: int
    job: int
    first: int
    count: int
    outputs: bool
    usage: PayloadUsage


class FailureReport(msgspec.Struct, kw_only=True, tag_field="t", tag="failure"):
    """A failure. `final`: these events have used up their retries and enter the failed set."""

    n: int
    lease: int
    job: int
    first: int
    count: int
    event: int | None
    final: bool
    evidence: Evidence


class ReleaseReport(msgspec.Struct, kw_only=True, tag_field="t", tag="release"):
    """The site will not run these events; the server leases them again. `evidence` None = no fault of the job."""

    n: int
    lease: int
    job: int
    first: int
    count: int
    reason: str
    evidence: Evidence | None


class DeliveredReport(msgspec.Struct, kw_only=True, tag_field="t", tag="delivered"):
    """All outputs of a job are at their URLs. Sent after an order `Deliver`."""

    n: int
    job: int
    outputs: list[OutputRow]
    evidence: Evidence | None  #: not None: delivery failed for good
    done: str = ""  #: whose outputs were delivered, as interval text; empty = all that the order named
    held: bool = False  #: merge steps were not run: the site keeps the parts
    lost: str = ""  #: with `evidence`: events of which the site keeps nothing any more, as interval text


class AllocationReport(msgspec.Struct, kw_only=True, tag_field="t", tag="allocation"):
    """State of an allocation."""

    n: int
    name: str
    batch_id: str
    state: str
    nodes: int
    cores: int
    at_us: int
    reason: str
    busy_us: int
    slot_us: int
    hosts: list[str] = []  #: names of its nodes, once they are known
    started_us: int = 0
    ended_us: int = 0
    held_cores: int = 0  #: of all its nodes, as the batch system counts them; 0 = not known
    held_gpus: int = 0


class LogReport(msgspec.Struct, kw_only=True, tag_field="t", tag="log"):
    """Answer to an order `FetchLog`."""

    n: int
    request: int
    found: bool
    stdout: str
    stderr: str


class ArrivedReport(msgspec.Struct, kw_only=True, tag_field="t", tag="arrived"):
    """What stands of a job's outputs while it goes on: all so far, as directories of files without `sha256`."""

    n: int
    job: int
    outputs: list[OutputRow]


Report = (
    DoneReport | FailureReport | ReleaseReport | DeliveredReport | ArrivedReport | AllocationReport | RanReport
    | TimesReport | ActivityReport | LogReport
)  # fmt: skip


class LeaseOrder(msgspec.Struct, kw_only=True, tag_field="t", tag="lease"):
    """Run these events. `spec` is None if this reply or an earlier one has already sent that of the job."""

    n: int
    lease: int
    job: int
    first: int
    count: int
    campaign: str
    seed_base: int
    spec: JobSpec | None
    owner: str = ""  #: the submitter, for the site's staff and its own list of whom it denies
    #: inputs of `spec` that were `job:ID/OUTPUT`, which the server has replaced: name -> job
    from_jobs: dict[str, int] = {}
    cure: Cure | None = None  #: the job is treated away from home; None = it is not


class CancelOrder(msgspec.Struct, kw_only=True, tag_field="t", tag="cancel"):
    """Stop a job: drop its leases, payloads and undelivered outputs. `keep`: what is done stays, and the rest is given
    back."""

    n: int
    job: int
    reason: str
    keep: bool = False


class CancelEventsOrder(msgspec.Struct, kw_only=True, tag_field="t", tag="cancel_events"):
    """Stop these events of a job (interval text) and report nothing of them: their owner has canceled them."""

    n: int
    job: int
    events: str


class DiscardOrder(msgspec.Struct, kw_only=True, tag_field="t", tag="discard"):
    """Another result won for these events: delete the outputs of this site's."""

    n: int
    job: int
    first: int
    count: int


class DeliverOrder(msgspec.Struct, kw_only=True, tag_field="t", tag="deliver"):
    """Join and deliver the outputs of `done` (interval text), then report. `fresh`: those of which nothing has been
    delivered yet, None = all; the others are for merge steps. `merge`: run those. `delivery`: 1 = the first."""

    n: int
    job: int
    done: str
    fresh: str | None = None
    merge: bool = True
    delivery: int = 1
    #: where the outputs go if a retry has changed that; None = as the job's specification says
    output_dir: str | None = None


class ForgetOrder(msgspec.Struct, kw_only=True, tag_field="t", tag="forget"):
    """The job has ended: its files at the site may be cleaned."""

    n: int
    job: int


class FetchLogOrder(msgspec.Struct, kw_only=True, tag_field="t", tag="fetch_log"):
    """Send stdout and stderr of the payload that ran this event (None = the latest of the job)."""

    n: int
    request: int
    job: int
    event: int | None


class DrainOrder(msgspec.Struct, kw_only=True, tag_field="t", tag="drain"):
    """Stop taking leases (`drain` is true), or take them again."""

    n: int
    drain: bool
    reason: str


Order = (
    LeaseOrder
    | CancelOrder
    | CancelEventsOrder
    | DiscardOrder
    | DeliverOrder
    | ForgetOrder
    | FetchLogOrder
    | DrainOrder
)


class SyncRequest(msgspec.Struct, kw_only=True):
    """What happened since, and what the site could take."""

    site: str
    epoch: int
    host: str
    version: str
    reports: list[Report]
    have: int
    offers: list[AppOffer] | None  #: None = unchanged since the last sync of this epoch
    capacity: Capacity
    allocations: dict[str, int] = {}  #: number by state, for the site's page
    views: dict[
        str, msgspec.Raw
    ] = {}  #: for people, see `wire/views`; empty = unchanged since the last that were sent
    protocol: int = PROTOCOL


class SyncReply(msgspec.Struct, kw_only=True):
    """`acked`: reports up to this number are committed. `more`: the site should sync again at once."""

    acked: int
    orders: list[Order]
    more: bool
    now_us: int
    protocol: int = PROTOCOL


class SiteRow(msgspec.Struct, kw_only=True):
    """A site as the server sees it."""

    name: str
    state: str  #: `UP`, `SILENT`, `LOST`, `DOWN` (in a downtime), `DRAINED`
    epoch: int
    host: str
    version: str
    seen_us: int
    capacity: dict[str, Any]
    allocations: dict[str, int]
    applications: list[str]
    leased_events: int
    remarks: list[str] = []  #: what its staff should mend in its files
    caches: list[CacheView] = []  #: without their datasets
    sums: SiteSums | None = None  #: as the site reported them last
    refused: list[RefusedApplication] = []  #: applications that the site does not run now
