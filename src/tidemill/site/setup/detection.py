"""From what was found out about a machine to the values of a site.toml, each with its reason. Pure."""

from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidemill.batch.contract import Facts, PartitionFacts
from tidemill.batch.kinds import ACCOUNT, ShellSetting, kind_of
from tidemill.model.quantities import bytes_text, counted_text
from tidemill.site.setup.advice import advise
from tidemill.site.setup.finding import Finding
from tidemill.site.setup.limitations import WITHOUT_NAMESPACES
from tidemill.site.setup.probe import NodeFacts

NODES_FIRST = 4  #: nodes of a site that was just enabled, until raised
NODE_HOURS_FIRST = 100  #: node-hours of it
WALLTIME_FIRST_S = 3600.0
SHM_MB_MIN = 1_000
CLOCK_OFFSET_MAX_S = 5.0  #: times in logs become misleading beyond that; deadlines have minutes
PARTITIONS_SHOWN = 6
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}")


class Choice(NamedTuple):
    """A value for site.toml (dotted key, TOML text; empty = the default stays) and where it comes from."""

    key: str
    value: str
    origin: str


class SiteWishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the person has said, or what the home shows."""

    server: str
    batch: str
    batch_origin: str = "as you said"
    name: str | None = None
    partition: str | None = None
    account: str | None = None
    node_hours: float | None = None  #: of the account, as site.toml says
    contact: str = ""
    stop_file: str | None = None
    enable: bool = False
    personal: bool = False  #: the server is the user's own: it takes jobs from no other user
    nodes: int | None = None
    shell: list[ShellSetting] = []  #: settings of the shell that no option replaces


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """This host."""

    host: str
    machine: str  #: as `uname -m`
    binary: str  #: path of tidemill-node
    binary_machine: str  #: architecture in its ELF header, as `uname -m` would say; empty = unknown


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """Values and findings; `tail` is TOML behind everything else."""

    choices: list[Choice]
    findings: list[Finding]
    tail: str = ""


def suggest(
    wishes: SiteWishes, login: Login, facts: Facts | None = None, node: NodeFacts | None = None
) -> Suggestion:
    """What a site.toml should say. `facts` None: the local batch system; `node` None: there was no probe."""
    choices = _of_person(wishes, facts)
    if facts is None:
        nodes = wishes.nodes or 1
        choices.append(
            Choice("local.nodes", str(nodes), "as you said" if wishes.nodes else "one, to begin with")
        )
        return Suggestion(choices=choices, findings=[])
    partition, about = choose_partition(facts, wishes.partition)
    choices += _of_cluster(wishes, facts, partition, about)
    choices += [
        Choice(each.key, each.toml, f"`{each.source}` of your shell")
        for each in wishes.shell
        if each.key != ACCOUNT
    ]
    choices += _of_network(node)
    return Suggestion(
        choices=choices,
        findings=[*of_facts(facts, partition, wishes), *of_node(node, login)],
        tail=_account_table(wishes, facts),
    )


# ---- values --------------------------------------------------------------------------------------------


def _of_person(wishes: SiteWishes, facts: Facts | None) -> list[Choice]:
    name, origin = _name(wishes, facts)
    choices = [
        Choice("name", json.dumps(name), origin),
        Choice("server", json.dumps(wishes.server), "your own server" if wishes.personal else "as you said"),
    ]
    if wishes.personal:
        choices += [
            Choice("data_roots", '["/"]', "your files: only you can reach your own server"),
            Choice(
                "allow_adhoc", "true", "commands of yours need no approval: only you can reach this server"
            ),
        ]
    else:
        choices.append(Choice("data_roots", "[]", "none yet: name the directories that hold data"))
    if wishes.contact:
        choices.append(Choice("contact", json.dumps(wishes.contact), "as you said"))
    if wishes.stop_file:
        choices.append(
            Choice(
                "stop_file", json.dumps(wishes.stop_file), "as you said; give the path to the centre's staff"
            )
        )
    return choices


def _name(wishes: SiteWishes, facts: Facts | None) -> tuple[str, str]:
    if wishes.name:
        return wishes.name, "as you said"
    cluster = "" if facts is None else facts.scheduler.get("ClusterName", "")
    if NAME.fullmatch(cluster):
        return cluster, f"the cluster's name, as {facts.system if facts else ''} reports it"
    return wishes.batch, "the batch system's: `--name` gives a better one"


def choose_partition(facts: Facts, named: str | None) -> tuple[PartitionFacts | None, str]:
    """The partition to ask for nodes in, None where there is none to use; and why this one."""
    by_name = {each.name: each for each in facts.partitions}
    if named is not None:
        return by_name.get(named), "as you said"
    usable = [each for each in facts.partitions if each.usable and each.nodes]
    default = [each for each in usable if each.is_default]
    if default:
        return default[0], f"the default of {facts.system}"
    if usable:
        largest = max(usable, key=lambda each: each.nodes)
        return largest, "the largest that you may use; there is no default one"
    return None, "none that you may use was found"


def _of_cluster(
    wishes: SiteWishes, facts: Facts, partition: PartitionFacts | None, about: str
) -> list[Choice]:
    mode = (
        ("run", "you said --enable")
        if wishes.enable
        else ("observe", "a new site only looks: it submits nothing")
    )
    choices = [
        Choice("mode", json.dumps(mode[0]), f"{mode[1]}; `tidemill site enable` changes it"),
        Choice("batch", json.dumps(wishes.batch), f"{wishes.batch_origin}: {facts.system}"),
        Choice(
            "nodes_max",
            str(wishes.nodes or NODES_FIRST),
            "few, until you raise it: `tidemill site enable --nodes N`",
        ),
        Choice(
            "harvest.node_hours_max",
            str(NODE_HOURS_FIRST),
            "few, until you raise it: `tidemill site enable --node-hours H`",
        ),
    ]
    name = partition.name if partition else wishes.partition or ""
    choices.append(Choice("cluster.partition", json.dumps(name), about))
    if partition and partition.walltime_max_s and partition.walltime_max_s < WALLTIME_FIRST_S:
        limit = max(10, int(partition.walltime_max_s))
        choices.append(Choice("walltime_s", str(limit), f"the limit of partition `{partition.name}`"))
    if facts.others_hidden:
        choices.append(
            Choice(
                "harvest.policy",
                '"windows"',
                "regular jobs are hidden here: the agent could not see which jobs to yield to",
            )
        )
    if wishes.account is None:
        told = (
            f"the batch system's default; yours: {', '.join(facts.accounts)}"
            if facts.accounts
            else "none was seen"
        )
        choices.append(Choice("accounts", "", told))
    choices += [Choice(*each) for each in kind_of(wishes.batch).choices(facts)]
    if facts.qos:
        choices.append(Choice("cluster.qos", "", f"the default; you may use: {', '.join(facts.qos)}"))
    return choices


def _of_network(node: NodeFacts | None) -> list[Choice]:
    if node is None or not node.network:
        why = "no probe has run" if node is None else "the probe had no means to connect"
        return [
            Choice(
                "harvest.tcp", '"nodes"', f"unknown ({why}): work travels by files, which works everywhere"
            )
        ]
    if not node.reached:
        return [
            Choice(
                "harvest.tcp",
                '"nodes"',
                f"compute node {node.host} reached this host on none of its addresses",
            )
        ]
    address = node.reached[0]
    listen = f"[{address}]:0" if ":" in address else f"{address}:0"
    return [
        Choice("lead_listen", json.dumps(listen), f"compute node {node.host} reached this host there"),
        Choice("harvest.tcp", "", f"compute node {node.host} reaches this host"),
    ]


def _account_table(wishes: SiteWishes, facts: Facts) -> str:
    if wishes.account is None:
        return ""
    origin = next(
        (f"`{each.source}` of your shell" for each in wishes.shell if each.key == ACCOUNT), "as you said"
    )
    return (
        "[[accounts]]\n"
        f"# -> {origin}; seen of yours: {', '.join(facts.accounts) or 'none'}\n"
        f"name = {json.dumps(wishes.account)}\n"
        "# What is left of the grant, in node-hours. -> unknown: write it here, nothing is asked for beyond it\n"
        f"node_hours = {NODE_HOURS_FIRST}\n"
    )


# ---- findings ------------------------------------------------------------------------------------------


def of_facts(facts: Facts, partition: PartitionFacts | None, wishes: SiteWishes) -> list[Finding]:
    """What the batch system's answers mean for us."""
    findings = [Finding("batch system", "ok", facts.system)]
    if facts.starts_nothing:
        findings.append(
            Finding(
                "scheduler",
                "fail",
                f"{facts.starts_nothing}: jobs wait, and none starts",
                "inform the centre's staff; Tidemill resumes by itself when the scheduler runs again",
            )
        )
    findings.append(_partition_finding(facts, partition, wishes))
    others = [each for each in facts.partitions if partition is None or each.name != partition.name]
    if others:
        shown = ", ".join(_short(each) for each in others[:PARTITIONS_SHOWN])
        more = f" and {len(others) - PARTITIONS_SHOWN} more" if len(others) > PARTITIONS_SHOWN else ""
        findings.append(Finding("other partitions", "ok", shown + more))
    gentle = [
        each.name
        for each in others
        if each.usable and each.preempted and partition and each.tier < partition.tier
    ]
    if gentle and not (partition and partition.preempted):
        findings.append(
            Finding(
                "gentler",
                "ok",
                f"jobs in `{gentle[0]}` give way to those in `{partition.name if partition else ''}`",
                f"`--partition {gentle[0]}`: the scheduler then helps to keep others from waiting",
            )
        )
    findings.append(_account_finding(facts, wishes))
    findings += _submit_findings(facts, partition, wishes)
    is_slurm = wishes.batch == "slurm"
    if facts.others_hidden:
        why = " (PrivateData=jobs)" if is_slurm else ""
        findings.append(
            Finding(
                "regular jobs",
                "warn",
                f"hidden{why}: policy `windows` takes only what no plan needs",
                "ask the staff to show them to you: then Tidemill can yield nodes to them, and uses more",
            )
        )
    if facts.array_max <= 1 and kind_of(wishes.batch).has_arrays:
        why = " (MaxArraySize 0 to 2)" if is_slurm else ""
        findings.append(
            Finding(
                "arrays",
                "warn",
                f"switched off{why}: one command submits one allocation, and a plan few of them",
                "nothing to do: Tidemill works without arrays",
            )
        )
    limits = _limits(facts, partition)
    if limits:
        findings.append(Finding("limits", "ok", "; ".join(limits)))
    told = [note for note in facts.notes if not (facts.others_hidden and "hidden" in note)]
    findings += [Finding("note", "ok", note) for note in told]
    return findings


