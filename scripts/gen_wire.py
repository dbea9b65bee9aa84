"""Write what Rust gets from Python: JSON Schema, types and tables of `tidemill.wire.node`.

    python scripts/gen_wire.py            # write
    python scripts/gen_wire.py --check    # exit 1 with a diff where a committed file differs

Types: `int` is u64 (`exit_status` and `signal`: i32), `float` f64, `X | None` Option (null on the wire),
`dict[str, int]` BTreeMap<String, i64>. A union of tagged structs becomes an enum with the same tag.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import sys
import textwrap
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as wire_inspect
from remarks import remarks_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from tidemill.model.file_systems import NETWORK_TYPES  # noqa: E402  # the path is set just above
from tidemill.wire import node  # noqa: E402  # the path is set just above

SCHEMA = ROOT / "schema/node.json"
RUST = ROOT / "crates/wire/src/generated.rs"

MODULES = (node.__name__, "tidemill.wire.staged")
SIGNED_32 = frozenset({"exit_status", "signal"})  # what the kernel reports: int in wait(2)

RUST_HEAD = """\
// Generated from src/tidemill/wire/node.py by scripts/gen_wire.py: do not edit, run `make gen`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

"""


def structs() -> list[type[msgspec.Struct]]:
    """Every message and record of the module, in the order of the source."""
    return [
        each
        for each in vars(node).values()
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__module__ in MODULES
    ]


def unions() -> dict[str, list[wire_inspect.StructType]]:
    """The module's named unions of tagged structs."""
    found: dict[str, list[wire_inspect.StructType]] = {}
    for name, value in vars(node).items():
        if isinstance(value, types.UnionType):
            info = wire_inspect.type_info(value)
            if not isinstance(info, wire_inspect.UnionType):
                raise TypeError(f"`{name}` is not a union of structs")
            found[name] = [each for each in info.types if isinstance(each, wire_inspect.StructType)]
    return found


def rust_type(info: wire_inspect.Type, *, field: str) -> str:
    """The Rust type of one field; raises TypeError for a type that this wire does not have."""
    match info:
        case wire_inspect.StrType():
            return "String"
        case wire_inspect.BoolType():
            return "bool"
        case wire_inspect.FloatType():
            return "f64"
        case wire_inspect.IntType():
            return "i32" if field in SIGNED_32 else "u64"
        case wire_inspect.ListType(item_type=item):
            return f"Vec<{rust_type(item, field=field)}>"
        case wire_inspect.DictType(key_type=wire_inspect.StrType(), value_type=wire_inspect.IntType()):
            return "BTreeMap<String, i64>"
        case wire_inspect.DictType(key_type=wire_inspect.StrType(), value_type=value):
            return f"BTreeMap<String, {rust_type(value, field=field)}>"
        case wire_inspect.StructType(cls=cls):
            return str(cls.__name__)
        case wire_inspect.UnionType(types=(one, wire_inspect.NoneType())):
            return f"Option<{rust_type(one, field=field)}>"
    raise TypeError(f"field `{field}` has a type that the node wire does not have: {info}")


def rust_struct(cls: type[msgspec.Struct]) -> str:
    """One struct with its documentation."""
    info = wire_inspect.type_info(cls)
    if not isinstance(info, wire_inspect.StructType):
        raise TypeError(f"`{cls.__name__}` is not a struct")
    source = textwrap.dedent(inspect.getsource(cls))
    (record,) = ast.parse(source).body
    assert isinstance(record, ast.ClassDef)
    comments = remarks_of(record, source.splitlines())
    lines = [*doc_lines(inspect.cleandoc(cls.__doc__ or ""), indent="")]
    lines += [
        "#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]",
        f"pub struct {cls.__name__} {{",
    ]
    for field in info.fields:
        if not field.required and field.default is not None:
            raise TypeError(f"`{cls.__name__}.{field.name}` has a default: the node wire knows none but null")
        lines += doc_lines(comments.get(field.name, ""), indent="    ")
        lines.append(f"    pub {field.encode_name}: {rust_type(field.type, field=field.name)},")
    return "\n".join([*lines, "}\n"])


def rust_enum(name: str, members: list[wire_inspect.StructType]) -> str:
    """One union as an internally tagged enum."""
    tags = {each.tag_field for each in members}
    if len(tags) != 1 or None in tags:
        raise TypeError(f"the members of `{name}` do not share one tag field: {sorted(map(str, tags))}")
    lines = [
        "#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]",
        f'#[serde(tag = "{tags.pop()}")]',
        f"pub enum {name} {{",
    ]
    for each in members:
        lines += [f'    #[serde(rename = "{each.tag}")]', f"    {each.cls.__name__}({each.cls.__name__}),"]
    return "\n".join([*lines, "}\n"])


def doc_lines(text: str, *, indent: str) -> list[str]:
    """Rust documentation lines; empty text gives none."""
    return [f"{indent}/// {line}".rstrip() for line in text.splitlines()] if text else []


def rust_number(name: str, value: int) -> str:
    """A number of src/tidemill/wire/node.py."""
    return f"pub const {name}: u64 = {value:_};\n"


def rust_names(name: str, values: Sequence[str], *, of: str = "src/tidemill/wire/node.py") -> str:
    """A table of names."""
    words = textwrap.fill(", ".join(f'"{value}"' for value in values) + ",", 100)
    about = f"/// `{name}` of {of}.\n"
    return f"{about}pub const {name}: [&str; {len(values)}] = [\n{textwrap.indent(words, '    ')}\n];\n"


def rust_text() -> str:
    """The whole of generated.rs."""
    parts = [
        *(rust_number(name, getattr(node, name)) for name in ("FORMAT", "FORM_BASE", "STEPS_FROM")),
        rust_names("NETWORK_TYPES", sorted(NETWORK_TYPES), of="src/tidemill/model/file_systems.py"),
    ]
    parts += [rust_names("FIGURES", node.FIGURES), rust_names("MOUNT_FIGURES", node.MOUNT_FIGURES)]
    parts += [rust_struct(cls) for cls in structs()]
    parts += [rust_enum(name, members) for name, members in unions().items()]
    return RUST_HEAD + "\n".join(parts)


def schema_text() -> str:
    """The whole of node.json."""
    _, components = msgspec.json.schema_components(structs(), ref_template="#/$defs/{name}")
    defs: dict[str, Any] = dict(components)
    for name, members in unions().items():
        defs[name] = {"anyOf": [{"$ref": f"#/$defs/{each.cls.__name__}"} for each in members]}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tidemill agent, lead and pilots",
        "$comment": "Generated from src/tidemill/wire/node.py by scripts/gen_wire.py",
        "$defs": defs,
    }
    return msgspec.json.format(msgspec.json.encode(schema, order="deterministic"), indent=1).decode() + "\n"


def generated() -> dict[Path, str]:
    """Text of each file that is generated."""
    return {SCHEMA: schema_text(), RUST: rust_text()}


def check(files: dict[Path, str]) -> int:
    """Print a diff for each file that differs; return 1 if there is one."""
    status = 0
    for path, text in files.items():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old != text:
            status = 1
            name = str(path.relative_to(ROOT))
            sys.stdout.writelines(
                difflib.unified_diff(
                    old.splitlines(keepends=True), text.splitlines(keepends=True), name, f"{name} (generated)"
                )
            )
    if status:
        print("hint: run `make gen` and commit the result", file=sys.stderr)
    return status


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    files = generated()
    if parser.parse_args().check:
        return check(files)
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
