"""The pure parts of the pages: sessions, addresses, texts, drawings."""

from __future__ import annotations

import asyncio
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from tidemill import clock
from tidemill.cli.jobs.job import state_text
from tidemill.model.failure import Evidence, FailureClass
from tidemill.model.identity import LOCAL, Act, Identity, Role, Via, may
from tidemill.model.job import JobSpec
from tidemill.model.quantities import share_text, span_text
from tidemill.server.api.app import Api
from tidemill.server.api.pace import COST_S
from tidemill.server.api.router import BODY_BYTES_MAX, BoundedRequest
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.core.site_views import TideSeries
from tidemill.server.database.store import Store
from tidemill.server.identity.access import Authenticator
from tidemill.server.web import draw, text
from tidemill.server.web.query import AddressQuery, own_path, said, to, with_values
from tidemill.server.web.render import Pages
from tidemill.server.web.routes import Website
from tidemill.server.web.sites import wait_rows
from tidemill.server.web.visits.entrance import VISIT, Visit, is_forged, is_local
from tidemill.server.web.visits.sessions import Sessions, WebSession
from tidemill.wire.api import ActionRequest, Attempt, FailureRow, JobRow, SubmitRequest
from tidemill.wire.monitoring import RegularWaits

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
ADA = Identity(role=Role.SUBMITTER, name="ada", via=Via.CERTIFICATE, subject="CN=ada")


# ---- sessions ------------------------------------------------------------------------------------------------------


def test_every_template_compiles() -> None:
    """A server compiles each at its first use: a fault in one would be seen by whoever asks for its page first."""
    templates = Pages().templates
    names = templates.list_templates(["html"])
    assert "job.html" in names
    for name in names:
        templates.get_template(name)


def test_a_session_is_read_back_until_it_ends_or_was_left() -> None:
    sessions = Sessions(3_600)
    session = sessions.begin(LOCAL, HOUR_US)
    cookie = sessions.write(session)
    assert sessions.read(cookie, HOUR_US) == session
    assert sessions.read(cookie, 2 * HOUR_US) is None
    sessions.end(session, HOUR_US)
    assert sessions.read(cookie, HOUR_US) is None


def test_a_session_ends_with_its_credential() -> None:
    soon = Identity(role=Role.SUBMITTER, name="ada", via=Via.TOKEN, expires_us=HOUR_US + 5 * SECOND_US)
    assert Sessions(3_600).begin(soon, HOUR_US).ends_us == HOUR_US + 5 * SECOND_US


def test_a_token_of_many_scopes_makes_a_cookie_that_browsers_keep() -> None:
    many = {f"storage.read:/experiment/dataset-{number}" for number in range(300)}
    carol = Identity(
        role=Role.SUBMITTER, name="carol", via=Via.TOKEN, scopes=frozenset({*many, "compute.read"})
    )
    sessions = Sessions(3_600)
    cookie = sessions.write(sessions.begin(carol, 0))
    assert len(cookie) < 4_000
    session = sessions.read(cookie, 0)
    assert session is not None
    assert may(session.identity, Act.READ).allowed
    assert not may(session.identity, Act.CANCEL).allowed


def test_what_is_signed_by_others_or_changed_is_nothing() -> None:
    sessions = Sessions(3_600)
    cookie = sessions.write(sessions.begin(LOCAL, 0))
    body, _, signature = cookie.partition(".")
    for value in (
        "",
        ".",
        cookie[:-1],
        f"{body}x.{signature}",
        f"{body}.",
        f".{signature}",
        "é.é",
        "a" * 9_999,
    ):
        assert sessions.read(value, 0) is None
    assert Sessions(3_600).read(cookie, 0) is None


def test_both_servers_of_a_pair_read_the_sessions_that_either_has_made() -> None:
    one, two, other = (Sessions(3_600, secret) for secret in (b"x" * 16, b"x" * 16, b"y" * 16))
    session = one.begin(ADA, 0)
    assert two.read(one.write(session), 1) == session
    assert two.is_form_token(session, one.form_token(session))
    assert other.read(one.write(session), 1) is None


