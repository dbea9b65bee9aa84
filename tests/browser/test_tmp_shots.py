from __future__ import annotations
from pathlib import Path
import pytest
from tests.browser.test_web_pages import PAGES
from tests.worlds.services.browser import DESK, PHONE
from tests.worlds.services.web_world import Opens, World

def test_shots(web: World, opens: Opens) -> None:
    out = Path("/tmp/shots")
    for look, names in (("phone", list(PAGES)), ("light", ["campaign", "campaigns", "transfers", "failures", "allocations", "nodes", "applications", "sites", "site"]), ("dark", ["campaign", "overview", "jobs", "job", "failures", "caches", "hospital", "transfers", "allocation"])):
        olga = opens("olga", viewport=PHONE if look == "phone" else DESK, color_scheme="dark" if look == "dark" else "light")
        olga.expected = ["status of 404"]
        for name in names:
            olga.go(PAGES[name].format(evil=web.evil, stuck=web.stuck))
            olga.page.screenshot(path=out / f"x-{name}-{look}.png", full_page=True)
