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


@pytest.mark.parametrize(("code", "is_refused"), [(2, True), (3, False)])
def test_a_child_that_ends_with_a_configuration_error_would_end_so_again(
    code: int, is_refused: bool, tmp_path: Path
) -> None:
    script = f"echo 'error: no partition x'; echo 'hint: did you mean y?'; exit {code}"
    child = Child("site", ["sh", "-c", script], tmp_path / "site.log")
    child.tend()
    assert child.process is not None
    child.process.wait(60)
    for _ in range(2):  # as soon as it has ended, and when that has been noted
        refusal = child.refusal()
        found = None if refusal is None else (refusal.message, refusal.hint)
        assert found == (("no partition x", "did you mean y?") if is_refused else None)
        child.tend()
