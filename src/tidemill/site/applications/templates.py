"""Arguments with `{...}` in them: what they may name, and how the parameters are filled in. Pure.

What a slot fills in (`{event}`, `{seed}`, ...) stays a template; parameters become text, in which braces are doubled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from tidemill.errors import ConfigError, did_you_mean

SLOT_TEMPLATES = frozenset({"event", "first_event", "last_event", "events", "seed", "line", "cores"})
MANY_EVENTS = frozenset({"events", "last_event"})
"""A command that names one of these can run several events at once."""

INPUTS = "inputs"
"""In a merge application an argument `{inputs}` becomes one argument for each part."""

INPUT = "input."
"""Begins a template that becomes the path of an input."""

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")
_INPUT = re.compile(r"input\.[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
COLUMN = re.compile(r"column\.[0-9]{1,4}")
"""A field of the event's line, between tabs."""


class Template(msgspec.Struct, frozen=True):
    """One argument: pieces of text (braces doubled, as the slot reads them) and names in between."""

    pieces: list[tuple[str, str | None]]  #: (text, name that follows it)

    @classmethod
    def parse(cls, text: str) -> Template:
        """Raises ValueError for a brace without its partner."""
        pieces: list[tuple[str, str | None]] = []
        literal = ""
        for match in _PIECE.finditer(text):
            token = match[0]
            if token in ("{", "}"):
                raise ValueError(
                    f"`{text}` has a `{token}` without its partner: write `{token * 2}` for the character"
                )
            if match[1] is None:
                literal += token
            else:
                pieces.append((literal, match[1]))
                literal = ""
        if literal or not pieces:
            pieces.append((literal, None))
        return cls(pieces)

    @classmethod
    def literal_but_known(cls, text: str) -> Template:
        """An argument of an ad-hoc command. Braces around an unknown name are text, and `{{event}}` stands for the text
        `{event}`."""
        pieces: list[tuple[str, str | None]] = []
        literal = ""
        at = 0
        for match in re.finditer(r"\{([^{}]*)\}", text):
            if not is_slot_template(match[1]):
                continue
            start, end = match.span()
            if start > at and text[start - 1] == "{" and text[end : end + 1] == "}":
                literal += doubled(text[at : start - 1] + match[0])
                at = end + 1
            else:
                literal += doubled(text[at : match.start()])
                pieces.append((literal, match[1]))
                literal, at = "", match.end()
        pieces.append((literal + doubled(text[at:]), None))
        return cls(pieces)

    def names(self) -> list[str]:
        """The names that the template refers to."""
        return [name for _, name in self.pieces if name is not None]

    def fill(self, values: Mapping[str, str]) -> str:
        """The argument with parameters filled in, the slot's templates left."""
        filled = ""
        for text, name in self.pieces:
            filled += text
            if name is not None:
                value = values.get(name)
                filled += "{" + name + "}" if value is None else doubled(value)
        return filled


def is_slot_template(name: str) -> bool:
    """Whether the slot fills it in."""
    return name in SLOT_TEMPLATES or bool(_INPUT.fullmatch(name) or COLUMN.fullmatch(name))


def check_templates(
    arguments: Iterable[str], parameters: Iterable[str], *, source: Path, merge: bool
) -> list[Template]:
    """The arguments' templates. Raises ConfigError naming the file, the template and the nearest that exists."""
    names = set(parameters)
    known = names | SLOT_TEMPLATES
    clash = names & (SLOT_TEMPLATES | {INPUTS})
    if clash:
        raise ConfigError(f"{source}: parameter `{min(clash)}` has the name of a template")
    templates: list[Template] = []
    for argument in arguments:
        try:
            template = Template.parse(argument)
        except ValueError as error:
            raise ConfigError(f"{source}: argument {error}") from None
        for name in template.names():
            if name in known or is_slot_template(name) or (merge and argument == "{inputs}"):
                continue
            raise ConfigError(
                f"{source}: unknown template `{{{name}}}` in `{argument}`",
                hint=did_you_mean(name, known | {"input.NAME"}),
            )
        templates.append(template)
    return templates


def doubled(text: str) -> str:
    """The text as an argument that names nothing."""
    return text.replace("{", "{{").replace("}", "}}")
