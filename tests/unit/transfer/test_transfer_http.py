"""Requests to HTTP servers, byte for byte, and the meaning of their answers. The server answers as a test wants."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.transfer.http_origin import Origin, answer, origin

from tidemill.config.transfer import Endpoint
from tidemill.model.failure import FailureClass
from tidemill.transfer.contract import TransferError
from tidemill.transfer.mover import Mover
from tidemill.transfer.patience import MovePatience

CONTENT = b"what is in the file\n" * 1000
SIGNED = "X-Amz-Expires=600&X-Amz-Signature=5f/a%2F=="
EXPIRED = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"

pytestmark = pytest.mark.timing(transfer={"READ_BACK": False})


@pytest.fixture
def http() -> Iterator[Origin]:
    with origin() as server:
        yield server


def mover(server: Origin, *more: Endpoint, below: str = "/", **keys: object) -> Mover:
    own = Endpoint(url=server.base + below, access="both", **keys)  # type: ignore[arg-type]
    return Mover([own, *more], MovePatience(tries_max=2, pause_s=0.01, stall_s=10), size_max=1 << 30)


def get(by: Mover, url: str, folder: Path) -> bytes:
    by.get(url, folder / "in", by.watch())
    content = (folder / "in").read_bytes()
    (folder / "in").unlink()
    return content


def chunked(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Transfer-Encoding: chunked", *headers, "", ""]
    pieces = [body[at : at + 7000] for at in range(0, len(body), 7000)]
    chunks = [b"%x\r\n%s\r\n" % (len(each), each) for each in [*pieces, b""]]
    return "\r\n".join(lines).encode("latin-1") + b"".join(chunks)


def put(by: Mover, url: str, folder: Path) -> None:
    (folder / "out").write_bytes(CONTENT)
    by.put(folder / "out", url, by.watch())


def refusal(by: Mover, url: str, folder: Path, *, out: bool = False) -> TransferError:
    with pytest.raises(TransferError) as error:
        put(by, url, folder) if out else get(by, url, folder)
    return error.value


# ---- servers that allow GET only ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status",
    ["400 Bad Request", "401 Unauthorized", "403 Forbidden", "405 Not Allowed", "501 Not Implemented"],
)
def test_a_file_whose_server_refuses_head_is_read_by_get(http: Origin, tmp_path: Path, status: str) -> None:
    url = http.serve(f"/f?{SIGNED}", CONTENT, 'ETag: "1"')
    http.said["HEAD", f"/f?{SIGNED}"] = answer(status, is_head=True)
    by = mover(http)

    stat = by.stat(url, by.watch())

    assert (stat.size_bytes, stat.version) == (len(CONTENT), f'{len(CONTENT)} "1"')
    assert get(by, url, tmp_path) == CONTENT


def test_the_size_is_that_of_the_file_where_its_first_byte_alone_comes(http: Origin) -> None:
    url = http.serve("/f", CONTENT)
    http.said["HEAD", "/f"] = answer("405 Not Allowed", is_head=True)
    http.said["GET", "/f"] = answer("206 Partial Content", b"w", f"Content-Range: bytes 0-0/{len(CONTENT)}")
    by = mover(http)

    assert by.stat(url, by.watch()).size_bytes == len(CONTENT)
    assert http.asked[-1][2]["range"] == "bytes=0-0"


def ranged(headers: dict[str, str], content: bytes, *, total: bool = True) -> bytes:
    """The answer of a server that sends all bodies in chunks, and parts on request."""
    if "range" not in headers:
        return chunked("200 OK", content, 'ETag: "1"')
    first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", headers["range"]).groups()  # type: ignore[union-attr]
    end = min(int(last or len(content)) + 1, len(content))
    of = len(content) if total else "*"
    said = f"Content-Range: bytes {first}-{end - 1}/{of}"
    return chunked("206 Partial Content", content[int(first) : end], said, 'ETag: "1"')


def test_the_size_of_a_file_is_known_though_its_first_byte_comes_in_a_chunk(
    http: Origin, tmp_path: Path
) -> None:
    http.said["HEAD", "/f"] = answer("403 Forbidden", is_head=True)
    http.decide = lambda method, target, headers: ranged(headers, CONTENT) if method == "GET" else None
    by = mover(http)

    stat = by.stat(f"{http.base}/f", by.watch())
    assert (stat.size_bytes, stat.version, stat.is_told) == (len(CONTENT), f'{len(CONTENT)} "1"', True)
    assert get(by, f"{http.base}/f", tmp_path) == CONTENT


def test_a_chunked_body_goes_on_where_an_earlier_one_broke_off(http: Origin, tmp_path: Path) -> None:
    http.said["HEAD", "/f"] = answer("403 Forbidden", is_head=True)
    broken = [chunked("200 OK", CONTENT, 'ETag: "1"', "Connection: close")[: len(CONTENT) // 2]]

    def decide(method: str, target: str, headers: dict[str, str]) -> bytes | None:
        if method == "GET" and "range" not in headers and broken:
            return broken.pop()
        return ranged(headers, CONTENT) if method == "GET" else None

    http.decide = decide
    assert get(mover(http), f"{http.base}/f", tmp_path) == CONTENT
    (resumed,) = [headers["range"] for _, _, headers, _ in http.asked if "if-range" in headers]
    assert 0 < int(resumed.removeprefix("bytes=").removesuffix("-")) < len(CONTENT) // 2


@pytest.mark.parametrize("longer", [b"", CONTENT + b"!"], ids=["shorter", "longer"])
def test_a_chunked_body_of_another_size_than_was_told_is_refused(
    http: Origin, tmp_path: Path, longer: bytes
) -> None:
    http.said["HEAD", "/f"] = answer("403 Forbidden", is_head=True)
    body = chunked("200 OK", longer or CONTENT[:-1])
    first = chunked("206 Partial Content", CONTENT[:1], f"Content-Range: bytes 0-0/{len(CONTENT)}")
    http.decide = lambda method, target, headers: (
        None if method == "HEAD" else first if "range" in headers else body
    )
    error = refusal(mover(http), f"{http.base}/f", tmp_path)
    assert ("has changed" if longer else f"after {len(CONTENT) - 1} of {len(CONTENT)} bytes") in error.message
    assert not (tmp_path / "in").exists()


@pytest.mark.timing(transfer={"READ_BACK": True})
@pytest.mark.parametrize("kept", [CONTENT, CONTENT[:-1] + b"!"], ids=["whole", "damaged"])
def test_an_output_is_read_back_from_a_server_that_sends_chunks(
    http: Origin, tmp_path: Path, kept: bytes
) -> None:
    def decide(method: str, target: str, headers: dict[str, str]) -> bytes:
        if method == "PUT":
            return answer("201 Created")
        if not http.targets("PUT"):
            return answer("404 Not Found", is_head=True)
        return answer("200 OK", kept, is_head=True) if method == "HEAD" else chunked("200 OK", kept)

    http.decide = decide
    own = Endpoint(url=http.base + "/", access="both", rename=False)
    by = Mover([own], MovePatience(tries_max=1, stall_s=10), size_max=1 << 30)
    if kept == CONTENT:
        put(by, f"{http.base}/o", tmp_path)
    else:
        assert "has other bytes there" in refusal(by, f"{http.base}/o", tmp_path, out=True).message
    assert http.targets("GET") == ["/o"]


def test_a_file_whose_whole_size_a_part_does_not_say_is_asked_for_whole(http: Origin, tmp_path: Path) -> None:
    http.said["HEAD", "/f"] = answer("405 Not Allowed", is_head=True)
    http.decide = lambda method, target, headers: (
        None if method == "HEAD" else ranged(headers, CONTENT, total=False)
    )
    by = mover(http)
    assert not by.stat(f"{http.base}/f", by.watch()).is_told
    assert get(by, f"{http.base}/f", tmp_path) == CONTENT


def test_an_empty_file_has_no_first_byte_and_is_asked_for_whole(http: Origin, tmp_path: Path) -> None:
    url = http.serve("/f", b"")
    http.said["HEAD", "/f"] = answer("403 Forbidden", is_head=True)
    outside = answer("416 Range Not Satisfiable", b"", "Content-Range: bytes */0")
    http.decide = lambda method, target, headers: outside if "range" in headers else None

    assert get(mover(http), url, tmp_path) == b""


# ---- refused URLs that carry their own signature ------------------------------------------------------------------


@pytest.mark.parametrize("status", ["400 Bad Request", "401 Unauthorized", "403 Forbidden"])
@pytest.mark.parametrize("out", [False, True])
def test_a_refused_signature_is_the_jobs_failure_and_says_nothing_of_the_endpoints_credential(
    http: Origin, tmp_path: Path, status: str, out: bool
) -> None:
    target = f"/f?{SIGNED}"
    http.said["*", target] = answer(status, EXPIRED)
    http.said["HEAD", target] = answer(status, is_head=True)

    error = refusal(mover(http), http.base + target, tmp_path, out=out)

    assert error.failure is (FailureClass.STAGE_OUT if out else FailureClass.STAGE_IN)
    assert not error.transient
    assert status in error.message
    assert "refuses us" not in error.message
    assert "X-Amz" not in error.message + str(error.hint)
    assert "new URL" in str(error.hint)
    assert "token" not in str(error.hint)


def test_a_refused_url_without_a_query_is_a_matter_of_the_endpoints_credential(
    http: Origin, tmp_path: Path
) -> None:
    http.said["*", "/f"] = answer("403 Forbidden")
    http.said["HEAD", "/f"] = answer("403 Forbidden", is_head=True)

    error = refusal(mover(http), http.base + "/f", tmp_path)

    assert error.failure is FailureClass.CREDENTIAL
    assert "refuses us" in error.message


@pytest.mark.parametrize("query", ["download=1", "monkey=1&design=2", "version=3&part"])
def test_a_refused_query_without_a_signature_is_a_matter_of_the_credential_that_the_endpoint_shows(
    http: Origin, tmp_path: Path, query: str
) -> None:
    http.said["*", f"/f?{query}"] = answer("403 Forbidden")
    http.said["HEAD", f"/f?{query}"] = answer("403 Forbidden", is_head=True)

    error = refusal(mover(http, certificate=tmp_path / "proxy"), f"{http.base}/f?{query}", tmp_path)
    assert error.failure is FailureClass.CREDENTIAL
    assert f"{tmp_path}/proxy" in str(error.hint)

    error = refusal(mover(http), f"{http.base}/f?{query}", tmp_path)
    assert error.failure is FailureClass.STAGE_IN


@pytest.mark.parametrize("target", ["/f", "/f?download=1"])
def test_a_refused_signature_that_the_server_made_itself_is_asked_for_again(
    http: Origin, tmp_path: Path, target: str
) -> None:
    http.said["*", target] = answer("302 Found", b"", "Location: /pool?key=5f")
    http.said["HEAD", target] = answer("302 Found", b"", "Location: /pool?key=5f", is_head=True)
    http.said["*", "/pool?key=5f"] = answer("403 Forbidden")
    http.said["HEAD", "/pool?key=5f"] = answer("403 Forbidden", is_head=True)

    error = refusal(mover(http), http.base + target, tmp_path)

    assert error.failure is FailureClass.STAGE_IN
    assert error.transient
    assert "after 2 tries" in error.message


# ---- the path of a URL --------------------------------------------------------------------------------------------

NAMES = ["a%2Bb%3Dc", "a+b=c", "%41%7e", "%c3%bc", "a,b;c:d@e", "x%20y%25z"]


@pytest.mark.parametrize("name", NAMES)
def test_the_path_of_a_url_goes_out_byte_for_byte_as_it_was_written(
    http: Origin, tmp_path: Path, name: str
) -> None:
    url = http.serve(f"/d/{name}", CONTENT)

    assert get(mover(http), url, tmp_path) == CONTENT
    assert {target for _, target, _, _ in http.asked} == {f"/d/{name}"}


@pytest.mark.parametrize("name", NAMES)
def test_the_path_of_an_output_is_as_written_in_put_and_in_the_destination_of_move(
    http: Origin, tmp_path: Path, name: str
) -> None:
    written: set[str] = set()

    def take(method: str, target: str, headers: dict[str, str]) -> bytes | None:
        if method in ("PUT", "MOVE"):
            written.add(headers.get("destination", target))
        if method == "HEAD" and {target, http.base + target} & written:
            return answer("200 OK", CONTENT, is_head=True)
        return answer("201 Created") if method in ("PUT", "MOVE") else None

    http.decide = take
    put(mover(http), f"{http.base}/d/{name}", tmp_path)

    (moved,) = [headers for method, _, headers, _ in http.asked if method == "MOVE"]
    assert moved["destination"] == f"{http.base}/d/{name}"
    assert http.targets("MOVE") == http.targets("PUT")

    put(mover(http, rename=False), f"{http.base}/e/{name}", tmp_path)

    assert http.targets("PUT")[1:] == [f"/e/{name}"]


def test_characters_that_no_url_has_are_encoded_and_others_left(http: Origin, tmp_path: Path) -> None:
    url = http.serve("/d/a%20%C3%BC%5Bx%5D%2B+", CONTENT)

    assert get(mover(http), f"{http.base}/d/a ü[x]%2B+", tmp_path) == CONTENT
    assert url.endswith(http.targets("GET")[0])


def test_doubled_slashes_at_the_beginning_of_a_path_are_one_and_others_stay(
    http: Origin, tmp_path: Path
) -> None:
    http.serve("/store/x", CONTENT)
    http.serve("/rucio//store/x", CONTENT)
    http.serve(f"//key//x?{SIGNED}", CONTENT)
    by = mover(http)

    assert get(by, f"{http.base}//store/x", tmp_path) == CONTENT
    assert get(by, f"{http.base}/rucio//store/x", tmp_path) == CONTENT
    assert get(by, f"{http.base}//key//x?{SIGNED}", tmp_path) == CONTENT


# ---- redirections -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "target"),
    [
        (b"/t/caf\xc3\xa9", "/t/caf%C3%A9"),
        (b"/t/a b?x=N N", "/t/a%20b?x=N%20N"),
        (b"/t/plain#sec", "/t/plain"),
        (b"/t/plain?x=1#sec", "/t/plain?x=1"),
        (b'/t/a?q="\xc3\xbc"', "/t/a?q=%22%C3%BC%22"),
        (b"/t/100%.root", "/t/100%25.root"),
        (b"/t/a%2Bb", "/t/a%2Bb"),
        (b"  /t/blanks  ", "/t/blanks"),
        (b"plain2", "/r/plain2"),
        (b"../t/plain", "/t/plain"),
        (b"//HERE/t/plain", "/t/plain"),
        (b"http://HERE/t/plain?tk=s6Q7i5/z%2F==", "/t/plain?tk=s6Q7i5/z%2F=="),
        (b"//HERE//t/plain", "/t/plain"),
    ],
)
def test_a_redirection_is_followed_as_curl_follows_it(
    http: Origin, tmp_path: Path, location: bytes, target: str
) -> None:
    http.serve(target, CONTENT)
    words = location.replace(b"HERE", http.base.removeprefix("http://").encode()).decode("latin-1")
    for method in ("GET", "HEAD"):
        http.said[method, "/r/f"] = answer("302 Found", b"", f"Location: {words}")

    assert get(mover(http), f"{http.base}/r/f", tmp_path) == CONTENT
    assert http.targets("GET") == ["/r/f", target]


def test_an_output_follows_a_redirection_with_its_body(http: Origin, tmp_path: Path) -> None:
    http.said["PUT", "/r/f"] = answer("307 Temporary Redirect", b"", "Location: /t/caf\xc3\xa9")
    http.said["PUT", "/t/caf%C3%A9"] = answer("201 Created")
    http.said["HEAD", "/r/f"] = answer("404 Not Found", is_head=True)

    (tmp_path / "out").write_bytes(CONTENT)
    by = mover(http, rename=False)
    with pytest.raises(TransferError):  # it is not there afterwards
        by.put(tmp_path / "out", f"{http.base}/r/f", by.watch())

    (body,) = [body for method, target, _, body in http.asked if (method, target) == ("PUT", "/t/caf%C3%A9")][
        :1
    ]
    assert hashlib.sha256(body).digest() == hashlib.sha256(CONTENT).digest()


def test_the_error_after_a_redirection_names_the_url_that_answered_and_the_first_one(
    http: Origin, tmp_path: Path
) -> None:
    with origin() as other:
        for method in ("GET", "HEAD"):
            http.said[method, "/r/f"] = answer("302 Found", b"", f"Location: {other.base}/t/g?key=hunter2")
        by = mover(http, Endpoint(url=other.base + "/"))

        missing = refusal(by, f"{http.base}/r/f", tmp_path)
        other.said["HEAD", "/t/g?key=hunter2"] = answer("503 Later", is_head=True)
        late = refusal(by, f"{http.base}/r/f", tmp_path)

    gone = refusal(by, f"{http.base}/r/f", tmp_path)

    for error in (missing, late, gone):
        assert f"`{http.base}/r/f`, which sends us on to `{other.base}/t/g`" in error.message
        assert "hunter2" not in error.message
    assert missing.missing
    assert late.transient
    assert gone.transient


def test_a_credential_refused_after_a_redirection_is_that_of_the_endpoint_that_answered(
    http: Origin, tmp_path: Path
) -> None:
    with origin() as other:
        for method in ("GET", "HEAD"):
            http.said[method, "/f"] = answer("302 Found", b"", f"Location: {other.base}/t/g")
            other.said[method, "/t/g"] = answer("403 Forbidden", is_head=method == "HEAD")
        error = refusal(mover(http, Endpoint(url=other.base + "/")), f"{http.base}/f", tmp_path)

    assert error.failure is FailureClass.CREDENTIAL
    assert error.message.startswith(
        f"`{http.base}/f`, which sends us on to `{other.base}/t/g`: that refuses us"
    )
    assert f"the endpoint `{other.base}/`" in str(error.hint)


def test_no_message_shows_the_query_to_which_a_server_sends_us_on(http: Origin, tmp_path: Path) -> None:
    with origin() as other:
        for method in ("GET", "HEAD"):
            http.said[method, "/f"] = answer("302 Found", b"", f"Location: {other.base}/t/g?key=hunter2")
            other.said[method, "/t/g?key=hunter2"] = answer("302 Found", b"", "Location: /t/h")
            other.said[method, "/t/h"] = answer("403 Forbidden", is_head=method == "HEAD")
        error = refusal(mover(http, redirects=[other.base + "/"]), f"{http.base}/f", tmp_path)

    assert "sends us on" in error.message
    assert other.base in str(error.hint)
    assert "hunter2" not in f"{error.message} {error.hint}"


# ---- names --------------------------------------------------------------------------------------------------------


def test_a_temporary_name_is_short_however_long_the_name_is(http: Origin, tmp_path: Path) -> None:
    name = "n" * 255
    url = http.serve(f"/d/{name}", CONTENT)
    by = mover(http)
    by.get(url, tmp_path / name, by.watch())
    assert (tmp_path / name).read_bytes() == CONTENT
    http.said["PUT", "/"] = answer("201 Created")
    with pytest.raises(TransferError):
        put(by, f"{http.base}/e/{name}", tmp_path)
    assert {len(target.rpartition("/")[2]) for target in http.targets("PUT")} == {len(".0123456789ab.part")}
