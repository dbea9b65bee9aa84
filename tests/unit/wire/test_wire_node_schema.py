"""The files generated from the node wire: complete, current, and refused where the wire cannot express something."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from tidemill.wire import node

ROOT = Path(__file__).resolve().parents[3]


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_wire", ROOT / "scripts/gen_wire.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load_generator()


def test_committed_files_are_what_the_generator_writes(generator: ModuleType) -> None:
    for path, text in generator.generated().items():
        assert path.read_text(encoding="utf-8") == text, f"run `make gen`: {path.relative_to(ROOT)} differs"


def test_check_shows_a_diff_and_changes_nothing(
    generator: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    path = tmp_path / "generated.rs"
    path.write_text("old\n", encoding="utf-8")
    assert generator.check({path: "old\n"}) == 0
    assert generator.check({path: "new\n"}) == 1
    output = capsys.readouterr()
    assert "-old" in output.out
    assert "+new" in output.out
    assert "make gen" in output.err
    assert path.read_text(encoding="utf-8") == "old\n"


def test_schema_holds_every_message_and_every_field_is_required_or_may_be_null(
    generator: ModuleType,
) -> None:
    schema = msgspec.json.decode(generator.schema_text())
    for cls in generator.structs():
        definition = schema["$defs"][cls.__name__]
        fields = {field.encode_name: field for field in msgspec.structs.fields(cls)}
        later = {name for name, field in fields.items() if field.default is None}
        assert fields.keys() - later <= set(definition["required"]), cls.__name__
        assert all({"type": "null"} in definition["properties"][name]["anyOf"] for name in later)
    for union in ("Record", "LeadMessage", "PilotMessage"):
        assert schema["$defs"][union]["anyOf"]


def test_rust_has_a_type_for_every_struct_and_a_variant_for_every_member(generator: ModuleType) -> None:
    rust = generator.rust_text()
    for cls in generator.structs():
        assert re.search(rf"^pub struct {cls.__name__} {{$", rust, re.MULTILINE)
    assert '#[serde(tag = "k")]\npub enum Record {' in rust
    assert '#[serde(rename = "started")]\n    Started(Started),' in rust
    assert "pub exit_status: Option<i32>," in rust
    assert "pub devices: BTreeMap<String, i64>," in rust
    assert f"pub const FORMAT: u64 = {node.FORMAT};" in rust


def test_a_default_or_a_type_that_the_wire_does_not_have_is_refused(generator: ModuleType) -> None:
    class WithDefault(msgspec.Struct):
        number: int = 3

    class WithSet(msgspec.Struct):
        numbers: set[int]

    with pytest.raises(TypeError, match=r"WithDefault\.number"):
        generator.rust_struct(WithDefault)
    with pytest.raises(TypeError, match="`numbers`"):
        generator.rust_struct(WithSet)


def test_remarks_of_fields_reach_rust_wherever_they_stand(generator: ModuleType) -> None:
    class WithRemarks(msgspec.Struct):
        beside: int  #: on its line
        #: above it,
        #: in two lines
        above: int
        plain: int
        inside: (
            str | None  #: where a formatter has put it
        )

    rust = generator.rust_struct(WithRemarks)
    assert "/// on its line\n    pub beside" in rust
    assert "/// above it,\n    /// in two lines\n    pub above" in rust
    assert "/// where a formatter has put it\n    pub inside" in rust
    assert "    pub above: u64,\n    pub plain: u64,\n" in rust


def test_a_remark_that_is_no_fields_is_refused(generator: ModuleType) -> None:
    class WithStray(msgspec.Struct):
        #: of a field that was removed

        number: int

    with pytest.raises(LookupError, match="that was removed"):
        generator.rust_struct(WithStray)


def test_approved_files_of_before_are_read_without_the_time_of_their_last_change() -> None:
    before = {"path": "/sim", "sha256": "0" * 64, "bytes": 7, "mtime_ns": 5}
    read = msgspec.json.decode(msgspec.json.encode(before), type=node.ApprovedFile)
    assert read == node.ApprovedFile(**before, ctime_ns=None)  # type: ignore[arg-type]
