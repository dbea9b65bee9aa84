"""What an application says of URLs that its program opens, and when its payloads can."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config.site import SiteConfig
from tidemill.errors import ConfigError
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import Input, JobSpec, ReadAs
from tidemill.site.applications.catalogue import Applications, load_application
from tidemill.site.applications.programs import NodeShape, Preparer
from tidemill.site.state import site_state

SPEC = JobSpec(app="sim", inputs=[Input(name="f", url="root://o//x", read=ReadAs.URL)])


def preparer(folder: Path, lines: str = "", **site: object) -> Preparer:
    (folder / "prog").write_text("#!/bin/sh\n")
    (folder / "prog").chmod(0o755)
    (folder / "apps").mkdir(exist_ok=True)
    text = f'name = "sim"\nexecutable = "{folder}/prog"\ninputs = ["f"]\n{lines}\n'
    (folder / "apps" / "sim.toml").write_text(text)
    applications = Applications(folder / "apps")
    applications.refresh()
    config = SiteConfig(name="x", server="unix:/x", **site)  # type: ignore[arg-type]
    made = Preparer(config, applications, NodeShape(4, 8000, {}))
    made.begin()
    made.program(SPEC, None)
    return made


def test_a_program_opens_what_its_file_says_where_its_slot_has_the_network(tmp_path: Path) -> None:
    opens = 'opens = ["root", "https"]'
    assert preparer(tmp_path, opens).opening(SPEC) == (["root", "https"], "")
    assert preparer(tmp_path).opening(SPEC) == ([], "")
    closed = preparer(tmp_path, opens + "\nnetwork = false").opening(SPEC)[1]
    assert "network = false" in closed
    assert (
        "`network = true` in the application's file"
        in preparer(tmp_path, opens, shared=True).opening(SPEC)[1]
    )
    assert preparer(tmp_path, opens + "\nnetwork = true", shared=True).opening(SPEC)[1] == ""
    assert preparer(tmp_path, opens, network="closed").opening(SPEC)[1] != ""


def test_schemes_that_no_program_of_ours_opens_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "sim.toml"
    path.write_text('name = "sim"\nexecutable = "/bin/true"\nopens = ["gopher"]\n')
    with pytest.raises(ConfigError, match=r"opens.*gopher"):
        load_application(path)


def test_clients_give_up_in_time_unless_application_or_job_says_otherwise(tmp_path: Path) -> None:
    made = preparer(tmp_path, 'opens = ["root"]\nenvironment = { XRD_REQUESTTIMEOUT = "900" }')

    def environment(spec: JobSpec) -> dict[str, str]:
        job = site_state.SiteJob(
            id=1, campaign="c", seed_base=5, spec=spec, open=IntervalSet(), done=IntervalSet()
        )
        return made.job(job, made.program(spec, None), []).env

    assert environment(SPEC)["XRD_CONNECTIONWINDOW"] == "5"
    assert "XRD_REQUESTTIMEOUT" not in environment(SPEC), "the program's own environment has it"
    assert environment(JobSpec(app="sim")) == {}
