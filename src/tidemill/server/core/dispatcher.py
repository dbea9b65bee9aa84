"""The verbs of the server, each one transaction: submit, sync, cancel, retry, drain, ask for a log, lose silent sites.

Each takes who asks, and refuses with ForbiddenError what that one may not do before anything is changed, whichever
way the request came. Without the network: HTTP and messages call the same verbs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from msgspec import UNSET

from tidemill import clock, log
from tidemill.config.hospital import Ward
from tidemill.config.quotas import Quotas
from tidemill.model.campaign import reference
from tidemill.model.identity import LOCAL, Act, Identity, Role, own_name
from tidemill.server.archive.parquet import Archive
from tidemill.server.audit import audit_log
from tidemill.server.constants import SITE_LOST_S
from tidemill.server.core import (
    actions,
    credential_expiry,
    matching,
    rights,
    silent_sites,
    submission,
    sync,
)
from tidemill.server.core.leasing import LeaseRules
from tidemill.server.core.limits import quota
from tidemill.server.core.limits.storage import Storage
from tidemill.server.core.meters import Meters
from tidemill.server.core.parts import events
from tidemill.server.core.server_clock import ServerClock
from tidemill.server.core.silent_sites import SiteWatch
from tidemill.server.core.specifications import changing
from tidemill.server.core.writer import Writer
from tidemill.server.database.rows import StoredJob
from tidemill.server.database.store import Store
from tidemill.server.database.unit_of_work import UnitOfWork
from tidemill.server.errors import ForbiddenError, MissingError, RequestError
from tidemill.server.hospital import downtimes, rounds, ward_stays
from tidemill.server.hospital.nearness import DataMap
from tidemill.server.hospital.readings import NOWHERE, DowntimeReader
from tidemill.server.monitoring.window import SampleWindow
from tidemill.server.notices.addressees import Addressees
from tidemill.wire.api import (
    ActionReply,
    ActionRequest,
    DrainRequest,
    Order,
    Report,
    ResetRequest,
    SharesRequest,
    SubmitReply,
    SubmitRequest,
    SyncReply,
    SyncRequest,
)
from tidemill.wire.views import SAMPLES

HALF_LIFE_S = 7 * 86400.0
"""Half-life of past usage of owners and campaigns in the fair share: what was used a month ago counts a sixteenth."""

MARGIN_S = 600.0
"""A credential that ends less than this after the job is expected to is remarked at submit: outputs are delivered
after a job's last event."""

DATA_WAIT_S = 300.0
"""A job waits this long for a site nearer to its data; then any site that fits may run it: a site that is only busy
has asked for work again by then."""

_LOG = log.Log("server")
_TAGS: dict[type, str] = {
    kind: str(kind.__struct_config__.tag) for kind in (*get_args(Report), *get_args(Order))
}


class DispatchRules(NamedTuple):
    """What the verbs go by: `server.toml`, and constants that tests replace."""

    site_lost_s: float = SITE_LOST_S
    half_life_s: float = HALF_LIFE_S
    margin_s: float = MARGIN_S
    addressees: Addressees = Addressees()
    quotas: Quotas = Quotas()
    archive: Archive = Archive()
    data_wait_s: float = DATA_WAIT_S
    wards: tuple[Ward, ...] = ()
    downtimes: DowntimeReader = NOWHERE
    added: Mapping[str, Any] = MappingProxyType({})  #: tables of extensions, by name


