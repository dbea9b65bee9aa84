"""What PBS's commands print, as nested dictionaries of text. Pure.

The JSON of PBS 19 to 2025 is not always JSON, and values that look like numbers lose their quotes, so all numbers stay
the text that they were: a job named `1e5` is named `1e5`. Sources: qstat(1B), pbsnodes(8B), pbs_rstat(1B); openpbs
issues 2049 (`\\'` and `\\,`), 1255 (`005`, forty digits), 830 (quotes in comments), 2541 (`-t`), 2677 (keys twice).
What cannot be repaired is asked for again as text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from tidemill.batch.contract import FAR_FUTURE_S
from tidemill.errors import UNDECODABLE, ProtocolError
from tidemill.model.number import whole

Record = dict[str, Any]
"""Attributes: text, lists of text, or records."""

YEAR_S = 366 * 86400.0

_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.))', re.DOTALL)
_BARE = re.compile(r"([:\[,]\s*)(-?0\d+(?:\.\d+)?|[A-Za-z_][\w.@/-]*)(\s*[,}\]\n])")
_ATTRIBUTE = re.compile(r"^    ([A-Za-z_][\w.]*) = ?(.*)$")
_VARIABLE = re.compile(r"(?:^|,)([A-Za-z_][\w%()]*)=((?:(?!,[A-Za-z_][\w%()]*=).)*)", re.DOTALL)
_SIZE = re.compile(r"(\d{1,18}(?:\.\d+)?)\s*(b|kb|mb|gb|tb|pb|w|kw|mw|gw|tw|pw)?", re.IGNORECASE)
_AFTER_VARIABLES = {"reserve_rrule", "reserve_index", "reserve_count"}
"""Attributes of a reservation after its `Variable_List` (master_resv_attr_def.xml of OpenPBS) that are read here."""

_WORD_BYTES = 8
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}


def read_json(text: bytes, part: str) -> dict[str, Record] | None:
    """The records under `part` (`Jobs`, `nodes`, `Queue`, `Server`) by name; empty where the part is missing, which is
    how PBS says that there is none. None where the text is not JSON, even after the known repairs."""
    shown = text.decode(errors="replace")
    for candidate in (shown, _repair(shown)):
        try:
            document = json.loads(
                candidate,
                strict=False,
                parse_int=str,
                parse_float=str,
                parse_constant=str,
                object_pairs_hook=_merge,
            )
        except UNDECODABLE:
            continue
        found = document.get(part, {}) if isinstance(document, dict) else None
        if isinstance(found, dict):
            return {name: each for name, each in found.items() if isinstance(each, dict)}
    return None


def read_text(text: bytes, head: str) -> dict[str, Record]:
    """The records of `qstat -f` and the like: `Job Id: 12.server`, then indented `name = value`; values go on in lines
    that start with a tab, and those of shell functions in lines that start with anything.

    PBS prints each name once, but it prints the line breaks of a job's variables as they are, so a user can write a
    record of another user's job into them. Which one is real cannot be decided: both are kept, the later one as
    `12.server (2)`. A forged record can add a job, and cannot take one away."""
    found: dict[str, Record] = {}
    copies: Counter[str] = Counter()
    record: Record = {}
    last, pieces = "", list[str]()  # of a value, joined once: a user's may have a million lines
    for line in text.decode(errors="replace").splitlines():
        if line.startswith(head):
            _put(record, last, "".join(pieces))
            name = key = line[len(head) :].strip()
            while key in found:
                copies[name] += 1
                key = copy_of(name, copies[name] + 1)
            record = found[key] = {}
            last, pieces = "", []
            continue
        match = _ATTRIBUTE.match(line)
        if match is not None:
            _put(record, last, "".join(pieces))
            last, pieces = match[1], [match[2]]
        elif last and line.startswith("\t"):
            pieces.append(line[1:])
        elif last and line.strip():
            pieces += ["\n", line]
    _put(record, last, "".join(pieces))
    return found


def copy_of(name: str, number: int) -> str:
    """The name of a further record of the same name; the second one is number 2."""
    return f"{name} ({number})"


def read_reservations(text: bytes) -> list[Record]:
    """The records of `pbs_rstat -f`, whose attributes are not indented in all versions.

    PBS prints a user's `$LOGNAME` and `$MAIL` in `Variable_List` with their line breaks (pbs_rsub.c, pbs_rstat.c). So
    the first value of a name counts, and of the lines after `Variable_List` only the rule of a standing reservation,
    which PBS prints there: its last value counts. A forged `Resv ID:` line begins a record as a real one does."""
    found: list[Record] = []
    last, pieces = "", list[str]()  # further lines of the value, joined once
    has_variables = False
    for line in text.decode(errors="replace").splitlines():
        name, equals, value = line.strip().partition(" = ")
        if line.startswith("Resv ID:"):
            _extend(found, last, pieces)
            found.append({"id": line.partition(":")[2].strip()})
            last, pieces, has_variables = "", [], False
        elif equals and found and re.fullmatch(r"[A-Za-z_][\w.]*", name):
            is_real = name in _AFTER_VARIABLES if has_variables else name not in found[-1]
            has_variables = has_variables or name == "Variable_List"
            _extend(found, last, pieces)
            last, pieces = name if is_real else "", []
            if is_real:
                found[-1][name] = value
        elif last and line.startswith("\t"):
            pieces.append(line.strip())
    _extend(found, last, pieces)
    return found


def text_of(record: Record, *path: str) -> str:
    """A value by its path; empty where it is missing or no text."""
    value: Any = record
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "True" if value else "False"
    return value if isinstance(value, str) else ""


def table_of(record: Record, name: str) -> Record:
    """A record in a record; empty where there is something else."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def variables(record: Record) -> dict[str, str]:
    """`Variable_List` as a record, or as the text form `A=1,B=2`, in which values may hold commas and line breaks."""
    value = record.get("Variable_List", {})
    if isinstance(value, dict):
        return {name: each for name, each in value.items() if isinstance(each, str)}
    pairs = _VARIABLE.findall(str(value))
    return {name: each for name, each in pairs}


