"""Belief in replies, for any replies and witnesses in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.batch.contract import Answer, PlainReply, Status
from tidemill.site.nodes.belief import Belief, Doubt, ReplySeen, believed, judge, lasts

NAMES = ["a", "b", "c", "d"]
names = st.frozensets(st.sampled_from(NAMES))
WORD_S = 60.0


@st.composite
def histories(draw: st.DrawFn) -> list[ReplySeen]:
    """Replies in the order of their time, with any witnesses."""
    at_s, found = 0.0, []
    for _ in range(draw(st.integers(1, 6))):
        at_s += draw(st.sampled_from([1.0, 30.0, 61.0, 200.0]))
        running = draw(names)
        waiting = draw(names) - running
        plain = draw(st.none() | st.lists(st.sampled_from(NAMES)))
        found.append(
            ReplySeen(
                at_s=at_s, running=running, waiting=waiting, shown=draw(names) & (running | waiting),
                surveyed=draw(st.none() | names),
                plain=None if plain is None else PlainReply(shown=dict.fromkeys(plain, "1"), command="p", usual="u"),
                heard_s={name: at_s - draw(st.sampled_from([0.0, 10.0, 100.0])) for name in draw(names)},
                futile=tuple(draw(names)), word_s=WORD_S,
            )
        )  # fmt: skip
    return found


@given(histories())
def test_what_a_witness_shows_is_never_lost_and_what_all_show_is_never_doubted(
    history: list[ReplySeen],
) -> None:
    belief = Belief()
    for reply in history:
        belief = judge(belief, reply)
        missing = (reply.running | reply.waiting) - reply.shown
        statuses = {name: Status(answer=Answer.GONE) for name in missing}
        kept = missing - believed(statuses, belief).keys()
        if reply.plain is not None:
            assert set(reply.plain.shown) & missing & reply.running <= kept
        assert set(belief.alive) <= missing
        assert set(belief.missing_s) == missing
        assert all(since_s <= reply.at_s for since_s in belief.missing_s.values())
        assert bool(belief.doubt) == bool(belief.why)
        if not missing and reply.surveyed is None and not reply.futile:
            assert belief.doubt is Doubt.NONE
        if not belief.is_sure:
            assert not lasts(belief, 1e12, doubt_s=1.0)
        if belief.doubt is Doubt.PILOTS:
            assert all(reply.heard_s[name] - belief.missing_s[name] >= WORD_S for name in belief.alive)


@given(histories())
def test_a_true_reply_ends_every_doubt(history: list[ReplySeen]) -> None:
    belief = Belief()
    for reply in history:
        belief = judge(belief, reply)
    honest = ReplySeen(
        at_s=1e6, running=frozenset(NAMES), shown=frozenset(NAMES), surveyed=frozenset(NAMES), word_s=WORD_S
    )
    assert judge(belief, honest) == Belief()
