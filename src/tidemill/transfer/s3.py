"""s3://: objects of S3 services, by boto3 (extra `tidemill[s3]`).

An object appears whole, so there are no temporary names. An object that Tidemill uploads carries its SHA-256 as
metadata, by which it is recognized later. The host of every request is checked before it is sent: redirections to other
regions or services are refused.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import IO, Any
from urllib.parse import quote, unquote, urlsplit

from tidemill.errors import install_hint
from tidemill.files import open_private
from tidemill.model.number import canonical_checksum
from tidemill.transfer.checksum import PART_BYTES, Growing, Scattered, sums
from tidemill.transfer.contract import RemoteFile, Stat, TransferError, Watch, of_os_error
from tidemill.transfer.credentials import credential_error, untrusted

PIECE_BYTES = 16 << 20
"""Objects come in pieces of this size, several at a time (STREAMS_S3)."""

READ_BYTES = 1 << 20
META = "sha256"
SAID_MAX = 400
CAUSES_MAX = 20
_TAG_SAFE = '"-/+=:'  # entity tags of real services stay as they are
AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_WHERE = (
    "name the right `service` of this endpoint in site.toml, at Amazon with its region: "
    "`https://s3.REGION.amazonaws.com`"
)
REGION = "us-east-1"
"""Where neither `service` nor the file of keys names one: Amazon's own default, and what MinIO and Ceph accept."""
_AMAZON = re.compile(r"https://s3[.-](?P<region>[a-z]{2}(-[a-z]+)+-[0-9]+)\.amazonaws\.com(\.cn)?/?")
_DENIED = (
    "401",
    "403",
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "Forbidden",
)
_MISSING = ("404", "NoSuchKey", "NoSuchBucket", "NotFound")


