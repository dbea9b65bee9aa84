"""What people do on the pages in Chromium, what comes to them by itself, and what is refused."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, quote, urldefrag, urlencode

import msgspec
import pytest
from tests.worlds.services.browser import DESK, PHONE
from tests.worlds.services.pages_world import EVIL, SiteSide, _offer
from tests.worlds.services.web_world import Opens, World, a_job, state

from tidemill.model.job import JobSpec
from tidemill.server.web.live import OWN_MAX
from tidemill.server.web.query import campaign_page, to

# ---- what is done --------------------------------------------------------------------------------------------------


def test_owners_cancel_and_retry_and_nobody_else(web: World, opens: Opens) -> None:
    mine = web.submit(a_job(), campaign="of-ann", owner="ann")
    hers = web.submit(a_job(), campaign="of-eve", owner="eve")
    ann = opens("ann")
    ann.go(f"/jobs/{mine}")
    ann.page.click("text=Cancel…")
    ann.page.fill("[name=reason]", EVIL)
    ann.page.click("button.danger")
    ann.page.wait_for_selector("text=1 job canceled")
    assert state(web, mine) == "CANCELED"
    ann.page.click("text=Retry…")
    ann.follow("button.do >> text=Retry")  # the page is checked: it has to be there whole
    ann.page.wait_for_selector("text=1 job will run again")
    assert state(web, mine) == "WAITING"
    ann.check()
    token = ann.page.locator("[name=form]").first.get_attribute("value")

    def send(fields: dict[str, Any], headers: dict[str, str]) -> int:
        reply = ann.context.request.post(
            f"{web.base}/jobs/act", data=urlencode(fields), headers=headers, max_redirects=0
        )
        return int(reply.status)

    form = {"content-type": "application/x-www-form-urlencoded"}
    own = form | {"origin": web.base}
    legal = {"form": token, "act": "cancel", "job": hers}
    assert send(legal, own) == 404
    assert send({**legal, "job": ""} | {"campaign": "of-eve"}, own) == 404
    assert send({**legal, "form": "x", "job": mine}, own) == 403
    assert send({**legal, "job": mine}, form | {"origin": "https://evil.example"}) == 403
    assert send({**legal, "job": mine}, {"content-type": "application/json", "origin": web.base}) == 400
    assert (state(web, mine), state(web, hers)) == ("WAITING", "WAITING")
    olga = opens("olga")
    olga.go("/campaigns/of-eve")
    olga.page.click("text=Cancel…")
    olga.page.click("button.danger")
    olga.page.wait_for_selector("text=1 job canceled")
    assert state(web, hers) == "CANCELED"


def test_ticked_jobs_are_canceled_together(web: World, opens: Opens) -> None:
    first = web.submit(a_job(), a_job(), a_job(), campaign="ticked", owner="ann")
    ann = opens("ann")
    ann.go("/jobs?campaign=ticked")
    for number in (first, first + 2):
        ann.page.check(f"input[value='{number}']")
    ann.page.click("button.danger")
    ann.page.wait_for_selector("text=2 jobs canceled")
    assert ann.page.url.startswith(f"{web.base}/jobs?campaign=ticked")
    assert [state(web, first + k) for k in range(3)] == ["CANCELED", "WAITING", "CANCELED"]


def test_what_changes_comes_to_the_page_by_itself(web: World, opens: Opens) -> None:
    olga = opens("olga")
    number = web.submit(a_job(), campaign="live", owner="ann")
    olga.go(f"/jobs/{number}")
    olga.page.evaluate("window.stays = true")
    listing = opens("olga")
    listing.go("/jobs?campaign=live")
    status, _ = web.server.call("POST", "/v1/cancel", {"jobs": [number], "reason": "no longer wanted"})
    assert status == 200
    for each in (olga, listing):
        each.page.wait_for_selector("main .state:has-text('CANCELED')")
    assert "no longer wanted" in olga.text()
    assert olga.page.evaluate("window.stays")
    assert olga.page.locator("text=Retry…").count() == 1
    ann = opens("ann")
    ann.go("/jobs")
    before = ann.page.locator("body").get_attribute("data-after")
    web.submit(a_job(), campaign="of-bob", owner="bob")
    web.submit(a_job(), campaign="live", owner="ann")
    ann.page.wait_for_selector("a[href^='/campaigns/live?owner=']")
    assert before is not None
    assert "of-bob" not in ann.text()
    assert not olga.troubles + listing.troubles + ann.troubles


def test_output_of_a_payload_is_asked_from_its_site_and_shown_as_text(web: World, opens: Opens) -> None:
    olga = opens("olga")
    olga.go(f"/jobs/{web.evil}")
    assert EVIL in olga.text()
    olga.page.click("text=Ask the site")
    olga.page.wait_for_selector("text=The site has been asked")
    web.answer_log(web.titan)
    olga.page.wait_for_selector("pre:has-text('event 0 of 1')")
    assert EVIL in olga.text()
    assert olga.page.title() == f"Output of job {web.evil} · Tidemill"
    olga.check()


def test_what_hostile_sites_and_people_write_is_shown_as_text(web: World, opens: Opens) -> None:
    status, reply = web.server.call(
        "POST", "/v1/jobs", {"key": "evil", "campaign": "c", "jobs": [{"app": "x", "name": EVIL}]}
    )
    assert (status, "name" in reply["error"]) == (400, True)
    number = web.be_hostile()
    olga = opens("olga")
    olga.expected = ["status of 404", "status of 400"]
    for path in (
        "/", "/applications", "/applications/evil", f"/applications/{quote(EVIL, safe='')}", "/jobs", f"/jobs/{number}",
        "/failures",
        "/campaigns", "/campaigns/hostile", "/sites", "/sites/hostile", "/allocations", "/nodes", "/transfers",
        "/caches", "/hospital", "/allocations/tm-hostile",
        f"/search?q={quote(EVIL)}", f"/jobs?state={quote(EVIL)}&app={quote(EVIL)}", f"/login?next={quote(EVIL)}",
    ):  # fmt: skip
        olga.go(path)
        assert olga.page.locator("main img, main script").count() == 0, path
        assert "taken" not in olga.page.title().replace(EVIL, ""), path
        assert not olga.troubles, path
    for path in (
        "/applications",
        "/applications/evil",
        f"/jobs/{number}",
        "/failures",
        "/sites/hostile",
        "/nodes",
        "/hospital",
        "/transfers",
        "/allocations",
        "/allocations/tm-hostile",
    ):
        olga.go(path)
        olga.page.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
        assert EVIL in olga.text(), path
        for view in (DESK, PHONE):
            olga.page.set_viewport_size(view)
            olga.check()
    web.end_hostile()


# ---- where links lead ------------------------------------------------------------------------------------------


class Links(HTMLParser):
    """Where the links of a page lead: those of this server."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        goal = dict(attrs).get("href")
        if tag == "a" and goal and goal.startswith("/"):
            self.found.append(urldefrag(goal).url)  # a place in a page is the browser's affair


