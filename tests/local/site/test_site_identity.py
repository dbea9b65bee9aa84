"""Who may serve a site directory, tried with real processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest

from tidemill import clock
from tidemill.errors import SiteError
from tidemill.site.state.epoch import Owner, SupersededError, claim


def serve(site_dir: Path, channel: Connection, take_over: bool) -> None:
    """Claim, tell, then check when asked."""
    try:
        identity = claim(site_dir, take_over=take_over, heartbeat_s=0.2, dead_s=1.0)
    except SiteError as error:
        channel.send(error.message)
        return
    channel.send(identity.number)
    while channel.recv() == "check":
        try:
            identity.check()
            channel.send("mine")
        except SupersededError as error:
            channel.send(error.message)


class Process:
    """An agent's identity in a process of its own."""

    def __init__(self, site_dir: Path, *, take_over: bool = False) -> None:
        context = multiprocessing.get_context("fork")
        self.channel, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(site_dir, theirs, take_over), daemon=True)
        self.process.start()

    def told(self) -> object:
        assert self.channel.poll(20)
        return self.channel.recv()

    def check(self) -> object:
        self.channel.send("check")
        return self.told()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def test_only_one_of_many_that_start_at_once_gets_the_site(tmp_path: Path) -> None:
    agents = [Process(tmp_path) for _ in range(8)]
    answers = [agent.told() for agent in agents]
    epochs = [answer for answer in answers if isinstance(answer, int)]
    assert len(epochs) == 1
    refusals = [answer for answer in answers if isinstance(answer, str)]
    assert all("is served by process" in text for text in refusals)
    for agent in agents:
        agent.kill()


def test_refusal_names_host_process_and_the_way_out(tmp_path: Path) -> None:
    agent = Process(tmp_path)
    agent.told()
    with pytest.raises(SiteError) as caught:
        claim(tmp_path, take_over=False, heartbeat_s=0.2, dead_s=1.0)
    assert f"process {agent.process.pid}" in caught.value.message
    assert "--take-over" in (caught.value.hint or "")
    assert not caught.value.transient
    agent.kill()


def test_dead_owner_is_followed_without_take_over(tmp_path: Path) -> None:
    agent = Process(tmp_path)
    assert agent.told() == 1
    agent.kill()
    assert claim(tmp_path, take_over=False, heartbeat_s=0.2, dead_s=1.0).number == 2


def test_stopped_owner_that_wakes_after_a_take_over_knows(tmp_path: Path) -> None:
    agent = Process(tmp_path)
    agent.told()
    assert agent.check() == "mine"
    assert agent.process.pid is not None
    os.kill(agent.process.pid, signal.SIGSTOP)
    assert claim(tmp_path, take_over=True, heartbeat_s=0.2, dead_s=1.0).number == 2
    os.kill(agent.process.pid, signal.SIGCONT)
    text = agent.check()
    assert isinstance(text, str)
    assert "taken over" in text
    assert "epoch 2" in text
    agent.kill()


def foreign(site_dir: Path, *, beat_us: int) -> None:
    """An epoch of an agent on another host."""
    directory = site_dir / "epoch"
    directory.mkdir()
    owner = Owner(epoch=1, host="elsewhere", boot="b", pid=1, start=1, since_us=beat_us)
    (directory / "000001.json").write_bytes(msgspec.json.encode(owner))
    (directory / "000001.beat").write_text(str(beat_us))


def test_owner_on_another_host_lives_as_long_as_its_heartbeat(tmp_path: Path) -> None:
    foreign(tmp_path, beat_us=clock.now_us())
    with pytest.raises(SiteError, match="elsewhere"):
        claim(tmp_path, take_over=False, heartbeat_s=0.1, dead_s=30.0)


def test_owner_on_another_host_is_dead_when_its_heartbeat_is_old_and_stays(tmp_path: Path) -> None:
    foreign(tmp_path, beat_us=clock.now_us() - 60_000_000)
    assert claim(tmp_path, take_over=False, heartbeat_s=0.05, dead_s=1.0).number == 2


def test_clean_end_lets_the_next_start_at_once(tmp_path: Path) -> None:
    first = claim(tmp_path, take_over=False, heartbeat_s=0.2, dead_s=1.0)
    first.leave()
    assert claim(tmp_path, take_over=False, heartbeat_s=0.2, dead_s=1.0).number == 2
    with pytest.raises(SupersededError):
        first.check()
