"""Memory of slots: what nobody asked for is chosen so that every core can work, and nothing is given twice."""

from __future__ import annotations

import pytest
from tests.wire_values import program

from tidemill.site.applications.memory import (
    IMAGE_SERVER_MB,
    SCRATCH_MB_MIN,
    has_room,
    images_mb,
    slot_memory,
)
from tidemill.site.state.results import note_text, with_note
from tidemill.wire.node import ImageUse, Noted, StagedFile


def image(sha256: str, mb: int) -> ImageUse:
    file = StagedFile(sha256=sha256, bytes=mb << 20, pieces=[])
    return ImageUse(name="sw", file=file, areas=["/sw"], unpacked_bytes=0)


@pytest.mark.parametrize(
    ("asked", "share_mb", "chosen"),
    [
        ((None, None), 8000, (2000, 1000)),
        ((None, None), 2000, (1500, 500)),
        ((None, None), 400, (300, 100)),
        ((1800, None), 2000, (1800, 200)),
        ((2000, None), 2000, (2000, SCRATCH_MB_MIN)),
        ((None, 1500), 2000, (1500, 1500)),
        ((None, 4000), 2000, (1500, 4000)),
        ((None, 100), 2000, (1900, 100)),
        ((700, 20), 2000, (700, 20)),
    ],
)
def test_what_nobody_asked_for_fits_into_a_cores_part(
    asked: tuple[int | None, int | None], share_mb: int, chosen: tuple[int, int]
) -> None:
    assert slot_memory(*asked, share_mb=share_mb) == chosen


def test_images_and_work_directories_count() -> None:
    images = [image("a", 100), image("a", 100), image("b", 10)]
    assert images_mb(images) == 110 + 2 * IMAGE_SERVER_MB
    wanted = program(memory_mb=500, scratch_mb=300, images=images)
    assert has_room(wanted, 1038, spills=False)
    assert not has_room(wanted, 1037, spills=False)
    assert has_room(wanted, 738, spills=True)


def remark(topic: str, mode: str, message: str = "", **numbers: int) -> Noted:
    return Noted(
        p="tm-1.r0.i1", s=2, topic=topic, program=None, job=None, mode=mode, message=message, numbers=numbers, at_us=1
    )  # fmt: skip


def test_a_remark_in_words() -> None:
    told = note_text(remark("image", "fuse", "image `sw`", show_ms=12, bytes=5))
    assert told == "image fuse: image `sw` (bytes 5, show_ms 12)"


def test_remarks_that_come_again_take_the_place_of_the_earlier_ones() -> None:
    notes: list[str] = []
    for minute in range(30):
        notes = with_note(notes, remark("io", "usage", ops=minute))
        notes = with_note(notes, remark("io", "over", f"area `sw` is at {minute} %"))
        notes = with_note(notes, remark("image", "fuse", "image `sw`", show_ms=minute))
    notes = with_note(notes, remark("image", "fuse", "image `sw2`"))
    assert notes == [
        "io over: area `sw` is at 29 %",
        "image fuse: image `sw` (show_ms 29)",
        "image fuse: image `sw2`",
    ]
