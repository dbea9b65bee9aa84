"""`tidemill site init|run|status|drain|resume`: a site, named by its directory."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill import clock
from tidemill.cli.arguments import Command, Parser, count
from tidemill.cli.configfile import commented, write_new
from tidemill.cli.terminal import hint, say, show, show_json
from tidemill.errors import ConfigError, TidemillError
from tidemill.report.tables import count_text, duration_text

if TYPE_CHECKING:
    from tidemill.config.site import SiteConfig
    from tidemill.wire.api import SiteRow

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def _directory(parser: Parser) -> None:
    parser.add_argument(
        "dir", type=Path, nargs="?", metavar="DIR", help="the site's directory (default: HOME/site)"
    )


def define_init(parser: Parser) -> None:
    """Options of `site init`."""
    _directory(parser)
    parser.add_argument("--name", default="local", metavar="NAME", help="the site's name (default: local)")
    parser.add_argument(
        "--server", metavar="ADDRESS", help="the server it works for (default: the socket in HOME/server)"
    )
    parser.add_argument("--nodes", type=count, default=1, metavar="N", help="emulated nodes (default: 1)")


def define_run(parser: Parser) -> None:
    """Options of `site run`."""
    _directory(parser)
    parser.add_argument(
        "--take-over", action="store_true", help="serve the site even if another agent seems to live"
    )
    parser.add_argument("--once", action="store_true", help="do what is due and end, for cron")
    parser.add_argument(
        "--stop-pilots",
        action="store_true",
        help="give all allocations back at the end (default: they go on)",
    )
    parser.add_argument(
        "--log-level", choices=LEVELS, default="INFO", help="what is logged to stderr (default: INFO)"
    )
    parser.add_argument(
        "--with-parent", type=int, metavar="PID", help="end when this parent process ends (default: none)"
    )


def define_status(parser: Parser) -> None:
    """Options of `site status`."""
    _directory(parser)


def define_reason(parser: Parser) -> None:
    """Options of `site drain` and `site resume`."""
    _directory(parser)
    parser.add_argument(
        "--reason", required=True, metavar="TEXT", help="why, for those who ask later (required)"
    )


def _site(args: Namespace) -> Path:
    from tidemill.client.home import home_dir

    directory: Path = (args.dir or home_dir(args.home) / "site").absolute()
    if not (directory / "site.toml").is_file():
        raise ConfigError(
            f"`{directory}` is no site directory: it has no site.toml", hint="`tidemill site init` makes one"
        )
    return directory


def init(args: Namespace) -> int:
    """Write a commented site.toml."""
    from tidemill.client.home import home_dir, make_home
    from tidemill.config.site import SiteConfig

    home = home_dir(args.home)
    directory: Path = (args.dir or home / "site").absolute()
    if args.dir is None:
        make_home(home)
    server = args.server or f"unix:{home}/server/api.sock"
    values = {
        "name": json.dumps(args.name),
        "server": json.dumps(server),
        "data_roots": "[]",
        "local.nodes": str(args.nodes),
    }
    write_new(directory / "site.toml", commented(SiteConfig, title="A Tidemill site", values=values))
    directory.chmod(0o700)
    (directory / "apps").mkdir(mode=0o700, exist_ok=True)
    if args.json:
        show_json({"site": str(directory)})
        return 0
    show(str(directory / "site.toml"))
    hint("read it; put application files into apps/; then `tidemill site run`")
    return 0


def run(args: Namespace) -> int:
    """Run the site's agent."""
    from tidemill import log
    from tidemill.cli.supervise import end_with_parent
    from tidemill.site.run import run_agent

    directory = _site(args)
    if args.with_parent is not None:
        end_with_parent(args.with_parent)
    log.to_stderr(args.log_level)
    return run_agent(
        directory,
        _read(directory),
        once=args.once,
        take_over=args.take_over,
        stop_pilots=args.stop_pilots,
    )


def _read(directory: Path) -> SiteConfig:
    from tidemill import config
    from tidemill.config.site import SiteConfig

    return config.load(directory / "site.toml", SiteConfig)


