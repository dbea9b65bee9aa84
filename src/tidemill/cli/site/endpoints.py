"""Findings of `site check` on endpoints: clients, files, dates. Connects to no server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill import clock
from tidemill.errors import ConfigError, TidemillError, install_hint
from tidemill.files import why_unseen
from tidemill.site.setup.finding import Finding

if TYPE_CHECKING:
    from tidemill.config.site import SiteConfig
    from tidemill.config.transfer import Endpoint

XROOTD = (("xrdcp", "xrdfs"), "xrootd-client")


def examine_endpoints(read: SiteConfig) -> Iterator[Finding]:
    """One finding for each endpoint; none where there are none."""
    for endpoint in read.endpoints:
        try:
            yield _examine(endpoint)
        except TidemillError as error:
            yield Finding("endpoint", "fail", error.message, error.hint or "")


def examine_transport(read: SiteConfig) -> Iterator[Finding]:
    """Check what an extension's transport needs to reach the server. Connects to nothing."""
    from tidemill.site.link.transport import credentials_of
    from tidemill.wire.transports import kind_of

    try:
        kind = kind_of(read.server)
        if kind is not None:
            yield Finding("server", "ok", kind.examine(read, credentials_of(read)))
    except ConfigError as error:
        yield Finding("server", "fail", error.message, error.hint or "")


def _client(scheme: str) -> tuple[tuple[str, ...], str]:
    """The programs that move files of a scheme, and Debian's package with them."""
    from tidemill.transfer.schemes import added, scheme_of

    if scheme in added():
        found = scheme_of(scheme)
        return found.programs, found.package
    return XROOTD if scheme == "root" else ((), "")


def _examine(endpoint: Endpoint) -> Finding:
    from tidemill.transfer.allowed import check_endpoint, permit
    from tidemill.transfer.contract import Direction
    from tidemill.transfer.credentials import tls, token

    check_endpoint(endpoint)
    ways = {"read": "read", "write": "written", "both": "read and written"}[endpoint.access]
    scheme = endpoint.url.partition("://")[0].lower().removeprefix("x").removesuffix("s")
    programs, package = _client(scheme)
    missing = [each for each in programs if shutil.which(each) is None]
    if missing:
        return Finding(
            "endpoint", "fail", f"`{endpoint.url}` needs `{missing[0]}`", f"install it (Debian: {package})"
        )
    if endpoint.credentials_file is not None:
        why = why_unseen(endpoint.credentials_file)
        if why:
            raise ConfigError(f"`{endpoint.url}`: `credentials_file` `{endpoint.credentials_file}` {why}")
        if not endpoint.credentials_file.is_file():
            raise ConfigError(
                f"`{endpoint.url}`: its `credentials_file` `{endpoint.credentials_file}` is not a file"
            )
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
        wrong = _token_finding(endpoint, f"`{endpoint.url}` may be {ways}")
        if wrong is not None:
            return wrong
    if endpoint.url.startswith(("http:", "ftp:", "dav:")):
        hint = "its data and names can be read and changed on the way; use https, gsiftp or roots"
        has_token = endpoint.token_path is not None or endpoint.finds_token
        if has_token and not endpoint.url.startswith("ftp:"):
            why = "Tidemill sends no bearer token without encryption, so that every transfer fails"
            return Finding("endpoint", "fail", f"`{endpoint.url}`: {why}", "use `https://`, or no token")
        return Finding("endpoint", "warn", f"`{endpoint.url}` may be {ways}, without encryption", hint)
    return Finding("endpoint", "ok", f"`{endpoint.url}` may be {ways}{_shown(endpoint)}")


def _token_finding(endpoint: Endpoint, head: str) -> Finding | None:
    """What is wrong with the bearer token that the endpoint is shown: there is none, or it has ended."""
    from tidemill.transfer.credentials import found_at, token_end_s, token_places

    renew = "`htgettoken` and oidc-agent make one"
    if endpoint.finds_token and found_at(os.environ) is None:
        tried = ", ".join(
            f"{each.name} {'is not set' if each.path is None else why_unseen(each.path)}"
            for each in token_places(os.environ)
        )
        return Finding(
            "endpoint", "warn", f"{head}, but no bearer token was found: {tried}",
            f"{renew}; the agent looks in the environment in which it was started",
        )  # fmt: skip
    path = _token_path(endpoint)
    end_s = None if path is None else token_end_s(path)
    if end_s is None or end_s > clock.now_s():
        return None
    told = f"{head}, but its bearer token `{path}` ended at {clock.utc_text(int(end_s * 1e6))}"
    return Finding("endpoint", "fail", told, f"renew it: {renew}")


def _token_path(endpoint: Endpoint) -> Path | None:
    """The file of the bearer token that the endpoint is shown, if it is in one."""
    from tidemill.transfer.credentials import found_at

    place = found_at(os.environ) if endpoint.finds_token else None
    return endpoint.token_path if place is None else place.path


def _shown(endpoint: Endpoint) -> str:
    """By which credential an endpoint is used, behind a comma."""
    from tidemill.transfer.credentials import found_at, token_end_s

    place = found_at(os.environ) if endpoint.finds_token else None
    path = _token_path(endpoint)
    if place is None and path is None:
        return ""
    end_s = None if path is None else token_end_s(path)
    until = "" if end_s is None else f", until {clock.utc_text(int(end_s * 1e6))}"
    return f", with the bearer token of {f'`{path}`' if path is not None else '$BEARER_TOKEN'}{until}"
