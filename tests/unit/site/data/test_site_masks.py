"""site/data/masks.py."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import tidemill
from tidemill.config.caching import SiteCache
from tidemill.config.keys import DISCOVER
from tidemill.config.outlets import Metrics
from tidemill.config.site import SiteConfig
from tidemill.config.transfer import Endpoint
from tidemill.site.data.masks import masked_paths, private_paths, secrets_in, shown_credentials, view_of

KEYS = Path("/srv/keys")


def config(tmp_path: Path) -> SiteConfig:
    return SiteConfig(
        name="s", server="https://server.example.org", certificate=KEYS / "site.pem", key=KEYS / "site.key",
        token_file=KEYS / "site.token", metrics=Metrics(secret_file=KEYS / "metrics.secret"),
        mask=[tmp_path / "more"],
        endpoints=[
            Endpoint(url="https://dav.example.org/exp/", token_file=KEYS / "dav.token", ca=KEYS / "ca.pem"),
            Endpoint(url="https://proxied.example.org/exp/", certificate=KEYS / "proxy.pem"),
            Endpoint(
                url="davs://x.example.org/exp/", certificate=KEYS / "robot.pem", key=KEYS / "robot.key"
            ),
            Endpoint(url="s3://bucket/", credentials_file=KEYS / "s3"),
            Endpoint(url="https://found.example.org/exp/", token_file=DISCOVER),
        ],
    )  # fmt: skip


def test_payloads_see_no_secret_of_the_site_also_not_those_for_other_places(tmp_path: Path) -> None:
    """They run as the agent's user, who may read all of these."""
    secrets = {
        "site.key", "site.token", "metrics.secret", "dav.token", "proxy.pem", "robot.key", "s3"
    }  # fmt: skip
    masked = masked_paths(tmp_path / "site", config(tmp_path))
    assert {path.name for path in masked if path.parent == KEYS} == secrets
    assert {tmp_path / "site", tmp_path / "more"} <= set(masked)


class Inner(msgspec.Struct, frozen=True):
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    token_file: Path | None = None


class Outer(msgspec.Struct):
    secret_file: Path | None = None
    data: Path | None = None
    inner: Inner = Inner()
    several: list[Inner] = []
    named: dict[str, Inner] = {}


def test_nor_those_that_tables_of_extensions_name_however_deep() -> None:
    table = Outer(
        secret_file=KEYS / "login", data=KEYS / "list", inner=Inner(certificate=KEYS / "proxy", ca=KEYS / "ca"),
        several=[Inner(certificate=KEYS / "own.pem", key=KEYS / "own.key")],
        named={"a": Inner(token_file=KEYS / "jwt"), "b": Inner(token_file=DISCOVER)},
    )  # fmt: skip
    assert [path.name for path in secrets_in([table])] == ["login", "proxy", "own.key", "jwt"]
    assert secrets_in([Outer(), "text", 3, None]) == []


def test_nor_those_that_the_agents_environment_names(tmp_path: Path) -> None:
    environ = {
        "X509_USER_PROXY": "/scratch/me/proxy", "BEARER_TOKEN_FILE": "/scratch/me/token", "X509_USER_KEY": "",
        "KRB5CCNAME": "FILE:/scratch/me/ticket", "AWS_SHARED_CREDENTIALS_FILE": "credentials",
    }  # fmt: skip
    masked = masked_paths(tmp_path / "site", config(tmp_path), environ)
    assert [path.name for path in masked if path.parent == Path("/scratch/me")] == [
        "proxy",
        "token",
        "ticket",
    ]
    assert all(path.is_absolute() for path in masked)
    assert masked_paths(tmp_path / "site", config(tmp_path), {"KRB5CCNAME": "KEYRING:persistent:7"}) == (
        masked_paths(tmp_path / "site", config(tmp_path), {})
    )


def test_nor_those_of_a_cache_that_the_site_runs_also_while_its_file_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    directory.mkdir()
    lines = f'''
    origins = ["roots://a.example.org//"]
    unheard_of = true   # this version refuses the file, and the cache may still run
    [credential]
    certificate = "{KEYS}/cache.proxy"
    token_file = "own.token"
    [tls]
    certificate = "{KEYS}/host.pem"
    key = "{KEYS}/host.key"
    '''
    (directory / "cache.toml").write_text(lines)
    for cache in (
        SiteCache(name="c", url="root://dtn01:21094", directory=directory),
        SiteCache(name="c", memory=2 << 30, directory=directory),
    ):
        site = SiteConfig(name="s", server="https://server.example.org", caches=[cache])
        masked = masked_paths(tmp_path / "site", site, {})
        assert {KEYS / "cache.proxy", directory / "own.token", KEYS / "host.key"} <= set(masked)
        assert directory / "run" in masked, "the sockets by which XRootD is administered"
        assert KEYS / "host.pem" not in masked
        assert directory not in masked
    own = SiteConfig(name="s", server="unix:/x", caches=[cache], show=[KEYS / "cache.proxy"])
    assert shown_credentials(own, {}) == [KEYS / "cache.proxy"]
    (directory / "cache.toml").write_text("= 1")
    assert KEYS / "host.key" not in masked_paths(tmp_path / "site", site, {}), "and it is no error"


