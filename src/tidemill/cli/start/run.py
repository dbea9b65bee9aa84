"""`tidemill run`: one person, one command, any number of events, no configuration."""

from __future__ import annotations

import argparse
import os
import shutil
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, count, define_raw, duration, memory
from tidemill.cli.jobs.follow import counts_text, follow, tell_failures
from tidemill.cli.jobs.submit import check_width, checked_url, define_gpus, define_width, inputs_of
from tidemill.cli.start.up import define_credentials
from tidemill.cli.terminal import hint, pass_on, say, show_json, stderr_is_terminal
from tidemill.errors import ConfigError, SiteError, TidemillError
from tidemill.model.quantities import bytes_text, duration_text, rate_text, ratio

if TYPE_CHECKING:
    from tidemill.client.client import Client, Submission
    from tidemill.model.job import JobSpec, Output
    from tidemill.wire.api import CampaignRow, JobOutput

PASSED = ("PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
EVENT_S = 1.0  #: first guess of an event's duration, until measured
RETRIES = 0
LOG_S = 3.0  #: how long the site may take to send a single event's stderr
LINES_MAX = 100_000_000
LINE = "{line}"
OUTPUT_DIR = Path("tidemill-out")


def define(parser: Parser) -> None:
    """Options of `run`."""
    parser.usage = "tidemill run [OPTIONS] -- CMD [ARG ...]"
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--events", type=count, metavar="N", help="run CMD for N events, numbered from 0 (default: 1)"
    )
    which.add_argument(
        "--each",
        type=Path,
        metavar="FILE",
        help="one event for each line of FILE, told as {line} (default: none)",
    )
    parser.add_argument("--cores", type=count, default=1, metavar="C", help="cores of each CMD (default: 1)")
    parser.add_argument(
        "--memory",
        type=memory,
        metavar="SIZE",
        help="memory of each CMD, `2GB` or MB (default: the site's, 2000 MB)",
    )
    define_gpus(parser)
    define_width(parser)
    parser.add_argument(
        "--wall", type=duration, metavar="T", help="kill a CMD after this, `90m` or HH:MM:SS (default: never)"
    )
    parser.add_argument("--site", metavar="NAME", help="run only there (default: any site)")
    parser.add_argument(
        "--at-once",
        type=count,
        metavar="N",
        help="so many CMDs run at the same time at most (default: as many as there are slots)",
    )
    parser.add_argument(
        "--retries",
        type=_zero,
        default=RETRIES,
        metavar="N",
        help=f"retries of a failed event (default: {RETRIES})",
    )
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument(
        "--failed-max",
        type=_zero,
        metavar="N",
        help="accept up to N failed events, stop at more (default: go on, and exit 1 if any failed)",
    )
    bound.add_argument(
        "--fail-fast", action="store_true", help="stop at the first failed event (default: go on)"
    )
    _define_files(parser)
    define_raw(parser)
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- CMD",
        help="the command; {event} {seed} {line} {first_event} {last_event} {events} {cores} are filled in, "
        "other braces stay",
    )


def _define_files(parser: Parser) -> None:
    parser.add_argument("--name", metavar="NAME", help="the campaign's name (default: CMD and the time)")
    parser.add_argument(
        "--keep-stdout",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep what CMD prints, as output `stdout` (default: --keep-stdout)",
    )
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="PATH",
        help="a file that CMD leaves; repeatable (default: none)",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="a file that CMD finds; repeatable",
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]", help="a variable for CMD; repeatable"
    )
    define_credentials(parser)
    parser.add_argument(
        "--dir", type=Path, metavar="DIR",
        help="outputs go to DIR/CAMPAIGN (default: ./tidemill-out; of a server by http or https, the site's place)",
    )  # fmt: skip


def _zero(text: str) -> int:
    return 0 if text == "0" else int(count(text))


