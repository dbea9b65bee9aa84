"""The OpenAPI 3.1 document, from the table of routes and the messages' own JSON Schema. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tidemill import __version__
from tidemill.server.api.routes import Route, served
from tidemill.wire.api import (
    ORDERS_MAX,
    PAGE_MAX,
    REPORTS_MAX,
    REQUEST_BYTES_MAX,
    SUBMIT_JOBS_MAX,
    Change,
    ErrorReply,
    JobLog,
)

_REFERENCE = "#/components/schemas/{name}"
_SPECIAL: dict[str, tuple[str, Any]] = {
    "/v1/changes": ("text/event-stream", Change),
    "/v1/jobs/{job:int}/log": ("application/json", JobLog),
}
_ERRORS = {
    "400": "the request is not legal", "401": "no credential, or none that is believed",
    "403": "the role of the credential may not do this", "404": "there is no such thing",
    "409": "the request contradicts what the server knows", "413": "the request is too large",
    "503": "the database is full or away, or too much waits: try again",
}  # fmt: skip


def document() -> dict[str, Any]:
    """The OpenAPI document of all routes."""
    types: list[Any] = [ErrorReply, Change, JobLog]
    types += [each for route in served() for each in (route.body, route.reply) if each is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    of_type = list(zip(types, schemas, strict=True))

    def schema(wanted: Any) -> dict[str, Any]:
        return next(found for each, found in of_type if each == wanted)

    paths: dict[str, dict[str, Any]] = {}
    for route in served():
        paths.setdefault(template(route.path), {})[route.method.lower()] = _operation(route, schema)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidemill",
            "version": __version__,
            "description": (
                f"At most {SUBMIT_JOBS_MAX} jobs, {REPORTS_MAX} reports and {REQUEST_BYTES_MAX} bytes per request, "
                f"{PAGE_MAX} rows per page, {ORDERS_MAX} orders per sync."
            ),
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"secret": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"secret": []}],
    }


def template(path: str) -> str:
    """A path of the table of routes as OpenAPI writes it: `/v1/jobs/{job}`."""
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", path)


def _operation(route: Route, schema: Any) -> dict[str, Any]:
    media, reply = _SPECIAL.get(route.path, ("application/json", route.reply))
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": {
            "200": {"description": "done", "content": {media: {"schema": schema(reply)}}},
            **{
                code: {"description": text, "content": {"application/json": {"schema": schema(ErrorReply)}}}
                for code, text in _ERRORS.items()
            },
        },
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": True, "content": {"application/json": {"schema": schema(route.body)}},
        }  # fmt: skip
    return operation


def _parameters(route: Route) -> list[dict[str, Any]]:
    kinds = {"int": "integer", "str": "string"}
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": kinds[kind]}}
        for name, kind in re.findall(r"\{(\w+):(\w+)\}", route.path)
    ]
    info = msgspec.json.schema(route.query)
    fields = next(iter(info["$defs"].values()))["properties"]
    return in_path + [
        {"name": name, "in": "query", "required": False, "schema": field} for name, field in fields.items()
    ]
