"""What the core knows of Grid Engine, and what `site init` and `site check` make of a user's default requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill import config
from tidemill.batch.contract import Facts
from tidemill.batch.kinds import kind_of, kinds_here, shown_reason
from tidemill.batch.open import asked_cluster, open_batch, open_cluster
from tidemill.cli.site.init import draw
from tidemill.config.site import Cluster, SiteConfig
from tidemill.config.tables import tables_of
from tidemill.harvest.plan.policies import Policy
from tidemill.model.state import AllocationState
from tidemill.site.nodes.planning import end_us_of, policy_of
from tidemill.site.nodes.unended import UnendedJob, cancel_command
from tidemill.site.setup.detection import Login, SiteWishes, suggest
from tidemill.site.setup.shell import missing_findings, taken_findings
from tidemill.site.state.site_state import Allocation
from tidemill_gridengine.adapter import GridEngineBatchSystem
from tidemill_gridengine.defaults import home

REQUESTS = "# mine\n-l h_vmem=4G -m e\n-pe mpi 8 -q short.q\n-sync n\n"
HOUR_US = 3_600_000_000
SITE = 'name = "here"\nserver = "unix:/h/api.sock"\nbatch = "gridengine"\n'


def site(more: str = "") -> SiteConfig:
    return config.loads(SITE + more, SiteConfig, source=Path("site.toml"))


def test_it_is_opened_by_its_name(tmp_path: Path) -> None:
    assert isinstance(open_cluster("gridengine", tmp_path, Cluster()), GridEngineBatchSystem)


def test_it_is_opened_with_its_own_table(tmp_path: Path) -> None:
    read = site("[gridengine]\nparallel_environment = 'whole'\n")
    opened = open_batch(read, tmp_path)
    assert isinstance(opened, GridEngineBatchSystem)
    assert opened._own.parallel_environment == "whole"
    with asked_cluster(read, tmp_path) as asked:
        assert isinstance(asked, GridEngineBatchSystem)
        assert asked._own.parallel_environment == "whole"


def test_it_hides_its_plan_and_lowers_no_limit() -> None:
    assert policy_of(site()) is Policy.WINDOWS
    assert policy_of(site('[harvest]\npolicy = "capped"\n')) is Policy.CAPPED
    ordered = Allocation(
        name="tm-here-e1-1", fleet="f", nodes=1, cores=1, state=AllocationState.ACTIVE, intended_us=1,
        walltime_s=7200.0, started_us=HOUR_US, ends_us=3 * HOUR_US, shortened_us=2 * HOUR_US,
    )  # fmt: skip
    assert end_us_of(ordered, batch="gridengine") == 2 * HOUR_US
    assert end_us_of(ordered, batch="slurm") == 3 * HOUR_US


def test_the_command_that_ends_jobs() -> None:
    jobs = [UnendedJob(name="a", number="31", why="x"), UnendedJob(name="b", number="", why="x")]
    assert cancel_command("gridengine", jobs) == "qdel 31"


def test_its_states_say_no_more_than_that_a_job_waits() -> None:
    assert shown_reason("gridengine", "qw") == ("", "")


def test_it_shows_by_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("qsub", "qconf"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert kinds_here(submits=True) == ["gridengine"]
    assert kinds_here(submits=False) == []
    assert kind_of("gridengine").query_commands == ("qstat", "qhost")


@pytest.mark.parametrize(
    ("listed", "value", "origin"),
    [
        ("mpi, smp", '"smp"', "by its name; there are: mpi, smp; "),
        ("one", '"one"', "by its name; there are: one; "),
        ("mpi, hybrid", "", "unknown: name one; there are: mpi, hybrid; "),
        ("none", "", "unknown: name one; there are: none; "),
    ],
)
def test_a_new_site_gets_the_parallel_environment_whose_name_says_that_it_gives_a_node(
    listed: str, value: str, origin: str
) -> None:
    wishes = SiteWishes(server="unix:/h/api.sock", batch="gridengine")
    login = Login(host="login1", machine="x86_64", binary="/n", binary_machine="x86_64")
    facts = Facts(system="Grid Engine", notes=[f"parallel environments: {listed}"])
    found = suggest(wishes, login, facts)
    (choice,) = [each for each in found.choices if each.key == "gridengine.parallel_environment"]
    assert choice.value == value
    assert choice.origin.startswith(origin)
    text = draw(found)
    assert "\n[gridengine]\n" in text
    read = config.loads(text, SiteConfig, source=Path("site.toml"))
    assert tables_of(read)["gridengine"].parallel_environment == value.strip('"')


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The common directory of a Grid Engine's cell; the user's default requests are those of the working directory."""
    if home(".sge_request").exists():
        pytest.skip("this user has default requests of Grid Engine")
    common = tmp_path / "root" / "default" / "common"
    common.mkdir(parents=True)
    monkeypatch.setenv("SGE_ROOT", str(tmp_path / "root"))
    monkeypatch.delenv("SGE_CELL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".sge_request").write_text(REQUESTS)
    return common


def test_default_requests_of_grid_engine_are_listed_with_the_keys_that_take_them(cell: Path) -> None:
    (told,) = taken_findings([], {}, kind="gridengine")
    listed = [f"`{each}` of `.sge_request`" for each in ("-l h_vmem=4G", "-m e", "-pe mpi 8", "-q short.q")]
    assert (told.state, told.found) == ("ok", f"no effect on Tidemill: {', '.join(listed)}")
    assert told.hint == (
        "if Tidemill's jobs are to use them, set in site.toml: `-q` as `cluster.partition`, `-pe` as "
        '`gridengine.parallel_environment`, `cluster.directives = ["-l h_vmem=4G", "-m e"]`'
    )
    assert list(taken_findings([], {}, kind="slurm")) == []


def test_default_requests_that_site_toml_has_are_not_named_again(cell: Path) -> None:
    (told,) = missing_findings(site("[cluster]\ndirectives = ['-l  h_vmem=4G']\n"), {})
    assert "h_vmem" not in told.found
    said = "[cluster]\npartition = 'x'\ndirectives = ['-m e -l h_vmem=4G']\n"
    (told,) = missing_findings(site(said), {})
    assert told.found == "no effect on Tidemill: `-pe mpi 8` of `.sge_request`"
    said += "[gridengine]\nparallel_environment = 'x'\n"
    assert list(missing_findings(site(said), {})) == []


def test_default_requests_apply_where_those_of_the_cluster_are_not_found(
    cell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SGE_ROOT")
    (told,) = taken_findings([], {}, kind="gridengine")
    assert told.state == "warn"
    assert told.found.startswith(
        "SGE_ROOT is not set, so Tidemill does not find the cluster's default requests: "
    )
    assert "without `-clear`; your default requests apply to Tidemill's jobs: `-l h_vmem=4G` of" in told.found
    (cell.parent.parent.parent / ".sge_request").unlink()
    (told,) = taken_findings([], {}, kind="gridengine")
    assert told.found.endswith("`qsub` runs without `-clear`")
