"""What a start costs, what fleets are told, what is counted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests import wire_values

from tidemill.config import load
from tidemill.config.io import Io
from tidemill.config.site import Harvest, SiteConfig
from tidemill.model.application import Application
from tidemill.node.fleet import Fleet, create_fleet
from tidemill.site.applications.profiles import with_costs
from tidemill.site.fleet.io_budget import IoShares
from tidemill.wire.node import FORMAT, ImageUse, Manifest, Noted, Program, Settings, StagedFile

SW = Io(name="sw", prefixes=["/sw"], ops_per_s=2000.0, bytes_per_s=1e8)
HOME = Io(name="home", prefixes=["/home", "/proj"], ops_per_s=100.0)
BYTES = Io(name="bytes", prefixes=["/b"], bytes_per_s=1e6)


def config(**changes: object) -> SiteConfig:
    base = SiteConfig(name="here", server="unix:/x", io=[SW, HOME, BYTES])
    return msgspec.structs.replace(base, **changes)


def app(**costs: int) -> Application:
    return Application(name="a", executable="/sw/a", start_ops=costs)


def start_ops(config: SiteConfig, app: Application, program: Program) -> dict[str, int]:
    return with_costs(program, config, app).start_ops


def program(*, images: list[str] | None = None, **traced: int) -> Program:
    file = StagedFile(sha256="0" * 64, bytes=1, pieces=[])
    use = ImageUse(name="i", file=file, areas=images or [], unpacked_bytes=1)
    return wire_values.program(app="a", images=[use] if images else [], start_ops=traced)


def test_a_start_costs_what_was_traced_else_what_its_file_says_else_nothing() -> None:
    assert start_ops(config(), app(), program()) == {}
    assert start_ops(config(), app(sw=300), program()) == {"sw": 300}
    assert start_ops(config(), app(sw=300), program(sw=700, home=2)) == {"sw": 700, "home": 2}
    assert start_ops(config(), app(nowhere=300, bytes=5), program()) == {}


def test_bytes_are_told_in_the_same_order_for_areas_whose_bytes_are_bounded() -> None:
    def start_bytes(stated: dict[str, int], traced: dict[str, int]) -> dict[str, int]:
        asked = Application(name="a", executable="/sw/a", start_bytes=stated)
        known = wire_values.program(app="a", start_bytes=traced)
        return with_costs(known, config(), asked).start_bytes

    assert start_bytes({}, {}) == {}
    assert start_bytes({"sw": 5, "home": 5}, {}) == {"sw": 5}
    assert start_bytes({"sw": 5}, {"sw": 0, "bytes": 9}) == {"bytes": 9}
    asked = Application(name="a", executable="/sw/a", start_bytes={"sw": 7, "bytes": 7})
    covered = with_costs(program(images=["/sw"]), config(), asked)
    assert (covered.start_ops, covered.start_bytes) == ({}, {"bytes": 7})


def test_an_application_says_bytes_with_a_unit(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('name = "a"\nexecutable = "/sw/a"\nstart_bytes = { sw = "300 MB", home = 5 }\n')
    assert load(file, Application).start_bytes == {"sw": 300_000_000, "home": 5}


def test_what_comes_out_of_an_image_costs_nothing_whatever_was_traced_without_it() -> None:
    assert start_ops(config(), app(sw=300, home=7), program(images=["/sw"])) == {"home": 7}
    assert start_ops(config(), app(home=7), program(images=["/home"])) == {"home": 7}
    assert start_ops(config(), app(sw=300), program(images=["/sw"], sw=12, home=5)) == {"home": 5}


def test_the_first_fleet_gets_all_the_second_nothing_until_the_first_gave_some_up() -> None:
    shares = IoShares(config())
    first = {area.name: area.ops_per_s for area in shares.first("f1")}
    assert first == {"sw": 2000.0, "home": 100.0, "bytes": None}
    second = shares.first("f2")
    assert [(area.ops_per_s, area.bytes_per_s) for area in second] == [(0.0, 0.0), (0.0, None), (None, 0.0)]
    assert shares.given_sum() == 1.0


def test_without_a_lead_each_allocation_has_the_same_small_part() -> None:
    shares = IoShares(config(harvest=Harvest(tcp="nodes"), nodes_max=10))
    for name in ("f1", "f2"):
        assert [area.ops_per_s for area in shares.first(name)] == [200.0, 10.0, None]


def test_a_site_without_areas_tells_nothing() -> None:
    shares = IoShares(config(io=[]))
    assert shares.first("f1") == []
    assert shares.budgets == {}


def test_parts_are_told_in_work_files_when_demands_change(tmp_path: Path) -> None:
    shares = IoShares(config())
    fleets: dict[str, Fleet] = {}
    for name in ("f1", "f2"):
        manifest = Manifest(
            format=FORMAT, fleet=name, site="here", epoch=1, created_us=1, lead="beside", listen="x",
            settings=_settings(shares, name),
        )  # fmt: skip
        fleets[name] = create_fleet(tmp_path / name, manifest)
    shares.step({"f1": 1.0, "f2": 3.0}, fleets, lambda: None)
    told = fleets["f1"].read_work(1).io
    assert told is not None
    assert [area.ops_per_s for area in told] == [500.0, 25.0, None]
    assert fleets["f2"].next_number == 1  # it waits until the first one must have read that
    assert shares.given_sum() == 0.25


def _settings(shares: IoShares, name: str) -> Settings:
    text = {field: 0 for field in Settings.__struct_fields__} | {
        "stop_files": [], "isolation": "preferred", "affinity": "none", "network": "open", "mask": [],
        "batch_commands": [], "node_cache": None,
        "images": "auto", "peers": True, "spill": None, "scratch": None, "fast_dir": None, "view": None,
        "io": msgspec.to_builtins(shares.first(name)),
    }  # fmt: skip
    return msgspec.convert(text, Settings)


def test_what_nodes_counted_is_added_up_and_what_is_over_is_told(caplog: pytest.LogCaptureFixture) -> None:
    shares = IoShares(config())
    note = Noted(
        p="a.r0.i1", s=2, topic="io", program=None, job=None, mode="usage", message="",
        numbers={"over_us": 60_000_000, "sw.ops": 500, "sw.bytes": 9, "home.ops": 0}, at_us=1,
    )  # fmt: skip
    shares_of = {"sw.ops": 1244, "home.bytes": 3000}
    over = msgspec.structs.replace(note, mode="over", message="slowed", numbers=shares_of)
    shares.on_records([note, note, over])
    assert shares.observed == {("sw", "ops"): 1000, ("sw", "bytes"): 18}
    assert shares.over == {("sw", "ops"): 1, ("home", "bytes"): 1}
    assert "io.over_budget" in caplog.text


def test_that_an_area_is_over_its_budget_is_told_once_and_counted_always(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shares = IoShares(config())
    for number, area in enumerate(["sw", "sw", "home", "sw"]):
        over = Noted(
            p=f"a.r{number}.i1", s=2, topic="io", program=None, job=None, mode="over", message="slowed",
            numbers={f"{area}.ops": 1244}, at_us=1,
        )  # fmt: skip
        shares.on_records([over])
    assert shares.over == {("sw", "ops"): 3, ("home", "ops"): 1}
    assert caplog.text.count("io.over_budget") == 2


def test_an_area_needs_absolute_prefixes() -> None:
    with pytest.raises(msgspec.ValidationError, match="absolute path"):
        msgspec.convert({"name": "x", "prefixes": ["sw"]}, Io)