def run(args: Namespace) -> int:
    """Submit, follow, tell."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise ConfigError("`tidemill run` needs a command", hint="tidemill run --events 10 -- ./prog {event}")
    from msgspec import structs

    from tidemill.client.client import check_name, new_campaign

    if args.name:
        check_name(args.name, "campaign")
    campaign = args.name or new_campaign(Path(command[0]).name)
    spec = make_spec(args, command)
    client = _client(args)
    if args.dir is None and not client.place.address.startswith("http"):
        spec = structs.replace(spec, output_dir=str(OUTPUT_DIR.absolute()))
    sent = client.submit(spec, campaign=campaign)
    # One event is as if its command ran here: without a terminal only its own output is told.
    quiet = args.json or (spec.events == 1 and not stderr_is_terminal())
    row, interrupted = follow(client, sent, quiet=quiet)
    return _tell(args, client, sent, row=row, interrupted=interrupted)


def make_spec(args: Namespace, command: list[str]) -> JobSpec:
    """The job of a command line."""
    from msgspec import UNSET

    from tidemill.model.job import JobSpec, Resources

    check_width(args)
    each = [] if args.each is None else [str(args.each)]
    inputs = inputs_of(args.input, [f"lines={checked_url(text)}" for text in each])
    events = args.events or 1
    if args.each is not None:
        events = _count_lines(args.each)
    elif any(LINE in word for word in command):
        raise ConfigError("the command uses {line}, but no --each FILE gives lines")
    timed = {} if args.wall is None else {"timeout_s": args.wall}
    return JobSpec(
        command=[
            _executable(command[0]),
            *(
                _argument(word, staged={each.name for each in inputs} | set(args.output))
                for word in command[1:]
            ),
        ],
        events=events,
        inputs=inputs,
        outputs=[_output(path) for path in args.output],
        output_dir=None if args.dir is None else str(args.dir.absolute()),
        resources=Resources(
            cores=args.cores,
            memory_mb=args.memory,
            devices=args.gpus,
            event_s=EVENT_S,
            nodes=args.nodes,
            ranks=args.ranks,
            **timed,
        ),
        retries=args.retries,
        failed_max=_failed_max(args, events),
        site=args.site,
        keep_stdout=args.keep_stdout,
        env=_environment(args.env),
        at_once=args.at_once or UNSET,
    )


def _failed_max(args: Namespace, events: int) -> int:
    """How many failed events stop the job: by default none, unless all of them fail."""
    if args.fail_fast:
        return 0
    return events - 1 if args.failed_max is None else int(args.failed_max)


def _executable(word: str) -> str:
    """The program as absolute path: the payload's work directory is not ours. Templates are left as they are."""
    if "{" in word:
        return word
    found = shutil.which(word)
    if found is None:
        exists = Path(word).exists()
        raise ConfigError(
            f"`{word}` is not executable" if exists else f"there is no program `{word}`",
            hint=f"chmod +x {word}" if exists else "name it by its path, or put its directory on PATH",
        )
    return str(Path(found).absolute())


def _argument(word: str, *, staged: set[str]) -> str:
    """A relative path of a file that is here, as absolute path, so that `python prog.py {event}` finds its program.
    Staged inputs, outputs, options and templates are left as they are: they name something else."""
    if word in staged or word.startswith(("-", "/")) or "{" in word or not Path(word).is_file():
        return word
    if stderr_is_terminal():
        say(f"`{word}` is passed as `{Path(word).absolute()}`")
    return str(Path(word).absolute())


def _output(path: str) -> Output:
    import re

    from tidemill.model.job import Output

    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ConfigError(
            f"output `{path}` is outside the command's work directory", hint="write a relative path"
        )
    name = (
        re.sub(r"[^A-Za-z0-9._+-]", "-", re.sub(r"\{[a-z_]+\}", "", Path(path).name)).strip("-._+")
        or "output"
    )
    return Output(name=name, path=path)


def _count_lines(path: Path) -> int:
    try:
        with path.open("rb") as file:
            lines = sum(1 for _ in file)
    except OSError as error:
        raise ConfigError(f"failed to read `{path}`: {error.strerror}") from error
    if not 1 <= lines <= LINES_MAX:
        raise ConfigError(f"`{path}` has {lines} lines, it must have 1 to {LINES_MAX:,}")
    return lines


def _environment(extra: list[str]) -> dict[str, str]:
    env = {name: os.environ[name] for name in PASSED if name in os.environ}
    for text in extra:
        name, separator, value = text.partition("=")
        if not separator and name not in os.environ:
            raise ConfigError(
                f"--env {name}: there is no such variable here", hint=f"write --env {name}=VALUE"
            )
        env[name] = value if separator else os.environ[name]
    return env


