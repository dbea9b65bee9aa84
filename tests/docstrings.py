"""Docstrings that name no object: whoever reads one has to open the code to learn what is meant.

A docstring stands in help, in editors and in search results without the code around it: "The status of an allocation.",
not "The word on it."
"""

from __future__ import annotations

import re

#: how a docstring begins that points to something else instead of naming it
NAMELESS = re.compile(
    r"""
      See\ (?:the\ )?[^ ]+$                           # nothing but a pointer
    | (?:It|Its|They|Their|Them)\b
    | (?:What|Who|Whose|Where|How)\ (?:it|they|that|we)\b
    | (?:All|Both|Each|Any|None|One|Some|Most)\ (?:of\ (?:it|them|these|those)|together)\b
    | The\ same(?:[.,;]|\ (?:with|for|of|by|as|where|from|but|in|to|if|after)\b)
    | The\ word(?:[.,;]|\ (?:on|with|of|as|for)\b)
    | (?:Of|\.\.\.)\ (?!`)
    | Take\ notice\b
    """,
    re.VERBOSE,
)
#: how one of at most SHORT_WORDS_MAX words begins
SHORT = re.compile(
    r"""
      (?:What|Those|These|Everything|For|As|At|By|In|With|After|Since|From|To)\b
    | (?:The\ )?\w+\.$
    | \w+\ (?:it|them|out)\b
    """,
    re.VERBOSE,
)
SHORT_WORDS_MAX = 4


def is_nameless(docstring: str) -> bool:
    """Whether a docstring names no object."""
    words = docstring.split()
    text = " ".join(words)
    return bool(NAMELESS.match(text) or (len(words) <= SHORT_WORDS_MAX and SHORT.match(text)))
