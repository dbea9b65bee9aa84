"""References to campaigns, and hints for those that mean none."""

from __future__ import annotations

import pytest

from tidemill.model.campaign import unknown_hint

CAMPAIGNS = [
    ("root", "shok"),
    ("root", "mi"),
    ("bob", "nightly"),
    ("ada", "same"),
    ("bob", "same"),
    ("g/ada", "mi2"),
]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("shock", "did you mean `shok`?"),
        ("root/shock", "did you mean `root/shok`?"),
        ("root/nosuch", "known: `root/mi`, `root/shok`"),  # the owner is no likeness
        ("root/nightly", "did you mean `bob/nightly`?"),
        ("eve/same", "did you mean `ada/same` or `bob/same`?"),
        ("sane", "did you mean `ada/same` or `bob/same`?"),
        ("ada/sane", "did you mean `ada/same`?"),
        ("root/a/b", "write NAME or OWNER/NAME, with one `/`"),
        ("g/ada/mi", "did you mean `g/ada/mi2`?"),  # owners may have one
        ("root/", "write NAME or OWNER/NAME"),
        ("", "write NAME or OWNER/NAME"),
        ("zzz", "known: `ada/same`, `bob/same`, `mi`, `mi2`, `nightly`, `shok`"),
    ],
)
def test_a_hint_compares_names_and_is_itself_a_reference_that_works(text: str, hint: str) -> None:
    assert unknown_hint(text, CAMPAIGNS) == hint


def test_without_campaigns_there_is_none_to_name() -> None:
    assert unknown_hint("zzz", []) == "known: none"
