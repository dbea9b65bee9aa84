"""`tidemill up`: a server and a site of one's own, kept running on this machine."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tidemill import __version__, clock
from tidemill.cli.arguments import Command, Parser, count
from tidemill.cli.home_parts import MARK, SITE_NAME
from tidemill.cli.terminal import say, show_json
from tidemill.errors import ConfigError, SiteError, TidemillError
from tidemill.model.quantities import counted_text

if TYPE_CHECKING:
    from tidemill.cli.supervise import Child
    from tidemill.client.home import UpFile
    from tidemill.wire.api import SiteRow

Reply = TypeVar("Reply")

READY_S = 60.0  #: how long server and site may take to answer
STOP_S = 60.0  #: how long `--stop` waits
UNENDED_SHOWN = 5
LOCK_TRIES = 10
DEATHS_MAX = 5  #: give up a child after this many deaths before its first answer


def define(parser: Parser) -> None:
    """Options of `up`."""
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where state is kept (default: as --home)")
    parser.add_argument("--nodes", type=count, metavar="N", help="emulated nodes of the site (default: 1)")
    parser.add_argument(
        "--cores", type=count, metavar="C", help="cores of each node (default: this machine's cores / nodes)"
    )
    define_credentials(parser)
    parser.add_argument("--detach", action="store_true", help="go on in the background")
    parser.add_argument(
        "--stop", action="store_true", help="stop the one that runs, and all of its jobs' processes"
    )
    parser.add_argument(
        "--with-parent", type=int, metavar="PID", help="end when this parent process ends (default: none)"
    )


def define_credentials(parser: Parser) -> None:
    """`--with-credentials`, of `up` and `run`."""
    parser.add_argument(
        "--with-credentials",
        action="append",
        default=[],
        type=_credential,
        metavar="PATH",
        help="let programs read and change this key, token or directory, such as ~/.aws, in every run until "
        "`tidemill up --stop`; repeatable (default: none)",
    )


def _credential(text: str) -> Path:
    path = Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100 - without `..`
    if not (path.is_dir() or path.is_file()):
        raise argparse.ArgumentTypeError(f"`{text}` is neither a directory nor a regular file")
    return path


def run(args: Namespace) -> int:
    """Start, detach or stop."""
    from tidemill.client.home import home_dir, make_home, read_up

    home = home_dir(args.dir or args.home)
    if args.stop:
        return _stop(home)
    running = read_up(home)
    if running is not None:
        raise ConfigError(
            f"a `tidemill up` runs already in `{home}`: process {running.pid}, at {running.address}",
            hint=f"use it as it is, or stop it: {_stop_words(home)}",
        )
    make_home(home)
    if args.detach:
        up = start_detached(home, nodes=args.nodes, cores=args.cores, with_credentials=args.with_credentials)
        tell_up(home, up, as_json=args.json)
        return 0
    return _serve(args, home)


def start_detached(
    home: Path,
    *,
    nodes: int | None = None,
    cores: int | None = None,
    tied: bool = False,
    with_credentials: Sequence[Path] = (),
) -> UpFile:
    """Start `tidemill up` in the background and wait until it answers. `tied`: it ends when this process ends."""
    from tidemill.cli.supervise import as_refusal
    from tidemill.client.home import make_home, read_up, up_runs

    make_home(home)
    argv = [sys.executable, "-P", "-m", "tidemill.cli.main", "up", "--home", str(home)]
    argv += [] if nodes is None else ["--nodes", str(nodes)]
    argv += [] if cores is None else ["--cores", str(cores)]
    argv += ["--with-parent", str(os.getpid())] if tied else []
    for path in with_credentials:
        argv += ["--with-credentials", str(path)]
    log = home / "up.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor, start_new_session=True
        )
    finally:
        os.close(descriptor)
    deadline = clock.monotonic_s() + READY_S + 5
    while clock.monotonic_s() < deadline:
        up = read_up(home)
        if up is not None:
            _tell_shell(home)
            return up
        if process.poll() is not None and not up_runs(home):
            break  # else another one won the race: it will answer
        clock.sleep_s(0.02)
    if process.poll() is None:
        process.terminate()
    refusal = as_refusal(log) if process.returncode == ConfigError.exit_code else None
    if refusal is not None:
        raise refusal
    words = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("error: ")]
    raise SiteError(
        f"failed to start a server and a site in `{home}`"
        + (f": {words[-1].removeprefix('error: ')}" if words else ""),
        hint=f"see {log}, {home}/server.log and {home}/site.log; `tidemill doctor` looks for what is wrong",
    )


def _tell_shell(home: Path) -> None:
    """Report variables of the shell that have no effect, and whose keys site.toml lacks."""
    from tidemill import config
    from tidemill.config.site import SiteConfig
    from tidemill.site.setup.shell import remarks

    for line in remarks(config.load(home / "site" / "site.toml", SiteConfig), os.environ):
        say(line)


def stop_up(home: Path) -> bool:
    """Stop the `tidemill up` of this home and wait for its end; False if none runs. Raises SiteError."""
    from tidemill.batch.processes import holds, terminate
    from tidemill.client.home import up_runs

    lock = home / "up.lock"
    if not up_runs(home):
        return False
    deadline = clock.monotonic_s() + STOP_S
    words = lock.read_text().split()
    pid, host = (int(words[0]) if words else 0), (words[1] if len(words) > 1 else "")
    with contextlib.ExitStack() as stack:
        sent = terminate(pid, lambda: holds(pid, lock)) if pid else None
        process = None if sent is None else sent.process
        if sent is not None and not sent.was_sent and up_runs(home):
            where = f" on host `{host}`" if host and host != socket.gethostname() else ""
            there = f"host `{host}`" if host else "the host that started it"
            raise SiteError(
                f"process {pid}{where} runs `tidemill up` in `{home}`, and this process cannot reach it",
                hint=f"stop it where it runs: on {there}, outside of this container or PID namespace",
                transient=False,
            )
        if process is not None:
            stack.callback(os.close, process)
        # it gives the lock back a moment before it ends
        while up_runs(home) or (process is not None and not select.select([process], [], [], 0)[0]):
            if clock.monotonic_s() > deadline:
                raise SiteError(f"process {pid} did not end within {STOP_S:.0f} s", hint=f"see {home}/up.log")
            clock.sleep_s(0.02)
    return True


def tell_up(home: Path, up: UpFile, *, as_json: bool = False) -> None:
    """Say what runs and what to do with it."""
    from tidemill.site.state.status import outage_of, read_status

    if as_json:
        show_json(up)
        return
    shape = (
        f"{up.nodes} node(s) of {up.cores} core(s)"
        if up.cores
        else f"up to {up.nodes} node(s) of the cluster"
    )
    say(f"tidemill is up: process {up.pid}, {shape}")
    away = outage_of(home / "site", read_status(home / "site").status)
    if away is not None:
        why = away.reason or "no answer yet"
        waits = (
            "the site submits nothing new"
            if away.doubted
            else "the site's batch system starts no jobs now"
            if away.answers
            else ("the site waits for its batch system, and asks it again and again")
        )
        say(f"    but      {waits}: {why}")
    say(f"    address  {up.address}")
    say(f"    state    {home}")
    say("    try      tidemill run --events 20 -- echo event {event}")
    say("    watch    tidemill top")
    say(f"    stop     {_stop_words(home)}")


def _stop_words(home: Path) -> str:
    from tidemill.client.home import home_dir

    return "`tidemill up --stop`" if home == home_dir() else f"`tidemill up --stop --home {home}`"


def _stop(home: Path) -> int:
    unended, canceled = _unended(home)
    has_run = stop_up(home)
    _check_batch(home)
    say(stopped_text(unended, canceled) if has_run else f"no `tidemill up` runs in `{home}`")
    return 0


def _check_batch(home: Path) -> None:
    """Raises SiteError if jobs may still run in the batch system; its hint has the command that ends them."""
    from tidemill import config
    from tidemill.batch.local import allocation_mark
    from tidemill.batch.processes import find_marked
    from tidemill.config.site import SiteConfig
    from tidemill.site.nodes.unended import cancel_command, read_unended

    jobs = read_unended(home / "site")
    if not jobs:
        return
    batch = config.load(home / "site" / "site.toml", SiteConfig).batch
    if batch == "local":  # processes of this machine, which `up` has ended since
        jobs = [each for each in jobs if find_marked(allocation_mark(each.name))]
    if not jobs:
        return
    named = [
        f"`{each.name}` ({each.number or 'number unknown'}): {each.why}" for each in jobs[:UNENDED_SHOWN]
    ]
    more = f"; and {len(jobs) - len(named)} more" if len(jobs) > len(named) else ""
    command = cancel_command(batch, jobs)
    raise SiteError(
        f"stopped, but {counted_text(len(jobs), 'job')} in the batch system may still run: {'; '.join(named)}{more}",
        hint=(f"end them by hand: `{command}`; " if command else "")
        + "their pilots were ordered to leave, and leave by themselves once the agent does not answer",
    )


def stopped_text(unended: int | None, canceled: int = 0) -> str:
    """That everything has ended, and what goes on later. `unended`: jobs that had not ended, None = not known;
    `canceled`: those of them that were canceled, of which the site delivers what is done."""
    if unended is None:
        return "stopped; what was running goes on with the next `tidemill up`"
    going = unended - canceled
    if not unended:
        return "stopped; every job had ended"
    parts = []
    if going:
        parts.append(f"{counted_text(going, 'job')} that had not ended {'goes' if going == 1 else 'go'} on")
    if canceled:
        parts.append(f"what is done of {counted_text(canceled, 'canceled job')} is delivered")
    return f"stopped; {' and '.join(parts)} with the next `tidemill up`"


def _unended(home: Path) -> tuple[int | None, int]:
    """How many jobs of the server have not ended (None = it does not answer), and how many of those were canceled, as
    far as one page of the running ones shows."""
    from tidemill.model.state import JOB_FINAL, JobState
    from tidemill.wire.api import Counts, JobPage

    counts = _asked(home, "/v1/counts", Counts)
    if counts is None:
        return None, 0
    unended = sum(number for state, number in counts.states.items() if state not in JOB_FINAL)
    page = _asked(home, f"/v1/jobs?state={JobState.RUNNING}", JobPage) if unended else None
    canceled = 0 if page is None else sum(each.ends == JobState.CANCELED for each in page.jobs)
    return unended, min(unended, canceled)


def _serve(args: Namespace, home: Path) -> int:
    from tidemill.cli.supervise import become_subreaper, end_all, end_with_parent

    if args.with_parent is not None:
        end_with_parent(args.with_parent)
    with _locked(home):
        nodes, cores = prepare(
            home, nodes=args.nodes, cores=args.cores, with_credentials=args.with_credentials
        )
        _tell_shell(home)
        asked: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, frame: asked.append(number))
        become_subreaper()
        children = _children(home)
        try:
            _loop(args, home, children, (nodes, cores), asked)
        finally:
            (home / "up.json").unlink(missing_ok=True)
            end_all(
                list(reversed(children))
            )  # the site first: it reports what it has to a server that answers
    if not args.json:
        say("everything has ended; nothing is lost: `tidemill up` goes on with it")
    return 0


def _loop(
    args: Namespace, home: Path, children: list[Child], shape: tuple[int, int], asked: list[int]
) -> None:
    from tidemill.cli.supervise import POLL_S, reap

    told = False
    deadline, began_us = clock.monotonic_s() + READY_S, clock.now_us()
    written: list[int] = []
    while not asked:
        if not told:
            _refuse(children)
        pids = {child.pid for child in children}
        reap(keep=pids.__contains__)
        changed = [child.tend() for child in children]
        if not told and (_answers(home, children[-1], began_us) or _waits(home, began_us, deadline)):
            told = True
            tell_up(home, _write_up(home, children, shape), as_json=args.json)
            written = [child.pid for child in children]
        elif told and (any(changed) or written != [child.pid for child in children]):
            _write_up(home, children, shape)
            written = [child.pid for child in children]
        if not told:
            _give_up(children, deadline)
        clock.sleep_s(POLL_S if told else 0.03)


def _refuse(children: list[Child]) -> None:
    """Raises ConfigError where the site's configuration can never work. Once everything has run, a site that ends for
    such a reason is tried again and again: the centre may have changed something."""
    refusal = children[-1].refusal()
    if refusal is not None:
        raise refusal


def _give_up(children: list[Child], deadline: float) -> None:
    for child in children:
        if child.deaths() >= DEATHS_MAX:
            raise child.refusal() or SiteError(
                f"the {child.name} died {child.deaths()} times at its start: {child.last_words()}",
                hint=f"its log: {child.log}",
                transient=False,
            )
    if clock.monotonic_s() > deadline:
        raise SiteError(
            f"server and site did not answer within {READY_S:.0f} s",
            hint=f"their logs: {children[0].log.parent}/*.log",
        )


def _children(home: Path) -> list[Child]:
    from tidemill.cli.supervise import Child

    me = [sys.executable, "-P", "-m", "tidemill.cli.main"]
    tied = ["--with-parent", str(os.getpid())]
    server = [*me, "server", "run", "--home", str(home), *tied]
    site = [*me, "site", "run", str(home / "site"), "--stop-pilots", *tied]
    return [Child("server", server, home / "server.log"), Child("site", site, home / "site.log")]


def prepare(
    home: Path, *, nodes: int | None, cores: int | None, with_credentials: Sequence[Path] = ()
) -> tuple[int, int]:
    """Write the site's configuration where it is missing or generated; number of nodes and cores of each (0 = as the
    batch system's nodes have)."""
    from tidemill import config
    from tidemill.config.site import SiteConfig
    from tidemill.files import write_whole

    site = home / "site"
    for directory in (home / "server", site, site / "apps"):
        directory.mkdir(mode=0o700, exist_ok=True)
    path = site / "site.toml"
    if not path.exists() or path.read_text().startswith(MARK):
        many = nodes or 1
        each = cores or max(1, len(os.sched_getaffinity(0)) // many)
        text = site_toml(home, nodes=many, cores=each, with_credentials=with_credentials)
        write_whole(path, text.encode(), mode=0o644)
    elif nodes is not None or cores is not None:
        raise ConfigError(
            f"`{path}` is yours: --nodes and --cores do not change it",
            hint="edit its `local.nodes`, `node.cores` or `nodes_max` (`tidemill site enable --nodes N`)",
        )
    read = config.load(path, SiteConfig)
    missing = [each for each in with_credentials if each not in read.show]
    if missing:
        raise ConfigError(
            f"`{path}` is yours: --with-credentials does not change it",
            hint=f'add `show = ["{missing[0]}"]` to it',
        )
    if read.batch != "local":
        return read.nodes_max, read.node.cores or 0
    return read.local.nodes, read.node.cores or len(os.sched_getaffinity(0))


def site_toml(home: Path, *, nodes: int, cores: int, with_credentials: Sequence[Path] = ()) -> str:
    """The site of one person's own machine: anything of theirs may run, all their files are data."""
    shown = json.dumps([str(path) for path in with_credentials])
    return f"""{MARK}
name = "{SITE_NAME}"
server = "unix:{home}/server/api.sock"
data_roots = ["/"]
allow_adhoc = true   # commands and functions of yours need no approval: only you can reach this server
show = {shown}   # credentials that are not named here are hidden from programs
batch = "local"
nodes_max = {nodes}
walltime_s = "7d"

[local]
nodes = {nodes}

[node]
cores = {cores}
"""


def _answers(home: Path, agent: Child, began_us: int) -> bool:
    """Whether the server answers and has heard the site since we began: it knows sites of earlier times, too. Where the
    agent has ended for trouble that passes, such as another agent that seems to live, an earlier time suffices."""
    since_us = 0 if agent.deaths() and agent.refusal() is None else began_us
    return any(site.state == "UP" and site.seen_us >= since_us for site in _sites(home) or [])


def _waits(home: Path, began_us: int, deadline: float) -> bool:
    """Whether the server answers, and the site runs, but waits for its batch system: that may take hours."""
    from tidemill.site.state.status import outage_of, read_status

    away = outage_of(home / "site", read_status(home / "site").status)
    if away is None or away.since_us < began_us or not (away.reason or clock.monotonic_s() > deadline):
        return False
    return _sites(home) is not None


def _sites(home: Path) -> list[SiteRow] | None:
    """What the server knows of sites; None while it does not answer."""
    from tidemill.wire.api import SiteRow

    return _asked(home, "/v1/sites", list[SiteRow])


def _asked(home: Path, path: str, kind: type[Reply]) -> Reply | None:
    """What the server of this home answers; None while it does not."""
    from tidemill.wire.server_connection import Connection

    connection = Connection(f"unix:{home}/server/api.sock", timeout_s=5)
    try:
        return connection.call("GET", path, kind)
    except TidemillError:
        return None
    finally:
        connection.close()


def _write_up(home: Path, children: list[Child], shape: tuple[int, int]) -> UpFile:
    import msgspec

    from tidemill.client.home import UpFile
    from tidemill.files import write_whole

    up = UpFile(
        version=__version__,
        pid=os.getpid(),
        address=f"unix:{home}/server/api.sock",
        site_dir=str(home / "site"),
        server_pid=children[0].pid,
        site_pid=children[1].pid,
        started_us=clock.now_us(),
        nodes=shape[0],
        cores=shape[1],
    )
    try:
        write_whole(home / "up.json", msgspec.json.encode(up))
    except SiteError as error:
        raise SiteError(
            error.message,
            hint="was the directory removed while `tidemill up` ran? Its server and site are ended now",
            transient=False,
        ) from error
    return up


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One `up` per home. flock(2) is sound here: the file is on a local disk, and its holder's death frees it."""
    from tidemill.cli.home_parts import check_parts, server_part
    from tidemill.files import open_private
    from tidemill.server.database.mounts import refuse_network

    check_parts(home)
    refuse_network(server_part(home))
    with open_private(home / "up.lock", "ab+") as file:
        for attempt in range(LOCK_TRIES):  # one who only asks whether we run holds the lock for an instant
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == LOCK_TRIES - 1:
                    raise ConfigError(
                        f"another `tidemill up` is starting or running in `{home}`",
                        hint=f"stop it: {_stop_words(home)}",
                    ) from None
                clock.sleep_s(0.02)
        (home / "up.json").unlink(missing_ok=True)  # of one that was killed: its address does not answer yet
        file.truncate(0)
        file.write(f"{os.getpid()}\n{socket.gethostname()}\n".encode())
        file.flush()
        yield


COMMANDS = {"up": Command(define, run, "tidemill up --nodes 2 --cores 1", talks=False)}
