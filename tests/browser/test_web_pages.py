"""The pages in Chromium, on a real server with TLS: who comes in, what is shown to whom."""

from __future__ import annotations

import http.server
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.services import node_series
from tests.worlds.services.browser import DESK, PHONE, Watched
from tests.worlds.services.pages_world import EVIL
from tests.worlds.services.server_process import until
from tests.worlds.services.web_world import SECRET, Opens, World, a_job, log_in

from tidemill import clock
from tidemill.wire.api import AllocationReport
from tidemill.wire.views import RawViews, packed

#: Pages and their addresses. `ada`, `bob` and `eve` have what `pages_world` made; tests act as `ann` and `carol@iam`.
PAGES = {
    "overview": "/", "jobs": "/jobs", "job": "/jobs/1", "job-evil": "/jobs/{evil}", "job-stuck": "/jobs/{stuck}",
    "campaigns": "/campaigns", "campaign": "/campaigns/mc23-ttbar", "failures": "/failures", "sites": "/sites",
    "site": "/sites/titan", "site-1h": "/sites/titan?span=1h", "allocations": "/allocations",
    "allocation": "/allocations/tm-titan-7", "allocation-none": "/allocations/tm-titan-1", "nodes": "/nodes",
    "hospital": "/hospital",
    "transfers": "/transfers", "applications": "/applications", "application": "/applications/simulate",
    "caches": "/caches",
    "search": "/search?q=mc23", "search-none": "/search?q=nothing-is-called-so", "job-none": "/jobs/99999",
}  # fmt: skip
#: What pages of docs/ show, such as docs/web.md: nine at most, each a look of its own.
SHOTS = {
    "light": ("overview", "jobs", "job", "caches", "hospital", "allocation"),
    "dark": ("site",),
    "phone": ("overview", "job"),
}
SHOT_BYTES_MAX = 150_000


# ---- coming in -------------------------------------------------------------------------------------------------


def test_a_token_lets_in_for_a_while_and_what_was_left_is_worth_nothing(web: World, opens: Opens) -> None:
    her = opens(None)
    her.expected = ["status of 403"]
    her.go("/jobs?state=FAILED")
    assert her.page.url.startswith(f"{web.base}/login?next=")
    her.page.fill("#token", "no-such-token-at-all-is-known")
    her.follow("button.do")
    assert "wrong" in her.text()
    her.page.fill("#token", SECRET)
    her.follow("button.do")
    assert her.page.url == f"{web.base}/jobs?state=FAILED"
    (cookie,) = her.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (
        "__Host-tidemill", True, True, "Strict",
    )  # fmt: skip
    assert SECRET not in cookie["value"]
    her.follow("text=Log out")
    assert her.page.url == f"{web.base}/login"
    her.context.add_cookies([cookie])
    her.go("/jobs")
    assert her.page.url.startswith(f"{web.base}/login")
    assert not her.troubles


def test_a_certificate_lets_in_and_shows_its_owners_work_only(web: World, opens: Opens) -> None:
    ada = opens("ada")
    ada.expected = ["status of 403", "status of 404"]
    ada.go("/campaigns")
    assert "mc23-ttbar" in ada.text()
    assert "reprocess-2025" not in ada.text()
    ada.go("/jobs?size=200")
    assert "61 jobs" in ada.text()
    for path in (
        f"/jobs/{web.evil}",
        "/campaigns/limits",
        "/failures?campaign=limits",
    ):
        assert ada.go(path).status == 404, path
    for path in ("/allocations", "/nodes"):
        assert ada.go(path).status == 403, path
    assert "Allocations" not in ada.page.inner_text("body")
    ada.go("/failures")
    links = ada.page.locator("article a[href^='/jobs/']").evaluate_all(
        "all => all.map((each) => each.pathname)"
    )
    numbers = {int(each.removeprefix("/jobs/")) for each in links}
    assert numbers
    assert max(numbers) <= 61  # jobs of others come behind
    ada.go("/search?q=limits")
    assert "limits-0" not in ada.text()
    ada.go("/transfers?campaign=mc23-ttbar")
    assert "cards.dat" in ada.text()
    assert not ada.troubles