def status(args: Namespace) -> int:
    """Print what the directory and the server know of the site."""
    from tidemill.site.applications import Applications

    directory = _site(args)
    config = _read(directory)
    applications = Applications(directory / "apps")
    applications.refresh()
    row, why = _server_view(config)
    owner = _owner(directory)
    stop = directory / "STOP"
    drained = stop.read_text(errors="replace").strip() if stop.exists() else None
    if args.json:
        show_json(
            {
                "site": config.name,
                "directory": str(directory),
                "agent": owner,
                "drained": drained,
                "applications": sorted(applications.by_name),
                "refused_applications": applications.problems,
                "server": row,
                "server_error": why,
            }
        )
        return 0
    show(f"site         {config.name} in {directory} ({config.batch} batch system, mode {config.mode})")
    show(f"agent        {_owner_text(owner)}")
    if drained is not None:
        show(f"drained      {drained or 'no reason given'}")
    show(f"applications {', '.join(sorted(applications.by_name)) or 'none'}")
    for file, problem in sorted(applications.problems.items()):
        show(f"refused      {file}: {problem}")
    _show_row(config, row, why)
    return 0


def _show_row(config: SiteConfig, row: SiteRow | None, why: str) -> None:
    if row is None:
        show(f"server       {config.server}: {why}")
        return
    age = duration_text(max(0, clock.now_us() - row.seen_us) / 1e6)
    show(f"server       {config.server}: {row.state}, heard of {age} ago")
    states = ", ".join(f"{number} {state}" for state, number in sorted(row.allocations.items()) if number)
    show(f"allocations  {states or 'none'}")
    show(f"leased       {count_text(row.leased_events)} events")


def _server_view(config: SiteConfig) -> tuple[SiteRow | None, str]:
    from tidemill.client.client import Client

    try:
        client = Client(config.server, secret_file=config.secret_file, retry_s=0)
        rows = [row for row in client.sites() if row.name == config.name]
    except TidemillError as error:
        return None, error.message
    return (rows[0], "") if rows else (None, "does not know this site yet")


def _owner(directory: Path) -> dict[str, Any] | None:
    """The newest epoch of the site directory, and whether its agent has left."""
    newest = max((directory / "epoch").glob("*.json"), default=None)
    if newest is None:
        return None
    try:
        told: dict[str, Any] = json.loads(newest.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"failed to read `{newest}`: {error}") from error
    return {**told, "ended": newest.with_suffix(".ended").exists()}


def _owner_text(owner: dict[str, Any] | None) -> str:
    if owner is None:
        return "none has run yet"
    who = f"process {owner['pid']} on {owner['host']} since {clock.utc_text(owner['since_us'])}, epoch {owner['epoch']}"
    return who + (" (has ended)" if owner["ended"] else "")


def drain(args: Namespace) -> int:
    """Write the STOP file: the agent takes no more work and lets what runs finish."""
    directory = _site(args)
    stop = directory / "STOP"
    if stop.exists():
        say(f"already drained: {stop.read_text(errors='replace').strip() or 'no reason given'}")
        return 0
    write_new(stop, f"{args.reason}\n")
    say("drained: what runs finishes, nothing new starts")
    hint("`tidemill site resume --reason TEXT` lets it work again")
    return 0


def resume(args: Namespace) -> int:
    """Remove the STOP file; both reasons are kept in SITE/resumed.log."""
    directory = _site(args)
    stop = directory / "STOP"
    if not stop.exists():
        say("it was not drained")
        return 0
    line = {
        "at": clock.utc_text(clock.now_us()),
        "drained": stop.read_text(errors="replace").strip(),
        "resumed": args.reason,
    }
    with (directory / "resumed.log").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    stop.unlink(missing_ok=True)
    say("resumed")
    return 0


COMMANDS = {
    "site init": Command(define_init, init, "tidemill site init --name uni --server http://tide.example.org:7777 DIR",
                         talks=False),
    "site run": Command(define_run, run, "tidemill site run DIR", talks=False),
    "site status": Command(define_status, status, "tidemill site status --json", talks=False),
    "site drain": Command(define_reason, drain, "tidemill site drain --reason 'maintenance on Monday'", talks=False),
    "site resume": Command(define_reason, resume, "tidemill site resume --reason 'maintenance is over'", talks=False),
}  # fmt: skip