def test_every_link_of_every_page_leads_to_a_page_whatever_legal_names_hold(web: World) -> None:
    site, app, campaign = "s+1.a_b-", "a+1.b_c-", "c+1.d_e-"
    side = SiteSide(web.server, site, (app,), 1)
    side.sync()
    number = web.submit(JobSpec(app=app, name="mine"), campaign=campaign, owner="ann")
    assert [each.job for each in side.leases(1)] == [number]
    web.submit(a_job(), campaign=campaign, owner="ann")  # it waits for a site that nobody has heard of
    seen, shapes = {"/"}, set[tuple[str, ...]]()
    left = ["/", f"/jobs/{web.stuck}"]  # of an application of no site
    with raw(web, "olga") as connection:
        while left:
            goal = left.pop()
            connection.request("GET", goal)
            reply = connection.getresponse()
            text = reply.read().decode()
            assert reply.status == 200, goal
            for found in Links(text).found:
                path, _, query = found.partition("?")
                shape = (
                    (path, *sorted(parse_qs(query))) if query else (found,)
                )  # one of those that differ in values
                if found not in seen and shape not in shapes:
                    seen.add(found)
                    shapes.add(shape)
                    left.append(found)
    assert campaign_page("ann", campaign) in seen
    for part in (("jobs", number), ("sites", site), ("applications", app)):
        assert to(*part) in seen


