"""`tidemill doctor`: checks this machine, this installation, your home and your site for what will not work."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill import __version__
from tidemill.cli.arguments import Command, Parser, duration
from tidemill.cli.findings import tell_findings
from tidemill.cli.site.init import PROBE_WAIT_S
from tidemill.cli.terminal import show_json, show_lines
from tidemill.errors import ConfigError, TidemillError, install_hint
from tidemill.model.quantities import bytes_text
from tidemill.site.setup.finding import Finding

if TYPE_CHECKING:
    from tidemill.config.site import SiteConfig


FREE_BYTES_MIN = 1_000_000_000
MEMORY_BYTES_MIN = 1_000_000_000
FILES_MIN = 10_000
SOCKET_PATH_MAX = 107  # unix(7): 108 bytes with the closing zero
TIMEOUT_S = 20


def define(parser: Parser) -> None:
    """Options of `doctor`."""
    parser.add_argument(
        "--site", type=Path, metavar="DIR", help="check this site, too (default: HOME/site if there is one)"
    )
    parser.add_argument(
        "--compute", action="store_true", help="let one small job inspect a compute node of the site"
    )
    parser.add_argument(
        "--probe-wait", type=duration, default=PROBE_WAIT_S, metavar="T",
        help="how long to wait for that job to start, such as `10m` (default: 5m)",
    )  # fmt: skip


def run(args: Namespace) -> int:
    """Print findings; exit code 2 if something will not work."""
    findings = list(examine(args))
    failed = any(each.state == "fail" for each in findings)
    if args.json:
        show_json([each._asdict() for each in findings])
        return 2 if failed else 0
    tell_findings(findings, show_lines)
    return 2 if failed else 0


def examine(args: Namespace) -> Iterator[Finding]:
    """All findings, in the order of what depends on what."""
    from tidemill.cli.site.node import abilities_findings, binary_finding
    from tidemill.client.home import home_dir

    yield Finding("tidemill", "ok", f"{__version__}, Python {platform.python_version()} at {sys.executable}")
    yield binary_finding()
    yield from abilities_findings(args)
    yield from _machine()
    home = home_dir(args.home)
    yield from _home(home)
    yield _server(args)
    yield _examples()
    yield from _site(args, home)


def _site(args: Namespace, home: Path) -> Iterator[Finding]:
    """The site named, or the home's own; with --compute one of its compute nodes."""
    from tidemill.cli.site.check import examine_site
    from tidemill.cli.site.directory import read_site, site_directory

    if args.site is None and not (home / "site" / "site.toml").is_file():
        if args.compute:
            raise ConfigError(
                "--compute needs a site", hint="`tidemill site init` makes one, or name one: --site DIR"
            )
        return
    directory = site_directory(Namespace(dir=args.site, home=args.home))
    read = read_site(directory)
    yield from (each for each in examine_site(directory, read, offline=False) if each.check != "node binary")
    if args.compute:
        yield from _compute_node(args, directory, read)


def _compute_node(args: Namespace, directory: Path, read: SiteConfig) -> Iterator[Finding]:
    from tidemill.cli.site.init import login_facts, probe_node
    from tidemill.cli.site.node import site_uses
    from tidemill.site.setup.capabilities import without_limit
    from tidemill.site.setup.detection import of_node
    from tidemill.site.setup.limitations import of_abilities

    login = login_facts(directory)
    try:
        node = probe_node(read, directory, binary=Path(login.binary), wait_s=args.probe_wait)
    except TidemillError as error:
        yield Finding("compute node", "fail", error.message, error.hint or "")
        return
    told = of_node(node, login)
    if node.abilities is None:
        yield from told
        return
    # the binary's own doctor has tried what the shell probe only read
    yield from (each for each in told if each.check != "isolation")
    yield from of_abilities(without_limit(node.abilities), site_uses(directory, read))


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield Finding("cores", "ok", f"{cores} for Tidemill, of {os.cpu_count()}")
    available = _available_bytes()
    state = "ok" if available >= MEMORY_BYTES_MIN else "warn"
    yield Finding(
        "memory", state, f"{bytes_text(available)} available", "" if state == "ok" else "jobs may be killed"
    )


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _home(home: Path) -> Iterator[Finding]:
    from tidemill.cli.home_parts import check_parts, server_part
    from tidemill.model.file_systems import file_system
    from tidemill.server.database.mounts import refuse_network

    exists = home.exists()
    part = server_part(home)
    apart = "" if part == home.resolve() else f", its server in {part} on {file_system(part)}"
    try:
        check_parts(home)
        refuse_network(part)
        yield Finding("home", "ok", f"{home} on {file_system(home) or 'a file system of unknown kind'}{apart}"
                      + ("" if exists else ", not there yet"))  # fmt: skip
    except ConfigError as error:
        yield Finding(
            "home", "fail", error.message,
            "`tidemill site init` puts the server's part of it on a local disk; or set $TIDEMILL_HOME",
        )  # fmt: skip
    if exists and home.stat().st_mode & 0o077:
        yield Finding("home", "fail", f"{home} is open to other users", f"chmod 0700 {home}")
    nearest = next(path for path in (home, *home.parents) if path.exists())
    if not os.access(nearest, os.W_OK):
        yield Finding(
            "home", "fail", f"{nearest} cannot be written by you", "set $TIDEMILL_HOME to another directory"
        )
    free = shutil.disk_usage(nearest).free
    inodes = os.statvfs(nearest)
    state = "ok" if free >= FREE_BYTES_MIN else "warn"
    yield Finding(
        "disk", state, f"{bytes_text(free)} free at {nearest}", "" if state == "ok" else "free some"
    )
    if inodes.f_files and inodes.f_favail < FILES_MIN:
        yield Finding("disk", "warn", f"room for {inodes.f_favail} files at {nearest}", "remove some")
    socket = home / "server" / "api.sock"
    if len(os.fsencode(socket)) > SOCKET_PATH_MAX:
        yield Finding(
            "home", "warn", f"the path of `{socket}` is longer than sockets allow", "use a shorter --home"
        )


def _server(args: Namespace) -> Finding:
    from tidemill.client.client import Client
    from tidemill.client.home import find_server

    place = find_server(home=args.home)
    if place is None:
        return Finding(
            "server", "ok", "none is named and none runs", "`tidemill up` or `tidemill run` starts one"
        )
    try:
        client = Client(place.address, credentials=place.credentials, retry_s=0)
        health, sites = client.health(), client.sites()
    except TidemillError as error:
        return Finding("server", "fail", error.message, error.hint or "")
    listed = ", ".join(f"{site.name} {site.state}" for site in sites) or "no site"
    state = "ok" if health.status == "ok" and any(site.state == "UP" for site in sites) else "warn"
    status = "; ".join([health.status, *(each.text for each in health.problems)])
    return Finding(
        "server",
        state,
        f"{place.address} ({health.database}, {health.version}): {status}; {listed}",
        "; ".join(each.hint for each in health.problems if each.hint),
    )


def _examples() -> Finding:
    from importlib.util import find_spec

    missing = [name for name in ("pythia8mc", "uproot", "hist", "pyhepmc") if find_spec(name) is None]
    if not missing:
        return Finding("examples", "ok", "Pythia and the analysis are installed")
    return Finding(
        "examples",
        "ok",
        f"not installed ({', '.join(missing)}): only `tidemill quickstart` needs them",
        install_hint("examples"),
    )


COMMANDS = {"doctor": Command(define, run, "tidemill doctor --json", talks=False)}
