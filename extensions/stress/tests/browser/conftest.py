"""The server and Chromium of the group: see tests/browser/conftest.py."""

from __future__ import annotations

from tests.worlds.services.web_world import opens, web, web_browser

__all__ = ["opens", "web", "web_browser"]
