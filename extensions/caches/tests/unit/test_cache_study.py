"""The decisions of `tidemill cache study`."""

from __future__ import annotations

import pytest

from tidemill.charts.groups import BarGroup, BarPanel, GroupedBar, panels
from tidemill.cli.main import main
from tidemill.errors import ConfigError
from tidemill_caches.engine.origins import parse_file, parse_origin
from tidemill_caches.study.advice import StudyPass, advise, pays_from, table
from tidemill_caches.study.dataset import StudyFile, choose, parse_listing
from tidemill_caches.study.plan import ReadPattern, StudySetting, StudySize, StudyStep, chunks, steps

NONE, TEN = StudySetting(prefetch_blocks=0), StudySetting(prefetch_blocks=10)


def passes(
    pattern: ReadPattern,
    direct_s: float,
    none: tuple[float, float],
    ten: tuple[float, float],
    fetched: int = 100,
) -> list[StudyPass]:
    def step(setting: StudySetting | None) -> StudyStep:
        return StudyStep(round=0, rtt_ms=None, pattern=pattern, setting=setting)

    found = [StudyPass(step=step(None), first_s=direct_s, read_bytes=100)]
    for setting, (cold_s, warm_s) in ((NONE, none), (TEN, ten)):
        found.append(
            StudyPass(
                step=step(setting), first_s=cold_s, second_s=warm_s, read_bytes=100, fetched_bytes=fetched
            )
        )
    return found


@pytest.mark.parametrize(
    ("block_bytes", "text"),
    [(1 << 20, "1 MiB"), (512 << 10, "512 KiB"), (1536 << 10, "1536 KiB"), (4 << 20, "4 MiB")],
)
def test_a_setting_names_its_block_size_in_the_largest_whole_unit(block_bytes: int, text: str) -> None:
    assert StudySetting(block_bytes=block_bytes).text == f"prefetch 10, {text} blocks"


def test_a_first_round_covers_all_before_a_second_begins_backwards() -> None:
    size = StudySize(patterns=[ReadPattern.WHOLE], settings=[NONE, TEN], rtts_ms=[None, 250.0], rounds=2)
    found = list(steps(size))
    assert [each.round for each in found] == [0] * 6 + [1] * 6
    assert [each.setting for each in found[:3]] == [None, NONE, TEN]
    assert [each.setting for each in found[6:9]] == [TEN, NONE, None]


@pytest.mark.parametrize("pattern", list(ReadPattern))
@pytest.mark.parametrize("size", [1, 4095, 4096, 1_000_000, 10_000_001])
def test_requests_are_within_the_file_and_the_bound_and_always_the_same(
    pattern: ReadPattern, size: int
) -> None:
    found = chunks(pattern, size, bytes_max=2_500_000)
    assert found == chunks(pattern, size, bytes_max=2_500_000)
    assert all(at >= 0 and length > 0 and at + length <= size for request in found for at, length in request)
    if pattern is ReadPattern.SEQUENTIAL:
        assert sum(length for request in found for _, length in request) == min(size, 2_500_000)


@pytest.mark.parametrize(
    ("direct", "cold", "warm", "expected"),
    [
        (20, 40, 1, 3),
        (20, 10, 1, 1),
        (1, 1.5, 1, None),
        (1, 1.1, 1.2, None),
        (1, 2, 0.5, 4),
        (1, 50, 0.99999, None),
    ],
)
def test_a_cache_pays_from_the_pass_on_at_which_it_was_quicker(
    direct: float, cold: float, warm: float, expected: int | None
) -> None:
    found = pays_from(direct, cold_s=cold, warm_s=warm)
    assert found == expected
    if found is not None and found > 1:
        assert cold + (found - 1) * warm < found * direct
        assert cold + (found - 2) * warm >= (found - 1) * direct


def test_far_whole_reads_take_the_cache_that_reads_ahead() -> None:
    """The figures of a round trip of 250 ms."""
    rows = table(passes(ReadPattern.WHOLE, 19.9, (39.9, 1.5), (10.0, 0.9)), 250.0)
    (advice,) = advise(rows, reads=2)
    assert advice.setting == TEN
    assert advice.speedup == pytest.approx(2 * 19.9 / 10.9, rel=0.01)
    assert "0.27 of the direct reads' time" in advice.why


def test_near_reads_take_none() -> None:
    rows = table(passes(ReadPattern.WHOLE, 1.05, (3.5, 0.87), (1.8, 0.84)), 10.0)
    (advice,) = advise(rows, reads=2)
    assert advice.setting is None
    assert "through the best cache" in advice.why


