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
#: the keys of `site.toml` that most sites set, in the order of a first set-up, with a typical value
COMMON = {
    "name": '"titan"',
    "server": '"https://tide.example.org:8443"',
    "certificate": '"site.pem"',
    "batch": '"slurm"',
    "cluster.partition": '"batch"',
    "accounts[].name": '"phy123"',
    "accounts[].node_hours": "20000",
    "mode": '"run"',
    "nodes_max": "16",
    "harvest.node_hours_max": "1000",
    "walltime_s": '"2h"',
    "data_roots": '["/gpfs/exp"]',
    "output_dir": '"/gpfs/exp/out"',
    "contact": '"you@example.org"',
    "stop_file": '"/gpfs/ops/STOP-tidemill"',
}
HEAD = """# Configuration

This reference lists every key of the configuration files, first the 15 that most sites set.

`make gen` draws it from the records named `...Config` in `src/tidemill`; edit those.
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


def common() -> str:
    """The table of keys that most sites set. Raises KeyError if one does not exist."""
    site = next(record for record in records() if record.__name__ == "SiteConfig")
    keys = {key.key: key for key in config.describe(site, inside=True)}
    rows = [
        f"| `{name}` | `{value}` | {f'`{cell(keys[name].default)}`' if keys[name].default else 'required'} "
        f"| {cell(keys[name].doc)} |"
        for name, value in COMMON.items()
    ]
    head = [
        "## Start here: 15 keys of `SITE/site.toml`",
        "",
        "`tidemill site init` writes most of them. All other keys have defaults that fit most sites.",
        "",
        "| key | for example | default | what for |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


def drawn() -> str:
    """The whole page: the common keys, then one table per file."""
    parts = [HEAD, common()]
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