def _submit_findings(facts: Facts, partition: PartitionFacts | None, wishes: SiteWishes) -> list[Finding]:
    """Why a submission would be refused, or would wait for ever."""
    if facts.refused:
        return [
            Finding(
                "submit",
                "fail",
                f"a job of one node would be refused: {facts.refused}",
                advise(facts.refused) or "ask the centre's staff, with these words",
            )
        ]
    yours = facts.accounts if wishes.account is None else [wishes.account]
    if partition is None or not partition.accounts or not yours or set(yours) & set(partition.accounts):
        return []
    return [
        Finding(
            "submit",
            "warn",
            f"partition {partition.name} runs jobs of these accounts only: {', '.join(partition.accounts)}",
            f"yours: {', '.join(yours)}; name another partition, or ask the centre's staff",
        )
    ]


def _limits(facts: Facts, partition: PartitionFacts | None) -> list[str]:
    """Limits of jobs: numbers of them, the partition's nodes, those of accounts and QOS."""
    numbers = [
        f"{name} {value}"
        for name, value in (("jobs", facts.jobs_max), ("submitted", facts.submits_max))
        if value
    ]
    limits = [f"of yours at once: {', '.join(numbers)}"] if numbers else []
    if partition is not None and partition.width_max is not None and partition.width_max < partition.nodes:
        limits.append(f"partition {partition.name}: {counted_text(partition.width_max, 'node')} of a job")
    return limits + facts.limits


