"""What `site check` tells of places outside the site, without asking one."""

from __future__ import annotations

import base64
import json
import os
import time
from itertools import islice
from pathlib import Path

import pytest
from msgspec import structs

from tidemill.cli.site.endpoints import examine_endpoints
from tidemill.config.keys import DISCOVER
from tidemill.config.site import SiteConfig
from tidemill.config.transfer import Endpoint
from tidemill.errors import ConfigError
from tidemill.transfer.allowed import permit
from tidemill.transfer.contract import Direction
from tidemill.transfer.credentials import environment, token, token_places
from tidemill.wire.credentials import LAST_PLACE, Credentials, find_token

TOKEN = Path("/one")  #: a token that the test writes


@pytest.mark.parametrize(
    ("endpoint", "state", "words"),
    [
        (Endpoint(url="https://h.example.org/in/"), "ok", "may be read"),
        (Endpoint(url="davs://*.example.org/", access="both"), "ok", "may be read and written"),
        (Endpoint(url="http://h.example.org/"), "warn", "without encryption"),
        (
            Endpoint(url="http://h.example.org/", token_file=TOKEN),
            "fail",
            "sends no bearer token without encryption",
        ),
        (Endpoint(url="https://h.example.org/", access="write"), "ok", "may be written"),
        (Endpoint(url="https://h.example.org/", certificate=Path("/none")), "fail", "cannot be read"),
        (
            Endpoint(url="https://h.example.org/", token_file=Path("/none")),
            "fail",
            "its `token_file` `/none` does not exist",
        ),
        (Endpoint(url="https://me@h.example.org/"), "fail", "user name"),
        (Endpoint(url="s3://bucket/", credentials_file=Path("/none")), "fail", "`/none` does not exist"),
    ],
)
def test_a_check_tells_what_is_wrong_with_an_endpoint(
    endpoint: Endpoint, state: str, words: str, tmp_path: Path
) -> None:
    if endpoint.token_file == TOKEN:
        endpoint = structs.replace(endpoint, token_file=write_token(tmp_path / "token", time.time() + 3600))
    (found,) = examine_endpoints(SiteConfig(name="s", server="unix:/x", endpoints=[endpoint]))
    assert found.state == state
    assert words in found.found
    assert found.hint or state == "ok" or endpoint.credentials_file


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No token is in any of the WLCG's places; the first of those directories is `tmp_path`."""
    for name in ("BEARER_TOKEN", "BEARER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    if (LAST_PLACE / f"bt_u{os.geteuid()}").exists():
        pytest.skip("a token of this user is in /tmp")
    return tmp_path


def write_token(path: Path, ends_s: float) -> Path:
    """A token in a private file."""
    body = base64.urlsafe_b64encode(json.dumps({"exp": ends_s}).encode()).rstrip(b"=").decode()
    path.write_text(f"e30.{body}.c2ln")
    path.chmod(0o600)
    return path


def test_an_endpoint_that_finds_its_token_is_not_ok_without_one(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SiteConfig(
        name="s", server="unix:/x", endpoints=[Endpoint(url="https://h.example.org/", token_file=DISCOVER)]
    )
    (found,) = examine_endpoints(config)
    name = f"bt_u{os.geteuid()}"
    assert (found.state, found.found) == (
        "warn", "`https://h.example.org/` may be read, but no bearer token was found: $BEARER_TOKEN is not set, "
        f"$BEARER_TOKEN_FILE is not set, `{bare / name}` does not exist, `{LAST_PLACE / name}` does not exist",
    )  # fmt: skip
    assert "the agent looks in the environment in which it was started" in found.hint

    write_token(bare / name, time.time() + 3600)
    (found,) = examine_endpoints(config)
    assert found.state == "ok"
    assert f"with the bearer token of `{bare / name}`, until 20" in found.found
    write_token(bare / name, time.time() - 3600)
    (found,) = examine_endpoints(config)
    assert (found.state, f"but its bearer token `{bare / name}` ended at" in found.found) == ("fail", True)

    monkeypatch.setenv("BEARER_TOKEN", "e30.e30.c2ln")
    (found,) = examine_endpoints(config)
    assert (found.state, "with the bearer token of $BEARER_TOKEN" in found.found) == ("ok", True)


def test_a_place_of_tokens_that_cannot_be_looked_up_has_none(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As $XDG_RUNTIME_DIR of another user, which is closed to us: `Path.exists` raises, of this path for root, too."""
    closed = bare / ("x" * 300)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(closed))
    endpoint = Endpoint(url="https://h.example.org/", token_file=DISCOVER)
    place = permit("https://h.example.org/f", [endpoint], Direction.IN)
    assert (token(place), find_token()) == (None, None)
    (found,) = examine_endpoints(SiteConfig(name="s", server="unix:/x", endpoints=[endpoint]))
    assert f"`{closed / f'bt_u{os.geteuid()}'}` cannot be seen from here: " in found.found
    monkeypatch.setenv("BEARER_TOKEN", "abc")
    assert token(place) == "abc"
    assert [each.name for each in islice(token_places(os.environ), 1)] == ["$BEARER_TOKEN"]


def test_a_ca_that_cannot_be_looked_up_crashes_no_transfer(tmp_path: Path) -> None:
    ca = tmp_path / ("x" * 300) / "ca.pem"
    endpoint = Endpoint(url="https://h.example.org/", ca=ca)
    assert environment(endpoint)["X509_CERT_DIR"] == str(ca.parent)
    with pytest.raises(ConfigError):
        Credentials(ca=ca).context()


def test_a_token_file_that_has_ended_is_no_credential(tmp_path: Path) -> None:
    file = write_token(tmp_path / "token", time.time() - 60)
    config = SiteConfig(
        name="s", server="unix:/x", endpoints=[Endpoint(url="https://h.example.org/", token_file=file)]
    )
    (found,) = examine_endpoints(config)
    assert (found.state, "ended at" in found.found, "renew it" in found.hint) == ("fail", True, True)


def test_a_missing_client_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    config = SiteConfig(name="s", server="unix:/x", endpoints=[Endpoint(url="root://h.example.org//d/")])
    (found,) = examine_endpoints(config)
    assert (found.state, "xrootd-client" in found.hint) == ("fail", True)
