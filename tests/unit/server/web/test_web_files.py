"""Delivered files as downloads: for the server's own user, and only what was delivered."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tidemill.model.identity import LOCAL, Identity, Role, Via
from tidemill.server.errors import ForbiddenError, MissingError
from tidemill.server.web.files import may_download, opened
from tidemill.wire.api import OutputRow

ADA = Identity(role=Role.SUBMITTER, name="ada", via=Via.CERTIFICATE, subject="/CN=ada", credential="ada-1")


def output(path: Path | str, size_bytes: int = 5) -> OutputRow:
    return OutputRow(name="hits", url=f"file://{path}", size_bytes=size_bytes, sha256="")


def delivered(folder: Path, name: str = "1-hits.tar") -> Path:
    path = folder / name
    path.write_text("12345")
    return path


def test_the_servers_own_user_gets_what_was_delivered(tmp_path: Path) -> None:
    found = opened(LOCAL, 1, output(delivered(tmp_path)))
    assert (found.name, b"".join(found.pieces())) == ("1-hits.tar", b"12345")
    assert found.file.closed


def test_others_get_the_command(tmp_path: Path) -> None:
    path = delivered(tmp_path)
    assert not may_download(ADA, output(path).url)
    for via in (Via.CERTIFICATE, Via.TOKEN, Via.SECRET):
        with pytest.raises(ForbiddenError) as refused:
            opened(msgspec.structs.replace(ADA, via=via), 7, output(path))
        assert "tidemill outputs get 7 --output hits" in str(refused.value.hint)


def test_what_is_not_the_delivered_file_is_not_sent(tmp_path: Path) -> None:
    path = delivered(tmp_path)
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    for wrong in (
        output(tmp_path / "link"), output(tmp_path / "pipe"), output(tmp_path), output(tmp_path / "none"),
        output(path, size_bytes=6), output(f"{tmp_path}/x/../{path.name}"), output(f"{tmp_path}/x/%2e%2e/{path.name}"),
        output(f"{tmp_path}/"), output(f"elsewhere{path}"), output(f"{path}?x"), output(f"{path}%00"),
        msgspec.structs.replace(output(path), url=str(path)),
        msgspec.structs.replace(output(path), url=f"https://x{path}"),
    ):  # fmt: skip
        with pytest.raises(MissingError):
            opened(LOCAL, 1, wrong)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_sent(tmp_path: Path) -> None:
    path = delivered(tmp_path)
    os.chown(path, 65534, 65534)
    with pytest.raises(MissingError, match="another user"):
        opened(LOCAL, 1, output(path))


def test_a_name_cannot_add_to_a_header(tmp_path: Path) -> None:
    found = opened(
        LOCAL, 1, output(str(delivered(tmp_path, 'a"\r\nb;.tar')).replace("\r", "%0D").replace("\n", "%0A"))
    )
    found.file.close()
    assert found.name == "a___b_.tar"
