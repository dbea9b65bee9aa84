"""The shell script of an allocation on batch systems that report little about its end: the script records the end.

It sends TERM to the command before the limit, USR1 earlier where wanted, and turns the signal by which the batch system
ends a job into TERM. When the command has ended, one line in a small file says how (see `batch/submissions.py`): many
sites keep no history of jobs, or one that ordinary users may not read.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from tidemill.batch.contract import ELEMENT, BatchSubmission
from tidemill.batch.launch import launch_words

TERM_BEFORE_S = 5.0
"""TERM comes this long before the limit, at which batch systems send KILL; for short limits, a quarter of the limit."""

_WRAPPER = """
mask=$(umask)
umask g-w,o-w
mkdir -p "$dir/output" "$dir/exit"
exec </dev/null >>"$dir/output/$name" 2>&1
note() { echo "$1 $2 $3" > "$dir/exit/.$name" && mv "$dir/exit/.$name" "$dir/exit/$name"; }
host=$(uname -n)
if [ @START_BY@ -gt 0 ] && [ "$(date +%s)" -gt @START_BY@ ]; then
    note 0 deadline "$host"
    exit 0
fi
why=ran
forward() { forwarded=1; [ -z "$child" ] || kill -"$1" "$child" 2>/dev/null; }
trap 'why=term; forward TERM' TERM USR2
trap 'why=walltime; forward TERM' ALRM
trap : USR1
(trap "" USR2; umask "$mask"; exec @COMMAND@) &
child=$!
[ $why = ran ] || forward TERM
(
    trap 'kill $nap 2>/dev/null; exit 0' TERM USR2
    trap : USR1
    # whole: `wait` also ends with a signal, and a batch system that ends the job may end `sleep` before us
    rest() {
        sleep "$1" & nap=$!
        until wait $nap; do
            kill -0 $nap 2>/dev/null || exit 0
        done
    }
    if [ @WARN@ -gt 0 ]; then
        rest @WARN@
        kill -USR1 $child
    fi
    rest @REST@
    kill -ALRM $$
) &
timer=$!
while :; do
    forwarded=
    wait $child
    status=$?
    [ "$forwarded" ] || break
done
kill $timer 2>/dev/null
note $status $why "$host"
exit $status
"""


_NAME, _STATUS = "@NAME@", "@STATUS@"
"""Words that become expansions of the shell, when all others are quoted."""


class ScriptDialect(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch system's scripts differ by."""

    directory: Path  #: SITE/batch
    #: the index of an array's element, from 0: arithmetic of the shell, as inside `$(( ))`
    index: str = "0"
    launcher: str = "fork"
    head: str = ""  #: lines of directives


def compose(submission: BatchSubmission, dialect: ScriptDialect) -> str:
    """The text of a batch script."""
    lines = ["#!/bin/sh", dialect.head] if dialect.head else ["#!/bin/sh"]
    lines.append(f"dir={shlex.quote(str(dialect.directory))}")
    lines.append(f"name={shlex.quote(submission.name)}")
    if submission.count > 1:
        lines.append(f'name="$name.$(({dialect.index}))"')
    lines += ["TIDEMILL_ALLOCATION=$name", "export name dir TIDEMILL_ALLOCATION"]
    limit_s = max(1, int(submission.walltime_s))
    term_s = max(1, round(limit_s - min(TERM_BEFORE_S, limit_s / 4)))
    before_s = submission.signal_before_s
    warn_s = 0 if before_s is None else min(term_s - 1, max(1, round(limit_s - before_s)))
    text = _WRAPPER.replace("@START_BY@", str(int(submission.start_by_s or 0)))
    text = text.replace("@WARN@", str(warn_s)).replace("@REST@", str(max(1, term_s - warn_s)))
    command = " ".join(shlex.quote(word) for word in _launched(submission, dialect))
    command = command.replace(_NAME, '"$name"').replace(_STATUS, '"$dir/exit/.$name.status"')
    return "\n".join(lines) + text.replace("@COMMAND@", command)


def node_text(submission: BatchSubmission) -> str:
    """The script that runs on each node, started by the launcher or by the script above."""
    lines = ["#!/bin/sh", "TIDEMILL_ALLOCATION=$1; export TIDEMILL_ALLOCATION"]
    for key, value in submission.environment.items():
        lines.append(f"export {key}={shlex.quote(value)}")
    lines.append("exec " + " ".join(_quote(word) for word in submission.command))
    return "\n".join(lines) + "\n"


def node_script(directory: Path, name: str) -> Path:
    """The path of the script that runs on each node."""
    return directory / "scripts" / f"{name}.node"


def _launched(submission: BatchSubmission, dialect: ScriptDialect) -> list[str]:
    """The name goes along as an argument: Open MPI takes no environment to other nodes."""
    command = ["/bin/sh", str(node_script(dialect.directory, submission.name)), _NAME]
    if submission.nodes == 1 or not submission.ranks:
        return command
    return launch_words(dialect.launcher, submission.nodes, command, status_files=Path(_STATUS))


def _quote(word: str) -> str:
    """One word for the shell, the allocation's name put in at run time."""
    pieces = [shlex.quote(piece) if piece else "" for piece in word.split(ELEMENT)]
    return '"$TIDEMILL_ALLOCATION"'.join(pieces) or "''"
