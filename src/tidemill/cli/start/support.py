"""`tidemill support`: collects diagnostics in one file, with secrets cut out and of bounded size."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import socket
import stat
import sys
import tarfile
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tidemill import __version__, clock, confidential, extensions
from tidemill.cli.arguments import Command, Parser, client_of
from tidemill.cli.terminal import hint, say, show_json
from tidemill.errors import ConfigError, SiteError, TidemillError
from tidemill.files import read_bounded, replaced

MEMBER_BYTES_MAX = 2_000_000  #: of a log or record: its end
TOTAL_BYTES_MAX = 20_000_000
SECRET_FILE_BYTES_MAX = 64 * 1024
URL_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/@:]*:(?P<password>[^/@]+)@")  #: RFC 3986 3.2.1
APPS_MAX = 100
APP_BYTES_MAX = 1 << 20
PACKAGES = (
    "starlette",
    "msgspec",
    "uvicorn",
    "psycopg",
    "cryptography",
    "jinja2",
    "rich",
    "tidemill-node",
)
README = """What is in this bundle: see manifest.json. Nothing else was read.

Secrets were cut out: the contents of every private file that the configuration names, and whatever looks like a
password, a token or a private key: all values in queries of URLs, all variables of applications, all assignments in
their `setup` lines. Cut text reads "[cut]". Paths and names of users, jobs, hosts and sites are as they are. Look
through it before you send it on.
"""


class Bundle:
    """Members as they are gathered. The manifest names what cannot be read, which ends nothing."""

    def __init__(self) -> None:
        self.members: dict[str, bytes] = {}
        self.problems: list[str] = []
        self.left_out: dict[str, int] = {}

    def add(self, name: str, text: str | bytes) -> None:
        """A member, cut clean and to size: of what is too long the end is kept."""
        whole = text.encode() if isinstance(text, str) else text
        kept = whole if len(whole) <= MEMBER_BYTES_MAX else _from_a_line(whole[-MEMBER_BYTES_MAX:])
        clean = confidential.cut_lines(kept.decode(errors="replace")).encode(errors="backslashreplace")
        room = TOTAL_BYTES_MAX - sum(map(len, self.members.values()))
        if len(clean) > room:
            self.problems.append(f"{name}: left out, the bundle has {TOTAL_BYTES_MAX} bytes at most")
            return
        if len(whole) > len(kept):
            self.left_out[name] = len(whole) - len(kept)
        self.members[name] = clean

    def add_file(self, name: str, path: Path) -> None:
        """A file's end."""
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MEMBER_BYTES_MAX))
                tail = file.read(MEMBER_BYTES_MAX)
                kept = tail if size <= MEMBER_BYTES_MAX else _from_a_line(tail)
                self.add(name, kept)
                if size > len(kept):
                    self.left_out[name] = size - len(kept)
        except OSError as error:
            self.problems.append(f"{name}: `{path}`: {error.strerror}")

    def add_made(self, name: str, make: Callable[[], Any]) -> None:
        """What a function gives, as JSON; a text as it is."""
        try:
            found = make()
        except TidemillError as error:
            self.problems.append(f"{name}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
        except Exception as error:  # noqa: BLE001 -- a bundle is asked for when something is broken
            self.problems.append(f"{name}: {type(error).__name__}: {error}")
        else:
            self.add(name, found if isinstance(found, str) else json.dumps(found, indent=1, default=str))

    def finish(self) -> None:
        """The manifest, and a last check: a member with a known secret in it is discarded."""
        for name, content in list(self.members.items()):
            if any(secret.encode() in content for secret in confidential.hidden()):
                del self.members[name]
                self.problems.append(f"{name}: left out, a secret could not be cut out of it")
        listed = [
            {
                "name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(),
                "bytes_left_out": self.left_out.get(name, 0),
            }
            for name, content in sorted(self.members.items())
        ]  # fmt: skip
        self.add("manifest.json", json.dumps({"members": listed, "problems": self.problems}, indent=1))
        self.add("README.txt", README)


def _from_a_line(tail: bytes) -> bytes:
    """What begins with a whole line: of a secret that was cut in half, nothing would know the rest."""
    return tail.partition(b"\n")[2]


def define(parser: Parser) -> None:
    """Options of `support`."""
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="the bundle, mode 0600 (default: tidemill-support-HOST-TIME.tar.gz here)",
    )  # fmt: skip
    parser.add_argument(
        "--site", type=Path, metavar="DIR", help="this site, too (default: HOME/site if it is there)"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="this server.toml, too (default: HOME/server/server.toml)"
    )
    parser.add_argument(
        "--log", type=Path, action="append", default=[], metavar="FILE",
        help="the end of this log, too; repeatable (default: those of `tidemill up`)",
    )  # fmt: skip