class Dispatcher:
    """Opens the store's writer, and does what the verbs say. `start` it to write in a thread; `close` it."""

    def __init__(
        self, store: Store, rules: DispatchRules | None = None, *, server_clock: ServerClock | None = None
    ) -> None:
        self.rules = rules or DispatchRules()
        self.server_clock = server_clock or ServerClock()
        self.meters = Meters()
        self.site_watch = SiteWatch(self.rules.site_lost_s, self.server_clock.monotonic_s)
        self.node_samples = SampleWindow()
        self._tallies = audit_log.SyncTallies()
        self.writer = Writer(
            store,
            server_clock=self.server_clock,
            meters=self.meters,
            staged=self._tallies,
            wards=self.rules.wards,
        )
        self.storage = Storage(store.path, self.rules.quotas)
        self._lease_rules = LeaseRules(self.rules.half_life_s, self.rules.data_wait_s, DataMap())
        self._rounds = rounds.RoundProgress()

    def start(self) -> None:
        """Write in a thread from now on."""
        self.writer.start()

    def close(self) -> None:
        """End what is queued, then close the writer."""
        self.writer.close()

    def handle_submit(self, request: SubmitRequest | bytes, identity: Identity = LOCAL) -> SubmitReply:
        """Insert jobs, all or none. They belong to the one who asks."""
        decoded = submission.decode(request) if isinstance(request, bytes) else request
        refused = self.rules.addressees.refuse(decoded.notify)
        if refused is not None:
            raise RequestError(refused[0], hint=refused[1])
        limits = submission.SubmitLimits(None, self.storage)
        if not identity.is_local_admin:
            limits = limits._replace(quotas=self.rules.quotas)
            decoded.owner = identity.name  # it is part of what the key stands for
        prepared = submission.prepare(decoded)

        def act(work: UnitOfWork) -> SubmitReply:
            rights.check_submit(identity, decoded)
            reply = submission.submit(
                work,
                prepared,
                half_life_s=self.rules.half_life_s,
                limits=limits,
                own=own_name(identity, Act.SUBMIT),
            )
            reply.remark = credential_expiry.remark(work, identity, decoded, margin_s=self.rules.margin_s)
            if not reply.repeated:
                submission.keep_submitter(work, reply, identity)
                named = reference(reply.owner, reply.campaign)
                audit_log.note(
                    work, identity, Act.SUBMIT, f"campaign {named}", first_job=reply.first_job,
                    jobs=reply.count, events=submission.events_of(decoded), apps=submission.apps_of(decoded),
                )  # fmt: skip
            return reply

        reply = self.writer.write(act)
        if not reply.repeated:
            _LOG.info(
                "jobs.submitted",
                campaign=reply.campaign,
                job=reply.first_job,
                jobs=reply.count,
                by=identity.name,
            )
        self.meters.add("tidemill_server_submits_total")
        self.meters.add("tidemill_server_submitted_jobs_total", 0 if reply.repeated else reply.count)
        return reply

    def handle_sync(self, request: SyncRequest, identity: Identity = LOCAL) -> SyncReply:
        """Take a site's reports; answer with its orders."""
        rights.check(identity, Act.SYNC, site=request.site)
        began_s = clock.monotonic_s()

        def act(work: UnitOfWork) -> SyncReply:
            reply = sync.sync(work, request, rules=self._lease_rules)
            self._tallies.note(work, identity, request)
            return reply

        reply = self.writer.write(act)
        self.site_watch.on_contact(request.site)
        if request.views:
            self.node_samples.add(request.site, SAMPLES.decode(request.views))
        self.meters.observe("tidemill_server_sync_seconds", clock.monotonic_s() - began_s)
        for name, messages in (("reports", request.reports), ("orders", reply.orders)):
            for kind, number in Counter(map(type, messages)).items():
                self.meters.add(f"tidemill_server_{name}_total", number, kind=_TAGS[kind])
        return reply

    def handle_cancel(self, request: ActionRequest, identity: Identity = LOCAL) -> ActionReply:
        """Cancel jobs, or all of a campaign, in several transactions if they are many. Only their owner can say that
        they are not needed: that ends them as COMPLETED."""
        self._check_action(request, identity, Act.CANCEL)
        if request.unneeded and identity.role is not Role.SUBMITTER and not identity.is_local_admin:
            raise ForbiddenError(
                f"{identity.role} `{identity.name}` may not end jobs as COMPLETED: only their owner knows that they "
                "are not needed",
                hint="cancel them without `unneeded`",
            )
        if request.events:
            cancel = partial(events.cancel, request=request, half_life_s=self.rules.half_life_s)
            return events.act_on_events(self.writer, request, cancel, (identity, Act.CANCEL))
        return actions.act_in_pieces(
            self.writer,
            request,
            lambda work, jobs: actions.cancel(work, jobs, request, half_life_s=self.rules.half_life_s),
            states=actions.CANCELABLE,
            by=(identity, Act.CANCEL),
        )

    def handle_retry(self, request: ActionRequest, identity: Identity = LOCAL) -> ActionReply:
        """Let jobs run again that ended without success, with what the request changes in them. A submitter's count as
        submitted under the quotas."""
        self._check_action(request, identity, Act.RETRY)
        counts = identity.role is Role.SUBMITTER and not identity.is_local_admin

        def check(work: UnitOfWork, jobs: list[StoredJob]) -> None:
            if counts:
                quota.check_again(work, identity.name, [job.kind for job in jobs], self.rules.quotas)

        if request.events:
            retry = partial(events.retry, half_life_s=self.rules.half_life_s, check=check)
            return events.act_on_events(self.writer, request, retry, (identity, Act.RETRY))

        def act(work: UnitOfWork, jobs: list[int]) -> int:
            changed = 0
            if request.changes is not None:
                terms = changing.ChangeTerms(request.changes, self.rules.quotas if counts else None)
                changed = changing.change(work, jobs, terms)
                if request.changes.output_dir is not UNSET:
                    actions.deliver_elsewhere(work, jobs)
            again = actions.retry(
                work,
                jobs,
                half_life_s=self.rules.half_life_s,
                check=check,
                alone=len(set(request.jobs)) == 1,
            )
            return max(changed, again)

        return actions.act_in_pieces(
            self.writer,
            request,
            act,
            states=actions.RETRIABLE if request.changes is None else actions.CHANGEABLE,
            by=(identity, Act.RETRY),
        )

    def handle_accept(self, request: ActionRequest, identity: Identity = LOCAL) -> ActionReply:
        """Take what is done of jobs that failed or were canceled for all there is."""
        self._check_action(request, identity, Act.ACCEPT)
        return actions.act_in_pieces(
            self.writer,
            request,
            lambda work, jobs: actions.accept(work, jobs, half_life_s=self.rules.half_life_s),
            states=actions.ACCEPTABLE,
            by=(identity, Act.ACCEPT),
        )

    def handle_discard(self, request: ActionRequest, identity: Identity = LOCAL) -> ActionReply:
        """Have sites delete what they keep of ended jobs and is not delivered."""
        self._check_action(request, identity, Act.DISCARD)
        return actions.act_in_pieces(
            self.writer,
            request,
            lambda work, jobs: actions.discard(work, jobs, half_life_s=self.rules.half_life_s),
            states=actions.ENDED_WITHOUT_SUCCESS,
            by=(identity, Act.DISCARD),
        )

    def _check_action(self, request: ActionRequest, identity: Identity, act: Act) -> None:
        """Raises ForbiddenError or MissingError, ahead of the action and in a transaction of its own: owners never
        change, and what does not exist yet may be another's when it does."""
        if request.changes is not None and act is not Act.RETRY:
            raise RequestError(f"`changes` says what a retry changes, and this is to {act} jobs")
        if request.events:
            if act not in (Act.CANCEL, Act.RETRY):
                raise RequestError(f"`events` are canceled or retried, and this is to {act} jobs")
            if request.changes is not None or request.unneeded:
                raise RequestError(
                    "`events` cannot be combined with `changes` or `unneeded`, which are for whole jobs"
                )
        if identity.is_local_admin:
            return
        jobs = [each for each in request.jobs if 0 < each < actions.NUMBER_MAX]

        def check(work: UnitOfWork) -> None:
            if request.campaign is not None:
                actions.campaign_of(work, request.campaign, (identity, act))
            rights.check_jobs(work.session, identity, act, jobs)
            actions.check_exist(work, jobs)

        self.writer.write(check)

    def handle_drain(self, name: str, request: DrainRequest, identity: Identity = LOCAL) -> ActionReply:
        """Let a site take no more leases, or take them again."""
        rights.check(identity, Act.DRAIN, site=name)

        def act(work: UnitOfWork) -> bool | None:
            changed = actions.drain(work, name, request)
            if changed:
                facts = {"drain": request.drain, "reason": request.reason}
                audit_log.note(work, identity, Act.DRAIN, f"site {name}", **facts)
            return changed

        changed = self.writer.write(act)
        if changed is None:
            raise MissingError(f"there is no site `{name}`")
        return ActionReply(changed=int(changed), unchanged=int(not changed))

    def handle_reset(self, name: str, request: ResetRequest, identity: Identity = LOCAL) -> ActionReply:
        """Let the next agent that speaks for a site serve it, whatever its epoch is."""
        rights.check(identity, Act.RESET, site=name)

        def act(work: UnitOfWork) -> int | None:
            leases = actions.reset_epoch(work, name, half_life_s=self.rules.half_life_s)
            if leases is not None:
                audit_log.note(
                    work, identity, Act.RESET, f"site {name}", leases=leases, reason=request.reason
                )
            return leases

        leases = self.writer.write(act)
        if leases is None:
            raise MissingError(f"there is no site `{name}`")
        _LOG.warning("site.reset", site=name, by=identity.name, leases=leases)
        return ActionReply(changed=1, unchanged=0)

    def handle_shares(self, request: SharesRequest, identity: Identity = LOCAL) -> ActionReply:
        """Give an owner a weight in the fair share."""
        rights.check(identity, Act.SHARES)
        if not 0 < request.shares <= submission.SHARES_MAX:
            raise RequestError(
                f"`shares` is {request.shares}, legal is more than 0 and at most {submission.SHARES_MAX:.0f}"
            )

        def act(work: UnitOfWork) -> bool | None:
            changed = actions.set_shares(work, request.owner, request.shares)
            if changed:
                on, facts = f"owner {request.owner}", {"shares": request.shares, "reason": request.reason}
                audit_log.note(work, identity, Act.SHARES, on, **facts)
            return changed

        changed = self.writer.write(act)
        if changed is None:
            raise MissingError(
                f"`{request.owner[:100]}` has no campaigns",
                hint="an owner is known from the first submission on: `tidemill owner list`",
            )
        return ActionReply(changed=int(changed), unchanged=int(not changed))

    def ask_log(self, job: int, event: int | None, identity: Identity = LOCAL) -> int | None:
        """Ask the site for a payload's output; number of the request."""

        def act(work: UnitOfWork) -> int | None:
            rights.check_jobs(work.session, identity, Act.LOG, [job])
            asked = actions.ask_log(work, job, event)
            if asked is None or asked[1]:
                audit_log.note(work, identity, Act.LOG, f"job {job}", event=event)
            return None if asked is None else asked[0]

        return self.writer.write(act)

    def check_sites(self) -> list[str]:
        """Names of the sites that have now been silent for too long: they lose their leases."""
        if not self.writer.is_active:
            return []
        memory = self.writer.memory
        if memory.is_loaded and not self.site_watch.overdue(list(memory.sites.values())):
            return []

        def act(work: UnitOfWork) -> list[str]:
            silent = self.site_watch.overdue(work.memory.sites.values())
            return silent_sites.lose_all(work, silent, half_life_s=self.rules.half_life_s)

        return self.writer.write(act)

    def read_downtimes(self) -> None:
        """Read the sources of downtimes again, and keep each as it comes; may take as long as the slowest of them."""
        if not self.writer.is_active:
            return
        reader = self.rules.downtimes
        self.writer.write(lambda work: downtimes.forget_others(work, reader))
        for reading in reader.read(self.server_clock.now_us()):
            self.writer.write(partial(downtimes.store, reading=reading))

    def note_revoked(self) -> bool:
        """Keep in the database that the list of what is revoked has had entries; whether it is kept."""
        if not self.writer.is_active:
            return False
        self.writer.write(lambda work: work.session.run("note_revoked"))
        return True

    def check_downtimes(self) -> list[str]:
        """Note which sites are down now by the calendar; the sites for which that changed."""
        is_quiet = not self.rules.downtimes.sources and not any(
            site.down_us for site in list(self.writer.memory.sites.values())
        )
        if not self.writer.is_active or (is_quiet and self.writer.memory.is_loaded):
            return []

        def act(work: UnitOfWork) -> list[str]:
            down = downtimes.down_now(work.session, self.rules.downtimes, now_us=work.now_us)
            return rounds.call_times(work, down)

        return self.writer.write(act)

    def check_hospital(self) -> rounds.RoundResult:
        """Make a round: admit jobs to wards, and send jobs home. Bounded; with `more`, it is to be called again."""
        memory = self.writer.memory
        nothing = rounds.RoundResult(0, 0, False)
        if not self.writer.is_active or not (self.rules.wards or memory.occupied):
            return nothing
        for _ in range(2):  # numbers are used once they are durable
            if len(self.writer.memory.wards) < len(self.rules.wards):
                self.writer.write(ward_stays.number_wards)
        silent = self.site_watch.silent([site.name for site in list(memory.sites.values())])
        world = rounds.RoundWorld(silent, matching.fits)

        def act(work: UnitOfWork) -> rounds.RoundResult:
            moved = rounds.step(work, self._rounds, world)
            work.flush()
            return moved

        moved = self.writer.write(act)
        if moved.admitted or moved.sent_home:
            _LOG.info("hospital.round", admitted=moved.admitted, sent_home=moved.sent_home)
        return moved
