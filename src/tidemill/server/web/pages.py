"""What pages are, and those that extensions add: by an entry point an extension has all addresses below one name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tidemill import extensions
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
        if name in CORE or name in found:
            extensions.warn(extension, f"its pages `/{name}` are left out: that name is taken")
        elif not isinstance(group, PageGroup) or not all(is_below(each.path, name) for each in group.pages):
            extensions.warn(extension, f"its pages are left out: not all are below `/{name}`")
        else:
            found[name] = group
    return found


def is_below(path: str, name: str) -> bool:
    """Whether an address is `/NAME`, or below it."""
    return path == f"/{name}" or path.startswith(f"/{name}/")


def added() -> list[Page]:
    """The pages of extensions; where one is known and not there, pages that say so."""
    absent = sorted(extensions.names(extensions.PAGES) - groups().keys() - CORE)
    return [
        *(page for group in groups().values() for page in group.pages),
        *(Page(path, _absent(name)) for name in absent for path in (f"/{name}", f"/{name}/{{rest:str}}")),
    ]


def names() -> frozenset[str]:
    """The first parts of all addresses of pages, also of extensions that are not there."""
    return CORE | extensions.names(extensions.PAGES)


def links_of(about: JobDetail | CampaignRow) -> list[PageLink]:
    """What extensions say on the page of a job or campaign."""
    found = []
    for group in groups().values():
        if isinstance(about, JobDetail):
            found.append(group.of_job(about) if group.of_job else None)
        else:
            found.append(group.of_campaign(about) if group.of_campaign else None)
    return [each for each in found if each is not None]


def _absent(name: str) -> Callable[[PageRequest, Pages], str]:
    def show(_ask: PageRequest, _made: Pages) -> str:
        error = extensions.missing(extensions.PAGES, name)
        if error is None:
            raise MissingError(f"the page `/{name}` cannot be shown", hint="the server's log says why")
        raise MissingError(f"{error.message} at the server", hint=error.hint)

    return show
