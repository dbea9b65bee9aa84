"""What pages are, and those that extensions add: by an entry point an extension has all addresses below one name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill import extensions, log
from tidemill.model.identity import Act
from tidemill.server.errors import MissingError
from tidemill.wire.api import CampaignRow, JobDetail

if TYPE_CHECKING:
    from tidemill.server.web.render import PageRequest, Pages

#: the first parts of the core's addresses
CORE = frozenset(
    {
        "", "jobs", "campaigns", "sites", "applications", "allocations", "transfers", "failures", "nodes", "search",
        "caches", "hospital", "login", "logout", "live", "static",
    }
)  # fmt: skip
TAKEN = CORE | {"v1", "health", "metrics", "schema"}  #: and those of the API, which has no pages
_LOG = log.Log("server")


class Page(NamedTuple):
    """A page: `show` is run in a reader's thread."""

    path: str
    show: Callable[[PageRequest, Pages], str]


class PageLink(NamedTuple):
    """A sentence that ends with a link."""

    text: str
    name: str
    address: str


class NavigationEntry(NamedTuple):
    """A page of the navigation, and what one must be allowed to see."""

    path: str
    name: str
    act: Act


class PageGroup(NamedTuple):
    """The pages of an extension, under the name of its entry point: all addresses begin with `/NAME`."""

    pages: tuple[Page, ...]
    package: str  #: it has a folder `templates`; `show` names one of them as `NAME/x.html`
    navigation: tuple[NavigationEntry, ...] = ()
    of_job: Callable[[JobDetail], PageLink | None] | None = None  #: what a job's page says of it
    of_campaign: Callable[[CampaignRow], PageLink | None] | None = None


@cache
def groups() -> dict[str, PageGroup]:
    """The pages of extensions by the first part of their addresses. What the core has stays the core's."""
    found: dict[str, PageGroup] = {}
    for extension, name, group in extensions.entries(extensions.PAGES):
        if name in found or name in TAKEN:
            extensions.warn(extension, f"its pages `/{name}` are left out: that name is taken")
        elif not _is_served(name, group):
            extensions.warn(extension, f"its pages are left out: not all are below `/{name}`")
        else:
            found[name] = group
    return found


def _is_served(name: str, group: Any) -> bool:
    """Whether this is a group whose pages, also those of the navigation, are below `/NAME`."""
    return (
        extensions.is_name(name)
        and isinstance(group, PageGroup)
        and all(isinstance(each, Page) and is_below(each.path, name) for each in group.pages)
        and all(
            isinstance(each, NavigationEntry) and is_below(each.path, name) and isinstance(each.act, Act)
            for each in group.navigation
        )
    )


def is_below(path: str, name: str) -> bool:
    """Whether an address is `/NAME`, or below it."""
    return path == f"/{name}" or path.startswith(f"/{name}/")


def added() -> list[Page]:
    """The pages of extensions; where one is known and not there, pages that say so."""
    return [
        *(page for group in groups().values() for page in group.pages),
        *(
            Page(path, _absent(name))
            for name in sorted(_absent_names())
            for path in (f"/{name}", f"/{name}/{{rest:str}}")
        ),
    ]


def names() -> frozenset[str]:
    """The first parts of all addresses of pages, also of extensions that are not there."""
    return CORE | groups().keys() | _absent_names()


def _absent_names() -> set[str]:
    """Names of pages that an extension has, here or elsewhere, and that are not shown."""
    absent = extensions.names(extensions.PAGES) - groups().keys() - TAKEN
    return {name for name in absent if extensions.is_name(name)}


def links_of(about: JobDetail | CampaignRow) -> list[PageLink]:
    """What extensions say on the page of a job or campaign. One that fails says nothing, and the log says why."""
    result = []
    for name, group in groups().items():
        say: Callable[[Any], Any] | None = group.of_job if isinstance(about, JobDetail) else group.of_campaign
        try:
            link = say(about) if say else None
        except Exception as error:  # noqa: BLE001 -- an extension's code may raise anything
            _LOG.warning("page.link_failed", name=name, error=repr(error))
            continue
        if isinstance(link, PageLink):
            result.append(link)
    return result


def _absent(name: str) -> Callable[[PageRequest, Pages], str]:
    def show(_ask: PageRequest, _made: Pages) -> str:
        error = extensions.missing(extensions.PAGES, name)
        if error is None:
            raise MissingError(f"the page `/{name}` cannot be shown", hint="the server's log says why")
        raise MissingError(f"{error.message} at the server", hint=error.hint)

    return show
