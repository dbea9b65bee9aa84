"""Replicas of files as a Rucio server lists them: the two calls that a site needs.

    GET  /auth/userpass | /auth/x509   a token, for an hour; a JWT needs no login
    POST /replicas/list                one line of JSON for each file, as a stream

For Rucio 41.5. Tested against a real one (tests/rucio), except for lists that break off or lose stores halfway:
tests/unit imitates those. What the reply means:

    a store in `states` and not in `rses`   the server lost its database during the list: ask again
    `states` empty                          no store has the file available now
    no line                                 no such file
    401 CannotAuthenticate                  another token; 401 AccessDenied: the account may not
    500                                     by its class: the database is unreachable, or the request can never succeed

Texts of errors may hold the token or SQL: only the class of an exception is ever shown.
"""

from __future__ import annotations

import email.utils
import re
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from tidemill import clock
from tidemill.confidential import hide
from tidemill.errors import UNDECODABLE, ConfigError
from tidemill.model.far import OPENED, CatalogueName
from tidemill.model.number import canonical_checksum
from tidemill.net.http_exchange import ExchangeError, HttpAnswer, HttpServer, TimeLimit
from tidemill.routing.copies import CatalogueEntry, CatalogueError
from tidemill.wire.credentials import read_login, read_secret
from tidemill_replicas import constants
from tidemill_replicas.settings import Rucio

FILES_PER_CALL = 100
"""Rucio refuses more than 1000; few, so that a call that is broken off costs little."""

CALL_S_MAX = 600.0
"""A call that still sends something is given up after this time."""

LINE_BYTES_MAX = 1 << 20
ERROR_BYTES_MAX = 4096
FOREIGN_MAX = 100
"""Lines about other files than those that were asked for, after which a reply is broken off: a dataset was named, and
Rucio lists what is in it, a million files perhaps."""

IDLE_LINES_MAX = 1000
"""Lines of a reply that hold nothing, or a file once more; a healthy server sends none."""

KEPT_MAX = 100_000
URLS_MAX = 50
"""Of one file."""

URL_CHARACTERS_MAX = 2000
FILE_BYTES_MAX = 1 << 60

TOKEN_S_MIN = 60.0
"""A token that ends sooner is replaced."""

AGAIN_S = 10.0
"""What was incomplete is asked for again after this time."""

T = TypeVar("T")
_CLASS = re.compile(r"[A-Za-z]{1,60}")
_AVAILABLE = "AVAILABLE"
_AWAY = ("", "DatabaseException", "ServiceUnavailable", "ConfigNotFound", "Timeout")


class _Door(msgspec.Struct, frozen=True):
    priority: int = 0


class _Line(msgspec.Struct, frozen=True):
    scope: str
    name: str
    bytes: float | None = None
    adler32: str | None = None
    pfns: dict[str, _Door] = {}
    rses: dict[str, list[str]] = {}
    states: dict[str, str] = {}


class _Token(NamedTuple):
    text: str
    until_s: float


_decoder = msgspec.json.Decoder(_Line)


