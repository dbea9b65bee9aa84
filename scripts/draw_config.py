"""Write docs/configuration.md from the records of `tidemill.config`; `--check` says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from tidemill import config

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
HEAD = """# Configuration

Drawn by `make gen` from `src/tidemill/config.py`; edit that. An unknown key is an error that names the nearest one.
Durations may be written `90`, `90m`, `HH:MM:SS` or `D-HH:MM:SS`, sizes `2GB` or `64KiB`.
"""


def records() -> list[type[msgspec.Struct]]:
    """The records that are a file of their own: those that no other record holds."""
    own = [
        each
        for each in vars(config).values()
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__module__ == config.__name__
    ]
    texts = [str(field.type) for each in own for field in msgspec.structs.fields(each)]
    return [
        each for each in own if each is not config.Key and not any(each.__name__ in text for text in texts)
    ]


def cell(text: str | None) -> str:
    """A text as it may stand in a table."""
    return (text or "").replace("|", "\\|").replace("\n", " ")


def page() -> str:
    """The whole page: one table per file."""
    parts = [HEAD]
    for record in records():
        title, _, rest = (record.__doc__ or record.__name__).strip().partition("\n")
        rows = [
            f"| `{key.key}` | {cell(key.type)} | {cell(key.unit)} "
            f"| {f'`{cell(key.default)}`' if key.default else 'required'} | {cell(key.doc)} |"
            for key in config.describe(record)
        ]
        parts.append(
            "\n".join(
                [
                    f"## {title.rstrip('.')}",
                    rest,
                    "| key | type | unit | default | what for |",
                    "|---|---|---|---|---|",
                    *rows,
                    "",
                ]
            )
        )
    return "\n".join(parts)


def main() -> int:
    """Write the page, or with `--check` compare it. Returns the exit status."""
    if sys.argv[1:] == ["--check"]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
            return 0
        print(f"{PAGE.name} is not what the records say\nhint: make gen", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
