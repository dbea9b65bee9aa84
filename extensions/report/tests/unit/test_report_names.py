"""`from tidemill import frames` is this extension's module."""

from __future__ import annotations

import tidemill
import tidemill_report.frames
from tidemill import extensions


def test_frames_of_tidemill_are_the_extensions() -> None:
    assert tidemill.frames is tidemill_report.frames
    assert "frames" in tidemill.__all__
    assert extensions.KNOWN["report"].sdk == ("frames",)