def _client(args: Namespace) -> Client:
    """The server named, or found, or a new private one."""
    from tidemill.cli.start.up import start_detached
    from tidemill.client.client import Client
    from tidemill.client.home import find_server, home_dir

    home = home_dir(args.home)
    found = find_server(args.server, secret_file=args.secret_file, home=args.home)
    if found is None or found.source == str(home / "up.json"):
        _refuse_observing(home)
    if found is not None and args.with_credentials:
        _refuse_hidden(home, args.with_credentials, is_own=found.source == str(home / "up.json"))
    if found is None:
        up = start_detached(home, with_credentials=args.with_credentials)
        say(
            f"started a server and a site for you in `{home}` (process {up.pid}); `tidemill up --stop` ends them"
        )
    return Client(args.server, secret_file=args.secret_file, home=args.home)


def _refuse_hidden(home: Path, credentials: list[Path], *, is_own: bool) -> None:
    """ConfigError if the site that runs already hides one of these."""
    from tidemill import config
    from tidemill.config.site import SiteConfig

    if not is_own:
        raise ConfigError(
            "--with-credentials shows files to programs on your own site; this server is another one",
            hint="an `--input` brings a file to the program, wherever it runs",
        )
    shown = config.load(home / "site" / "site.toml", SiteConfig).with_credentials
    hidden = [each for each in credentials if each not in shown]
    if hidden:
        raise ConfigError(
            f"your site runs already, and hides `{hidden[0]}`",
            hint="`tidemill up --stop` ends it; the next `tidemill run --with-credentials` starts one that shows it",
        )


def _refuse_observing(home: Path) -> None:
    """ConfigError if your own site submits nothing: the command would wait for ever."""
    from tidemill import config
    from tidemill.config.site import SiteConfig

    path = home / "site" / "site.toml"
    if path.exists() and config.load(path, SiteConfig).mode == "observe":
        raise ConfigError(
            f'your site only observes: `{path}` has `mode = "observe"`',
            hint="`tidemill site enable` lets it submit jobs as you; it tells the bounds",
        )


def _tell(args: Namespace, client: Client, sent: Submission, *, row: CampaignRow, interrupted: bool) -> int:
    job = client.job(sent.jobs[0])
    outputs = list(client.outputs(job=job.row.id))
    good = job.row.state == "COMPLETED" or (
        job.row.state == "PARTIAL" and job.row.events_failed <= (args.failed_max or 0)
    )
    if args.json:
        show_json({"job": job.row, "outputs": outputs, "usage": row.usage, "failures": row.failures})
        return 0 if good else 1
    if job.row.events == 1:
        _print_stdout(outputs, raw=args.raw)
        if good:  # a failure's last words are told with it
            pass_on([client.log(job.row.id, timeout_s=LOG_S).stderr], to_stderr=True, raw=args.raw)
    wall_s = ((job.row.ended_us or 0) - (job.row.started_us or 0)) / 1e6 if job.row.started_us else 0.0
    rate = rate_text(ratio(job.row.events_done, wall_s))
    if job.row.events > 1 or not good:
        say(f"{counts_text(job.row)}, {duration_text(wall_s)}, {rate} events/s")
    if outputs and (job.row.events > 1 or args.output):
        for each in outputs:
            say(f"    {_place(each)}  {bytes_text(each.output.size_bytes)}")
    if not good and not interrupted:
        tell_failures(client, job)
    elif not good:
        hint(f"`tidemill job retry {sent.jobs[0]}` runs the rest; what is done stays done")
    return 0 if good else 1


def _place(each: JobOutput) -> str:
    from tidemill.client.outputs import local_path

    try:
        path = local_path(each.output)
        return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
    except TidemillError:
        return each.output.url


def _print_stdout(outputs: list[JobOutput], *, raw: bool) -> None:
    """Print a single event's stdout: `run` is then as good as the command itself. Of a site elsewhere, whose files
    cannot be read here, say where it is."""
    from tidemill.client.outputs import members

    for each in outputs:
        if each.output.name != "stdout":
            continue
        try:
            pass_on((member.data for member in members(each.job, each.output)), raw=raw)
        except (SiteError, ConfigError):
            size = bytes_text(each.output.size_bytes)
            hint(f"its stdout ({size}) cannot be read here: it is at `{each.output.url}`, at its site")


COMMANDS = {
    "run": Command(define, run, "tidemill run --events 1000 -- ./prog --seed {seed} --out hits-{event}.root")
}