def test_a_site_for_others_hides_homes_and_the_installation_and_a_persons_keeps_the_latter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home" / "me"
    monkeypatch.setenv("HOME", str(home))
    package = str(Path(tidemill.__file__).parent)
    others = view_of(tmp_path / "site", config(tmp_path))
    assert {str(home), str(home.parent), "/home", "/root", package} <= set(others.veils)
    assert (others.shared, others.own_tmp, others.keep, others.allowed) == (True, False, [], [])
    personal = SiteConfig(name="s", server="unix:/x", show=[home / ".aws", home / "sw"], write=[home / "out"])
    own = view_of(tmp_path / "site", personal)
    assert (own.shared, own.own_tmp, own.veils) == (False, True, [])
    assert package in own.keep
    assert not any(home.is_relative_to(path) for path in own.keep)
    assert own.show == [str(home / "sw")]
    assert (set(own.allowed), own.write) == ({str(home / ".aws")}, [str(home / "out")])
    assert "~/.ssh" in own.credentials


def test_the_home_of_up_is_kept_and_what_else_lies_in_it_is_not(tmp_path: Path) -> None:
    for name in ("site", "server", "mine"):
        (tmp_path / name).mkdir()
    (tmp_path / "up.lock").touch()
    own = view_of(tmp_path / "site", SiteConfig(name="s", server="unix:/x"))
    assert str(tmp_path) in own.keep
    assert own.write == [str(tmp_path / "mine")]


def test_a_credential_that_is_shown_is_not_masked(tmp_path: Path) -> None:
    ticket = tmp_path / "ticket"
    personal = SiteConfig(name="s", server="unix:/x", show=[ticket])
    environ = {"KRB5CCNAME": f"FILE:{ticket}"}
    assert ticket not in masked_paths(tmp_path / "site", personal, environ)
    assert shown_credentials(personal, environ) == [ticket]
    assert ticket in masked_paths(tmp_path / "site", replace(personal, mask=[ticket]), environ)


def test_a_directory_that_is_shown_shows_no_credential_in_it(tmp_path: Path) -> None:
    """Also on a person's own site: what is named is shown, what lies in it stays hidden by its own name."""
    ticket = tmp_path / "private" / "ticket"
    personal = SiteConfig(name="s", server="unix:/x", show=[ticket.parent, tmp_path / ".config"])
    environ = {"KRB5CCNAME": f"FILE:{ticket}"}
    assert shown_credentials(personal, environ) == []
    assert ticket in masked_paths(tmp_path / "site", personal, environ)
    own = view_of(tmp_path / "site", personal)
    assert (own.allowed, own.show) == ([], [str(ticket.parent), str(tmp_path / ".config")])


def test_a_site_for_others_shows_no_secret_that_show_names(tmp_path: Path) -> None:
    """Not by its usual name, so that reading the file does not refuse it: it stays masked."""
    key = tmp_path / "robot.pem"
    others = SiteConfig(name="s", server="https://host", key=key, show=[key])
    assert shown_credentials(others, {}) == []
    assert key in masked_paths(tmp_path / "site", others, {})
    assert view_of(tmp_path / "site", others).allowed == []


def test_no_option_shows_tidemills_own_state(tmp_path: Path) -> None:
    site, server = tmp_path / "site", tmp_path / "server"
    server.mkdir()
    mine = tmp_path / ".aws"
    named = [site, site / "epoch", site / ".aws", server / "api.sock", tmp_path, mine]
    read = SiteConfig(
        name="s", server=f"unix:{server}/api.sock", key=site / "key", show=[*named, site / "key"]
    )
    assert view_of(site, read).allowed == [str(mine)]
    assert {server / "api.sock", site / "key"} <= set(masked_paths(site, read))


def test_files_of_jobs_touch_nothing_that_is_the_sites(tmp_path: Path) -> None:
    private = set(private_paths(tmp_path / "site", config(tmp_path)))
    assert private > set(masked_paths(tmp_path / "site", config(tmp_path)))
    assert {KEYS / "site.pem", KEYS / "robot.pem"} <= private


def test_payloads_of_a_shared_site_see_no_delivered_outputs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for shared, roots, is_masked in (
        (True, [tmp_path], True),
        (True, [tmp_path / "out" / "data"], False),  # the operator shows what is there
        (True, [out], False),
        (False, [tmp_path], False),
    ):
        config = SiteConfig(name="s", server="unix:/x", shared=shared, data_roots=roots, output_dir=out)
        assert (out in masked_paths(tmp_path / "site", config)) is is_masked
