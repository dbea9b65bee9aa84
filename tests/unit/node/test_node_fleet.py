from __future__ import annotations

import json
import stat
from pathlib import Path

import msgspec
import pytest
from tests.wire_values import settings

from tidemill.errors import ConfigError, ProtocolError
from tidemill.files import write_durable
from tidemill.node.binary import find_binary
from tidemill.node.fleet import WorkOrder, create_fleet, open_fleet
from tidemill.wire.node import FORMAT, Grant, LeadAddress, Manifest


def manifest() -> Manifest:
    return Manifest(
        format=FORMAT,
        fleet="e1-1",
        site="here",
        epoch=1,
        created_us=1,
        lead="beside",
        listen="127.0.0.1:0",
        settings=settings(),
    )


def grant(number: int) -> Grant:
    return Grant(grant=number, job=1, first=10 * number, count=10, chunk_max=None)


def test_a_new_fleet_directory_is_private_and_whole(tmp_path: Path) -> None:
    fleet = create_fleet(tmp_path / "fleets" / "e1-1", manifest())
    assert stat.S_IMODE(fleet.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(fleet.secret.stat().st_mode) == 0o600
    assert len(fleet.secret.read_text().strip()) == 64
    assert sorted(path.name for path in fleet.directory.iterdir()) == [
        "bundle",
        "journal",
        "manifest.json",
        "secret",
        "work",
    ]
    assert [path.name for path in fleet.directory.parent.iterdir()] == ["e1-1"]


def test_a_fleet_directory_is_made_once(tmp_path: Path) -> None:
    create_fleet(tmp_path / "e1-1", manifest())
    with pytest.raises(ConfigError, match="exists"):
        create_fleet(tmp_path / "e1-1", manifest())


def test_work_files_are_numbered_without_gaps_across_a_restart(tmp_path: Path) -> None:
    fleet = create_fleet(tmp_path / "e1-1", manifest())
    assert [fleet.write_work(grants=[grant(1)]), fleet.write_work(grants=[grant(2)])] == [1, 2]
    again = open_fleet(tmp_path / "e1-1")
    assert again.manifest == manifest()
    assert again.write_work(order=WorkOrder(drain=True)) == 3
    assert again.read_work(2).grants == [grant(2)]
    assert again.read_work(3).drain
    assert sorted(path.name for path in (again.directory / "work").iterdir()) == [
        "000001.json",
        "000002.json",
        "000003.json",
    ]


def test_a_temporary_work_file_of_a_dead_agent_does_not_count(tmp_path: Path) -> None:
    fleet = create_fleet(tmp_path / "e1-1", manifest())
    fleet.write_work(grants=[grant(1)])
    (fleet.directory / "work" / ".000002.json.77.tmp").write_bytes(b'{"format"')
    assert open_fleet(fleet.directory).next_number == 2


def test_a_missing_work_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    fleet = create_fleet(tmp_path / "e1-1", manifest())
    for number in range(3):
        fleet.write_work(grants=[grant(number)])
    (fleet.directory / "work" / "000002.json").unlink()
    with pytest.raises(ProtocolError, match="work file 2 is missing"):
        open_fleet(fleet.directory)


def test_a_directory_without_manifest_is_no_fleet(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a fleet directory"):
        open_fleet(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    fleet = create_fleet(tmp_path / "e1-1", manifest())
    newer = msgspec.structs.replace(manifest(), format=FORMAT + 1)
    write_durable(fleet.directory / "manifest.json", msgspec.json.encode(newer))
    with pytest.raises(ConfigError, match=f"format {FORMAT + 1}"):
        open_fleet(fleet.directory)


def test_the_lead_is_unknown_until_it_has_written_its_address(tmp_path: Path) -> None:
    fleet = create_fleet(tmp_path / "e1-1", manifest())
    assert fleet.lead_address() is None
    address = LeadAddress(format=FORMAT, incarnation=1, host="127.0.0.1", port=4242, pid=7)
    write_durable(fleet.directory / "lead.json", msgspec.json.encode(address))
    assert fleet.lead_address() == address


def test_stop_is_a_file_that_anybody_may_put_there(tmp_path: Path) -> None:
    fleet = create_fleet(tmp_path / "e1-1", manifest())
    assert not fleet.is_stopped()
    fleet.stop("operator says so")
    assert fleet.is_stopped()


def test_the_binary_named_by_the_variable_wins(tmp_path: Path) -> None:
    binary = tmp_path / "mine"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    assert find_binary({"TIDEMILL_NODE_BINARY": str(binary)}) == binary


def test_the_name_of_a_payloads_node_is_not_a_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "tidemill-node"
    installed.write_text("#!/bin/sh\n")
    installed.chmod(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda name, scheme=None: str(tmp_path))
    assert find_binary({"TIDEMILL_NODE": "n17"}) == installed


def test_a_binary_in_the_site_directory_comes_before_all_others(tmp_path: Path) -> None:
    binary, other = tmp_path / "tidemill-node", tmp_path / "other"
    other.write_text("#!/bin/sh\n")
    variables = {"TIDEMILL_NODE_BINARY": str(other)}
    other.chmod(0o755)
    assert find_binary(variables, site=tmp_path) == other
    binary.symlink_to(other)
    assert find_binary({}, site=tmp_path) == binary
    other.chmod(0o644)
    with pytest.raises(ConfigError, match="is not an executable file"):
        find_binary({}, site=tmp_path)
    other.unlink()
    with pytest.raises(ConfigError, match="is not an executable file"):
        find_binary({}, site=tmp_path)


def test_a_variable_that_names_no_executable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TIDEMILL_NODE_BINARY names `/nowhere/x`"):
        find_binary({"TIDEMILL_NODE_BINARY": "/nowhere/x", "PATH": str(tmp_path)})


def test_the_error_lists_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "a" / "python"))
    monkeypatch.setattr("sysconfig.get_path", lambda name, scheme=None: str(tmp_path / "b"))
    with pytest.raises(ConfigError) as caught:
        find_binary({"PATH": f"{tmp_path}/c:{tmp_path}/d"})
    for place in "abcd":
        assert f"{tmp_path}/{place}/tidemill-node" in caught.value.message


def test_a_fleet_of_an_older_version_is_opened(tmp_path: Path) -> None:
    fleet = create_fleet(tmp_path / "e1-1", manifest())
    path = fleet.directory / "manifest.json"
    read = json.loads(path.read_bytes())
    for field in ("output_bytes_max", "network", "view"):
        del read["settings"][field]
    path.write_text(json.dumps(read))
    assert open_fleet(fleet.directory).manifest.settings.output_bytes_max is None
