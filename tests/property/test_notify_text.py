"""What others write (names, reasons, payloads' last words, addressees) becomes text of a mail and nothing else."""

from __future__ import annotations

import email
import email.policy

from hypothesis import given
from hypothesis import strategies as st

from tidemill.config.addressee import Channel, parse_target
from tidemill.config.notify import Mail
from tidemill.server.notices.sender import Parcel
from tidemill.server.notify.mail import Mailer
from tidemill.wire.notification import (
    CampaignFigures,
    CampaignNews,
    Digest,
    EndedJob,
    FailureGroup,
    JobsNews,
    Move,
    News,
    SiteNews,
)

HEADERS = {"From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "Content-Type", "Content-Transfer-Encoding",
           "MIME-Version"}  # fmt: skip
NASTY = st.text(max_size=200) | st.sampled_from(
    [
        "\r\nBcc: all@example.org",
        "\n.\nQUIT",
        "\x00",
        "\ud800",
        "a\u2028b",
        "\r\n\r\nnew body",
        "\x1b]0;x\x07",
    ]
)
COUNTS = st.dictionaries(
    st.sampled_from(["COMPLETED", "FAILED", "RUNNING"]), st.integers(0, 10**9), max_size=3
)
MAILER = Mailer(Mail(server="smtp+plain://localhost:25", sender="tm@example.org"))


@st.composite
def news(draw: st.DrawFn) -> News:
    group = FailureGroup(
        failure=draw(NASTY), count=1, meaning=draw(NASTY), next_step=draw(NASTY), example=draw(NASTY),
        node=draw(NASTY), job=1,
    )  # fmt: skip
    figures = CampaignFigures(
        states=draw(COUNTS), jobs=1, events=1, events_done=0, events_failed=draw(st.integers(0, 5)), payloads=1,
        cpu_us=0, wall_us=0, rss_kb=0, first_started_us=0, last_ended_us=draw(st.integers(0, 10**15)), failures=[group],
    )  # fmt: skip
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return CampaignNews(campaign=draw(NASTY), figures=figures, first_us=0, last_us=0)
    if kind == 1:
        jobs = [EndedJob(job=1, state="FAILED", name=draw(NASTY), reason=draw(NASTY))]
        return JobsNews(
            campaign=draw(NASTY), ended=draw(COUNTS), jobs=jobs, figures=figures, first_us=0, last_us=0
        )
    moves = [Move(at_us=0, state="UP", reason=draw(NASTY))] * 2
    return SiteNews(site=draw(NASTY), state="UP", reason=draw(NASTY), moves=moves, first_us=0, last_us=0)


@given(st.lists(news(), min_size=1, max_size=3))
def test_a_mail_has_one_recipient_and_our_headers_whatever_others_write(items: list[News]) -> None:
    made = MAILER.message(
        Parcel("me@example.org", Digest(id="1.1", server="here", made_us=1, items=items))
    ).as_bytes()

    read = email.message_from_bytes(made, policy=email.policy.default)
    head = made.partition(b"\r\n\r\n")[0]
    assert set(read.keys()) <= HEADERS
    assert read["To"] == "me@example.org"
    assert len(read["Subject"]) <= 150
    assert not read.is_multipart()
    assert b"\n" not in head.replace(b"\r\n", b"")


@given(st.text(max_size=600) | st.builds("mail:{}".format, NASTY) | st.builds("https://{}".format, NASTY))
def test_an_addressee_is_read_as_one_thing_or_refused(text: str) -> None:
    try:
        target = parse_target(text)
    except ValueError:
        return
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    if target.channel is Channel.MAIL:
        assert target.where.count("@") == 1
        assert not set(target.where) & set("<>,;:\"'()[]\\")
