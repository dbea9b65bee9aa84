"""`tidemill trace` without a tracer: saved profiles shown, merged, explained; what is wrong is said."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidemill.cli.main import main
from tidemill.image.profile import bounded, encode_profile, read_profile
from tidemill_images.explain import gaps

FIXTURES = Path(__file__).parents[4] / "tests" / "fixtures" / "profiles"
FIRST, SECOND = str(FIXTURES / "first.json"), str(FIXTURES / "second.json")


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    assert main(["trace", *words]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def data(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(told(capsys, *words, "--json")[0])


def test_table_has_areas_calls_and_the_operations_over_time(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = told(capsys, "show", FIRST)
    assert out.startswith("25 operations, 16 % failed; 12 files, 2 .so, 1 .py; 3.4 s\n")
    lines = [line.split() for line in out.splitlines()]
    assert ["/sw", "nfs", "15", "3", "6", "1", "1", "-", "-", "-", "-"] in lines
    assert ["openat", "9", "3", "ENOENT", "3"] in lines
    assert "stripe of /lustre: stripe_count: 1" in out
    assert ["3", "s", "6", "=" * 15] in lines
    assert err == ""


def test_operations_of_each_call_are_told_per_area(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The columns of the table that started all this: 109,987 opens went well and 371,688 failed."""
    text = json.loads((FIXTURES / "first.json").read_text())
    text["areas"][2]["calls"] = {"open": {"ok": 109987, "failed": 371688}}
    (tmp_path / "p.json").write_text(json.dumps(text))
    out, _ = told(capsys, "show", str(tmp_path / "p.json"))
    assert "109,987  371,688" in out


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("paths", "`--paths-max` raises the limit"),
        ("io_uring", "io_uring are missing"),
        ("architecture", "32-bit"),
    ],
)
def test_what_is_missing_is_told_with_its_cause(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cause: str, words: str
) -> None:
    profile = msgspec.structs.replace(read_profile(FIXTURES / "first.json"), truncated=True, left_out=[cause])
    (tmp_path / "p.json").write_bytes(encode_profile(profile))

    _, err = told(capsys, "show", str(tmp_path / "p.json"))

    assert words in err
    assert ("--paths-max" in err) is (cause == "paths")


def test_several_profiles_are_added_up(capsys: pytest.CaptureFixture[str]) -> None:
    both = data(capsys, "show", FIRST, SECOND)
    assert (both["runs"], both["ops"], both["failed"]) == (2, 36, 6)
    assert both["calls"]["openat"] == {"ok": 14, "failed": 5, "ENOENT": 4, "EACCES": 1}
    assert both["peak_per_s"] == 26


def test_merged_profile_is_a_profile(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    merged = tmp_path / "all.json"
    told(capsys, "merge", "-o", str(merged), SECOND, FIRST)
    assert read_profile(merged).runs == 2
    assert data(capsys, "show", str(merged)) == data(capsys, "show", FIRST, SECOND)


def test_drawing_and_page_are_files_of_their_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    svg, page = tmp_path / "p.svg", tmp_path / "p.html"
    told(capsys, "show", FIRST, "--svg", str(svg), "--html", str(page))
    assert svg.read_text().startswith("<svg ")
    assert "</svg>" in page.read_text()
    assert "LD_LIBRARY_PATH" in page.read_text()
    assert "http" not in page.read_text().replace("http://www.w3.org/2000/svg", "")


def test_what_a_command_is_called_cannot_break_the_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, page = tmp_path / "p.json", tmp_path / "p.html"
    evil = msgspec.structs.replace(
        read_profile(Path(FIRST)), command=["<script>alert(1)</script>"], env={"PATH": "/<b>:/sw/rel1/bin"}
    )
    path.write_bytes(encode_profile(evil))
    told(capsys, "show", str(path), "--html", str(page), "--svg", str(tmp_path / "p.svg"))
    assert "<script" not in page.read_text() + (tmp_path / "p.svg").read_text()
    assert "<b>:" not in page.read_text()


def test_explanation_names_entries_and_what_avoids_them(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = told(capsys, "explain", FIRST)
    rows = [line.split() for line in out.splitlines()]
    assert ["LD_LIBRARY_PATH", "2", "1", "0", "8", "%", "dead", "/lustre/work/job1"] in rows
    assert "    export LD_LIBRARY_PATH=/sw/rel1/lib" in out
    assert "trace some different ones" in err


def test_fix_is_for_a_shell_or_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "explain", "--fix", FIRST)[0] == "export LD_LIBRARY_PATH=/sw/rel1/lib\n"
    assert data(capsys, "explain", "--fix", FIRST) == {"LD_LIBRARY_PATH": "/sw/rel1/lib"}


def test_fix_quotes_for_the_shell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    profile = read_profile(Path(FIRST))
    odd = "/sw/rel1/lib:/it's $(date)/lib"
    env = {"LD_LIBRARY_PATH": f"/lustre/work/job1:{odd.replace('$', '')}"}
    path = tmp_path / "p.json"
    path.write_bytes(encode_profile(msgspec.structs.replace(profile, env=env)))
    (line,) = told(capsys, "explain", "--fix", str(path))[0].splitlines()
    assert shlex.split(line) == ["export", f"LD_LIBRARY_PATH={odd.replace('$', '')}"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no command"),
        (["--"], "there is no command"),
        (["--area", "sw", "--", "true"], "`sw` is not an absolute path"),
        (["--also", "mmap", "--", "true"], "`tidemill trace`"),
        (["-o", "/nowhere/p.json", "--", "true"], "failed to write `/nowhere/p.json`"),
        (["--areas", "/", "--", "true"], "has no option `--areas`"),
        (["show"], "required: PROFILE"),
        (["show", "/nowhere.json"], "failed to read profile `/nowhere.json`"),
        (["show", str(FIXTURES / "README.md")], "is not a profile"),
        (["merge", FIRST], "required: -o/--output"),
        (["merge", "-o", "/nowhere/x", FIRST], "failed to write `/nowhere/x`"),
        (["explain", "--fux", FIRST], "has no option `--fux`"),
    ],
)
def test_wrong_input_is_a_usage_error_that_says_what(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    _, err = told(capsys, *words, code=2)
    assert message in err


def test_a_missing_binary_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_NODE_BINARY", "/nowhere/tidemill-node")
    _, err = told(capsys, "--", "true", code=2)
    assert "/nowhere/tidemill-node" in err


def test_help_shows_the_plain_form_and_the_other_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = told(capsys, "--help")
    assert out.startswith("usage: tidemill trace [OPTIONS] -- CMD [ARG ...]\n")
    assert "tidemill trace explain" in out
    assert "exit status" in out


def test_what_is_missing_is_told_by_its_cause_and_a_larger_limit_only_where_that_helps() -> None:
    whole = read_profile(FIXTURES / "first.json")
    ring = msgspec.structs.replace(whole, truncated=True, left_out=["io_uring"])
    foreign = msgspec.structs.replace(whole, truncated=True, left_out=["architecture"])
    unread = msgspec.structs.replace(whole, truncated=True, left_out=["unread"])
    cut, old = bounded(whole, 3), read_profile(FIXTURES / "cut.json")

    assert gaps(whole) == []
    assert gaps(ring) == ["operations through io_uring are missing"]
    assert "32-bit" in gaps(foreign)[0]
    assert "could not be read" in gaps(unread)[0]
    assert "--paths-max" in gaps(cut)[0]
    assert not any("--paths-max" in each for one in (ring, foreign, unread, old) for each in gaps(one))
    assert len(gaps(old)) == 1, "an older profile, which does not say why"