class RucioReplicas:
    """One Rucio server. Thread-safe; what it said is kept for `keep_s`."""

    def __init__(self, config: Rucio, keep_s: float) -> None:
        self._config = config
        self._keep_s = keep_s
        parts = urlsplit(config.address)
        self._base = parts.path.rstrip("/")
        self._host, self._port, self._is_plain = parts.hostname or "", parts.port, parts.scheme == "http"
        self._lock = threading.Lock()
        self._token: _Token | None = None
        self._known: dict[CatalogueName, tuple[float, CatalogueEntry]] = {}

    def look_up(self, names: Sequence[CatalogueName]) -> dict[CatalogueName, CatalogueEntry]:
        """The files of these names that Rucio knows. Raises CatalogueError."""
        now_s = clock.monotonic_s()
        with self._lock:
            known = {name: self._known[name] for name in names if name in self._known}
        result = {name: entry for name, (until_s, entry) in known.items() if until_s > now_s}
        missing = list(dict.fromkeys(each for each in names if each not in result))
        for at in range(0, len(missing), FILES_PER_CALL):
            new = self._ask(missing[at : at + FILES_PER_CALL])
            result |= new
            with self._lock:
                for name, entry in new.items():
                    while len(self._known) >= KEPT_MAX:
                        del self._known[next(iter(self._known))]
                    keep_s = min(self._keep_s, AGAIN_S) if entry.is_partial else self._keep_s
                    self._known[name] = (clock.monotonic_s() + keep_s, entry)
        return result

    def _ask(self, names: list[CatalogueName]) -> dict[CatalogueName, CatalogueEntry]:
        lines = self._listed(names, with_schemes=True)
        bare = [each for each in names if each in lines and not lines[each].pfns and lines[each].states]
        if (
            bare
        ):  # the store has no such protocol, or the database was lost: without `schemes` each store has a URL
            again = self._listed(bare, with_schemes=False)
            for each in bare:
                if each in again and again[each].pfns:
                    lines[each] = again[each]
        return {name: _entry(line) for name, line in lines.items()}

    def _listed(self, names: list[CatalogueName], *, with_schemes: bool) -> dict[CatalogueName, _Line]:
        """The lines about these files. What ends before its end counts for nothing."""
        request: dict[str, object] = {"dids": [{"scope": each.scope, "name": each.name} for each in names]}
        if with_schemes:
            request["schemes"] = list(OPENED)
        if self._config.site:
            request["client_location"] = {"site": self._config.site}
        wanted, foreign, idle = set(names), 0, 0
        lines: dict[CatalogueName, _Line] = {}
        answer = self._answer("POST", "/replicas/list", msgspec.json.encode(request))
        try:
            for text in answer.lines(LINE_BYTES_MAX):
                line = _decoder.decode(text) if text.strip() else None
                key = None if line is None else CatalogueName(line.scope, line.name)
                if line is None or key is None or key in lines:
                    idle += 1
                elif key in wanted:
                    lines[key] = line
                else:
                    foreign += 1
                if foreign > FOREIGN_MAX:
                    raise _dataset_error(names)
                if idle > IDLE_LINES_MAX:
                    raise CatalogueError(
                        f"`{self._config.address}` sent a list of replicas that does not end"
                    )
        except (ExchangeError, TimeoutError) as error:
            raise CatalogueError(
                f"`{self._config.address}` broke its list of replicas off: {_bare(error)}"
            ) from error
        except UNDECODABLE as error:
            raise CatalogueError(
                f"`{self._config.address}` sent a list of replicas that is malformed"
            ) from error
        finally:
            answer.close()
        return lines

    # ---- one exchange ----

    def _answer(self, method: str, path: str, body: bytes) -> HttpAnswer:
        """A reply of status 200. Another token is asked for once."""
        for is_last in (False, True):
            answer = self._send(method, path, body, self._credential())
            if answer.status == 200:
                return answer
            kind = _exception(answer)
            if answer.status == 401 and kind == "CannotAuthenticate" and not is_last and self._logs_in:
                with self._lock:
                    self._token = None
                continue
            raise self._refused(path, answer.status, kind)
        raise AssertionError("the last try returns or raises")

    def _send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> HttpAnswer:
        sent = {"Content-Type": "application/json", "Accept": "*/*", **headers}
        if body is not None:
            sent["Content-Length"] = str(len(body))
        try:
            server = HttpServer(
                self._host,
                self._port,
                timeout_s=constants.CATALOGUE_SILENCE_S,
                tls=None if self._is_plain else self._tls(),
            )
            pieces = None if body is None else [memoryview(body)]
            return server.ask(
                method, self._base + path, headers=sent, body=pieces, bound=TimeLimit(CALL_S_MAX)
            )
        except (ExchangeError, OSError) as error:
            raise CatalogueError(f"`{self._config.address}` does not answer: {_bare(error)}") from error

    def _tls(self) -> ssl.SSLContext:
        ca, config = self._config.ca, self._config
        try:
            if ca is None:
                context = ssl.create_default_context()
            else:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.load_verify_locations(**{"capath" if ca.is_dir() else "cafile": str(ca)})
            if config.certificate is not None:
                context.load_cert_chain(config.certificate, config.key)
        except (OSError, ssl.SSLError) as error:
            raise self._no_credential(f"its files cannot be read: {error}") from error
        return context

    # ---- credentials ----

    @property
    def _logs_in(self) -> bool:
        return self._config.secret_file is not None or self._config.certificate is not None

    def _credential(self) -> dict[str, str]:
        config = self._config
        if config.token_file is not None:
            return {"X-Rucio-Auth-Token": _held(read_secret, config.token_file)}
        if not self._logs_in:
            return {}
        with self._lock:
            token = self._token
        if token is None or token.until_s - clock.now_s() < TOKEN_S_MIN:
            token = self._login()
            with self._lock:
                self._token = token
        return {"X-Rucio-Auth-Token": token.text}

    def _login(self) -> _Token:
        config = self._config
        headers = {"X-Rucio-Account": config.account}
        path = "/auth/x509"
        if config.secret_file is not None:
            path = "/auth/userpass"
            user, password = _held(read_login, config.secret_file)
            if not f"{user}{password}".isascii():
                raise self._no_credential(f"`{config.secret_file}` holds characters that are not ASCII")
            headers |= {"X-Rucio-Username": user, "X-Rucio-Password": password}
        answer = self._send("GET", path, None, headers)
        try:
            text = answer.headers.get("X-Rucio-Auth-Token") or ""
            if answer.status != 200 or not text:
                raise self._refused(path, answer.status, _exception(answer))
            hide(text)
            ends = email.utils.parsedate_to_datetime(answer.headers.get("X-Rucio-Auth-Token-Expires") or "")
            return _Token(text, ends.timestamp())
        except ValueError:  # without a time it is good until it is refused
            return _Token(text, clock.now_s() + 600.0)
        finally:
            answer.close()

    def _refused(self, path: str, status: int, kind: str) -> CatalogueError:
        what = f"`{self._config.address}{path}` answered {status}{f' {kind}' if kind else ''}"
        if status in (401, 403) or kind == "CannotAuthenticate":
            return self._no_credential(what, denied=kind == "AccessDenied")
        if status in (429, 502, 503, 504) or (status == 500 and kind in _AWAY):
            return CatalogueError(what)
        return CatalogueError(what, hint="see `[replicas.rucio]` in site.toml", transient=False)

    def _no_credential(self, what: str, *, denied: bool = False) -> CatalogueError:
        hint = (
            "ask for the right to list replicas"
            if denied
            else "renew what `[replicas.rucio]` in site.toml names"
        )
        return CatalogueError(what, hint=hint, transient=False, is_credential=True)


