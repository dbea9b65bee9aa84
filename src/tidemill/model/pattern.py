"""The regular expressions of application files, run in time that grows linearly with the text. Pure.

A site writes them, a submitter writes what they are run on, and server, client and site all do it: none of the three
may be able to hold up another one. Python's `re` backtracks: `(a|a)*b` takes twice as long for each letter more. RE2
does not, and bounds memory; what it leaves out is what cannot be had without backtracking. See docs/decisions/0020.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Protocol

import re2

from tidemill.model.legal import Fault, shown

PATTERN_CHARACTERS_MAX = 4_096
PATTERN_MEMORY_BYTES_MAX = 512 * 1024
"""Of one pattern: its program, at most about 20,000 instructions, and the automaton that RE2 builds as it goes."""

PATTERNS_KEPT = 128  #: compiled ones in memory, 64 MB of them at most
STEPS_MAX = 10_000_000
"""Length of a value times length of the program: what RE2 takes at most, 10 ns each (measured with 1.1.20251105 and
`(?:[ab]*a[ab]{1000})+`, whose automaton does not fit), so a tenth of a second. `.{0,1000}` has 8,000 instructions."""

_REPEATS = 1_000  #: as often RE2 lets something repeat, by number
_SIMPLE = "the whole value is matched: say what is legal, such as `[a-z][a-z0-9]*`, or list it with `|`"
_HINTS = (
    (re.compile(r"\(\?<?[=!]"), f"there is no look-ahead or look-behind; {_SIMPLE}"),
    (re.compile(r"\\[1-9]|\(\?P="), f"there are no backreferences; {_SIMPLE}"),
    (
        re.compile(r"[*+?}]\+|\(\?>"),
        "leave out the second `+`, and write `(?:` for `(?>`: nothing ever backtracks",
    ),
    (re.compile(r"\\Z"), "leave out `\\Z`: the whole value is matched"),
    (re.compile(r"\\[uUN]"), "write `\\x{41}`, with the character's number in hexadecimal digits"),
    (
        re.compile(r"\{[0-9,]+\}"),
        f"repeat at most {_REPEATS} times by number, or without a bound by `*` or `+`",
    ),
)
_NO_LEAST = re.compile(r"(?<!\\)\{,[0-9]+\}")


class Verdict(Enum):
    """What a pattern says of a value."""

    MATCHES = "matches"
    DIFFERS = "differs"
    TOO_LONG = "too long"  #: the value, for a pattern as large as this


class _Compiled(Protocol):
    programsize: int

    def fullmatch(self, text: bytes) -> object: ...


def pattern_fault(pattern: str) -> Fault | None:
    """Why a pattern is not used, with what to write instead; None = it is."""
    found = _compile(pattern)
    return found if isinstance(found, Fault) else None


def check_pattern(pattern: str, value: str) -> Verdict | None:
    """What a pattern says of a value; None if the pattern is not used, see `pattern_fault`."""
    found = _compile(pattern)
    if isinstance(found, Fault):
        return None
    try:
        text = value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair: not a text
        return Verdict.DIFFERS
    if len(text) * found.programsize > STEPS_MAX:
        return Verdict.TOO_LONG
    return Verdict.DIFFERS if found.fullmatch(text) is None else Verdict.MATCHES


def length_max(pattern: str) -> int:
    """The longest value, in bytes, that is not too long for a pattern; 0 for one that is not used."""
    found = _compile(pattern)
    return 0 if isinstance(found, Fault) else STEPS_MAX // max(1, found.programsize)


@lru_cache(PATTERNS_KEPT)
def _compile(pattern: str) -> _Compiled | Fault:
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        return Fault(f"it has {len(pattern)} characters, at most {PATTERN_CHARACTERS_MAX} are allowed")
    if _NO_LEAST.search(pattern):  # RE2 would take it for these very characters
        return Fault("a repetition has no lower bound", "write `{0,N}` for `{,N}`")
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = PATTERN_MEMORY_BYTES_MAX, False, True
    try:
        return re2.compile(pattern, options)  # type: ignore[no-any-return]
    except re2.error as error:
        said = error.args[0] if error.args else ""
        reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    except UnicodeEncodeError:
        reason = "not a text"
    hint = next((hint for found, hint in _HINTS if found.search(pattern)), "the syntax is that of RE2")
    return Fault(shown(reason), "make it shorter" if "too large" in reason else hint)
