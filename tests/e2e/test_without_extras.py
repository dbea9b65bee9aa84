"""Tidemill as `pip install tidemill` brings it: the path of a job, without one package of an extra."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.worlds.home.homes import Home

ROOT = Path(__file__).parents[2]

# `site` imports it at the start of each Python that has it on its path: of every process of the product
_REFUSE = """
import sys


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Refuse())
"""

# What may be imported without extras: all but modules that a caller imports when a database is
# PostgreSQL.
_IMPORT_ALL = """
import importlib, json, pkgutil, sys
import tidemill

missed = []
for module in pkgutil.walk_packages(tidemill.__path__, "tidemill."):
    if module.name.startswith("tidemill.examples"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError:
        missed.append(module.name)
json.dump(missed, sys.stdout)
"""


def _dependencies() -> set[str]:
    """Names of the packages that `pip install tidemill` brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, ahead = set[str](), [(Requirement(line), "") for line in project["dependencies"]]
    while ahead:
        wanted, extra = ahead.pop()
        name = canonicalize_name(wanted.name)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        if name in found and not wanted.extras:
            continue
        found.add(name)
        lines = requires(name) or []
        ahead += [(Requirement(line), each) for line in lines for each in ("", *wanted.extras)]
    return {"tidemill", *found}


def _others() -> set[str]:
    """The modules of all other packages that are installed here."""
    brought = _dependencies()
    found = {
        module
        for module, names in packages_distributions().items()
        if not brought & {canonicalize_name(name) for name in names}
    }
    assert {"psycopg", "pyarrow", "cryptography", "boto3", "uproot", "pytest"} <= found, found
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which no package can be imported that no dependency brings."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(_REFUSE.format(modules=sorted(_others())))
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture
def home(bare: dict[str, str]) -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="tm-") as directory:
        made = Home(Path(directory))
        made.env = {**made.env, "PYTHONPATH": bare["PYTHONPATH"]}
        try:
            made.start()
            yield made
        finally:
            made.end()


def test_a_campaign_runs_without_a_package_of_an_extra(home: Home) -> None:
    done = home.run("run", "--name", "bare", "--", "echo", "it runs")
    assert (done.returncode, done.stdout) == (0, "it runs\n"), done.stderr + home.logs()


def test_all_that_the_product_imports_is_in_its_dependencies(bare: dict[str, str]) -> None:
    asked = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL], env=bare, capture_output=True, text=True, check=True
    )
    at_use = {"tidemill.server.database.paired", "tidemill.server.database.postgresql"}
    assert set(json.loads(asked.stdout)) == at_use
