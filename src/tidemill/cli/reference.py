"""docs/cli.md from the parsers: `python -m tidemill.cli.reference > docs/cli.md`, and with the name of an extension
its own page, extensions/NAME/docs/cli.md. Tests compare them."""

from __future__ import annotations

import argparse
import sys

from tidemill import extensions
from tidemill.cli.arguments import Command, Parser, add_common, help_of
from tidemill.cli.terminal import show_lines
from tidemill.cli.verbs import groups_of, load, parser_of

HEAD = """# The command line

<!-- Made from the parsers: python -m tidemill.cli.reference > docs/cli.md -->

This reference lists every command and option.

`tidemill VERB [OPTIONS]`. Data goes to stdout, everything else (progress, hints, errors) to stderr; with `--json` the
data is JSON, and so is an error: `{"error": {"kind", "message", "hint", "exit_code"}}`.

JOB is the number of a job, as `tidemill jobs` prints it, and NAME that of a campaign. `NAME|JOB` takes either: `run`
makes campaigns of one job. `OWNER/NAME` names the campaign of one owner: operators need it if several owners use the
same name ([names of campaigns](operations.md#names-of-campaigns)).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the job failed, or was canceled |
| 2 | usage or configuration is wrong |
| 3 | site, service or network: try again |
| 70 | a bug of Tidemill, or of an extension; the message names the file with the traceback |

Text of payloads, sites and jobs is printed without control characters: each is shown as its JSON escape, such as
`\\u001b`, also in files and pipes. Only `run` and `job logs` write a payload's own output byte by byte into a file or a
pipe; on a terminal they show it cleaned, unless `--raw` is given.

## Where things are

Everything of one person lives in one directory, the home: `$TIDEMILL_HOME`, by default `~/.local/state/tidemill` (mode
0700). The database of the server must be on a local disk, because SQLite's locks do not hold on network file systems:
if your home is on one, `site init` moves that part ([why](site-operators.md#a-home-on-a-network-file-system)). A verb
that talks to a server finds it in this order: `--server`, `$TIDEMILL_SERVER` (with `$TIDEMILL_SECRET_FILE`),
`client.toml` in the home (`server = "..."`, `secret_file = "..."`), the server of the `tidemill up` that runs in the
home, the socket of a `tidemill server run` of this home.

## What a command of `tidemill run` sees

- **Work directory**: an empty one of its own, and in it what `--input` names: a file, a directory, or the files that a
  pattern matches, under their own names; with `--each` or `--sweep` also the rows of all events, as
  `lines`. Files that rows or arguments only name are not brought: `--input` brings them, or an absolute path names
  them. Outputs (`--output PATH`) are relative to it. `HOME` and `/tmp` belong to the slot and are emptied afterwards.
- **Inputs** cannot be changed. A single file is executable, since it may be a program; files of a directory keep their
  modes. So `cp IN OUT` makes an executable, often read-only file; `cp --no-preserve=mode IN OUT` makes a plain,
  writable one.
- **Words**: the program is looked up where you are, and passed as its absolute path. So is an argument that is the
  relative path of a file that exists here (`python prog.py {event}`), or of a directory if it holds a `/` (`data/`),
  unless it names an `--input` or `--output`. Everything else is passed as it is, such as paths within options
  (`--config=x.toml`): give absolute paths there.
- **Batch commands** (`srun`, `sbatch`, `qsub`, `flux`, ...) only print that payloads cannot use them. For several nodes
  and MPI, give `--nodes` and `--ranks` ([MPI](mpi.md)). Your own programs with such a name run as usual.
- **Placeholders**: `{event}`, `{seed}`, `{line}`, `{first_event}`, `{last_event}`, `{events}`, `{cores}`,
  `{input.NAME}` and the names of columns are filled in, each as part of one argument; other braces stay as they are.
  Double braces protect a placeholder: `{{event}}` stays `{event}`. A command that uses `{events}` or `{last_event}`
  is started once for several events: as many as take about ten seconds.
- **stdin**: a single event reads all of it, if it is a file or a pipe; `--no-stdin` or `< /dev/null` gives it
  none. Several events cannot share one: `run` refuses data that wait there. `--each -` makes each line an event.
  A script that a shell reads from stdin (`ssh HOST << END`, `bash < SCRIPT`) is left to the shell.
- **In a loop** (`while read x; do tidemill run -- CMD "$x"; done < list`) CMD would read the rest of the list, as with
  `ssh`. So `run` refuses a stdin file that was read in part before, and warns when it takes input from a pipe that its
  parent reads. Give `--no-stdin`, or use `--each list`, which makes one campaign. `--stdin` passes the rest of stdin to
  CMD all the same.
- **Container**: with `--container IMAGE` ([containers](software-environments.md#a-container)), program and paths are
  those of the image, and of your environment only `--env` is passed. A site that serves others takes approved
  applications instead.
- **Environment**: the [variables that find software](software-environments.md#modules-and-set-up-scripts). `--env NAME`
  adds one. `--env-all` passes everything but variables of the login (`HOME`, `SSH_...`, `SLURM_...`) and those whose
  names hint at a secret, which it lists.

## What `tidemill run` does with events

- `--events N` numbers them; `--each` and `--sweep` take lines, rows and values ([examples](sweeps.md)). With a table
  and `--sweep` each row takes part in all combinations. Event k is row k, from 0. An empty line of FILE is an event
  with an empty `{line}`; `run` reports how many there are. Empty rows of a table are skipped.
- An event that fails does not stop the others: `run` goes on, delivers what is done, and exits with 1, as do
  `tidemill wait` and `attach`. `--fail-fast` stops at the first failed event.
- **Defaults**: `run` and `submit` retry a failed event twice, and keep stdout. `run` does not retry a single event,
  whose exit status it passes on. `submit` accepts no failed event unless `--failed-max N` is given, since jobs may come
  after it. Jobs of a job file or of the SDK keep no stdout unless they have `keep_stdout = true`.
- **Exit status**: that of the command for a single event (128 + N for signal N); for several 0 if all are done, else 1.
  Errors of Tidemill itself have the codes above.
- A name is used once. `tidemill run --resume NAME` follows a campaign that runs, and runs what failed or was not done
  of one that has ended. What is done is never run again.
- Ctrl-C cancels the job, and waits until what is done is delivered; a second one leaves at once. `tidemill attach
  NAME` follows a campaign that was left. The server and site that `run` has started go on; `tidemill up --stop` ends
  them.
- What no site can ever run (99 cores, a GPU that no site has) is refused, with the most that would fit; so is a change
  by `--resume` or `tidemill job retry`.

## What `tidemill run` leaves

- `DIR/CAMPAIGN` (`./tidemill-out/CAMPAIGN`) holds each `--output` under its own name: `--output hits-{event}.root`
  gives `hits-0.root`, `hits-1.root`, ... Where the name does not tell events apart, the number of the event is put
  before the suffix: `out.txt` gives `out-0.txt`. `{seed}`, `{line}` and columns are filled in, too. Outputs with the
  same file name get their directories as a prefix: `a/out.txt` and `b/out.txt` give `a-out-0.txt` and `b-out-0.txt`.
- All other files of the work directory are removed: `run` names them at the end, and so do the logs of a job's first
  events (`job logs`).
- An output must be a regular file: a symbolic link or a directory fails the job.
- From 4,097 events on, or with `--pack tar`, each output is one plain tar archive with a member for each event.
- `--output plots/` and `--output 'hist*.root'` come as tar archives, `plots.tar` and `hist.tar`, of each event.
- Each delivery of a job writes archives of its own and leaves earlier ones as they are: after `--resume` or a retry,
  `2-stdout.tar` holds the events of the first delivery, `2-stdout-2.tar` those of the second.
- `manifest-JOB.json` beside them lists the files of all deliveries, with checksums, events and seeds.
- What the command prints is kept as output `stdout`, in one tar archive for several events (`--pack files`: `stdout-0`,
  `stdout-1`, ...), unless `--no-keep-stdout` is given. A single event prints it as well, so `tidemill run -- CMD` can
  be used like `CMD`; of one that fails, the first and the last 32 KiB, because failed events keep no outputs.
  `tidemill job logs JOB --event N` prints that of any event.
- What `run` itself writes for a job (stdin, rows, packed directories) is in `inputs/CAMPAIGN` of the home, until
  `tidemill clean` removes it: a month later, if the campaign has ended.

## In the shell

`tidemill completion bash|zsh|fish` prints a script that completes verbs, options, and the jobs, campaigns, sites and
applications that your server knows. `tidemill man VERB` shows a manual page, as plain text in a pipe;
`tidemill man --to ~/.local/share/man` writes all of them for `man`.
"""


