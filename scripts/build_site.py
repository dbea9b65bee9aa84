"""Build docs/ and the pages of extensions as a site in target/site, strictly: no link or anchor is dead, every page is
in the navigation, and nothing is loaded from another host. `make site` installs the generator first."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
STAGE = ROOT / "target" / "site-source"
SITE = ROOT / "target" / "site"
EXTENSIONS = ROOT / "extensions"
NO_DECISIONS = '{ "Decisions" = [] }'  # in the navigation: where their pages are listed
LINK = re.compile(r"(\]\()([^)\s#]*)(#[^)\s]*)?(\))")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
FOREIGN = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^\s\"'>]+", re.IGNORECASE
)
IDENTITY = re.compile(r"rel=[\"']?(?:canonical|edit|me)\b")  # names an address, loads nothing


def staged(path: Path) -> Path:
    """A file's place in the staged tree: pages of docs/ at the top, other files below `extensions` or `repository`."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    if path.is_relative_to(EXTENSIONS):
        return path.relative_to(ROOT)
    return Path("repository") / path.relative_to(ROOT)


def rewritten(source: Path, text: str, wanted: list[Path]) -> str:
    """A page with its relative links for the staged tree; files that it links to are added to `wanted`."""

    def moved(match: re.Match[str]) -> str:
        target = match[2]
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        path = (source.parent / target).resolve()
        if not path.exists() or not path.is_relative_to(ROOT):
            return match[0]  # the strict build names it
        if path.is_dir():  # it has no page: the first one in it, beside which the navigation lists the others
            path = min(path.glob("*.md"), default=path)
        wanted.append(path)
        return f"{match[1]}{os.path.relpath(staged(path), staged(source).parent)}{match[3] or ''}{match[4]}"

    parts, end = [], 0
    for code in CODE.finditer(text):
        parts += [LINK.sub(moved, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(moved, text[end:])])


def stage() -> list[Path]:
    """Write the staged tree anew; its pages, relative to it."""
    shutil.rmtree(STAGE, ignore_errors=True)
    wanted = [
        *sorted(DOCS.rglob("*.md")),
        *sorted(EXTENSIONS.glob("*/README.md")),
        *sorted(EXTENSIONS.glob("*/docs/*.md")),
        ROOT / "GLOSSARY.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "CHANGELOG.md",
    ]
    done: set[Path] = set()
    pages = []
    while wanted:
        source = wanted.pop(0)
        if source in done or source.is_dir():
            continue
        done.add(source)
        place = STAGE / "docs" / staged(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            place.write_text(rewritten(source, source.read_text(encoding="utf-8"), wanted), encoding="utf-8")
            pages.append(staged(source))
        else:
            shutil.copyfile(source, place)
    return pages


def targets(nav: list[Any]) -> list[str]:
    """The pages of a navigation, in order."""
    found: list[str] = []
    for entry in nav:
        for value in entry.values():
            found += [value] if isinstance(value, str) else targets(value)
    return found


def configuration(pages: list[Path]) -> list[str]:
    """Write the staged configuration with the decisions in it; what is wrong with the navigation."""
    text = (DOCS / "zensical.toml").read_text(encoding="utf-8")
    decisions = sorted(page for page in pages if page.parts[0] == "decisions")
    rows = "".join(f'\n      "{page}",' for page in decisions)
    filled = text.replace(NO_DECISIONS, f'{{ "Decisions" = [{rows}\n    ] }}')
    (STAGE / "zensical.toml").write_text(filled, encoding="utf-8")
    listed = targets(tomllib.loads(text)["project"]["nav"])
    problems = (
        [] if NO_DECISIONS in text else [f"docs/zensical.toml has no place for decisions: {NO_DECISIONS}"]
    )
    problems += [
        f"docs/zensical.toml lists `{page}` twice" for page in sorted(set(listed)) if listed.count(page) > 1
    ]
    problems += [
        f"docs/zensical.toml lists `{page}`, which does not exist"
        for page in listed
        if Path(page) not in pages
    ]
    missing = [
        page for page in pages if page.parts[0] not in ("decisions", "repository") and str(page) not in listed
    ]
    return problems + [f"docs/zensical.toml does not list `{page}`" for page in missing]


def foreign() -> list[str]:
    """What pages of the built site load from other hosts."""
    return [
        f"{page.relative_to(SITE)} loads from another host: {found[0][:150]}"
        for page in sorted(SITE.rglob("*.html"))
        for found in FOREIGN.finditer(page.read_text(encoding="utf-8"))
        if not IDENTITY.search(found[0])
    ]


def main() -> int:
    """Stage, check, build, check; 1 with every problem on stderr."""
    problems = configuration(stage())
    built = subprocess.run(
        [str(Path(sys.argv[1]).absolute()), "build", "--strict", "--clean"],
        cwd=STAGE, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    if built.returncode:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", built.stdout + built.stderr)
        problems.append(plain.partition("Traceback (most recent")[0])
    else:
        shutil.rmtree(SITE, ignore_errors=True)
        shutil.move(STAGE / "site", SITE)
        problems += foreign()
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"target/site/index.html: {len(list(SITE.rglob('*.html')))} pages")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
