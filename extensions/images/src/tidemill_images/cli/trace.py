"""`tidemill trace [show|merge|explain]`: what a command asks of file systems, and which search paths make it fail.

The tracing itself is `tidemill-node trace`; here it is started, and what it found is printed, drawn and explained.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, count
from tidemill.cli.terminal import hint, plain_table, say, say_lines, show, show_json, show_lines
from tidemill.errors import ConfigError, SiteError
from tidemill.model.quantities import count_text, percent_text, ratio
from tidemill.printable import printable_line

if TYPE_CHECKING:
    from tidemill.image.profile import Profile
    from tidemill_images.explain import Explanation

PLACES_SHOWN = 5
STORMS_SHOWN = 5
ALSO = ("close", "fstat", "getcwd")

USAGE = """\
tidemill trace [OPTIONS] -- CMD [ARG ...]
       tidemill trace show PROFILE ...
       tidemill trace merge -o OUT PROFILE ...
       tidemill trace explain [--fix] PROFILE ..."""

DESCRIPTION = """\
Runs a command and counts every metadata operation that it, its threads and its children ask
of file systems: open, stat, access, readlink, directory listings, exec, and changes; those that
succeed and those that fail; by system call, by area of the file system, by path, and by second.
Needs no rights and no change of the program; static programs count too.

The command keeps its standard input, output and error, and its exit status is passed through.
The tables follow on stderr when it has ended, so `tidemill trace -- CMD > out` has CMD's output
alone in it. With --json the numbers go to stdout and the command's own output to stderr."""

EPILOG = """\
         tidemill trace -o one.json --area /sw/releases --svg one.svg -- ./job.sh 1
         tidemill trace explain one.json          which search paths cause the failing look-ups
         tidemill trace explain one.json --fix    the environment without them, for `source`
         tidemill trace show one.json two.json    the table of two runs, added up

exit status: that of the command (128 + N where signal N ended it), or, where it did not start:
  2    wrong options, no command          3    tracing is not possible here (--best-effort)
  126  the command cannot be executed     127  there is no such command

Programs with a set-user-id bit gain no rights while they are traced; a program that traces
others (gdb, strace) fails; what goes through io_uring is not seen."""


def define(parser: Parser) -> None:
    """Options of `trace`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage, parser.description, parser.epilog = USAGE, DESCRIPTION, f"{parser.epilog}\n{EPILOG}"
    parser.add_argument(
        "-o", "--output", type=Path, metavar="PROFILE", help="keep the profile in this file (default: not)"
    )
    parser.add_argument(
        "--area",
        action="append",
        default=[],
        metavar="PREFIX",
        help="count what is below this directory apart; repeatable (default: each mount point)",
    )
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        choices=ALSO,
        metavar="CALL",
        help="count this call too: `close`, `fstat` or `getcwd`, which mostly ask no server; repeatable",
    )
    parser.add_argument(
        "--paths-max", type=count, metavar="N", help="track at most N distinct paths (default: a million)"
    )
    parser.add_argument(
        "--best-effort", action="store_true", help="where tracing is not possible, run the command without"
    )
    _define_drawings(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD", help="the command with its arguments"
    )


def _define_drawings(parser: Parser) -> None:
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="draw the operations per second over time (default: not)"
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write tables, drawing and explanation as one page (default: not)",
    )


def define_show(parser: Parser) -> None:
    """Options of `trace show`."""
    parser.add_argument(
        "profiles",
        type=Path,
        nargs="+",
        metavar="PROFILE",
        help="what `trace -o` wrote; several are added up",
    )
    _define_drawings(parser)


def define_merge(parser: Parser) -> None:
    """Options of `trace merge`."""
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT", required=True, help="the profile to write"
    )
    parser.add_argument(
        "profiles", type=Path, nargs="+", metavar="PROFILE", help="profiles of runs, or merged ones"
    )


def define_explain(parser: Parser) -> None:
    """Options of `trace explain`."""
    parser.add_argument(
        "profiles",
        type=Path,
        nargs="+",
        metavar="PROFILE",
        help="what `trace -o` wrote; several are added up",
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="print only the environment that avoids the failing look-ups, as `export` lines; with --json an object",
    )
    parser.add_argument(
        "--all", action="store_true", help="list entries too that cost nothing (default: those that cost)"
    )
    parser.add_argument(
        "--no-look",
        action="store_true",
        help="do not list directories here: then no entry is moved forward (default: those that would be moved)",
    )


def run(args: Namespace) -> int:
    """Trace a command; its exit status."""
    from tidemill.image.profile import read_profile

    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        raise ConfigError("`tidemill trace`: there is no command", hint="tidemill trace -- CMD ARG...")
    for path in (args.output, args.svg, args.html):
        _check_writable(path)
    with tempfile.TemporaryDirectory(prefix="tidemill-trace-") as scratch:
        path = args.output or Path(scratch) / "profile.json"
        before = _mark(path)
        status = _traced([*_tracer_words(args, path), "--", *words], to_stderr=args.json)
        if _mark(path) == before:  # the tracer has said why
            if args.best_effort and status not in (126, 127):
                say("the command was not traced: there is no profile")
            return status
        profile = read_profile(path)
    _tell(profile, args, tell=say_lines)
    if args.output is not None:
        say(f"wrote `{args.output}`")
    if profile.failed_total * 4 > profile.ops_total:
        name = args.output or "PROFILE"
        hint(f"`tidemill trace explain {name}` names the search paths that cause the failing look-ups")
    return status


def _mark(path: Path) -> tuple[int, int] | None:
    """Tells a file from the one that stood there before."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _check_writable(path: Path | None) -> None:
    """An hour of tracing should not end with a file that cannot be written. Raises ConfigError."""
    if path is not None and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
        reason = "it is a directory" if path.is_dir() else "its directory is missing or not writable"
        raise ConfigError(f"failed to write `{path}`: {reason}")


