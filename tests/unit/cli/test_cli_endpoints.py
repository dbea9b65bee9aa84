"""What `site check` tells of places outside the site, without asking one."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from tidemill.cli.site.endpoints import examine_broker, examine_endpoints
from tidemill.client.authority import Authority, Wanted
from tidemill.config.site import SiteConfig
from tidemill.config.transfer import Endpoint


@pytest.mark.parametrize(
    ("endpoint", "state", "words"),
    [
        (Endpoint(url="https://h.example.org/in/"), "ok", "may be read"),
        (Endpoint(url="davs://*.example.org/", access="both"), "ok", "may be read and written"),
        (Endpoint(url="http://h.example.org/"), "warn", "without encryption"),
        (Endpoint(url="https://h.example.org/", access="write"), "ok", "may be written"),
        (Endpoint(url="https://h.example.org/", certificate=Path("/none")), "fail", "cannot be read"),
        (
            Endpoint(url="https://h.example.org/", token_file=Path("/none")),
            "fail",
            "its `token_file` `/none` does not exist",
        ),
        (Endpoint(url="https://me@h.example.org/"), "fail", "user name"),
        (Endpoint(url="s3://bucket/", credentials_file=Path("/none")), "fail", "no file `/none`"),
    ],
)
def test_a_check_tells_what_is_wrong_with_an_endpoint(endpoint: Endpoint, state: str, words: str) -> None:
    (found,) = examine_endpoints(SiteConfig(name="s", server="unix:/x", endpoints=[endpoint]))
    assert found.state == state
    assert words in found.found
    assert found.hint or state == "ok" or endpoint.credentials_file


def test_a_missing_client_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    config = SiteConfig(name="s", server="unix:/x", endpoints=[Endpoint(url="gsiftp://h.example.org/d/")])
    (found,) = examine_endpoints(config)
    assert (found.state, "globus-gass-copy-progs" in found.hint) == ("fail", True)


def test_a_server_that_is_reached_by_messages_wants_a_certificate_whose_key_fits(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, name="CA", days=1)
    lrz, cms = (authority.issue(Wanted(role="site", name=name, days=1), tmp_path) for name in ("lrz", "cms"))
    named = SiteConfig(name="lrz", server="amqps://broker.example.org", ca=authority.certificate_path)
    assert list(examine_broker(SiteConfig(name="lrz", server="https://h"))) == []
    (found,) = examine_broker(structs.replace(named, certificate=lrz.certificate, key=lrz.key))
    assert (found.state, found.found) == (
        "ok", "by messages, as `lrz` at amqps://broker.example.org:5671/tidemill",
    )  # fmt: skip
    for wrong, words in (
        (named, "wants a client certificate"),
        (structs.replace(named, certificate=lrz.certificate, key=cms.key), "cannot be used"),
        (structs.replace(named, server="amqp://h"), "is not a broker's address"),
        (structs.replace(named, server="amqps://me:word@h"), "holds a password"),
    ):
        (found,) = examine_broker(wrong)
        assert (found.state, words in found.found, bool(found.hint)) == ("fail", True, True)
