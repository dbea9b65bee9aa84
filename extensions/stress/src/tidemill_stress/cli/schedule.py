"""`tidemill stress schedule`: repeat a stress test by cron, each time compared with the one before."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from tidemill.cli.arguments import Command, Parser
from tidemill.cli.terminal import say, show
from tidemill.client import home
from tidemill.errors import ConfigError, SiteError
from tidemill_stress.cli.run import RUNS

WEEKLY = "17 3 * * 1"
CRON_S = 20.0
_PATHS = (
    home.HOME_VARIABLE, home.SECRET_VARIABLE, home.CERTIFICATE_VARIABLE, home.KEY_VARIABLE, home.CA_VARIABLE,
)  # fmt: skip
_FIELD = re.compile(r"[0-9A-Za-z*/,-]+")


def define(parser: Parser) -> None:
    """Options of `stress schedule`."""
    parser.add_argument("file", type=Path, metavar="FILE.toml", help="the stress test")
    parser.add_argument(
        "--at", default=WEEKLY, metavar="CRON", help=f"five fields of cron (default: `{WEEKLY}`, Mondays)"
    )
    parser.add_argument(
        "--runs", type=Path, default=RUNS, metavar="DIR", help="where runs are kept (default: ./stress-runs)"
    )
    parser.add_argument("--scan", action="store_true", help="repeat `stress scan` (default: `stress run`)")
    parser.add_argument(
        "--install", action="store_true", help="put the line into your crontab (default: print it)"
    )


def run(args: Namespace) -> int:
    """Print or install the crontab line."""
    from tidemill_stress import plan

    test = plan.load(args.file)
    line = crontab_line(args, test.name)
    if not args.install:
        show(line)
        return 0
    install(line, mark_of(test.name))
    say(f"installed in your crontab: {line}")
    return 0


def mark_of(name: str) -> str:
    """The end of the line of a test, by which it is found again."""
    return f"# tidemill stress {name}"


def crontab_line(args: Namespace, name: str) -> str:
    """The line. In a crontab `%` ends a command, so it is escaped. Cron has none of this shell's variables, and opens
    the log before the command makes its directory: the line has both."""
    fields = args.at.split()
    if len(fields) != 5 or not all(_FIELD.fullmatch(each) for each in fields):
        raise ConfigError(f"`{args.at}` is not the five fields of a time of cron", hint=f"such as `{WEEKLY}`")
    runs = args.runs.resolve()
    words = [
        *_environment(), sys.executable, "-m", "tidemill.cli.main", "stress", "scan" if args.scan else "run",
        str(args.file.resolve()), "--gate", "--runs", str(runs),
    ]  # fmt: skip
    for option, value in (
        ("--server", args.server),
        ("--secret-file", args.secret_file),
        ("--home", args.home),
    ):
        if value is not None:
            words += [option, str(value.resolve() if isinstance(value, Path) else value)]
    if any("\n" in each or "\\%" in each for each in words):
        # some crons take away both characters of `\\`, so that the `%` after them ends the command
        raise ConfigError("a path with a line break or with `\\%` cannot stand in a crontab")
    command = shlex.join(words).replace("%", r"\%")
    log = shlex.quote(str(runs / f"{name}.log")).replace("%", r"\%")
    made = f"mkdir -p {shlex.quote(str(runs))}".replace("%", r"\%")
    return f"{' '.join(fields)} {made} && {command} >> {log} 2>&1 {mark_of(name)}"


def _environment() -> list[str]:
    """The variables that name the home, the server and its credentials, for `env`. Secrets are named by path."""
    found = [
        f"{name}={Path(os.environ[name]).expanduser().absolute()}" for name in _PATHS if os.environ.get(name)
    ]
    if server := os.environ.get(home.SERVER_VARIABLE):
        found.append(f"{home.SERVER_VARIABLE}={server}")
    return ["env", *found] if found else []


def install(line: str, mark: str) -> None:
    """Put the line into the user's crontab, in place of an earlier one with the same mark. All other bytes stay: only
    line feeds end lines there, and the other lines may be in any encoding."""
    now = _crontab("-l")
    errors = now.stderr.decode(errors="replace").strip()
    if now.returncode != 0 and "no crontab" not in errors:
        raise SiteError(f"`crontab -l` failed: {errors}")
    lines = now.stdout.removesuffix(b"\n").split(b"\n") if now.returncode == 0 and now.stdout else []
    kept = [each for each in lines if not each.endswith(os.fsencode(mark))]
    done = _crontab("-", b"\n".join([*kept, os.fsencode(line)]) + b"\n")
    if done.returncode != 0:
        raise SiteError(f"`crontab -` refused the table: {done.stderr.decode(errors='replace').strip()}")


def _crontab(word: str, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["crontab", word], input=content, capture_output=True, timeout=CRON_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SiteError(
            f"failed to run `crontab`: {error}", hint="without --install the line is printed"
        ) from error


COMMANDS = {"stress schedule": Command(define, run, "tidemill stress schedule levels.toml --at '17 3 * * 1'")}