def test_equal_settings_take_the_one_that_fetches_less_and_say_what_is_wasted() -> None:
    found = passes(ReadPattern.RANDOM, 10.0, (1.0, 0.1), (1.0, 0.1), fetched=5_000)
    found[1] = StudyPass(
        **{each: getattr(found[1], each) for each in found[1].__struct_fields__} | {"fetched_bytes": 500}
    )
    (advice,) = advise(table(found, 250.0), reads=2)
    assert advice.setting == NONE
    assert "`random` fetches 500 B for 100 B read" in advice.why


def test_medians_are_of_what_succeeded() -> None:
    slow = passes(ReadPattern.WHOLE, 30.0, (9.0, 9.0), (9.0, 9.0))
    bad = [StudyPass(step=each.step, failure="no route") for each in slow]
    good = passes(ReadPattern.WHOLE, 10.0, (1.0, 1.0), (1.0, 1.0))
    (row,) = table([*good, *bad, *slow, *good], 1.0)
    assert row.direct_s == 10.0
    assert [each.cold_s for each in row.tries] == [1.0, 1.0]
    assert table(bad, 1.0) == []


def test_a_listing_is_read_in_both_forms_and_without_directories() -> None:
    text = (
        "-rw-r--r-- daemon nogroup 3000000 2026-11-23 03:00:00 /d/g.root\n"
        "drwxr-xr-x daemon nogroup    4096 2026-11-23 03:00:00 /d/sub\n"
        "-r-- 2026-11-23 03:00:00     12 /d/old form\nnonsense\n"
        "-rw-r--r-- a b 7 2026-11-23 03:00:00 /d/with blank\n"
    )
    found = parse_listing(text, parse_origin("root://o.example:1094//d/"))
    assert [(each.origin.path, each.size_bytes) for each in found] == [
        ("/d/g.root", 3_000_000),
        ("/d/old form", 12),
        ("/d/with blank", 7),
    ]


def test_the_file_of_median_size_that_may_be_read_whole_is_chosen() -> None:
    files = [StudyFile(parse_file(f"root://o.example//d/{size}"), size) for size in (0, 10, 20, 30, 1000)]
    assert [each.size_bytes for each in choose(files, bytes_max=100)] == [20]
    assert [each.size_bytes for each in choose(files, bytes_max=5)] == [10]
    with pytest.raises(ConfigError, match="no file with content"):
        choose(files[:1], bytes_max=5)


def test_several_files_are_of_one_server_and_within_the_bound_together() -> None:
    files = [StudyFile(parse_file(f"root://o.example//d/{size}"), size) for size in (10, 20, 30, 40, 1000)]
    other = StudyFile(parse_file("root://p.example//d/25"), 25)

    def sizes(bytes_max: int, files_max: int) -> list[int]:
        found = choose([*files, other, *files], bytes_max=bytes_max, files_max=files_max)
        assert len({each.origin.host for each in found}) == 1
        assert len(set(found)) == len(found) <= files_max
        return sorted(each.size_bytes for each in found)

    assert sizes(200, 10) in ([10, 20, 30, 40], [25])
    assert sizes(60, 2) in ([20, 30], [20, 40], [25])
    found = choose(files, bytes_max=100, files_max=3)
    assert [each.size_bytes for each in found] == [30, 40, 20]
    assert [each.size_bytes for each in choose(files, bytes_max=55, files_max=3)] == [30, 20]
    assert [each.size_bytes for each in choose(files, bytes_max=5, files_max=3)] == [10]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["roots://o.example//d/", "--rtt", "250"], "`--rtt` cannot be used with `roots://`"),
        (
            ["root://o.example//d/", "roots://o.example//e/", "--rtt", "1"],
            "`--rtt` cannot be used with `roots://`",
        ),
        (["root://o.example//d/", "--files", "33"], "32 files are possible"),
    ],
)
def test_what_cannot_be_studied_is_refused_before_the_origin_is_asked(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "study", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_plot_has_each_value_and_escapes_names() -> None:
    group = BarGroup("whole", [GroupedBar("direct", 20.0), GroupedBar("second <1>", 0.01)])
    drawn = panels(
        [BarPanel("round trip 250 ms", [group])], title="Seconds", text=lambda value: f"{value:g} s"
    )
    assert drawn.startswith("<svg")
    for words in ("20 s", "0.01 s", "second &lt;1&gt;", "round trip 250 ms", "100 s"):
        assert words in drawn
    assert "style=" not in drawn
