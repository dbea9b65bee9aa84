"""Messages of `tidemill cache` for an operator who named the wrong place: each says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.cli.main import main
from tidemill.errors import ConfigError, SiteError
from tidemill_caches.engine import directory as places
from tidemill_caches.study import dataset


def test_a_directory_of_another_user_is_named_and_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_file", denied)
    with pytest.raises(ConfigError, match=r"failed to read `.*cache\.toml`: Permission denied") as caught:
        places.read_cache(tmp_path)
    assert "run this as the user" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("printf '[3011] no such file\\0\\n'; exit 54", r"by `xrdfs stat`: \[3011\] no such file\nhint: "),
        ("exit 124", r"by `xrdfs stat`: no answer within \d+ s\nhint: "),
    ],
)
def test_an_origin_that_gives_nothing_is_named_without_exit_codes(
    tmp_path: Path, script: str, said: str
) -> None:
    program = tmp_path / "xrdfs"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    with pytest.raises(SiteError, match=said) as caught:
        dataset._ask("root://h:1094", ["stat", "/f"], {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert "URL" in (caught.value.hint or "")


def test_a_path_that_is_not_cached_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "cache.toml").write_text(
        'origins = ["root://h.example:1094//store/"]\n[space]\nmax = "1GB"\n'
    )
    assert main(["cache", "ls", str(tmp_path), "/store/nope"]) == 0
    assert "holds nothing at `/store/nope`" in capsys.readouterr().err
