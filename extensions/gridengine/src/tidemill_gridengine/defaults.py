"""Files of default options that Grid Engine's commands read before their command line: sge_request(5), sge_qstat(5).

Tidemill's own options undo most options in a user's file: `qsub -clear`, `qstat -s prs -q *`. Options that it cannot
undo are refused before the command runs (all tried with 8.1.9): `qstat -l` in a file would hide regular jobs, and
`qsub -sync y` would wait for the job's end. The commands find the files by the home directory in passwd, not by HOME.
`-clear` also drops the cluster's own requests, so it is given only if their file can be named.
"""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from tidemill.errors import SiteError

QSTAT_SET = {"-s", "-q", "-u", "-g"}  #: Tidemill sets these itself
#: these only add to a reply
QSTAT_ADDS = {"-f", "-F", "-r", "-xml", "-ext", "-urg", "-pri", "-t", "-ne", "-explain", "-U"}
QRSTAT_UNDONE = {"-u", "-xml", "-explain"}
CELL = "default"


class DefaultOption(NamedTuple):
    """An option of a file of default options."""

    flag: str
    values: tuple[str, ...]
    source: Path

    @property
    def text(self) -> str:
        """The option as the file has it."""
        return " ".join([self.flag, *self.values])


def query_words(command: str, *words: str) -> list[str]:
    """The words of a `qstat` or `qrstat` whose reply does not depend on the user's defaults. Raises SiteError."""
    undone = QSTAT_SET | QSTAT_ADDS if command == "qstat" else QRSTAT_UNDONE
    name = f"sge_{command}"
    _refuse(command, [*read_options(common(name)), *read_options(home(f".{name}"))], undone=undone)
    lists_jobs = command == "qstat" and "-j" not in words
    return [command, *words, *(["-s", "prs", "-q", "*"] if lists_jobs else [])]


def submit_start() -> list[str]:
    """The first words of each `qsub`. The cluster's own default requests apply; the user's do not, unless the cell is
    not known (see `knows_cell`). Raises SiteError."""
    cluster = common("sge_request")
    for each in [*read_options(cluster), *requests_of_user()]:
        if each.flag == "-sync" and each.values[:1] != ("n",):
            _refuse("qsub", [each], undone=())
    if not knows_cell():
        return ["qsub"]
    return ["qsub", "-clear", *(["-@", str(cluster)] if cluster.is_file() else [])]


def knows_cell() -> bool:
    """Whether SGE_ROOT and SGE_CELL lead to the cell's common directory. They do not if the commands are wrappers that
    set both; then `-clear` would drop requests of the cluster for good."""
    return common("").is_dir()


def requests_of_user() -> list[DefaultOption]:
    """The options in the user's own files of default requests, in the home and working directory. Raises SiteError."""
    files = {path.absolute(): path for path in (Path(".sge_request"), home(".sge_request"))}
    return [each for path in reversed(files.values()) for each in read_options(path)]


def wanted_of_user(flag: str) -> str:
    """The value of an option in the user's own file of default requests, empty if the file does not give it."""
    values = [
        each.values[0] for each in read_options(home(".sge_request")) if each.flag == flag and each.values
    ]
    return values[-1] if values else ""


def common(name: str) -> Path:
    """A file of the cell's common directory."""
    return Path(
        os.environ.get("SGE_ROOT") or "/nonexistent", os.environ.get("SGE_CELL") or CELL, "common", name
    )


def home(name: str) -> Path:
    """A file of the user's home directory, as Grid Engine finds it."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir, name)


def read_options(path: Path) -> list[DefaultOption]:
    """The options in a file; an empty list if it does not exist. Raises SiteError if it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise SiteError(
            f"failed to read `{path}`, a file of default options of Grid Engine: {error.strerror}"
        ) from error
    found: list[DefaultOption] = []
    for line in lines:
        for word in _words(line):
            if word.startswith("-"):
                found.append(DefaultOption(word, (), path))
            elif found:
                found[-1] = found[-1]._replace(values=(*found[-1].values, word))
    return found


def _words(line: str) -> list[str]:
    if line.startswith("#"):
        return []
    try:
        return shlex.split(line)
    except ValueError:  # an open quote
        return line.split()


def _refuse(command: str, options: Sequence[DefaultOption], *, undone: Collection[str]) -> None:
    for each in options:
        if each.flag not in undone:
            remedy = f"remove it from the file, or use an alias of your shell for `{command}`"
            if each.source.parent == common(""):
                remedy = "the file is the cluster's: ask the centre's staff whether it has to be there"
            raise SiteError(
                f"`{each.source}` holds `{each.text[:80]}`, which `{command}` applies to Tidemill's queries and jobs "
                "alike",
                hint=f"no option undoes it: {remedy}",
                transient=False,
            )
