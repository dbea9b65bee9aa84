"""A server that means harm gets nothing: every order is refused with its reason, and good jobs run all the while."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest
from tests.worlds.home.hostile_world import OPEN_MAX, PER_MIN_MAX, PROGRAM, SECRET, Site, prey

from tidemill.model.failure import FailureClass
from tidemill.model.job import Input, InputKind, JobSpec, Output, OutputKind
from tidemill.wire.api import (
    DeliverOrder,
    DiscardOrder,
    DoneReport,
    DrainOrder,
    FailureReport,
    FetchLogOrder,
    ReleaseReport,
)
from tidemill.wire.views import DENIED

PEAK_MB_MAX = 400
"""An idle agent has 60 MB. The largest answer that is read has 32 MB; msgspec's structs of it take six times that."""

HELD_S = 4.0
"""How long nothing is started: without the server's word it takes an agent about one second."""

"""Between two exchanges: a tick that takes all that one answer may hold needs 2 s of one core; others are busy here."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with prey() as it:
        it.serves()
        yield it


@pytest.fixture(autouse=True)
def nothing_changes(site: Site) -> Iterator[None]:
    """Whatever the server tries: no file outside the site's directory is another one, the agent is the same."""
    before, agent = site.files(), site.agent()
    yield
    site.serves()
    assert site.agent() == agent
    assert site.files() == before
    assert site.private.read_text() == SECRET
    assert not list(site.outside.iterdir())
    assert sorted(each.name for each in (site.directory / "apps").iterdir()) == ["altered.toml", "good.toml"]


def refused(site: Site, tries: Iterable[tuple[JobSpec | dict[str, Any], str]], **changes: Any) -> None:
    """All of these jobs are given back for a reason with these words, logged, and no pilot ever hears of them."""
    orders = [(site.lease(spec, **changes), part) for spec, part in tries]
    site.server.say(*(order for order, _ in orders))
    for order, part in orders:
        assert part in site.refused(order), order["spec"]


ROOTS = "outside this site's data roots"
PLACES = [
    ("/etc/passwd", ROOTS),
    ("file:///etc/passwd", ROOTS),
    ("{home}/me/.ssh/id_rsa", ROOTS),
    ("{home}/data/../me/.ssh/id_rsa", ROOTS),
    ("{home}/data/key", ROOTS),
    ("file://{home}/data/%2e%2e/me/.ssh/id_rsa", ROOTS),
    ("{home}/site/site.toml", ROOTS),
    ("/proc/self/environ", ROOTS),
    ("file://elsewhere/etc/passwd", "names no file of this site"),
    ("https://evil.example.org/x", "does not read from there"),
    ("https://store.example.org@evil.example.org/exp/x", "no user name"),
    ("https://store.example.org/exp/%2e%2e/private", "no place in a URL"),
    ("gopher://store.example.org/exp/x", "no transfer for"),
    ("--upload-file", "no transfer for"),
    ("file:///etc/passwd\n", "control characters"),
    ("/" + "x" * 100_000, "more than 4096 characters"),
]


def test_inputs_come_from_the_data_roots_and_named_endpoints_only(site: Site) -> None:
    tries = [
        (JobSpec(app="good", inputs=[Input(name="card", url=url.format(home=site.home), kind=kind)]), part)
        for url, part in PLACES
        for kind in InputKind
    ]
    (site.data / "lines").write_text(f"{site.private}\n/etc/passwd\nhttps://evil.example.org/x\n")
    each = Input(name="card", url=str(site.data / "lines"), kind=InputKind.EACH)
    spec = JobSpec(app="good", events=3, inputs=[each])
    refused(site, [*tries, (spec, ROOTS)])
    refused(site, [(spec, "does not read from there")], first=2)
    (site.data / "lines").unlink()


