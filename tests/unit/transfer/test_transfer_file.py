"""Local files as inputs: confined, verified, the failure says what was found."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.model.job import Input, InputKind, JobSpec
from tidemill.site.data.owners import OwnedPlaces
from tidemill.site.data.staging import STAGED_BYTES_MIN, Stage
from tidemill.transfer.file import FileTransfer, Roots, is_location, local_path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in.txt").write_text("hello")
    return tmp_path / "data"


def stage(tmp_path: Path, root: Path) -> Stage:
    return Stage(tmp_path / "stage", SiteConfig(name="x", server="unix:/x"), OwnedPlaces(Roots([root])))


def test_paths_outside_the_roots_are_refused_also_through_links(root: Path) -> None:
    transfer = FileTransfer(Roots([root]), size_max=100)
    (root / "link").symlink_to("/etc/passwd")
    for url in ("/etc/passwd", f"file://{root}/../../etc/passwd", str(root / "link")):
        with pytest.raises(SiteError, match="outside this site's data roots"):
            transfer.stat(url)
    assert transfer.stat((root / "in.txt").as_uri()).size_bytes == 5


def test_the_sites_own_files_are_nobodys_although_a_root_holds_them(tmp_path: Path, root: Path) -> None:
    site = tmp_path / "site"
    for path in (site / "apps" / "a.toml", site / "out" / "1-o", tmp_path / "key"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (root / "way_in").symlink_to(site)
    transfer = FileTransfer(
        Roots([tmp_path], private=[site, tmp_path / "key"], closed=site / "out").opened(site / "out"),
        size_max=100,
    )
    for path in (site / "apps" / "a.toml", root / "way_in" / "apps" / "a.toml", tmp_path / "key"):
        with pytest.raises(SiteError, match="is the site's own"):
            transfer.stat(str(path))
    for path in (root / "in.txt", site / "out" / "1-o", root / "way_in" / "out" / "1-o"):
        assert transfer.stat(str(path)).size_bytes > 0


def test_a_file_that_was_exchanged_for_a_link_after_it_was_judged_is_not_read(
    tmp_path: Path, root: Path
) -> None:
    transfer = FileTransfer(Roots([root]), size_max=10_000)
    source = transfer.stat(str(root / "in.txt"))
    (root / "in.txt").unlink()
    (root / "in.txt").symlink_to("/etc/passwd")
    with pytest.raises(SiteError, match="outside this site's data roots"):
        transfer.fetch(source, tmp_path / "copy", sha256=None)


def test_other_schemes_are_refused_with_what_is_supported() -> None:
    with pytest.raises(SiteError, match="no transfer for `https:`") as caught:
        local_path("https://example.org/x")
    assert "file:" in (caught.value.hint or "")


def test_missing_large_and_special_files_are_refused(root: Path) -> None:
    transfer = FileTransfer(Roots([root]), size_max=3)
    for name, part in (("absent", "No such file"), ("in.txt", "5 bytes"), (".", "not a regular file")):
        with pytest.raises(SiteError, match=part):
            transfer.stat(str(root / name))


def test_locations_are_told_from_plain_lines() -> None:
    assert [is_location(text) for text in ("/a/b", "file:/a", "root://h//x", "a:b", "run 7", "")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_shared_input_is_staged_once_for_all_jobs_and_cleaned(tmp_path: Path, root: Path) -> None:
    it = stage(tmp_path, root)
    digest = hashlib.sha256(b"hello").hexdigest()
    spec = JobSpec(app="a", inputs=[Input(name="card", url=str(root / "in.txt"), sha256=digest)])
    for job in (1, 2):
        (found,) = it.stage(job, spec, [(0, 1)])
        assert found.path is not None
        assert Path(found.path).read_text() == "hello"
    (copy,) = (tmp_path / "stage" / "files").glob("sha256-*")
    assert (copy.name, copy.stat().st_nlink) == (f"sha256-{digest}", 3)
    it.clean(1)
    it.sweep()
    assert (tmp_path / "stage" / "2" / "card").exists()
    it.clean(2)
    it.sweep()
    assert copy.stat().st_nlink == 1, "kept for the next job, and no longer pinned"


def test_wrong_checksum_quotes_both(tmp_path: Path, root: Path) -> None:
    spec = JobSpec(app="a", inputs=[Input(name="card", url=str(root / "in.txt"), sha256="0" * 64)])
    with pytest.raises(SiteError) as caught:
        stage(tmp_path, root).stage(1, spec, [(0, 1)])
    assert "0" * 64 in caught.value.message
    assert hashlib.sha256(b"hello").hexdigest() in caught.value.message
    assert not caught.value.transient


def test_each_input_stages_the_files_of_the_leased_events_only(tmp_path: Path, root: Path) -> None:
    for k in range(4):
        (root / f"f{k}").write_text(f"content {k}")
    (root / "list").write_text("".join(f"{root}/f{k}\n" for k in range(4)))
    spec = JobSpec(app="a", events=4, inputs=[Input(name="in", url=str(root / "list"), kind=InputKind.EACH)])
    it = stage(tmp_path, root)
    (found,) = it.stage(1, spec, [(1, 3)])
    assert found.path is not None
    assert found.lines is not None
    assert sorted(path.name for path in Path(found.path).iterdir()) == ["1", "2"]
    assert (Path(found.path) / "2").read_text() == "content 2"
    it.stage(1, spec, [(3, 4)])
    assert (Path(found.path) / "3").exists()


def test_each_input_with_too_few_lines_names_the_event(tmp_path: Path, root: Path) -> None:
    (root / "list").write_text("a\nb\n")
    spec = JobSpec(app="a", events=4, inputs=[Input(name="in", url=str(root / "list"), kind=InputKind.EACH)])
    with pytest.raises(SiteError, match="2 lines, event 2 has none"):
        stage(tmp_path, root).stage(1, spec, [(0, 4)])


def test_large_shared_inputs_have_a_digest_by_which_nodes_exchange_them(tmp_path: Path, root: Path) -> None:
    large = os.urandom(STAGED_BYTES_MIN)
    (root / "large").write_bytes(large)
    (root / "small").write_bytes(large[1:])
    it = stage(tmp_path, root)
    spec = JobSpec(app="a", inputs=[Input(name=name, url=str(root / name)) for name in ("large", "small")])
    for _ in range(2):
        known = [(each.sha256, each.bytes) for each in it.stage(3, spec, [(0, 1)])]
        assert known == [(hashlib.sha256(large).hexdigest(), 1 << 20), (None, (1 << 20) - 1)]
    it.clean(3)
    it.sweep()
    assert not (tmp_path / "stage" / "3").exists()


def test_what_lacks_is_lasting_and_what_a_file_system_fails_for_a_moment_is_not(
    tmp_path: Path, root: Path
) -> None:
    transfer = FileTransfer(Roots([Path("/")]), size_max=100)
    with pytest.raises(SiteError, match="No such file") as lacks:
        transfer.stat(str(root / "none"))
    assert not lacks.value.transient
    source = transfer.stat(str(root / "in.txt"))
    (root / "in.txt").unlink()
    with pytest.raises(SiteError, match="No such file") as gone:
        transfer.fetch(source, tmp_path / "copy", sha256=None)
    assert not gone.value.transient
    (root / "in.txt").write_text("hello")
    with pytest.raises(SiteError, match="No such file") as no_stage:
        transfer.fetch(transfer.stat(str(root / "in.txt")), tmp_path / "none" / "copy", sha256=None)
    assert no_stage.value.transient, "the stage area is the site's"
    (root / "sick").symlink_to(
        "/proc/self/mem"
    )  # reading it fails with EIO, as of a file system that is away
    with pytest.raises(SiteError, match="Input/output error") as sick:
        transfer.fetch(transfer.stat(str(root / "sick")), tmp_path / "copy", sha256="0" * 64)
    assert sick.value.transient
