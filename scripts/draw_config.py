"""Write docs/configuration.md from the records that are read from files; `--check` says whether it is up to date."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path

import msgspec
from page import cell, entry, settle

from tidemill import config, extensions
from tidemill.config.site import SiteConfig

SOURCE = Path(__file__).parent.parent / "src" / "tidemill"
EXTENSIONS = Path(__file__).parent.parent / "extensions"
TITLES = {
    "SiteConfig": "A site: `SITE/site.toml`",
    "CacheConfig": "A cache: `CACHE/cache.toml`",
    "ServerConfig": "A server: `server.toml`",
    "ClientConfig": "A client: `HOME/client.toml`",
}
#: a `site.toml` with the keys that most sites set, in the order of a first set-up
COMMON = """\
name = "titan"
server = "https://tide.example.org:8443"
certificate = "site.pem"               # from `tidemill certs issue site titan`
batch = "slurm"
mode = "run"                           # `observe` submits nothing
nodes_max = 16
walltime_s = "2h"                      # of an allocation
data_roots = ["/gpfs/exp"]             # inputs and outputs lie below these
output_dir = "/gpfs/exp/out"           # of outputs that name no place
contact = "you@example.org"
stop_file = "/gpfs/ops/STOP-tidemill"  # a file there stops the site

[cluster]
partition = "batch"

[harvest]
node_hours_max = 1000

[[accounts]]
name = "phy123"
node_hours = 20000
"""
HEAD = """# Configuration

This reference lists every key of the configuration files, first the 15 that most sites set.

An unknown key is an error that names a similar one, if there is one. All wrong keys of a file are listed together.
`io[].name` is a key of each `[[io]]`, `containers.NAME.command` one of `[containers.NAME]`.
Durations may be written `90`, `90m`, `HH:MM:SS` or `D-HH:MM:SS`, sizes `2GB` or `64KiB`.
A key that has no default, and is not required, may be left out; `none = X` says that X applies then.

`cache.toml` is a file of [the extension `caches`](../extensions/caches/docs/settings.md).
To check a `site.toml`, run `tidemill site check`. To check a `server.toml`, start `tidemill server run`: it
refuses what is wrong.

<!-- Drawn by `make gen` from the records named `...Config` in `src/tidemill`: edit those. -->
"""
#: how a file writes the head of a table that it may have several of, by how a key of it is written
FORMS = {"[].": "[[{}]]", ".NAME.": "[{}.NAME]"}
OF_EXTENSION = """# Settings of the extension `{name}`

