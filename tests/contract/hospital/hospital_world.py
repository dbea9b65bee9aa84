"""A server with wards, and sites that fall silent, for tests of the hospital on both databases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from tests.contract.server_world import SIM, Site, World

from tidemill.clock import now_us
from tidemill.config.hospital import Ward, WardCure
from tidemill.server.core.dispatcher import Dispatcher, DispatchRules
from tidemill.server.core.server_clock import ServerClock
from tidemill.server.database.store import Store
from tidemill.server.hospital.readings import Downtime, DowntimeReader, Reading
from tidemill.server.read import hospital
from tidemill.wire.hospital import WardRow

HOME = msgspec.structs.replace(SIM, home="home")
AWAY = Ward(name="away", home_down=True, sites=["a", "b"])
SLOW = Ward(name="slow", waited_s=0.0, sites=["a"])
CURE = WardCure(memory_factor=2, whole_node=True, read="cache")
MEMORY = Ward(name="memory", failures=["memory"], sites=["a"], cure=CURE)


class Hospital(World):
    """A world with wards."""

    def __init__(self, store: Store, *wards: Ward, **rules: Any) -> None:
        super().__init__(store)
        self.rules = DispatchRules(site_lost_s=600, wards=wards, **rules)
        self.wall_us = now_us()
        self.again()
        self.round()

    def pass_time(self, seconds: float) -> None:
        """The server is a while older."""
        self.now_s += seconds
        self.wall_us += int(seconds * 1e6)

    def round(self) -> None:
        """As the server does every few seconds."""
        self.dispatcher.check_sites()
        self.dispatcher.check_downtimes()
        while self.dispatcher.check_hospital().more:
            pass

    def rows(self) -> dict[str, WardRow]:
        return {row.ward: row for row in hospital.ward_rows(self.reader, self.rules.wards)}

    def again(self) -> None:
        """The server is started again."""
        self.dispatcher.close()
        timed = ServerClock(monotonic_s=lambda: self.now_s, wall_us=lambda: self.wall_us)
        self.dispatcher = Dispatcher(self.store, self.rules, server_clock=timed)


class Announced:
    """A source of downtimes that says what a test says; the server gets its `reader`."""

    def __init__(self) -> None:
        self._reading = Reading("plan", None, "nothing was said")
        self.reader = DowntimeReader(("plan",), lambda now_us: iter([self._reading]))

    def say(self, *downtimes: Downtime, form: str = "a calendar") -> None:
        """From the next reading on these downtimes are announced, and no others."""
        self._reading = Reading("plan", list(downtimes), "", form)

    def fail(self) -> None:
        """From the next reading on it cannot be read."""
        self._reading = Reading("plan", None, "it is empty")


def downtime(begin: datetime) -> Downtime:
    """Two hours without the site `home`."""
    begin_us = int(begin.timestamp() * 1e6)
    return Downtime("home", begin_us, begin_us + 7_200_000_000, "new racks")


def make(worlds: list[Hospital], store: Store, *wards: Ward, **rules: Any) -> Hospital:
    worlds.append(Hospital(store, *wards, **rules))
    return worlds[-1]


def lose(world: Hospital, *heard: Site) -> None:
    """The sites that are not heard are silent for so long that they are lost."""
    world.now_s += 700
    for each in heard:
        each.sync(want=0)
    world.round()


def bounce(
    world: Hospital, home: Site, other: Site, *, times: int, then: Callable[[], None] | None = None
) -> None:
    """Each site in turn is lost while the job waits for it; `then` comes after each turn."""
    for _ in range(times):
        home.sync(want=0)
        other.sync(want=0)
        world.round()
        lose(world, other)
        if then is not None:
            then()
            other.sync(want=0)
