"""What in a sound application file may still let a submitter choose code or options: warnings for its author. Pure.

An approved program runs in a work directory without inputs, so what is named here is dangerous only together with
something else: a file that the program itself writes there, a child process, a wide pattern. The names that
interpreters read are those of their manuals: ROOT's TROOT and TEnv, gdb(1), make(1), R's Startup, octave(1), gnuplot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from tidemill.model.application import Application
from tidemill.model.handed import takes
from tidemill.model.legal import shown
from tidemill.model.pattern import Verdict, check_pattern
from tidemill.site.applications.handed.intake import PYTHON, SAFE_PATH

_TAKES_CODE = re.compile(
    r"(?:ba|da|k|z|c|tc|fi)?sh|perl|ruby|node|lua[0-9.]*|tclsh|php|Rscript|R|julia|octave|root(?:\.exe)?"
)
_CODE_OPTIONS = {"-c", "-e", "-E", "--eval", "-lc", "-ec", "-p", "-r"}
_READS = {
    "root": ("`.rootrc` and `rootlogon.C`", frozenset({"-n"})),
    "root.exe": ("`.rootrc` and `rootlogon.C`", frozenset({"-n"})),
    "gdb": ("`.gdbinit`", frozenset({"-nx", "-n", "--nx", "-nh"})),
    "make": ("`GNUmakefile`, `makefile` and `Makefile`", frozenset({"-f", "--file", "--makefile"})),
    "gmake": ("`GNUmakefile`, `makefile` and `Makefile`", frozenset({"-f", "--file", "--makefile"})),
    "R": ("`.Rprofile` and `.RData`", frozenset({"--vanilla"})),
    "Rscript": ("`.Rprofile` and `.RData`", frozenset({"--vanilla"})),
    "octave": ("`.octaverc`", frozenset({"--norc", "-f", "--no-init-file"})),
    "gnuplot": ("`.gnuplot`", frozenset({"-d", "--default-settings"})),
    "matlab": ("`startup.m`", frozenset()),
}
"""Program -> files of the work directory that it runs or is set up by, and the options that keep it from that."""

_CODE = "what stands behind it is code; write it into a file and name that as `script`"
_SEARCH_PATH = re.compile(r".*PATH|LD_PRELOAD|LD_AUDIT|PYTHONSTARTUP|.*_MODULES?_DIRS?")
_NASTY_NAMES = ("json.py", "sitecustomize.py", "rootlogon.C", "Makefile", "libm.so.6", "conftest.py", "a.out")
_NASTY_LINES = ("-c", "-cimport os", "--help", "-", "-e1", "-x=1", "-I/tmp", "-f/dev/stdin", "-1")


def cautions(app: Application, inputs: list[str]) -> list[str]:
    """What to warn the author of an application file of; `inputs`: names and globs that it takes."""
    return [
        *_of_taken(app, inputs),
        *_of_arguments(app),
        *_of_environment(app),
        *_of_inputs(inputs),
        *_of_lines(app),
    ]


def _of_taken(app: Application, inputs: list[str]) -> Iterator[str]:
    line = next((each for each in app.arguments if "{line}" in each or "{column." in each), None)
    if line is not None and not inputs:
        yield f"`arguments` has `{line}`, and `inputs` names no input whose lines these could be"


def _of_arguments(app: Application) -> Iterator[str]:
    program = PurePath(app.executable).name
    words = [] if app.script is not None else app.arguments  # options behind a script are the script's
    options = [each for each in words if each.startswith("-")]
    if PYTHON.fullmatch(program) and any(each.startswith("-m") for each in options):
        yield (
            "`arguments` has `-m`: before version 3.11, Python looks for the module in the work directory first; "
            "name the file of the program as `script` instead"
        )
    if PYTHON.fullmatch(program) and any(each.startswith("-c") for each in options):
        yield f"`arguments` has `-c`: {_CODE}"
    elif _TAKES_CODE.fullmatch(program) and _CODE_OPTIONS & set(options):
        option = min(_CODE_OPTIONS & set(options))
        yield f"`arguments` has `{option}`: {_CODE}"
    read, switches = _READS.get(program, ("", frozenset()))
    if read and not any(each.partition("=")[0] in switches for each in app.arguments):
        advice = f"add `{min(switches)}` to `arguments`" if switches else "let no payload write such a file"
        yield f"`{program}` reads {read} of the work directory: {advice}"


def _of_environment(app: Application) -> Iterator[str]:
    for name, value in sorted(app.environment.items()):
        if name == SAFE_PATH and not value:
            yield f"`environment.{name}` is empty: Python then looks for modules in the work directory"
        if not _SEARCH_PATH.fullmatch(name) or name == SAFE_PATH:
            continue
        wrong = next((each for each in value.split(":") if not each.startswith(("/", "$"))), None)
        if wrong is not None:
            what = "an empty element" if not wrong else f"the relative element `{shown(wrong)}`"
            yield (
                f"`environment.{name}` has {what}, which means the work directory"
                + ("" if not wrong else " or is below it")
                + ": give absolute paths"
            )


def _of_inputs(inputs: list[str]) -> Iterator[str]:
    for each in inputs:
        name = next((name for name in _NASTY_NAMES if takes([each], name)), None)
        if name is not None:
            yield f"`inputs` has `{each}`, so that jobs may give `{name}`: list the names that the program reads"


def _of_lines(app: Application) -> Iterator[str]:
    rules = {"line": app.line, **{f"columns.{name}": each for name, each in app.columns.items()}}
    for key, rule in rules.items():
        if rule is None:
            continue
        legal = [text for text in _NASTY_LINES if check_pattern(rule.pattern, text) is Verdict.MATCHES]
        if legal:
            yield (
                f"`{key}.pattern` permits `{legal[0]}`, which programs may take as an option: "
                "begin the pattern with what a value may begin with, such as `[A-Za-z0-9/]`"
            )