def _tracer_words(args: Namespace, path: Path) -> list[str]:
    from tidemill.node.binary import find_binary

    words = [str(find_binary()), "trace", "-o", str(path)]
    for area in args.area:
        if not area.startswith("/"):
            raise ConfigError(f"--area `{area}` is not an absolute path", hint=f"`{Path(area).absolute()}`?")
        words += ["--area", area]
    if args.also:
        words += ["--also", ",".join(dict.fromkeys(args.also))]
    if args.paths_max is not None:
        words += ["--paths-max", str(args.paths_max)]
    if args.best_effort:
        words.append("--best-effort")
    return words


def _traced(words: list[str], *, to_stderr: bool) -> int:
    """Run the tracer to its end; its exit status as a shell would report it."""
    try:
        with _passing_signals() as running, subprocess.Popen(words, stdout=2 if to_stderr else None) as child:
            running.append(child)
            status = child.wait()
    except OSError as error:
        raise SiteError(f"failed to start `{words[0]}`: {error.strerror}", transient=False) from error
    return 128 - status if status < 0 else status


@contextmanager
def _passing_signals() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The command decides what ends it: we wait for it. Ctrl-C reaches it from the terminal, the others from us."""
    running: list[subprocess.Popen[bytes]] = []

    def passed(number: int, _: object) -> None:
        for child in running:
            if number != signal.SIGINT:
                child.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, passed) for number in numbers}
    try:
        yield running
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show_profiles(args: Namespace) -> int:
    """Print the tables of profiles."""
    for path in (args.svg, args.html):
        _check_writable(path)
    _tell(_merged(args.profiles), args, tell=show_lines)
    return 0


def merge_profiles(args: Namespace) -> int:
    """Write several profiles as one."""
    from tidemill.files import write_whole
    from tidemill.image.profile import encode_profile
    from tidemill_images.profile_page import headline, summary

    _check_writable(args.output)
    merged = _merged(args.profiles)
    write_whole(args.output, encode_profile(merged), mode=0o644)
    if args.json:
        show_json(summary(merged))
    else:
        say(f"wrote `{args.output}`: {headline(merged)}")
    return 0


def explain_profiles(args: Namespace) -> int:
    """Print which search paths fail, and what avoids it."""
    from tidemill_images.explain import explain
    from tidemill_images.profile_page import fix_lines

    profile = _merged(args.profiles)
    explanation = explain(profile) if args.no_look else explain(profile, listing=_names)
    if args.fix and args.json:
        show_json(explanation.environment)
    elif args.fix:
        for line in fix_lines(explanation):
            show(line)
        if not explanation.environment:
            say("nothing to change: no entry of a search path is dead")
    elif args.json:
        show_json(explanation)
    else:
        _tell_explanation(explanation, all_entries=args.all)
        name = " ".join(str(path) for path in args.profiles)
        if explanation.environment:
            hint(
                f"`tidemill trace explain {name} --fix > clean.sh` writes the environment for `source clean.sh`"
            )
        if profile.runs == 1:
            hint("an entry may be needed by other runs: trace some different ones and name all profiles")
    return 0


def _names(directory: str) -> frozenset[str] | None:
    try:
        return frozenset(os.listdir(directory))  # noqa: PTH208 -- names only
    except OSError:
        return None


def _merged(paths: list[Path]) -> Profile:
    from tidemill.image.profile import merge, read_profile

    return merge([read_profile(path) for path in paths])


def _tell(profile: Profile, args: Namespace, *, tell: Callable[[str], None]) -> None:
    """Tables to stderr after a run and to stdout else; numbers to stdout; drawings to their files."""
    from tidemill import clock
    from tidemill.files import write_whole
    from tidemill_images import profile_page
    from tidemill_images.explain import explain, gaps

    if args.svg is not None:
        write_whole(args.svg, profile_page.svg(profile).encode(), mode=0o644)
        say(f"wrote `{args.svg}`")
    if args.html is not None:
        page = profile_page.page(profile, explain(profile), made_us=clock.now_us())
        write_whole(args.html, page.encode(), mode=0o644)
        say(f"wrote `{args.html}`")
    if args.json:
        show_json(profile_page.summary(profile))
        return
    tell(printable_line(profile_page.headline(profile)))
    tell("")
    tell(
        plain_table(profile_page.AREA_HEADS, profile_page.area_cells(profile), right=profile_page.AREA_RIGHT)
    )
    tell("")
    tell(plain_table(profile_page.CALL_HEADS, profile_page.call_cells(profile), right=(1, 2)))
    for line in profile_page.stripes(profile):
        tell("")
        tell(f"stripe of {printable_line(line)}")
    lines = profile_page.chart(profile)
    if lines:
        tell("\n" + "\n".join(lines))
    missing = "; ".join(gaps(profile))
    if missing:
        say(f"files, .so and .py are lower bounds: {missing}")


def _tell_explanation(explanation: Explanation, *, all_entries: bool) -> None:
    from tidemill_images.profile_page import ENTRY_HEADS, entry_cells, fix_lines, group_cells

    per_run = f" in {count_text(explanation.runs)} runs" if explanation.runs > 1 else ""
    show(
        f"{count_text(explanation.ops)} operations{per_run}, {count_text(explanation.failed)} of them fail; "
        f"{percent_text(ratio(explanation.explained, explanation.failed))} of the failures are explained"
    )
    rows = entry_cells(explanation, all_entries=all_entries) + group_cells(explanation, PLACES_SHOWN)
    if rows:
        show("")
        show_lines(plain_table(ENTRY_HEADS, rows, right=(1, 2, 3, 4)))
    if explanation.storms:
        show("")
        show(f"{count_text(explanation.storm_failed)} operations fail on paths that exist, such as:")
        for storm in explanation.storms[:STORMS_SHOWN]:
            show(f"    {count_text(storm.failed):>9}  {storm.path}")
    lines = fix_lines(explanation)
    if lines:
        show("")
        show(
            f"this environment saves {count_text(explanation.saves_ops)} operations "
            f"({percent_text(ratio(explanation.saves_ops, explanation.ops))}), "
            f"{count_text(explanation.saves_failed)} of them failing:"
        )
        for line in lines:
            show(f"    {line}")
        for switch in explanation.switches:
            show(f"    # {switch.name}: {switch.why}")
    else:
        show("")
        show("no entry of a search path is dead: the environment can stay as it is")
    for line in explanation.advice:
        show("")
        show(f"advice: {line}")


COMMANDS = {
    "trace": Command(define, run, "tidemill trace -o one.json -- python3 -c 'import numpy'", talks=False),
    "trace show": Command(
        define_show, show_profiles, "tidemill trace show prof.json --html prof.html", talks=False
    ),
    "trace merge": Command(
        define_merge, merge_profiles, "tidemill trace merge -o all.json run1.json run2.json", talks=False
    ),
    "trace explain": Command(
        define_explain, explain_profiles, "tidemill trace explain prof.json --fix > clean.sh", talks=False
    ),
}
