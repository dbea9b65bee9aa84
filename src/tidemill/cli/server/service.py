"""`tidemill server run|init|upgrade`."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill import config
from tidemill.cli.arguments import Command, Parser, define_log_format
from tidemill.cli.configfile import commented, with_examples, write_new
from tidemill.cli.terminal import hint, say, show, show_json

if TYPE_CHECKING:
    from tidemill.config.server import ServerConfig
    from tidemill.server.database.upgrade import UpgradePlan

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def define_run(parser: Parser) -> None:
    """Options of `server run`."""
    _config(parser)
    parser.add_argument(
        "--log-level", choices=LEVELS, default="INFO", help="what is logged to stderr (default: INFO)"
    )
    parser.add_argument(
        "--upgrade",
        action="store_true",
        help="bring an older database to this version's schema first, SQLite after a copy (default: refuse to start)",
    )
    define_log_format(parser)
    parser.add_argument(
        "--with-parent", type=int, metavar="PID", help="end when this parent process ends (default: none)"
    )


def define_upgrade(parser: Parser) -> None:
    """Options of `server upgrade`."""
    _config(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show the steps, the rows that each one copies, indexes or rewrites, and an estimate of the time; change "
        "nothing",
    )
    parser.add_argument(
        "--no-copy",
        action="store_true",
        help="do not copy a SQLite database to `tidemill.db.schemaN` first: you have a copy (default: copy it)",
    )


def define_notify(parser: Parser) -> None:
    """Options of `server notify`."""
    parser.add_argument("target", metavar="TARGET", help="`mail:ADDRESS` or `hook:NAME` (required)")
    _config(parser)


def define_init(parser: Parser) -> None:
    """Options of `server init`."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the file to write (default: HOME/server/server.toml)"
    )


def _config(parser: Parser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="server.toml (default: HOME/server/server.toml; without that, a private server in HOME/server)",
    )


def run_server(args: Namespace) -> int:
    """Run the server until SIGTERM or SIGINT."""
    from tidemill import log
    from tidemill.cli.supervise import end_with_parent
    from tidemill.server.run import run_server as serve

    if args.with_parent is not None:
        end_with_parent(args.with_parent)
    log.to_stderr(args.log_level, args.log_format)
    return serve(_read(args), upgrade=args.upgrade or _is_private(args))


def upgrade(args: Namespace) -> int:
    """Bring the database to the schema of this version, or show what that would do."""
    from tidemill.server.run import plan_upgrade, upgrade_server

    config = _read(args)
    if args.dry_run:
        return _show_plan(config, plan_upgrade(config), as_json=args.json)
    before, after, copy = upgrade_server(config, copies=not args.no_copy)
    if args.json:
        show_json({"before": before, "after": after, "copy": None if copy is None else str(copy)})
        return 0
    say(f"the database is at schema {after}" + (f", it was at {before}" if before != after else " already"))
    if copy is not None:
        hint(
            f"to go back: stop the server, `mv {copy} {config.place / 'tidemill.db'}` and remove `tidemill.db-wal` and "
            "`-shm`, install the version before; remove the copy when all is well"
        )
    elif before != after and before and config.database is not None:
        hint("to go back, restore the dump that you made before; docs/operations.md, Upgrades")
    return 0


def _show_plan(config: ServerConfig, plan: UpgradePlan, *, as_json: bool) -> int:
    import msgspec

    from tidemill.model.quantities import count_text, duration_text
    from tidemill.server.database.upgrade import copy_of, dump_command

    if as_json:
        show_json(msgspec.to_builtins(plan))
        return 0
    if plan.before == plan.after:
        say(f"the database is at schema {plan.after} already: nothing to do")
        return 0
    show(f"schema {plan.before} -> {plan.after}, {plan.size_bytes / 1e6:,.1f} MB; nothing was changed")
    for step in plan.steps:
        show(f"  {step.schema}  {step.purpose}")
        for work in step.work:
            show(
                f"       {work.act} {count_text(work.rows)} rows of {work.table}: about {work.seconds:.1f} s"
            )
    show("rows now: " + ", ".join(f"{table} {rows:,}" for table, rows in plan.rows.items() if rows))
    show(f"about {duration_text(max(1.0, plan.seconds))} in all, with every server stopped")
    if config.database is None:
        show(f"the database is copied first, to `{copy_of(config.place / 'tidemill.db', plan.before)}`")
    else:
        show(f"copy it first: {dump_command(config.database, plan.before)}")
    return 0


def notify(args: Namespace) -> int:
    """Send a test message now, and say what the other side answered if it did not take it."""
    from tidemill.server.notify.start import send_test

    send_test(_read(args), args.target)
    say(f"a test message was handed over for `{args.target}`")
    return 0


def init(args: Namespace) -> int:
    """Write a commented configuration and create the database."""
    from tidemill.cli.server import example
    from tidemill.config.server import ServerConfig
    from tidemill.server.run import init_server

    path = (args.config or _home(args) / "server.toml").absolute()
    values = {"dir": json.dumps(str(path.parent))}
    record = config.extended(ServerConfig)
    text = commented(record, title="A Tidemill server", values=values)
    added = {
        f"{name}.{key}": value
        for name, table in config.added(ServerConfig).items()
        for key, value in table.examples.items()
    }
    repeated = {each.key for each in config.repeated(record)} & added.keys()
    tables = example.TABLES | {key: added[key] for key in repeated}
    write_new(path, with_examples(text, example.KEYS | added, tables))
    _, schema = init_server(_read(args))
    if args.json:
        show_json({"config": str(path), "schema": schema})
    else:
        show(str(path))
        hint(f"read it, then `tidemill server run --config {path}`")
    return 0


def _home(args: Namespace) -> Path:
    from tidemill.client.home import home_dir, make_home

    home = home_dir(args.home)
    make_home(home)
    directory = home / "server"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def server_config(args: Namespace) -> ServerConfig:
    """What `--config`, or else the home's file, says."""
    return _read(args)


def _read(args: Namespace) -> ServerConfig:
    """The file named, else HOME/server/server.toml, else a private server in HOME/server."""
    from tidemill.config.server import ServerConfig, read_config

    if args.config is not None:
        return read_config(args.config)
    path = _home(args) / "server.toml"
    return read_config(path) if path.exists() else ServerConfig(dir=path.parent)


def _is_private(args: Namespace) -> bool:
    """Whether it is a private server, which upgrades its own database, because it has no other operator."""
    return args.config is None and not (_home(args) / "server.toml").exists()


COMMANDS = {
    "server run": Command(define_run, run_server, "tidemill server run --config server.toml", talks=False),
    "server init": Command(define_init, init, "tidemill server init --config server.toml", talks=False),
    "server notify": Command(
        define_notify, notify, "tidemill server notify mail:me@example.org --config server.toml", talks=False
    ),
    "server upgrade": Command(
        define_upgrade, upgrade, "tidemill server upgrade --config server.toml", talks=False
    ),
}