NO_DEFAULT = " (default: none)"


def reference() -> str:
    """The page `docs/cli.md`."""
    parts = [HEAD, "## Options of every verb\n", _options(_common())]
    parts.append(
        "Verbs that start or check something on this machine have neither `--server` nor `--secret-file`, or an option "
        "of that name of their own. Below, an option without a default is off or empty unless it is given.\n"
    )
    for group, verbs in groups_of("").items():
        parts.append(f"## {group[0].upper()}{group[1:]}\n")
        for verb, (_, about) in verbs.items():
            parts.append(_verb(verb, about, load(verb)))
    parts.append("## Verbs of extensions\n\n" + _of_extensions())
    return "\n".join(parts).rstrip() + "\n"


def _of_extensions() -> str:
    """Where the verbs of each extension of this repository are described."""
    rows = [
        f"| [`{name}`](../extensions/{name}/docs/cli.md) | {', '.join(f'`tidemill {verb}`' for verb in brings.verbs)} |"
        for name, brings in extensions.KNOWN.items()
        if brings.verbs
    ]
    about = "`pip install 'tidemill[NAME]'` adds an extension, `pip install 'tidemill[all]'` all of them."
    return "\n".join([f"{about}\n", "| extension | verbs |", "|---|---|", *rows])


def extension_page(name: str) -> str:
    """The page on the verbs of one extension."""
    parts = [
        f"# Commands of the extension `{name}`\n",
        f"<!-- Made from the parsers: python -m tidemill.cli.reference {name} > extensions/{name}/docs/cli.md -->\n",
        f"This reference lists the commands of the extension `{name}`, and their options. Those of every command, and",
        "the exit codes, are on [the page of the core's commands](../../../docs/cli.md).\n",
    ]
    for verbs in groups_of(name).values():
        for verb, (_, about) in verbs.items():
            parts.append(_verb(verb, about, load(verb)))
    return "\n".join(parts).rstrip() + "\n"