def test_a_login_by_token_has_the_rights_of_the_token_and_ends_with_it(web: World, opens: Opens) -> None:
    web.submit(a_job(), campaign="of-carol", owner="carol@iam")
    carol = opens(None)
    carol.expected = ["status of 404", "status of 401"]
    log_in(
        carol, web.issuer.token(scope="compute.read", exp=int(time.time()) + 20)
    )  # pages are read before, on a busy machine, too
    carol.go("/campaigns")
    assert "of-carol" in carol.text()
    assert "mc23-ttbar" not in carol.text()
    assert carol.go(f"/jobs/{web.long}").status == 404  # it is another's
    carol.go("/campaigns/of-carol")
    assert carol.page.locator("text=Cancel…").count() == 0  # the token does not say compute.cancel
    carol.page.wait_for_url(
        "**/login?next=%2Fcampaigns%2Fof-carol", timeout=60_000
    )  # the live feed ends with it
    assert carol.go("/jobs").url == f"{web.base}/login?next=%2Fjobs"
    assert not carol.troubles


def test_who_is_revoked_is_out_with_the_next_request_and_sees_nothing_live(web: World, opens: Opens) -> None:
    carol = opens(None)
    carol.expected = ["status of 401"]
    token = web.issuer.token(jti="stolen")
    log_in(carol, token)
    carol.go("/campaigns")
    assert carol.page.url == f"{web.base}/campaigns"
    assert not refuses(carol, token)
    web.revoked.write_text("token stolen\n")
    try:
        until(lambda: refuses(carol, token))  # a thread reads the list once a second
        web.submit(a_job(), campaign="behind-her-back", owner="carol@iam")
        carol.page.wait_for_url("**/login?next=%2Fcampaigns")
        assert "is revoked" in carol.text()
        assert "behind-her-back" not in carol.text()
        log_in(carol, web.issuer.token(jti="stolen"))
        assert "is revoked" in carol.text()
    finally:
        web.revoked.write_text("")


def refuses(watched: Watched, token: str) -> bool:
    """Whether the server refuses a program that comes with this token."""
    headers = {"Authorization": f"Bearer {token}"}
    return bool(watched.context.request.get(watched.base + "/v1/jobs", headers=headers).status == 401)


def test_a_site_sees_itself_and_no_jobs(web: World, opens: Opens) -> None:
    titan = opens("titan")
    titan.expected = ["status of 403", "status of 404"]
    titan.go("/")
    assert "titan" in titan.text()
    assert "theta" not in titan.text()
    titan.go("/allocations")
    assert "tm-titan-1" in titan.text()
    for path in ("/jobs", f"/jobs/{web.long}", "/campaigns", "/failures", "/transfers"):
        assert titan.go(path).status == 403, path
    assert titan.go("/sites/theta").status == 404
    titan.go("/allocations/tm-titan-7")
    assert titan.page.locator("svg.lines").count() > 10
    text = titan.page.inner_text("#allocation")
    for name in ("NFS opens", "NFS closes", "Lustre closes"):
        assert re.search(rf"{name} mean [\d.,k]+/s, sum [\d.,k]+/s", text), name
    assert "Lustre opens" not in text, "nobody counts them"
    assert "Not counted here: opens of files on Lustre" in text
    assert not titan.troubles


def test_a_link_in_a_mail_leads_to_its_page_without_another_login(web: World, opens: Opens) -> None:
    her = opens(None)
    log_in(her)
    link = f"<a id=go href='{web.base}/jobs/{web.long}'>your job has ended</a>".encode()

    class Mail(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(link)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Mail) as mail:
        threading.Thread(target=mail.serve_forever, daemon=True).start()
        her.page.goto(f"http://127.0.0.1:{mail.server_port}/")
        her.page.click("#go")
        her.page.wait_for_selector("h1:has-text('Job 1')")
        mail.shutdown()