def test_a_page_can_accept_what_is_done_of_a_campaign(tmp_path: Path) -> None:
    store = Store(path=tmp_path / "t.db")
    store.init()
    dispatcher = Dispatcher(store)
    dispatcher.handle_submit(SubmitRequest(key="k", campaign="c", jobs=[JobSpec(app="sim")]), ADA)
    dispatcher.handle_cancel(ActionRequest(campaign="c"), ADA)
    api = Api(store, dispatcher)
    website = Website(api, Sessions(3_600), Authenticator())

    async def accept() -> str:
        session = website.sessions.begin(ADA, clock.now_us())
        form = {"form": website.sessions.form_token(session), "act": "accept", "campaign": "c"}
        scope = {
            "type": "http", "method": "POST", "path": "/jobs/act", "path_params": {}, "query_string": b"",
            "headers": [(b"content-type", b"application/x-www-form-urlencoded")], BODY_BYTES_MAX: 65_536,
            VISIT: Visit(session, "", False),
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": urlencode(form).encode(), "more_body": False}

        (deed,) = [each for each in website.handlers() if (each.method, each.path) == ("POST", "/jobs/act")]
        return (await deed.answer(BoundedRequest(scope, receive))).headers["location"]

    assert asyncio.run(accept()) == "/?said=accept&n=0&m=1"
    assert said({"said": "accept", "n": "2", "m": "1"}) == "2 jobs accepted; 1 unchanged"
    api.close()
    dispatcher.close()


def test_what_an_action_of_a_page_costs_is_charged_in_full(tmp_path: Path) -> None:
    """A page that cancels a hundred thousand jobs is not charged as one that shows a list."""

    async def cancel(website: Website, session: WebSession) -> dict[str, Any]:
        form = {"form": website.sessions.form_token(session), "act": "cancel", "campaign": "c"}
        body = urlencode(form).encode()
        scope = {
            "type": "http", "method": "POST", "path": "/jobs/act", "path_params": {}, "query_string": b"",
            "headers": [(b"content-type", b"application/x-www-form-urlencoded")], BODY_BYTES_MAX: 65_536,
            VISIT: Visit(session, "", False),
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        (deed,) = [each for each in website.handlers() if (each.method, each.path) == ("POST", "/jobs/act")]
        assert (await deed.answer(BoundedRequest(scope, receive))).status_code == 303
        return scope

    store = Store(path=tmp_path / "t.db")
    store.init()
    dispatcher = Dispatcher(store)
    dispatcher.handle_submit(
        SubmitRequest(key="k", campaign="c", jobs=[JobSpec(app="sim")], repeat=[9_000]), ADA
    )
    api = Api(store, dispatcher)
    website = Website(api, Sessions(3_600), Authenticator())
    scope = asyncio.run(cancel(website, website.sessions.begin(ADA, clock.now_us())))
    assert scope[COST_S] > 0
    assert dispatcher.writer.write(lambda work: work.memory.work_of("ada")).jobs == 0
    api.close()
    dispatcher.close()


def test_a_forms_token_is_of_one_session() -> None:
    sessions = Sessions(3_600)
    one, other = sessions.begin(LOCAL, 0), sessions.begin(LOCAL, 0)
    assert sessions.is_form_token(one, sessions.form_token(one))
    assert not sessions.is_form_token(one, sessions.form_token(other))
    assert not sessions.is_form_token(one, "")
    assert sessions.form_token(one) not in sessions.write(one)


# ---- addresses -----------------------------------------------------------------------------------------------------


def test_nothing_leads_to_another_host() -> None:
    for path in ("//x", "/\\x", "https://x", "javascript:x", "", None, "/a\r\nb", "/a b", "/\\", "x" * 9_999):
        assert own_path(path) == "/"
    assert own_path("/jobs?state=FAILED&q=a%20b") == "/jobs?state=FAILED&q=a%20b"


def test_a_page_of_another_host_is_told_by_what_browsers_say() -> None:
    own = {b"host": "tide.example:7777"}
    assert not is_forged(own)
    assert not is_forged(own | {b"origin": "https://tide.example:7777", b"sec-fetch-site": "same-origin"})
    assert is_forged(own | {b"origin": "https://tide.example"})
    assert is_forged(own | {b"origin": "null"})
    assert is_forged(own | {b"origin": "https://["})
    assert is_forged(own | {b"sec-fetch-site": "same-site"})


def test_only_names_of_this_machine_are_local() -> None:
    assert all(map(is_local, ("localhost", "localhost:8080", "127.0.0.1:1", "[::1]:80")))
    assert not any(map(is_local, ("", "evil.example", "localhost.evil.example:80", "[bad", "10.0.0.1")))


def test_a_changed_filter_starts_at_the_first_page_and_forgets_what_was_said() -> None:
    query = AddressQuery(
        "/jobs", {"state": " FAILED ", "after": "17", "said": "cancel", "n": "1", "q": "", "x": "a\0b"}
    )
    assert query.link(site="lrz") == "/jobs?state=FAILED&x=ab&site=lrz"
    assert query.link(state=None, after=9) == "/jobs?x=ab&after=9"
    assert query.number("after") == 17
    assert [query.number(key) for key in ("state", "none")] == [None, None]
    assert query.choice("state", ("A", "B")) == "A"
    assert query.size() == 50
    assert to("campaigns", "a/b ?") == "/campaigns/a%2Fb%20%3F"
    assert with_values("/x", a="", b=None, c=0) == "/x?c=0"


def test_what_was_done_is_told_in_our_own_words_only() -> None:
    assert said({"said": "cancel", "n": "1", "m": "0"}) == "1 job canceled"
    assert said({"said": "retry", "n": "1200", "m": "3"}) == "1,200 jobs will run again; 3 unchanged"
    assert said({"said": "<b>", "n": "1", "m": "1"}) is None
    assert said({"said": "cancel", "n": "x", "m": "1"}) is None


# ---- texts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 s"),
        (0.42, "0.4 s"),
        (61, "1 min 1 s"),
        (3_600, "1 h"),
        (3_720, "1 h 2 min"),
        (93_600, "1 d 2 h"),
    ],
)
def test_spans_are_told_by_their_two_largest_units(seconds: float, words: str) -> None:
    assert span_text(seconds) == words


