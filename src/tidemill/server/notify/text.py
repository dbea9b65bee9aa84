"""A digest as a mail that a physicist understands: what ended, figures, failures by class, what to do next. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from tidemill import clock
from tidemill.model.campaign import reference
from tidemill.model.quantities import bytes_text, counted_text, span_text
from tidemill.wire.notification import (
    CampaignFigures,
    CampaignNews,
    Digest,
    FailureGroup,
    FailuresNews,
    JobsNews,
    News,
    SiteNews,
)

LINE_MAX = 78  # RFC 5322 2.1.1: lines should have no more characters
EXAMPLE_MAX = 400
SUBJECT_MAX = 150
_ORDER = ("FAILED", "PARTIAL", "CANCELED", "COMPLETED", "RUNNING", "WAITING")
_BAD = ("FAILED", "PARTIAL", "CANCELED")
_SITES = {"DRAINED": "drained", "DOWN": "in a downtime", "LOST": "lost", "UP": "up again"}


def subject(digest: Digest) -> str:
    """One line that names the worst item and counts the others."""
    heads = [_head(each) for each in digest.items]
    text = heads[0] + (f"; and {len(heads) - 1} more" if len(heads) > 1 else "")
    return clean(f"[tidemill] {text}")[:SUBJECT_MAX]


def body(digest: Digest) -> str:
    """The mail's text."""
    parts = [_part(each) for each in digest.items]
    foot = (
        f"-- \nThe Tidemill server on {digest.server} sent this; it reports related events together.\n"
        f"Message {digest.id}, {utc(digest.made_us)}\n"
    )
    lines = ("\n\n".join(parts) + "\n\n" + foot).split("\n")
    return "\n".join(map(printable, lines))


def clean(text: str) -> str:
    """One line of printable characters: what payloads and sites write must not become anything else."""
    return printable(text).strip()


def printable(text: str) -> str:
    """The text with a blank for every character that is not printed, such as line ends, escapes and half characters."""
    return "".join(each if each.isprintable() else " " for each in text)


def utc(at_us: int) -> str:
    """`2026-11-20 23:05 UTC`."""
    return clock.utc_text(at_us)[:16].replace("T", " ") + " UTC"


def counts(states: dict[str, int]) -> str:
    """`998 COMPLETED, 2 FAILED`: all states that have jobs, the most frequent first."""
    named = [(states[state], state) for state in _ORDER if states.get(state)]
    named.sort(key=lambda pair: -pair[0])
    return ", ".join(f"{number:,} {state}" for number, state in named) or "none"


def _named(news: CampaignNews | FailuresNews | JobsNews) -> str:
    """The campaign, in the words that commands take."""
    return reference(news.owner, news.campaign) if news.owner else news.campaign


def _head(news: News) -> str:
    match news:
        case CampaignNews():
            states = news.figures.states if news.figures else {}
            return f"campaign {_named(news)} is done: {counts(states)}"
        case FailuresNews():
            return f"{news.share:.0%} of the events of campaign {_named(news)} fail"
        case JobsNews():
            total = sum(news.ended.values())
            if total == 1 and news.jobs:
                return f"job {news.jobs[0].job} of {_named(news)} is {news.jobs[0].state}"
            return f"{total:,} jobs of {_named(news)} ended: {counts(news.ended)}"
        case SiteNews():
            return f"site {news.site} is {_SITES.get(news.state, news.state)}"
        case _:
            return "a test: messages arrive"


def _part(news: News) -> str:
    match news:
        case CampaignNews():
            lines = [f"Campaign `{_named(news)}` is done.", *_figures(news.figures)]
            return "\n".join([*lines, *_commands(_named(news), news.figures, outputs=True)])
        case FailuresNews():
            lines = [
                f"Of the events of campaign `{_named(news)}` that ended, {news.share:.1%} failed;",
                f"the limit was set to {news.limit:.1%}. The campaign goes on.",
                *_figures(news.figures),
            ]
            return "\n".join(
                [
                    *lines,
                    *_commands(_named(news), news.figures, outputs=False),
                    f"    tidemill job cancel --campaign {_named(news)}    # if there is no point in going on",
                ]
            )
        case JobsNews():
            return "\n".join(_jobs(news))
        case SiteNews():
            return "\n".join(_site(news))
        case _:
            return "This is a test: Tidemill's notices will reach this address."


