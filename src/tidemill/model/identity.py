"""Who asks, and what that one may do. Pure: knows neither connections nor files, and nothing else decides rights.

Three roles (decision 12 of the design): a submitter has jobs, a site runs them, an operator looks after the server.
The server's own user, on the private Unix socket or with the secret of a private file, is all three.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Role(StrEnum):
    """The part that a client plays for the server."""

    SUBMITTER = "submitter"
    SITE = "site"
    OPERATOR = "operator"


class Via(StrEnum):
    """How the asker's identity was shown."""

    SOCKET = "socket"  #: the kernel names the user at the other end of the Unix socket
    SECRET = "secret"  #: the secret of a private file
    CERTIFICATE = "certificate"  #: the key of a client certificate
    TOKEN = "token"  #: a signed bearer token


class Act(StrEnum):
    """What a request asks for. Every route and every message is one of these."""

    HEALTH = "health"
    SCHEMA = "schema"
    SUBMIT = "submit"
    READ = "read"  #: jobs, campaigns, failures, outputs, counts, the feed of changes
    LOG = "log"
    CANCEL = "cancel"
    RETRY = "retry"
    ACCEPT = "accept"
    DISCARD = "discard"
    SITES = "sites"  #: sites and the applications that they offer
    ALLOCATIONS = "allocations"
    DRAIN = "drain"
    RESET = "reset"
    SHARES = "shares"
    SYNC = "sync"
    AUDIT = "audit"
    METRICS = "metrics"


class Reach(StrEnum):
    """How far a right goes."""

    NONE = "none"
    OWN = "own"  #: only what carries the name of the one who asks
    ALL = "all"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The author of a request. `name`: of the person (owner of campaigns) or of the site."""

    role: Role
    name: str
    via: Via
    expires_us: int | None = None  #: when the credential ends; None = it does not
    scopes: frozenset[str] = frozenset()  #: of a token; it may do no more than they say
    subject: str = ""  #: as the credential names it: distinguished name, or `issuer sub`
    credential: str = ""  #: serial number of the certificate or `jti` of the token: what a revocation names

    @property
    def is_local_admin(self) -> bool:
        """Whether this is the server's own user, who is all three roles."""
        return self.via in (Via.SOCKET, Via.SECRET)


class AccessDecision(msgspec.Struct, frozen=True):
    """Whether it may, and why (not)."""

    allowed: bool
    reason: str


LOCAL = Identity(role=Role.OPERATOR, name="", via=Via.SOCKET, subject="the server's own user")
"""The server's own user."""

_S, _T, _O = Role.SUBMITTER, Role.SITE, Role.OPERATOR
_ALL, _OWN, _NONE = Reach.ALL, Reach.OWN, Reach.NONE

#: The whole table of rights. A submitter's work is his own; a site sees and reports itself; an operator sees all, stops
#: and restarts work, but has none of his own. Who is two of these holds two credentials.
RIGHTS: dict[Act, dict[Role, Reach]] = {
    Act.HEALTH: {_S: _ALL, _T: _ALL, _O: _ALL},
    Act.SCHEMA: {_S: _ALL, _T: _ALL, _O: _ALL},
    Act.SUBMIT: {_S: _OWN, _T: _NONE, _O: _NONE},
    Act.READ: {_S: _OWN, _T: _NONE, _O: _ALL},
    Act.LOG: {_S: _OWN, _T: _NONE, _O: _ALL},
    Act.CANCEL: {_S: _OWN, _T: _NONE, _O: _ALL},
    Act.RETRY: {_S: _OWN, _T: _NONE, _O: _ALL},
    Act.ACCEPT: {_S: _OWN, _T: _NONE, _O: _ALL},
    Act.DISCARD: {_S: _OWN, _T: _NONE, _O: _ALL},
    Act.SITES: {_S: _ALL, _T: _OWN, _O: _ALL},
    Act.ALLOCATIONS: {_S: _NONE, _T: _OWN, _O: _ALL},
    Act.DRAIN: {_S: _NONE, _T: _NONE, _O: _ALL},
    Act.RESET: {_S: _NONE, _T: _NONE, _O: _ALL},
    Act.SHARES: {_S: _NONE, _T: _NONE, _O: _ALL},
    Act.SYNC: {_S: _NONE, _T: _OWN, _O: _NONE},
    Act.AUDIT: {_S: _NONE, _T: _OWN, _O: _ALL},
    Act.METRICS: {_S: _NONE, _T: _NONE, _O: _ALL},
}

