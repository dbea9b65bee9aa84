"""What `site check` says of the caches that a site runs."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.site.test_cli_site_check import caches

from tidemill.config.caching import SiteCache

CACHE = """origins = ["root://far.example.org:1094//store/"]
[space]
max = "1GB"
"""


def directory(path: Path, more: str = "") -> Path:
    path.mkdir()
    (path / "cache.toml").write_text(CACHE + more)
    return path


def test_a_directory_of_a_cache_needs_a_legal_cache_toml_and_its_credential(tmp_path: Path) -> None:
    url = "root://localhost:1094"
    (tmp_path / "empty").mkdir()
    key = tmp_path / "proxy.pem"
    named = directory(tmp_path / "named", f'[credential]\ncertificate = "{key}"\n')
    findings = [
        caches(SiteCache(name="c", url=url, directory=path))[0]
        for path in (
            tmp_path / "empty",
            named,
            directory(tmp_path / "good"),
            directory(tmp_path / "odd", "x = 1\n"),
        )
    ]
    assert [each.state for each in findings] == ["fail", "fail", "ok", "fail"]
    told = [each.found for each in findings]
    assert "is not a cache directory: it has no cache.toml" in told[0]
    assert f"`credential.certificate`: `{key}` does not exist" in told[1]
    assert f"{tmp_path / 'good' / 'cache.toml'} is legal, it shows origins no credential" in told[2]
    assert "unknown key `space.x`" in told[3]
    key.write_text("")
    key.chmod(0o600)
    assert caches(SiteCache(name="c", url=url, directory=named))[0].state == "ok"


def test_a_cache_in_node_memory_is_read_as_pilots_get_it(tmp_path: Path) -> None:
    place = directory(tmp_path / "c")
    small, large = caches(
        SiteCache(name="small", memory=1 << 30, directory=place),
        SiteCache(name="large", memory=4 << 30, directory=place),
    )
    assert (small.state, "a cache in node memory needs" in small.found) == ("fail", True)
    assert (large.state, "each node runs it, in 4096 MB of memory" in large.found) == ("ok", True)
