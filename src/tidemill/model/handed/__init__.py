"""What a submitter may hand to an approved program besides parameters: inputs, by name, and their lines. Pure.

Client, server and site ask the same questions; the site's answer counts. Names of inputs are the site's to approve,
because programs look for code under names (`json.py`, `.rootrc`, `Makefile`). Lines become parts of arguments in the
slot, which checks them by `LineText` as the site does here (`crates/slot/src/line.rs`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tidemill.errors import nearest
from tidemill.model.legal import Fault, shown
from tidemill.model.parameter import PATTERN_LENGTH_MAX, STRING_LENGTH_MAX
from tidemill.model.pattern import length_max, pattern_fault

TAKEN_MAX = 1_000
"""Names and globs of one application."""

TAKEN_SHOWN = 20
"""Of these, in a message."""

STARS_MAX = 4
"""In one glob: each more may multiply the time that a name takes."""

_GLOB = re.compile(r"[A-Za-z0-9*][A-Za-z0-9._+*-]{0,99}")
_SHARED = re.compile(
    r"""(?: [A-Za-z0-9\ !"#%&',/:;<=>@_`~-]          # itself
          | \\[dDwWsSt] | \\b(?!\{) | \\[!-/:;=?@\[-`{-~]  # escapes but `\<`, `\>`
          | \[\^?\]?(?: (?!--|&&|~~)[!-Z^-~\ ] | \\[dDwWsSt] | \\[!-/:;=?@\[-`{-~] | \[:\^?[a-z]+:\] )*\]
          | \(\?: | \((?!\?) | [).|^$] | [*+?]\?? | \{[0-9]+(?:,[0-9]*)?\}\?? )*""",
    re.VERBOSE,
)
"""Patterns that RE2 and the slot's regex-lite read alike: `crates/slot/src/lines.json` tries both."""


def glob_fault(glob: str) -> Fault | None:
    """What is wrong with an element of `inputs` in an application file; None = nothing."""
    if glob.startswith("."):
        return Fault("an approved program takes no input whose name begins with `.`")
    if not _GLOB.fullmatch(glob):
        return Fault(
            "it is not a name of inputs", "letters, digits and `._+-`, at most 100, `*` for any of these"
        )
    if glob.count("*") > STARS_MAX:
        return Fault(f"it has more than {STARS_MAX} `*`")
    return None


def takes(taken: Iterable[str], name: str) -> bool:
    """Whether one of these names and globs is, or matches, the name of an input."""
    if name.startswith("."):
        return False
    return any(each == name or ("*" in each and _matches(each, name)) for each in taken)


def inputs_fault(app: str, taken: Sequence[str] | None, names: Iterable[str]) -> Fault | None:
    """Why an application that takes these inputs (None = its site does not say) does not take those of a job; None = it
    does."""
    if taken is None:
        return None
    wrong = next((name for name in names if not takes(taken, name)), None)
    if wrong is None:
        return None
    text = f"application `{app}` takes no input named `{shown(wrong)}`"
    if not taken:
        return Fault(
            text, "it takes no inputs: its site's staff may name some in the application file (`inputs`)"
        )
    return Fault(text, _taken_text(wrong, taken))


def _taken_text(wrong: str, taken: Sequence[str]) -> str:
    """What an application takes instead, and which of it was probably meant."""
    best = nearest(wrong, [each for each in taken if "*" not in each])
    meant = "" if best is None else f"did you mean `{best}`?"
    if meant and len(taken) == 1:
        return meant
    others = [f"{len(taken) - TAKEN_SHOWN:,} more"] if len(taken) > TAKEN_SHOWN else []
    listed = ", ".join([f"`{each}`" for each in taken[:TAKEN_SHOWN]] + others)
    return f"{meant} It takes {listed}" if meant else f"it takes {listed}"


def line_pattern_fault(pattern: str) -> Fault | None:
    """Why a pattern is not used for lines, with what to write instead; None = it is."""
    fault = pattern_fault(pattern)
    if fault is None and not _SHARED.fullmatch(pattern):
        return Fault(
            "for lines, which slots check, a pattern holds ASCII characters, classes, groups `(...)` and `(?:...)`, "
            "`|`, `.`, `^`, `$`, repetitions and `\\d \\w \\s \\b \\t` only",
            "write `<` and `>` without `\\`, no `(?i)`, no `\\p`, and no `[`, `&&`, `--` or `~~` in a class",
        )
    return fault


def line_bytes_max(pattern: str | None) -> int:
    """The longest line that is checked by this pattern (None = as a text parameter), in bytes."""
    return STRING_LENGTH_MAX if pattern is None else min(PATTERN_LENGTH_MAX, length_max(pattern))


def _matches(glob: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, glob.split("*"))), name) is not None
