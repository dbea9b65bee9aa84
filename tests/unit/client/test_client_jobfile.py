"""Job files: what is read, what is refused, in which order jobs are submitted."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

import pytest
from msgspec import UNSET

from tidemill.client.client import Submission, Wishes
from tidemill.client.jobfile import load_job_file, submit_job_file, waves
from tidemill.errors import ConfigError
from tidemill.model.job import JobSpec
from tidemill.model.notification import Subscription

GOOD = """
campaign = "zmumu"
shares = 2.0
[[notify]]
to = "mail:me@example.org"
[defaults]
app = "pythia8"
resources = { memory_mb = 1500, cores = 1 }
params = { process = "zmumu" }
[[job]]
name = "analyse"
app = "zpeak"
params = { bins = 30 }
inputs = [{ name = "events", url = "job:generate/events" }]
[[job]]
name = "generate"
events = 10_000
resources = { cores = 2 }
[[job]]
repeat = 3
after = ["generate", "another-campaign", 17]
inputs = [{ name = "conf", url = "data/conf.txt" }]
"""


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    return path


def test_defaults_fill_in_and_their_tables_add_up(tmp_path: Path) -> None:
    file = load_job_file(_write(tmp_path, GOOD))
    analyse, generate, _ = file.jobs
    assert (file.campaign, file.shares, file.repeat) == ("zmumu", 2.0, [1, 1, 3])
    assert (analyse.app, analyse.params) == ("zpeak", {"process": "zmumu", "bins": 30})
    assert (generate.resources.cores, generate.resources.memory_mb) == (2, 1500)


def test_limits_with_units_are_read_in_defaults_and_a_job_gives_its_own(tmp_path: Path) -> None:
    text = """
        defaults.resources = { memory = "2G..8G", wall = "10m" }
        [[job]]
        app = "a"
        [[job]]
        app = "a"
        resources = { memory = "500MB", wall = "10m..2h" }
    """
    first, second = (each.resources for each in load_job_file(_write(tmp_path, text)).jobs)
    assert (first.memory_mb, first.memory_mb_max, first.timeout_s, first.timeout_s_max) == (
        2000,
        8000,
        600,
        UNSET,
    )
    assert (second.memory_mb, second.memory_mb_max, second.timeout_s, second.timeout_s_max) == (
        500,
        UNSET,
        600,
        7200,
    )


def test_a_parameter_of_a_job_drops_no_default_that_is_called_its_maximum(tmp_path: Path) -> None:
    text = """
        defaults = { params = { pt = 1, pt_max = 9 }, env = { PT_max = "9" } }
        [[job]]
        app = "a"
        params = { pt = 2 }
        env = { PT = "2" }
    """
    (job,) = load_job_file(_write(tmp_path, text)).jobs
    assert (job.params, job.env) == ({"pt": 2, "pt_max": 9}, {"PT": "2", "PT_max": "9"})


def test_jobs_are_submitted_after_those_they_name(tmp_path: Path) -> None:
    assert waves(load_job_file(_write(tmp_path, GOOD))) == [[1], [0, 2]]


class _Recorder:
    """What a job file hands to a client."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[JobSpec], list[int], str]] = []
        self._next = 100

    def submit(
        self, specs: list[JobSpec], *, campaign: str, repeat: list[int], key: str, wishes: Wishes
    ) -> Submission:
        self.sent.append((specs, repeat, key))
        count = sum(repeat)
        self._next += count
        assert (campaign, wishes) == ("zmumu", Wishes(2.0, [Subscription(to="mail:me@example.org")]))
        return Submission(campaign=campaign, jobs=list(range(self._next - count, self._next)), repeated=False)


def test_names_become_numbers_and_paths_absolute(tmp_path: Path) -> None:
    client = _Recorder()
    sent = submit_job_file(client, load_job_file(_write(tmp_path, GOOD)))  # type: ignore[arg-type]
    analyse, repeated = client.sent[1][0]
    assert analyse.inputs[0].url == "job:100/events"
    assert repeated.after == [100, "another-campaign", 17]
    assert repeated.inputs[0].url == str(tmp_path / "data" / "conf.txt")
    assert sent.jobs == [101, 100, 102, 103, 104]  # in the order of the file
    assert len({key for _, _, key in client.sent}) == 2


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("[[job]]\napp = 'a'\nevnts = 3\n", "unknown key `job[0].evnts`", "`events`"),
        ("[[job]]\napp = 'a'\nshares = 2.0\n", "unknown key `job[0].shares`", "above the first `[table]`"),
        (
            "[[job]]\napp = 'a'\n[defaults]\n[defaults]\n",
            "is not TOML",
            "a line above has the same key or table",
        ),
        ("campain = 'x'\n[[job]]\napp = 'a'\n", "unknown key `campain`", "`campaign`"),
        ("[defaults]\nsit = 'x'\n[[job]]\napp = 'a'\n", "unknown key `defaults.sit`", "`site`"),
        ("[[job]]\napp = 'a'\nevents = 'x'\n", "`job[0].events`", ""),
        (
            "[[job]]\napp = 'a'\n[defaults]\nresources = { wall = '30' }\n",
            "`defaults.resources`: `30` has no unit",
            "",
        ),
        (
            "[[job]]\napp = 'a'\n[job.resources]\nmemory = '2G'\nmemory_mb = 2000\n",
            "`job[0].resources` has both `memory` and `memory_mb`",
            "give one of them",
        ),
        ("[[job]]\napp = 'a'\nresources = { core = 1 }\n", "unknown key `job[0].resources.core`", "`cores`"),
        ("[[job]]\nevents = 1\n", "needs `app` or `command`", ""),
        ("[[job]]\napp = 'a'\nevents = 0\n", "`events` is 0", ""),
        ("[[job]]\napp = 'a'\nrepeat = 0\n", "repeat", ""),
        ("[[job]]\nname = 'x'\napp = 'a'\n[[job]]\nname = 'x'\napp = 'a'\n", "name of an earlier job", ""),
        ("campaign = 'x'\n", "there is no job", "[[job]]"),
        ("shares = -1\n[[job]]\napp = 'a'\n", "shares", ""),
        ("[[job]\n", "is not TOML", ""),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(tmp_path: Path, text: str, said: str, hint: str) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_job_file(path)
    assert str(path) in caught.value.message
    assert said in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_circle_is_named(tmp_path: Path) -> None:
    text = "[[job]]\nname='a'\napp='x'\nafter=['b']\n[[job]]\nname='b'\napp='x'\nafter=['a']\n"
    with pytest.raises(ConfigError, match="in a circle: `a`, `b`"):
        waves(load_job_file(_write(tmp_path, text)))


def test_an_input_of_a_job_that_is_not_there_is_refused(tmp_path: Path) -> None:
    text = "campaign='zmumu'\nshares=2.0\n[[job]]\nname='a'\napp='x'\ninputs=[{name='e', url='job:b/out'}]\n"
    with pytest.raises(ConfigError, match="`b` is not a job of this file"):
        submit_job_file(_Recorder(), load_job_file(_write(tmp_path, text)))  # type: ignore[arg-type]


def test_a_record_is_inspected_once_whatever_the_number_of_jobs(tmp_path: Path) -> None:
    path = _write(tmp_path, "".join(f'[[job]]\ncommand = ["true", "{k}"]\n' for k in range(200)))
    load_job_file(path)
    profile = cProfile.Profile()
    assert len(profile.runcall(load_job_file, path).jobs) == 200
    called = {name for _, _, name in pstats.Stats(profile).stats}  # type: ignore[attr-defined]
    assert "table" in called
    assert "type_info" not in called
