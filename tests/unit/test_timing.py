"""Other values of constants: in a test's own process, in those that it starts, and nowhere else."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.timing import merged, passed_on, timing

import tidemill
from tidemill.batch import constants as batch
from tidemill.model.metrics import AGENT
from tidemill.model.state import LEASE_TRANSITIONS, LeaseState
from tidemill.server import constants as server
from tidemill.site import constants
from tidemill.timing import VARIABLE

PRINT = (
    "from tidemill.site import constants; print(constants.IDLE_S, constants.HEARTBEAT_S, constants.CYCLE_S)"
)


def started(text: str, *, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """What another process with this variable prints of its constants."""
    env = {**os.environ, VARIABLE: text, **({"PYTHONPATH": path} if path else {})}
    return subprocess.run([sys.executable, "-c", PRINT], env=env, capture_output=True, text=True, check=False)


def test_a_process_takes_the_values_that_its_environment_names_and_keeps_the_others() -> None:
    told = started('{"site": {"IDLE_S": 0.5, "CYCLE_S": 3}, "server": {"SITE_LOST_S": 1}}')
    assert told.stdout.split() == ["0.5", str(constants.HEARTBEAT_S), "3"], told.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"site": {"IDEL_S": 1}}', "unknown constant `site.IDEL_S`"),
        ('{"site": {"VARIABLE": "x"}}', "unknown constant"),
        ('{"site": {"IDLE_S": "soon"}}', "`site.IDLE_S` is `soon`, expected a number"),
        ('{"site": 3}', "expected an object of objects"),
        ("[", "is not JSON"),
    ],
)
def test_what_is_no_constant_or_no_number_is_refused(text: str, why: str) -> None:
    told = started(text)
    assert (told.returncode, why in told.stderr) == (1, True), told.stderr


def test_an_installed_tidemill_refuses_to_start_with_other_values(tmp_path: Path) -> None:
    """As a wheel leaves it: the package alone, without its tests beside it."""
    package = Path(tidemill.__file__).parent
    for name in ("__init__.py", "timing.py", "errors.py", "site/__init__.py", "site/constants.py"):
        place = tmp_path / "lib" / "tidemill" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / name, place)
    told = started('{"site": {"IDLE_S": 0.5}}', path=str(tmp_path / "lib"))
    assert told.returncode == 1
    assert "which only tests in Tidemill's source tree may set" in told.stderr
    assert started("", path=str(tmp_path / "lib")).stdout.startswith(f"{constants.IDLE_S} ")


def test_a_command_of_an_installed_tidemill_says_what_to_do(tmp_path: Path) -> None:
    """Whichever command it is, it is refused in words."""
    shutil.copytree(Path(tidemill.__file__).parent, tmp_path / "lib" / "tidemill")
    env = {**os.environ, VARIABLE: "{}", "PYTHONPATH": str(tmp_path / "lib"), "TIDEMILL_HOME": str(tmp_path)}
    words = [sys.executable, "-m", "tidemill.cli.main", "site", "run", str(tmp_path)]
    told = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert told.returncode == 2, told.stderr
    assert f"unset {VARIABLE}" in told.stderr
    assert "Traceback" not in told.stderr


def test_values_end_with_the_block_that_has_them() -> None:
    before = constants.IDLE_S
    with timing(site={"IDLE_S": 7}):
        assert constants.IDLE_S == 7
        with timing(site={"IDLE_S": 8, "QUEUE_S": 1}, server={"SITE_LOST_S": 2}):
            assert (constants.IDLE_S, server.SITE_LOST_S) == (8, 2)
            assert json.loads(passed_on({"site": {"STOP_S": 1, "QUEUE_S": 9}})[VARIABLE]) == {
                "site": {"STOP_S": 1, "QUEUE_S": 1, "IDLE_S": 8},
                "server": {"SITE_LOST_S": 2},
            }
        assert constants.IDLE_S == 7
    assert before == constants.IDLE_S
    assert VARIABLE not in os.environ
    assert merged({"site": {"IDLE_S": 1}}, {"site": {"IDLE_S": 2}}) == {"site": {"IDLE_S": 2}}


@pytest.mark.timing(site={"IDLE_S": 3})
def test_a_marked_test_has_the_values_of_its_mark() -> None:
    assert constants.IDLE_S == 3
    assert json.loads(os.environ[VARIABLE]) == {"site": {"IDLE_S": 3}}


def test_tables_of_states_and_metrics_name_the_constants_that_hold() -> None:
    lost = LEASE_TRANSITIONS[LeaseState.ACTIVE, LeaseState.LOST]
    assert f"longer than {server.SITE_LOST_S / 60:.0f} minutes" in lost
    assert f"over {batch.SLOW_S:g} s" in AGENT["tidemill_batch_slow_total"].help
