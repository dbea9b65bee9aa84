"""From the options of `run` to a job: rows of --each and --sweep, files of the spool, words, environment."""

from __future__ import annotations

import os
import re
import shutil
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidemill.cli.command.environment import captured
from tidemill.cli.command.inputs import TypedInputs, check_utf8, pack_directory, typed_inputs
from tidemill.cli.command.lines import EMPTY_MAX, LINES_MAX, NOT_UTF8, CountedLines
from tidemill.cli.command.outputs import FILES_MAX, STDOUT, typed_outputs
from tidemill.cli.command.shell import shell_of_process
from tidemill.cli.command.stdin import has_stdin, is_script, is_shared, refuse_rest, refuse_stdin, save_stdin
from tidemill.cli.command.table import (
    DELIMITERS,
    EventTable,
    crossed,
    is_table,
    parse_sweep,
    read_table,
    swept,
)
from tidemill.cli.command.words import Resolved, names_in, resolved
from tidemill.cli.command.wrapping import Around, wrapped
from tidemill.cli.jobs.submit import check_width
from tidemill.cli.terminal import say, stderr_is_terminal
from tidemill.errors import ConfigError, JobError, SiteError, TidemillError
from tidemill.files import make_private, open_private
from tidemill.model.quantities import bytes_text
from tidemill.octets import carried
from tidemill.printable import printable_line

if TYPE_CHECKING:
    from tidemill.model.job import Input, JobSpec, Output

EVENT_S = 1.0  #: first guess of an event's duration, until measured
RETRIES = 2
LINE = "line"
LINES = "lines"
LOOP_HINT = "in a loop, give `--no-stdin`, or use `--each FILE` instead of the loop; `--stdin` passes all of it to CMD"
STDIN = "stdin"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
TABLE_BYTES_MAX = 256 << 20


class CommandFiles:
    """Where files lie that a command line makes for its job, such as the lines of --sweep: HOME/inputs/CAMPAIGN, or
    CAMPAIGN-2 where that is an earlier job's. A retry needs them too; `tidemill clean` removes old ones. Made when the
    first file is; never in a dry run."""

    def __init__(self, directory: Path, *, dry: bool = False) -> None:
        self._directory = directory
        self._is_made = False
        self._dry = dry

    def path(self, name: str) -> Path:
        """A file of the spool. Raises SiteError."""
        if not self._dry and not self._is_made:
            self._make()
        return self._directory / name

    def write(self, name: str, text: str) -> Path:
        """Write a file; its path. Raises SiteError."""
        return self.copy(name, [text.encode()])

    def copy(self, name: str, pieces: Iterable[bytes]) -> Path:
        """Write what a file or pipe holds; the path. A dry run only reads it. Raises SiteError."""
        path = self.path(name)
        try:
            with open_private(Path(os.devnull if self._dry else path), "wb") as file:
                file.writelines(pieces)
        except OSError as error:
            raise SiteError(f"failed to write `{path}`: {error.strerror}", transient=False) from error
        return path

    def drop(self) -> None:
        """Remove it, for a job that was not submitted."""
        if self._is_made:
            shutil.rmtree(self._directory, ignore_errors=True)

    def drop_if_refused(self, error: TidemillError) -> None:
        """Remove it after a submission that failed, unless the server may have taken the job: its answer was lost."""
        if isinstance(error, ConfigError | JobError):
            self.drop()

    def _make(self) -> None:
        """Make the directory. One that is there holds files that another job reads."""
        plain, number = self._directory, 2
        make_private(plain.parent)
        try:
            while True:
                try:
                    self._directory.mkdir(mode=0o700)
                    break
                except FileExistsError:
                    self._directory = plain.with_name(f"{plain.name}-{number}")
                    number += 1
        except OSError as error:
            raise SiteError(
                f"failed to create `{self._directory}`: {error.strerror}", transient=False
            ) from error
        self._is_made = True


