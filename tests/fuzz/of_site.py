"""What reaches a site and its users: applications, job arguments, files that nodes and traced programs wrote."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.fuzz.parser import Parser, file_of, folder

from tidemill.client.outputs import listing
from tidemill.errors import ConfigError, JobError, ProtocolError, SiteError
from tidemill.image.profile import encode_profile, merge, parse_profile
from tidemill.image.recipe import read_recipe
from tidemill.image.reference import parse_reference
from tidemill.model.application import Parameter, ParameterType
from tidemill.model.parameter import check_value
from tidemill.node.bundle import IndexTail
from tidemill.node.fleet import work_files
from tidemill.node.framed import decode_lines, frame
from tidemill.node.journal import Merge, read_records
from tidemill.site.applications.catalogue import load_application
from tidemill.site.applications.templates import check_templates
from tidemill.site.data.transfer_node import _read as read_order
from tidemill.site.setup.capabilities import parse_abilities
from tidemill.site.setup.probe import parse as parse_probe
from tidemill.site.staff import drain
from tidemill.site.state import log as site_log
from tidemill.wire.api import OutputRow
from tidemill.wire.node import WorkFile


def _framed(content: bytes) -> bytes:
    """Each line as a whole line of a journal: what is decoded then is what the line holds."""
    return b"".join(frame(line) for line in content.split(b"\n"))


def _journal(content: bytes) -> object:
    read_records(content)  # as a torn file
    records, used = read_records(_framed(content))
    assert used == len(_framed(content)), "whole lines were left"
    merged = Merge()
    taken = merged.deduplicate(records)
    assert not merged.deduplicate(records), "a record was taken twice"
    return taken


def _index(content: bytes) -> object:
    path = file_of(_framed(content), "b.idx")
    return IndexTail(path.with_suffix(".tar")).read()


def _site_log(content: bytes) -> object:
    return decode_lines(_framed(content), site_log._decode_entry)[0]


def _bundle(content: bytes) -> object:
    path = file_of(content, "b.tar")
    row = OutputRow(name="hits", url=f"file://{path}", size_bytes=len(content), sha256="")
    return list(listing(1, row))


def _profile(content: bytes) -> object:
    profile = parse_profile(content, source="profile")
    assert parse_profile(encode_profile(profile), source="again") == profile, "it reads another than it wrote"
    return merge([profile, profile]).paths


def _recipe(content: bytes) -> object:
    return read_recipe(file_of(content, "image.json")).packs()


def _application(content: bytes) -> object:
    """`@FILE@` and `@DIGEST@` in the input stand for a file that is there, and for its digest."""
    text = b"#!/bin/sh\n"
    file = file_of(text, "program")
    file.chmod(0o755)
    content = content.replace(b"@FILE@", bytes(file))
    content = content.replace(b"@DIGEST@", b"sha256:" + hashlib.sha256(text).hexdigest().encode())
    return load_application(file_of(content, "sim.toml")).templates


def _templates(content: bytes) -> object:
    argument = content.decode(errors="replace")
    made = check_templates([argument], ["seed_of"], source=Path("app.toml"), merge=False)
    assert made[0].fill({}) == argument or "{{" in argument or "}}" in argument, "nothing was filled in"
    return made


_WORDS = Parameter(choices=["zmumu", "zee"], type=ParameterType.CHOICE)
_KINDS = [
    Parameter(type=ParameterType.INT, min=0, max=1e6), Parameter(type=ParameterType.FLOAT), Parameter(), _WORDS,
    Parameter(type=ParameterType.BOOL), Parameter(pattern=r"[a-z]+(,[a-z]+)*"),
]  # fmt: skip


def _values(content: bytes) -> object:
    """A value of a job's parameter, as JSON where it is some, else as text; legal for any type or for none."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = content.decode(errors="replace")
    found: list[object] = []
    for kind in _KINDS:
        try:
            found.append(check_value("p", kind, value))
        except JobError:
            continue
        if kind.type is ParameterType.STRING:
            assert not str(found[-1]).startswith("-"), "it would be an option"
            assert not set(str(found[-1])) & set("\0\n\r \t"), "it would be more than one word"
    return found


def _work(content: bytes) -> object:
    fleet = folder() / "fleet"
    (fleet / "work").mkdir(parents=True, exist_ok=True)
    (fleet / "work" / "000001.json").write_bytes(content)
    return list(work_files(fleet, WorkFile))


def _drained(content: bytes) -> object:
    place = folder() / "site"
    (place / "requests").mkdir(parents=True, exist_ok=True)
    (place / "drained.json").write_bytes(content)
    told = drain.drained(place)
    (place / "STOP").write_bytes(content)
    told = f"{told} {drain.drained(place)}"
    (place / "STOP").unlink()
    return told


def _order(content: bytes) -> object:
    return read_order(file_of(content, "a.json"), folder())


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


_S, _C, _SP = (SiteError,), (ConfigError,), (SiteError, ProtocolError)
PARSERS = [
    Parser("journal", _journal, (ProtocolError,)),
    Parser("bundle-index", _index, _SP),
    Parser("bundle", _bundle, _S),
    Parser("site-log", _site_log, (ProtocolError,)),
    Parser("work-file", _work, _SP),
    Parser("mover-order", _order, _S),
    Parser("drain-file", _drained, _S),
    Parser("profile", _profile, _C, ("profiles/*.json",)),
    Parser("recipe", _recipe, (ConfigError, SiteError)),
    Parser("image-name", lambda content: parse_reference(_text(content), Path("/store")), _C),
    Parser("application", _application, (ConfigError, SiteError)),
    Parser("templates", _templates, _C),
    Parser("parameter", _values),
    Parser("probe", lambda content: parse_probe(_text(content), heard=[]), _S),
    Parser("abilities", parse_abilities, _S),
]
