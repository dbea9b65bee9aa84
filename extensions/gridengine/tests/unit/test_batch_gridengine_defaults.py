"""Files of default options of Grid Engine: Tidemill undoes what it can, and refuses the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.errors import SiteError
from tidemill_gridengine import defaults
from tidemill_gridengine.defaults import query_words, read_options, requests_of_user, submit_start
from tidemill_gridengine.replies import read_rows


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cell's common directory and an empty working directory; the home directory has no such files."""
    folder = tmp_path / "root" / "cell" / "common"
    folder.mkdir(parents=True)
    monkeypatch.setenv("SGE_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("SGE_CELL", "cell")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    if any(defaults.home(name).exists() for name in (".sge_qstat", ".sge_qrstat", ".sge_request")):
        pytest.skip("this user has default options of Grid Engine")
    return folder


def test_a_query_names_all_states_and_all_queues(cell: Path) -> None:
    (cell / "sge_qstat").write_text("# mine alone\n-s r -q nosuch.q\n-u ada -ext\n")
    assert query_words("qstat", "-u", "*", "-xml") == ["qstat", "-u", "*", "-xml", "-s", "prs", "-q", "*"]
    assert query_words("qstat", "-j", "7", "-xml") == ["qstat", "-j", "7", "-xml"]
    assert query_words("qrstat", "-u", "*", "-xml") == ["qrstat", "-u", "*", "-xml"]


@pytest.mark.parametrize("option", ["-l arch=lx-x86", "-pe nodes", "-qs S", "-j 7", "-help", "-l h=n1 -s r"])
def test_an_option_that_hides_jobs_and_cannot_be_undone_is_refused_with_its_file(
    cell: Path, option: str
) -> None:
    (cell / "sge_qstat").write_text(f"{option}\n")
    with pytest.raises(SiteError, match=r"common/sge_qstat` holds `-") as caught:
        query_words("qstat", "-u", "*", "-xml")
    assert not caught.value.transient
    assert "the file is the cluster's: ask the centre's staff" in (caught.value.hint or "")
    assert "remove it" not in (caught.value.hint or "")


def test_reservations_are_asked_for_without_the_users_filter(cell: Path) -> None:
    (cell / "sge_qrstat").write_text("-ar 7\n")
    with pytest.raises(SiteError, match="sge_qrstat` holds `-ar 7`"):
        query_words("qrstat", "-u", "*", "-xml")


def test_a_submission_clears_the_users_defaults_and_keeps_the_clusters(cell: Path) -> None:
    Path(".sge_request").write_text("-hold_jid 1 -q nosuch.q\n")
    assert submit_start() == ["qsub", "-clear"]
    (cell / "sge_request").write_text("-l h_vmem=4G\n")
    assert submit_start() == ["qsub", "-clear", "-@", str(cell / "sge_request")]


def test_a_qsub_that_would_wait_for_the_end_of_the_job_is_refused(cell: Path) -> None:
    Path(".sge_request").write_text("-sync n\n")
    assert submit_start() == ["qsub", "-clear"]
    Path(".sge_request").write_text("-V -sync y\n")
    with pytest.raises(SiteError, match=r"`\.sge_request` holds `-sync y`") as caught:
        submit_start()
    assert "remove it from the file" in (caught.value.hint or "")


@pytest.mark.parametrize(("name", "value"), [("SGE_ROOT", ""), ("SGE_CELL", "other")])
def test_what_the_cluster_asks_for_is_not_dropped_where_its_file_cannot_be_named(
    cell: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """A wrapper in place of `qsub` sets both itself, so the user's environment lacks them."""
    (cell / "sge_request").write_text("-l h_vmem=4G\n")
    monkeypatch.setenv(name, value)
    assert submit_start() == ["qsub"]


def test_requests_of_the_user_are_those_of_the_working_directory_too(cell: Path) -> None:
    Path(".sge_request").write_text("-l h_vmem=4G -m e\n")
    assert [each.text for each in requests_of_user()] == ["-l h_vmem=4G", "-m e"]
    assert {each.source for each in requests_of_user()} == {Path(".sge_request")}


def test_options_are_read_with_their_values_and_without_comments(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("# -q no\n\n-l a=1,b=2 -P 'my project'\n-cwd\n-N \"open\n")
    found = [(each.flag, each.values) for each in read_options(file)]
    assert found == [("-l", ("a=1,b=2",)), ("-P", ("my project",)), ("-cwd", ()), ("-N", ('"open',))]
    assert read_options(tmp_path / "none") == []


def test_jobs_are_found_below_their_queues_too() -> None:
    row = "<job_list state='running'><JB_job_number>7</JB_job_number><state>r</state><slots>1</slots>{}</job_list>"
    flat = f"<job_info><queue_info>{row.format('<queue_name>all.q@n1</queue_name>')}</queue_info></job_info>"
    full = f"<Queue-List><name>all.q@n1</name>{row.format('')}</Queue-List>"
    for text in (flat, f"<job_info><queue_info>{full}</queue_info></job_info>"):
        (found,) = read_rows(text.encode())
        assert (found.id, found.queue, found.hosts) == ("7", "all.q", ("n1",))
