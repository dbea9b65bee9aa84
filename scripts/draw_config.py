"""Write docs/configuration.md from the records that are read from files; `--check` says whether it is up to date."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path

import msgspec
from page import cell, settle

from tidemill import config

SOURCE = Path(__file__).parent.parent / "src" / "tidemill"
TITLES = {
    "SiteConfig": "A site: `SITE/site.toml`",
    "CacheConfig": "A cache: `CACHE/cache.toml`",
    "ServerConfig": "A server: `server.toml`",
    "ClientConfig": "A client: `HOME/client.toml`",
    "MessagesConfig": "A submitter at a message broker: `HOME/messages.toml`",
}
HEAD = """# Configuration

Drawn by `make gen` from the records named `...Config` in `src/tidemill`; edit those.
An unknown key is an error that names the nearest one.
`io[].name` is a key of each `[[io]]`, `containers.NAME.path` one of `[containers.NAME]`.
Durations may be written `90`, `90m`, `HH:MM:SS` or `D-HH:MM:SS`, sizes `2GB` or `64KiB`.
"""


def records() -> list[type[msgspec.Struct]]:
    """The records that are a file of their own: those named `...Config`, the site's first."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        names = re.findall(
            r"^class (\w+Config)\(\s*msgspec\.Struct", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        if names:
            module = importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
            found += [getattr(module, name) for name in names]
    return sorted(found, key=lambda record: (record.__name__ != "SiteConfig", record.__name__))


def drawn() -> str:
    """The whole page: one table per file."""
    parts = [HEAD]
    for record in records():
        title = TITLES.get(record.__name__, f"`{record.__name__}`")
        # Some of these records say no more than their title
        about = (inspect.getdoc(record) or "").removeprefix(f"{title}.").strip()
        rows = [
            f"| `{key.key}` | {cell(key.type)} | {cell(key.unit)} "
            f"| {f'`{cell(key.default)}`' if key.default else 'required'} | {cell(key.doc)} |"
            for key in config.describe(record, inside=True)
        ]
        head = [
            f"## {title}",
            "",
            *([about, ""] if about else []),
            "| key | type | unit | default | what for |",
            "|---|---|---|---|---|",
        ]
        parts.append("\n".join([*head, *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(settle("configuration.md", drawn()))
