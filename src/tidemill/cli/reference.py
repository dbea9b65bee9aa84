"""docs/cli.md from the parsers: `python -m tidemill.cli.reference > docs/cli.md`. A test compares the two."""

from __future__ import annotations

import argparse

from tidemill.cli.arguments import Command, Parser, add_common
from tidemill.cli.terminal import show_lines
from tidemill.cli.verbs import GROUPS, load, parser_of

HEAD = """# The command line

<!-- Made from the parsers: python -m tidemill.cli.reference > docs/cli.md -->

`tidemill VERB [OPTIONS]`. Data goes to stdout, everything else (progress, hints, errors) to stderr; with `--json` the
data is JSON. An error names what was attempted, on what and what came back; a line `hint:` says what to do.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the job failed, or was canceled |
| 2 | usage or configuration is wrong |
| 3 | site, service or network: try again |
| 70 | a bug of Tidemill; where the traceback was written is told |

Text of payloads, sites and jobs is printed without control characters: each is shown as its JSON escape, such as
`\\u001b`, also in files and pipes. Only `run` and `job logs` write a payload's own output byte by byte into a file or a
pipe; on a terminal they show it cleaned, unless `--raw` is given.

## Where things are

Everything of one person lives in one directory, the home: `$TIDEMILL_HOME`, by default `~/.local/state/tidemill`
(mode 0700, on a local disk: SQLite's locks do not hold on network file systems). A verb that talks to a server finds it
in this order: `--server`, `$TIDEMILL_SERVER` (with `$TIDEMILL_SECRET_FILE`), `client.toml` in the home
(`server = "..."`, `secret_file = "..."`), the server of the `tidemill up` that runs in the home, the socket of a
`tidemill server run` of this home.

## What a command of `tidemill run` sees

- An empty work directory of its own, and what `--input FILE` names, by its name. Outputs (`--output PATH`) are
  relative to it. `HOME` and `/tmp` belong to the slot and are emptied afterwards.
- The program is looked up where you are and told by its absolute path. So is an argument that is the relative path of a
  file that exists here (`python prog.py {event}`), unless it names an `--input` or `--output`. Everything else is
  passed as it is: directories, paths within options (`--config=x.toml`). Give absolute paths there.
- Of your environment: `PATH`, `LANG`, `LD_LIBRARY_PATH`, `PYTHONPATH`, `VIRTUAL_ENV`, and what `--env` names.
- `{event}`, `{seed}`, `{line}`, `{first_event}`, `{last_event}`, `{events}`, `{cores}` and `{input.NAME}` are filled
  in; other braces stay as they are. A command that uses `{events}` or `{last_event}` gets several events at once, as
  many as fit about ten seconds.
- What it prints is kept in `DIR/CAMPAIGN` as a plain tar archive with one member per event or range, unless
  `--no-keep-stdout` is given. A run of one event prints what its command printed, so `tidemill run -- CMD` can be used
  like `CMD`.
- An event that fails does not stop the others: `run` goes on, delivers what is done, and exits with 1. `tidemill job
  retry` then runs what failed. `--fail-fast` stops at the first failed event.
- Ctrl-C cancels the job, and waits until what is done is delivered; a second one leaves at once. What is done is never
  run again: `tidemill job retry` runs the rest. The server and site that `run` has started go on; `tidemill up --stop`
  ends them.
"""


def reference() -> str:
    """The page."""
    parts = [HEAD, "## Options of every verb\n", _options(_common())]
    parts.append(
        "Verbs that start or check something on this machine have neither `--server` nor `--secret-file`.\n"
    )
    for group, verbs in GROUPS.items():
        parts.append(f"## {group[0].upper()}{group[1:]}\n")
        for verb, (_, about) in verbs.items():
            parts.append(_verb(verb, about, load(verb)))
    return "\n".join(parts).rstrip() + "\n"


def _verb(verb: str, about: str, command: Command) -> str:
    parser = parser_of(verb, command)
    positional = " ".join(_usage(action) for action in parser._get_positional_actions())
    usage = f"tidemill {verb} [OPTIONS] {positional}".rstrip()
    text = (
        f"### `tidemill {verb}`\n\n{about[0].upper()}{about[1:]}.\n\n```\n{usage}\n{command.example}\n```\n"
    )
    own = [
        action for action in parser._actions if action.option_strings[:1] not in (["-h"], *_common_names())
    ]
    return f"{text}\n{_options(own)}" if own else text


def _common() -> list[argparse.Action]:
    parser = Parser(prog="tidemill", add_help=False)
    add_common(parser, talks=True)
    return parser._actions


def _common_names() -> list[list[str]]:
    return [list(action.option_strings[:1]) for action in _common()]


def _options(actions: list[argparse.Action]) -> str:
    lines = ["| option | meaning |", "|---|---|"]
    for action in actions:
        names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{_metavar(action)}`"
        value = (
            f" `{_metavar(action)}`"
            if action.option_strings and action.nargs != 0 and _metavar(action)
            else ""
        )
        lines.append(f"| {names}{value} | {_cell(action.help or '')} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _metavar(action: argparse.Action) -> str:
    return str(action.metavar or "")


def _usage(action: argparse.Action) -> str:
    name = _metavar(action)
    if action.nargs == argparse.REMAINDER:
        return f"{name} [ARG ...]"
    return f"[{name}]" if action.nargs == "?" else f"[{name} ...]" if action.nargs == "*" else name


if __name__ == "__main__":
    show_lines(reference().removesuffix("\n"))
