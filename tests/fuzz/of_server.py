"""What people and sites send to the server, what its operators write, and how somebody shows who he is."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.fuzz.parser import Parser, file_of, folder

from tidemill import config
from tidemill.client.authority import Authority, Wanted
from tidemill.client.jobfile import load_job_file, waves
from tidemill.clock import parse_duration_s
from tidemill.config import parse_size
from tidemill.config.addressee import parse_target
from tidemill.config.server import ServerConfig, read_config
from tidemill.config.site import SiteConfig
from tidemill.config.tls import Tls
from tidemill.errors import ConfigError, TidemillError
from tidemill.model.intervals import IntervalSet
from tidemill.model.job import JobSpec
from tidemill.server.api.app import _decode
from tidemill.server.audit import audit_log
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Store
from tidemill.server.errors import StrangerError
from tidemill.server.identity import revocations
from tidemill.server.identity.certificates import Certificates
from tidemill.transfer.allowed import check_endpoint
from tidemill.wire.api import ActionRequest, DrainRequest, SubmitRequest, SyncRequest


@cache
def _dispatcher() -> Dispatcher:
    store = Store(path=folder() / "fuzz.db")
    store.init()
    made = Dispatcher(store)
    made.start()
    for name, act in (("submit", _submit_to), ("sync", _sync_to)):
        for path in sorted((Path(__file__).parent / "corpus" / name).glob("ok-*")):
            act(made, path.read_bytes())
    made.handle_submit(
        SubmitRequest(
            key="first",
            campaign="first",
            jobs=[JobSpec(app="pythia", params={"process": "zmumu"}, events=10)],
        )
    )
    return made


def _submit_to(dispatcher: Dispatcher, content: bytes) -> object:
    return dispatcher.handle_submit(_decode(content, SubmitRequest))


def _sync_to(dispatcher: Dispatcher, content: bytes) -> object:
    return dispatcher.handle_sync(_decode(content, SyncRequest)).orders


def _submit(content: bytes) -> object:
    return _submit_to(_dispatcher(), content)


def _sync(content: bytes) -> object:
    return _sync_to(_dispatcher(), content)


def _act(content: bytes) -> object:
    request = _decode(content, ActionRequest)
    return [_dispatcher().handle_cancel(request), _dispatcher().handle_retry(request)]


def _drain(content: bytes) -> object:
    return _dispatcher().handle_drain("s", _decode(content, DrainRequest))


def _job_file(content: bytes) -> object:
    file = load_job_file(file_of(content, "job.toml"))
    return waves(file)


def _server_toml(content: bytes) -> ServerConfig:
    return read_config(file_of(content, "server.toml"))


def _site_toml(content: bytes) -> SiteConfig:
    read = config.load(file_of(content, "site.toml"), SiteConfig)
    for each in read.endpoints:
        check_endpoint(each)
    return read


def _revoked(content: bytes) -> object:
    return revocations.parse(content.decode(errors="replace"), Path("revoked.txt"))


def _audit(content: bytes) -> object:
    place = folder() / "audited"
    (place / audit_log.FOLDER).mkdir(parents=True, exist_ok=True)
    (place / audit_log.FOLDER / "2026-11.jsonl").write_bytes(content)
    return audit_log.verify(place)


def _target(content: bytes) -> object:
    text = content.decode(errors="replace")
    target = parse_target(text)
    assert text in (f"{target.channel}:{target.where}", target.where, target.channel), (
        "another than was written"
    )
    return target


def _duration(content: bytes) -> object:
    seconds = parse_duration_s(content.decode(errors="replace"))
    assert seconds >= 0, "it is negative"
    return seconds


def _size(content: bytes) -> object:
    return parse_size(content.decode(errors="replace"))


def _intervals(content: bytes) -> object:
    found = IntervalSet.parse(content.decode(errors="replace"))
    assert IntervalSet.parse(str(found)) == found, "it reads another than it wrote"
    return str(found)


@cache
def _certificates() -> Certificates:
    own = Authority.create(folder() / "ca", name="Tidemill CA", days=10)
    made = own.issue(Wanted(role="server", name="127.0.0.1", days=5), folder() / "ca")
    return Certificates(Tls(certificate=made.certificate, key=made.key, ca=own.certificate_path), members=[])


def _certificate(content: bytes) -> object:
    return _certificates().identity(content)


_T = (TidemillError,)
_C = (ConfigError,)


PARSERS = [
    Parser("submit", _submit, _T),
    Parser("sync", _sync, _T),
    Parser("action", _act, _T),
    Parser("drain", _drain, _T),
    Parser("job-file", _job_file, _C),
    Parser("server-toml", _server_toml, _C),
    Parser("site-toml", _site_toml, _C),
    Parser("revoked", _revoked, _C),
    Parser("audit-log", _audit, _T),
    Parser("addressee", _target, (ValueError,)),
    Parser("duration", _duration, (ValueError,)),
    Parser("size", _size, (ValueError,)),
    Parser("intervals", _intervals, (ValueError,)),
    Parser("certificate", _certificate, (StrangerError,)),
]