This reference lists the keys of configuration files that the extension `{name}` brings. How values are written, and the
keys of credentials, stand on [the page of the core's settings](../../../docs/configuration.md).

<!-- Drawn by `make gen` from the extension's records: edit those. -->
"""
ANCHOR = "credentials-five-keys-that-mean-the-same-everywhere"
CREDENTIALS = """## Credentials: five keys that mean the same everywhere

The end of a list names which of these keys the table takes, and adds what is particular there.
All are paths, relative to the directory of the file that names them.

| key | what for |
|---|---|"""


def records(source: Path = SOURCE) -> list[type[msgspec.Struct]]:
    """The records of a package that are a file of their own: those named `...Config`, the site's first."""
    found = []
    for path in sorted(source.rglob("*.py")):
        names = re.findall(
            r"^class (\w+Config)\(\s*msgspec\.Struct", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        if names:
            module = importlib.import_module(".".join(path.relative_to(source.parent).with_suffix("").parts))
            found += [getattr(module, name) for name in names]
    return sorted(found, key=lambda record: (record.__name__ != "SiteConfig", record.__name__))


def records_of_extensions() -> dict[str, list[type[msgspec.Struct]]]:
    """The records of files that installed extensions of this repository bring, by the extension's name."""
    found = {}
    for source in sorted(EXTENSIONS.glob("*/src/tidemill_*")):
        owner = source.parents[1].name
        if owner in extensions.installed() and (files := records(source)):
            found[owner] = files
    return found


def common() -> str:
    """The section on the keys that most sites set. Raises ConfigError if one is not legal."""
    config.loads(COMMON, SiteConfig, source=Path("/site/site.toml"))
    return "\n".join(
        [
            "## Start here: 15 keys of `SITE/site.toml`",
            "",
            "`tidemill site init` writes most of them, and limits below the defaults: on a cluster `nodes_max = 4` and "
            "`harvest.node_hours_max = 100`. All other keys have defaults that fit most sites.",
            "",
            "```toml",
            f"{COMMON}```",
            "",
        ]
    )


def total() -> int:
    """How many settings the page documents: those of all files, and the credentials once."""
    return len(config.CREDENTIALS) + sum(
        _settings(config.describe(record, inside=True)) for record in records()
    )


def _settings(keys: list[config.Key]) -> int:
    return sum(not key.is_credential for key in keys)


def credentials() -> str:
    """The section on the keys that mean the same in every table."""
    rows = [f"| `{name}` | {cell(doc)} |" for name, doc in config.CREDENTIALS.items()]
    return "\n".join([CREDENTIALS, *rows, ""])


def groups(record: type[msgspec.Struct]) -> dict[str, list[config.Key]]:
    """The keys of a file by the table that holds them, as a file writes its head; empty = no table."""
    keys = config.describe(record, inside=True)
    lists: dict[str, str] = {}
    for key in keys:
        for mark, form in FORMS.items():
            name, found, _ = key.key.partition(mark)
            if found:
                lists[name] = form.format(name)
    tables: dict[str, list[config.Key]] = {"": []}
    for key in keys:
        table, dot, _ = key.key.partition(".")
        head = lists.get(re.split(r"\[\]\.|\.NAME\.", key.key)[0]) or (f"[{table}]" if dot else "")
        tables.setdefault(head, []).append(key)
    return tables


def row(key: config.Key) -> str:
    """A setting in the list of its table."""
    return entry(f"`{key.key}`", f"{key.type}, {key.unit}" if key.unit else key.type, key.default, key.doc)


def credentials_row(keys: list[config.Key], anchor: str) -> str:
    """One entry for the credentials of a table: which it has, which it needs, and what is particular of them there."""
    names = ", ".join(f"`{key.key}`" for key in keys)
    required = ", ".join(f"`{_last(key)}`" for key in keys if key.default is None)
    particular = [f"`{_last(key)}`: {key.doc}" for key in keys if key.doc != config.CREDENTIALS[_last(key)]]
    kind = f"[credentials]({anchor})" + (f"; required: {required}" if required else "")
    return entry(names, kind, "none", ". ".join(particular)).removesuffix(": ")


def _last(key: config.Key) -> str:
    return key.key.rpartition(".")[2]


def drawn() -> str:
    """The whole page: the common keys, the credentials, then for each file one list per table."""
    parts = [HEAD, common(), credentials()]
    for record in records():
        parts += file_parts(record, anchor=f"#{ANCHOR}")
    return "\n".join(parts)


def file_parts(record: type[msgspec.Struct], *, anchor: str) -> list[str]:
    """The section on a file: its title, then one table per table."""
    title = TITLES[record.__name__]
    # Some of these records say no more than their title
    about = (inspect.getdoc(record) or "").removeprefix(f"{title}.").strip()
    parts = ["\n".join([f"## {title}", "", *([about, ""] if about else [])])]
    docs = {form.format(key.key): key.doc for key in config.repeated(record) for form in FORMS.values()}
    for head, keys in groups(record).items():
        above = [
            *([f"### `{head}`", ""] if head else []),
            *([f"{docs[head]}.", ""] if docs.get(head) else []),
        ]
        parts.append(table(above, keys, anchor=anchor))
    return parts


def table(about: list[str], keys: list[config.Key], *, anchor: str) -> str:
    """A list of keys below some lines; `anchor`: where the credentials are described."""
    shown = [key for key in keys if key.is_credential]
    lines = [*about, *(row(key) for key in keys if not key.is_credential)]
    return "\n".join([*lines, *([credentials_row(shown, anchor)] if shown else []), ""])


def extension_pages() -> dict[str, str]:
    """The pages on the settings of the installed extensions of this repository, by their paths from `docs`."""
    pages: dict[str, list[str]] = {}
    anchor = f"../../../docs/configuration.md#{ANCHOR}"
    for record in records():
        keys = config.describe(config.extended(record), inside=True)
        for name, added in config.added(record).items():
            owner = extensions.owner(extensions.SETTINGS, name)
            if not (EXTENSIONS / owner).is_dir():
                continue
            head = [f"## `[{name}]` of `{added.file}`", "", inspect.getdoc(added.record) or "", ""]
            own = [key for key in keys if key.key.startswith(f"{name}.")]
            text = table(head, own, anchor=anchor)
            pages.setdefault(owner, [OF_EXTENSION.format(name=owner)]).append(text)
    for owner, files in records_of_extensions().items():
        for record in files:
            pages.setdefault(owner, [OF_EXTENSION.format(name=owner)]).extend(
                file_parts(record, anchor=anchor)
            )
    return {f"../extensions/{owner}/docs/settings.md": "\n".join(parts) for owner, parts in pages.items()}


if __name__ == "__main__":
    drawn_pages = {"configuration.md": drawn()} | extension_pages()
    sys.exit(max([settle(name, text) for name, text in drawn_pages.items()]))
