"""The text of xrootd.cfg from cache.toml, and what is refused about the record by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.timing import timing

from tidemill import config
from tidemill.errors import ConfigError
from tidemill_caches import constants
from tidemill_caches.engine.configuration import CachePlaces, check, space_of, texts
from tidemill_caches.engine.nodeform import NodeCache, node_text
from tidemill_caches.settings import FILES_OPEN_MIN, FLUSH_BLOCKS_MIN, RAM_BYTES_MIN, CacheConfig, CacheSpace

PLACES = CachePlaces(data=Path("/scratch/data"), run=Path("/scratch/c/run"))
SPACE = "\n[space]\nmax = '10GB'\n"
ORIGIN = 'origins = ["root://a.example:1094//store/"]\n'


def read(text: str) -> CacheConfig:
    return config.loads(text, CacheConfig, source=Path("/scratch/c/cache.toml"))


def lines(text: str, places: CachePlaces = PLACES) -> list[str]:
    made = read(text)
    check(made)
    return texts(made, places).xrootd.splitlines()


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check(read(text))
    return f"{caught.value.message} {caught.value.hint}"


def test_what_is_exported_and_allowed_is_exactly_the_list() -> None:
    made = read('origins = ["root://a.example:1095//store/", "roots://b.example:1094//data"]' + SPACE)
    check(made)

    text = texts(made, PLACES)

    exported = [line for line in text.xrootd.splitlines() if line.startswith("all.export")]
    assert exported == [
        "all.export /root:/a.example:1095/store/ r/o",
        "all.export /roots:/b.example:1094/data/ r/o",
        "all.export /roots:/b.example/data/ r/o",
    ]
    assert text.authdb.splitlines() == [
        "u * \\",  # XrdAcc of 5.5.3 ends with "duplicate rule for id" where there are two
        "/root:/a.example:1095/store/ rl \\",
        "/roots:/b.example:1094/data/ rl \\",
        "/roots:/b.example/data/ rl",
    ]
    assert "pss.origin =root,roots" in text.xrootd.splitlines()


def test_every_key_of_the_engine_reaches_the_configuration() -> None:
    made = lines(ORIGIN + "block_bytes = '256KiB'\nprefetch_blocks = 0\n" + SPACE)

    assert "pfc.blocksize 262144" in made
    assert "pfc.prefetch 0" in made
    assert "oss.localroot /scratch/data" in made


def test_constants_reach_the_configuration() -> None:
    made = lines(ORIGIN + SPACE)
    assert "pfc.ram 1073741824" in made
    assert "pfc.flush 100" in made
    assert "pfc.diskusage 0.93 0.96 files 4882812k 8789062k 9765625k purgeinterval 60" in made

    room = {"DISK_LOW": 0.5, "DISK_HIGH": 0.6, "BASE_PARTS": 1, "NOMINAL_PARTS": 8, "PURGE_INTERVAL_S": 120}
    with timing(caches={"RAM_BYTES": 4 << 30, "FLUSH_BLOCKS": 500, **room}):
        other = lines(ORIGIN + SPACE)

    assert "pfc.ram 4294967296" in other
    assert "pfc.flush 500" in other
    assert "pfc.diskusage 0.5 0.6 files 976562k 7812500k 9765625k purgeinterval 120" in other


def test_constants_are_what_xcache_takes() -> None:
    assert 0 < constants.BASE_PARTS < constants.NOMINAL_PARTS < 10
    assert 0 < constants.DISK_LOW < constants.DISK_HIGH < 1
    assert 60 <= constants.PURGE_INTERVAL_S <= 3600
    assert constants.RAM_BYTES >= RAM_BYTES_MIN
    assert constants.FLUSH_BLOCKS >= FLUSH_BLOCKS_MIN
    assert constants.FILES_OPEN_MAX >= FILES_OPEN_MIN


def test_clients_are_this_host_and_those_named() -> None:
    made = lines(ORIGIN + 'clients = ["10.1.*", "*.site.example", "localhost"]' + SPACE)

    assert [line for line in made if line.startswith("xrd.allow")] == [
        "xrd.allow host 127.0.0.1",
        "xrd.allow host [::1]",
        "xrd.allow host localhost",
        "xrd.allow host 10.1.*",
        "xrd.allow host *.site.example",
    ]
    assert "xrd.network dnr" in made
    assert "xrd.network nodnr" in lines(ORIGIN + 'clients = ["10.1.2.3"]' + SPACE)


def test_records_of_closed_files_go_to_a_port_of_this_host_only() -> None:
    assert not any("mongstream" in line for line in lines(ORIGIN + SPACE))

    made = lines(ORIGIN + SPACE, PLACES._replace(figures_port=2345))

    assert [line for line in made if "mongstream" in line] == [
        "xrootd.mongstream pfc use flush 5s maxlen 1472 send json insthdr 127.0.0.1:2345"
    ]


def test_tls_tokens_and_certificates_of_clients(tmp_path: Path) -> None:
    tls = "[tls]\ncertificate = '/c/host.pem'\nkey = '/c/host.key'\n"
    plain = lines(ORIGIN + SPACE + tls)
    assert {"xrd.tls /c/host.pem /c/host.key", "xrootd.tls all"} <= set(plain)
    assert not any("seclib" in line for line in plain)

    by_certificate = lines(ORIGIN + SPACE + tls + f"ca = '{tmp_path}'\n")
    assert f"xrd.tlsca certdir {tmp_path}" in by_certificate
    assert any(line.startswith("sec.protocol gsi") for line in by_certificate)

    made = read(ORIGIN + SPACE + tls + "[tokens]\nissuers = ['https://issuer.example/']\n")
    check(made)
    by_token = texts(made, PLACES)
    assert "sec.protocol ztn" in by_token.xrootd.splitlines()
    assert "audience = roots://{host}:1094" in by_token.scitokens
    assert "issuer = https://issuer.example/" in by_token.scitokens


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("origins = []", "the cache could read nothing"),
        ('origins = ["http://a.example/"]', "not from `http://`"),
        ('origins = ["root://me:secret@a.example//x/"]', "a user in a URL is refused"),
        ('origins = ["root://a.example//x/../y/"]', "`..` are refused"),
        ('origins = ["root://a.example//x/?authz=1"]', "no opaque part"),
        ('origins = ["root://a.example:0//x/"]', "`0` is not a port"),
        ('origins = ["root://a.example:99999999//x/"]', "is not a port"),
        ('origins = ["root://*.example//x/"]', "names no host"),
        ('origins = ["root://a b//x/"]', "names no host"),
        ('origins = ["root://a//x y/"]', "cannot hold"),
        ('origins = ["root://a//x$y/"]', "cannot hold"),
        ('origins = ["root://a//store/", "root://b//store/x/"]', "a file by its path alone"),
        (ORIGIN + 'clients = ["*"]', "every host of the world"),
        (ORIGIN + 'clients = ["*.*"]', "is not a host"),
        (ORIGIN + 'clients = ["a b"]', "is not a host"),
        (ORIGIN + 'clients = ["a\\nxrd.allow host b"]', "is not a host"),
    ],
)
def test_a_wrong_list_is_refused_with_the_reason(text: str, why: str) -> None:
    assert why in refused(text + SPACE)


def test_a_password_in_an_origin_is_not_repeated() -> None:
    assert "secret" not in refused('origins = ["root://me:secret@a.example//x/"]' + SPACE)


def test_origins_with_the_same_files_may_overlap() -> None:
    both = 'origins = ["root://a//store/", "root://b//store/"]\nfederation = true'

    assert "all.export /root:/b:1094/store/ r/o" in lines(both + SPACE)


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ("[tls]\ncertificate = '/c'\n", "both `certificate` and `key`"),
        ("[tls]\nca = '/c'\n", "needs `tls.certificate`"),
        ("[tokens]\nissuers = ['https://i']\n", "needs `[tls]`"),
        (
            "[tls]\ncertificate = '/c'\nkey = '/k'\n[tokens]\nissuers = ['http://i']\n",
            "is not an `https://` address",
        ),
        ("[credential]\ntoken_file = '/t'\n", "by TLS only"),
    ],
)
def test_security_that_would_not_hold_is_refused(tables: str, why: str) -> None:
    assert why in refused(ORIGIN + SPACE + tables)


@given(st.integers(3, 1 << 60))
def test_base_nominal_and_maximum_grow_in_this_order(most: int) -> None:
    base, nominal, kept = space_of(CacheSpace(max=most))
    assert 0 < base < nominal < kept == most


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_space_of_a_few_bytes_is_refused(most: int) -> None:
    with pytest.raises(ConfigError, match="too small"):
        space_of(CacheSpace(max=most))


@pytest.mark.parametrize("room", [{"NOMINAL_PARTS": 10}, {"NOMINAL_PARTS": 0}])
def test_a_space_in_the_wrong_order_is_not_written(room: dict[str, int]) -> None:
    with timing(caches=room), pytest.raises(ConfigError):
        lines(ORIGIN + SPACE)


@pytest.mark.parametrize("path", ["/a b", "/a$b", "/a#b", '/a"b', "/a\nb"])
def test_a_path_that_xrootd_would_read_otherwise_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="cannot hold"):
        texts(read(ORIGIN + SPACE), PLACES._replace(data=Path(path)))


def test_a_path_too_long_for_sockets_is_refused() -> None:
    with pytest.raises(ConfigError, match="too many for XRootD's sockets"):
        texts(read(ORIGIN + SPACE), PLACES._replace(run=Path("/" + "x" * 80)))


def test_a_node_reads_through_the_site_without_its_credential() -> None:
    site = read(ORIGIN + SPACE + "[credential]\ncertificate = '/secret/proxy.pem'\n")
    wanted = NodeCache(port=2000, memory_bytes=2_000_000_000, site=site)

    direct = read(node_text(wanted))
    through = read(
        node_text(NodeCache(port=2000, memory_bytes=2_000_000_000, site=site, upstream="root://c:1094"))
    )

    check(direct)
    check(through)
    assert direct.credential.certificate == Path("/secret/proxy.pem")
    assert through.credential.certificate is None
    assert through.origins == ["root://c:1094//root://a.example:1094//store/"]
    assert direct.clients == []
    assert direct.space.max + constants.RAM_BYTES < 2_000_000_000


def test_a_node_belongs_to_the_federation_of_its_site() -> None:
    both = 'origins = ["root://a//store/", "root://b//store/"]\nfederation = true'

    node = read(node_text(NodeCache(port=2000, memory_bytes=2_000_000_000, site=read(both + SPACE))))

    check(node)
    assert node.federation


def test_a_node_with_too_little_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs 1178599424 bytes"):
        node_text(NodeCache(port=2000, memory_bytes=10**9, site=read(ORIGIN + SPACE)))
