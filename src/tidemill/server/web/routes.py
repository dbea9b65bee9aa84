"""The pages as one table, and what carries them: who may come in, forms, errors as pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote

import msgspec
from starlette.responses import Response, StreamingResponse

from tidemill import clock, log
from tidemill.errors import SiteError
from tidemill.model.identity import Act, Identity, may, own_name
from tidemill.model.job import JobSpec
from tidemill.model.quantities import span_text
from tidemill.server.api.app import Api, error_reply
from tidemill.server.api.router import BoundedRequest, Handler
from tidemill.server.errors import ForbiddenError, RequestError, StrangerError
from tidemill.server.identity.access import IDENTITY, PEER, Authenticator
from tidemill.server.read import web_pages
from tidemill.server.web import allocation, caches, campaigns, home, hospital, jobs, pages, sites
from tidemill.server.web.live import Hub
from tidemill.server.web.pages import Page
from tidemill.server.web.query import AddressQuery, own_path, with_values
from tidemill.server.web.render import PageRequest, Pages
from tidemill.server.web.visits.entrance import VISIT, Entrance, Visit, is_local, set_cookie
from tidemill.server.web.visits.sessions import Sessions
from tidemill.wire.api import ErrorReply

FORM_BYTES_MAX = 64 * 1024
FIELDS_MAX = 500
ADDRESS_MARKS = "%:/?#[]@!$&'()*+,;="
REFUSAL_PAUSE_S = 0.5  #: before a wrong credential is answered
_LOG = log.Log("web")


class FormAction(NamedTuple):
    """Where a form is sent: `act` runs in a thread that may wait for the writer, and returns the next address."""

    path: str
    act: Callable[[PageRequest, jobs.Form], str]


PAGES = (
    Page("/", home.overview),
    Page("/search", home.search),
    Page("/jobs", jobs.listing),
    Page("/jobs/{job:int}", jobs.job),
    Page("/jobs/{job:int}/log/{number:int}", jobs.log),
    Page("/campaigns", campaigns.listing),
    Page("/campaigns/{name:str}", campaigns.campaign),
    Page("/failures", home.failures),
    Page("/sites", sites.listing),
    Page("/sites/{name:str}", sites.site),
    Page("/hospital", hospital.overview),
    Page("/allocations", sites.allocations),
    Page("/allocations/{name:str}", allocation.page),
    Page("/nodes", sites.nodes),
    Page("/transfers", sites.transfers),
    Page("/caches", caches.listing),
    Page("/applications", sites.applications),
    Page("/applications/{name:str}", sites.application),
)
DEEDS = (
    FormAction("/jobs/act", jobs.act),
    FormAction("/jobs/{job:int}/log", jobs.ask_log),
    FormAction("/sites/{name:str}/drain", sites.drain),
)


class Strange(Exception):
    """No user is logged in."""


class Website:
    """The state that handlers of pages share."""

    def __init__(self, api: Api, sessions: Sessions, authenticator: Authenticator) -> None:
        self.api, self.sessions, self.authenticator = api, sessions, authenticator
        self.pages, self.hub = Pages(), Hub(api)
        self.specs: dict[int, JobSpec] = {}

    def handlers(self) -> list[Handler]:
        """All of the pages and forms."""
        return [
            *(self._page(each) for each in (*PAGES, *pages.added())),
            *(self._deed(each) for each in DEEDS),
            *self._login(), self._live(), self._static(), self._download(),
        ]  # fmt: skip

    def before(self, app: Any, guard: Any) -> Entrance:
        """The application with its pages, as the server serves it. `app`: with what `handlers` returns."""
        return Entrance(
            app, guard, authenticator=self.authenticator, sessions=self.sessions, names=pages.names()
        )

    # ---- pages and forms -------------------------------------------------------------------------------------

    def _page(self, page: Page) -> Handler:
        async def handle(request: BoundedRequest) -> Response:
            visit = _visit(request)
            ask = self._ask(request, visit)
            shown = await self.api.read(lambda session: page.show(ask(session), self.pages))
            return _html(shown)

        return _route(page.path, "GET", handle)

    def _deed(self, deed: FormAction) -> Handler:
        async def handle(request: BoundedRequest) -> Response:
            visit = _visit(request)
            form = await _form(request)
            if visit.session is None or not self.sessions.is_form_token(
                visit.session, form.get("form", [""])[0]
            ):
                raise ForbiddenError(
                    "this form is not of your session, or older than it", hint="open the page anew"
                )
            ask = self._ask(request, visit)
            loop = asyncio.get_running_loop()
            where = await loop.run_in_executor(
                self.api.waiters,
                self.api.timed,
                request.scope,
                lambda: deed.act(ask(self.api.session()), form),
            )
            return _redirect(where)

        return _route(deed.path, "POST", handle)

    def _ask(self, request: BoundedRequest, visit: Visit) -> Callable[[Any], PageRequest]:
        session = visit.session
        if session is None:
            raise Strange
        at = dict(request.path_params)
        if any(isinstance(each, int) and not 0 <= each < 2**62 for each in at.values()):
            raise RequestError("a number in the address is too large")
        query = AddressQuery(request.scope["path"] or "/", dict(request.query_params.items()))
        return lambda store: PageRequest(
            store, self.api.dispatcher, session.identity, query, at, clock.now_us(), self.specs,
            self.sessions.form_token(session),
        )  # fmt: skip

    # ---- coming and going ------------------------------------------------------------------------------------

    def _login(self) -> list[Handler]:
        async def show(request: BoundedRequest) -> Response:
            visit: Visit = request.scope[VISIT]
            goal = own_path(request.query_params.get("next"))
            if visit.session is not None:
                return _redirect(goal)
            return self._ask_who(goal, visit.why or insecure(request))

        async def enter(request: BoundedRequest) -> Response:
            form = await _form(request)
            goal = own_path(form.get("next", ["/"])[0])
            token = form.get("token", [""])[0].strip()
            try:
                identity = await self._judge(request, token)
            except StrangerError as stranger:
                _LOG.warning("login.refused", why=str(stranger))
                self.api.on_refused(request.client.host if request.client else "socket", str(stranger))
                await asyncio.sleep(REFUSAL_PAUSE_S)
                return self._ask_who(goal, str(stranger), status=403)
            session = self.sessions.begin(identity, clock.now_us())
            _LOG.info("login.made", role=identity.role, name=identity.name, via=identity.via)
            cookie = set_cookie(request.scope, self.sessions.write(session), session.ends_us - clock.now_us())
            return _redirect(goal, cookie)

        async def leave(request: BoundedRequest) -> Response:
            visit: Visit = request.scope[VISIT]
            form = await _form(request)
            if visit.session is not None and self.sessions.is_form_token(
                visit.session, form.get("form", [""])[0]
            ):
                self.sessions.end(visit.session, clock.now_us())
            return _redirect("/login", set_cookie(request.scope, "", 0))

        return [
            _route("/login", "GET", show), _route("/login", "POST", enter), _route("/logout", "POST", leave)
        ]  # fmt: skip

    async def _judge(self, request: BoundedRequest, token: str) -> Identity:
        if insecure(request):
            raise StrangerError(insecure(request))
        if not token or not token.isascii() or len(token) > FORM_BYTES_MAX:
            raise StrangerError("no token was given")
        scope = {key: value for key, value in request.scope.items() if key not in (IDENTITY, PEER)}
        scope["headers"] = [(b"authorization", b"Bearer " + token.encode())]
        return await self.authenticator.identify(scope)

    def _ask_who(self, goal: str, why: str, status: int = 200) -> Response:
        return _html(self._login_page(goal, why), status=status)

    def _login_page(self, goal: str, why: str) -> str:
        return self.pages.bare("login.html", goal=goal, why=why, life=span_text(self.sessions.life_s))

    # ---- live, files, errors ---------------------------------------------------------------------------------

    def _live(self) -> Handler:
        async def handle(request: BoundedRequest) -> StreamingResponse:
            visit = _visit(request)
            if visit.session is None:
                raise Strange
            identity = visit.session.identity
            if self.hub.is_full(identity):
                raise SiteError(
                    "too many pages are open", hint="this one is up to date when you load it again"
                )
            last = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
            after = int(last) if last.isdecimal() and last.isascii() and len(last) < 19 else 0
            news = self.hub.watch(after, identity, partial(self._sees, identity))
            headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
            return StreamingResponse(news, media_type="text/event-stream", headers=headers)

        return _route("/live", "GET", handle)

    async def _sees(self, identity: Identity, campaigns: frozenset[int]) -> dict[int, str]:
        if not may(identity, Act.READ).allowed:
            return {}
        owner = own_name(identity, Act.READ)
        return await self.api.read(lambda session: web_pages.references(session, owner, campaigns))

    def _static(self) -> Handler:
        async def handle(request: BoundedRequest) -> Response:
            found = self.pages.static.get(str(request.path_params["name"]))
            if found is None:
                return Response(b"there is no such file\n", media_type="text/plain", status_code=404)
            headers = {"Cache-Control": "public, max-age=31536000, immutable"}
            return Response(found.content, media_type=found.media, headers=headers)

        return _route("/static/{name:str}", "GET", handle)

    def _download(self) -> Handler:
        async def handle(request: BoundedRequest) -> Response:
            ask = self._ask(request, _visit(request))
            download = await self.api.read(lambda session: jobs.download(ask(session)))
            headers = {
                "Content-Disposition": f'attachment; filename="{download.name}"',
                "Content-Length": str(download.size_bytes),
                "Cache-Control": "no-store",
            }  # fmt: skip
            media = "application/octet-stream"
            return StreamingResponse(download.pieces(), media_type=media, headers=headers)

        return _route("/jobs/{job:int}/files/{number:int}", "GET", handle)

    def error(self, request: BoundedRequest, error: Exception) -> Response:
        """An error as a page for people, as JSON for all else."""
        visit: Visit | None = request.scope.get(VISIT)
        if visit is None:
            return error_reply(self.api, request, error)
        if isinstance(error, Strange):
            return self._show_in(request, visit)
        answer = error_reply(self.api, request, error)
        reply = msgspec.json.decode(answer.body, type=ErrorReply)
        status = answer.status_code
        identity = visit.session.identity if visit.session is not None else None
        shown = self.pages.bare("error.html", status=status, told=reply, identity=identity)
        kept = {name: value for name, value in answer.headers.items() if not name.startswith("content-")}
        return _html(shown, status=status, headers=kept)

    def _show_in(self, request: BoundedRequest, visit: Visit) -> Response:
        """Ask a stranger who he is."""
        path = request.scope["path"]
        if request.method != "GET" or path == "/live":
            return _html(self._login_page("/", "your session is over"), status=401)
        goal = quote(path) + (f"?{request.url.query}" if request.url.query else "")
        if visit.comes_from_elsewhere:
            # A link of a mail: the browser keeps a strict cookie back. It sends it when our own page leads on.
            return _html(self.pages.bare("bounce.html", goal=goal))
        return _redirect(with_values("/login", next=own_path(goal)))


def insecure(request: BoundedRequest) -> str:
    """Why a browser would not keep our cookie, empty = it would."""
    if request.scope["scheme"] == "https" or is_local(request.headers.get("host", "")):
        return ""
    return (
        "without TLS, pages are shown as `localhost` only: make a tunnel from your own computer, `ssh -L`, "
        "or give the server a certificate"
    )


def _visit(request: BoundedRequest) -> Visit:
    visit: Visit = request.scope[VISIT]
    if visit.session is None:
        raise Strange
    return visit


async def _form(request: BoundedRequest) -> jobs.Form:
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise RequestError("a form is wanted here")
    body = await request.body()  # of FORM_BYTES_MAX at most: see `_route`
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise RequestError(f"a form that cannot be read: {error}") from error
    return {key: [each.replace("\0", "") for each in values] for key, values in fields.items()}


def _route(path: str, method: str, handle: Callable[[BoundedRequest], Awaitable[Response]]) -> Handler:
    return Handler(method, path, handle, FORM_BYTES_MAX)


def _html(text: str, *, status: int = 200, headers: Any = None) -> Response:
    return Response(
        text, media_type="text/html", status_code=status,
        headers={**(headers or {}), "Cache-Control": "no-store"},
    )  # fmt: skip


def _redirect(where: str, cookie: str | None = None) -> Response:
    # A header cannot hold characters that are not allowed in an address (RFC 3986, section 2)
    headers = {"Location": quote(where, safe=ADDRESS_MARKS), "Cache-Control": "no-store"}
    if cookie is not None:
        headers["Set-Cookie"] = cookie
    return Response("", media_type="text/plain", status_code=303, headers=headers)
