"""The `#:` remarks beside and above the fields of a record, from its source."""

from __future__ import annotations

import ast


def remarks_of(record: ast.ClassDef, lines: list[str]) -> dict[str, str]:
    """Field -> remark: what follows `#:` on any line of the field, else the lines of `#:` above it.

    `lines` are those of the whole source. Raises LookupError for a remark that belongs to no field.
    """
    fields = [
        each for each in record.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
    found: dict[str, str] = {}
    taken: set[int] = set()
    for field in fields:
        first, last = field.lineno - 1, field.end_lineno or field.lineno
        top = first
        while lines[top - 1].lstrip().startswith("#:"):
            top -= 1
        own = [number for number in range(top, last) if "#:" in lines[number]]
        taken.update(own)
        if own and isinstance(field.target, ast.Name):
            found[field.target.id] = "\n".join(lines[number].partition("#:")[2].strip() for number in own)
    for number in range(record.lineno - 1, record.end_lineno or record.lineno):
        if "#:" in lines[number] and number not in taken:
            raise LookupError(
                f"`{record.name}` has a remark that belongs to no field: `{lines[number].strip()}`"
            )
    return found
