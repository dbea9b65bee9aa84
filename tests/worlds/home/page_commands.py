"""The commands that pages of docs/ show outside of `sh` blocks, one string each, in the order of the page.

A block is a command block if it is marked `bash`, is an indented `sh`, has lines with the prompt `$ `, or if a line of
it begins with a program of PROGRAMS. With prompts only the lines behind them are commands; the others are output.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

FENCED = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)((?: {4}[^\n]*\n)+)")
PROGRAMS = frozenset(
    [
        ".",
        "$EDITOR",
        ".venv/bin/python",
        ".venv/bin/tidemill",
        "apptainer",
        "bash",
        "cargo",
        "cat",
        "conda",
        "crontab",
        "curl",
        "git",
        "hq",
        "install",
        "journalctl",
        "jq",
        "loginctl",
        "ls",
        "make",
        "mkdir",
        "mv",
        "pip",
        "pipx",
        "podman",
        "python",
        "python3",
        "qsub",
        "rm",
        "sacct",
        "sbatch",
        "scp",
        "sh",
        "ssh",
        "sudo",
        "systemctl",
        "tidemill",
        "tidemill-node",
        "uv",
        "xrdcp",
    ]
)
SHOWN = ("bash", "")
_NOTE = re.compile(r"(?:^|\s)# .*$")


def commands(page: Path) -> list[str]:
    """Every command of the page that is not in a `sh` block at the margin (those run: `pages.steps`)."""
    text = page.read_text(encoding="utf-8")
    found = []
    for indent, language, content in FENCED.findall(text):
        if language in SHOWN or (language == "sh" and indent):
            found += _of_block(textwrap.dedent(content), certain=bool(language))
    for content in INDENTED.findall(FENCED.sub("", text)):
        found += _of_block(textwrap.dedent(content), certain=False)
    return found


def _of_block(content: str, *, certain: bool) -> list[str]:
    lines = re.sub(r"\\\n|\|\n", lambda cut: cut[0].replace("\\\n", " ").replace("|\n", "| "), content)
    prompted = [line[2:] for line in lines.splitlines() if line.startswith("$ ")]
    if prompted:
        return [tidy for line in prompted if (tidy := _tidy(line))]
    rows = [tidy for line in lines.splitlines() if (tidy := _tidy(line))]
    if "──" in content:  # a drawing, whose boxes hold commands
        return []
    if certain or any(row.split()[0] in PROGRAMS for row in rows):
        return rows
    return []


def _tidy(line: str) -> str:
    return " ".join(_NOTE.sub("", line).split())