def test_nearly_all_is_not_all() -> None:
    assert [share_text(*each) for each in ((999, 1000), (1000, 1000), (1, 3), (0, 0))] == [
        "> 99 %", "100 %", "33 %", "0 %",
    ]  # fmt: skip


def test_any_number_of_a_site_is_a_time() -> None:
    for at_us in (-(2**70), -1, 2**70):
        assert len(text.utc(at_us)) == 19
        assert "<time" in text.ago(at_us, 0)


def test_backticks_become_code_and_nothing_becomes_markup() -> None:
    assert text.code("`<b>` & <i>") == "<code>&lt;b&gt;</code> &amp; &lt;i&gt;"
    assert (
        text.state("<script>")
        == '<span class="state idle"><span aria-hidden="true">·</span> &lt;script&gt;</span>'
    )


# ---- drawings ------------------------------------------------------------------------------------------------------

ROW = JobRow(
    id=7, campaign="c", name="", app="sim", state="RUNNING", site="lrz", events=1_000_000_000, events_done=5,
    events_failed=1, events_leased=3, priority=0, created_us=0, started_us=10 * SECOND_US, ended_us=None, reason="",
)  # fmt: skip


def test_a_failure_of_a_job_that_goes_on_is_not_told_as_its_state() -> None:
    row = msgspec.structs.replace(ROW, reason="exit status 3")
    module: Any = Pages().templates.get_template("parts.html").module
    jobs = module.jobs
    for state, told in (
        ("WAITING", "last failure: exit status 3"),
        ("RUNNING", "last failure: exit status 3"),
        ("FAILED", "exit status 3"),
        ("CANCELED", "exit status 3"),
    ):
        changed = msgspec.structs.replace(row, state=state)
        assert f"<small>{told}</small>" in jobs([changed], lambda _: "")
        assert state_text(changed) == f"{state}: {told}"
    assert "failure" not in jobs([ROW], lambda _: "")
    assert state_text(ROW) == "RUNNING"


