"""A site's own troubles keep jobs waiting there, and no job is refused for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from tests.unit.site.applications.test_site_applications import preparer
from tests.unit.site.state.test_site_log import open_log
from tests.unit.transfer.http_origin import answer, origin
from tests.worlds.home.troubles import write_proxy

from tidemill.config.site import SiteConfig
from tidemill.config.transfer import Endpoint
from tidemill.errors import ConfigError, JobError, SiteError, TidemillError, UnfitError
from tidemill.model.failure import Evidence, FailureClass, FaultKind, is_jobs_own
from tidemill.model.job import Input, JobSpec
from tidemill.model.trouble import Scope, Trouble, place_of
from tidemill.site.applications.launching import Launching
from tidemill.site.data.moves import LocalMoves
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.data.staging import Stage
from tidemill.site.fleet.breakers import Failing
from tidemill.site.fleet.fleets import Fleets
from tidemill.site.fleet.granting import Granting
from tidemill.site.fleet.troubles import NAME, SiteTroubles, TroublesRecord, judge, read_troubles
from tidemill.site.fleet.workload import Workload
from tidemill.site.state import site_state
from tidemill.transfer.contract import TransferError
from tidemill.transfer.file import Roots
from tidemill.transfer.patience import MovePatience
from tidemill.wire.api import LeaseOrder, Order, ReleaseReport
from tidemill.wire.node import Failed

pytestmark = pytest.mark.timing(transfer={"TRIES_MAX": 1, "PAUSE_S": 0.01})

HOST = "https://dav.example.org"


class Agent:
    """What of an agent brings jobs from backlog to grants."""

    def __init__(self, home: Path, *endpoints: Endpoint, **more: object) -> None:
        fields = {
            "name": "here",
            "server": "unix:/x",
            "endpoints": list(endpoints),
            "transfer": ONE_TRY,
            **more,
        }
        self.config = SiteConfig(**fields)  # type: ignore[arg-type]
        self.home = home
        apps = home / "apps"
        apps.mkdir(exist_ok=True)
        program = home / "prog"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        (apps / "sim.toml").write_text(f'name = "sim"\nexecutable = "{program}"\ninputs = ["in"]\n')
        self.log = open_log(home / "log", 1)
        self.fleets = Fleets(home / "fleets", self.config, binary=home / "tidemill-node")
        self.log.apply(site_state.FleetOpened(fleet="f1", at_us=1))
        self.fleet = self.fleets.create(self.log.pool.state.fleets["f1"])
        self.executor = ThreadPoolExecutor(1)
        self.moves = LocalMoves(self.config)
        places = OwnedPlaces(Roots([home / "data"]))
        self.stage = Stage(home / "stage", self.config, places, self.moves)
        self.preparer = preparer(apps)
        self.granting = Granting(self.log, self.preparer, self.stage, self.fleets, self.executor)
        self.orders = 0

    def lease(self, *specs: JobSpec) -> list[int]:
        orders: list[Order] = []
        for spec in specs:
            self.orders += 1
            orders.append(
                LeaseOrder(n=self.orders, lease=self.orders, job=self.orders, first=0, count=spec.events,
                           campaign="c", seed_base=0, spec=spec)
            )  # fmt: skip
        self.log.apply(site_state.Replied(acked=0, orders=orders, at_us=0))
        return [order.job for order in orders if isinstance(order, LeaseOrder)]

    def tick(self) -> None:
        self.granting.tend()
        self.granting.inputs.tend()
        self.granting.plan(self.fleet, Launching())
        time.sleep(0.005)

    def granted(self) -> list[int]:
        return [job.id for job in self.log.pool.state.jobs.values() if job.grants]

    @property
    def refused(self) -> list[Evidence]:
        reports = self.log.pool.state.reports
        return [each.evidence for each in reports if isinstance(each, ReleaseReport) and each.evidence]

    def until(self, true: Callable[[], object]) -> None:
        until = time.monotonic() + 60
        while not true():
            assert time.monotonic() < until, (self.granted(), self.refused, self.granting.troubles.shown())
            self.tick()

    def until_refused(self) -> Evidence:
        """The evidence with which the only job goes back."""
        self.until(lambda: self.refused)
        (evidence,) = self.refused
        return evidence

    def until_waiting(self, jobs: list[int]) -> Trouble:
        """The only trouble, once these jobs wait for it."""
        self.until(lambda: [sorted(each.examples) for each in self.granting.troubles.shown()] == [jobs])
        (shown,) = self.granting.troubles.shown()
        return shown

    def close(self) -> None:
        self.moves.close()
        self.executor.shutdown()
        self.log.close()


ONE_TRY = MovePatience()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path


def remote(number: int, host: str = HOST) -> JobSpec:
    return JobSpec(app="sim", inputs=[Input(name="in", url=f"{host}/{number}")])


# ---- an expired proxy ----------------------------------------------------------------------------------------------


def test_jobs_of_a_site_whose_proxy_expired_wait_and_the_breaker_tells_the_server(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pem = write_proxy(home / "proxy.pem", ends=datetime(2026, 1, 1, tzinfo=UTC))
    agent = Agent(home, Endpoint(url=HOST + "/", certificate=pem))
    jobs = agent.lease(*map(remote, range(6)))
    shown = agent.until_waiting(jobs)
    assert (agent.refused, agent.granted()) == ([], [])
    assert (shown.failure, shown.scope, shown.name) == ("credential", Scope.INPUT, HOST)
    assert (shown.is_open, shown.jobs) == (True, 6)
    assert f"our certificate `{pem}` expired at 2026-01-01T00:00:00Z" in shown.message
    assert f"renew `{pem}`" in shown.hint
    more = agent.lease(*map(remote, range(10, 15)))
    agent.until_waiting(jobs + more)
    tried = {
        each.__dict__["tidemill_fields"]["url"] for each in caplog.records if each.message == "move.failed"
    }
    assert tried == {f"{HOST}/{number}" for number in range(6)}, "what comes is not tried"
    assert agent.granting.troubles.load == {("sim", 0, None): 11}, "they need no nodes"
    agent.close()
    kept = read_troubles(home)
    assert [each.name for each in kept.breakers] == [HOST]
    again = SiteTroubles(agent.log, home, agent.config)
    assert [each.is_open for each in again.shown()] == [True]


def test_work_that_waits_asks_for_no_nodes(home: Path) -> None:
    pem = write_proxy(home / "proxy.pem", ends=datetime(2026, 1, 1, tzinfo=UTC))
    agent = Agent(home, Endpoint(url=HOST + "/", certificate=pem))
    workload = Workload(agent.log, agent.preparer._applications, agent.granting.troubles.load)
    agent.lease(*map(remote, range(5)))
    assert workload.demand(cores=1, more=False).events == 5
    agent.until(lambda: workload.demand(cores=1, more=False).events == 0)
    agent.close()


def test_a_renewed_proxy_lets_them_run_by_themselves(home: Path) -> None:
    """The server is not there: what is asked of it after the renewal is another trouble, of its own."""
    pem = write_proxy(home / "proxy.pem", ends=datetime(2026, 1, 1, tzinfo=UTC))
    agent = Agent(home, Endpoint(url="https://127.0.0.1:9/", certificate=pem))
    jobs = agent.lease(*(remote(n, "https://127.0.0.1:9") for n in range(5)))
    shown = agent.until_waiting(jobs)
    assert (shown.failure, shown.is_open) == ("credential", True)
    write_proxy(pem, ends=datetime.now(UTC) + timedelta(days=1))
    agent.until(lambda: "stage_in" in {each.failure for each in agent.granting.troubles.shown()})
    assert agent.refused == []
    agent.close()


# ---- a full stage area ---------------------------------------------------------------------------------------------


def test_a_full_stage_area_makes_jobs_wait_until_there_is_space(home: Path) -> None:
    for name in "abc":
        (home / "data" / name).write_bytes(name.encode() * 1000)
    agent = Agent(home, stage_bytes_max=1500)
    specs = [JobSpec(app="sim", inputs=[Input(name="in", url=str(home / "data" / name))]) for name in "abc"]
    jobs = agent.lease(*specs)
    agent.until(lambda: agent.granted() and all(map(agent.granting.inputs.waits_for, jobs[1:])))
    assert (agent.refused, agent.granted()) == ([], jobs[:1])
    for granted in (2, 3):
        for job in agent.granted():
            agent.stage.clean(job)
        agent.until(lambda granted=granted: len(agent.granted()) >= granted)  # type: ignore[misc]
    assert agent.refused == []
    agent.close()


# ---- what is the job's own, and what only does not fit ---------------------------------------------------------------


def test_an_input_that_is_not_there_sends_the_job_back_at_once_as_its_own_fault(home: Path) -> None:
    agent = Agent(home)
    agent.lease(JobSpec(app="sim", inputs=[Input(name="in", url=str(home / "data" / "none"))]))
    evidence = agent.until_refused()
    assert (evidence.failure, is_jobs_own(evidence)) == (FailureClass.STAGE_IN, True)
    agent.close()


def test_a_host_that_the_site_does_not_read_from_is_the_sites_refusal(home: Path) -> None:
    agent = Agent(home)
    agent.lease(remote(1))
    evidence = agent.until_refused()
    assert (evidence.failure, evidence.fault) == (FailureClass.STAGE_IN, FaultKind.SITE)
    assert not is_jobs_own(evidence)
    agent.close()


@pytest.mark.timing(site={"WAIT_MAX_S": 0})
def test_after_the_longest_wait_jobs_go_back_without_blame(home: Path) -> None:
    pem = write_proxy(home / "proxy.pem", ends=datetime(2026, 1, 1, tzinfo=UTC))
    agent = Agent(home, Endpoint(url=HOST + "/", certificate=pem))
    agent.lease(remote(1))
    evidence = agent.until_refused()
    assert evidence.failure is FailureClass.CREDENTIAL
    assert not is_jobs_own(evidence)
    agent.close()


JOB = site_state.SiteJob(
    id=1, campaign="c", seed_base=0, spec=remote(1), open=msgspec.UNSET, done=msgspec.UNSET,  # type: ignore[arg-type]
)  # fmt: skip


@pytest.mark.parametrize(
    ("error", "staging", "fault", "scope"),
    [
        (JobError("no parameter `x`"), False, FaultKind.APPLICATION, None),
        (UnfitError("this site runs no jobs of ada"), False, FaultKind.SITE, None),
        (ConfigError("site.toml: ..."), False, FaultKind.SITE, None),
        (SiteError("failed to read `/sw/prog`: Stale file handle"), False, FaultKind.SITE, (Scope.APP, "sim")),
        (SiteError("`/x` lies outside this site's data roots", transient=False), False, FaultKind.APPLICATION, None),
        (SiteError("failed to stage inputs of job 1 in `/s/1`: No space left on device"), True, FaultKind.SITE,
         (Scope.INPUTS, "")),
        (SiteError("failed to copy `/data/x/y` to `/s/t`: no space left at the site"), True, FaultKind.SITE,
         (Scope.INPUTS, "")),
        (SiteError("failed to copy `/data/x/y` to `/s/t`: Input/output error"), True, FaultKind.SITE,
         (Scope.INPUT, "file:///data")),
        (SiteError("`/data/x` has checksum 1, the job expects 2", transient=False), True, FaultKind.INPUT, None),
        (TransferError(f"failed to read `{HOST}/1`: 503"), True, FaultKind.SITE, (Scope.INPUT, HOST)),
        (TransferError("it was slow"), True, FaultKind.SITE, (Scope.INPUT, HOST)),
        (TransferError("failed to read `root://x.example.org:1094//f`"), True, FaultKind.SITE,
         (Scope.INPUT, "root://x.example.org:1094")),
        (TransferError(f"failed to read `{HOST}/1`: 404", transient=False, missing=True), True, FaultKind.INPUT, None),
        (TransferError(f"`{HOST}/1` refuses us", transient=False, failure=FailureClass.CREDENTIAL), True,
         FaultKind.CREDENTIAL, (Scope.INPUT, HOST)),
    ],
)  # fmt: skip
def test_whose_fault_an_error_is(
    error: TidemillError, staging: bool, fault: FaultKind, scope: tuple[Scope, str] | None
) -> None:
    from tidemill.model.failure import fault_of

    evidence, reason = judge(JOB, error, staging=staging)
    assert fault_of(evidence) is fault
    assert (None if reason is None else (reason.cause.scope, reason.cause.name)) == scope


def test_places_of_inputs() -> None:
    told = {
        "https://h.example.org/a?x=1": "https://h.example.org",
        "root://h.example.org:1094//store/a": "root://h.example.org:1094",
        "/data/x/y": "file:///data",
        "file:///data/x": "file:///data",
        "job:17/events": "",
        "https://h.example.org:99999999/": "",
        "https://[": "",
        "": "",
    }
    assert {url: place_of(url) for url in told} == told


# ---- images ----------------------------------------------------------------------------------------------------------


def test_images_that_fail_on_several_nodes_stop_their_application_only(home: Path) -> None:
    agent = Agent(home)
    job, other = agent.lease(JobSpec(app="sim", events=100), JobSpec(app="sim", events=100))

    def failed(node: str) -> Failed:
        return Failed(
            p=node, s=1, grant=1, job=job, first=0, count=1, event=None, failure="image", slot=0, at_us=0,
            message="image `rel` cannot be mounted", exit_status=None, signal=None, stderr_tail="", wall_us=0,
            user_us=0, system_us=0,
        )  # fmt: skip

    agent.granting.troubles.on_records([failed(f"a1.{n}") for n in range(3)])
    shown = agent.until_waiting([job, other])
    assert agent.granted() == []
    assert (shown.scope, shown.name, shown.is_open, shown.jobs) == (Scope.APP, "sim", True, 2)
    agent.close()


def test_a_file_of_troubles_that_cannot_be_read_costs_nothing_but_tries(home: Path) -> None:
    (home / NAME).write_bytes(b"{broken")
    assert read_troubles(home).breakers == []


# ---- redirections and signatures -----------------------------------------------------------------------------------


def test_a_trouble_after_a_redirection_is_that_of_the_inputs_place_and_names_the_url_that_answered(
    home: Path,
) -> None:
    with origin() as first, origin() as second:
        for method in ("GET", "HEAD"):
            first.said[method, "/1"] = answer("302 Found", b"", f"Location: {second.base}/pool/1")
            second.said[method, "/pool/1"] = answer("403 Forbidden", is_head=method == "HEAD")
        agent = Agent(home, Endpoint(url=first.base + "/"), Endpoint(url=second.base + "/"))
        agent.lease(remote(1, first.base))
        agent.until(agent.granting.troubles.shown)
        (shown,) = agent.granting.troubles.shown()
        agent.close()

    assert (shown.failure, shown.scope, shown.name) == ("credential", Scope.INPUT, first.base)
    assert f"`{first.base}/1`, which sends us on to `{second.base}/pool/1`" in shown.message


def test_a_refused_signature_sends_the_job_back_and_is_no_trouble_of_the_site(home: Path) -> None:
    with origin() as server:
        server.said["*", "/1?X-Amz-Signature=5f"] = answer("403 Forbidden")
        server.said["HEAD", "/1?X-Amz-Signature=5f"] = answer("403 Forbidden", is_head=True)
        agent = Agent(home, Endpoint(url=server.base + "/"))
        agent.lease(JobSpec(app="sim", inputs=[Input(name="in", url=f"{server.base}/1?X-Amz-Signature=5f")]))
        evidence = agent.until_refused()
        shown = agent.granting.troubles.shown()
        agent.close()

    assert evidence.failure == "stage_in"
    assert shown == []


def test_breakers_of_a_file_of_before_are_kept_without_what_they_had_not_counted_by_owners(
    home: Path,
) -> None:
    before = {
        "failure": "image",
        "scope": "image",
        "name": "sw",
        "message": "lost",
        "since_us": 3,
        "tries": 2,
    }
    written = {
        "at_us": 9,
        "breakers": [{**before, "is_open": True, "failing": ["7", "node-1"]}],
        "troubles": [],
    }
    (home / NAME).write_bytes(msgspec.json.encode(written))
    [kept] = read_troubles(home).breakers
    assert (kept.name, kept.is_open, kept.failing) == ("sw", True, [])
    kept.failing.append(Failing("ada", "7"))
    (home / NAME).write_bytes(msgspec.json.encode(TroublesRecord(breakers=[kept])))
    assert read_troubles(home).breakers == [kept]
