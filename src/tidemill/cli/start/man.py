"""`tidemill man`: manual pages, made from the same definitions as `--help` and docs/cli.md."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from argparse import Namespace
from pathlib import Path

from tidemill import __version__
from tidemill.cli.arguments import Command, Parser
from tidemill.cli.suggestions import suggested
from tidemill.cli.terminal import say, show_json, show_lines, stdout_is_terminal
from tidemill.cli.verbs import GROUPS, VERBS, family_of, load, parser_of
from tidemill.errors import ConfigError, SiteError

SECTION = "1"
EXIT_CODES = (
    ("0", "done"),
    ("1", "the job failed, or was canceled; `tidemill run` of one event exits as its command did"),
    ("2", "usage or configuration is wrong"),
    ("3", "site, service or network: try again"),
    ("70", "a bug of Tidemill; the message names the file with the traceback"),
)


def define(parser: Parser) -> None:
    """Options of `man`."""
    parser.add_argument(
        "verb", nargs="*", metavar="VERB", help="the verb, one word or two (default: `tidemill` itself)"
    )
    parser.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="write all pages to DIR/man1, such as ~/.local/share/man (default: show one)",
    )


def run(args: Namespace) -> int:
    """Show a page, or write all."""
    if args.to is not None:
        return _write_all(args.to.expanduser(), as_json=args.json)
    verb = " ".join(args.verb)
    if verb and verb not in VERBS and not family_of(verb):
        raise ConfigError(f"`tidemill` has no verb `{verb}`", hint=suggested(verb, VERBS))
    text = page(verb) if verb in VERBS else overview_page(family_of(verb) if verb else list(VERBS))
    viewer = shutil.which("man")
    if viewer is None or not stdout_is_terminal():
        show_lines(text.removesuffix("\n"))
        return 0
    with tempfile.NamedTemporaryFile("w", suffix=f".{SECTION}") as file:
        file.write(text)
        file.flush()
        return subprocess.run([viewer, "-l", file.name], check=False).returncode


def _write_all(directory: Path, *, as_json: bool) -> int:
    folder = directory / f"man{SECTION}"
    pages = {"tidemill": overview_page(list(VERBS))}
    pages |= {f"tidemill-{verb.replace(' ', '-')}": page(verb) for verb in VERBS}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            (folder / f"{name}.{SECTION}").write_text(text, encoding="utf-8")
    except OSError as error:
        raise SiteError(f"failed to write `{folder}`: {error.strerror}", transient=False) from error
    if as_json:
        show_json([str(folder / f"{name}.{SECTION}") for name in pages])
    else:
        say(
            f"wrote {len(pages)} pages to `{folder}`; `man tidemill-run` shows one if `{directory}` is on $MANPATH"
        )
    return 0


def page(verb: str) -> str:
    """The page of a verb, in roff."""
    command = load(verb)
    parser = parser_of(verb, command)
    positional = " ".join(_positional(each) for each in parser._get_positional_actions())
    about = VERBS[verb][1]
    lines = [
        *_head(f"tidemill-{verb.replace(' ', '-')}", about),
        ".SH SYNOPSIS",
        f".B tidemill {_text(verb)}",
        _text(f"[OPTIONS] {positional}".rstrip()),
        ".SH DESCRIPTION",
        _text(about[0].upper() + about[1:] + "."),
        ".SH OPTIONS",
    ]
    for action in parser._actions:
        names = ", ".join(action.option_strings) or str(action.metavar)
        value = f" {action.metavar}" if action.option_strings and action.nargs != 0 and action.metavar else ""
        lines += [".TP", f"\\fB{_text(names)}\\fR{_text(value)}", _text(action.help or "")]
    lines += [".SH EXAMPLE", ".nf", _text(command.example), ".fi"]
    return "\n".join([*lines, *_foot()]) + "\n"


def overview_page(verbs: list[str]) -> str:
    """The page of `tidemill`, or of a family of verbs: all of them by group, in roff."""
    lines = [
        *_head("tidemill", "run many-task science in the idle nodes of supercomputers"),
        ".SH SYNOPSIS",
        ".B tidemill",
        "VERB [OPTIONS]",
    ]
    for group, members in GROUPS.items():
        named = [verb for verb in members if verb in verbs]
        lines += [f".SH {_text(group.upper())}"] if named else []
        for verb in named:
            lines += [".TP", f"\\fBtidemill {_text(verb)}\\fR", _text(members[verb][1])]
    return "\n".join([*lines, *_foot()]) + "\n"


def _head(name: str, about: str) -> list[str]:
    return [
        f'.TH "{_text(name.upper())}" "{SECTION}" "" "Tidemill {__version__}" "Tidemill"',
        ".SH NAME",
        f"{_text(name)} \\- {_text(about)}",
    ]


def _foot() -> list[str]:
    lines = [".SH EXIT STATUS"]
    for code, meaning in EXIT_CODES:
        lines += [".TP", f"\\fB{code}\\fR", _text(meaning)]
    return [
        *lines,
        ".SH SEE ALSO",
        _text("tidemill(1); `tidemill VERB --help`; docs/cli.md of the distribution"),
    ]


def _text(text: str) -> str:
    """Text in roff: backslashes, hyphens, and dots or quotes that would start a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _positional(action: argparse.Action) -> str:
    name = str(action.metavar)
    if action.nargs == argparse.REMAINDER:
        return f"{name} [ARG ...]"
    return {"?": f"[{name}]", "*": f"[{name} ...]"}.get(str(action.nargs), name)


COMMANDS = {"man": Command(define, run, "tidemill man run", talks=False)}
