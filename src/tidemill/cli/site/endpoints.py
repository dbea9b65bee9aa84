"""Findings of `site check` on endpoints: clients, files, dates. Connects to no server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.errors import ConfigError, TidemillError, install_hint
from tidemill.site.setup.finding import Finding

if TYPE_CHECKING:
    from tidemill.config.site import SiteConfig
    from tidemill.config.transfer import Endpoint

PROGRAMS = {
    "root": (("xrdcp", "xrdfs"), "xrootd-client"),
    "gsiftp": (("globus-url-copy",), "globus-gass-copy-progs"),
    "ftp": (("globus-url-copy",), "globus-gass-copy-progs"),
}


def examine_endpoints(read: SiteConfig) -> Iterator[Finding]:
    """One finding for each endpoint; none where there are none."""
    for endpoint in read.endpoints:
        try:
            yield _examine(endpoint)
        except TidemillError as error:
            yield Finding("endpoint", "fail", error.message, error.hint or "")


def examine_broker(read: SiteConfig) -> Iterator[Finding]:
    """Of a server reached by messages: whether address, certificate and library are usable. Connects to no broker."""
    from tidemill.site.link.transport import credentials_of
    from tidemill.wire.broker import broker_of, is_broker, library

    if not is_broker(read.server):
        return
    try:
        library()
        broker = broker_of(read.server, credentials_of(read), user=read.name)
    except ConfigError as error:
        yield Finding("server", "fail", error.message, error.hint or "")
    else:
        yield Finding("server", "ok", f"by messages, as `{broker.user}` at {broker.address}")


def _examine(endpoint: Endpoint) -> Finding:
    from tidemill.transfer.allowed import check_endpoint, permit
    from tidemill.transfer.contract import Direction
    from tidemill.transfer.credentials import tls, token

    check_endpoint(endpoint)
    ways = {"read": "read", "write": "written", "both": "read and written"}[endpoint.access]
    scheme = endpoint.url.partition("://")[0].lower().removeprefix("x").removesuffix("s")
    programs, package = PROGRAMS.get(scheme, ((), ""))
    missing = [each for each in programs if shutil.which(each) is None]
    if missing:
        return Finding(
            "endpoint", "fail", f"`{endpoint.url}` needs `{missing[0]}`", f"install it (Debian: {package})"
        )
    if endpoint.credentials_file is not None and not endpoint.credentials_file.is_file():
        raise ConfigError(f"`{endpoint.url}`: there is no file `{endpoint.credentials_file}`")
    if scheme == "s3":
        try:
            import boto3  # noqa: F401
        except ImportError:
            return Finding("endpoint", "fail", f"`{endpoint.url}` needs boto3", install_hint("s3"))
    else:
        way = Direction.IN if endpoint.is_read else Direction.OUT
        place = permit(endpoint.url.replace("://*.", "://any.", 1), [endpoint], way)
        tls(place)  # reads the certificate and the authorities
        token(place)
    if endpoint.url.startswith(("http:", "ftp:", "dav:")):
        hint = "its data and names can be read and changed on the way; use https, gsiftp or roots"
        return Finding("endpoint", "warn", f"`{endpoint.url}` may be {ways}, without encryption", hint)
    return Finding("endpoint", "ok", f"`{endpoint.url}` may be {ways}")