def _partition_finding(facts: Facts, partition: PartitionFacts | None, wishes: SiteWishes) -> Finding:
    names = ", ".join(each.name for each in facts.partitions) or "none"
    if partition is None and wishes.partition is not None:
        return Finding(
            "partition", "fail", f"there is no `{wishes.partition}`; there are: {names}",
            "set `partition` in [cluster] of site.toml; `tidemill site init` takes `--partition NAME`",
        )  # fmt: skip
    if partition is None:
        why = "; ".join(f"{each.name}: {each.why_not}" for each in facts.partitions if each.why_not)
        return Finding(
            "partition",
            "fail",
            f"none that you may use{': ' + why if why else ''}",
            "ask the centre's staff for access",
        )
    if not partition.usable:
        why = partition.why_not or "not usable"
        return Finding("partition", "fail", f"{partition.name}: {why}", advise(why) or f"others: {names}")
    return Finding("partition", "ok", _long(partition))


def _long(partition: PartitionFacts) -> str:
    words = [f"{partition.name}: {partition.nodes} nodes"]
    if partition.cores_per_node:
        words.append(f"of {partition.cores_per_node} cores")
    if partition.memory_mb_per_node:
        words.append(f"and {bytes_text(partition.memory_mb_per_node * 1e6)}")
    text = " ".join(words)
    if partition.walltime_max_s:
        text += f", up to {partition.walltime_max_s / 3600:.3g} h"
    if partition.preempted:
        text += f", may be preempted ({partition.preempted})"
    return text