# ---- what is shown -----------------------------------------------------------------------------------------------


def test_jobs_are_searched_filtered_sorted_and_paged_by_addresses_that_can_be_shared(opens: Opens) -> None:
    olga = opens("olga")
    page = olga.page
    olga.go("/jobs")
    page.select_option("[name=state]", "FAILED")
    page.wait_for_url("**/jobs?state=FAILED*")
    assert set(page.locator("td .state").all_inner_texts()) == {"✗ FAILED"}
    page.select_option("[name=campaign]", "bob/reprocess-2025")
    page.wait_for_url("**campaign=bob%2Freprocess-2025*")
    shared = page.url
    shown = page.locator("td.name").all_inner_texts()
    page.goto(shared)
    assert page.locator("td.name").all_inner_texts() == shown
    olga.go("/jobs")
    page.fill("main [name=q]", "mc23-ttbar-00005")
    page.press("main [name=q]", "Enter")
    page.wait_for_url("**q=mc23-ttbar-00005*")
    assert page.locator("tbody tr").count() == 10
    page.select_option("[name=sort]", "oldest")
    page.wait_for_url("**sort=oldest*")
    assert page.locator("td.name b").first.inner_text() == "mc23-ttbar-000050"
    olga.go("/jobs?size=25&sort=name")
    seen = page.locator("td.name b").all_inner_texts()
    while page.locator("a[rel=next]").count():
        olga.follow("a[rel=next]")
        seen += page.locator("td.name b").all_inner_texts()
    assert seen == sorted(seen)
    seen = [each for each in seen if each != "mine"]  # of the tests that act
    assert len(set(seen)) == len(seen) == 80
    page.fill(".find input", "limi")
    page.press(".find input", "Enter")
    page.wait_for_url("**/search?q=limi")
    assert page.locator("a[href^='/campaigns/limits?owner=']").count()
    page.fill(".find input", "94")
    page.press(".find input", "Enter")
    page.wait_for_url("**/search?q=94")
    assert page.locator("a[href='/jobs/94']").count()
    assert not olga.troubles


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_every_page_can_be_read_and_asks_no_other_host(
    web: World, opens: Opens, look: str, tmp_path: Path
) -> None:
    view = PHONE if look == "phone" else DESK
    olga = opens("olga", viewport=view, color_scheme="dark" if look == "dark" else "light")
    olga.expected = ["status of 404"]
    shots = Path(os.environ.get("TIDEMILL_SCREENSHOTS") or tmp_path)
    shots.mkdir(exist_ok=True)
    for name, path in PAGES.items():
        olga.go(path.format(evil=web.evil, stuck=web.stuck))
        olga.page.locator("body").evaluate(
            "el => el.querySelectorAll('.failure details').forEach(d => d.open = true)"
        )
        olga.check()
        olga.page.locator("body").evaluate(
            "el => el.querySelectorAll('.failure details').forEach(d => d.open = false)"
        )
        if name in SHOTS[look]:
            shot = shots / f"{name}-{look}.png"
            olga.page.screenshot(path=shot)
            assert 5_000 < shot.stat().st_size < SHOT_BYTES_MAX, shot.name
    strange = opens(None, viewport=view, color_scheme="dark" if look == "dark" else "light")
    strange.go("/")
    strange.check()


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_caches_are_read_without_scripts_as_quantities_that_people_read(opens: Opens, look: str) -> None:
    view = PHONE if look == "phone" else DESK
    scheme = "dark" if look == "dark" else "light"
    plain = opens("olga", viewport=view, color_scheme=scheme, java_script_enabled=False)
    plain.go("/caches")
    text = plain.text()
    for words in (
        "Too small:", "xrootd was killed by SIGKILL", "The figures disagree: believe the connections",
        "The figures agree", "/store/data/mc23/ttbar.13p6TeV.AOD", "73 TB", "85 %", "0.15",
        "What payloads read", "192.0.2.7:1094", "Not counted:",
    ):  # fmt: skip
        assert words in text, words
    assert "did not arrive" not in text  # it is said once, with the figures that disagree
    shown = text.replace(EVIL, "")
    assert re.findall(r"\d{7,}|\d{1,3}(?:,\d{3}){3,}", shown) == []  # bytes have units
    assert not plain.troubles


