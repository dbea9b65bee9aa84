"""A store of images over time: verified, cleaned, exported, shared by builders at once, damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from extensions.images.tests.squashfs.image_world import (
    OLD_S,
    build_tree,
    build_used,
    needs,
    place,
    write_release,
)

from tidemill import clock
from tidemill.cli.main import main
from tidemill.errors import ConfigError, SiteError
from tidemill.image.recipe import Recipe, read_store, use_of
from tidemill_images.catalogue import Kept, find_recipe, own_bytes
from tidemill_images.name_list import read_listing
from tidemill_images.removal import DOOMED, named_images, plan_removal, remove, used_packs
from tidemill_images.verify import What, check_store, compare

__all__ = ["place"]

FOREVER_US = 2**62


@pytest.fixture(autouse=True)
def tools() -> None:
    needs("mksquashfs")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two releases that share nine tenths."""
    build_tree(write_release(tmp_path / "one", files=80), "/sw/rel1", tmp_path / "store")
    build_tree(write_release(tmp_path / "two", files=80, changed=0.1), "/sw/rel2", tmp_path / "store")
    return tmp_path / "store"


def kept(
    *named: str, used: frozenset[str] = frozenset(), newest: int = 0, young_us: int = FOREVER_US
) -> Kept:
    return Kept(named=named, used=used, newest=newest, young_us=young_us, left_us=0)


def differences(store: Path, name: str, *, content: bool = False) -> dict[str, What]:
    path, recipe = find_recipe(store, name)
    listed = read_listing(path.parent, recipe.listing)
    return {Path(each.path).name: each.what for each in compare(recipe, listed, content=content)}


def test_verify_tells_what_was_changed_added_and_removed_since(tmp_path: Path, store: Path) -> None:
    assert differences(store, "rel1") == {}
    pkg = tmp_path / "one" / "python" / "pkg"
    first, second, third, *_ = sorted(path for path in pkg.iterdir() if path.is_file())
    first.write_bytes(b"shorter")
    os.utime(second, (OLD_S + 5, OLD_S + 5))
    third.unlink()
    (pkg / "new.py").write_bytes(b"")
    expected = {first.name: What.CHANGED, third.name: What.REMOVED, "new.py": What.ADDED}
    assert differences(store, "rel1") == {**expected, second.name: What.CHANGED}
    assert differences(store, "rel1", content=True) == expected


def test_verify_by_content_finds_bytes_that_changed_behind_their_time(tmp_path: Path, store: Path) -> None:
    path = tmp_path / "one" / "bin" / "tool"
    status = next(each for each in (tmp_path / "one" / "bin").iterdir()).stat()
    path = next(each for each in (tmp_path / "one" / "bin").iterdir())
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert differences(store, "rel1") == {}
    assert differences(store, "rel1", content=True) == {path.name: What.CHANGED}


