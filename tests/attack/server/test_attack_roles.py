"""What each role is answered on every page, odd route, odd method and odd spelling of a path.

The cells of the API's own routes stand in tests/local/server/test_access.py (`CELLS`): every route, for one's own and
for another's things. Here are those that people's browsers and machines ask.
"""

from __future__ import annotations

import pytest
from tests.worlds.services.attack_world import Attacked, attacked

from tidemill.server.api.routes import ROUTES
from tidemill.server.web.routes import DEEDS, PAGES

__all__ = ["attacked"]
OWN, ALL, NO = "own", "all", "no"
#: columns: submitter, site, operator. `own`: what is another's is answered 403, or 404 where a listing leaves it out
CELLS: dict[str, tuple[str, str, str]] = {
    "/": (ALL, ALL, ALL),
    "/search": (ALL, ALL, ALL),
    "/jobs": (ALL, NO, ALL),
    "/jobs/{job:int}": (OWN, NO, ALL),
    "/jobs/{job:int}/log/{number:int}": (OWN, NO, ALL),
    "/campaigns": (ALL, NO, ALL),
    "/campaigns/{name:str}": (OWN, NO, ALL),
    "/failures": (ALL, NO, ALL),
    "/sites": (ALL, ALL, ALL),
    "/sites/{name:str}": (ALL, OWN, ALL),
    "/allocations": (NO, ALL, ALL),
    "/allocations/{name:str}": (NO, OWN, ALL),
    "/nodes": (NO, ALL, ALL),
    "/hospital": (ALL, ALL, ALL),
    "/transfers": (ALL, NO, ALL),
    "/caches": (ALL, NO, ALL),
    "/applications": (ALL, ALL, ALL),
    "/applications/{name:str}": (ALL, ALL, ALL),
    # beside the pages
    "/schema/openapi.json": (ALL, ALL, ALL),
    "/metrics": (NO, NO, ALL),
    "/live": (ALL, ALL, ALL),
    "/login": (ALL, ALL, ALL),
    "/health": (ALL, ALL, ALL),
    "/static/style.css": (ALL, ALL, ALL),
}
ROLES = {"ada": 0, "lrz": 1, "olga": 2}
OPEN_TO_STRANGERS = {"/login", "/health", "/static/style.css"}
NOT_THERE_YET = {"/jobs/{job:int}/log/{number:int}"}  #: whoever may ask is answered 404: nothing has run


def address(world: Attacked, path: str, *, own: bool) -> str:
    campaign, site = ("ada-1", "lrz") if own else ("bob-1", "nemo")
    if path.startswith("/allocations/"):
        return f"/allocations/tm-{site}"
    name = site if path.startswith("/sites") else "sim" if path.startswith("/applications") else campaign
    if "{job:int}" in path:
        path = path.replace("{job:int}", str(world.job_of(campaign)))
    return path.replace("{number:int}", "1").replace("{name:str}", name)


def test_every_page_has_its_cells() -> None:
    assert {each.path for each in PAGES} <= set(CELLS)


@pytest.mark.parametrize("who", ROLES)
def test_pages_show_what_the_cells_say_and_nothing_else(attacked: Attacked, who: str) -> None:
    for path, cells in CELLS.items():
        for own in (True, False):
            status, _, body = attacked.ask(who, "GET", address(attacked, path, own=own))
            cell = cells[ROLES[who]]
            if cell == ALL or (cell == OWN and own):
                assert status in ({404} if path in NOT_THERE_YET else {200, 303}), (who, path, own)
            else:
                assert status in (403, 404), (who, path, own)
            if who == "ada":
                asked = (b"/campaigns/bob-1", b"there is no campaign `bob-1`", b"no campaign &#34;bob-1&#34;")
                for each in asked:
                    body = body.replace(each, b"")
                assert b"bob-1" not in body, (path, own)


def test_strangers_see_the_door_only(attacked: Attacked) -> None:
    for path in CELLS:
        status, headers, body = attacked.ask(None, "GET", address(attacked, path, own=True))
        if path in OPEN_TO_STRANGERS:
            assert status == 200, path
        else:
            assert (status, headers.get("location", "")[:7]) in ((303, "/login?"), (401, "")), path
        assert b"ada" not in body, path
    for path in ("/v1/nothing", "/nothing", "/schema", "/docs", "/v1"):
        assert attacked.ask(None, "GET", path)[0] == 401, path


@pytest.mark.parametrize("who", [*ROLES, None])
def test_forms_do_nothing_without_the_token_of_a_session(attacked: Attacked, who: str | None) -> None:
    before = attacked.content()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for each in DEEDS:
        path = address(attacked, each.path, own=True)
        status, _, _ = attacked.ask(who, "POST", path, b"act=cancel&campaign=ada-1&drain=1", **form)
        assert status in ((401, 403) if who is None else (403,)), (who, path)
    assert attacked.content() == before


@pytest.mark.parametrize("who", [*ROLES, None])
def test_odd_methods_change_and_show_nothing(attacked: Attacked, who: str | None) -> None:
    before = attacked.content()
    for path in {
        address(attacked, path, own=True)
        for path in [*(each.path for each in ROUTES), *(each.path for each in PAGES)]
    }:
        for method in ("DELETE", "BREW"):
            status, _, _ = attacked.ask(who, method, path, b"{}")
            assert status in ((401, 405) if who is None else (405,)), (who, method, path)
    assert attacked.content() == before


@pytest.mark.parametrize(
    "path",
    [
        "//v1/jobs", "/v1/jobs/", "/v1/./jobs", "/v1/%6aobs", "/V1/jobs", "/v1/jobs;x", "/x/../v1/jobs", "/v1//jobs",
        "/v1/jobs%00", "/static/../v1/jobs", "/static/%2e%2e/v1/jobs", "/static/%2e%2e%2fapi.sock", "/v1/jobs%2f1",
        "/login/../v1/jobs", "/health/../v1/jobs", "/%2fv1/jobs", "*", "http://evil.example/v1/jobs",
    ],
)  # fmt: skip
def test_no_spelling_of_a_path_goes_round_the_guard(attacked: Attacked, path: str) -> None:
    assert attacked.ask(None, "GET", path)[0] in (303, 400, 401, 404)
    assert attacked.ask("lrz", "GET", path)[0] in (
        400,
        403,
        404,
    )  # a site sees no jobs, whatever they are called