class Rows(NamedTuple):
    """The events of a command line: their number, the file with their lines, and the columns of those."""

    events: int
    lines: str | None = None
    table: EventTable | None = None

    def filled(self, words: Sequence[str]) -> list[str]:
        """Words with `{COLUMN}` as the place of that column."""
        return list(words) if self.table is None else [self.table.filled(word) for word in words]


def compose(
    args: Namespace, command: list[str], *, campaign: str, spool: CommandFiles, reads_here: bool
) -> JobSpec:
    """The job of a command line. `reads_here`: its site reads files of this machine. Raises ConfigError."""
    from msgspec import UNSET

    from tidemill.model.job import Input, InputKind, JobSpec, Resources
    from tidemill.model.retry.changes import limits

    check_width(args)
    rows = rows_of(args, command, spool)
    if not reads_here and rows.lines is not None and rows.table is not None:
        raise ConfigError("the lines of this command lie on this machine, and its server is elsewhere")
    files = typed_inputs(args.input)
    outputs = typed_outputs(rows.filled(args.output), as_files=_as_files(args, rows.events))
    filled = rows.filled(command)
    in_image = args.container is not None  # whose programs and files are not those of this machine
    words = Resolved(filled, []) if in_image else resolved(filled, staged=files.names | outputs.names)
    if words.moved and stderr_is_terminal():
        say("passed as absolute paths: " + ", ".join(f"`{word}`" for word in words.moved))
    inputs = _packed(files, spool, dry=args.dry_run)
    if rows.lines is not None:
        inputs.append(Input(name=LINES, url=rows.lines, kind=InputKind.EACH))
    stdin = _stdin(args, rows.events, spool, reads_here=reads_here)
    inputs += stdin
    around = Around(
        stdin=STDIN if stdin else "",
        links=files.links,
        unpacked=[archive for archive, _, _ in files.directories],
        packed=outputs.packed,
    )
    place = None if args.dir is None else _directory(args.dir)
    return JobSpec(
        command=[carried(word) for word in wrapped(words.words, around)],
        events=rows.events,
        inputs=inputs,
        outputs=_placed(outputs.outputs + _stdout_files(args, rows.events), place, campaign),
        output_dir=None if place is None else str(place),
        resources=Resources(
            cores=args.cores,
            devices=args.gpus,
            event_s=EVENT_S,
            nodes=args.nodes,
            ranks=args.ranks,
            scratch_mb=args.scratch,
            **limits(memory=args.memory, wall=args.wall),
        ),
        retries=(RETRIES if rows.events > 1 else 0) if args.retries is None else args.retries,
        failed_max=_failed_max(args, rows.events),
        site=args.site,
        keep_stdout=args.keep_stdout,
        env=_environment(args),
        at_once=args.at_once or UNSET,
        container=_image(args.container) if in_image else UNSET,
        shell=shell_of_process() if reads_here else UNSET,
    )


def _directory(named: Path) -> Path:
    """The directory of outputs as an absolute path. Raises ConfigError if a job cannot name it."""
    place = named.absolute()
    if _CONTROL.search(str(place)):
        raise ConfigError(
            f"outputs cannot go to `{printable_line(str(place))}`: its path has a line break or control character",
            hint="`--dir DIR` names another one",
        )
    check_utf8(str(place), what="directory of outputs", hint="`--dir DIR` names another one")
    return place


