"""Write docs/commands.md from the verbs of `tidemill`; `--check` says whether it is up to date."""

from __future__ import annotations

import sys

from page import cell, settle

from tidemill.cli.main import GROUPS, load

HEAD = """# Commands

Drawn by `make gen` from `src/tidemill/cli`; edit that. `tidemill VERB --help` explains every option of a verb.
Data goes to stdout, everything else to stderr; `--json` makes the data one JSON object.
Exit codes: 0 done, 1 the job failed, 2 usage or configuration, 3 site, service or network (try again), 70 a bug.
"""


def commands() -> str:
    """The whole page: one table per group of verbs."""
    parts = [HEAD]
    for group, verbs in GROUPS.items():
        rows = [
            f"| `{verb}` | {cell(about)} | `{cell(load(verb).example)}` |"
            for verb, (_, about) in verbs.items()
        ]
        parts.append(
            "\n".join(
                [f"## {group.capitalize()}", "", "| verb | what | example |", "|---|---|---|", *rows, ""]
            )
        )
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(settle("commands.md", commands()))
