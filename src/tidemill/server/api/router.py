"""Routes requests to handlers by path and method, bounds bodies, reports errors in one place. Uses Starlette.

Doubled and trailing slashes in a path make no difference; `access` and `entrance` read paths the same way.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tidemill.server.core.body_count import BodyCount
from tidemill.wire.api import REQUEST_BYTES_MAX

BODY_BYTES_MAX = "tidemill.body_bytes_max"  #: in the ASGI scope
_TOO_LARGE = "Request Entity Too Large"
_KINDS: dict[str, Callable[[str], Any]] = {"int": int, "str": str}


class BoundedRequest(Request):
    """A request whose body has at most the size that its handler permits. `counted`: counts the body while it comes."""

    counted: BodyCount | None = None

    async def body(self) -> bytes:
        """The whole body. Raises HTTPException."""
        if not hasattr(self, "_body"):
            self._body = await self._bounded(self.scope[BODY_BYTES_MAX])
        return self._body

    async def _bounded(self, limit: int) -> bytes:
        announced = self.headers.get("content-length", "0")
        try:
            if int(announced) > limit:
                raise HTTPException(413, _TOO_LARGE)
        except ValueError:
            raise HTTPException(400, f"Invalid content-length: {announced!r}") from None
        taken = bytearray()
        try:
            async for piece in self.stream():
                taken += piece
                if len(taken) > limit:
                    raise HTTPException(413, _TOO_LARGE)
                if self.counted is not None:
                    self.counted.feed(piece)
        except ClientDisconnect:
            raise HTTPException(400, "the client ended the connection before the body was whole") from None
        return bytes(taken)


class Handler(NamedTuple):
    """What answers requests of a method to a path such as `/v1/jobs/{job:int}`."""

    method: str
    path: str
    answer: Callable[[BoundedRequest], Awaitable[Response]]
    body_bytes_max: int = REQUEST_BYTES_MAX

    @property
    def template(self) -> str:
        """The path without types, as OpenAPI writes it."""
        return re.sub(r"\{(\w+):\w+\}", r"{\1}", self.path)


class Router:
    """The ASGI application. `error` makes the answer to an exception; `around` wraps the handler that was found."""

    def __init__(
        self,
        handlers: Sequence[Handler],
        *,
        error: Callable[[BoundedRequest, Exception], Response],
        around: Callable[[Any], Any],
    ) -> None:
        self.handlers = handlers
        self._error, self._around = error, around
        self._by_length: dict[int, list[tuple[list[str], dict[str, Handler]]]] = {}
        for each in handlers:
            parts = _parts(each.path)
            known = self._by_length.setdefault(len(parts), [])
            methods = next((methods for found, methods in known if found == parts), None)
            if methods is None:
                known.append((parts, methods := {}))
            methods[each.method] = each
        for known in self._by_length.values():  # `/jobs/act` before `/jobs/{job:int}`
            known.sort(key=lambda entry: [part.startswith("{") for part in entry[0]])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request."""
        request = BoundedRequest(scope, receive)
        try:
            act = self._find(scope)
        except HTTPException as error:
            await self._error(request, error)(scope, receive, send)
            return

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            try:
                response = await act(request)
            except Exception as error:  # noqa: BLE001  `_error` reports and logs it
                response = self._error(request, error)
            await response(scope, receive, send)

        await self._around(answer)(scope, receive, send)

    def _find(self, scope: Any) -> Callable[[BoundedRequest], Awaitable[Response]]:
        """What answers a request; its scope gets what the path says. Raises HTTPException."""
        parts = _parts(scope["path"])
        for pattern, methods in self._by_length.get(len(parts), []):
            values = _values(pattern, parts)
            if values is None:
                continue
            handler = methods.get(scope["method"])
            if handler is None and scope["method"] != "OPTIONS":
                raise HTTPException(405, "Method Not Allowed")
            any_of = handler or next(iter(methods.values()))
            scope["path_params"], scope["path_template"] = values, any_of.template
            scope[BODY_BYTES_MAX] = any_of.body_bytes_max
            return handler.answer if handler is not None else _options(methods)
        raise HTTPException(404, "Not Found")


def _options(methods: dict[str, Handler]) -> Callable[[BoundedRequest], Awaitable[Response]]:
    async def answer(_: BoundedRequest) -> Response:
        return Response(status_code=204, headers={"Allow": ", ".join(sorted({*methods, "OPTIONS"}))})

    return answer


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _values(pattern: list[str], parts: list[str]) -> dict[str, Any] | None:
    """What a path says where the pattern asks for something; None if it is another path."""
    values: dict[str, Any] = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted.startswith("{"):
            name, _, kind = wanted[1:-1].partition(":")
            try:
                values[name] = _KINDS[kind](part)
            except ValueError:
                return None
        elif wanted != part:
            return None
    return values