def rows_of(args: Namespace, command: Sequence[str], spool: CommandFiles) -> Rows:
    """The events that --events, --each and --sweep ask for. Raises ConfigError."""
    if args.zip and len(args.sweep) < 2:
        raise ConfigError("--zip needs two --sweep or more", hint="--sweep a=1,2 --sweep b=x,y --zip")
    if args.events is not None and args.sweep:
        raise ConfigError(
            f"--events {args.events} is not allowed with --sweep, which has an event for each value",
            hint=f"`--sweep run=1..{args.events}` with `{{run}}` in the command repeats each value",
        )
    table = None
    if args.each is not None and (is_table(args.each) or args.sweep):
        table = _read_table(args.each)
    if args.sweep:
        lists = [parse_sweep(text) for text in args.sweep]
        sweep = swept(lists, together=args.zip)
        table = sweep if table is None else crossed(table, sweep)
        table.check_used([*command, *args.output], every=[name for name, _ in lists])
    elif table is not None:
        table.check_used([*command, *args.output], every=())
    uses_line = any(LINE in names_in(word) for word in command)
    if table is not None:
        if uses_line:
            known = ", ".join(f"`{{{name}}}`" for name in table.columns)
            raise ConfigError(
                "the command uses `{line}`, and its rows have columns", hint=f"there are: {known}"
            )
        return Rows(len(table.rows), str(spool.write(LINES, table.text())), table)
    if args.each is not None:
        return _lines(args.each, spool)
    if uses_line:
        raise ConfigError("the command uses {line}, but no --each FILE gives lines")
    return Rows(args.events or 1)


def _read_table(path: Path) -> EventTable:
    text = _read_text(path)
    delimiter = DELIMITERS.get(path.suffix.lower())
    if delimiter is None:
        raise ConfigError(
            f"--each {path} has no columns, and --sweep adds some",
            hint="a file with columns is called NAME.csv or NAME.tsv, and its first line names them",
        )
    return read_table(text, source=str(path), delimiter=delimiter)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(TABLE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"failed to read `{path}`: {error.strerror}") from error
    if len(content) > TABLE_BYTES_MAX:
        raise ConfigError(f"`{path}` has more than {bytes_text(TABLE_BYTES_MAX)}")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"`{path}`, line {line}: byte 0x{content[error.start]:02x} is not valid UTF-8", hint=NOT_UTF8
        ) from error


def _lines(path: Path, spool: CommandFiles) -> Rows:
    """An event for each line of a file; of what is read only once, such as `-` or a pipe, a copy goes to the spool."""
    is_stdin = str(path) in ("-", "/dev/stdin", "/dev/fd/0")
    what = "stdin" if is_stdin else f"`{path}`"
    if path.is_dir():
        raise ConfigError(
            f"--each {path}: it is a directory",
            hint="`ls DIR > FILE` makes a file with a line for each file of it",
        )
    if is_stdin and sys.stdin.isatty():
        say("reading lines from the terminal; Ctrl-D ends them")
    try:
        with nullcontext(sys.stdin.buffer) if is_stdin else path.open("rb") as file:
            content = CountedLines(file, source=what)
            place = path.absolute()
            if is_stdin or not path.is_file():
                place = spool.copy(LINES, content)
            else:
                deque(content, maxlen=0)
    except OSError as error:
        raise ConfigError(f"failed to read `{path}`: {error.strerror}") from error
    if not 1 <= content.lines <= LINES_MAX:
        why = (
            f"has more than {LINES_MAX:,} lines"
            if content.lines
            else "is empty: it needs a line for each event"
        )
        raise ConfigError(f"{what} {why}")
    if content.empty:
        least = "at least " if content.empty >= EMPTY_MAX else ""
        has = "1 empty line" if content.empty == 1 else f"{least}{content.empty:,} empty lines"
        say(f"remark: {what} has {has} among {content.lines:,}; each is an event with an empty {{line}}")
    return Rows(content.lines, str(place))


def _packed(files: TypedInputs, spool: CommandFiles, *, dry: bool) -> list[Input]:
    """Inputs, each directory as an archive in the spool."""
    from msgspec import structs

    directories = {archive: (directory, name) for archive, directory, name in files.directories}
    packed = []
    for each in files.inputs:
        if each.name not in directories:
            packed.append(each)
            continue
        directory, name = directories[each.name]
        archive = spool.path(each.name)
        if not dry:
            size = pack_directory(directory, archive, name=name)
            say(f"packed `{directory}` for the job: {bytes_text(size)}")
        packed.append(structs.replace(each, url=str(archive)))
    return packed