#: What a token must say, whatever the role of its holder: the capabilities of the WLCG Common JWT Profile 1.0, section
#: "Capability based authorization" (doi:10.5281/zenodo.3460258).
SCOPES: dict[Act, str] = {
    Act.SUBMIT: "compute.create",
    Act.READ: "compute.read",
    Act.LOG: "compute.read",
    Act.SITES: "compute.read",
    Act.CANCEL: "compute.cancel",
    Act.RETRY: "compute.modify",
    Act.ACCEPT: "compute.modify",
    Act.DISCARD: "compute.cancel",
    Act.ALLOCATIONS: "compute.read",
    Act.AUDIT: "compute.read",
    Act.METRICS: "compute.read",
    Act.DRAIN: "compute.modify",
    Act.RESET: "compute.modify",
    Act.SHARES: "compute.modify",
    Act.SYNC: "compute.modify",
}


def reach(identity: Identity, act: Act) -> Reach:
    """How far an identity's right to an act goes."""
    if identity.is_local_admin:
        return Reach.ALL
    if identity.via is Via.TOKEN:
        wanted = SCOPES.get(act)
        if wanted is not None and wanted not in identity.scopes:
            return Reach.NONE
    return RIGHTS[act][identity.role]


def may(identity: Identity, act: Act, *, owner: str | None = None, site: str | None = None) -> AccessDecision:
    """Whether an identity may do this, to something of this owner or of this site.

    Without `owner` and `site`: whether there is anything at all that he may do this to; what is shown must then be
    limited to `own_name`.
    """
    allowed = reach(identity, act)
    who = f"{identity.role} `{identity.name}`"
    if allowed is Reach.NONE:
        wanted = SCOPES.get(act)
        if RIGHTS[act][identity.role] is not Reach.NONE and wanted is not None:
            return AccessDecision(False, f"the token of {who} lacks the scope `{wanted}`")
        return AccessDecision(False, f"{who} may not {_WORDS[act]}: that is not for the role {identity.role}")
    thing = site if identity.role is Role.SITE else owner
    if allowed is Reach.OWN and thing is not None and thing != identity.name:
        return AccessDecision(False, f"{who} may not {_WORDS[act]}: it is another's")
    return AccessDecision(True, "everything" if identity.is_local_admin else f"{identity.role}, {allowed}")


def own_name(identity: Identity, act: Act) -> str | None:
    """The name that what is shown must carry; None = all may be shown. Ask `may` first."""
    return identity.name if reach(identity, act) is Reach.OWN else None


_WORDS: dict[Act, str] = {
    Act.HEALTH: "ask whether the server works",
    Act.SCHEMA: "read the description of the API",
    Act.SUBMIT: "submit jobs",
    Act.READ: "see these jobs",
    Act.LOG: "read this job's output",
    Act.CANCEL: "cancel this",
    Act.RETRY: "retry this",
    Act.ACCEPT: "accept this",
    Act.DISCARD: "discard this",
    Act.SITES: "see sites",
    Act.ALLOCATIONS: "see allocations",
    Act.DRAIN: "drain a site",
    Act.RESET: "reset a site",
    Act.SHARES: "give owners their shares",
    Act.SYNC: "speak for this site",
    Act.AUDIT: "ask who ran what",
    Act.METRICS: "read the metrics",
}
