"""`tidemill man`: manual pages, made from the same definitions as `--help` and docs/cli.md."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import textwrap
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tidemill import __version__
from tidemill.cli.arguments import Command, Parser, help_of
from tidemill.cli.suggestions import suggested
from tidemill.cli.terminal import say, show_json, show_lines, stdout_is_terminal
from tidemill.cli.verbs import GROUPS, VERBS, family_of, load, parser_of
from tidemill.errors import ConfigError, SiteError
from tidemill.files import make_readable, write_whole

SECTION = "1"
WIDTH = 78  #: of a page in a pipe, as man(1) has it
EXIT_CODES = (
    ("0", "done"),
    ("1", "the job failed, or was canceled; `tidemill run` of one event exits as its command did"),
    ("2", "usage or configuration is wrong"),
    ("3", "site, service or network: try again"),
    ("70", "a bug of Tidemill, or of an extension; the message names the file with the traceback"),
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
    found = page(verb) if verb in VERBS else overview_page(family_of(verb) if verb else list(VERBS))
    if not (stdout_is_terminal() and _view(roff(found))):
        show_lines(plain(found))
    return 0


def _view(text: str) -> bool:
    """Show a page with man(1); False if it cannot, such as where it lacks groff(1)."""
    viewer = shutil.which("man")
    if viewer is None:
        return False
    with tempfile.NamedTemporaryFile("w", suffix=f".{SECTION}") as file:
        file.write(text)
        file.flush()
        return (
            subprocess.run([viewer, "-l", file.name], check=False, stderr=subprocess.DEVNULL).returncode == 0
        )


def _write_all(directory: Path, *, as_json: bool) -> int:
    folder = directory / f"man{SECTION}"
    pages = {each.name: roff(each) for each in (overview_page(list(VERBS)), *map(page, VERBS))}
    try:
        make_readable(folder)
        for name, text in pages.items():
            write_whole(folder / f"{name}.{SECTION}", text.encode(), mode=0o644)
    except OSError as error:
        raise SiteError(f"failed to write `{folder}`: {error.strerror}", transient=False) from error
    if as_json:
        show_json([str(folder / f"{name}.{SECTION}") for name in pages])
    else:
        say(
            f"wrote {len(pages)} pages to `{folder}`; `man tidemill-run` shows one if `{directory}` is on $MANPATH"
        )
    return 0


class Section(NamedTuple):
    """A section: a text, then terms with what they mean, then an example as it is typed."""

    title: str
    text: str = ""
    items: Sequence[tuple[str, str]] = ()
    example: str = ""


class ManualPage(NamedTuple):
    """A page, whatever shows it."""

    name: str
    about: str
    sections: list[Section]


def page(verb: str) -> ManualPage:
    """The page of a verb."""
    command = load(verb)
    parser = parser_of(verb, command)
    positional = " ".join(_positional(each) for each in parser._get_positional_actions())
    about = VERBS[verb][1]
    options = []
    for action in parser._actions:
        names = ", ".join(action.option_strings) or str(action.metavar)
        value = f" {action.metavar}" if action.option_strings and action.nargs != 0 and action.metavar else ""
        options.append((f"{names}{value}", help_of(action)))
    sections = [
        Section("SYNOPSIS", f"tidemill {verb} [OPTIONS] {positional}".rstrip()),
        Section("DESCRIPTION", about[0].upper() + about[1:] + "."),
        Section("OPTIONS", items=options),
        Section("EXAMPLE", example=command.example),
    ]
    return ManualPage(f"tidemill-{verb.replace(' ', '-')}", about, [*sections, *_LAST])


def overview_page(verbs: list[str]) -> ManualPage:
    """The page of `tidemill`, or of a family of verbs: all of them by group."""
    sections = [Section("SYNOPSIS", "tidemill VERB [OPTIONS]")]
    for group, members in GROUPS.items():
        named = [(f"tidemill {verb}", members[verb][1]) for verb in members if verb in verbs]
        if named:
            sections.append(Section(group.upper(), items=named))
    about = "run many-task science in the idle nodes of supercomputers"
    return ManualPage("tidemill", about, [*sections, *_LAST])


_LAST = (
    Section("EXIT STATUS", items=EXIT_CODES),
    Section("SEE ALSO", "tidemill(1); `tidemill VERB --help`; docs/cli.md of the distribution"),
)


def roff(shown: ManualPage) -> str:
    """A page as man(1) reads it."""
    lines = [
        f'.TH "{_text(shown.name.upper())}" "{SECTION}" "" "Tidemill {__version__}" "Tidemill"',
        ".SH NAME",
        f"{_text(shown.name)} \\- {_text(shown.about)}",
    ]
    for each in shown.sections:
        lines.append(f".SH {_text(each.title)}")
        lines += [_text(each.text)] if each.text else []
        for term, meaning in each.items:
            lines += [".TP", f"\\fB{_text(term)}\\fR", _text(meaning)]
        lines += [".nf", _text(each.example), ".fi"] if each.example else []
    return "\n".join(lines) + "\n"


def plain(shown: ManualPage, width: int = WIDTH) -> str:
    """A page as man(1) prints it into a pipe."""
    head = f"{shown.name.upper()}({SECTION})"
    lines = [head + "Tidemill".center(width - 2 * len(head)) + head, "", "NAME"]
    lines += _wrapped(f"{shown.name} - {shown.about}", 7, width)
    for each in shown.sections:
        lines += ["", each.title]
        lines += _wrapped(each.text, 7, width) if each.text else []
        for number, (term, meaning) in enumerate(each.items):
            lines += [""] if number else []
            lines += [f"{'':7}{term}", *_wrapped(meaning, 14, width)]
        lines += [f"{'':7}{each.example}"] if each.example else []
    return "\n".join(lines)


def _wrapped(text: str, indent: int, width: int) -> list[str]:
    space = " " * indent
    return textwrap.wrap(
        text,
        width,
        initial_indent=space,
        subsequent_indent=space,
        break_long_words=False,
        break_on_hyphens=False,
    )


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
