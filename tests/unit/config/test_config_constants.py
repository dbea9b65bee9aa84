"""What is no setting: constants of the records, which `[tuning]` replaces."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidemill import config
from tidemill.config.amqp import Amqp
from tidemill.config.server import SITE_LOST_S
from tidemill.config.site import Cluster, SiteConfig
from tidemill.errors import ConfigError
from tidemill.model.metrics import AGENT
from tidemill.model.state import LEASE_TRANSITIONS, LeaseState

SITE = 'name = "x"\nserver = "unix:/run/api.sock"\n'


def refusal(data: dict[str, Any], record: type[msgspec.Struct]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        config.convert(data, record, source=Path("/etc/x.toml"))
    return caught.value


def site(text: str) -> SiteConfig:
    return config.loads(SITE + text, SiteConfig, source=Path("/etc/site.toml"))


def test_tuning_sets_constants_of_every_table_beside_its_settings() -> None:
    read = site(
        'tuning.idle_s = "1m"\n[harvest]\npoll_s = 7\n[tuning.harvest]\ncycle_s = 3\n[tuning.limits]\njobs_max = 5'
    )
    assert (read.idle_s, read.harvest.poll_s, read.harvest.cycle_s, read.limits.jobs_max) == (
        60.0,
        7.0,
        3.0,
        5,
    )
    assert site("").idle_s == 20.0


def test_tuning_takes_no_settings_and_no_unknown_names() -> None:
    with pytest.raises(ConfigError, match=r"unknown key `tuning\.nodes_max`"):
        site("tuning.nodes_max = 3")
    with pytest.raises(ConfigError, match=r"unknown key `tuning\.harvest\.cycle`") as caught:
        site("tuning.harvest.cycle = 3")
    assert caught.value.hint == "did you mean `cycle_s`?"
    with pytest.raises(ConfigError, match=r"`tuning\.idle_s`.*is not a duration"):
        site('tuning.idle_s = "soon"')


def test_a_record_without_constants_has_no_tuning() -> None:
    class Plain(msgspec.Struct, frozen=True):
        name: str = ""

    assert config.has_constants(Amqp)
    assert not config.has_constants(Plain)
    assert "unknown key `tuning`" in refusal({"tuning": {}}, Plain).message


def test_tables_of_states_and_metrics_name_the_constants_that_hold() -> None:
    lost = LEASE_TRANSITIONS[LeaseState.ACTIVE, LeaseState.LOST]
    assert f"longer than {SITE_LOST_S / 60:.0f} minutes" in lost
    assert f"over {Cluster().slow_s:g} s" in AGENT["tidemill_batch_slow_total"].help