def _verb(verb: str, about: str, command: Command) -> str:
    """The section of a verb."""
    parser = parser_of(verb, command)
    positional = " ".join(_usage(action) for action in parser._get_positional_actions())
    usage = f"tidemill {verb} [OPTIONS] {positional}" if positional else ""
    shown = "\n".join(line for line in (usage, command.example) if line not in (f"tidemill {verb}", ""))
    text = f"### `tidemill {verb}`\n\n{about[0].upper()}{about[1:]}.\n" + (
        f"\n```\n{shown}\n```\n" if shown else ""
    )
    common = {(tuple(each.option_strings), each.help) for each in _common()}
    own = [
        each for each in parser._actions
        if each.option_strings[:1] != ["-h"] and (tuple(each.option_strings), each.help) not in common
    ]  # fmt: skip
    return f"{text}\n{_options(own)}" if own else text


def _common() -> list[argparse.Action]:
    parser = Parser(prog="tidemill", add_help=False)
    add_common(parser, talks=True)
    return parser._actions


def _options(actions: list[argparse.Action]) -> str:
    """A list of options, as a manual page has it; that an option has no value unless given is not said of each."""
    lines = []
    for action in actions:
        value = f" {_metavar(action)}" if action.nargs != 0 and _metavar(action) else ""
        names = ", ".join(f"`{name}{value}`" for name in action.option_strings) or f"`{_metavar(action)}`"
        lines.append(f"- {names}: {help_of(action).removesuffix(NO_DEFAULT)}")
    return "\n".join(lines) + "\n"


def _metavar(action: argparse.Action) -> str:
    return str(action.metavar or "")


def _usage(action: argparse.Action) -> str:
    name = _metavar(action)
    if action.nargs == argparse.REMAINDER:
        return f"{name} [ARG ...]"
    return f"[{name}]" if action.nargs == "?" else f"[{name} ...]" if action.nargs == "*" else name


if __name__ == "__main__":
    page = extension_page(sys.argv[1]) if sys.argv[1:] else reference()
    show_lines(page.removesuffix("\n"))
