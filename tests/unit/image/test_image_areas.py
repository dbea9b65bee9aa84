"""Which directories an image may stand for."""

from __future__ import annotations

import os

import pytest

from tidemill.errors import ConfigError
from tidemill.image.areas import check_areas, why_not_beside


@pytest.mark.parametrize(
    "area", ["sw", "/sw/", "/sw/../x", os.fsdecode(b"/sw/\xff"), "/sw/\ud800", "/sw/new\nline"]
)
def test_areas_are_plain_absolute_paths(area: str) -> None:
    with pytest.raises(ConfigError, match="cannot become an image"):
        check_areas([area])


@pytest.mark.parametrize(("area", "beside"), [("/sw", "/home/me/site"), ("/home/me/sw", "/home/me/site")])
def test_an_area_beside_the_site_directory_is_legal(area: str, beside: str) -> None:
    assert why_not_beside([area], beside) is None
