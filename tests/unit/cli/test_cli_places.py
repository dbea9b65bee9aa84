"""Whether a site can ever run a job and how long it takes, as it is said at submit; what a job waits for. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.cli.jobs.dry_run import SitePower, at_once_of, at_once_text, misfit_of, plan_of
from tidemill.cli.jobs.top import site_text
from tidemill.cli.progress import waiting_text
from tidemill.model.job import JobSpec, Resources
from tidemill.wire.api import AppOffer, SiteRow


def _site(name: str, *, state: str = "UP", **capacity: Any) -> SiteRow:
    shown = {"slot_cores_max": 8, "slot_memory_mb_max": 16_000, "wide_nodes_max": 4, "launcher": "srun"}
    return SiteRow(
        name=name, state=state, epoch=1, host="h", version="0.1.0", seen_us=0, capacity={**shown, **capacity},
        allocations={}, applications=[], leased_events=0,
    )  # fmt: skip


def _job(*, site: str | None = None, **resources: Any) -> JobSpec:
    return JobSpec(command=["true"], site=site, resources=Resources(**resources))


def _offer(name: str, *, outputs: list[str]) -> AppOffer:
    return AppOffer(
        name=name, version="1", digest="", mode="command", parameters={}, outputs=outputs, cores=1, memory_mb=1,
        event_s=2.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "said", "hinted"),
    [
        (_job(nodes=5), "no pilot of any site can start 5 nodes, 5 ranks", "site `big` comes nearest"),
        (
            _job(nodes=2, ranks=32),
            "no pilot of any site can start 2 nodes, 32 ranks",
            "16 ranks of 1 core on",
        ),
        (_job(nodes=2, site="small"), "no pilot of the site", "has no MPI launcher"),
        (_job(site="bigg"), "no site is called `bigg`", "did you mean `big`?"),
        (_job(cores=9), "no slot of any site has 9 cores", "--cores 8"),
    ],
)
def test_what_no_site_can_run_is_named_with_what_comes_nearest(spec: JobSpec, said: str, hinted: str) -> None:
    found = misfit_of(spec, [_site("small", wide_nodes_max=0, launcher=""), _site("big")], [])
    assert found is not None
    assert said in found[0]
    assert hinted in found[1]


def test_what_a_site_can_run_is_not_remarked_on_nor_what_is_not_known() -> None:
    sites = [_site("small", wide_nodes_max=0, launcher=""), _site("big")]
    for spec in (_job(nodes=4, ranks=32), _job(site="small"), _job(cores=8)):
        assert misfit_of(spec, sites, []) is None
    assert misfit_of(_job(nodes=99, site="big"), [], []) is None, "no site has joined yet"
    assert misfit_of(_job(site="gone"), [_site("gone", state="LOST")], []) is None, "it may come back"


def test_a_job_of_a_file_is_mended_by_keys_of_that_file() -> None:
    asked = _job(cores=9, memory_mb=20_000, devices={"gpu": 2})
    found = misfit_of(asked, [_site("big")], [], of_file=True)
    assert found is not None
    assert found[1].endswith(": cores = 8, memory_mb = 16000, devices = {gpu = 0}")
    assert "--" not in found[1]


def test_a_bound_on_each_event_bounds_the_end() -> None:
    job = JobSpec(command=["true"], events=10, resources=Resources(timeout_s=600))
    (small, large) = (plan_of([(job, 1)], [SitePower("s", cores, {})], {}) for cores in (2, 64))
    assert (small.core_h_max, small.wall_s_max, small.wall_s) == (10 * 600 / 3600, 3000.0, None)
    assert large.wall_s_max == 600, "an event is not split"
    assert plan_of([(job, 1)], [], {}).wall_s_max is None


def test_what_leaves_cores_of_a_node_idle_is_said_with_what_would_not() -> None:
    """A node of 8 cores and 15,200 MB, of which a work directory takes at least 50."""
    site = _site("s", slot_memory_mb_max=15_150, devices={"gpu": 2})

    def said(**asked: Any) -> str:
        found = at_once_of(_job(**asked), site)
        return "" if found is None else at_once_text(found)

    assert said() == "8 on a node of 8 cores (site s)"
    assert said(memory_mb=2000) == (
        "7 on a node of 8 cores (site s); memory limits it: 2,000 + 50 MB for each and its work directory, of "
        "15,200 MB; --memory 1850MB gives 8"
    )
    assert said(memory_mb=1850) == "8 on a node of 8 cores (site s)"
    assert said(memory_mb=1500, scratch_mb=1000).endswith("--memory 900MB gives 8")
    assert said(devices={"gpu": 1}) == "2 on a node of 8 cores (site s); GPUs limit it"
    assert said(cores=9) == said(nodes=2) == said(memory_mb=15_200) == ""


def test_a_plan_names_the_outputs_that_an_application_gives() -> None:
    offers = {"sim": _offer("sim", outputs=["hits", "log"])}
    assert plan_of([(JobSpec(app="sim"), 3)], [], offers).app_outputs == ["hits", "log"]
    assert plan_of([(JobSpec(app="sim", outputs=[]), 3)], [], offers).app_outputs == [], "the job's own"


def test_a_job_at_work_waits_for_nothing() -> None:
    assert waiting_text("running", "all its events are running") is None
    assert waiting_text(None, None) is None
    assert waiting_text("fair_share", "others go first") == "others go first"


def test_top_shows_what_keeps_a_site_from_all_work() -> None:
    trouble = {"is_open": True, "scope": "all", "message": "replies of the batch system are not believed"}
    assert (
        site_text(_site("big", troubles=[trouble])) == "big UP: replies of the batch system are not believed"
    )
    assert (
        site_text(_site("big", troubles=[{**trouble, "scope": "app"}, {**trouble, "is_open": False}]))
        == "big UP"
    )
    assert site_text(_site("big")) == "big UP"