def test_verify_knows_names_that_are_not_packed(place: Path) -> None:
    area = write_release(place / "sw", files=30)
    used = sorted((area / "bin").iterdir())[0]
    build_used(area, [used], place / "store")
    assert differences(place / "store", "used") == {}
    (area / "bin" / "later").write_bytes(b"")
    other = sorted((area / "bin").iterdir())[1]
    other.unlink()
    assert differences(place / "store", "used") == {"later": What.ADDED, other.name: What.REMOVED}


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_pack_is_told_by_its_path(
    damage: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, recipe = find_recipe(store, "rel1")
    pack = store / next(iter(recipe.packs()))
    content = bytearray(pack.read_bytes())
    pack.unlink()
    if damage == "cut":
        pack.write_bytes(content[:-100])
    elif damage == "changed":
        content[1000] ^= 1
        pack.write_bytes(content)
    (wrong,) = check_store(recipe, path.parent)
    assert "rel1" in wrong
    assert (recipe.file.sha256[:12] if damage == "changed" else str(pack)) in wrong
    assert main(["image", "verify", "rel1", "--store", str(store)]) == 1
    assert wrong in capsys.readouterr().out


def test_a_damaged_pack_is_not_built_upon(tmp_path: Path, store: Path) -> None:
    recipe = find_recipe(store, "rel1")[1]
    pack = store / next(iter(recipe.packs()))
    pack.write_bytes(pack.read_bytes()[:-100])
    built = build_tree(tmp_path / "one", "/sw/rel1", store, name="again")
    assert check_store(built.recipe, store) == []


def test_gc_keeps_what_is_named_used_new_or_young(store: Path) -> None:
    packs = frozenset(find_recipe(store, "rel1")[1].packs())
    assert plan_removal(store, kept("rel1", "rel2")).images == []
    assert plan_removal(store, kept("rel1")).images == ["rel2"]
    assert plan_removal(store, kept(newest=1)).images == ["rel1"]
    assert plan_removal(store, kept(used=packs)).images == []
    assert plan_removal(store, kept(young_us=clock.now_us() - 60_000_000)).images == []


def test_gc_removes_only_packs_that_no_other_image_needs(store: Path) -> None:
    own = own_bytes(read_store(store).recipes)
    done = remove(store, plan_removal(store, kept("rel1")))
    assert done.images == ["rel2"]
    assert len([each for each in done.files if each.endswith(".pack")]) == 1
    assert done.bytes >= own["rel2"]
    assert check_store(find_recipe(store, "rel1")[1], store) == []
    done = remove(store, plan_removal(store, kept()))
    assert done.images == ["rel1"]
    assert [path.name for path in store.rglob("*") if path.is_file()] == []


def test_gc_leaves_alone_what_a_build_refers_to_meanwhile(tmp_path: Path, store: Path) -> None:
    planned = plan_removal(store, kept())
    build_tree(tmp_path / "one", "/sw/rel1", store, name="new")
    done = remove(store, planned)
    assert check_store(find_recipe(store, "new")[1], store) == []
    assert not any(each.endswith(DOOMED) for each in (path.name for path in (store / "packs").iterdir()))
    assert done.images == ["rel1", "rel2"]


def test_packs_that_a_build_reuses_are_young_again(tmp_path: Path, store: Path) -> None:
    for path in (store / "packs").iterdir():
        os.utime(path, (OLD_S, OLD_S))
    built = build_tree(tmp_path / "one", "/sw/rel1", store, name="new")
    assert all((store / pack).stat().st_mtime > OLD_S + 1 for pack in built.recipe.packs())


def test_what_a_killed_removal_had_set_aside_comes_back(store: Path) -> None:
    recipe = find_recipe(store, "rel1")[1]
    pack = store / next(iter(recipe.packs()))
    pack.rename(pack.with_name(pack.name + DOOMED))
    (store / ".half.host.1.tmp").write_bytes(b"x")
    planned = plan_removal(store, msgspec.structs.replace(kept("rel1", "rel2"), left_us=FOREVER_US))
    done = remove(store, planned)
    assert check_store(recipe, store) == []
    assert done.files == [".half.host.1.tmp"]


def test_packs_come_back_when_one_of_them_cannot_be_set_aside(store: Path) -> None:
    planned = plan_removal(store, kept())
    before = sorted(path.name for path in (store / "packs").iterdir())
    obstacle = store / (planned.files[-1] + DOOMED)
    obstacle.mkdir()
    with pytest.raises(SiteError, match="failed to rename") as caught:
        remove(store, planned)
    assert "try again" in str(caught.value.hint)
    obstacle.rmdir()
    assert sorted(path.name for path in (store / "packs").iterdir()) == before
    remove(store, plan_removal(store, kept()))
    assert [path.name for path in store.rglob("*") if path.is_file()] == []


def test_gc_takes_no_wrong_or_unreadable_site_for_one_without_users(
    tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["image", "gc", "--store", str(store), "--young", "1s", "--keep", "1"]
    (tmp_path / "site").mkdir()
    assert main([*words, "--site", str(tmp_path / "site")]) == 2
    assert "is not a site" in capsys.readouterr().err
    (tmp_path / "site" / "apps").mkdir()
    (tmp_path / "site" / "fleets").write_bytes(b"what cannot be listed is not empty")
    assert main([*words, "--site", str(tmp_path / "site")]) == 3
    assert "failed to list" in capsys.readouterr().err
    assert sorted(read_store(store).recipes) == ["rel1", "rel2"]


def test_gc_reads_applications_and_fleets_of_the_site(tmp_path: Path, store: Path) -> None:
    apps = tmp_path / "apps"
    apps.mkdir()
    digest = find_recipe(store, "rel2")[1].file.sha256
    (apps / "a.toml").write_text(
        f'name = "a"\nexecutable = "/sw/rel2/bin/a"\nimages = ["rel2@sha256:{digest}"]\n'
    )
    assert named_images(apps, store) == {"rel2"}
    path, recipe = find_recipe(store, "rel1")
    work = tmp_path / "fleets" / "f1" / "work"
    work.mkdir(parents=True)
    told = {
        "format": 1,
        "programs": [{"program": 1, "images": [use_of(recipe, path.parent)]}, {"program": 2}],
    }
    (work / "000001.json").write_bytes(msgspec.json.encode(told))
    assert used_packs(tmp_path / "fleets") == set(recipe.packs())
    (apps / "b.toml").write_text("name = ")
    with pytest.raises(ConfigError, match=r"b\.toml: is not TOML"):
        named_images(apps, store)


def test_builders_and_a_collector_at_once_do_each_other_no_harm(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for number in range(3):
        write_release(tmp_path / f"rel{number}", files=60, seed=number % 2, changed=0.1 * number)
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            if store.is_dir():
                names = [f"i{number}" for number in range(6)]
                remove(store, plan_removal(store, kept(*names, young_us=clock.now_us() - 1_000_000)))

    collector = threading.Thread(target=collect)
    collector.start()
    code = "import sys; from tidemill.cli.main import main; sys.exit(main(sys.argv[1:]))"
    try:
        builders = [
            subprocess.Popen(
                [
                    *(sys.executable, "-c", code, "image", "build", "--store", store, "--name", f"i{number}"),
                    *("--tree", f"{tmp_path / f'rel{number % 3}'}:/sw/rel{number}"),
                ],
                stdout=subprocess.DEVNULL,
            )
            for number in range(6)
        ]
        assert [builder.wait(60) for builder in builders] == [0] * 6
    finally:
        stop.set()
        collector.join()
    recipes = read_store(store).recipes
    assert sorted(recipes) == [f"i{number}" for number in range(6)]
    assert [check_store(recipe, store) for recipe in recipes.values()] == [[]] * 6


def test_the_verbs_tell_lists_contents_and_errors(
    tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "list", "--store", str(store), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["rel1", "rel2"]
    assert rows[1]["own_bytes"] < 0.3 * rows[1]["bytes"]
    assert main(["image", "inspect", rows[0]["sha256"][:12], "--store", str(store), "--files"]) == 0
    assert "/sw/rel1/bin/" in capsys.readouterr().out
    target = tmp_path / "x.sqsh"
    assert main(["image", "export", "rel1", "--store", str(store), "-o", str(target)]) == 0
    assert target.stat().st_size == rows[0]["bytes"]
    assert main(["image", "inspect", "rel3", "--store", str(store)]) == 2
    assert "hint: did you mean `rel2`?" in capsys.readouterr().err
    assert main(["image", "gc", "--store", str(store)]) == 2
    assert "nothing says which images" in capsys.readouterr().err
    assert main(["image", "gc", "--store", str(store), "--keep", "1", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == []  # they are young


def test_a_store_can_be_moved(tmp_path: Path, store: Path) -> None:
    moved = store.rename(tmp_path / "elsewhere")
    path, recipe = find_recipe(moved, "rel1")
    assert check_store(recipe, path.parent) == []
    assert use_of(recipe, path.parent).file.pieces[0].path.startswith(str(moved))
    assert isinstance(recipe, Recipe)