def _figures(figures: CampaignFigures | None) -> Iterator[str]:
    if figures is None:
        return
    ended = figures.events_done + figures.events_failed
    share = f" ({figures.events_failed / ended:.2%})" if ended and figures.events_failed else ""
    yield ""
    yield f"    jobs      {figures.jobs:,}: {counts(figures.states)}"
    share += f", {figures.events_canceled:,} canceled" if figures.events_canceled else ""
    yield f"    events    {figures.events:,}: {figures.events_done:,} done, {figures.events_failed:,} failed{share}"
    if figures.first_started_us is not None and figures.last_ended_us is not None:
        took = span_text((figures.last_ended_us - figures.first_started_us) / 1e6)
        yield f"    time      {utc(figures.first_started_us)} to {utc(figures.last_ended_us)}, {took}"
    if figures.payloads:
        cpu_s, many = figures.cpu_us / 1e6, "" if figures.payloads == 1 else "s"
        cpu = f"{cpu_s / 3600:,.2f} CPU-hours" if cpu_s >= 3600 else f"{span_text(cpu_s)} of CPU"
        memory = bytes_text(figures.rss_kb * 1024)
        yield f"    used      {cpu} in {figures.payloads:,} payload{many}, the largest {memory}"
    if figures.failures:
        yield ""
        yield "Failures by class, those that were tried again with success included:"
        for group in figures.failures:
            yield from _group(group)


def _group(group: FailureGroup) -> Iterator[str]:
    yield ""
    yield f"    {group.failure}: {group.count:,}, {group.meaning}"
    if group.example:
        where = f"job {group.job}" if group.job is not None else ""
        where += f", event {group.event}" if group.event is not None else ""
        where += f", node {clean(group.node)}" if group.node else ""
        yield from _wrapped("last", f"{clean(group.example)[:EXAMPLE_MAX]} ({where})")
    yield from _wrapped("next", group.next_step)


def _wrapped(word: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, LINE_MAX, initial_indent=f"        {word}  ", subsequent_indent=" " * 14, break_long_words=False
    )


def _jobs(news: JobsNews) -> Iterator[str]:
    total = sum(news.ended.values())
    yield f"{counted_text(total, 'job')} of campaign `{_named(news)}` ended: {counts(news.ended)}."
    yield ""
    for each in sorted(news.jobs, key=lambda job: (job.state not in _BAD, job.job)):
        name = f"  {clean(each.name)}" if each.name else ""
        why = f"  {clean(each.reason)[:EXAMPLE_MAX]}" if each.reason else ""
        yield f"    {each.job:>8}  {each.state:<9}{name}{why}"
    if total > len(news.jobs):
        yield f"    and {total - len(news.jobs):,} more"
    figures = news.figures
    if figures is not None:
        left = sum(figures.states.get(state, 0) for state in ("WAITING", "RUNNING"))
        yield ""
        yield f"The campaign has {figures.jobs:,} jobs: {counts(figures.states)}; {left:,} to go."
    bad = next((each.job for each in news.jobs if each.state in _BAD), None)
    yield ""
    yield "Look further:"
    yield ""
    if bad is not None:
        yield f"    tidemill job explain {bad}"
    yield f"    tidemill jobs --campaign {_named(news)}"


def _commands(campaign: str, figures: CampaignFigures | None, *, outputs: bool) -> Iterator[str]:
    yield ""
    yield "Look further:"
    yield ""
    yield f"    tidemill jobs --campaign {campaign}"
    if figures is not None and figures.failures:
        yield f"    tidemill errors --campaign {campaign}"
    if outputs:
        yield f"    tidemill outputs ls --campaign {campaign}"


_MEANS = {
    "DRAINED": "It gets no more work. What it had is finished or returned; jobs go on at other sites.",
    "DOWN": "It gets no new work until the downtime ends. What runs there goes on. Jobs that belong there wait, or are "
    "treated elsewhere if a ward admits them.",
    "LOST": "It has been silent for too long. Its work was given to others; nothing that was kept is lost.",
    "UP": "It gets work again.",
}


def _site(news: SiteNews) -> Iterator[str]:
    yield f"Site `{news.site}` is {_SITES.get(news.state, news.state)}."
    if news.reason:
        yield f"Reason: {clean(news.reason)[:EXAMPLE_MAX]}"
    yield ""
    yield from textwrap.wrap(_MEANS.get(news.state, ""), LINE_MAX)
    if len(news.moves) > 1:
        yield ""
        for move in news.moves:
            yield f"    {utc(move.at_us)}  {move.state:<8}  {clean(move.reason)[:100]}".rstrip()
    yield ""
    yield "Look further: `tidemill site status` on the site's login node,"
    yield f"`tidemill jobs --site {news.site}` for its jobs."
