"""What a site's configuration permits: prefixes of URLs, and nothing that could be read in two ways."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.home.installed import add_extension, installed_only

from tidemill.config.transfer import Endpoint
from tidemill.errors import ConfigError
from tidemill.extensions import TRANSFER
from tidemill.model.failure import FailureClass
from tidemill.transfer.allowed import PORTS, check_endpoint, is_remote, permit, redirected
from tidemill.transfer.contract import Direction, TransferError
from tidemill.transfer.mover import Mover
from tidemill.transfer.patience import MovePatience

DAV = Endpoint(url="https://dav.example.org/exp/", token_file=Path("/t"))
OPEN = Endpoint(url="root://*.example.org//store/user", access="both")
BUCKET = Endpoint(url="s3://bucket/in/", access="both")
ALL = [DAV, OPEN, BUCKET]


def allowed(url: str, direction: Direction = Direction.IN) -> bool:
    try:
        permit(url, ALL, direction)
    except TransferError as error:
        return error.transient or error.failure is not direction.failure  # both would be wrong
    return True


@pytest.mark.parametrize(
    "url",
    [
        "https://dav.example.org/exp/a",
        "HTTPS://DAV.example.org:443/exp/a%20b?sign=1",
        "root://se1.example.org//store/user/x/y",
        "root://se1.example.org:1094/store/user/a b%20c",
        "s3://bucket/in/a",
        "https://dav.example.org//exp/a",  # as catalogues write names that begin with a slash
        "https://dav.example.org/exp//store/a",
        "https://dav.example.org/exp///a?sign=1",
        "root://se1.example.org//store//user/x//y",
        "root://se1.example.org///store/user//x/",
    ],
)
def test_what_lies_below_an_endpoint_is_permitted(url: str) -> None:
    assert allowed(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://dav.example.org/experiment/a",  # beside the prefix
        "https://dav.example.org/exp/../etc/passwd",
        "https://dav.example.org/exp/%2e%2e/etc/passwd",
        "https://dav.example.org/exp/..%2f..%2fetc",
        "https://dav.example.org/exp/a%00b",
        "https://dav.example.org/exp/a%5cb",
        "https://dav.example.org/exp/a\nb",
        "https://dav.example.org//expa/a",
        "https://dav.example.org//exp/a?sign=1",  # goes out as written, and is another path there
        "https://dav.example.org/e//xp/a",
        "https://dav.example.org/x//exp/a",
        "https://dav.example.org//exp//../a",
        "root://se1.example.org//store//user2/x",
        "https://dav.example.org/exp/a#b",
        "https://dav.example.org:8443/exp/a",  # another port
        "http://dav.example.org/exp/a",  # another scheme
        "https://dav.example.org.evil.net/exp/a",
        "https://dav.example.org@evil.net/exp/a",
        "https://user:secret@dav.example.org/exp/a",
        "https://evil.net/exp/a?https://dav.example.org/exp/",
        "root://example.org//store/user/x",  # `*.` wants a name before it
        "root://evilexample.org//store/user/x",
        "root://se1.example.org//store/user2/x",
        "root://se1.example.org//store/user/../other",
        "root://se1.example.org//store/user/x?authz=1",
        "root://-oProxy.example.org//store/user/x",
        "s3://bucket2/in/a",
        "s3://bucket/out",
        "gopher://dav.example.org/exp/a",
        "file:///etc/passwd",
        "-oops",
        "",
        "https://dav.example.org/exp/" + "a" * 5000,
        " https://dav.example.org/exp/a",
    ],
)
def test_everything_else_is_refused_for_good(url: str) -> None:
    assert not allowed(url)


@pytest.mark.parametrize(
    ("url", "path", "written"),
    [
        ("root://se1.example.org//store//user///x", "/store/user/x", "/store/user/x"),
        ("https://dav.example.org///exp//a%2Bb", "/exp//a+b", "/exp//a%2Bb"),
        ("https://dav.example.org/exp//a%2bb?s=1", "/exp//a+b", "/exp//a%2bb"),
        ("s3://bucket/in//a", "/in//a", "/in//a"),
    ],
)
def test_doubled_slashes_are_one_where_servers_have_files_and_stay_where_they_may_count(
    url: str, path: str, written: str
) -> None:
    place = permit(url, ALL, Direction.IN)

    assert (place.path, place.written) == (path, written)


def test_an_endpoint_may_be_written_as_catalogues_write_its_files() -> None:
    for url, file in (
        ("davs://se.example.org:1094//store/", "davs://se.example.org:1094//store/x"),
        ("davs://se.example.org:1094//store/", "davs://se.example.org:1094/store/x"),
        ("root://se.example.org//rucio//", "root://se.example.org//rucio/x"),
        ("https://se.example.org/rucio//", "https://se.example.org/rucio//x"),
    ):
        assert permit(file, [Endpoint(url=url)], Direction.IN).endpoint.url == url


def test_what_may_be_read_may_not_be_written() -> None:
    assert not allowed("https://dav.example.org/exp/a", Direction.OUT)
    assert allowed("root://a.example.org//store/user/a", Direction.OUT)


def test_a_redirection_goes_to_other_endpoints_and_to_those_that_are_named() -> None:
    came = permit("https://dav.example.org/exp/a", ALL, Direction.IN)
    with pytest.raises(TransferError, match=r"sends us on to `https://evil\.net:443`") as error:
        redirected("https://evil.net/exp/a", came, ALL, Direction.IN)
    assert error.value.failure is FailureClass.STAGE_IN
    named = Endpoint(url=DAV.url, redirects=["https://*.pool.example.org:1443/", "http://plain.example.org/"])
    came = permit("https://dav.example.org/exp/a", [named], Direction.IN)
    there = redirected("https://d1.pool.example.org:1443/x", came, [named], Direction.IN)
    assert there.endpoint.token_file is None, "a token goes to nobody else"
    with pytest.raises(TransferError, match="without encryption"):
        redirected("http://plain.example.org/x", came, [named], Direction.IN)


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint(url="dav.example.org"),
        Endpoint(url="https://user@host/"),
        Endpoint(url="https://host/", redirects=["ftp//x"]),
        Endpoint(url="s3://bucket/", service="minio:9000"),
        Endpoint(url="https://host/", key=Path("/k")),
    ],
)
def test_an_endpoint_that_cannot_be_meant_is_refused(endpoint: Endpoint) -> None:
    with pytest.raises(ConfigError):
        check_endpoint(endpoint)


@given(
    st.text(max_size=60),
    st.sampled_from(["", "https://dav.example.org/exp/", "root://a.example.org//", "s3://bucket/"]),
)
def test_whatever_comes_is_permitted_or_refused_and_never_leaves_its_endpoint(text: str, start: str) -> None:
    url = start + text
    try:
        place = permit(url, ALL, Direction.IN)
    except TransferError:
        return
    assert is_remote(url)
    assert place.scheme in PORTS
    assert ".." not in place.path.split("/")
    assert not any(ord(c) < 32 for c in place.path + place.query)
    assert place.path.startswith(("/exp", "/store/user", "/in"))
    if place.scheme not in ("root", "s3"):
        assert unquote(place.written) == place.path
        assert place.written.isascii()
        assert not set(place.written) & set(" #?")


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(TransferError, match="no user name or password") as refused:
        permit("https://ada:Tr0ub4dor&3@dav.example.org/f", [], Direction.IN)
    assert "`https://ada:" in refused.value.message
    assert "Tr0ub4dor" not in f"{refused.value.message} {refused.value.hint}"


def test_a_scheme_of_a_missing_extension_says_which_command_installs_it(tmp_path: Path) -> None:
    url, hint = "gsiftp://ftp.example.org/a", "install it: pip install 'tidemill[gridftp]'"
    with installed_only(tmp_path):
        assert is_remote(url)
        with pytest.raises(TransferError, match="`gsiftp:` needs the extension `gridftp`") as refused:
            permit(url, ALL, Direction.IN)
        assert (refused.value.hint, refused.value.transient) == (hint, False)
        with pytest.raises(ConfigError, match="`gsiftp:` needs the extension `gridftp`") as wrong:
            check_endpoint(Endpoint(url=url))
        assert (wrong.value.hint, wrong.value.exit_code) == (hint, 2)


TOY = """
from tidemill.transfer.schemes import TransferScheme
class Toy: pass
SCHEME = TransferScheme(Toy, 4242)
"""


def test_an_extension_adds_a_scheme(tmp_path: Path) -> None:
    add_extension(tmp_path, "toy", f"[{TRANSFER}]\ntoy = toy_scheme:SCHEME\n", toy_scheme=TOY)
    with installed_only(tmp_path):
        toy = Endpoint(url="toy://h.example.org/a/")
        check_endpoint(toy)
        assert permit("toy://h.example.org//a//b", [toy], Direction.IN).port == 4242
        mover = Mover([toy], MovePatience(), size_max=1)
        assert type(mover._adapter("toy")).__name__ == "Toy"
        assert mover._adapter("toy") is mover._adapter("toy")
