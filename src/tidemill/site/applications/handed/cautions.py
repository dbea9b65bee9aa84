"""What in a sound application file may still let a submitter choose code or options: warnings for its author. Pure.

An approved program runs in a work directory without inputs, so what is named here is dangerous only together with
something else: a file that the program itself writes there, a child process, a wide pattern. The names that
interpreters read are those of their manuals: ROOT's TROOT and TEnv, gdb(1), make(1), R's Startup, octave(1), gnuplot.
A warning that is wrong is worse than none: rules are narrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidemill.model.application import Application, ParameterType
from tidemill.model.handed import takes
from tidemill.model.legal import shown
from tidemill.model.pattern import Verdict, check_pattern
from tidemill.site.applications.handed.command import ApprovedCommand, started
from tidemill.site.applications.handed.intake import SAFE_PATH
from tidemill.site.applications.templates import COLUMN, INPUT, Template

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
_ASSIGNMENT = re.compile(
    r"""\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)=(?:"(?P<double>[^"`\\]*)"|(?P<plain>[^\s"'`\\;&|<>()\#]*))\s*"""
)
"""A line of `setup` that sets one variable and does nothing else."""
_ABSOLUTE = ("/", "$")
_PRELOADS = ("LD_PRELOAD", "LD_AUDIT")
_EXPANSION = re.compile(r"\$\{[^{}]*\}")
_NASTY_NAMES = ("json.py", "sitecustomize.py", "rootlogon.C", "Makefile", "libm.so.6", "conftest.py", "a.out")
_NASTY_LINES = ("-c", "-cimport os", "--help", "-", "-e1", "-x=1", "-I/tmp", "-f/dev/stdin", "-1")
_NASTY_VALUES = _NASTY_LINES[:-1]  # a parameter may be a number


def cautions(app: Application, inputs: list[str]) -> list[str]:
    """What to warn the author of an application file of; `inputs`: names and globs that it takes."""
    return [
        *_of_taken(app, inputs),
        *_of_rules(app),
        *_of_arguments(app),
        *_of_environment(app),
        *_of_setup(app),
        *_of_inputs(inputs),
        *_of_lines(app),
        *_of_parameters(app),
    ]


def _names(text: str) -> list[str]:
    return Template.parse(text).names()


def _is_of_line(name: str) -> bool:
    return name == "line" or COLUMN.fullmatch(name) is not None


def _of_taken(app: Application, inputs: list[str]) -> Iterator[str]:
    line = next((each for each in app.arguments if any(map(_is_of_line, _names(each)))), None)
    if line is not None and not inputs:
        yield f"`arguments` has `{line}`, and `inputs` names no input whose lines these could be"
    places = {"arguments": app.arguments, "outputs": [each.path for each in app.outputs]}
    for key, texts in places.items():
        named = dict.fromkeys(name for text in texts for name in _names(text) if name.startswith(INPUT))
        for name in named:
            of = name.removeprefix(INPUT)
            if not takes(inputs, of):
                yield f"`{key}` has `{{{name}}}`, and `inputs` lacks `{of}`: every job would fail"


def _of_rules(app: Application) -> Iterator[str]:
    used = {name for text in app.arguments for name in _names(text) if _is_of_line(name)}
    columns = {int(name.partition(".")[2]) for name in used if name != "line"}
    unused = [] if app.line is None or "line" in used else [("line", "{line}")]
    unused += [(f"columns.{key}", f"{{column.{key}}}") for key in app.columns if int(key) not in columns]
    for key, name in unused:
        yield f"`{key}` has no effect: `arguments` has no `{name}`"


def _of_arguments(app: Application) -> Iterator[str]:
    it = started(app)
    yield from _of_code(app, it)
    file = it.runs
    name = None if file is None else _input_of(file)
    if name is not None:
        yield f"`{it.program}` runs the input `{name}`, so that jobs choose the code: name a file of the site instead"
    read, switches = _READS.get(it.program, ("", frozenset()))
    if read and not any(each.partition("=")[0] in switches for each in app.arguments):
        advice = f"add `{min(switches)}` to `arguments`" if switches else "let no payload write such a file"
        yield f"`{it.program}` reads {read} of the work directory: {advice}"


