"""What the command line of an approved program starts, behind `env` and the like, and which code it names. Pure.

Options are read as the manuals have them: env(1), nice(1), timeout(1), nohup(1), python(1), bash(1), perl(1), make(1).
What is not understood is taken for nothing: it leads to no warning.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import NamedTuple

from tidemill.model.application import Application
from tidemill.site.applications.handed.intake import PYTHON

_WRAPPERS = {
    "env": re.compile(r"-u|--unset|-C|--chdir"),
    "nice": re.compile(r"-n|--adjustment"),
    "timeout": re.compile(r"-[ks]|--kill-after|--signal"),
    "nohup": re.compile(r"(?!)"),
    "setsid": re.compile(r"(?!)"),
    "stdbuf": re.compile(r"-[ioe]|--input|--output|--error"),
}
"""Programs that start another one -> their options whose value is the next word."""
_SPLITS = re.compile(r"-[a-z0-9]*S.*|--split-string.*")  # of `env`: a whole command line in one word
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)

_SHELL = re.compile(r"(?:ba|da|k|z|c|tc|fi)?sh")
_SHELL_CODE = re.compile(r"-(?!norc|rcfile|restricted)[A-Za-z]*c[A-Za-z]*")
_NO_VALUE = re.compile(r"(?!)")
_SCRIPTED = (
    (_SHELL, _SHELL_CODE, re.compile(r"[-+][A-Za-z]*[oO]|--?rcfile|--init-file")),
    (re.compile(r"perl[0-9.]*"), re.compile(r"-[acnlpswST0-7]*[eE].*", re.DOTALL), _NO_VALUE),
    (re.compile(r"ruby[0-9.]*"), re.compile(r"-[aclnpswS]*e.*", re.DOTALL), _NO_VALUE),
    (re.compile(r"node"), re.compile(r"-e|-p|-pe|--eval(?:=.*)?|--print", re.DOTALL), _NO_VALUE),
    (re.compile(r"lua[0-9.]*"), re.compile(r"-e.*", re.DOTALL), _NO_VALUE),
    (re.compile(r"php[0-9.]*"), re.compile(r"-r.*", re.DOTALL), _NO_VALUE),
    (re.compile(r"julia"), re.compile(r"-e|-E|--eval(?:=.*)?|--print", re.DOTALL), _NO_VALUE),
    (re.compile(r"Rscript"), re.compile(r"-e"), _NO_VALUE),
    (re.compile(r"tclsh[0-9.]*"), _NO_VALUE, _NO_VALUE),
)
"""Interpreters whose script is the first word that does not begin an option: names, options with code, options whose
value is the next word."""
_ANYWHERE = (
    (re.compile(r"R"), re.compile(r"-e")),
    (re.compile(r"octave"), re.compile(r"--eval(?:=.*)?", re.DOTALL)),
    (re.compile(r"root(?:\.exe)?"), re.compile(r"-e")),
)
"""Interpreters whose options may stand behind files."""
_MAKEFILE = re.compile(r"-f|--file|--makefile")
_MAKEFILE_IN_WORD = re.compile(r"(?:-f|--file=|--makefile=)(.+)", re.DOTALL)


class ApprovedCommand(NamedTuple):
    """`code`: the option behind which code stands; `module`: what Python runs by `-m`, `isolated`: from elsewhere than
    the work directory; `runs`: the file that is run, as an argument template."""

    program: str
    code: str | None = None
    module: str | None = None
    runs: str | None = None
    isolated: bool = False


def started(app: Application) -> ApprovedCommand:
    """What an application's command line starts."""
    script = [] if app.script is None else [app.script.replace("{", "{{").replace("}", "}}")]
    program, words = _unwrapped(PurePath(app.executable).name, [*script, *app.arguments])
    if PYTHON.fullmatch(program):
        return _python(program, words)
    if program in ("make", "gmake"):
        return ApprovedCommand(program, runs=_makefile(words))
    for names, code, with_value in _SCRIPTED:
        if names.fullmatch(program):
            options, rest = _leading(words, with_value)
            found = next((each for each in options if code.fullmatch(each)), None)
            return ApprovedCommand(program, code=found, runs=rest[0] if rest and found is None else None)
    for names, code in _ANYWHERE:
        if names.fullmatch(program) and app.script is None:  # options behind a script are the script's
            return ApprovedCommand(program, code=next((each for each in words if code.fullmatch(each)), None))
    return ApprovedCommand(program)


def _unwrapped(program: str, words: list[str]) -> tuple[str, list[str]]:
    while program in _WRAPPERS:
        options, rest = _leading(words, _WRAPPERS[program])
        if program == "env":
            if any(_SPLITS.fullmatch(each) for each in options):
                break
            while rest and _ASSIGNMENT.fullmatch(rest[0]):
                rest = rest[1:]
        if program == "timeout":
            rest = rest[1:]  # the time
        if not rest:
            break
        program, words = PurePath(rest[0]).name, rest[1:]
    return program, words


def _leading(words: list[str], with_value: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """The options at the start, without their values, and what follows them."""
    options: list[str] = []
    at = 0
    while at < len(words) and words[at][:1] in ("-", "+") and words[at] != "-":
        at += 1
        if words[at - 1] == "--":
            break
        options.append(words[at - 1])
        at += with_value.fullmatch(words[at - 1]) is not None
    return options, words[at:]


def _python(program: str, words: list[str]) -> ApprovedCommand:
    """Python's one-letter options may be joined, and `-c` and `-m` end them."""
    at, isolated = 0, False
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word, at = words[at], at + 1
        if word.startswith("--"):
            at += word == "--check-hash-based-pycs"
            continue
        letters = word.partition("{")[0]
        match = re.search(r"[cmWX]", letters)
        isolated = isolated or any(each in letters[: match.start() if match else None] for each in "IP")
        if match is None:
            continue
        if match[0] == "c":
            return ApprovedCommand(program, code=word[: match.end()])
        value = word[match.end() :] or (words[at] if at < len(words) else "")
        if match[0] == "m":
            return ApprovedCommand(program, module=value, isolated=isolated)
        at += not word[match.end() :]
    return ApprovedCommand(program, runs=words[at] if at < len(words) else None)


def _makefile(words: list[str]) -> str | None:
    for at, word in enumerate(words):
        if _MAKEFILE.fullmatch(word):
            return words[at + 1] if at + 1 < len(words) else None
        match = _MAKEFILE_IN_WORD.fullmatch(word)
        if match is not None:
            return match[1]
    return None