def test_the_page_of_an_allocation_renews_itself_as_samples_come(web: World, opens: Opens) -> None:
    now_us = clock.now_us()

    def measured(*nodes: str) -> RawViews:
        found = node_series.samples("tm-lrz-1", [*nodes], until_us=now_us, points=3, every_us=2_000_000)
        return packed(mode="observe", samples=[found])

    allocation = AllocationReport(
        n=0, name="tm-lrz-1", batch_id="7", state="ACTIVE", nodes=2, cores=16, at_us=now_us, reason="", busy_us=0,
        slot_us=0,
    )  # fmt: skip
    web.lrz.sync(allocation, views=measured("nid1"))
    titan, olga = opens("titan"), opens("olga")
    titan.expected = ["status of 404"]
    assert titan.go("/allocations/tm-lrz-1").status == 404  # it is another's
    olga.go("/allocations")
    olga.follow("text=tm-lrz-1")
    assert olga.page.locator("td.name").all_inner_texts() == ["nid1"]
    web.lrz.sync(views=measured("nid1", "nid2"))
    olga.page.wait_for_selector("td.name >> text=nid2", timeout=20_000)
    assert olga.page.locator("svg.lines").first.locator(".member").count() == 2
    olga.check()


def test_pages_are_used_by_keyboard_and_without_javascript(web: World, opens: Opens) -> None:
    olga = opens("olga")
    olga.go("/jobs")
    olga.page.keyboard.press("Tab")
    assert olga.page.evaluate("document.activeElement.textContent") == "Skip to the page"
    olga.page.keyboard.press("Enter")
    # Chromium may move the focus to a place in the page only with the next frame
    olga.page.wait_for_function("document.activeElement.id === 'main'")
    olga.page.keyboard.press("/")
    assert olga.page.evaluate("document.activeElement.name") == "q"
    plain = opens("olga", java_script_enabled=False)
    plain.go("/jobs")
    plain.page.select_option("[name=state]", "COMPLETED")
    plain.follow("text=Show")
    assert "state=COMPLETED" in plain.page.url
    number = web.submit(a_job(), campaign="plain", owner="ann")
    plain.go(f"/jobs/{number}")
    plain.page.click("text=Cancel…")
    plain.follow("button.danger")
    assert "1 job canceled" in plain.text()
    assert "CANCELED" in plain.text()


def test_a_long_list_is_folded_on_a_phone_and_stays_open_when_it_is_renewed(web: World, opens: Opens) -> None:
    olga = opens("olga", viewport=PHONE)
    olga.go("/allocations")
    rows = olga.page.locator("#list tbody tr")
    before = rows.count()
    assert before > 10
    assert rows.locator("visible=true").count() == 10
    olga.page.click("text=Show all")
    assert rows.locator("visible=true").count() == before
    allocation = AllocationReport(
        n=0, name="tm-lrz-late", batch_id="8", state="ACTIVE", nodes=1, cores=8, at_us=clock.now_us(), reason="",
        busy_us=0, slot_us=0,
    )  # fmt: skip
    web.lrz.sync(allocation)
    olga.page.wait_for_selector("text=tm-lrz-late", timeout=60_000)
    assert rows.locator("visible=true").count() == before + 1
    assert not olga.troubles
