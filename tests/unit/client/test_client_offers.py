"""What is said before a job is submitted that no site takes."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.cli.jobs.submit import _typed
from tidemill.client.offers import check_offered
from tidemill.errors import ConfigError
from tidemill.model.application import Parameter, ParameterType
from tidemill.model.job import Input, JobSpec
from tidemill.model.parameter import legal_text
from tidemill.model.trouble import RefusedApplication
from tidemill.wire.api import AppOffer, SiteApplication, SiteRow

ENERGY = Parameter(type=ParameterType.INT, min=1, max=1000, help="GeV")
HINT = "`energy` is an integer from 1 to 1000 (GeV)"


def _offer(parameters: dict[str, Parameter]) -> SiteApplication:
    offer = AppOffer(
        name="spectrum", version="1", digest="", mode="command", parameters=parameters, outputs=[], cores=1,
        memory_mb=1, event_s=1.0,
    )  # fmt: skip
    return SiteApplication(site="here", app=offer)


@pytest.mark.parametrize(
    ("params", "said", "hint"),
    [
        ({"energy": 5000}, "at most 1000 is allowed", HINT),
        ({"energy": "x"}, "expected a whole number", HINT),
        ({}, "needs parameter `energy`", HINT),
        ({"energie": 5}, "has no parameter `energie`", "did you mean `energy`?"),
    ],
)
def test_every_wrong_parameter_is_wrong_usage_and_the_hint_says_what_is_legal(
    params: dict[str, Any], said: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        check_offered(JobSpec(app="spectrum", params=params), [_offer({"energy": ENERGY})])
    assert refused.value.exit_code == 2
    assert refused.value.hint == hint


def test_an_input_that_no_site_takes_is_wrong_usage_and_an_older_site_is_not_asked() -> None:
    spec = JobSpec(app="spectrum", inputs=[Input(name="json.py", url="/x")])
    offer = _offer({})
    check_offered(spec, [offer])
    offer.app.inputs = ["data"]
    with pytest.raises(ConfigError, match=r"takes no input named `json\.py`"):
        check_offered(spec, [offer])
    check_offered(JobSpec(app="spectrum", inputs=[Input(name="data", url="/x")]), [offer])


def test_an_application_that_a_site_refuses_is_answered_with_its_reason() -> None:
    why = "unknown key `outputs[0].pathh` (did you mean `path`?)"
    named = RefusedApplication(name="wave", file="w.toml", why=why)
    unnamed = RefusedApplication(name="", file="storm.toml", why="is not TOML")
    site = SiteRow(
        name="here", state="UP", epoch=1, host="h", version="1", seen_us=0, capacity={}, allocations={},
        applications=[], leased_events=0, refused=[named, unnamed],
    )  # fmt: skip
    for app, said in (("wave", why), ("storm", "is not TOML")):
        with pytest.raises(ConfigError, match=f"no site offers the application `{app}`") as refused:
            check_offered(JobSpec(app=app), [], sites=lambda: [site])
        assert refused.value.message.endswith(f": site `here` refuses it: {said}")
        assert refused.value.hint is None
    with pytest.raises(ConfigError, match="does not offer") as refused:
        check_offered(JobSpec(app="wave", site="there"), [], sites=lambda: [site])
    assert "refuses" not in refused.value.message


@pytest.mark.parametrize(
    ("site", "hint"), [(None, "your sites offer no application"), ("here", "site `here` offers none")]
)
def test_where_no_application_is_offered_the_hint_says_so(site: str | None, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_offered(JobSpec(app="wave", site=site), [])
    assert refused.value.hint == hint


def test_a_word_where_a_number_belongs_is_refused_with_the_same_hint() -> None:
    with pytest.raises(ConfigError) as refused:
        _typed("energy", "x", ENERGY)
    assert refused.value.hint == HINT


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        (Parameter(type=ParameterType.FLOAT, min=0.5), "`p` is a number of at least 0.5"),
        (Parameter(type=ParameterType.INT, max=9), "`p` is an integer of at most 9"),
        (Parameter(type=ParameterType.BOOL, help="quick"), "`p` is `true` or `false` (quick)"),
        (Parameter(type=ParameterType.CHOICE, choices=["a", "b"]), "`p` is one of `a`, `b`"),
        (Parameter(pattern="[a-z]+"), "`p` is a text that matches `[a-z]+`"),
        (Parameter(), "`p` is a text"),
    ],
)
def test_what_a_parameter_may_be_is_said_in_words(parameter: Parameter, text: str) -> None:
    assert legal_text("p", parameter) == text
