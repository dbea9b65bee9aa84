"""Durable files: whole or not at all, private, synced with their directory, on full disks and after short writes."""

from __future__ import annotations

import functools
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sizes import file_size_max

from tidemill import files
from tidemill.errors import ConfigError, SiteError
from tidemill.files import set_mode

SIZE_MAX = 100_000
LONG = b"x" * (SIZE_MAX + 1)

Write = Callable[[Path, bytes], None]
WRITES = [files.write_durable, files.write_whole, files.create_durable, files.append_durable]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has been synced so far: `file` or `directory`."""
    found: list[str] = []

    def note(call: Callable[[int], None], descriptor: int) -> None:
        call(descriptor)
        found.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    monkeypatch.setattr(os, "fsync", functools.partial(note, os.fsync))
    monkeypatch.setattr(os, "fdatasync", functools.partial(note, os.fdatasync))
    return found


@pytest.mark.parametrize("write", WRITES)
def test_a_new_file_is_private_and_alone(write: Write, tmp_path: Path) -> None:
    write(tmp_path / "f", b"content")
    assert (tmp_path / "f").read_bytes() == b"content"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert files.names_in(tmp_path) == ["f"]


@pytest.mark.parametrize("write", WRITES)
def test_where_the_disk_is_full_the_error_names_the_path(write: Write, tmp_path: Path) -> None:
    with (
        file_size_max(SIZE_MAX),
        pytest.raises(SiteError, match=f"failed to write `{tmp_path}/f`: ") as caught,
    ):
        write(tmp_path / "f", LONG)
    assert "free space" in (caught.value.hint or "")
    assert caught.value.transient
    assert files.names_in(tmp_path) == (["f"] if write is files.append_durable else [])


@pytest.mark.parametrize("write", [files.write_durable, files.write_whole])
def test_what_cannot_be_replaced_stays_as_it_was(write: Write, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    with file_size_max(SIZE_MAX), pytest.raises(SiteError):
        write(tmp_path / "f", LONG)
    assert (tmp_path / "f").read_bytes() == b"old"
    assert files.names_in(tmp_path) == ["f"]
    write(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"


def test_a_full_disk_is_an_error_of_the_class_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"failed to write `{tmp_path}/none/f`: No such file"):
        files.write_durable(tmp_path / "none" / "f", b"", failure=ConfigError)
    with pytest.raises(SiteError, match="failed to write `/dev/full`: No space left on device") as caught:
        files.append_durable(Path("/dev/full"), b"x", failure=functools.partial(SiteError, transient=False))
    assert not caught.value.transient


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (files.write_durable, ["file", "directory"]),
        (files.write_whole, []),
        (files.create_durable, ["file", "directory"]),
        (files.append_durable, ["directory", "file"]),
    ],
)
def test_content_and_name_are_synced(
    write: Write, expected: list[str], tmp_path: Path, synced: list[str]
) -> None:
    write(tmp_path / "f", b"content")
    assert synced == expected


def test_an_old_file_is_appended_to_without_its_directory(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "f").write_bytes(b"one\n")
    files.append_durable(tmp_path / "f", b"two\n")
    assert (tmp_path / "f").read_bytes() == b"one\ntwo\n"
    assert synced == ["file"]


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:3]))
    files.append_durable(tmp_path / "f", b"0123456789")
    assert (tmp_path / "f").read_bytes() == b"0123456789"


def test_a_file_that_is_streamed_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("half")

    with pytest.raises(ValueError, match="half"), files.replaced(tmp_path / "f") as file:  # noqa: PT012
        file.write(b"half")
        assert Path(file.name).parent == tmp_path
        assert not (tmp_path / "f").exists()
        fail()
    assert files.names_in(tmp_path) == []


def test_of_several_that_create_a_file_one_succeeds(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    lost: list[int] = []

    def create(number: int) -> None:
        start.wait()
        try:
            files.create_durable(tmp_path / "f", b"%d" % number)
        except FileExistsError:
            lost.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lost) == 7
    assert int((tmp_path / "f").read_bytes()) not in lost
    assert files.names_in(tmp_path) == ["f"]


def test_a_log_of_this_name_is_started_once(tmp_path: Path) -> None:
    os.close(files.open_append(tmp_path / "f", exclusive=True))
    with pytest.raises(FileExistsError):
        files.open_append(tmp_path / "f", exclusive=True)


def test_a_file_with_the_longest_name_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 127 + "x")  # 255 bytes

    files.write_durable(path, b"x")

    assert path.read_bytes() == b"x"
    assert files.temporary(tmp_path / "short").name.startswith(".short.")


def test_link_that_is_not_followed_is_called_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="Too many levels of symbolic links") as raised:
        os.open(tmp_path / "link", os.O_RDONLY | os.O_NOFOLLOW)
    assert files.why_not_opened(raised.value) == "it is a symbolic link, which is not followed here"
    with pytest.raises(FileNotFoundError) as missing:
        os.open(tmp_path / "other", os.O_RDONLY | os.O_NOFOLLOW)
    assert files.why_not_opened(missing.value) == "No such file or directory"


def test_a_mode_is_never_given_to_what_a_link_in_place_of_the_file_leads_to(tmp_path: Path) -> None:
    private, folder = tmp_path / "private", tmp_path / "folder"
    private.write_text("key")
    private.chmod(0o600)
    folder.mkdir(mode=0o700)
    for number, link in enumerate((private, folder)):
        (tmp_path / f"link{number}").symlink_to(link)
        with pytest.raises(OSError, match="symbolic links"):
            set_mode(tmp_path / f"link{number}", 0o666)
    (tmp_path / "same").hardlink_to(private)
    with pytest.raises(OSError, match="many links"):
        set_mode(tmp_path / "same", 0o666)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (private, folder)] == [0o600, 0o700]
    (tmp_path / "same").unlink()
    set_mode(private, 0o640)
    set_mode(folder, 0o750)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (private, folder)] == [0o640, 0o750]
