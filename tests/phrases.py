"""The phrases that this project's texts avoid, with better ones, and where to look for them.

A text is what a person reads: pages, messages, help, templates, docstrings and comments. Names of code are no
text; in Python and Rust only comments and literals with a space are searched. `LEFT` names the files that still
have such phrases, each with their number: the number may only fall, and a clean file leaves the list.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEFT = Path(__file__).parent / "phrases_left.txt"

NOT_A = r"(?<!\b[Tt]here )\b(?:is|are|was|were) (?:no|none)\b"
SLURM = (
    r"(?:cluster|job|site|version|partition|system|account|step|log|controller|allocation|login|installation)"
)

#: phrase -> what to write instead
PHRASES: dict[str, str] = {
    r"\b(?:tells?|told|telling)\b(?! (?:\w+ )?apart\b)": "reports, returns, prints, sends, receives, shows",
    NOT_A + r"(?!\s+(?:longer|more|less|later|larger|earlier|reason|need)\b)": "is not a ..., has no ...",
    r"\bso (?:many|much|long|often|few)\b(?! (?:\w+ )?that\b)": "up to N, at most T, for N seconds",
    r"\b(?:[Ww]hoever|[Nn]obody|[Ss]omebody|[Aa]nybody|[Ee]verybody)\b": "the user, other users",
    r"\bours\b": "Tidemill's",
    r"\bothers'(?!s)": "other users'",
    r"\b(?:[Aa]|the|last|first|next|[Ee]ach|every|one|its|two|second) looks?\b(?!-| up\b|ing\b)": "a poll, a query",
    r"\blook(?:s|ed|ing)? at\b": "inspects, reads, examines",
    r"(?<!\b[Aa]s )\b[Ii]t stands\b|\bstands? (?:so|there|still|it)\b|\b[Hh]as it \w+\?": "remains in force",
    r"\b(?:gives?|gave|given|giving) (?:\w+ )?back\b": "releases, returns",
    r"\bforet(?:ells?|old)\b": "predicts",
    r"\b(?:senseless|burnt)\b": "malformed, already used",
    r"\b[Oo]dd\b(?! or even| number)": "malformed, inconsistent, unexpected",
    r"\b(?:[Dd]eeds?|[Pp]lugs?|[Dd]oors?)\b": "action, socket, entry point",
    r"\b(?:the|this|that|[Ww]hose) [Ll]etter\b": "message",
    r"\blasting\b": "durable",
    r"\b(?:to blame|[Bb]lame[sd]?)\b": "is responsible, attributes",
    r"\b(?:is|are|was|were|be|been|went|goes|server|lead|agent|broker|site) away\b": "is unreachable, is lost, is gone",
    r"\b(?:on|of|at|in|to|from|for) a (?:real )?Slurm\b(?! \w*" + SLURM + ")": "on a Slurm cluster",
    r"\bDo it\.|\bOf one server\b|\b[Ss]ee the contract\b": "a docstring that states the result",
}
PATTERN = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES))

#: quoted code, and the values of an f-string
CODE = re.compile(r"`[^`\n]*`|\{[^{}\n]*\}")
TEXTS = {
    ".md",
    ".html",
    ".js",
    ".css",
    ".sql",
    ".toml",
    ".sh",
    ".service",
    ".timer",
    ".yml",
    ".yaml",
    ".conf",
}
WHOLE = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "GLOSSARY.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "Makefile",
)
FOLDERS = ("docs", "src", "crates", "scripts", "deploy", "integrations", "bench", "extensions")
SKIPPED = {".venv", "target", "__pycache__", "node_modules", "corpus", "site-packages"}


@dataclass(frozen=True)
class Found:
    path: str
    line: int
    phrase: str
    text: str


def better(phrase: str) -> str:
    """What to write instead of a phrase that was found."""
    return next(
        (right for left, right in PHRASES.items() if re.search(left, phrase)),
        "see the table of phrases",  # a phrase that needs its surroundings to match
    )


def blanked(text: str) -> str:
    """The same text with its characters, but for ends of lines, made spaces: places stay where they are."""
    return re.sub(r"[^\n]", " ", text)


def prose_of_page(text: str) -> str:
    """A page without its blocks and words of code."""
    text = re.sub(r"```.*?```", lambda m: blanked(m[0]), text, flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`|\]\([^)\n]*\)", lambda m: blanked(m[0]), text)


def prose_of_python(text: str) -> str:
    """Comments and literals with a space, each on its line; the rest blank."""
    lines = [""] * (text.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        comment = token.type == tokenize.COMMENT
        if comment or (token.type == tokenize.STRING and " " in token.string):
            string = token.string if comment else CODE.sub(" ", token.string)
            for number, line in enumerate(string.split("\n"), start=token.start[0]):
                lines[number] += " " + line
    return "\n".join(lines[1:])


def prose_of_rust(text: str) -> str:
    """Comments and literals with a space, each on its line; the rest blank."""
    pattern = re.compile(r"//[^\n]*|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
    kept, end = [], 0
    for match in pattern.finditer(text):
        kept += [blanked(text[end : match.start()]), match[0] if " " in match[0] else blanked(match[0])]
        end = match.end()
    return "".join([*kept, blanked(text[end:])])


def prose(path: Path) -> str:
    """What a person reads of this file, line by line; empty where no phrase is anywhere in it."""
    text = path.read_text(encoding="utf-8")
    if not PATTERN.search(text.replace("\n", " ")):
        return ""
    if path.suffix == ".py":
        return prose_of_python(text)
    if path.suffix == ".rs":
        return prose_of_rust(text)
    if path.suffix == ".sh":
        text = re.sub(r"^[^#\n]*(?:\w#[^#\n]*)*", lambda m: blanked(m[0]), text, flags=re.MULTILINE)
    if path.suffix == ".html":
        text = re.sub(r"\{[{%#].*?[}%#]\}|<[^>]*>", lambda m: blanked(m[0]), text, flags=re.DOTALL)
    return prose_of_page(text)


def files() -> list[Path]:
    """All files with text for people."""
    found = [ROOT / name for name in WHOLE]
    for folder in FOLDERS:
        found += [
            path
            for path in sorted((ROOT / folder).rglob("*"))
            if path.suffix in TEXTS | {".py", ".rs"} and path.is_file()
            if not SKIPPED & set(path.relative_to(ROOT).parts)
        ]
    return found


def search(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and line of text of each phrase to avoid; sentences may go over lines."""
    lines = text.split("\n")
    flat = text.replace("\n", " ")
    ends, at = [], 0
    for line in lines:
        at += len(line) + 1
        ends.append(at)
    number = 0
    for match in PATTERN.finditer(flat):
        while match.start() >= ends[number]:
            number += 1
        yield number + 1, match[0], lines[number].strip()


def offences() -> list[Found]:
    """Every phrase to avoid in the repository's texts."""
    return [
        Found(path.relative_to(ROOT).as_posix(), line, phrase, text)
        for path in files()
        for line, phrase, text in search(prose(path))
    ]


def left() -> dict[str, int]:
    """Files that are still to be rewritten, each with its number of phrases."""
    rows = [line.split() for line in LEFT.read_text(encoding="utf-8").splitlines() if line[:1].isdigit()]
    return {path: int(number) for number, path in rows}


def main() -> None:
    """Write the list of what is left: `python tests/phrases.py` after files were rewritten."""
    numbers = Counter(each.path for each in offences())
    head = "# Files with phrases that tests/phrases.py avoids, and how many. Numbers only fall.\n"
    rows = "".join(f"{number} {path}\n" for path, number in sorted(numbers.items()))
    LEFT.write_text(head + rows, encoding="utf-8")


if __name__ == "__main__":
    main()
