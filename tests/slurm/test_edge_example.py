"""A job description in, inputs from a data server, an approved program on a real Slurm, outputs put back, a mail."""

from __future__ import annotations

import hashlib
import itertools
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.contract.transfer_world import Server
from tests.worlds.batch.slurm_cluster import SlurmCluster
from tests.worlds.home.edge_world import Edge, Places, edge, expected
from tests.worlds.services.broker_service import Broker
from tests.worlds.services.mail_world import MailServer, make_certificate

from tidemill.model.intervals import IntervalSet
from tidemill.wire.api import AuditRow, Change

EVENTS = 300
GRID = random.Random(5).randbytes(3_000_000)
RANGE_MAX = 100  #: as the page's application says
STATES = ["RUNNING", "COMPLETED"]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(scope="module")
def mail(folder: Path) -> Iterator[MailServer]:
    """A real mail server that wants TLS; its certificate lies beside its mails."""
    cert, key = make_certificate(folder)
    server = MailServer(folder / "mails", "--cert", cert, "--key", key)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def data(folder: Path) -> Iterator[dict[str, Server]]:
    """The data servers by scheme."""
    made: dict[str, Server] = {}
    for scheme in ("https", "root", "gsiftp"):
        (folder / scheme).mkdir(mode=0o711)
        made[scheme] = Server(scheme, folder / scheme)
    yield made
    for server in made.values():
        server.stop()


def heard(it: Edge, file: str, start: str) -> list[Change]:
    """The changes that a command of the page has printed, in lines that begin so."""
    lines = (it.here / file).read_text().rpartition("\n")[0].splitlines()  # the last one may be half written
    return [
        msgspec.json.decode(line[len(start) :], type=Change) for line in lines if line.startswith(start + "{")
    ]


def check_output(it: Edge, got: bytes, printed: str) -> int:
    """The output is what it must be, and so say all who tell of it; the job."""
    cms = it.seen_by("cms")
    (row,) = cms.jobs(campaign="run17")
    assert (row.state, row.events_done, row.events_failed) == ("COMPLETED", EVENTS, 0)
    assert got == expected(GRID, cms.job(row.id).seed_base, EVENTS)
    (told,) = cms.outputs(campaign="run17")
    digest = hashlib.sha256(got).hexdigest()
    assert (told.job, told.output.size_bytes) == (row.id, len(got))
    assert told.output.sha256.removeprefix("sha256:") == digest
    assert printed.split()[0] == digest
    return row.id


def check_changes(found: list[Change], job: int) -> None:
    """Numbers and counts of events ascend, and states follow one another as they must."""
    assert {each.job for each in found} == {job}
    numbers = [each.number for each in found]
    assert numbers == sorted(set(numbers))
    assert [state for state, _ in itertools.groupby(each.state for each in found)] == STATES
    done = [each.events_done for each in found]
    assert (done, done[-1]) == (sorted(done), EVENTS)
    assert not any(each.events_failed for each in found)


def check_mail(it: Edge, mail: MailServer, before: int) -> None:
    """One mail about the campaign, with its figures."""
    it.wait_for(lambda: len(mail.mails()) > before, "the mail comes")
    (one,) = mail.mails()[before:]
    assert one["X-Env-To"] == "cms-production@example.org"
    assert "run17" in one["Subject"]
    assert f"events    {EVENTS}: {EVENTS} done, 0 failed" in one.get_content()


def check_audit(it: Edge, cluster: SlurmCluster, job: int, *, subject: str) -> None:
    """Slurm's jobs, the audit and the accounting tell one story."""
    olga = it.seen_by("olga")

    def rows() -> list[AuditRow]:
        ids = {each.batch_id for each in olga.allocations() if each.batch_id}
        return [row for batch_id in ids for row in olga.audit(batch_id=batch_id) if row.job is not None]

    it.wait_for(lambda: sum(len(IntervalSet.parse(row.events)) for row in rows()) >= EVENTS, "all is noted")
    found = rows()
    ran = IntervalSet()
    for row in found:
        for first, end in IntervalSet.parse(row.events):
            assert ran.add(first, end) == end - first, "an event is noted twice"
    assert list(ran) == [(0, EVENTS)]
    digest = f"sha256:{hashlib.sha256(Path('/bin/sh').read_bytes()).hexdigest()}"
    assert {(row.job, row.owner, row.campaign, row.app, row.digest) for row in found} == {
        (job, "cms", "run17", "generate", digest)
    }
    assert {row.subject for row in found} == {subject}
    assert {row.batch_id for row in found} <= set(
        cluster.run("squeue", "-h", "-r", "-t", "all", "-u", "nobody", "-o", "%i").split()
    )
    campaign = olga.campaign("run17")
    assert (campaign.owner, campaign.events_done, campaign.events_failed) == ("cms", EVENTS, 0)
    assert campaign.usage.payloads >= EVENTS // RANGE_MAX
    it.words["4711"] = found[0].batch_id
    assert f"subject      {subject}, owner `cms`" in it.do("audit")