def _of_code(app: Application, it: ApprovedCommand) -> Iterator[str]:
    if it.module is not None and any(_is_free(app, name) for name in _names(it.module)):
        yield (
            f"`arguments` has `-m {it.module}`, so that jobs choose the module: each that Python finds is code; name "
            "the module, or the file of the program as `script`"
        )
    elif it.module is not None and not it.isolated:
        yield (
            "`arguments` has `-m`: before version 3.11, Python looks for the module in the work directory first; "
            "name the file of the program as `script` instead"
        )
    if it.code is not None:
        yield f"`arguments` has `{shown(it.code)}`: {_CODE}"


def _is_free(app: Application, name: str) -> bool:
    """Whether jobs choose the text that a template becomes."""
    parameter = app.parameters.get(name)
    return _is_of_line(name) or (parameter is not None and parameter.type is ParameterType.STRING)


def _input_of(text: str) -> str | None:
    """The input whose path an argument is; None = it is something else."""
    pieces = Template.parse(text).pieces
    name = pieces[0][1] if len(pieces) == 1 and not pieces[0][0] else None
    return name.removeprefix(INPUT) if name is not None and name.startswith(INPUT) else None


def _of_environment(app: Application) -> Iterator[str]:
    for name, value in sorted(app.environment.items()):
        if name == SAFE_PATH and not value:
            yield f"`environment.{name}` is empty: Python then looks for modules in the work directory"
        yield from _of_search_path(f"`environment.{name}`", name, value)


def _of_setup(app: Application) -> Iterator[str]:
    for line in app.setup:
        match = _ASSIGNMENT.fullmatch(line)
        if match is None:
            continue
        value = match["plain"] if match["double"] is None else match["double"]
        if "$(" not in value:
            absolute = (*_ABSOLUTE, "~") if match["double"] is None else _ABSOLUTE
            yield from _of_search_path(f"`setup`: `{match['name']}`", match["name"], value, absolute)


def _of_search_path(what: str, name: str, value: str, absolute: tuple[str, ...] = _ABSOLUTE) -> Iterator[str]:
    if not _SEARCH_PATH.fullmatch(name) or name == SAFE_PATH or (not value and name != "PATH"):
        return
    elements = _EXPANSION.sub("$", value).split(":")
    if name in _PRELOADS:  # the loader seeks mere names in its own directories
        elements = [each for each in re.split("[: ]", value) if "/" in each]
    for wrong in dict.fromkeys(each for each in elements if not each.startswith(absolute)):
        element = "an empty element" if not wrong else f"the relative element `{shown(wrong)}`"
        place = "" if not wrong else " or is below it"
        yield f"{what} has {element}, which means the work directory{place}: give absolute paths"


def _of_inputs(inputs: list[str]) -> Iterator[str]:
    for each in inputs:
        name = next((name for name in _NASTY_NAMES if takes([each], name)), None)
        if name == each:
            yield f"`inputs` has `{each}`: programs run or load a file of this name by themselves; choose another name"
        elif name is not None:
            yield f"`inputs` has `{each}`, so that jobs may give `{name}`: list the names that the program reads"


def _of_lines(app: Application) -> Iterator[str]:
    rules = {"line": app.line, **{f"columns.{name}": each for name, each in app.columns.items()}}
    for key, rule in rules.items():
        if rule is not None:
            yield from _of_pattern(key, rule.pattern, _NASTY_LINES)


def _of_parameters(app: Application) -> Iterator[str]:
    end = app.arguments.index("--") if "--" in app.arguments else len(app.arguments)
    begin = {
        name for text in app.arguments[:end] for before, name in Template.parse(text).pieces[:1] if not before
    }
    for name, parameter in app.parameters.items():
        if name in begin and parameter.type is ParameterType.STRING and parameter.pattern is not None:
            yield from _of_pattern(f"parameters.{name}", parameter.pattern, _NASTY_VALUES)


def _of_pattern(key: str, pattern: str, nasty: tuple[str, ...]) -> Iterator[str]:
    legal = next((text for text in nasty if check_pattern(pattern, text) is Verdict.MATCHES), None)
    if legal is not None:
        yield (
            f"`{key}.pattern` permits `{legal}`, which programs may take as an option: "
            "begin the pattern with what a value may begin with, such as `[A-Za-z0-9/]`"
        )
