"""Software bills of materials and licences: of everything that is locked, from the locks alone."""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from pathlib import Path

import check_dist
import locked_crates
import pytest
import sbom
import third_party

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def bills(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    for name, parts in (("tidemill", sbom.python_components()), ("tidemill-node", sbom.rust_components())):
        (folder / f"{name}.cdx.json").write_text(sbom.bill(name, "1.0", "application", parts))
    return folder


def test_every_part_has_a_version_and_a_hash(bills: Path) -> None:
    for name in check_dist.BILLS:
        assert check_dist.bill_faults(bills / name) == []


def test_direct_dependencies_are_there_and_extras_are_optional(bills: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parts = {
        each["name"]: each["scope"]
        for each in json.loads((bills / "tidemill.cdx.json").read_text())["components"]
    }
    direct = {check_name(each) for each in project["dependencies"]} - {"tidemill-node"}
    assert {name for name, scope in parts.items() if scope == "required"} >= direct
    assert parts["pika"] == parts["cryptography"] == "optional"
    assert "pytest" not in parts


def check_name(requirement: str) -> str:
    return re.split(r"[<>=~!\[;]", requirement)[0].strip()


def test_a_part_without_a_hash_is_found(tmp_path: Path) -> None:
    part = {"type": "library", "name": "evil", "version": "1", "purl": "pkg:pypi/evil@1"}
    (tmp_path / "x.cdx.json").write_text(sbom.bill("x", "1", "application", [{**part, "bom-ref": "evil"}]))
    assert check_dist.bill_faults(tmp_path / "x.cdx.json") == ["x.cdx.json: evil has no version or no hash"]
    assert check_dist.bill_faults(tmp_path / "none.json") == ["none.json is missing"]


def test_the_same_locks_make_the_same_document() -> None:
    parts = sbom.rust_components()
    assert sbom.bill("x", "1", "library", parts) == sbom.bill("x", "1", "library", parts)


def test_licences_of_all_linked_crates_are_in_the_tree() -> None:
    text = third_party.PAGE.read_text()
    missing = [
        f"{each.name} {each.version}"
        for each in locked_crates.linked_crates()
        if each.sha256 is not None and f"{each.name} {each.version} (" not in text
    ]
    assert missing == [], "run `make gen`"
    assert "proptest" not in text  # tests are not linked


def test_a_wheel_without_its_licences_is_found(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x-1.dist-info/licenses/LICENSE", "text")
        archive.writestr("x-1.dist-info/licenses/NOTICE", "")
    assert check_dist.missing(wheel, ("LICENSE", "NOTICE")) == ["x.whl: NOTICE is missing"]