def test_outputs_go_to_the_data_roots_and_named_endpoints_only(site: Site) -> None:
    tries = []
    for url, part in [
        ("https://evil.example.org/x", "does not write to there"),
        ("https://store.example.org/x", "does not write to there"),
        ("{home}/data/leads_out/x", ROOTS),
        ("{home}/data/new/../leads_out/x", ROOTS),
        ("{home}/outside/x", ROOTS),
        ("{home}/site/apps/evil.toml", ROOTS),
        ("{home}/me/.ssh/authorized_keys", ROOTS),
        ("/etc/cron.d/evil", ROOTS),
    ]:
        place = url.format(home=site.home)
        tries.append((JobSpec(app="good", outputs=[Output(name="o", path="o", url=place)]), part))
        folder = place.rpartition("/")[0]
        tries.append((JobSpec(app="good", output_dir=folder, outputs=[Output(name="o", path="o")]), part))
    refused(site, tries)


def test_an_input_that_the_application_does_not_take_is_refused_whatever_the_server_orders(
    site: Site,
) -> None:
    source = str(site.data / "card")
    refused(
        site,
        [
            (JobSpec(app="good", inputs=[Input(name=name, url=source, kind=kind)]), "takes no input named")
            for name in ("json.py", "rootlogon.C", "Makefile", "libm.so.6", "card2")
            for kind in InputKind
        ],
    )


def test_names_do_not_become_paths(site: Site) -> None:
    source, tries, campaigns = str(site.data / "card"), [], []
    for name in ["../../apps/evil.toml", "/etc/cron.d/evil", "..", "a\nb", "", "x" * 300]:
        tries += [
            (JobSpec(app="good", inputs=[Input(name=name, url=source)]), "is not a valid name of an input"),
            (JobSpec(app="good", outputs=[Output(name=name, path="o")]), "is not a valid name of an output"),
            (JobSpec(app="good", name=name), "is not a valid name"),
        ]
        campaigns.append(site.lease(JobSpec(app="good"), campaign=name))
    path = JobSpec(app="good", outputs=[Output(name="o", path="../../o")])
    refused(site, [*tries, (path, "leaves the work directory")])
    owners = [site.lease(JobSpec(app="good"), owner=name) for name in ("a\nb", "x" * 10_000, "\x1b[2J")]
    site.server.say(*campaigns, *owners)
    assert all("is not a valid name of a campaign" in site.refused(order) for order in campaigns)
    assert all("is not a valid name of a submitter" in site.refused(order) for order in owners)


def test_arguments_are_of_their_type_range_and_pattern(site: Site) -> None:
    words = [
        "; touch evil", "$(touch evil)", "`id`", "a\nb", "a\rb", "../../etc/passwd", "--help", "-rf", "a\0b", "~root",
        "x" * 1_000_000, "a|b", "a>b", "*",
    ]  # fmt: skip
    tries = [
        {"app": "good", "params": {name: value}}
        for word in words
        for name, value in (("word", word), ("number", word), ("kind", word), (word, "x"))
    ]
    refused(site, [(spec, "") for spec in tries])


def test_numbers_are_in_their_range(site: Site) -> None:
    resources = [{"memory_mb": 2**70}, {"cores": 0}, {"event_s": 1e300}, {"timeout_s": -1}, {"nodes": 2**62}]
    refused(
        site,
        [
            (JobSpec(app="good", params={"number": 11}), "at most 10"),
            (JobSpec(app="good", params={"number": -1}), "at least 0"),
            *(({"app": "good", "resources": each}, "`resources.") for each in resources),
            *(({"app": "good", "events": events}, "`events` is") for events in (0, -1, 2**70)),
            ({"app": "good", "retries": 10**9}, "`retries`"),
        ],
    )
    refused(site, [(JobSpec(app="good"), "event 1 is leased")], first=1)