def test_a_name_that_would_be_more_than_a_part_of_an_address_is_refused(web: World) -> None:
    for name in ("a/b", "..", "a?b", "a#b", "a%2fb", "a b", "", "a\nb", EVIL):
        job = {"key": f"odd {name}", "campaign": "c", "jobs": [{"app": "simulate"}]}
        for told in (
            {"campaign": name},
            {"jobs": [{"app": name}]},
            {"jobs": [{"app": "simulate", "site": name}]},
        ):
            status, reply = web.server.call("POST", "/v1/jobs", {**job, **told})
            assert (status, "name" in reply["error"]) == (400, True), told
        offers = [msgspec.to_builtins(_offer(name, ""))]
        request = {"site": "odd", "epoch": 1, "host": "h", "version": "1", "reports": [], "have": 0}
        capacity = {
            "want_core_s": 0,
            "want_ranges_max": 0,
            "slot_cores_max": 1,
            "slot_memory_mb_max": 1,
            "devices": {},
        }
        capacity |= {"event_s": {}, "nodes": 0, "busy_cores": 0, "adhoc": False}
        request |= {"allocations": {}, "capacity": capacity}
        assert web.server.call("POST", "/v1/sync", {**request, "offers": offers})[0] == 400
        assert web.server.call("POST", "/v1/sync", {**request, "site": name, "offers": []})[0] == 400
    assert web.server.call("POST", "/v1/sync", {**request, "offers": []})[0] == 200


# ---- what is refused -------------------------------------------------------------------------------------------


@contextmanager
def raw(web: World, name: str | None) -> Iterator[http.client.HTTPSConnection]:
    context = ssl.create_default_context(cafile=str(web.ca / "ca.pem"))
    if name is not None:
        context.load_cert_chain(web.ca / f"{name}.pem", web.ca / f"{name}.key")
    connection = http.client.HTTPSConnection("localhost", int(web.base.rpartition(":")[2]), context=context)
    try:
        yield connection
    finally:
        connection.close()


