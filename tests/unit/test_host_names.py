"""Look-ups of names that hold up nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tidemill.net import names
from tidemill.net.names import HostNames, addresses_within


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_name_server_that_hangs_holds_up_nobody_and_is_asked_by_one_thread() -> None:
    answers, asked, askers = threading.Event(), list[str](), list[threading.Thread]()

    def look_up(host: str) -> list[str]:
        asked.append(host)
        askers.append(threading.current_thread())
        assert answers.wait(30)
        return ["192.0.2.7"]

    hosts = HostNames(look_up)
    for _ in range(1000):  # each call comes back although no look-up does
        assert hosts.addresses("dtn.example") == hosts.addresses("other.example") == []
    until(lambda: len(askers) > 0)
    assert len(asked) == 1, "one look-up at a time"
    answers.set()
    until(lambda: hosts.addresses("dtn.example") == hosts.addresses("other.example") == ["192.0.2.7"])
    assert sorted(asked) == ["dtn.example", "other.example"]
    assert len(set(askers)) == 1, "by one thread"


def test_an_address_is_known_without_a_look_up() -> None:
    def look_up(host: str) -> list[str]:
        raise AssertionError(host)

    hosts = HostNames(look_up)
    assert hosts.addresses("127.0.0.1") == ["127.0.0.1"]
    assert hosts.addresses("2001:DB8::0:1") == ["2001:db8::1"]


def test_a_name_that_moves_is_followed_and_one_that_is_lost_for_a_while_is_kept() -> None:
    given: list[list[str]] = [["192.0.2.1"], ["192.0.2.2"], []]
    asked = []

    def look_up(host: str) -> list[str]:
        asked.append(host)
        found = given[min(len(asked), len(given)) - 1]
        if not found:
            raise OSError("Name or service not known")
        return found

    hosts = HostNames(look_up, ask_s=0.01, again_s=0.01)
    until(lambda: bool(hosts.addresses("dtn.example")) and len(asked) >= 3)
    for _ in range(20):
        assert hosts.addresses("dtn.example") == ["192.0.2.2"]


def test_names_are_bounded_and_bad_ones_have_no_address() -> None:
    hosts = HostNames(lambda host: ["192.0.2.1"] * 100)
    for number in range(names.NAMES_MAX + 50):
        hosts.addresses(f"h{number}.example")
    until(lambda: hosts.addresses(f"h{names.NAMES_MAX - 1}.example") != [])
    assert len(hosts.addresses("h1.example")) == names.ADDRESSES_MAX
    assert hosts.addresses(f"h{names.NAMES_MAX}.example") == []
    assert HostNames().addresses("a..b") == []


def test_a_look_up_waits_for_a_name_server_for_a_bounded_time() -> None:
    go = threading.Event()

    def slow(host: str) -> list[str]:
        go.wait()
        return [host]

    with pytest.raises(TimeoutError, match="no name server has answered"):
        addresses_within("slow.example", 0.05, look_up=slow)
    go.set()
    assert addresses_within("well.example", 5.0, look_up=lambda host: ["192.0.2.1"]) == ["192.0.2.1"]
    assert addresses_within("::1", 0.0, look_up=slow) == ["::1"]


def test_a_look_up_that_fails_says_why() -> None:
    def refused(host: str) -> list[str]:
        raise OSError(f"no such name: {host}")

    with pytest.raises(OSError, match="no such name"):
        addresses_within("x.example", 5.0, look_up=refused)