def test_only_approved_applications_run(site: Site) -> None:
    refused(
        site,
        [
            (JobSpec(app="evil"), "`evil` is not approved here"),
            (JobSpec(app="../good"), "`../good` is not a valid name"),
            (JobSpec(command=["/bin/sh", "-c", "touch evil"]), "approved applications only"),
            (JobSpec(app="good", env={"LD_PRELOAD": "/tmp/evil.so"}), "lets no job set any"),
            (
                JobSpec(
                    app="good", outputs=[Output(name="o", path="o", kind=OutputKind.MERGE, merge="../x")]
                ),
                "is not a valid name",
            ),
        ],
    )


def test_an_altered_executable_is_not_started(site: Site) -> None:
    program = site.home / "altered.sh"
    order = site.lease(JobSpec(app="altered"))
    site.server.say(order)
    assert isinstance(site.told(order), DoneReport)
    program.write_text(PROGRAM + "# evil\n")
    try:
        refused(site, [(JobSpec(app="altered"), "has digest")])
    finally:
        program.write_text(PROGRAM)


def test_an_executable_that_is_altered_under_granted_work_is_not_started_again() -> None:
    """The slot looks before every start: work that was granted before the change does not run the new file."""
    with prey() as it:
        name = it.approve("steady", "#!/bin/sh\nexec sleep 0.05\n")
        order = it.lease(JobSpec(app=name, events=1000), count=1000)
        it.server.say(order)
        assert isinstance(it.told(order), DoneReport)
        program = it.home / "steady.sh"
        program.with_suffix(".new").write_text("#!/bin/sh\nexec sleep 1000\n")
        program.with_suffix(".new").chmod(0o755)
        program.with_suffix(".new").rename(program)

        def why() -> list[str]:
            reports = it.server.about(order["job"])
            told = [each.evidence for each in reports if isinstance(each, FailureReport | ReleaseReport)]
            return [each.message for each in told if each is not None]

        it.wait_for(lambda: any("approved is sha256:" in each for each in why()), "it is not started")
        assert it.sleepers() == 0


def test_senseless_orders_are_passed_over() -> None:
    with prey() as site:  # its own: what is logged in a minute is bounded
        big, lease = 2**62, site.lease(JobSpec(app="good"))
        lease["job"] = 1 << 40
        for changes in (
            {"job": (1 << 60) + 16}, {"job": -1}, {"count": 0}, {"count": -5}, {"first": -1}, {"count": big * 4},
            {"seed_base": 2**70}, {"lease": -1}, {"n": 2**65},
        ):  # fmt: skip
            site.server.say({**lease, **changes})
        known = site.lease(JobSpec(app="good"))["job"]
        for done in ("9-0", "x", "5,1", "0-" + "9" * 30, "-1", "²", ",".join(["1"] * 100_000)):
            site.server.say(DeliverOrder(n=0, job=known, done=done))
            site.server.say(DeliverOrder(n=0, job=known, done="0", fresh=done))
        for delivery in (0, -1, big):
            site.server.say(DeliverOrder(n=0, job=known, done="0", delivery=delivery))
        site.server.say(
            DiscardOrder(n=0, job=known, first=-(2**61), count=2**61),
            FetchLogOrder(n=0, request=1, job=known, event=-1),
            DrainOrder(n=0, drain=False, reason="\x1b[2J" + "x" * 100_000),
            {"t": "cancel", "job": 2**61, "reason": "x"},
            *({"t": "cancel", "job": known, "reason": "x", "keep": True} for _ in range(100)),
        )
        site.serves()
        assert not site.server.about(1 << 40)
        assert "orders.senseless" in site.log()


def test_inflated_numbers_do_not_deafen_the_site_to_an_honest_successor() -> None:
    with prey() as it:
        it.serves()
        for number in (2**62 - 1, 2**62, 2**61, 2**40, 10**9):
            it.server.say({"t": "drain", "n": number, "drain": False, "reason": ""})
        it.wait_for(lambda: "orders.senseless" in it.log(), "jumps are not taken")
        it.server.forget()
        it.server.say({"t": "drain", "n": 9_000_000, "drain": False, "reason": ""})
        it.wait_for(lambda: it.server.requests[-1].have == 9_000_000, "a short one is")
        it.server.restart()
        it.serves()
        assert 9_000_000 < it.server.requests[-1].have < 9_000_100


