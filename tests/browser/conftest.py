"""One server that shows pages for all tests of the group, and Chromium to look at them."""

from __future__ import annotations

from tests.worlds.services.web_world import opens, web, web_browser

__all__ = ["opens", "web", "web_browser"]
