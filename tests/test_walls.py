"""Between the core and extensions: what an extension may import, and that nothing forgets one (docs/extensions.md)."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.verb_help import check_help

import tidemill
from tidemill import extensions
from tidemill.cli.reference import extension_page
from tidemill.cli.verbs import CORE, VERBS
from tidemill.model.failure import FailureClass, next_step

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent for path in ROOT.glob("extensions/*/pyproject.toml"))
NAMES = [folder.name for folder in FOLDERS]
PAGE = (ROOT / "docs" / "extensions.md").read_text(encoding="utf-8").partition("## Public modules")[2]
PUBLIC = tuple(re.findall(r"^\| `(tidemill[\w.]*)` \|", PAGE, flags=re.MULTILINE))


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def imported(path: Path) -> set[str]:
    """The modules that a file imports, with the names that it imports from packages."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            is_top = node.module == "tidemill"
            found |= {f"tidemill.{alias.name}" for alias in node.names} if is_top else {node.module}
    return found


def brings_of(name: str) -> extensions.Brings:
    """What the core knows of an extension of this repository; a test fails where that is nothing."""
    if name not in extensions.KNOWN:
        pytest.fail(
            f"extensions/{name} has no entry in KNOWN of src/tidemill/extensions.py: add `{name!r}: Brings(...)` with "
            "the names of its entry points (docs/extensions.md)"
        )
    return extensions.KNOWN[name]


def is_public(module: str, name: str = "") -> bool:
    """Whether an extension of this name may import a module: also what it brings to `tidemill` itself."""
    own = extensions.KNOWN[name].sdk if name in extensions.KNOWN else ()
    return module.removeprefix("tidemill.") in ("__version__", *own) or any(
        module == each or module.startswith(f"{each}.") for each in PUBLIC
    )


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {verb for group in CORE.values() for verb in group}))
def test_every_verb_of_an_extension_has_help_with_an_example_and_an_about_for_each_option(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_help(verb, capsys)


@pytest.mark.parametrize("failure", FailureClass)
def test_a_next_step_of_a_failure_names_verbs_that_exist(failure: FailureClass) -> None:
    for text in re.findall(r"`tidemill ([^`]*)`", next_step(failure, job=17, event=3)):
        words = text.split()
        assert {" ".join(words[:2]), words[0]} & VERBS.keys(), text


def test_an_extension_imports_public_modules_of_the_core_and_no_other_extension() -> None:
    assert len(PUBLIC) > 5
    assert not is_public("tidemill.server.core")
    offenders = [
        f"{path.relative_to(ROOT)}: {module}"
        for folder in FOLDERS
        for path in sorted(folder.glob("src/**/*.py"))
        for module in sorted(imported(path))
        if module.partition(".")[0].startswith("tidemill")
        if module.partition(".")[0] != f"tidemill_{folder.name}" and not is_public(module, folder.name)
    ]
    assert offenders == []


def test_every_public_module_exists() -> None:
    source = ROOT / "src"
    paths = {each: source / each.replace(".", "/") for each in PUBLIC}
    assert [
        each for each, path in paths.items() if not path.is_dir() and not path.with_suffix(".py").exists()
    ] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_an_extension_has_the_cores_version_and_is_pinned_to_it(folder: Path) -> None:
    about = project(folder)["project"]
    assert about["name"] == f"tidemill-{folder.name}"
    assert about["version"] == tidemill.__version__
    assert f"tidemill=={tidemill.__version__}" in about["dependencies"]
    assert (folder / "src" / f"tidemill_{folder.name}" / "py.typed").exists()


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_no_list_of_extensions_forgets_one(folder: Path) -> None:
    name = folder.name
    core = project(ROOT)
    extras = core["project"]["optional-dependencies"]
    assert name in extras, f"add `{name} = [...]` to [project.optional-dependencies] of pyproject.toml"
    assert f"tidemill-{name}" in extras[name]
    assert f"tidemill-{name}" in extras["all"]
    assert f"tidemill-{name}" in core["tool"]["uv"]["sources"]
    assert f"extensions/{name}/src" in core["tool"]["mypy"]["mypy_path"]
    linter = core["tool"]["importlinter"]
    forbidden = [each for each in linter["contracts"] if each["name"].startswith("the core imports no")]
    assert f"tidemill_{name}" in forbidden[0]["forbidden_modules"]
    for page in ("README.md", "docs/cli.md"):
        assert (folder / page).exists() or not brings_of(name).verbs


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_the_core_knows_what_an_extension_brings(folder: Path) -> None:
    brings = brings_of(folder.name)
    assert folder.name in extensions.installed(), "scripts/setup.sh installs it"
    entries = extensions.installed()[folder.name].entries
    assert entries == project(folder)["project"]["entry-points"]
    tables = [table for name, table in extensions.tables(extensions.VERBS) if name == folder.name]
    assert sorted(brings.verbs) == sorted(
        verb for table in tables for group in table.values() for verb in group
    )
    assert set(brings.batch) == entries.get(extensions.BATCH, {}).keys()
    assert set(brings.transfer) == entries.get(extensions.TRANSFER, {}).keys()
    assert set(brings.pages) == entries.get(extensions.PAGES, {}).keys()
    assert set(brings.routes) == entries.get(extensions.ROUTES, {}).keys()
    assert set(brings.views) == entries.get(extensions.VIEWS, {}).keys()
    assert set(brings.sdk) == entries.get(extensions.SDK, {}).keys()
    assert set(brings.settings) == entries.get(extensions.SETTINGS, {}).keys()
    assert set(brings.transports) == entries.get(extensions.TRANSPORTS, {}).keys()
    assert set(brings.caches) == entries.get(extensions.CACHES, {}).keys()
    assert set(brings.providers) == entries.get(extensions.PROVIDERS, {}).keys()


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name in extensions.KNOWN and brings_of(name).verbs]
)
def test_the_page_of_its_commands_is_what_the_parsers_say(name: str) -> None:
    page = ROOT / "extensions" / name / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == extension_page(name), "make gen"


def test_an_extension_that_the_core_does_not_know_is_named_with_what_to_add() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"add `'stubq': Brings\(\.\.\.\)`"):
        brings_of("stubq")


def test_extensions_have_no_verb_of_the_core() -> None:
    core = {verb for group in CORE.values() for verb in group}
    assert [verb for each in extensions.KNOWN.values() for verb in each.verbs if verb in core] == []
    assert extensions.KNOWN.keys() == set(NAMES)


def test_each_folder_of_an_extensions_tests_runs_somewhere() -> None:
    with_it = {"unit", "property", "contract", "local", "fuzz"}  # run by `make test-EXTENSION`
    by_hand = {"large"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").split()
    folders = {
        str(path.relative_to(ROOT))
        for path in ROOT.glob("extensions/*/tests/*")
        if any(path.glob("**/test_*.py")) and path.name not in with_it | by_hand
    }
    assert folders, "of several extensions"
    assert folders <= set(makefile)