def test_drawings_are_well_formed_whatever_is_in_them_and_hold_no_style() -> None:
    evil = "\"'><script>&"
    attempts = [
        Attempt(
            lease=k,
            site=evil,
            state=state,
            first=k,
            count=1,
            leased_us=k * SECOND_US,
            ended_us=None,
            reason=evil,
        )
        for k, state in enumerate(["ACTIVE", "LOST", "SETTLED", "RELEASED", evil] * 8)
    ]
    evidence = Evidence(failure=FailureClass.PAYLOAD, message=evil, at_us=3 * SECOND_US)
    failure = FailureRow(job=7, event=1, seed=1, site=evil, final=True, evidence=evidence)
    tide = TideSeries(
        0, 1, [None, (5.0, 2.0, 1.0, 0.0), (5.0, 2.0, 1.0, 0.0), None, (0.0, 0.0, 0.0, 0.0), None]
    )
    drawn = [
        draw.life_line(ROW, attempts, [failure] * 99, 60 * SECOND_US),
        draw.strip(ROW, "0-4,999999999", "7", attempts),
        draw.tide(tide, evil),
        draw.spark(TideSeries(0, 1, [None]), evil),
        draw.shares([(evil, 1.0, "good"), ("b", 0.0, "bad")], evil),
        draw.progress(3, 2, 1, 5),
    ]
    for each in drawn:
        ElementTree.fromstring(re.sub(r"&(?!amp|lt|gt|quot|#)", "", each))
        assert "style=" not in each
        assert "<script" not in each


def test_a_layer_of_the_tide_is_as_high_as_its_nodes() -> None:
    drawn = draw.spark(TideSeries(0, 1, [(3.0, 1.0, 0.0, 0.0), (2.0, 2.0, 0.0, 0.0)]), "t")
    regular, ours = re.findall(r'<path class="layer (\w+)" d="([^"]+)"', drawn)
    assert regular == ("regular", "M0.0 44.0V11.0H120.0V22.0H240.0V44.0H0.0Z")
    assert ours == ("ours", "M0.0 11.0V0.0H240.0V22.0H120.0V11.0H0.0Z")


# ---- waits of other users --------------------------------------------------------------------------------------------


def test_waits_are_shown_by_size_then_by_length_each_over_the_other() -> None:
    found = [
        RegularWaits(size="1/64", length="5min", jobs=30, delayed=3, wait_s=3_000, share_s=60),
        RegularWaits(size="1/64", length="6h", jobs=10, delayed=0, wait_s=5_000, share_s=0),
        RegularWaits(size="1", length="6h", jobs=2, delayed=2, wait_s=0, share_s=0),
    ]
    rows = wait_rows(found)

    assert [(row.name, row.jobs, row.delayed) for row in rows] == [
        ("up to 1/64 of the machine", 40, 3),
        ("over 1/4, up to all of the machine", 2, 2),
        ("asked for up to 5 min", 30, 3),
        ("asked for 1 h to 6 h", 12, 2),
    ]
    assert (rows[0].wait_s, rows[0].ours_s, rows[0].share) == (200, 1.5, 60 / 8_000)
    assert rows[1].share == 0
    assert wait_rows([]) == []