def read_time(text: str, now_s: float) -> float | None:
    """Seconds since 1970 of `Wed Jul 23 10:22:44 2025` (TZ=UTC is set) or of a number; None for `UNKNOWN`, 1970 and
    years that cannot be meant (openpbs issues 2695, 2518)."""
    text = text.strip()
    seconds: float | None = None
    number = whole(text)
    if number is not None:
        seconds = float(number)
    else:
        try:
            seconds = datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return None
    return seconds if YEAR_S < seconds < now_s + 10 * YEAR_S else None


def read_duration(text: str) -> float | None:
    """Seconds of `HH:MM:SS` (hours unbounded, perhaps a fraction) or a number; None for anything else."""
    pieces = text.strip().split(":")
    seconds = 0.0
    try:
        for piece in pieces:
            seconds = seconds * 60 + float(piece)
    except ValueError:
        return None
    return seconds if text.strip() and 0 <= seconds < FAR_FUTURE_S else None


def read_size_mb(text: str) -> int:
    """Megabytes of `527672488kb`; words are eight bytes; 0 if the text is not a size."""
    return read_bytes(text) // 1_000_000


def read_bytes(text: str) -> int:
    """Bytes of `2gb`; 0 if the text is not a size."""
    return read_amount(text) or 0


def read_amount(text: str) -> int | None:
    """Bytes of `2gb`, or a number; None for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    unit = (match[2] or "b").lower()
    scale = _UNITS[unit[:-1]] * (_WORD_BYTES if unit.endswith("w") else 1)
    return int(float(match[1]) * scale)


def read_number(text: str) -> int:
    """A whole number; 0 if the text is not one."""
    number = whole(text.strip().removeprefix("-")) or 0
    return -number if text.strip().startswith("-") else number


def check_part(records: dict[str, Record] | None, command: str, text: bytes) -> dict[str, Record]:
    """Raises ProtocolError where there is nothing to read."""
    if records is None:
        raise ProtocolError(
            f"`{command}` printed what cannot be read: `{text[:200].decode(errors='replace')}`"
        )
    return records


def _repair(text: str) -> str:
    """Escapes that JSON does not know lose their backslash; bare words and numbers with leading zeros get quotes."""
    text = _ESCAPE.sub(lambda match: match[0] if match[1] else match[2], text)
    words = {"true", "false", "null"}
    for _ in range(2):  # neighbours share a comma
        text = _BARE.sub(
            lambda match: match[0] if match[2] in words else f'{match[1]}"{match[2]}"{match[3]}', text
        )
    return text


def _merge(pairs: list[tuple[str, Any]]) -> Record:
    """Records that come twice are merged, other values that come twice: the last one."""
    found: Record = {}
    for name, value in pairs:
        if isinstance(found.get(name), dict) and isinstance(value, dict):
            found[name].update(value)
        else:
            found[name] = value
    return found


def _extend(found: list[Record], name: str, pieces: list[str]) -> None:
    """Put further lines behind the value of the last record."""
    if pieces:
        found[-1][name] += "".join(pieces)


def _put(record: Record, name: str, value: str) -> None:
    """`Resource_List.walltime` becomes a record in a record, as in JSON. Without a name nothing is put."""
    if not name:
        return
    group, dot, key = name.partition(".")
    if dot:
        inner = record.setdefault(group, {})
        if isinstance(inner, dict):
            inner[key] = value
    else:
        record[name] = value
