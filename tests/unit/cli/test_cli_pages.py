"""Every command of Tidemill on a page, also one that no test runs, names a verb and options that exist."""

from __future__ import annotations

import re
import shlex

from tests.worlds.home.pages import DOCS, EXTENSIONS

from tidemill import extensions
from tidemill.cli.main import find_verb
from tidemill.cli.verbs import VERBS, family_of, load, parser_of
from tidemill.errors import TidemillError

ROOT = DOCS.parent
PAGES = [path for path in [*DOCS.rglob("*.md"), *EXTENSIONS, ROOT / "README.md"] if path.name != "cli.md"]
FENCED = re.compile(r"^ *```[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"``(.+?)``(?!`)|`([^`\n]+)`")
STARTS = re.compile(r"(?:^|[ (/])(?<!from )(?<!-n )tidemill (?=[a-z])(.+)")
#: verbs of extensions that are not installed: their options are read where they are
ABSENT = extensions.names(extensions.VERBS) - VERBS.keys()
ENDS = {"--", "|", "||", "&&", "&", ";", ">", "<"}  #: of a command of Tidemill within a line of the shell


def commands(text: str) -> set[str]:
    """What follows `tidemill` in blocks and in inline code."""
    blocks = "\n".join(FENCED.findall(text)).replace("\\\n", " ")
    found = [*blocks.splitlines(), *(one or two for one, two in INLINE.findall(FENCED.sub("", text)))]
    return {match[1] for each in found if (match := STARTS.search(each.partition(" # ")[0]))}


def unknown(command: str) -> str:
    """The verb or options of a command that do not exist; empty = all do."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return ""  # a part of a sentence
    end = next((k for k, word in enumerate(words) if word in ENDS or word.endswith(";")), len(words))
    words = words[:end]
    if len(words) == 1 and family_of(words[0]):
        return ""
    named_absent = {" ".join(words[:2]), words[0]} & ABSENT
    if named_absent or (len(words) == 1 and any(each.startswith(f"{words[0]} ") for each in ABSENT)):
        return ""
    try:
        verb, rest = find_verb(words)
        parser = parser_of(verb, load(verb))
    except (TidemillError, KeyError) as error:
        return str(error)
    known = set(parser.option_names())
    named = [word.partition("=")[0] for word in rest if re.match(r"--[a-z]", word)]
    return ", ".join(name for name in named if name not in known)


def test_commands_of_pages_have_verbs_and_options_that_exist() -> None:
    assert unknown("job cancel 7 --events 100-199 && ls") == ""
    assert unknown("job cancel 7 --event 3") == "--event"
    offenders = {
        f"{path.relative_to(ROOT)}: tidemill {command}": wrong
        for path in PAGES
        for command in sorted(commands(path.read_text(encoding="utf-8")))
        if (wrong := unknown(command))
    }
    assert offenders == {}
