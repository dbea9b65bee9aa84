"""Directories that container tools export are trees like any other: packed, listed, run."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from extensions.images.tests.squashfs.image_world import build_tree, build_used, needs, place

from tidemill.cli.main import main
from tidemill.errors import ConfigError
from tidemill_images.areas import Tree, parse_tree, trees_below_root
from tidemill_images.catalogue import find_recipe
from tidemill_images.name_list import read_listing

__all__ = ["place"]

CODE = "import sys; from tidemill.cli.main import main; sys.exit(main(sys.argv[1:]))"

TOOL = """#include <stdio.h>
int main(void)
{
    char text[80] = "";
    FILE *file = fopen("/opt/tool/data.txt", "r");
    return file && fgets(text, sizeof text, file) && printf("read %s", text) > 0 ? 0 : 1;
}
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A container without a system: one static program, its data, and what a runtime needs to mount on."""
    needs("gcc", "mksquashfs")
    top = tmp_path / "root"
    for name in ("opt/tool/bin", "etc", "proc", "tmp"):
        (top / name).mkdir(parents=True)
    (tmp_path / "tool.c").write_text(TOOL)
    subprocess.run(
        ["gcc", "-static", "-o", top / "opt" / "tool" / "bin" / "tool", tmp_path / "tool.c"], check=True
    )
    (top / "opt" / "tool" / "data.txt").write_text("its data\n")
    (top / "etc" / "hostname").write_text("container\n")
    with tarfile.open(tmp_path / "container.tar", "w") as tar:
        tar.add(top, ".")
    return tmp_path / "container.tar"


def from_podman(archive: Path, target: Path, short_path: Path) -> None:
    needs("podman")
    exported = archive.parent / "export.tar"

    def podman(*words: str | Path) -> None:
        state: list[str | Path] = [
            "--root",
            short_path / "store",
            "--runroot",
            short_path / "run",
            "--storage-driver",
            "vfs",
        ]
        subprocess.run(["podman", *state, *words], check=True, capture_output=True)

    podman("import", "-q", archive, "tool:1")
    podman("create", "--name", "c", "tool:1", "/x")
    podman("export", "-o", exported, "c")
    target.mkdir()
    subprocess.run(["tar", "-C", target, "-xf", exported], check=True)


def from_charliecloud(archive: Path, target: Path, short_path: Path) -> None:
    needs("ch-convert")
    subprocess.run(["ch-convert", "-i", "tar", "-o", "dir", archive, target], check=True, capture_output=True)


@pytest.mark.parametrize("export", [from_podman, from_charliecloud], ids=["podman", "charliecloud"])
def test_an_exported_container_becomes_an_image_and_runs(
    export: Callable[[Path, Path, Path], None], archive: Path, short_path: Path, place: Path
) -> None:
    tree, store = archive.parent / "tree", place / "store"
    export(archive, tree, short_path)
    command = [sys.executable, "-c", CODE, "image"]
    subprocess.run(
        [*command, "build", "--store", store, "--name", "tool", "--tree", f"{tree}:/"],
        check=True,
        capture_output=True,
    )
    path, recipe = find_recipe(store, "tool")
    assert recipe.areas == ["/opt"]
    assert {each.path for each in read_listing(path.parent, recipe.listing)} == {
        *("/opt", "/opt/tool", "/opt/tool/bin", "/opt/tool/bin/tool", "/opt/tool/data.txt")
    }
    run = subprocess.run(
        [*command, "run", "tool", "--store", store, "--", "/opt/tool/bin/tool"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.returncode) == ("read its data\n", 0), run.stderr


def test_a_whole_system_leaves_to_the_node_what_is_the_nodes(tmp_path: Path) -> None:
    for name in ("usr/bin", "opt/x", "etc", "proc", "home/me", "dev", "var/lib/x", "mnt/empty", "run/x"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("")
    (tmp_path / "srv").mkdir()
    (tmp_path / "bin").symlink_to("usr/bin")
    shown = [tree.at for tree in trees_below_root(Tree(str(tmp_path), "/"))]
    assert shown == ["/opt", "/usr", "/var"]
    assert "/etc" in [tree.at for tree in trees_below_root(Tree(str(tmp_path), "/"), asked=["/etc"])]
    assert "/proc" not in [tree.at for tree in trees_below_root(Tree(str(tmp_path), "/"), asked=["/proc"])]


def test_trees_are_read_as_source_and_place(tmp_path: Path) -> None:
    assert parse_tree(str(tmp_path)) == Tree(str(tmp_path), str(tmp_path))
    assert parse_tree(f"{tmp_path}:/sw/x") == Tree(str(tmp_path), "/sw/x")
    with pytest.raises(ConfigError, match="not a plain absolute path"):
        parse_tree(f"{tmp_path}:/sw/../x")
    with pytest.raises(ConfigError, match="is not a directory"):
        parse_tree(f"{tmp_path}/none")


PROGRAM = """
import json, os, sys
found = {"json": json.__file__}
import sqlite3
found["sqlite3"] = sqlite3.connect(":memory:").execute("select 6 * 7").fetchone()[0]
found["stub"] = os.path.islink(os.path.dirname(sqlite3.__file__))
try:
    import no_such_module
except ModuleNotFoundError as error:
    found["missing"] = str(error)
try:
    open(os.path.join(os.path.dirname(os.__file__), "no_such_file"))
except OSError as error:
    found["errno"] = error.errno
print(json.dumps(found))
"""


@pytest.mark.parametrize("mode", ["auto", "unpack"])
def test_modules_that_no_run_used_work_and_names_that_do_not_exist_fail(mode: str, place: Path) -> None:
    """The image holds what `import json` uses; `sqlite3` was never traced."""
    needs("mksquashfs")
    library = Path(sysconfig.get_path("stdlib")).resolve()
    listed = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import json, sys\n" + LIST], capture_output=True, check=True
    )
    used = [Path(path) for path in json.loads(listed.stdout)]
    build_used(library, [library, *used, library / "no_such_module.py"], place / "store")
    run = subprocess.run(
        [
            *(sys.executable, "-c", CODE, "image", "run", "used", "--store", place / "store"),
            *("--mode", mode, "--", sys.executable, "-I", "-S", "-c", PROGRAM),
        ],
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode()
    assert json.loads(run.stdout) == {
        "json": str(library / "json" / "__init__.py"),
        "sqlite3": 42,
        "stub": True,
        "missing": "No module named 'no_such_module'",
        "errno": 2,
    }


LIST = """
files = [getattr(module, name, None) for module in sys.modules.values() for name in ("__file__", "__cached__")]
print(json.dumps([each for each in files if each]))
"""


def test_a_tree_seen_elsewhere_is_verified_at_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("mksquashfs")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a").write_text("1")
    (tmp_path / "tree" / "b.log").write_text("1")
    build_tree(tmp_path / "tree", "/sw/x", tmp_path / "store", exclude=("*.log",))
    assert main(["image", "verify", "x", "--store", str(tmp_path / "store")]) == 0
    (tmp_path / "tree" / "c").write_text("1")
    assert main(["image", "verify", "x", "--store", str(tmp_path / "store")]) == 1
    assert "added    /sw/x/c" in capsys.readouterr().out
