"""The house rules that a program can check (CONTRIBUTING.md lists them). Each test names all offenders at once."""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import draw_config
import draw_files
import pytest
from tests import docstrings, phrases, row_columns

from tidemill import config

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "tidemill"
FILE_LINES_MAX = 800
FOLDER_FILES_MAX = 20
README_LINES_MAX = 120
ONE_FILE_BY_CONTRACT = {"src/tidemill/payload/__init__.py"}  #: payloads get it as a single file
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 5
PYTHON_DEPENDENCIES_MAX = 12
RUST_DEPENDENCIES_MAX = 13
#: settings that docs/configuration.md documents, the five credentials counted once: the number may only fall
SETTINGS = 95
#: public classes that stand in two modules because they are the same idea at two layers, and why
ONE_IDEA_AT_TWO_LAYERS = {
    "ConflictError": "what the server raises, and what its client raises of the answer 409",
}
CLOCKS = {"time.monotonic", "time.perf_counter", "time.process_time", "clock.monotonic_s"}
#: tests that compare with a duration, and why no load of the machine makes them fail
DURATIONS_ALLOWED = {
    "tests/local/server/test_notify_killed.py": "the longer it took, the more digests may have been sent",
}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "base"}
GENERATED = {ROOT / "crates" / "wire" / "src" / "generated.rs"}  # its length follows from wire/node.py
SKIPPED_FOLDERS = {".git", ".venv", ".uv", ".tools", "target", "dist", "var", "tidemill-out", "__pycache__"}
TEXT_SUFFIXES = {
    ".py",
    ".rs",
    ".md",
    ".toml",
    ".sql",
    ".sh",
    ".txt",
    ".c",
    ".h",
    ".cc",
    ".cpp",
    ".json",
    ".html",
    ".css",
    ".js",
}

WALLS: dict[str, tuple[str, ...]] = {
    # module or call -> the only places, relative to src/tidemill, that may use it
    "sqlite3": ("server/database/",),
    "psycopg": ("server/database/",),
    "subprocess": (
        "batch/run.py",
        "node/",
        "transfer/",
        "cli/",
        "examples/",
        "payload/",
        "tidemill_caches/contents/origin_reader.py",
        "tidemill_caches/engine/supervisor.py",
        "tidemill_caches/study/",
        "tidemill_downtimes/calendars.py",
        "tidemill_images/cli/trace.py",
        "tidemill_images/squash.py",
        "tidemill_messages/cli/broker_setup.py",
        "tidemill_stress/cli/schedule.py",
    ),
    "asyncio.create_subprocess_exec": ("batch/run.py", "node/", "transfer/"),
    "asyncio.create_subprocess_shell": (),
    "os.system": (),
    "os.popen": (),
    "os.fsync": ("files.py", "examples/"),
    "os.fdatasync": ("files.py",),
    "time.time": ("clock.py", "payload/", "examples/"),
    "time.time_ns": ("clock.py", "payload/", "examples/"),
    "time.monotonic": ("clock.py", "payload/", "tidemill_calls/", "examples/"),  # calls: workers are payloads
    "time.sleep": ("clock.py", "payload/", "tidemill_calls/", "examples/"),
    "datetime.now": ("clock.py",),
    "datetime.utcnow": ("clock.py",),
    "print": ("cli/terminal.py", "tidemill_calls/worker.py", "tidemill_report/notebook/", "examples/"),
    "rich": ("cli/terminal.py", "cli/progress.py", "client/progress.py"),
}


def files(suffix: str, *folders: str) -> list[Path]:
    """All files of the repository with this suffix, below these folders (none = everywhere)."""
    tops = [ROOT / folder for folder in folders] or [ROOT]
    return [
        path
        for path in all_files()
        if path.name.endswith(suffix) and any(path.is_relative_to(top) for top in tops)
    ]


@functools.cache
def all_files() -> list[Path]:
    """Every file of the repository, read once: folders of builds hold a hundred thousand others."""
    found = []
    for top, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        found += [path for name in names if (path := Path(top, name)).is_file()]
    return sorted(found)


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def python_files() -> list[Path]:
    return files(".py", "src", "extensions", "tests", "bench", "scripts")


