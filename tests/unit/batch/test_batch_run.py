"""Programs are run within bounds, and what they answer is told apart."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.worlds.home.processes import said_of

from tidemill import clock
from tidemill.batch.polite import Budget
from tidemill.batch.run import CommandResult, Refusal, ask, recognise, run, stuck
from tidemill.config.site import Cluster
from tidemill.errors import SiteError

UNDEAD = Path(__file__).parents[2] / "fakes" / "undead.py"


def test_reply_holds_status_bytes_and_last_words() -> None:
    reply = ask(["sh", "-c", r"printf 'a\377b'; echo first >&2; echo last >&2; exit 3"])
    assert (reply.status, reply.output, reply.last_words) == (3, b"a\xffb", "last")


def test_programs_speak_english_and_utc_whatever_the_agent_speaks() -> None:
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "de_DE.UTF-8", "TZ": "Europe/Berlin"}
    assert run(["sh", "-c", "echo $LC_ALL $TZ"], environ=environ) == "C UTC\n"


def test_input_is_handed_over_whole() -> None:
    content = bytes(range(256)) * 5000
    assert ask(["cat"], stdin=content).output == content


def test_program_that_reads_no_input_is_no_error() -> None:
    assert ask(["true"], stdin=b"x" * 1_000_000).status == 0


def test_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(SiteError, match="did not answer within") as caught:
        ask(["sh", "-c", script], timeout_s=0.3)
    assert caught.value.transient
    pid = (tmp_path / "pid").read_text().strip()
    deadline = clock.monotonic_s() + 10
    while said_of(int(pid), "stat").rpartition(")")[2].split()[:1] not in ([], ["Z"]):
        assert clock.monotonic_s() < deadline
        clock.sleep_s(0.01)


@pytest.mark.timeout(30)
def test_program_that_cannot_be_killed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = tmp_path / "tracer"
    monkeypatch.setenv("UNDEAD_TRACER", str(tracer))
    try:
        with pytest.raises(SiteError, match="did not answer within 2 s, and cannot be killed"):
            ask([str(UNDEAD)], timeout_s=2.0, environ=os.environ)
        (left,) = stuck
        assert left.poll() is None
    finally:
        os.kill(int(tracer.read_text()), signal.SIGKILL)
    left.wait(10)
    assert ask(["true"]).status == 0
    assert stuck == []


def test_program_that_prints_without_end_is_stopped() -> None:
    with pytest.raises(SiteError, match="`yes` printed more than 100000 bytes, the bound on one reply"):
        ask(["yes"], bytes_max=100_000)


@pytest.mark.timing(batch={"REPLY_BYTES_MAX": 100000})
def test_a_reply_that_is_too_large_names_the_command_and_what_to_set() -> None:
    with pytest.raises(SiteError, match="`yes` printed more than 100000 bytes") as caught:
        Budget(Cluster()).query(["yes"])
    assert "the batch system answers" in (caught.value.hint or "")
    assert "REPLY_BYTES_MAX in batch/constants.py" in (caught.value.hint or "")


def test_missing_program_is_no_passing_trouble() -> None:
    with pytest.raises(SiteError, match="no program `tm-there-is-none`") as caught:
        ask(["tm-there-is-none"])
    assert not caught.value.transient


def test_first_known_word_tells_the_refusal() -> None:
    words = [("rate limit", Refusal.BUSY), ("invalid", Refusal.UNKNOWN)]
    assert recognise(CommandResult("x", 1, b"", "Invalid job id", 0), words) is Refusal.UNKNOWN
    assert recognise(CommandResult("x", 1, b"", "invalid: Rate limit", 0), words) is Refusal.BUSY
    assert recognise(CommandResult("x", 1, b"rate limit", "", 0), words) is Refusal.BUSY
    assert recognise(CommandResult("x", 1, b"", "fire", 0), words) is Refusal.OTHER


@pytest.mark.timing(batch={"SLOW_S": 0.05, "SLOWDOWN_MAX": 4.0})
def test_slow_replies_make_polls_rarer_up_to_a_bound_and_quick_ones_bring_them_back() -> None:
    budget = Budget(Cluster(calls_per_min_max=1000))
    for expected in (2.0, 4.0, 4.0):
        budget.query(["sleep", "0.06"], kind="queue")
        assert budget.calls.interval_factor == expected
    budget.query(["true"], kind="own")
    assert budget.calls.interval_factor == 4.0, "another kind of poll says nothing of this one"
    for expected in (2.0, 1.0, 1.0):
        budget.query(["true"], kind="queue")
        assert budget.calls.interval_factor == expected
    assert budget.calls.slow == 3


def test_rate_limit_slows_all_polls_whatever_met_it() -> None:
    budget = Budget(Cluster(calls_per_min_max=1000), [("rate limit", Refusal.BUSY)])
    budget.query(["true"], kind="queue")
    budget.act(["sh", "-c", "echo Rate limit exceeded >&2; exit 1"])
    assert budget.calls.interval_factor == 2.0


def test_commands_a_minute_are_bounded_and_actions_have_a_share_of_their_own() -> None:
    budget = Budget(Cluster(calls_per_min_max=8))
    for _ in range(6):
        budget.query(["true"])
    with pytest.raises(SiteError, match="8 commands a minute are allowed") as caught:
        budget.query(["true"])
    assert caught.value.transient
    budget.act(["true"])
    budget.act(["true"])
    assert (budget.calls.queries, budget.calls.actions) == (6, 2)


@pytest.mark.timing(batch={"COMMAND_TIMEOUT_S": 1})
def test_calls_count_bytes_seconds_and_failures() -> None:
    budget = Budget(Cluster(calls_per_min_max=1000), [("no such", Refusal.DENIED)])
    budget.query(["sh", "-c", "printf 12345; sleep 0.05"])
    assert budget.calls.bytes == 5
    assert 0.05 <= budget.calls.last_s <= budget.calls.seconds
    with pytest.raises(SiteError) as caught:
        budget.check(budget.query(["sh", "-c", "echo no such partition >&2; exit 1"]))
    assert not caught.value.transient
    with pytest.raises(SiteError):
        budget.query(["sleep", "1000"])
    assert budget.calls.failures == 2
