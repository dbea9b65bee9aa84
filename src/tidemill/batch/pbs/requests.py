"""What a waiting job asks for, and which hosts have it. Pure.

PBS prints a request as `2:ncpus=16:mem=4gb+1:ncpus=1:Qlist=fast` (pbs_resources(7)), where the server has added the
default chunks of queues. It compares each resource by its type (src/scheduler/check.cpp, check_avail_resources): text
as a member of the node's list, a boolean that is not set as False, an amount that is not set as 0. Types are not shown,
so they follow from the values of all nodes, and from what nodes show as used. A word that no host fulfils may be one
that we misread: it rules out none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from tidemill.batch.pbs.replies import Record, read_amount, read_number, read_size_mb, table_of, text_of
from tidemill.batch.pbs.resources import Resource
from tidemill.model.machine import JobChunk, Node

_CHUNKS = re.compile(r"""(?:"[^"]*"|'[^']*'|[^+"'])+""")
_WORDS = re.compile(r"""(?:"[^"]*"|'[^']*'|[^:"'])+""")
_COUNTED = {"ncpus", "mpiprocs", "ompthreads", "mem"}
"""Words of a chunk that say how many of them fit on a node, not on which."""

_NAMES = {"host", "vnode"}

_TRUE, _FALSE = {"true", "t", "y", "1"}, {"false", "f", "n", "0"}
"""src/lib/Libattr/attr_fn_b.c; nodes show `True` and `False`."""


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`words`: the resources that all chunks name; not exact if chunks differ in them."""

    chunks: tuple[JobChunk, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    is_exact: bool = True
    is_scattered: bool = False  #: each chunk on a host of its own


def read_request(job: Record, hosts: Hosts | None = None) -> JobRequest:
    """The request of a job; no chunks where the server shows none. `hosts`: they show what chunks use up."""
    place = text_of(job, "Resource_List", "place").split(":")
    is_by_vnode = "vscatter" in place and hosts is not None and hosts.are_divided
    chunks: list[JobChunk] = []
    words: list[tuple[tuple[str, str], ...]] = []
    for text in _CHUNKS.findall(text_of(job, "Resource_List", "select")):
        pieces = [each.strip() for each in _WORDS.findall(text)]
        if not pieces:
            continue
        has_count = "=" not in pieces[0]
        pairs = [each.partition("=") for each in pieces[has_count:]]
        wanted = {name: value.strip("\"'") for name, _, value in pairs}
        amounts = {name: hosts.used_up(name, value) for name, value in wanted.items()} if hosts else {}
        chunk = JobChunk(
            count=max(1, read_number(pieces[0])) if has_count else 1,
            cores=max(0, read_number(wanted.get("ncpus", "1"))),
            memory_mb=read_size_mb(wanted.get("mem", "")),
            amounts=tuple((name, amount) for name, amount in sorted(amounts.items()) if amount),
            may_share=None not in amounts.values() and not is_by_vnode,
        )
        chunks.append(chunk)
        words.append(tuple(sorted(pair for pair in wanted.items() if pair[0] not in _COUNTED)))
    return JobRequest(
        chunks=(_packed(chunks),) if "pack" in place and chunks else tuple(chunks),
        words=words[0] if len(set(words)) == 1 else (),
        is_exact=len(set(words)) < 2,
        is_scattered="scatter" in place or ("vscatter" in place and not is_by_vnode),
    )


class Hosts:
    """The hosts of a machine by what their vnodes show, and what waiting jobs ask of them."""

    def __init__(self, vnodes: Mapping[str, Record]) -> None:
        self.of_vnode = hosts_of(vnodes)
        self._vnodes = vnodes
        self._names = set(self.of_vnode.values())
        self.are_divided = len(self._names) < len(vnodes)  #: some have several vnodes
        cores = Counter[str]()
        for vnode, each in vnodes.items():
            cores[self.of_vnode[vnode]] += read_number(text_of(each, "resources_available", "ncpus"))
        ((self._cores, _),) = Counter(cores.values()).most_common(1) or [(0, 0)]
        self._shown = set[str]().union(*(table_of(each, "resources_available") for each in vnodes.values()))
        self._used = set[str]().union(*(table_of(each, "resources_assigned") for each in vnodes.values()))
        self._resources: dict[str, Resource] = {}
        self._asked: dict[tuple[str, str], str] = {}
        self._defined: set[str] = set()
        self._stocked: set[str] = set()
        self._features: dict[str, set[str]] = {}
        self._amounts: dict[str, set[str]] = {}

    def features(self, request: JobRequest) -> tuple[str, ...]:
        """The words of a request that tell hosts apart, as features or amounts of these. Linear in hosts for a word
        that differs from all before in which hosts have it."""
        return tuple(filter(None, (self._feature(name, value) for name, value in request.words)))

    def width(self, request: JobRequest) -> int:
        """Hosts for a request, if all were like most; 0 if it has no chunks."""
        return sum(
            -(-chunk.count // (1 if request.is_scattered else self._chunks_per_host(chunk)))
            for chunk in request.chunks
        )

    def used_up(self, name: str, value: str) -> int | None:
        """How much of a resource a chunk uses up, cores and memory aside; None if that is not clear."""
        if name in _COUNTED or name in _NAMES:
            return 0
        amount = self._resource(name).used_up(value)
        if amount:
            self._stocked.add(name)
        return amount

    def with_asked(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes with all that was asked for and that they have."""
        alike: dict[tuple[str, ...], tuple[str, ...]] = {}
        stocks: dict[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]] = {}
        names = sorted(self._stocked)
        used = self._in_use(names)
        result = []
        for node in nodes:
            if names:
                totals = ((name, self._resource(name).totals.get(node.name, 0)) for name in names)
                stock = tuple(each for each in totals if each[1])
                free = tuple((name, max(0, total - used[node.name, name])) for name, total in stock)
                node = msgspec.structs.replace(
                    node, stock=stocks.setdefault(stock, stock), stock_free=stocks.setdefault(free, free)
                )
            if node.name in self._features or node.name in self._amounts:
                features = tuple(sorted({*node.features, *self._features.get(node.name, ())}))
                amounts = tuple(sorted(self._amounts.get(node.name, ())))
                node = msgspec.structs.replace(
                    node,
                    features=alike.setdefault(features, features),
                    amounts=alike.setdefault(amounts, amounts),
                )
            result.append(node)
        return result

    def _in_use(self, names: Collection[str]) -> Counter[tuple[str, str]]:
        """How much of each resource is used on each host. What is not set is 0, as for the scheduler."""
        used = Counter[tuple[str, str]]()
        for vnode, each in self._vnodes.items():
            for name in names:
                amount = read_amount(text_of(each, "resources_assigned", name))
                if amount:
                    used[self.of_vnode[vnode], name] += amount
        return used

    def _chunks_per_host(self, chunk: JobChunk) -> int:
        if not chunk.may_share:
            return 1
        wanted = dict(chunk.amounts) | {"mem": chunk.memory_mb * 1_000_000}
        usual = [(self._resource(name).usual, amount) for name, amount in wanted.items() if amount]
        fits = self._cores // max(1, chunk.cores)
        return max(1, min([fits, *(has // amount for has, amount in usual if has)]))

    def _feature(self, name: str, value: str) -> str:
        if (name, value) not in self._asked:
            self._asked[name, value] = self._find(name, value)
        return self._asked[name, value]

    def _find(self, name: str, value: str) -> str:
        """A word of the request as a feature; empty if all hosts have it, or none."""
        if name in _NAMES:
            host = self.of_vnode.get(value, "") if name == "vnode" else value
            return self._define(f"host={host}", {host} & self._names)
        shown = self._resource(name)
        if shown.is_boolean and value.lower() in _TRUE | _FALSE:
            wanted = "True" if value.lower() in _TRUE else "False"
            return self._define(f"{name}={wanted}", shown.hosts(wanted))
        level = shown.level(value)
        if level is None:
            return self._define(f"{name}={value}", shown.hosts(value))
        feature = f"{name}>={shown.spell(level)}"
        if feature in self._defined:
            return feature
        return self._define(feature, shown.hosts_with(level), is_amount=True)

    def _define(self, feature: str, found: set[str], *, is_amount: bool = False) -> str:
        if not found or found == self._names:
            return ""
        for host in found:
            (self._amounts if is_amount else self._features).setdefault(host, set()).add(feature)
        self._defined.add(feature)
        return feature

    def _resource(self, name: str) -> Resource:
        if name not in self._resources:
            by_host: dict[str, list[str]] = {}
            for vnode, each in self._vnodes.items() if name in self._shown else ():
                shown = text_of(each, "resources_available", name)
                by_host.setdefault(self.of_vnode[vnode], []).append(shown)
            self._resources[name] = Resource(name, by_host, is_used=name in self._used)
        return self._resources[name]


def hosts_of(vnodes: Mapping[str, Record]) -> dict[str, str]:
    """The host of each vnode."""
    return {vnode: text_of(each, "resources_available", "host") or vnode for vnode, each in vnodes.items()}


def _packed(chunks: Iterable[JobChunk]) -> JobChunk:
    """All chunks on one host."""
    chunks = list(chunks)
    amounts = Counter[str]()
    for each in chunks:
        for name, amount in each.amounts:
            amounts[name] += each.count * amount
    return JobChunk(
        count=1,
        cores=sum(each.count * each.cores for each in chunks),
        memory_mb=sum(each.count * each.memory_mb for each in chunks),
        amounts=tuple(amounts.items()),
    )