def product_files(suffix: str = ".py") -> list[Path]:
    """Files of the core and of extensions that users install."""
    found = [
        path
        for path in files(suffix, "extensions")
        if path.relative_to(ROOT / "extensions").parts[1] == "src"
    ]
    return [*files(suffix, "src"), *found]


def files_of_tests(suffix: str) -> list[Path]:
    """Files below `tests`, the core's and those of extensions."""
    found = [
        path
        for path in files(suffix, "extensions")
        if path.relative_to(ROOT / "extensions").parts[1] == "tests"
    ]
    return [*files(suffix, "tests"), *found]


def place_of(path: Path) -> str:
    """Where a source file is, relative to src/tidemill; one of an extension begins with `tidemill_NAME/`."""
    if path.is_relative_to(SOURCE):
        return path.relative_to(SOURCE).as_posix()
    return Path(*path.relative_to(ROOT / "extensions").parts[2:]).as_posix()


def rust_files() -> list[Path]:
    return [path for path in files(".rs", "crates") if path not in GENERATED]


def at(path: Path, line: int = 0) -> str:
    return f"{path.relative_to(ROOT)}:{line}" if line else str(path.relative_to(ROOT))


def listed(offenders: list[str], rule: str) -> None:
    assert not offenders, f"{rule}:\n  " + "\n  ".join(offenders)


Kept = ast.FunctionDef | ast.AsyncFunctionDef | ast.Import | ast.ImportFrom | ast.Call | ast.ExceptHandler


@pytest.fixture(scope="module", autouse=True)
def parsed() -> Iterator[None]:
    """Parses every Python file once, and keeps the nodes from the collector, which would walk two million."""
    gc.disable()
    for path in python_files():
        nodes(path)
    gc.enable()
    gc.freeze()
    yield
    for each in (text_of, tree_of, nodes):
        each.cache_clear()
    gc.unfreeze()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path), filename=str(path))


@functools.cache
def nodes(path: Path) -> list[Kept]:
    """The nodes that rules ask about: one walk of each file serves them all."""
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, Kept)]


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an expression made of names and attributes, else the empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


def is_flat_table(path: Path) -> bool:
    """A Python file of definitions only: no function and no control flow (such as the messages of the API)."""
    control = (ast.FunctionDef, ast.AsyncFunctionDef, ast.If, ast.For, ast.While, ast.Try)
    return path.suffix == ".py" and not any(isinstance(node, control) for node in nodes(path))


def rust_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, first line and length of each function, for sources as rustfmt writes them: the closing brace stands
    alone, indented as the `fn`."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        match = re.match(r"( *)(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe |extern \"C\" )*fn (\w+)", line)
        if match is None:
            continue
        indent, name = match.groups()
        for length, later in enumerate(lines[number:], start=1):
            if later == f"{indent}}}" or (length == 1 and later.endswith(("}", ";"))):
                yield name, number + 1, length
                break


def test_files_have_at_most_800_lines() -> None:
    offenders = []
    for path in [*python_files(), *rust_files(), *files(".sh", "scripts")]:
        length = len(text_of(path).splitlines())
        if length > FILE_LINES_MAX and not is_flat_table(path) and at(path) not in ONE_FILE_BY_CONTRACT:
            offenders.append(f"{at(path)}: {length} lines")
    listed(offenders, f"a file has at most {FILE_LINES_MAX} lines, flat tables excepted")


def test_folders_have_at_most_20_source_files() -> None:
    sources = [*product_files(), *files_of_tests(".py"), *files(".rs", "crates")]
    offenders = [
        f"{at(folder)}: {number} files"
        for folder, number in sorted(Counter(path.parent for path in sources).items())
        if number > FOLDER_FILES_MAX
    ]
    listed(offenders, f"a folder holds at most {FOLDER_FILES_MAX} source files, then it has rooms")


def test_a_public_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in product_files():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(at(path, node.lineno))
    twice = {name: " and ".join(found) for name, found in places.items() if len(found) > 1}
    known = ONE_IDEA_AT_TWO_LAYERS.keys()
    offenders = [f"`{name}`: {where}" for name, where in twice.items() if name not in known]
    offenders += [f"`{name}` stands once: take it off the list" for name in sorted(known - twice.keys())]
    listed(offenders, "a public class name is defined in one module")