def _short(partition: PartitionFacts) -> str:
    return f"{partition.name} ({partition.nodes} nodes" + ("" if partition.usable else ", not for you") + ")"


def _account_finding(facts: Facts, wishes: SiteWishes) -> Finding:
    listed = ", ".join(facts.accounts)
    if wishes.account is not None and facts.accounts and wishes.account not in facts.accounts:
        return Finding(
            "account",
            "fail",
            f"`{wishes.account}` is not one of yours: {listed}",
            "set `name` in [[accounts]] of site.toml (`tidemill site init` takes `--account NAME`), or ask its holder",
        )
    if wishes.account is not None and wishes.node_hours is not None:
        return Finding(
            "account", "ok", f"{wishes.account}; its `node_hours` in site.toml: {wishes.node_hours:g}"
        )
    if wishes.account is not None:
        return Finding("account", "ok", f"{wishes.account}; its grant is unknown: {NODE_HOURS_FIRST} node-hours until "
                       "you write it into site.toml")  # fmt: skip
    if not facts.accounts:
        return Finding("account", "ok", "no accounting was seen; jobs go without an account")
    return Finding("account", "ok", f"{facts.accounts[0]} (your default)" + (f"; also {', '.join(facts.accounts[1:])}"
                   if facts.accounts[1:] else ""))  # fmt: skip


def of_node(node: NodeFacts | None, login: Login) -> list[Finding]:
    """What the probe's answers mean for us."""
    if node is None:
        return [
            Finding(
                "compute node", "warn", "not inspected: no probe ran", "`tidemill doctor --compute` runs one"
            )
        ]
    findings = [_machine_finding(node, login), _binary_finding(node, login)]
    if node.site == "writable":
        findings.append(Finding("site there", "ok", "the site directory is seen and can be written"))
    else:
        findings.append(
            Finding(
                "site there",
                "fail",
                f"the site directory is {node.site or 'unknown'} on {node.host}",
                "make the site on a file system that compute nodes see and may write to: `tidemill site init DIR`",
            )
        )
    findings += [
        _network_finding(node),
        *_home_finding(node),
        *_memory_findings(node),
        _namespace_finding(node),
        *([] if node.untold is None else [node.untold]),
    ]
    if node.clock_offset_s is not None and abs(node.clock_offset_s) > CLOCK_OFFSET_MAX_S:
        findings.append(
            Finding(
                "clock",
                "warn",
                f"{node.host} is {node.clock_offset_s:+.0f} s off this host",
                "report it to the staff: NTP",
            )
        )
    return findings


def _machine_finding(node: NodeFacts, login: Login) -> Finding:
    cores = f", {node.cores} cores" if node.cores else ""
    memory = f", {bytes_text(node.memory_mb * 1e6)}" if node.memory_mb else ""
    text = f"{node.host}: {node.machine}{cores}{memory}, Linux {node.kernel}"
    return Finding("compute node", "ok", text + (" (this host)" if node.host == login.host else ""))


