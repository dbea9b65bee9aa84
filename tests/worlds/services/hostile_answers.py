"""A server whose every text is an attack on the terminal of the person who asks it."""

from __future__ import annotations

import contextlib
import enum
import http.server
import re
import threading
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from tidemill.model.figures.activity import Activity
from tidemill.wire import api, core_hours, hospital

#: Sets the title, clears the screen, colours by C1, turns the direction, ends the line in three ways, deletes, forges.
HOSTILE = "x\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj.exe\u2028\x85\x7f\rover\nerror: forged"
STATE = "FAILED"
ANSWERS: dict[str, Any] = {
    r"/v1/health": api.Health,
    r"/v1/jobs": api.JobPage,
    r"/v1/jobs/\d+": api.JobDetail,
    r"/v1/jobs/\d+/log": api.JobLog,
    r"/v1/campaigns": list[api.CampaignRow],
    r"/v1/campaigns/.*/activity": Activity,
    r"/v1/campaigns/.*": api.CampaignRow,
    r"/v1/failures": api.FailurePage,
    r"/v1/outputs": api.OutputPage,
    r"/v1/counts": api.Counts,
    r"/v1/sites": list[api.SiteRow],
    r"/v1/wards": list[hospital.WardRow],
    r"/v1/downtimes": hospital.DowntimeList,
    r"/v1/applications": list[api.SiteApplication],
    r"/v1/allocations": list[api.AllocationRow],
    r"/v1/placements": list[core_hours.PlacementRow],
    r"/v1/core-hours": core_hours.CoreHoursPage,
    r"/v1/audit": list[api.AuditRow],
}


def filled(kind: Any, name: str = "") -> Any:
    """A value of this type whose texts are hostile. Lists and dicts have one member; pages are the last."""
    plain = {int: 3, float: 3, Any: 3, bool: name == "found", str: STATE if name == "state" else HOSTILE}
    if name == "next":
        return None
    if kind in plain:
        return plain[kind]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        return {filled(inner[0]): filled(inner[1])}
    if origin in (list, tuple):
        return [filled(inner[0])]
    if origin in (typing.Union, types.UnionType):
        return filled(inner[0])
    if origin is typing.Literal:
        return inner[0]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind)).value
    fields = msgspec.structs.fields(kind)
    values = {each.encode_name: filled(each.type, each.name) for each in fields}
    if issubclass(kind, api.AppOffer):
        values |= {"parameters": {}}  # their names are checked when they are read
    return list(values.values()) if kind.__struct_config__.array_like else values


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        kind = next((kind for shape, kind in ANSWERS.items() if re.fullmatch(shape, path)), None)
        status, value = (404, {"error": HOSTILE, "hint": HOSTILE}) if kind is None else (200, filled(kind))
        self._answer(status, value)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(400, {"error": HOSTILE, "hint": HOSTILE})

    def _answer(self, status: int, value: Any) -> None:
        body = msgspec.json.encode(value)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def hostile_answers() -> Iterator[str]:
    """The address of such a server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
