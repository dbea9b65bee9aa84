"""Errors as those see them who write Python."""

from __future__ import annotations

import traceback

from tidemill.errors import ConfigError, SiteError


def test_a_traceback_shows_what_to_do() -> None:
    text = "".join(traceback.format_exception(SiteError("no data frames", hint="`pip install pyarrow`")))
    assert text.endswith("tidemill.errors.SiteError: no data frames\nhint: `pip install pyarrow`\n")
    assert not hasattr(ConfigError("wrong"), "__notes__")