def _binary_finding(node: NodeFacts, login: Login) -> Finding:
    if node.node_status == 0:
        return Finding("binary there", "ok", f"{node.node_said} runs on {node.host}")
    said = node.node_said or "it printed nothing"
    if login.binary_machine and login.binary_machine != node.machine:
        return Finding(
            "binary there", "fail",
            f"Tidemill's binary is for {login.binary_machine}, {node.host} is {node.machine}: {said}",
            f"link a tidemill-node for {node.machine} (its wheel, installed elsewhere) into the site directory",
        )  # fmt: skip
    if node.node_status == 127 or "not found" in said:
        hint = "install Tidemill on a file system that compute nodes see, or copy tidemill-node into the site directory"
    elif node.node_status == 126 or "ermission denied" in said:
        hint = "is that file system mounted noexec there? Copy tidemill-node elsewhere, and link it into the site"
    else:
        hint = "copy a tidemill-node that runs there into the site directory"
    return Finding("binary there", "fail", f"{login.binary} does not run on {node.host}: {said}", hint)


def _network_finding(node: NodeFacts) -> Finding:
    if not node.network:
        return Finding(
            "network", "warn", "unknown: the node has no bash to try it with; work travels by files",
            "if you know that nodes reach this host: set `lead_listen`, and `tcp = \"open\"` in [harvest]",
        )  # fmt: skip
    if node.reached:
        address = node.reached[0]
        kind = "loopback" if ipaddress.ip_address(address).is_loopback else "TCP"
        return Finding("network", "ok", f"compute nodes reach this host at {address} ({kind})")
    return Finding(
        "network", "warn", "compute nodes do not reach this host: work travels by files, once a minute",
        "where a firewall lets some ports through: `lead_listen = \"ADDRESS:PORT\"`, `tcp = \"open\"` in [harvest]",
    )  # fmt: skip


def _home_finding(node: NodeFacts) -> list[Finding]:
    if node.home == "writable" and node.home_same is not False:
        return [Finding("home there", "ok", "your home directory is the same")]
    what = (
        "another directory" if node.home_same is False and node.home != "absent" else node.home or "unknown"
    )
    return [
        Finding(
            "home there",
            "warn",
            f"your home directory is {what} on {node.host}",
            "commands of `tidemill run` and their files must lie on a file system that nodes see",
        )
    ]


def _memory_findings(node: NodeFacts) -> list[Finding]:
    places = ", ".join(f"{path} ({kind}, {bytes_text(free * 1e6)} free)" for path, kind, free in node.places)
    found: list[Finding] = []
    if node.shm_mb is None:
        found.append(
            Finding(
                "node memory",
                "warn",
                "no /dev/shm to write to: work directories go to /tmp",
                "report it to the staff",
            )
        )
    else:
        state = "ok" if node.shm_mb >= SHM_MB_MIN else "warn"
        found.append(
            Finding(
                "node memory", state, f"/dev/shm has {bytes_text(node.shm_mb * 1e6)} for work directories"
            )
        )
    if places:
        found.append(Finding("node disks", "ok", places))
    return found


def _namespace_finding(node: NodeFacts) -> Finding:
    if node.namespaces.startswith("yes"):
        return Finding("isolation", "ok", "payloads get their own processes, /tmp and home directory")
    if node.namespaces.startswith("no"):
        return Finding(
            "isolation", "warn", f"the kernel of {node.host} gives no user namespaces: {node.namespaces[4:]}",
            f"{WITHOUT_NAMESPACES}; a site that serves others refuses to run. Ask for user namespaces (sysctl "
            "user.max_user_namespaces)",
        )  # fmt: skip
    return Finding(
        "isolation", "warn", f"could not be tried on {node.host}: {node.namespaces or 'no answer'}"
    )


_MACHINES = {62: "x86_64", 183: "aarch64", 21: "ppc64le", 243: "riscv64"}  # e_machine of <elf.h>


def elf_machine(path: Path) -> str:
    """The architecture that a program is built for, as `uname -m` names it; empty if it is unknown."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError:
        return ""
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return ""
    return _MACHINES.get(int.from_bytes(head[18:20], "little"), "")