class S3Adapter:
    """Moves files to and from S3: a `contract.Adapter`."""

    resumes = False
    tells_at_once = True
    in_order = True

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}
        self._lock = Lock()

    def stat(self, place: RemoteFile, watch: Watch) -> Stat:
        """Size and version of the object, and the SHA-256 in its metadata."""
        with _errors_of(place, "query"):
            head = self._client(place, watch).head_object(Bucket=place.host, Key=_key(place))
        told = canonical_checksum("sha256", str(head.get("Metadata", {}).get(META, "")))
        size, tag = head.get("ContentLength"), quote(str(head.get("ETag", "")), safe=_TAG_SAFE)
        if not isinstance(size, int) or size < 0:
            raise TransferError(f"failed to query `{place.shown}`: the service does not say how large it is")
        return Stat(
            size_bytes=size,
            version=f"{size} {tag} {head.get('LastModified', '')}",
            checksums={} if told is None else {"sha256": told},
        )

    def read(
        self, place: RemoteFile, target: Path, stat: Stat, watch: Watch, needed: AbstractSet[str]
    ) -> dict[str, str]:
        """Fetch the object in pieces, all of the version in `stat`; returns the checksums made on the way."""
        tag = unquote(stat.version.split(" ")[1])
        with _errors_of(place, "read", target), open_private(target, "wb", buffering=0) as file:
            progress = _Progress(watch)
            pieces = _Pieces(self._client(place, watch), place, file, progress)
            with Growing(target, needed, scattered=Scattered(pieces.there, progress.moved)) as growing:
                pieces.bring(stat.size_bytes, tag)
                return growing.end()

    def write(
        self, source: Path, place: RemoteFile, watch: Watch, known: Mapping[str, str]
    ) -> dict[str, str]:
        """Upload the object with its SHA-256 as metadata. Returns no checksums."""
        digest = known.get("sha256") or sums(source, {"sha256"}, watch)["sha256"]
        with _errors_of(place, "write"):
            self._client(place, watch).upload_file(
                str(source),
                place.host,
                _key(place),
                ExtraArgs={"Metadata": {META: digest}},
                Callback=_Progress(watch),
                Config=self._parts(place),
            )
        return {}

    def rename(self, place: RemoteFile, final: RemoteFile, watch: Watch) -> None:
        """Not needed: see above."""
        raise AssertionError("objects get their names at once")

    def checksum(self, place: RemoteFile, algorithm: str, watch: Watch) -> str | None:
        """The object's entity tag if it is made of MD5s, which the service itself computed; else None. The metadata of
        the upload is not used here."""
        with _errors_of(place, "query"):
            head = self._client(place, watch).head_object(Bucket=place.host, Key=_key(place))
        tag = str(head.get("ETag", "")).strip('"').lower()
        return tag if algorithm == "etag" and re.fullmatch(r"[0-9a-f]{32}(-[0-9]+)?", tag) else None

    def digest(self, place: RemoteFile, stat: Stat, watch: Watch) -> str | None:
        """None: reading the object back needs a copy."""
        return None

    def remove(self, place: RemoteFile, watch: Watch) -> None:
        """Delete the object."""
        with _errors_of(place, "delete"):
            self._client(place, watch).delete_object(Bucket=place.host, Key=_key(place))

    def rest(self) -> None:
        """Do nothing: the clients serve later moves, too."""

    def close(self) -> None:
        """Close the clients and their connections."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def _parts(self, place: RemoteFile) -> Any:
        from boto3.s3.transfer import TransferConfig

        streams = place.endpoint.connections
        return TransferConfig(
            multipart_threshold=PART_BYTES,
            multipart_chunksize=PART_BYTES,
            max_concurrency=streams,
            use_threads=streams > 1,
        )

    def _client(self, place: RemoteFile, watch: Watch) -> Any:
        watch.check()
        with self._lock:
            client = self._clients.get(str(place.endpoint))
            if client is None:
                client = self._clients[str(place.endpoint)] = _open(place, watch.stall_s)
            return client


def _open(place: RemoteFile, stall_s: float) -> Any:
    try:
        import boto3
        import botocore.session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise TransferError(
            "`s3:` needs boto3, which is not installed", hint=install_hint("s3"), transient=False
        ) from error
    endpoint = place.endpoint
    core = botocore.session.Session()
    if endpoint.credentials_file is not None:
        core.set_config_variable("credentials_file", str(endpoint.credentials_file))
        core.set_config_variable("profile", "default")
    service = "" if region_of(endpoint.service) else endpoint.service
    config = Config(
        connect_timeout=min(20, stall_s),
        read_timeout=min(60, stall_s),
        retries={"max_attempts": 1, "mode": "standard"},
        s3={"addressing_style": "path" if service else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=max(10, endpoint.connections * endpoint.transfers_max),
    )
    try:
        client = boto3.session.Session(botocore_session=core).client(
            "s3",
            endpoint_url=service or None,
            region_name=region_of(endpoint.service) or str(core.get_scoped_config().get("region") or REGION),
            config=config,
            verify=None if endpoint.ca is None else str(endpoint.ca),
        )
    except (BotoCoreError, ValueError) as error:
        raise credential_error(place, str(error), f"see `credentials_file` of `{endpoint.url}`") from error
    guard = _Guard(endpoint.url, service)
    client.meta.events.register("before-send.s3", guard)
    client.meta.events.register("before-call.s3.HeadBucket", guard.lost)
    return client


def region_of(service: str) -> str:
    """The region that `https://s3.REGION.amazonaws.com` names; empty for other services."""
    match = _AMAZON.fullmatch(service)
    return match["region"] if match is not None else ""


class _Guard:
    """Lets no request leave for another host than the service's. `service`: empty = Amazon's."""

    def __init__(self, url: str, service: str) -> None:
        self._url = url
        self._service = urlsplit(service)

    def __call__(self, request: Any, **_: object) -> None:
        """Raise TransferError for a foreign host."""
        url = urlsplit(request.url)
        host = (url.hostname or "").lower()
        if self._service.hostname:
            same = host == self._service.hostname.lower() and url.port == self._service.port
            fine = same and url.scheme == self._service.scheme
        else:
            fine = host.endswith(AMAZON) and url.scheme == "https"
        if not fine:
            raise TransferError(
                f"`{self._url}` sends us on to `{url.scheme}://{url.netloc}`, which this site does not permit",
                hint=_WHERE,
                transient=False,
            )

    def lost(self, **_: object) -> None:
        """Raise TransferError when the client asks where a bucket is, after a redirection without a location: it would
        repeat the question for as long as the answer is the same."""
        raise TransferError(
            f"`{self._url}` sends us on and does not say where to",
            hint=_WHERE,
            transient=False,
        )


class _Pieces:
    """Brings an object in pieces, several at a time, and knows up to where it is all there."""

    def __init__(self, client: Any, place: RemoteFile, file: IO[bytes], progress: _Progress) -> None:
        self._client, self._place, self._file, self._progress = client, place, file, progress
        self._whole: set[int] = set()
        self._there = 0
        self._lock = Lock()

    def there(self) -> int:
        """The number of bytes from the beginning that are all written."""
        return self._there

    def bring(self, size: int, tag: str) -> None:
        """All pieces of the object with this entity tag."""
        threads = ThreadPoolExecutor(self._place.endpoint.connections, thread_name_prefix="pieces")
        try:
            starts = range(0, size, PIECE_BYTES)
            asked = [threads.submit(self._one, n, min(n + PIECE_BYTES, size), tag) for n in starts]
            for each in asked:
                each.result()
        finally:
            threads.shutdown(cancel_futures=True)

    def _one(self, first: int, end: int, tag: str) -> None:
        words = {"Range": f"bytes={first}-{end - 1}"} | ({"IfMatch": tag} if tag else {})
        body = self._client.get_object(Bucket=self._place.host, Key=_key(self._place), **words)["Body"]
        with closing(body):
            at = first
            while at < end and (piece := body.read(READ_BYTES)):
                if at + len(piece) > end:
                    break
                os.pwrite(self._file.fileno(), piece, at)
                at += len(piece)
                self._progress(len(piece))
        if at != end:
            raise TransferError(
                f"failed to read `{self._place.shown}`: {at - first} of {end - first} bytes came"
            )
        with self._lock:
            self._whole.add(first)
            while self._there in self._whole:
                self._whole.remove(self._there)
                self._there += PIECE_BYTES


class _Progress:
    """Adds up the progress that boto3 reports in pieces, from several threads."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._moved = 0
        self._lock = Lock()

    def __call__(self, count: int) -> None:
        """Add `count` bytes; an exception ends the transfer."""
        with self._lock:
            self._moved += count
            moved = self._moved
        self._watch.progress(moved)

    def moved(self) -> int:
        """The bytes that have arrived up to now, anywhere in the object."""
        return self._moved