def test_a_word_of_a_newer_epoch_does_not_end_an_agent_whose_own_files_know_none(site: Site) -> None:
    """One packet of a proxy: the fixture sees the same process serve afterwards."""
    site.server.is_contesting = True
    site.wait_for(lambda: "server.contests" in site.log(), "it is told")
    asked = len(site.server.asked_s)
    site.wait_for(lambda: len(site.server.asked_s) > asked + 3, "the agent asks again and again")
    site.server.is_contesting = False
    site.wait_for(lambda: "server.agrees" in site.log(), "it is taken for the site's again")


def test_while_the_server_knows_a_newer_epoch_the_agent_starts_nothing() -> None:
    with prey() as it:
        sleeper = it.approve("sleeper", "#!/bin/sh\nexec sleep 1000\n")
        it.server.say(it.lease(JobSpec(app=sleeper)))
        it.wait_for(lambda: it.sleepers() == 1, "its payload runs")
        it.stop()
        it.server.is_contesting = True
        it.start(again=True)
        it.wait_for(lambda: "server.contests" in it.log(), "it is told")
        time.sleep(HELD_S)
        assert it.sleepers() == 0
        it.server.is_contesting = False
        it.wait_for(lambda: it.sleepers() == 1, "its payload is started again")


def test_an_agent_that_was_superseded_ends_whatever_its_server_says() -> None:
    """The site's own epoch files decide, not what its server agrees with."""
    with prey() as it:
        it.serves()
        newest = max((it.directory / "epoch").glob("*.json"))
        newest.with_name(f"{int(newest.stem) + 1:06}.json").write_bytes(newest.read_bytes())
        it.wait_for_end()
        assert "the site was taken over" in it.log()


ANSWERS = [
    (b"", 200), (b"\xff\xfe", 200), (b"{", 200), (b"[" * 1_000_000, 200), (b'{"x":' + b"[" * 1_000_000, 200),
    (b'{"acked":"a","orders":[],"more":false,"now_us":0}', 200), (b"", 302), (b"\xff" * 1000, 500),
    (b"[" * 1_000_000, 400), (b'{"acked":0,"orders":[{"t":"shell","n":1}],"more":false,"now_us":0}', 200),
    (b'{"acked":%s,"orders":[],"more":true,"now_us":0}' % (b"9" * 4000), 200),
]  # fmt: skip


def test_answers_that_cannot_be_read_are_survived(site: Site) -> None:
    for answer, status in ANSWERS:
        site.server.answer(answer, status=status)
    site.wait_for(lambda: site.server.is_answered, "the agent asks again and again")


def test_a_million_leases_are_not_taken(site: Site) -> None:
    order = msgspec.json.encode(site.lease(JobSpec(app="good"), n=1 << 50))
    million = b'{"acked":0,"orders":[' + b",".join([order] * 1_000_000) + b'],"more":true,"now_us":0}'
    site.server.answer(million)
    site.wait_for(lambda: site.server.is_answered, "it is sent")
    del million
    site.wait_for(lambda: "exceeds 32000000 bytes" in site.log(), "it is refused")
    small = b'{"acked":0,"orders":[' + b",".join([b'{"t":"drain","n":1,"drain":false,"reason":""}'] * 600_000)
    site.server.answer(small + b'],"more":true,"now_us":0}')
    site.serves()
    assert site.peak_mb() < PEAK_MB_MAX


