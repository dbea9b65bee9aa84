"""Write docs/files.md, the keys of application files and job files, from `tidemill.model`; `--check` compares."""

from __future__ import annotations

import ast
import json
import sys
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from page import entry, settle
from remarks import remarks_of

from tidemill.config.addressee import Occasion
from tidemill.model import application, job

MODEL = Path(__file__).parent.parent / "src" / "tidemill" / "model"
HEAD = """# Application files and job files

This reference lists the keys of application files and job files.

<!-- Drawn by `make gen` from `src/tidemill/model`: edit that. -->

An unknown key is an error that names the nearest one.

An **application file**, `SITE/apps/NAME.toml`, is what a site's staff approve; `tidemill app check FILE` reads
one and prints the digests. A **job file** is what `tidemill submit FILE` reads: one `[[job]]` table for each job with
the keys of a job below, and at the top, all optional, `campaign` (its name), `shares` (its weight in the fair share),
`[[notify]]` (addressees of [notices](notifications.md)) and `[defaults]` (keys of every job without its own).
In a job file a job may also have `repeat`, the number of such jobs.

A key that has no default, and is not required, may be left out; `none = X` says that X applies then.
[Approve a program](applications.md#approve-a-program) has a complete file of each kind.
"""
SECTIONS = [
    ("An application", "application.py", "Application"),
    ("A parameter of an application: `[parameters.NAME]`", "application.py", "Parameter"),
    ("What a line may be: `line`, `[columns.K]`", "application.py", "LineText"),
    ("A job: `[[job]]`", "job.py", "JobSpec"),
    ("Resources of a slot: `[resources]`", "job.py", "Resources"),
    ("What a command's shell sets: `[job.shell]`", "job.py", "Shell"),
    ("An input: `[[job.inputs]]`", "job.py", "Input"),
    ("An output: `[[outputs]]`", "job.py", "Output"),
    ("An addressee of notices of the campaign: `[[notify]]`", "notification.py", "Subscription"),
]


class Row(NamedTuple):
    """One key: its type and default as a reader writes them, and the remark beside it."""

    key: str
    type: str
    default: str | None
    remark: str


def type_text(annotation: ast.expr) -> str:
    """A type as its reader writes it: the words of an enumeration, `table` for a record."""
    text = ast.unparse(annotation).removesuffix(" | None").removesuffix(" | msgspec.UnsetType")
    if text == "list[Occasion]":
        return "list of " + ", ".join(f"`{each.value}`" for each in Occasion)
    if text == "Share":
        return "float, above 0, at most 1"
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "list":
        inner = annotation.slice
        if isinstance(inner, ast.Subscript) and ast.unparse(inner.value) == "Literal":
            return "list of " + ", ".join(f"`{each}`" for each in ast.literal_eval(inner.slice))
    if text.startswith("Annotated["):
        return bounded(annotation.left if isinstance(annotation, ast.BinOp) else annotation)
    kind = getattr(application, text, None) or getattr(job, text, None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(f"`{each.value}`" for each in kind)
    return "table" if kind is not None else text.replace("str", "text")


def bounded(annotation: ast.expr) -> str:
    """An annotated number as its reader writes it: `int, at least 8`. Raises LookupError for other bounds."""
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple):
        kind, meta = annotation.slice.elts
        if isinstance(meta, ast.Call) and [each.arg for each in meta.keywords] == ["ge"]:
            return f"{ast.unparse(kind)}, at least {ast.unparse(meta.keywords[0].value)}"
    raise LookupError(f"`{ast.unparse(annotation)}` has bounds that this page cannot name yet")


def as_toml(value: ast.expr) -> str:
    """A default as a TOML file would write it."""
    if ast.unparse(value) == "msgspec.UNSET":
        return "none"
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        module = application if hasattr(application, value.value.id) else job
        return json.dumps(getattr(module, value.value.id)[value.attr].value)
    if isinstance(value, ast.Constant):
        return "none" if value.value is None else json.dumps(value.value)
    return "{}" if isinstance(value, ast.Call) else ast.unparse(value)


def rows(file: str, record: str) -> tuple[str, list[Row]]:
    """The docstring of a record and its keys. Raises LookupError where a key has no remark."""
    source = (MODEL / file).read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == record:
            remarks = remarks_of(node, lines)
            found = []
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    default = as_toml(each.value) if each.value is not None else None
                    key = each.target.id
                    if key not in remarks:
                        raise LookupError(f"`{record}.{key}` has no remark: say behind `#:` what it is for")
                    found.append(Row(key, type_text(each.annotation), default, remarks[key]))
            return ast.get_docstring(node) or "", found
    raise LookupError(f"{file} holds no record `{record}`")


def drawn() -> str:
    """The whole page: one list per record."""
    parts = [HEAD]
    for title, file, record in SECTIONS:
        meaning, keys = rows(file, record)
        lines = [entry(f"`{row.key}`", row.type, row.default, row.remark) for row in keys]
        parts.append("\n".join([f"## {title}", "", meaning, "", *lines, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(settle("files.md", drawn()))
