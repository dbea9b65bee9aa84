"""`tidemill completion SHELL`: the script that completes verbs, options, jobs, campaigns, sites and applications.

The scripts ask `tidemill --complete WORD ...` what the last word may be: a candidate a line, a tab, what it is.
"""

from __future__ import annotations

import argparse
import itertools
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tidemill.cli.arguments import Command, Parser, help_of
from tidemill.cli.terminal import hint, show_lines, stdout_is_terminal
from tidemill.cli.verbs import VERBS, family_of, load, parser_of
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.client.client import Client

IDS_MAX = 200
"""Newest jobs and campaigns that are offered."""

JOBS, CAMPAIGNS, SITES, APPS, STATES = "jobs", "campaigns", "sites", "apps", "states"
OF_OPTION = {
    "--campaign": CAMPAIGNS,
    "--resume": CAMPAIGNS,
    "--job": JOBS,
    "--after": JOBS,
    "--site": SITES,
    "--home-site": SITES,
    "--app": APPS,
    "--state": STATES,
}
OF_METAVAR = {"JOB": (JOBS,), "NAME|JOB": (CAMPAIGNS, JOBS), "APP": (APPS,), "SITE": (SITES,)}

SCRIPTS = {
    "bash": """_tidemill() {
    local IFS=$'\\n'
    COMPREPLY=($(tidemill --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1))
}
complete -o default -F _tidemill tidemill
""",
    "zsh": """#compdef tidemill
_tidemill() {
    local line
    local -a found
    for line in "${(@f)$(tidemill --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -n $line ]] && found+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    done
    if (( ${#found} )); then _describe tidemill found; else _files; fi
}
compdef _tidemill tidemill
""",
    "fish": """function __tidemill_complete
    set -l words (commandline --tokens-expanded --cut-at-cursor 2>/dev/null; or commandline -opc)
    tidemill --complete $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c tidemill -a '(__tidemill_complete)'
""",
}
INSTALL = {
    "bash": "tidemill completion bash > ~/.local/share/bash-completion/completions/tidemill",
    "zsh": "tidemill completion zsh > DIR/_tidemill, where DIR is in $fpath",
    "fish": "tidemill completion fish > ~/.config/fish/completions/tidemill.fish",
}


def define(parser: Parser) -> None:
    """Options of `completion`."""
    parser.add_argument("shell", choices=sorted(SCRIPTS), metavar="SHELL", help="bash, zsh or fish")


def run(args: Namespace) -> int:
    """Print the script."""
    show_lines(SCRIPTS[args.shell].removesuffix("\n"))
    if stdout_is_terminal():
        hint(f"to use it in each new shell: {INSTALL[args.shell]}")
    return 0


def complete(words: Sequence[str]) -> list[str]:
    """Candidates for the last word of a command line, each with what it is; none of what files are completed for."""
    typed = words[-1] if words else ""
    before = list(words[:-1])
    if "--" in before:  # a command of its own
        return []
    return sorted(f"{name}\t{about}" for name, about in _candidates(before, typed) if name.startswith(typed))


def _candidates(before: list[str], typed: str) -> Iterator[tuple[str, str]]:
    if not before:
        yield from _first_words()
        return
    if len(before) == 1:
        for member in family_of(before[0]):
            yield member.partition(" ")[2], VERBS[member][1]
    verb = next((each for each in (" ".join(before[:2]), before[0]) if each in VERBS), None)
    if verb is None:
        return
    parser = parser_of(verb, load(verb))
    given = before[len(verb.split()) :]
    option = next((each for each in parser._actions if given and given[-1] in each.option_strings), None)
    if option is not None and option.nargs != 0:
        yield from _values(option, given[-1], given)
        return
    if typed.startswith("-"):
        for action in parser._actions:
            names = [name for name in action.option_strings if name.startswith("--")]
            yield from ((name, help_of(action)) for name in names if action.help != argparse.SUPPRESS)
        return
    for action in parser._get_positional_actions():
        yield from _values(action, "", given)


def _first_words() -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for verb, (_, about) in VERBS.items():
        first = verb.partition(" ")[0]
        if first not in seen:
            seen.add(first)
            yield (
                first,
                about if first == verb else ", ".join(each.partition(" ")[2] for each in family_of(first)),
            )


def _values(action: argparse.Action, option: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What the value of an option or positional argument may be."""
    if action.choices is not None:
        yield from ((str(each), "") for each in action.choices)
        return
    kinds = (OF_OPTION[option],) if option in OF_OPTION else OF_METAVAR.get(str(action.metavar), ())
    if not kinds:
        return
    if STATES in kinds:
        from tidemill.model.state import JobState

        yield from ((str(each), "") for each in JobState)
        return
    try:
        yield from _known(_client(given), kinds)
    except TidemillError:  # no server, or it does not answer: nothing is known
        return


def _client(given: Sequence[str]) -> Client:
    from pathlib import Path

    from tidemill.client.client import Client

    named = dict(itertools.pairwise(given))
    home, secret = named.get("--home"), named.get("--secret-file")
    return Client(
        named.get("--server"),
        secret_file=None if secret is None else Path(secret),
        home=None if home is None else Path(home),
        retry_s=0.0,
    )


def _known(client: Client, kinds: Sequence[str]) -> Iterator[tuple[str, str]]:
    if JOBS in kinds:
        for row in client.jobs(limit=IDS_MAX):
            yield str(row.id), f"{row.state} {row.name or row.app} of {row.campaign}"
    if CAMPAIGNS in kinds:
        for each in client.campaigns()[:IDS_MAX]:
            yield each.name, f"{each.events_done} of {each.events} events done"
    if SITES in kinds:
        yield from ((each.name, each.state) for each in client.sites())
    if APPS in kinds:
        yield from ((each.app.name, each.app.help) for each in client.applications())


COMMANDS = {
    "completion": Command(define, run, "tidemill completion bash > ~/.local/share/bash-completion/completions/tidemill",
                          talks=False)
}  # fmt: skip