def test_no_page_of_another_host_makes_a_browser_act(web: World) -> None:
    mine = web.submit(a_job(), campaign="of-ann", owner="ann")
    body = b'{"jobs": [%d]}' % mine
    with raw(web, "ann") as connection:
        for headers in (
            {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):  # fmt: skip
            connection.request("POST", "/v1/cancel", body, headers)
            reply = connection.getresponse()
            assert reply.status == 403, headers
            assert b"a page of another host" in reply.read(), headers
        connection.request("POST", "/v1/cancel", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert (reply.status, reply.read()) == (200, b'{"changed":1,"unchanged":0}')


def test_pages_forbid_what_they_do_not_need_and_lead_nowhere_else(web: World) -> None:
    with raw(web, "olga") as connection:
        connection.request("GET", "/jobs")
        reply = connection.getresponse()
        text = reply.read().decode()
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["strict-transport-security"]
        assert reply.headers["cache-control"] == "no-store"
        assert "style=" not in text
        assert "onclick" not in text
        for goal in ("//evil.example", "https://evil.example", "/\\evil.example", "/%0d%0aSet-Cookie: x"):
            connection.request("GET", "/login?" + urlencode({"next": goal}))
            reply = connection.getresponse()
            reply.read()
            assert reply.status == 303
            assert "evil" not in reply.headers["location"]
        for path in (
            "/jobs/1/log/1e9",
            "/jobs/99999999999999999999",
            "/jobs?after=x",
            "/jobs?state=%00",
            "/static/../x",
        ):
            connection.request("GET", path)
            reply = connection.getresponse()
            assert 400 <= reply.status < 500, path
            assert b"Traceback" not in reply.read()


def test_a_cookie_that_was_changed_or_is_of_another_server_lets_nobody_in(web: World) -> None:
    from tidemill.model.identity import LOCAL
    from tidemill.server.web.visits.sessions import Sessions

    foreign = Sessions(3_600)
    made = foreign.write(foreign.begin(LOCAL, 0))
    with raw(web, None) as connection:
        for value in (made, made[:-1], "x", "." + made.partition(".")[2], "é", "a" * 9_000):
            headers = {"Cookie": f"__Host-tidemill={value}".encode("latin-1").decode("latin-1")}
            connection.request("GET", "/jobs", headers=headers)
            reply = connection.getresponse()
            reply.read()
            assert (reply.status, reply.headers["location"]) == (303, "/login?next=%2Fjobs"), value[:20]


def test_who_may_read_no_jobs_hears_of_none(web: World) -> None:
    with raw(web, "ann") as ann, raw(web, "titan") as titan:
        feeds = {}
        for name, connection in (("ann", ann), ("titan", titan)):
            connection.request("GET", "/live?after=0")
            connection.sock.settimeout(20)
            feeds[name] = connection.getresponse()
            assert feeds[name].status == 200
            assert told_until(feeds[name], b"event: news")
        number = web.submit(a_job(), campaign="heard-by-ann", owner="ann")
        assert web.server.call("POST", "/v1/cancel", {"jobs": [number]})[0] == 200
        assert told_until(feeds["ann"], b"heard-by-ann")
        titan.sock.settimeout(3)
        with pytest.raises(TimeoutError):
            told_until(feeds["titan"], b"heard-by-ann")


def test_nobody_takes_all_places_for_live_pages(web: World) -> None:
    with ExitStack() as stack:
        for status in [200] * OWN_MAX + [503]:
            ann = stack.enter_context(raw(web, "ann"))
            ann.request("GET", "/live?after=0")
            reply = ann.getresponse()
            assert reply.status == status
            if status == 200:
                told_until(reply, b": pages")
        olga = stack.enter_context(raw(web, "olga"))
        olga.request("GET", "/live?after=0")
        assert olga.getresponse().status == 200


def told_until(feed: http.client.HTTPResponse, words: bytes) -> bytes:
    """The first line with these words."""
    while words not in (line := feed.readline()):
        assert line, "the feed ended"
    return line


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/login", {"Origin": "https://["}, 403),
        ("POST", "/v1/cancel", {"Origin": "https://["}, 403),
        ("OPTIONS", "*", {}, 401),
        ("GET", "jobs", {}, 303),
        ("GET", "nothing", {}, 401),
        ("GET", "//v1/jobs", {}, 401),
        ("GET", "//metrics", {}, 401),
        ("GET", "///jobs", {}, 303),
    ],
)
def test_strangers_who_ask_oddly_are_told_so(
    web: World, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    with raw(web, None) as connection:
        connection.request(method, path, b"" if method == "POST" else None, headers)
        reply = connection.getresponse()
        text = reply.read()
    assert reply.status == status, text


def test_a_form_is_small(web: World) -> None:
    with raw(web, None) as connection:
        connection.putrequest("POST", "/login")
        connection.putheader("content-type", "application/x-www-form-urlencoded")
        connection.putheader("content-length", str(32 * 1024 * 1024))
        connection.endheaders()
        connection.send(b"token=" + b"a" * 100_000)  # the rest is not waited for
        connection.sock.settimeout(10)
        assert connection.getresponse().status == 413


def test_an_address_in_any_script_can_be_gone_on_to(web: World) -> None:
    with raw(web, "olga") as connection:
        for goal, leads in (
            ("/applications/水車?q=é", "/applications/%E6%B0%B4%E8%BB%8A?q=%C3%A9"),
            ("/jobs?q=a%20b", "/jobs?q=a%20b"),
        ):
            connection.request("GET", "/login?" + urlencode({"next": goal}))
            reply = connection.getresponse()
            reply.read()
            assert (reply.status, reply.headers["location"]) == (303, leads)
    with raw(web, None) as connection:
        connection.request("GET", "/applications/50%25%3F")
        reply = connection.getresponse()
        reply.read()
        assert reply.headers["location"] == "/login?" + urlencode({"next": "/applications/50%25%3F"})
