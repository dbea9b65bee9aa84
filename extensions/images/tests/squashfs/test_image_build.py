"""Images by mksquashfs: equal inputs give equal bytes, equal files cost once, every kind of file is packed."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from extensions.images.tests.squashfs.image_world import (
    build_tree,
    build_used,
    needs,
    place,
    settle_times,
    store_bytes,
    write_release,
)

from tidemill.errors import ConfigError, SiteError
from tidemill_images.areas import Tree, trees_below_root
from tidemill_images.build import Order, build
from tidemill_images.catalogue import Kept, export, find_recipe
from tidemill_images.disk import Changed, Content
from tidemill_images.name_list import read_listing
from tidemill_images.removal import plan_removal, remove
from tidemill_images.workingset import STUBS

__all__ = ["place"]


@pytest.fixture(autouse=True)
def tools() -> None:
    needs("mksquashfs", "unsquashfs")


def unpack(store: Path, name: str, target: Path) -> Path:
    path, recipe = find_recipe(store, name)
    image = target.with_suffix(".sqsh")
    export(recipe, path.parent, image)
    subprocess.run(["unsquashfs", "-n", "-q", "-d", target, image], check=True, capture_output=True)
    return target


def test_two_releases_that_share_nine_tenths_cost_little_more_than_one(tmp_path: Path) -> None:
    store = tmp_path / "store"
    build_tree(write_release(tmp_path / "one"), "/sw/rel1", store)
    first = store_bytes(store)
    built = build_tree(write_release(tmp_path / "two", changed=0.1), "/sw/rel2", store)
    assert store_bytes(store) <= 1.2 * first, built.recipe
    assert len(built.recipe.packs()) == 2
    unpack(store, "rel2", tmp_path / "out")
    compare = subprocess.run(["diff", "-r", tmp_path / "two", tmp_path / "out" / "sw" / "rel2"], check=False)
    assert compare.returncode == 0


def test_equal_inputs_give_the_same_digest_in_any_order_and_on_any_day(tmp_path: Path) -> None:
    first = write_release(tmp_path / "one", files=60)
    again = tmp_path / "again"
    for path in sorted((each for each in first.rglob("*") if each.is_file()), reverse=True):
        copy = again / path.relative_to(first)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    settle_times(again)
    one = build_tree(first, "/sw/rel", tmp_path / "store1").recipe
    two = build_tree(again, "/sw/rel", tmp_path / "store2").recipe
    assert one.file.sha256 == two.file.sha256
    # Nothing in it is of today, so another day's image is the same: the superblock's time, and those of all inodes
    export(one, tmp_path / "store1", tmp_path / "one.sqsh")
    listed = subprocess.run(
        ["unsquashfs", "-lln", "-UTC", tmp_path / "one.sqsh"], check=True, capture_output=True, text=True
    )
    days = {line.split()[3] for line in listed.stdout.splitlines() if line.count(" ") > 3}
    assert days == {"1970-01-01", "2023-11-14"}
    assert (tmp_path / "one.sqsh").read_bytes()[8:12] == bytes(4)


def test_building_again_adds_no_pack_and_no_byte(tmp_path: Path) -> None:
    source = write_release(tmp_path / "one", files=40)
    first = build_tree(source, "/sw/rel", tmp_path / "store").recipe
    again = build_tree(source, "/sw/rel", tmp_path / "store").recipe
    assert again.file == first.file
    assert again.added_bytes == 0
    assert len(list((tmp_path / "store" / "packs").iterdir())) == 2
    assert not list(tmp_path.rglob(".*tmp"))


def test_files_of_all_kinds_and_names_come_through(tmp_path: Path) -> None:
    source = tmp_path / "tree"
    source.mkdir()
    strange = os.fsencode(source) + b"/new\nline \xff\xfe"
    Path(os.fsdecode(strange)).write_bytes(b"strange")
    (source / ("long" * 60)).write_bytes(b"long")
    (source / "a").write_bytes(b"twice")
    os.link(source / "a", source / "b")
    (source / "script").write_bytes(b"#!/bin/sh\n")
    (source / "script").chmod(0o4750)
    (source / "link").symlink_to("nowhere/ at\tall")
    (source / "empty").mkdir()
    with (source / "sparse").open("wb") as file:
        file.seek(50_000_000)
        file.write(b"end")
    os.mkfifo(source / "fifo")
    built = build_tree(source, "/sw/strange", tmp_path / "store")
    assert [(Path(each.path).name, each.fatal) for each in built.skipped] == [("fifo", False)]
    top = unpack(tmp_path / "store", "strange", tmp_path / "out") / "sw" / "strange"
    assert Path(os.fsdecode(os.fsencode(top) + b"/new\nline \xff\xfe")).read_bytes() == b"strange"
    assert (top / ("long" * 60)).read_bytes() == b"long"
    assert (top / "a").stat().st_ino == (top / "b").stat().st_ino
    assert stat.S_IMODE((top / "script").stat().st_mode) == 0o755
    assert str((top / "link").readlink()) == "nowhere/ at\tall"
    assert list((top / "empty").iterdir()) == []
    assert (top / "sparse").stat().st_size == 50_000_003
    assert built.recipe.file.bytes < 100_000
    listed = read_listing(tmp_path / "store", built.recipe.listing)
    assert os.fsdecode(b"/sw/strange/new\nline \xff\xfe") in {each.path for each in listed}


def test_times_of_files_are_kept_since_compiled_python_needs_them(tmp_path: Path) -> None:
    source = write_release(tmp_path / "one", files=5)
    build_tree(source, "/sw/rel", tmp_path / "store")
    top = unpack(tmp_path / "store", "rel", tmp_path / "out") / "sw" / "rel"
    for path in (each for each in source.rglob("*") if each.is_file()):
        assert int((top / path.relative_to(source)).stat().st_mtime) == int(path.stat().st_mtime)


def test_what_was_not_used_is_a_stub_and_what_does_not_exist_is_not_there(place: Path) -> None:
    area = place / "sw"
    write_release(area, files=80)
    (area / "bin" / "prog").symlink_to("file3.dat")
    used = [area / "bin" / "prog", area / "python" / "pkg" / "missing.py", area / "gone" / "x"]
    build_used(area, used, place / "store")
    top = Path(f"{unpack(place / 'store', 'used', place / 'out')}{area}")
    assert {each.name for each in top.iterdir()} == {each.name for each in area.iterdir()}
    assert str((top / "share").readlink()) == f"{STUBS}{area}/share"
    assert {each.name for each in (top / "python" / "pkg").iterdir()} == {
        each.name for each in (area / "python" / "pkg").iterdir()
    }
    assert not os.path.lexists(top / "python" / "pkg" / "missing.py")
    assert str((top / "bin" / "prog").readlink()) == "file3.dat"


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Root's tests act as a user while files are read; other users are one already."""
    if os.geteuid() == 0:
        os.seteuid(uid)
        try:
            yield
        finally:
            os.seteuid(0)
    else:
        yield


