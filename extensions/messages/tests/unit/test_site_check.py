"""What `site check` says of a server that is reached by messages."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from tidemill.cli.site.endpoints import examine_transport
from tidemill.client.authority import Authority, Wanted
from tidemill.config.site import SiteConfig


def test_a_server_that_is_reached_by_messages_wants_a_certificate_whose_key_fits(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, name="CA", days=1)
    lrz, cms = (authority.issue(Wanted(role="site", name=name, days=1), tmp_path) for name in ("lrz", "cms"))
    named = SiteConfig(name="lrz", server="amqps://broker.example.org", ca=authority.certificate_path)
    assert list(examine_transport(SiteConfig(name="lrz", server="https://h"))) == []
    (found,) = examine_transport(structs.replace(named, certificate=lrz.certificate, key=lrz.key))
    assert (found.state, found.found) == (
        "ok", "by messages, as `lrz` at amqps://broker.example.org:5671/tidemill",
    )  # fmt: skip
    for wrong, words in (
        (named, "wants a client certificate"),
        (structs.replace(named, certificate=lrz.certificate, key=cms.key), "cannot be used"),
        (structs.replace(named, server="amqp://h"), "is not a broker's address"),
    ):
        (found,) = examine_transport(wrong)
        assert (found.state, words in found.found, bool(found.hint)) == ("fail", True, True)