@contextmanager
def _errors_of(place: RemoteFile, verb: str, target: Path | None = None) -> Iterator[None]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
    from botocore.parsers import ResponseParserError
    from urllib3.util.ssl_match_hostname import CertificateError

    try:
        yield
    except ClientError as error:
        raise _refusal(place, verb, error.response) from error
    except NoCredentialsError as error:
        raise credential_error(
            place, "there are no access keys", "name a `credentials_file` of the endpoint"
        ) from error
    except (BotoCoreError, Boto3Error) as error:
        if isinstance(error.__cause__, ClientError) or isinstance(error.__context__, ClientError):
            cause = error.__cause__ or error.__context__
            assert isinstance(cause, ClientError)
            raise _refusal(place, verb, cause.response) from error
        for below in _below(error):
            if isinstance(below, (ssl.SSLCertVerificationError, CertificateError)):
                raise untrusted(place, below) from error
        raise TransferError(
            f"failed to {verb} `{place.shown}`: {_one_line(error)}",
            hint="the service or the network is unreachable: it is tried again",
        ) from error
    except (ResponseParserError, ValueError, ArithmeticError, RuntimeError) as error:
        # what botocore raises for malformed documents, numbers and times
        raise TransferError(
            f"failed to {verb} `{place.shown}`: the answer cannot be read: {_one_line(error)}",
            hint="is it an S3 service that answers there?",
        ) from error
    except OSError as error:
        raise of_os_error(error, f"write `{target}`" if target else f"{verb} `{place.shown}`") from error


def _refusal(place: RemoteFile, verb: str, response: Any) -> TransferError:
    told = response.get("Error", {})
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(told.get("Code", status))
    words = _one_line(f"{status} {code} {told.get('Message', '')}")
    if code in _DENIED or status in (401, 403):
        return credential_error(place, f"the service said {words}")
    what = f"failed to {verb} `{place.shown}`: the service said {words}"
    if code in _MISSING or status == 404:
        return TransferError(what, transient=False, missing=True)
    if status == 412:
        return TransferError(f"`{place.shown}` has changed while it was read")
    return TransferError(what, transient=status >= 500 or status in (0, 408, 429) or code == "SlowDown")


def _below(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes."""
    for _ in range(CAUSES_MAX):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _one_line(words: object) -> str:
    """Foreign words on one line of bounded length."""
    text = str(words)[: 2 * SAID_MAX]
    return "".join(each if each.isprintable() else " " for each in text).strip()[:SAID_MAX]


def _key(place: RemoteFile) -> str:
    return place.path.removeprefix("/")