def test_an_unreadable_file_is_named_and_left_out_only_on_request(tmp_path: Path, place: Path) -> None:
    source = write_release(place / "one", files=8)
    (source / "secret").write_bytes(b"x")
    (source / "secret").chmod(0)
    place.chmod(0o777)
    with as_user(65534):
        with pytest.raises(
            ConfigError, match=r"failed to read 1 of the files to pack: `.*/secret` \(it may not be"
        ):
            build_tree(source, "/sw/rel", place / "store")
        order = Order(
            name="rel", areas=[str(source)], skip_unreadable=True, trees=[Tree(str(source), str(source))]
        )
        built = build(order, place / "store", tell=lambda _: None)
    assert [Path(each.path).name for each in built.skipped] == ["secret"]
    assert built.recipe.entries.stubs == 1


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "growing"
    path.write_bytes(bytes(3 << 20))
    pieces = Content(str(path), path.stat()).pieces()
    next(pieces)
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(Changed, match="changed while it was packed"):
        list(pieces)


def test_a_file_that_is_written_all_the_time_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_release(tmp_path / "one", files=5)
    log = source / "running.log"
    log.write_bytes(bytes(8 << 20))
    # Another program writes to the file when the first half of it has gone through the pipe, which holds far less
    tool = tmp_path / "bin" / "mksquashfs"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/sh\n[ \"$1\" = -version ] && { echo 'mksquashfs version 4.6'; exit; }\n"
        f"head -c 4194304 > /dev/null\necho line >> {log}\nexec cat > /dev/null\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    told: list[str] = []
    order = Order(name="rel", areas=["/sw/rel"], trees=[Tree(str(source), "/sw/rel")])
    with pytest.raises(SiteError, match=r"gave up after 3 tries: `.*/running.log` changed"):
        build(order, tmp_path / "store", tell=told.append)
    assert len(told) == 2
    assert not list((tmp_path / "store").iterdir())


def test_a_top_directory_that_cannot_be_listed_is_not_taken_for_an_empty_one(place: Path) -> None:
    for name in ("usr", "opt/deep", "srv"):
        (place / "root" / name).mkdir(parents=True)
    (place / "root" / "usr" / "file").write_bytes(b"x")
    (place / "root" / "opt" / "deep").chmod(0)
    place.chmod(0o777)
    with as_user(65534):
        trees = trees_below_root(Tree(str(place / "root"), "/"))
        assert [each.at for each in trees] == ["/opt", "/usr"]
        order = Order(name="rel", areas=[each.at for each in trees], trees=trees)
        with pytest.raises(ConfigError, match=r"failed to read 1 of the files to pack: `.*/opt/deep`"):
            build(order, place / "store", tell=lambda _: None)
        with pytest.raises(ConfigError, match=r"failed to list tree `.*/opt/deep`: Permission denied"):
            trees_below_root(Tree(str(place / "root" / "opt" / "deep"), "/"))


def test_a_store_that_cannot_be_written_is_told(place: Path) -> None:
    source = write_release(place / "one", files=8)
    build_tree(source, "/sw/rel", place / "store")
    place.chmod(0o755)
    with as_user(65534):
        planned = plan_removal(place / "store", Kept(named=[], used=[], newest=0, young_us=2**62, left_us=0))
        with pytest.raises(SiteError, match=r"failed to remove `.*/rel\.json`: Permission denied"):
            remove(place / "store", planned)
        with pytest.raises(SiteError, match=r"failed to write"):
            build_tree(source, "/sw/rel", place / "store")


@pytest.mark.parametrize("area", ["/proc", "/sys/kernel", "/dev", "/tmp/x", "/", "/run"])
def test_areas_that_payloads_need_of_their_node_are_refused_with_the_reason(
    area: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"area `{area}` cannot become an image: `/\w+` is "):
        build(Order(name="x", areas=[area]), tmp_path, tell=lambda _: None)


def test_a_missing_tool_is_said_with_the_package_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SiteError, match="there is no program `mksquashfs`") as caught:
        build_tree(tmp_path, "/sw/rel", tmp_path / "store")
    assert "squashfs-tools 4.5" in str(caught.value.hint)


def test_an_old_tool_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "mksquashfs"
    tool.write_text("#!/bin/sh\necho 'mksquashfs version 4.4 (2019/08/29)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SiteError, match=r"version 4\.4 .*version 4\.5 or later is needed"):
        build_tree(tmp_path, "/sw/rel", tmp_path / "store")


def test_what_the_tool_says_when_it_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "mksquashfs"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/sh\n[ \"$1\" = -version ] && { echo 'mksquashfs version 4.6'; exit; }\n"
        "echo 'Write failed because No space left on device' >&2\nexit 1\n"
    )
    tool.chmod(0o755)
    source = write_release(tmp_path / "one", files=40)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    with pytest.raises(SiteError, match=r"\(exit status 1\): Write failed because No space left on device"):
        build_tree(source, "/sw/rel", tmp_path / "store")
    assert not list((tmp_path / "store").iterdir())