def run(args: Namespace) -> int:
    """Gather and write."""
    from tidemill.client.home import home_dir

    home = home_dir(args.home)
    server_toml = args.config or home / "server" / "server.toml"
    site = args.site or home / "site"
    for path in (server_toml, site / "site.toml", home / "client.toml"):
        hide_secrets_of(path)
    if args.secret_file is not None:
        _hide_file(args.secret_file)
    bundle = Bundle()
    bundle.add_made("versions.json", versions)
    bundle.add_made("doctor.json", lambda: _doctor(args, site))
    _server(bundle, args, server_toml)
    _site(bundle, site)
    for path in [*(home / f"{name}.log" for name in ("up", "server", "site")), *args.log]:
        if path.exists() or path in args.log:
            bundle.add_file(f"logs/{path.name}", path)
    bundle.finish()
    at = clock.utc_text(clock.now_us()).replace(":", "").replace("-", "")
    target = (args.output or Path(f"tidemill-support-{socket.gethostname()}-{at}.tar.gz")).absolute()
    size = write(target, bundle.members)
    if args.json:
        show_json(
            {
                "file": str(target),
                "bytes": size,
                "members": sorted(bundle.members),
                "problems": bundle.problems,
            }
        )
        return 0
    say(f"{target}: {len(bundle.members)} files, {size:,} bytes")
    for problem in bundle.problems:
        say(f"    without {problem}")
    hint("secrets were cut out; look through it before you send it on")
    return 0


