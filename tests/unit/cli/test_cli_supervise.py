"""What a supervisor reports of a child that died."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.cli.supervise import Child


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("error: it is newer\nhint: install that version\n", "it is newer; hint: install that version"),
        ("error: first\nhint: old\nerror: second\n", "second"),
        ('error: long ago\n{"a":1}\n{"a":2}\n{"a":3}\n{"a":4}\n{"event":"stopped"}\n', '{"event":"stopped"}'),
        ("", ""),
    ],
)  # fmt: skip
def test_the_last_words_of_a_child_are_its_error_and_hint(log: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(log)
    assert Child("server", ["true"], path).last_words() == told