def _dataset_error(names: Sequence[CatalogueName]) -> CatalogueError:
    shown = f"`rucio:{names[0].scope}/{names[0].name}`"
    what = (
        f"{shown} is"
        if len(names) == 1
        else f"{shown}, or one of the {len(names) - 1} names asked for with it, is"
    )
    return CatalogueError(
        f"{what} a dataset with more than {FOREIGN_MAX} files, and an input is one file",
        hint='list its files, one for each event, and give the list as an input of `kind = "each"`',
        transient=False,
    )


def _entry(line: _Line) -> CatalogueEntry:
    """What a line says of a file."""
    left_out = [
        store for store, state in line.states.items() if state == _AVAILABLE and store not in line.rses
    ]
    # what no file can have is as good as not known
    size = None if line.bytes is None or not 0 <= line.bytes <= FILE_BYTES_MAX else int(line.bytes)
    adler32 = _adler32(line.adler32)
    pfns = {url: door for url, door in line.pfns.items() if len(url) <= URL_CHARACTERS_MAX}
    if not pfns:
        why = "no store has it available now"
        if left_out:
            why = f"Rucio named {len(left_out)} of its stores and no URL: it may have lost its database meanwhile"
        return CatalogueEntry(size_bytes=size, adler32=adler32, is_partial=True, why=why)
    urls = sorted(pfns, key=lambda url: pfns[url].priority)
    return CatalogueEntry(urls=urls[:URLS_MAX], size_bytes=size, adler32=adler32, is_partial=bool(left_out))


def _adler32(text: str | None) -> str:
    """The checksum with its leading zeros, which some catalogues drop; empty if there is none."""
    return canonical_checksum("adler32", (text or "").strip()) or ""


def _exception(answer: HttpAnswer) -> str:
    """The class of an exception, by the header; empty where there is none. The text is not read: it holds secrets."""
    kind = answer.headers.get("ExceptionClass") or ""
    answer.close()
    return kind if _CLASS.fullmatch(kind) else ""


def _bare(error: Exception) -> str:
    """An error of the connection, in the system's words."""
    reason = error.reason if isinstance(error, ExchangeError) else error
    if isinstance(reason, OSError):
        return reason.strerror or str(reason) or type(reason).__name__
    return type(reason).__name__


def _held(read: Callable[[Path], T], path: Path) -> T:
    """What a credential's file holds."""
    try:
        return read(path)
    except ConfigError as error:
        raise CatalogueError(error.message, hint=error.hint, transient=False, is_credential=True) from error
