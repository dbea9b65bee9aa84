"""What jobs hand to an approved program besides parameters, as its file says: inputs, and lines for arguments."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePath
from typing import NamedTuple

from tidemill.config import BACKSLASHES
from tidemill.errors import ConfigError
from tidemill.model.application import Application, LineText
from tidemill.model.handed import TAKEN_MAX, glob_fault, line_bytes_max, line_pattern_fault
from tidemill.model.legal import shown
from tidemill.site.applications.templates import COLUMN, INPUT, INPUTS, Template
from tidemill.wire.node import LineRule

PARTS = "part-*"
"""Names of the inputs of a merge."""

OTHERS = "*"
"""The rule for the line and all columns without one of their own (crates/slot/src/line.rs)."""

PYTHON = re.compile(r"(?:python|pypy)[0-9.]*(?:-.*)?")
"""Names of the interpreter."""

SAFE_PATH = "PYTHONSAFEPATH"
"""Python then looks for modules neither in the work directory nor beside the script (3.11 and later)."""

_FIRST_BYTES = 256


def taken_inputs(path: Path, app: Application) -> list[str]:
    """Names and globs of the inputs that the application takes. Raises ConfigError naming the file, the key and what is
    wrong."""
    if app.inputs is None:
        return _named(app)
    if len(app.inputs) > TAKEN_MAX:
        raise ConfigError(f"{path}: `inputs` has more than {TAKEN_MAX} names")
    for each in app.inputs:
        fault = glob_fault(each)
        if fault is not None:
            raise ConfigError(f"{path}: `inputs`: `{shown(each)}`: {fault.text}", hint=fault.hint)
    return app.inputs


def _named(app: Application) -> list[str]:
    texts = [*app.arguments, *(output.path for output in app.outputs)]
    names = [name for text in texts for name in Template.parse(text).names()]
    found = {name.removeprefix(INPUT): None for name in names if name.startswith(INPUT)}
    return [*found, PARTS] if INPUTS in names else [*found]


def check_lines(path: Path, app: Application) -> None:
    """Raises ConfigError for a rule for lines that cannot be used."""
    rules = {f"columns.{name}": rule for name, rule in app.columns.items()}
    for name in app.columns:
        if not COLUMN.fullmatch(f"column.{name}"):
            raise ConfigError(
                f"{path}: `columns.{shown(name)}` is not the number of a column",
                hint="fields of a line, between tabs, are counted from 0: `columns = { 1 = { pattern = ... } }`",
            )
    for key, rule in {"line": app.line, **rules}.items():
        fault = None if rule is None else line_pattern_fault(rule.pattern)
        if rule is not None and fault is not None:
            quoted = f"`{key}.pattern` is `{shown(_visible(rule.pattern))}`"
            hint = fault.hint if rule.pattern.isprintable() else BACKSLASHES
            raise ConfigError(f"{path}: {quoted}, which cannot be used: {fault.text}", hint=hint)


def _visible(pattern: str) -> str:
    """The pattern with escapes for what TOML made of escapes in double quotes, such as a tab."""
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in pattern)


def line_rules(app: Application) -> dict[str, LineRule]:
    """What the slot checks before a line or a column becomes part of an argument."""

    def rule(of: LineText | None) -> LineRule:
        pattern = None if of is None else of.pattern
        return LineRule(pattern=pattern, bytes_max=line_bytes_max(pattern))

    line = {} if app.line is None else {"line": rule(app.line)}
    return {OTHERS: rule(None), **line, **{str(int(name)): rule(of) for name, of in app.columns.items()}}


class PythonPlaces(NamedTuple):
    """What keeps Python away from the work directory. `first`: begins `PYTHONPATH`; None = nothing does."""

    environment: dict[str, str]
    first: str | None


def python_places(app: Application, given: dict[str, str]) -> PythonPlaces:
    """For a program that is Python or a script of Python; `given`: what application and site set. Others start Python
    as they need it: their scripts elsewhere find the modules beside them.

    Python's safe path leaves out the directory of the script, too, where its own modules are: `first` names it.
    """
    script = app.script or app.executable
    is_script = _is_python_script(script, in_container=app.container is not None)
    if not is_script and not PYTHON.fullmatch(PurePath(app.executable).name):
        return PythonPlaces({}, None)
    if not given.get(SAFE_PATH, "1"):
        return PythonPlaces({}, None)  # the application's own choice, of which `app check` warns
    return PythonPlaces({SAFE_PATH: "1"}, _beside(app, script if is_script else app.script))


def _beside(app: Application, script: str | None) -> str | None:
    """The directory in which Python would look for modules of a script; None = there is none."""
    if not script:
        return None
    real = script if app.container is not None else os.path.realpath(script)
    folder = str(Path(real).parent)
    return None if ":" in folder else folder


def _is_python_script(path: str, *, in_container: bool) -> bool:
    if path.endswith(".py"):
        return True
    if in_container:
        return False
    try:
        with Path(path).open("rb") as file:
            first = file.read(_FIRST_BYTES).partition(b"\n")[0]
    except OSError:  # its digest is compared in any case, with a message
        return False
    return first.startswith(b"#!") and b"python" in first