def hide_secrets_of(path: Path) -> None:
    """Everything in private files that a configuration names is a secret, and so is what the names of its keys say."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return
    for path_of, value in _leaves(data):
        key = path_of.rpartition(".")[2]
        if not isinstance(value, str):
            continue
        if path_of == "notify.hooks.url":  # with many services the path is the credential
            confidential.hide(value)
        elif key.endswith("_file") or key in ("certificate", "key"):
            _hide_file((path.parent / Path(value).expanduser()).absolute())
        elif key in ("password", "secret", "token", "passphrase"):
            confidential.hide(value)
        elif match := URL_PASSWORD.match(value):
            confidential.hide(match["password"])


def _leaves(data: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values with the names that lead to them, such as `notify.hooks.url`."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _leaves(value, f"{key}.{name}".lstrip("."))
    elif isinstance(data, list):
        for value in data:
            yield from _leaves(value, key)
    else:
        yield key, data


def _hide_file(path: Path) -> None:
    """Hide the lines of a file, if it is private, and what follows `=` in them: certificates that all users may
    read are not secrets."""
    try:
        with path.open("rb") as file:
            if not stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                for line in file.read(SECRET_FILE_BYTES_MAX).decode(errors="replace").splitlines():
                    for each in {line, line.partition("=")[2]}:
                        confidential.hide(each.strip())
    except OSError:
        return


def versions() -> dict[str, Any]:
    """Versions of Tidemill, Python, the kernel and the programs in use."""
    found: dict[str, Any] = {
        "tidemill": __version__, "python": sys.version, "executable": sys.executable, "kernel": platform.release(),
        "machine": platform.machine(), "cores": os.cpu_count(), "at": clock.utc_text(clock.now_us()),
    }  # fmt: skip
    with contextlib.suppress(OSError):
        found["system"] = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    found["extensions"] = {name: each.version for name, each in extensions.installed().items()}
    return found


def _doctor(args: Namespace, site: Path) -> list[dict[str, Any]]:
    from tidemill.cli.start.doctor import examine

    named = site if (site / "site.toml").is_file() else None
    asked = Namespace(home=args.home, site=named, compute=False, probe_wait=0)
    return [finding._asdict() for finding in examine(asked)]


def _server(bundle: Bundle, args: Namespace, config: Path) -> None:
    if config.exists():
        bundle.add_file("server/server.toml", config)
    try:
        client = client_of(args)
    except TidemillError as error:
        bundle.problems.append(f"server: {error.message}")
        return
    client.retry_s = 0
    if client.place.secret_file is not None:
        _hide_file(client.place.secret_file)
    for name in ("health", "counts", "sites"):
        bundle.add_made(f"server/{name}.json", partial(client.connection.call, "GET", f"/v1/{name}", Any))
    bundle.add_made("server/metrics.prom", partial(client.connection.text, "/metrics"))


def _site(bundle: Bundle, site: Path) -> None:
    if not (site / "site.toml").is_file():
        return
    bundle.add_file("site/site.toml", site / "site.toml")
    bundle.add_made("site/status.json", lambda: _status(site))
    for name in ("metrics.prom", "quarantine.json", "DRAINED", "STOP", "resumed.log"):
        if (site / name).is_file():
            bundle.add_file(f"site/{name}", site / name)
    for path in sorted((site / "apps").glob("*.toml"))[:APPS_MAX]:
        bundle.add_made(f"site/apps/{path.name}", partial(_application, path))
    plans = sorted((site / "harvest").glob("*.jsonl"))
    for path in plans[-2:]:
        bundle.add_file(f"site/plans/{path.name}", path)


def _application(path: Path) -> str:
    """An application file without its secrets. Raises SiteError if it cannot be read."""
    content = read_bounded(path, APP_BYTES_MAX) or b""  # removed since it was listed
    return application_text(content.decode(errors="replace"))


def application_text(text: str) -> str:
    """An application file in which the values of `environment` and the assignments in `setup` are cut, and the keys
    stay.

    A text that is not TOML, or in which they stand in a way that `_rewritten` does not know, becomes JSON or loses
    all values: none is left because it is written oddly.
    """
    try:
        whole = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return "".join(f"{_key_of(line)}\n" for line in text.splitlines())
    safe = _cut_application(whole)
    written = _rewritten(text, safe)
    try:
        if tomllib.loads(written) == safe:
            return written
    except tomllib.TOMLDecodeError:
        pass
    return json.dumps(safe, indent=1, default=str)


def _key_of(line: str) -> str:
    """What stays of a line of a text that is not TOML: the name of a table, or the key."""
    match = re.match(r"\s*(?:\[[\w. -]{0,99}\]|[\w.\"-]{1,99}\s*=)", line)
    return (match[0] if match is not None else "") + confidential.CUT


def _cut_application(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {
            name: {each: confidential.CUT for each in of}
            if name == "environment" and isinstance(of, dict)
            else _cut_application(of, name)
            for name, of in value.items()
        }
    if isinstance(value, list):
        return [_cut_application(each, key) for each in value]
    return confidential.cut_assignments(value) if key == "setup" and isinstance(value, str) else value


_TOP_KEY = re.compile(r"^(?:[A-Za-z_-]+[ \t]*=|\[)", re.MULTILINE)  #: where the next key or table begins
_SETUP = re.compile(r"^setup[ \t]*=", re.MULTILINE)
_ENVIRONMENT = re.compile(r"^(?:environment[ \t]*=|\[environment\][^\n]*\n)", re.MULTILINE)


def _rewritten(text: str, safe: dict[str, Any]) -> str:
    """The text with `setup` and `environment` as `safe` has them, if the text has them as people write them."""
    for start, key in ((_SETUP, "setup"), (_ENVIRONMENT, "environment")):
        match = start.search(text)
        if match is None:
            continue
        is_table = match[0].startswith("[")
        behind = (re.compile(r"^\[", re.MULTILINE) if is_table else _TOP_KEY).search(text, match.end())
        value, end = safe[key], len(text) if behind is None else behind.start()
        if isinstance(value, dict):
            rows = [f"{json.dumps(name)} = {json.dumps(each)}" for name, each in value.items()]
            new = match[0] + "\n".join((*rows, "")) if is_table else f"{key} = {{ {', '.join(rows)} }}\n"
        else:
            new = f"{key} = {json.dumps(value)}\n"
        text = text[: match.start()] + new + text[end:]
    return text


def _status(site: Path) -> str:
    """As `tidemill site status --json`."""
    from tidemill.cli.site.status import status

    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        status(Namespace(dir=site, home=None, json=True))
    return told.getvalue()


def write(target: Path, members: dict[str, bytes]) -> int:
    """The bundle, whole or not at all; its size. Raises ConfigError or SiteError."""
    top = target.name.partition(".")[0]
    try:
        with replaced(target, durable=False) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, content in sorted(members.items()):
                member = tarfile.TarInfo(f"{top}/{name}")
                member.size, member.mode, member.mtime = len(content), 0o600, clock.now_s()
                archive.addfile(member, io.BytesIO(content))
    except FileNotFoundError as error:
        raise ConfigError(f"`{target.parent}` does not exist", hint="name another file with -o") from error
    except OSError as error:
        raise SiteError(
            f"failed to write `{target}`: {error.strerror}", hint="name another with -o"
        ) from error
    return target.stat().st_size


COMMANDS = {"support": Command(define, run, "tidemill support -o bundle.tar.gz --log server.log")}
