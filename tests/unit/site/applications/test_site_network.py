"""What payloads reach: the site's default, and what an application says of itself."""

from __future__ import annotations

import pytest

from tidemill.config.site import SiteConfig
from tidemill.site.applications.programs import network_of


def site(**changes: object) -> SiteConfig:
    return SiteConfig(name="here", server="unix:/s", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "needed", "expected"),
    [
        ({}, None, "open"),
        ({}, False, "preferred"),
        ({"shared": True}, None, "preferred"),
        ({"shared": True}, True, "open"),
        ({"shared": True, "network": "open"}, None, "open"),
        ({"shared": True, "network": "open"}, False, "preferred"),
        ({"network": "closed"}, None, "closed"),
        ({"network": "closed"}, False, "closed"),
        ({"network": "closed"}, True, "open"),
    ],
)
def test_the_application_says_what_it_needs_and_the_site_what_others_get(
    changes: dict[str, object], needed: bool | None, expected: str
) -> None:
    assert network_of(site(**changes), needed) == expected


def test_a_closed_network_needs_namespaces() -> None:
    with pytest.raises(ValueError, match="closed"):
        site(isolation="off", network="closed")
