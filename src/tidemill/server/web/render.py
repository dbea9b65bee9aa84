"""A page's question and its text: templates with everything escaped, and the files that pages bring along."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Any, NamedTuple

from jinja2 import (
    BaseLoader,
    ChoiceLoader,
    Environment,
    PackageLoader,
    PrefixLoader,
    StrictUndefined,
    TemplateSyntaxError,
)
from markupsafe import Markup

from tidemill import __version__, extensions
from tidemill.model.campaign import reference
from tidemill.model.failure import next_step, step_after
from tidemill.model.identity import Act, Identity, may, own_name
from tidemill.model.job import JobSpec
from tidemill.server.core import rights
from tidemill.server.core.campaign_names import CampaignKey
from tidemill.server.core.dispatcher import Dispatcher
from tidemill.server.database.store import Session
from tidemill.server.web import draw, pages, text
from tidemill.server.web.pages import NavigationEntry
from tidemill.server.web.query import AddressQuery, campaign_page, said, to, with_values

STATIC = {"style.css": "text/css", "tidemill.js": "text/javascript", "icon.svg": "image/svg+xml"}
NAVIGATION = tuple(NavigationEntry(*each) for each in (
    ("/", "Overview", Act.SITES), ("/jobs", "Jobs", Act.READ), ("/campaigns", "Campaigns", Act.READ),
    ("/failures", "Failures", Act.READ), ("/sites", "Sites", Act.SITES),
    ("/allocations", "Allocations", Act.ALLOCATIONS), ("/nodes", "Bad nodes", Act.ALLOCATIONS),
    ("/hospital", "Hospital", Act.SITES), ("/transfers", "Transfers", Act.READ),
    ("/caches", "Caches", Act.SITES), ("/applications", "Applications", Act.SITES),
))  # fmt: skip


class PageRequest(NamedTuple):
    """A request for a page, with all that it may need to answer. `at`: parts of the path."""

    session: Session
    dispatcher: Dispatcher
    identity: Identity
    query: AddressQuery
    at: dict[str, Any]
    now_us: int
    specs: dict[int, JobSpec]
    form_token: str

    def may(self, act: Act, *, owner: str | None = None, site: str | None = None) -> bool:
        """Whether there is a right to it."""
        return may(self.identity, act, owner=owner, site=site).allowed

    def require(self, act: Act, *, owner: str | None = None, site: str | None = None) -> None:
        """Raise ForbiddenError unless there is a right to it."""
        rights.check(self.identity, act, owner=owner, site=site)

    def own(self, act: Act) -> str | None:
        """The owner, or site, that what is shown must be of; None = all. Raises ForbiddenError."""
        self.require(act)
        return own_name(self.identity, act)

    def settings(self, name: str) -> Any:
        """What an extension's table `[NAME]` of server.toml says."""
        return self.dispatcher.rules.added[name]

    def campaign(self) -> CampaignKey | None:
        """The campaign that `campaign` of the address means; None = it names none. Raises MissingError."""
        named = self.query.text("campaign")
        return None if named is None else rights.check_campaign(self.session, self.identity, Act.READ, named)

    def silent(self) -> set[str]:
        """Names of sites that have not been heard for a while."""
        names = [row.name for row in self.session.rows("site_names")]
        return self.dispatcher.site_watch.silent(names)

    def unheard(self) -> set[str]:
        """Names of sites that have not been heard for a while, or not since the server started."""
        names = [row.name for row in self.session.rows("site_names")]
        return self.dispatcher.site_watch.unheard(names)


class Static(NamedTuple):
    """A file that pages bring along. `version`: of its content, in its address, so that browsers may keep it."""

    content: bytes
    media: str
    version: str


class Pages:
    """The templates, each compiled at its first use."""

    def __init__(self) -> None:
        self.static = {name: _static(name, media) for name, media in STATIC.items()}
        self.templates = Environment(
            loader=ChoiceLoader([PackageLoader("tidemill.server.web"), PrefixLoader(_added())]),
            autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True, auto_reload=False,
        )  # fmt: skip
        self.templates.filters.update(text.FILTERS)
        self.templates.globals.update(
            to=to, with_values=with_values, campaign_page=campaign_page, reference=reference, draw=draw,
            version=__version__, navigation=_navigation(), links_of=pages.links_of, Act=Act,
            next_step=next_step, step_after=step_after,
            static={name: f"/static/{name}?v={each.version}" for name, each in self.static.items()},
        )  # fmt: skip
        self._check_added()

    def _check_added(self) -> None:
        """Warn of templates of extensions that cannot be read. The core's are compiled when a page is first asked for:
        all at once they took half of the processor time of a server's start."""
        for name in self.templates.list_templates(["html"]):
            extension, is_added, _ = name.partition("/")
            try:
                if is_added:
                    self.templates.get_template(name)
            except (TemplateSyntaxError, UnicodeDecodeError) as error:
                extensions.warn(extension, f"its template `{name}` cannot be read: {error}")

    def show(self, ask: PageRequest, template: str, /, **values: Any) -> str:
        """A page for a user who is logged in."""

        def ago(at_us: int | None) -> Markup:
            return text.ago(at_us, ask.now_us)

        return self.templates.get_template(template).render(
            ask=ask,
            query=ask.query,
            ago=ago,
            here="/" + ask.query.path.split("/")[1],
            said=said(ask.query.values),
            **values,
        )

    def bare(self, template: str, /, **values: Any) -> str:
        """A page that needs no login: the login itself, errors."""
        return self.templates.get_template(template).render(**values)


def _added() -> dict[str, BaseLoader]:
    """The templates of extensions, by the first part of their pages' addresses."""
    found: dict[str, BaseLoader] = {}
    for name, group in pages.groups().items():
        try:
            found[name] = PackageLoader(group.package)
        except (ImportError, ValueError) as error:
            extensions.warn(name, f"its pages have no templates: {error}")
    return found


def _navigation() -> list[NavigationEntry]:
    """The core's pages, and those of extensions."""
    return [*NAVIGATION, *(each for group in pages.groups().values() for each in group.navigation)]


def _static(name: str, media: str) -> Static:
    content = (resources.files("tidemill.server.web") / "static" / name).read_bytes()
    return Static(content, media, hashlib.sha256(content).hexdigest()[:12])