def test_as_many_leases_are_taken_as_the_site_allows(site: Site) -> None:
    began = time.monotonic()
    specs = [site.lease(JobSpec(app="good"), count=1) for _ in range(20_000)]
    seen, asked = len(site.server.reports), len(site.server.asked_s)
    site.server.say(*specs)
    site.wait_for(lambda: "orders.left" in site.log(), "the rest is left")
    site.wait_for(lambda: len(site.server.orders) < 20_000, "some are taken")
    site.wait_for(lambda: len(site.server.asked_s) > asked + 5, "the agent goes on asking")
    try:
        time.sleep(max(0.0, began + 5 - time.monotonic()))
        taken = 20_000 - len(site.server.orders)
        allowed = PER_MIN_MAX * (1 + (time.monotonic() - began) / 60)
        have = {each.job for each in site.server.reports[seen:] if isinstance(each, DoneReport)}
        open_ = [each.have for each in site.server.requests]
        assert open_ == sorted(open_)
        assert 0 < taken <= min(allowed, len(have) + OPEN_MAX + PER_MIN_MAX / 60)
    finally:
        site.server.forget()
    assert site.peak_mb() < PEAK_MB_MAX


def test_a_server_that_acknowledges_nothing_does_not_fill_the_agent(site: Site) -> None:
    site.server.is_acking = False
    try:
        for number in range(300):
            site.server.say(FetchLogOrder(n=0, request=10_000 + number, job=1, event=None))
        site.wait_for(lambda: "logs are asked for" in site.log(), "no more logs are looked for")
        assert len(site.server.requests[-1].reports) <= 200
    finally:
        site.server.is_acking = True
    site.wait_for(lambda: not site.server.orders, "all are answered in the end")


def test_staff_deny_a_submitter_whatever_the_server_says(site: Site) -> None:
    spec = JobSpec(app="good", events=5)
    site.server.say(order := site.lease(spec, count=5, owner="mallory"))
    assert isinstance(site.told(order), DoneReport)
    assert site.tidemill("deny", "mallory", "--reason", "mines coins").returncode == 0
    site.wait_for(lambda: "denied.changed" in site.log(), "the agent sees it")
    refused(site, [(spec, "denies submitter `mallory`: mines coins")], owner="mallory")
    assert "mallory: mines coins" in site.tidemill("status").stdout
    site.wait_for(
        lambda: any(DENIED.decode(each.views) == ["mallory"] for each in site.server.requests),
        "the server is told",
    )
    assert site.tidemill("allow", "malory", "--reason", "x").returncode == 2
    assert site.tidemill("allow", "mallory", "--reason", "it was her cat").returncode == 0
    site.wait_for(lambda: site.log().count("denied.changed") >= 2, "the agent sees that, too")
    site.server.say(order := site.lease(spec, count=5, owner="mallory"))
    assert isinstance(site.told(order), DoneReport)
    text = (site.directory / "denied.log").read_text()
    assert '"act":"deny"' in text
    assert '"reason":"it was her cat"' in text


def test_running_work_of_a_denied_submitter_ends_and_stays_ended_through_a_restart() -> None:
    with prey() as it:
        sleeper = it.approve("sleeper", "#!/bin/sh\nexec sleep 1000\n")
        order = it.lease(JobSpec(app=sleeper), owner="mallory")
        other = it.lease(JobSpec(app=sleeper), owner="ada")
        it.server.say(order)
        it.wait_for(lambda: it.sleepers() == 1, "his payload runs")
        assert it.tidemill("deny", "mallory", "--reason", "mines coins").returncode == 0
        report = it.told(order)
        assert isinstance(report, ReleaseReport)
        assert report.evidence is not None
        assert report.evidence.failure is FailureClass.DISPATCH
        assert "mines coins" in report.reason
        it.wait_for(lambda: it.sleepers() == 0, "his payload ends")
        it.stop()
        it.start(again=True)
        again = it.lease(JobSpec(app=sleeper), owner="mallory")
        it.server.say(again, other)
        assert "mines coins" in it.refused(again)
        it.wait_for(lambda: it.sleepers() == 1, "another's payload runs")
        (it.directory / "denied.json").write_text("damaged")
        it.wait_for(lambda: it.sleepers() == 0, "a list that nobody can read denies everybody")
        report = it.told(other)
        assert isinstance(report, ReleaseReport)
        assert "denied.json" in report.reason
