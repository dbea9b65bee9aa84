"""Our jobs are known by name and key, and nothing else passes for them."""

from __future__ import annotations

import pytest

from tidemill.batch.names import carries_key, check_name, compose_comment, is_allocation_name
from tidemill.errors import SiteError


def test_comment_carries_the_key_once_and_nothing_that_breaks_a_line() -> None:
    comment = compose_comment("k1", "bonn contact=a@b.org\n\x1e é")
    assert comment == "tidemill k1 bonn contact=a@b.org ?"
    assert compose_comment("k1", comment) == comment
    assert carries_key(comment, "k1")


@pytest.mark.parametrize(
    "comment", ["", "tidemill", "tidemill k2 bonn", "x tidemill k1", "tidemill k11 bonn"]
)
def test_other_comments_are_not_ours(comment: str) -> None:
    assert not carries_key(comment, "k1")


def test_names_of_submissions_have_a_shape() -> None:
    assert is_allocation_name("tm-bonn.1_x-e3-17")
    for other in ("tm-bonn-e3-17.2", "tm-bonn-e3-", "xtm-bonn-e3-17", "tm-bonn-e3-17\n", "tm-e3-1"):
        assert not is_allocation_name(other)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a;b", "a\nb", "é", "../a", "a" * 129])
def test_names_that_would_break_something_are_refused(name: str) -> None:
    with pytest.raises(SiteError, match="cannot be named"):
        check_name(name)
    assert check_name("tm-bonn-e3-17") == "tm-bonn-e3-17"