def test_functions_have_at_most_70_lines() -> None:
    offenders = []
    for path in python_files():
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    offenders.append(f"{at(path, node.lineno)}: `{node.name}` has {length}")
    for path in rust_files():
        for name, line, length in rust_functions(text_of(path)):
            if length > FUNCTION_LINES_MAX:
                offenders.append(f"{at(path, line)}: `{name}` has {length}")
    listed(offenders, f"a function has at most {FUNCTION_LINES_MAX} lines")


def test_functions_have_at_most_5_parameters() -> None:
    offenders = []
    for path in product_files():
        for node in nodes(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            positional = [
                arg for arg in [*node.args.posonlyargs, *node.args.args] if arg.arg not in ("self", "cls")
            ]
            number = len(positional) + len(node.args.kwonlyargs)
            if number > PARAMETERS_MAX:
                offenders.append(f"{at(path, node.lineno)}: `{node.name}` has {number}")
    listed(offenders, f"a function has at most {PARAMETERS_MAX} parameters")


def test_no_file_has_a_name_that_says_nothing() -> None:
    offenders = [
        at(path)
        for path in [*python_files(), *files(".rs", "crates")]
        if path.stem in FORBIDDEN_NAMES or path.parent.name in FORBIDDEN_NAMES
    ]
    listed(offenders, "a file or folder is named after what it holds")


def test_every_todo_carries_the_number_of_an_issue() -> None:
    marker = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b(?!\(#\d+\))")
    offenders = [
        f"{at(path, number)}: {line.strip()}"
        for path in [
            *python_files(),
            *files(".rs", "crates"),
            *files(".sh", "scripts"),
            *product_files(".sql"),
        ]
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if marker.search(line)
    ]
    listed(offenders, "what is left to do is written `TODO(#12)`")


def ours_in(path: Path) -> set[str]:
    """Names that a file imports from tidemill."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tidemill":
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {
                (alias.asname or alias.name).split(".")[0]
                for alias in node.names
                if alias.name.startswith("tidemill")
            }
    return names


def replaces_ours(call: ast.Call, ours: set[str]) -> bool:
    """Whether `monkeypatch.setattr(tidemill thing, ...)` or `monkeypatch.setattr("tidemill...", ...)`."""
    if (
        dotted(call.func) not in ("monkeypatch.setattr", "monkeypatch.delattr", "monkeypatch.setitem")
        or not call.args
    ):
        return False
    target = call.args[0]
    if isinstance(target, ast.Constant):
        return str(target.value).startswith("tidemill")
    return dotted(target).split(".")[0] in ours


def test_tests_replace_no_code_of_ours() -> None:
    offenders = []
    for path in files_of_tests(".py"):
        ours = ours_in(path)
        for node in nodes(path):
            if isinstance(node, ast.Import) and any(
                alias.name.startswith("unittest.mock") for alias in node.names
            ):
                offenders.append(f"{at(path, node.lineno)}: imports a mock")
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unittest"):
                offenders += [
                    f"{at(path, node.lineno)}: {a.name}"
                    for a in node.names
                    if "mock" in f"{node.module} {a.name}"
                ]
            elif isinstance(node, ast.Call) and replaces_ours(node, ours):
                offenders.append(f"{at(path, node.lineno)}: {dotted(node.func)}")
    listed(offenders, "tests run the real code: fakes are complete and stand at the edge")


def reads_clock(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) and dotted(each.func) in CLOCKS for each in ast.walk(node))


def durations_in(function: ast.AST) -> set[str]:
    """Names to which a difference of two readings of a clock is given."""
    return {
        dotted(target)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp)
        if isinstance(node.value.op, ast.Sub) and reads_clock(node.value)
        for target in node.targets
    }


def test_no_test_asserts_how_long_something_took() -> None:
    offenders = []
    for path in files_of_tests(".py"):
        names_a_clock = any(clock.rpartition(".")[2] in text_of(path) for clock in CLOCKS)
        for function in nodes(path) if names_a_clock else ():
            if not isinstance(function, ast.FunctionDef) or at(path) in DURATIONS_ALLOWED:
                continue
            durations = durations_in(function)
            # a loop that waits may give up
            waits = {
                id(each)
                for loop in ast.walk(function)
                if isinstance(loop, ast.While)
                for each in ast.walk(loop)
            }
            offenders += [
                f"{at(path, node.lineno)}: in `{function.name}`"
                for node in ast.walk(function)
                if isinstance(node, ast.Assert) and id(node) not in waits
                if reads_clock(node.test) or any(dotted(each) in durations for each in ast.walk(node.test))
            ]
    listed(offenders, "benches measure time; a test counts what was done, or has a clock of its own")


def test_nothing_names_a_path_of_a_developers_machine() -> None:
    private = re.compile(
        r"(?<![\w.$}])(?:/wo"
        r"rk/|/ho"
        r"me/(?!me\b)\w|/ro"
        r"ot/|/Us"
        r"ers/|\.\./sha"
        r"red\b|/tm"
        r"p/tm\b)|sub"
        r"agent"
    )
    offenders = [
        f"{at(path, number)}: {line.strip()[:100]}"
        for path in files("")
        if path.suffix in TEXT_SUFFIXES or path.name in {"Makefile", "run", "NOTICE", ".gitignore"}
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if private.search(line)
    ]
    listed(offenders, "no file knows the machine it was written on")


def test_nothing_names_the_host_of_a_registry() -> None:
    """Clients are configured where they run; text says `the Rust registry`, `the Python registry`."""
    hosts = re.compile(
        r"crates\.i"
        r"o|pyp"
        r"i\.org|pythonhos"
        r"ted|docker\.i"
        r"o|quay\.i"
        r"o|ghcr\.i"
        r"o|npmj"
        r"s\.|proxy\.gola"
        r"ng|anacon"
        r"da\.org|PyP"
        r"I\b"
    )
    named = {"Makefile", "Containerfile", "NOTICE", "run", ".gitignore"}
    offenders = [
        f"{at(path, number)}: {line.strip()[:100]}"
        for path in files("")
        if path.suffix in TEXT_SUFFIXES or path.name in named
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if hosts.search(line)
    ]
    listed(offenders, "no file outside of locks names the host of a registry")


def test_walls_are_not_climbed() -> None:
    offenders = []
    for path in product_files():
        place = place_of(path)
        for node in nodes(path):
            for used in uses(node):
                allowed = WALLS.get(used)
                if allowed is not None and not place.startswith(allowed):
                    offenders.append(
                        f"{at(path, getattr(node, 'lineno', 0))}: `{used}` belongs to {list(allowed)}"
                    )
    listed(offenders, "drivers, processes, clocks and printing have their places")


def uses(node: ast.AST) -> list[str]:
    """Which entries of WALLS this node may stand for."""
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.split(".")[0], *(f"{node.module}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        return [name.removeprefix("datetime.")] if name.startswith("datetime.datetime") else [name]
    return []


def test_only_the_terminal_prints_what_people_read() -> None:
    """Control characters are cleaned where they are written: nothing else in cli/ may hold a stream of the terminal."""
    streams = {f"sys.{name}" for name in ("stdout", "stderr", "__stdout__", "__stderr__")} | {"os.write"}
    offenders = []
    for path in files(".py", "src/tidemill/cli"):
        if path.name == "terminal.py":
            continue
        for node in ast.walk(tree_of(path)):
            named = isinstance(node, ast.ImportFrom) and node.module == "sys"
            if named or (isinstance(node, ast.Attribute) and dotted(node) in streams):
                offenders.append(f"{at(path, getattr(node, 'lineno', 0))}: `{ast.unparse(node)}`")
    listed(offenders, "cli/terminal.py prints for all verbs, and cleans what it prints")


def test_the_payload_library_needs_only_the_standard_library() -> None:
    offenders = []
    for path in files(".py", "src/tidemill/payload"):
        for node in nodes(path):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "."] if not node.level else []
            offenders += [
                f"{at(path, getattr(node, 'lineno', 0))}: {name}"
                for name in names
                if name.split(".")[0] not in sys.stdlib_module_names
            ]
    listed(offenders, "what a payload imports runs wherever a Python is")


def test_only_the_sys_crate_holds_unsafe_code() -> None:
    offenders = []
    for path in rust_files():
        if "sys" in path.relative_to(ROOT / "crates").parts[:1]:
            continue
        for number, line in enumerate(text_of(path).splitlines(), start=1):
            if re.search(
                r"\bunsafe\s*(?:\{|fn\b|impl\b|extern\b|trait\b)|allow\(unsafe_code\)", line.split("//")[0]
            ):
                offenders.append(f"{at(path, number)}: {line.strip()}")
    for path in sorted((ROOT / "crates").glob("*/Cargo.toml")):
        own_lints = path.parent.name == "sys"
        if not own_lints and not tomllib.loads(path.read_text()).get("lints", {}).get("workspace"):
            offenders.append(f"{at(path)}: lacks `[lints] workspace = true`")
    listed(offenders, "unsafe code stands in crates/sys")


def test_documents_name_the_rust_version_that_the_workspace_has() -> None:
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    version = manifest["workspace"]["package"]["rust-version"]
    named = {
        path.name: found
        for path in (ROOT / "docs").rglob("*.md")
        for found in re.findall(
            r"(?:`rust-version`[a-z ]*|rustc [\d.]+ \(ours is )([\d.]+\d)", path.read_text()
        )
    }
    assert named
    assert {name: found for name, found in named.items() if found != version} == {}


def test_dependencies_are_few() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rust: set[str] = set()
    for path in (ROOT / "crates").glob("*/Cargo.toml"):
        rust |= set(tomllib.loads(path.read_text()).get("dependencies", {}))
    foreign = sorted(name for name in rust if not name.startswith("tidemill-"))

    assert len(project["dependencies"]) <= PYTHON_DEPENDENCIES_MAX
    assert len(foreign) <= RUST_DEPENDENCIES_MAX, foreign


def test_no_exception_is_caught_blindly() -> None:
    offenders = []
    for path in product_files():
        for node in nodes(path):
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                offenders.append(f"{at(path, node.lineno)}: bare except")
            elif (
                isinstance(node, ast.ExceptHandler)
                and all(isinstance(each, ast.Pass) for each in node.body)
                and dotted(node.type or ast.Pass()) in ("Exception", "BaseException")
            ):
                offenders.append(f"{at(path, node.lineno)}: {dotted(node.type or ast.Pass())} passed over")
    listed(offenders, "catch only what you can act on")


def test_every_public_function_says_what_it_gives() -> None:
    offenders = []
    for path in [*product_files(), *files(".py", "scripts")]:
        tree = tree_of(path)
        if not ast.get_docstring(tree) and tree.body:
            offenders.append(f"{at(path)}: module")
        owners: list[ast.Module | ast.ClassDef] = [
            tree,
            *(n for n in tree.body if isinstance(n, ast.ClassDef)),
        ]
        for owner in owners:
            for node in owner.body:
                if isinstance(owner, ast.ClassDef) and owner.name.startswith("_"):
                    continue
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    overload = any(
                        dotted(each).endswith(("overload", "setter")) for each in node.decorator_list
                    )
                    if not node.name.startswith("_") and not ast.get_docstring(node) and not overload:
                        offenders.append(f"{at(path, node.lineno)}: `{node.name}`")
    listed(offenders, "every public module, class and function has a docstring")


def test_docstrings_name_their_object() -> None:
    offenders = [
        f"{at(path, getattr(node, 'lineno', 1))}: {text[:80]}"
        for path in product_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if (text := ast.get_docstring(node)) and docstrings.is_nameless(text)
    ]
    listed(offenders, "a docstring names its object: `The status of an allocation.`, not `The word on it.`")


def test_a_docstring_without_an_object_is_found() -> None:
    texts = ("What it names.", "The word on an allocation.", "See the module.", "The same for a campaign.")
    assert all(map(docstrings.is_nameless, texts))


def test_every_named_query_is_used() -> None:
    words = {word for path in product_files() for word in re.findall(r"\w+", text_of(path))}
    offenders = [
        f"{at(path, number)}: `{match.group(1)}`"
        for path in product_files(".sql")
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if (match := re.match(r"--\s*(?:name|query):\s*(\w+)", line)) and match.group(1) not in words
    ]
    listed(offenders, "a named SQL block that no code asks for is deleted")


def config_keys() -> list[str]:
    """Every key of every configuration file (all records named `...Config`, tables opened), application and job."""
    added = [each for found in draw_config.records_of_extensions().values() for each in found]
    records = [*draw_config.records(), *added]
    keys = {key.key for record in records for key in config.describe(record, inside=True)}
    return sorted(
        keys
        | {row.key for _, file, record in draw_files.SECTIONS for row in draw_files.rows(file, record)[1]}
    )


def test_the_server_reads_columns_of_a_row_by_their_names() -> None:
    product = set(product_files())
    offenders = [
        at(path, line)
        for path in files(".py", "src/tidemill/server", "extensions")
        if path in product
        for line in row_columns.by_number(tree_of(path))
    ]
    listed(
        offenders, "a row of the database is read by name: a number means another column once one is added"
    )


@pytest.mark.parametrize("text", [
    'session.rows("x")[0][4]', "row[20]", 'row(session, "x")[1]', "rows[-1][0]",
    "[each[1] for each in session.rows(name)]", "rows[0][3:5]", "sorted(rows, key=lambda row: -row[6])",
])  # fmt: skip
def test_a_column_by_number_is_found(text: str) -> None:
    assert row_columns.by_number(ast.parse(f"def f():\n    return {text}")) == [2]


@pytest.mark.parametrize(
    "text", ["rows[-1].id", "rows[:3]", "values(session, name)[0]", "row.parts[0]", "found[0]"]
)
def test_a_row_or_another_list_by_number_is_not(text: str) -> None:
    assert row_columns.by_number(ast.parse(f"def f():\n    return {text}")) == []


def test_the_number_of_settings_does_not_grow_unnoticed() -> None:
    found = draw_config.total()
    assert found == SETTINGS, (
        f"{found} settings are documented: lower SETTINGS, or make the new one a constant"
    )


def command_verbs() -> list[str]:
    """Verbs of the command line, as `tidemill --help` lists them."""
    return (
        sorted(importlib.import_module("tidemill.cli.main").VERBS)
        if (SOURCE / "cli" / "main.py").exists()
        else []
    )


def documentation() -> str:
    return "\n".join(text_of(path) for path in [*files(".md", "docs", "extensions"), *ROOT.glob("*.md")])


def test_every_configuration_key_is_documented() -> None:
    text = documentation()
    listed(
        [key for key in config_keys() if f"`{key}`" not in text],
        "docs/ tells every key of a configuration file",
    )


def test_every_verb_of_the_command_line_is_documented() -> None:
    text = documentation()
    offenders = [
        verb for verb in command_verbs() if not re.search(rf"tidemill (?:\w+ )?{verb}\b|`{verb}`", text)
    ]
    listed(offenders, "docs/ or README.md tells every verb")


def test_no_document_opens_the_socket_to_a_shared_machine() -> None:
    """The Unix socket asks for no login: behind a TCP port of a login node it is everybody's."""
    bridge = re.compile(
        r"\bsocat\b|\bncat\b|ssh -\w*g\w* -L|-L \*:|0\.0\.0\.0:\d+:\S*api\.sock|`HOST` = `localhost`"
    )
    offenders = [
        f"{at(path, number)}: {line.strip()[:100]}"
        for path in [*ROOT.glob("*.md"), *files(".md", "docs", "extensions", "deploy"), *product_files()]
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if bridge.search(line) or ("ssh -L" in line and ".sock" in line)
    ]
    listed(offenders, "the API's socket is forwarded nowhere: `tidemill web` asks for a login")


def test_texts_avoid_the_phrases_of_the_list() -> None:
    """`tests/phrases.py` holds the list. Files with a number in `phrases_left.txt` are still to be rewritten."""
    left = phrases.left()
    found = phrases.offences()
    numbers = Counter(each.path for each in found)
    offenders = [
        f"{each.path}:{each.line}: `{each.phrase}` -> {phrases.better(each.phrase)}: {each.text[:100]}"
        for each in found
        if numbers[each.path] > left.get(each.path, 0)
    ]
    listed(offenders, "text is plain: subject, verb, object")
    fewer = [
        f"{path}: write {numbers[path] or 'nothing'} instead of {number}"
        for path, number in left.items()
        if numbers[path] < number
    ]
    listed(fewer, "tests/phrases_left.txt shrinks with what it lists")


def test_links_between_documents_lead_somewhere() -> None:
    offenders = []
    for path in [*ROOT.glob("*.md"), *files(".md", "docs", "extensions")]:
        text = re.sub(r"```.*?```", "", text_of(path), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if not re.match(r"[a-z]+:", target) and not (path.parent / target).exists():
                offenders.append(f"{at(path)}: {target}")
    listed(offenders, "a link leads to a file of the repository")


def test_every_page_names_its_purpose_in_its_first_sentence() -> None:
    purpose = re.compile(r"This (?:page|tutorial|how-to|reference) \w+")
    offenders = []
    for path in files(".md", "docs", "extensions"):
        if path.parent.name == "decisions" or path.name == "README.md":
            continue
        text = re.sub(r"<!--.*?-->", "", text_of(path), flags=re.DOTALL)
        first = next((line for line in text.splitlines()[1:] if line.strip()), "")
        if not purpose.match(first):
            offenders.append(f"{at(path)}: {first[:80]}")
    listed(offenders, "a page has one purpose: `This page lists ...`, `This how-to installs ...`")


def test_decisions_are_numbered_each_once() -> None:
    found = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(path.name[:4]) for path in found] == list(range(1, len(found) + 1))


def test_each_cell_of_the_comparison_has_a_source_and_a_day() -> None:
    page = (ROOT / "docs" / "decisions" / "evidence" / "comparison.md").read_text(encoding="utf-8")
    _, _, features = page.partition("## Features\n")
    table, _, sources = features.partition("## Sources\n")
    days = dict(re.findall(r"^\| ([A-Z]\d) \|.*\| (\d{4}-\d\d-\d\d) \|$", sources, re.MULTILINE))
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    assert rows
    assert days
    offenders = [
        f"comparison.md, {row[0].strip()}: {cell.strip()}"
        for row in rows
        for cell in row[2:]
        if not (named := re.findall(r"\[\[(\w+)\]\]", cell)) or set(named) - days.keys()
    ]
    listed(offenders, "each cell on another tool names a source with the day on which it was read")
    item = r"(?:the whole repository|`[^` ]+`(?:, `[^` ]+`)*) at [0-9a-f]{7}"
    form = re.compile(
        rf"(?:\[([\w.-]+/[\w.-]+)\]\(https://github\.com/\1\)|the same), {item}(?:[,;] {item})*"
    )
    named = re.findall(r"^\| ([A-Z]\d) \| (.*) \| [\d-]+ \|$", sources, re.MULTILINE)
    assert len(named) == len(days)
    offenders = [f"comparison.md, {key}: {text}" for key, text in named if not form.fullmatch(text)]
    listed(offenders, "a source is files of a repository, each with the commit at which it was read")


def test_the_readme_is_a_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES_MAX


def test_every_group_of_tests_runs_in_a_lane_and_is_documented() -> None:
    """`make test-all`, tests/README.md and the folders of tests name the same groups."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    assigned = dict(re.findall(r"^(\w+) :?= ?(.*)$", text, flags=re.MULTILINE))
    groups = assigned["GROUPS"].split()
    page = (ROOT / "tests" / "README.md").read_text(encoding="utf-8").partition("| group |")[2]
    rows = re.findall(r"^\| `([\w-]+)` \|", page.partition("\n\n")[0], flags=re.MULTILINE)
    listed(sorted(set(groups) ^ set(rows)), "tests/README.md has a row for each group of the Makefile")
    lanes = re.findall(r"test-(\w+)", assigned["ORDER"])
    listed(sorted(set(groups) ^ set(lanes)), "each group runs in one lane of `make test-all`")
    assert len(lanes) == len(set(lanes))
    missing = [
        path
        for group in groups
        for path in assigned.get(f"TESTS_{group}", f"tests/{group}").split()
        if not (ROOT / path.partition("::")[0]).exists()
    ]
    listed(missing, "a group is folders and tests that there are")
