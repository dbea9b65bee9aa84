"""Write crates/tidemill-node/THIRD-PARTY.txt, the licences of what is linked into the program; `--check` compares."""

from __future__ import annotations

import sys
from pathlib import Path

from locked_crates import PROGRAM, ROOT, Crate, linked_crates

PAGE = ROOT / "crates" / PROGRAM / "THIRD-PARTY.txt"
KINDS = ("LICENSE", "LICENCE", "COPYING", "UNLICENSE", "NOTICE", "COPYRIGHT")
#: where an author lets the reader choose, this one is taken: the first that a crate has
CHOICE = ("LICENSE-MIT", "LICENSE", "LICENSE-BSD", "LICENSE-APACHE")
RULE = "=" * 100
HEAD = """\
The program `tidemill-node` is linked statically. It holds the crates below, each under the licence below its name,
the Rust standard library (copyright The Rust Project Developers, under the MIT License or the Apache License 2.0)
and parts of the GNU C Library (see NOTICE). Made from Cargo.lock by scripts/third_party.py.
"""


def texts_of(crate: Crate) -> dict[str, str]:
    """The licence that is taken of a crate's, and its notices, by file name; those of sources that it bundles too."""
    files = {path.name: path for path in crate.folder.iterdir() if path.name.upper().startswith(KINDS)}
    chosen = next((name for name in CHOICE if name in files), None)
    wanted = [
        name
        for name in sorted(files)
        if name == chosen or name.startswith(("NOTICE", "COPYRIGHT")) or (chosen == "LICENSE" and "." in name)
    ]
    found = {name: files[name].read_text(encoding="utf-8", errors="replace") for name in wanted}
    for path in sorted(crate.folder.glob("*/LICENSE")):  # such as the C library zstd in zstd-sys
        found[str(path.relative_to(crate.folder))] = path.read_text(encoding="utf-8", errors="replace")
    return found


def page() -> str:
    """The file. Texts that several crates have in common stand once."""
    by_text: dict[str, list[str]] = {}
    for crate in linked_crates():
        if crate.sha256 is None:
            continue  # of this repository
        texts = texts_of(crate)
        if not texts:
            raise SystemExit(f"error: {crate.name} {crate.version} has no file with its licence")
        for name, text in texts.items():
            lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
            by_text.setdefault(lines, []).append(f"{crate.name} {crate.version} ({crate.license}), {name}")
    parts = [f"{RULE}\n" + "\n".join(names) + f"\n{RULE}\n\n{text}\n" for text, names in by_text.items()]
    return HEAD + "\n" + "\n".join(parts)


def main() -> int:
    """Write or compare; 1 if it differs."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(
        f"error: {Path(PAGE).relative_to(ROOT)} is not what Cargo.lock says; run `make gen`", file=sys.stderr
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