def begin(it: Edge, way: str) -> None:
    """The page's machines, up to a site that offers its application."""
    it.write_all(way)
    it.shell("tidemill app check site/apps/generate.toml")
    it.spawn("server", "server.out")
    it.wait_for((it.here / "server" / "api.sock").exists, "the server is there")
    it.spawn("site", "site.out")
    it.spawn(f"{way}/follow", "changes.out")
    it.wait_for(lambda: it.seen_by("cms").applications(), "the site offers its application")


def fetched(it: Edge, block: str) -> tuple[bytes, str]:
    """What the block of commands fetches, and what it prints."""
    printed = it.do(block)
    return (it.here / "events.txt").read_bytes(), printed


@pytest.mark.timeout(300)
def test_over_https_with_webdav_and_xrootd(
    slurm_cluster: SlurmCluster, data: dict[str, Server], mail: MailServer
) -> None:
    dav, before = data["https"], len(mail.mails())
    urls = {
        "https://dav.example.org/exp/": f"{dav.base}cert/",
        "root://xrootd.example.org//exp/": f"{data['root'].base}exp/",
    }
    with edge(slurm_cluster, Places(urls=urls, data_keys=dav.folder / "certs", mail=mail)) as it:
        (it.here / "grid.dat").write_bytes(GRID)
        it.do("keys")
        begin(it, "https")
        it.do("https/submit")
        job = check_output(it, *fetched(it, "https/fetch"))
        it.wait_for(lambda: ended(heard(it, "changes.out", "data: ")), "the feed has the end")
        check_changes(heard(it, "changes.out", "data: "), job)
        check_mail(it, mail, before)
        check_audit(it, slurm_cluster, job, subject="/O=Tidemill/OU=submitter/CN=cms")


@pytest.mark.timeout(300)
def test_over_rabbitmq_with_gridftp(
    slurm_cluster: SlurmCluster, data: dict[str, Server], mail: MailServer, folder: Path
) -> None:
    grid, before = data["gsiftp"], len(mail.mails())
    urls = {"gsiftp://dtn.example.org/exp/": f"{grid.url}exp/"}
    with edge(slurm_cluster, Places(urls=urls, data_keys=grid.folder / "certs", mail=mail)) as it:
        (it.here / "grid.dat").write_bytes(GRID)
        it.do("keys")
        broker = Broker(folder / "rabbitmq", it.here / "ca", "localhost")
        try:
            it.words["broker.example.org/tidemill"] = f"localhost:{broker.port}/tidemill"
            it.write("broker.toml", "broker.toml")
            it.write("message/server.toml", "server/server.toml")
            made, loaded = it.text("broker").splitlines()
            it.shell(made)
            assert loaded == "rabbitmqctl import_definitions definitions.json"
            broker.load((it.here / "definitions.json").read_text())
            begin(it, "message")
            printed = it.do("message/submit")
            again = it.text("message/submit").splitlines()[-1]  # the input is there, maybe being read
            assert it.shell(again) == printed, "the same key is the same job"
            it.wait_for(lambda: ended(heard(it, "changes.out", "")), "a message tells the end")
            job = check_output(it, *fetched(it, "message/fetch"))
            check_changes(heard(it, "changes.out", ""), job)
            check_mail(it, mail, before)
            check_audit(it, slurm_cluster, job, subject="cms")
        finally:
            broker.stop()


def ended(found: list[Change]) -> bool:
    return bool(found) and found[-1].state not in ("WAITING", "RUNNING")