def _stdin(args: Namespace, events: int, spool: CommandFiles, *, reads_here: bool) -> list[Input]:
    """The input that is the command's stdin; none where there is nothing to read."""
    from tidemill.model.job import Input

    if args.stdin and not has_stdin():
        raise ConfigError(
            "--stdin: stdin is neither a file nor a pipe", hint="`tidemill run --stdin -- CMD < FILE`"
        )
    if args.no_stdin or str(args.each) in ("-", "/dev/stdin") or not has_stdin():
        return []
    if not args.stdin and is_script():
        return []
    if events > 1:
        refuse_stdin(events)
        return []
    if not reads_here:
        raise ConfigError(
            "stdin cannot be passed to a server elsewhere", hint="--input NAME=URL, and `< /dev/null`"
        )
    if not args.stdin:
        refuse_rest(LOOP_HINT)
    path = spool.path(STDIN)
    if args.dry_run:
        return [Input(name=STDIN, url=str(path))]
    size = save_stdin(path, say)
    if size == 0:
        path.unlink()
        return []
    if not args.stdin and is_shared():
        say(
            f"remark: CMD reads the rest of stdin ({bytes_text(size)}), which is also the stdin of the process that "
            f"started `tidemill`; {LOOP_HINT}"
        )
    return [Input(name=STDIN, url=str(path))]


def _as_files(args: Namespace, events: int) -> bool:
    """Whether named outputs are delivered as files: as asked, else up to some thousand events."""
    return bool(args.pack == "files" or (args.pack is None and events <= FILES_MAX))


def _stdout_files(args: Namespace, events: int) -> list[Output]:
    """The output `stdout` as files, if `--pack files` is given. Otherwise the site adds it as one archive, which suits
    `job logs`."""
    from tidemill.model.job import Output, Pack

    if args.pack != "files" or not args.keep_stdout or events == 1:
        return []
    return [Output(name=STDOUT, path=STDOUT, pack=Pack.FILES)]


def _placed(outputs: Sequence[Output], place: Path | None, campaign: str) -> list[Output]:
    """Outputs that are files of their own go to DIR/CAMPAIGN itself."""
    from msgspec import UNSET, structs

    if place is None:
        return list(outputs)
    url = f"{place / campaign}/"
    return [each if each.pack is UNSET else structs.replace(each, url=url) for each in outputs]


def _failed_max(args: Namespace, events: int) -> int:
    """How many failed events stop the job: by default none, unless all of them fail."""
    if args.fail_fast:
        return 0
    return events - 1 if args.failed_max is None else int(args.failed_max)


def _environment(args: Namespace) -> dict[str, str]:
    if args.container is not None and not args.env_all:
        return captured({}, [_given(text) for text in args.env]).variables
    found = captured(os.environ, args.env, everything=args.env_all)
    if found.environment and stderr_is_terminal():
        say(f"the command runs in the {found.environment}")
    if found.left_out:
        shown = ", ".join(f"`{name}`" for name in found.left_out[:8])
        say(f"--env-all leaves out what may be secret: {shown}; `--env NAME` passes it")
    return found.variables


def _given(text: str) -> str:
    """`NAME=VALUE` of `NAME` as it is set here. Raises ConfigError."""
    return text if "=" in text else f"{text}={captured(os.environ, [text]).variables[text]}"


def _image(text: str) -> str:
    """The image of --container: a path as absolute path. Raises ConfigError."""
    if "@sha256:" in text:
        return text
    path = Path(text).expanduser().absolute()
    check_utf8(str(path), what="--container", hint="rename it, or link it under another name")
    if not path.exists():
        raise ConfigError(
            f"--container {text}: the directory or file does not exist",
            hint="name a directory, a `.sif` file, or NAME@sha256:DIGEST of an image in the runtime's store",
        )
    return str(path)


__all__ = ["RETRIES", "STDOUT", "CommandFiles", "Rows", "compose", "rows_of"]
