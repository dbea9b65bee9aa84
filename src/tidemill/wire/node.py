"""Agent <-> lead <-> pilot: the files of a fleet directory and the lines between lead and pilots.

The JSON Schema (`schema/node.json`) and the Rust types (`crates/wire/src/generated.rs`) are generated from this file by
`make gen`. On this wire every field is required or null; one that came later may be missing, which is null. Unknown
fields are ignored by readers, so that old and new versions can meet during an upgrade.

    FLEET/manifest.json            Manifest, written once by the agent before anything starts
    FLEET/secret                   64 hex digits, mode 0600: a process that knows it may join the lead
    FLEET/work/000001.json ...     WorkFile, temp + rename, numbered without gaps; the lead reads them in order
    FLEET/lead.json                LeadAddress, temp + rename, by the lead when it listens
    FLEET/journal/lead-N.log       framed records of lead incarnation N
    FLEET/journal/PILOT.log        framed records that a pilot could not hand to the lead; PILOT as in `pilot_id`
    FLEET/peers/SHA256           without a lead: which pilots hold this file (crates/pilot/src/lead/board.rs)
    FLEET/bundle/PILOT.tar .idx    the pilot's outputs and logs (plain tar) and framed IndexEntry lines
    FLEET/STOP                     exists: pilots and lead drain and leave
    FLEET/alive.json               Alive, temp + rename, by the agent every few seconds: its sign of life
    FLEET/at_work.json             AtWork, temp + rename, by the lead, when it changes; not synced
    FLEET/monitor/WRITER.K.log   framed Sampled lines of lead-N, or of a pilot without a lead, in segments: one that is
                                 full is followed by K + 1, and K - 1 is removed; not synced, and lost without harm

A framed line is 8 lower-case hex digits of the CRC-32 (zlib) of the JSON text, a space, the JSON text, a newline. A
line that does not check, and everything after it in that file at that moment, is a torn tail: read again later.

Lead and pilots exchange lines over TCP: a line that starts with `{` is a message (`m` names it), any other line is
a framed record, which the lead appends to its journal as it is. A connection starts with

    lead  -> pilot  Challenge
    pilot -> lead   Hello     proof = hex HMAC-SHA256(secret, "pilot:" lead_nonce ":" pilot_nonce ":" pilot)
    lead  -> pilot  Welcome   proof = hex HMAC-SHA256(secret, "lead:" pilot_nonce ":" lead_nonce ":" pilot)

where secret is the text of the secret file without its newline. A pilot's record numbers start at 1 and have no gaps;
the lead acknowledges the highest number that is fsynced; the agent merges all journals by (pilot, number).
"""

from __future__ import annotations

import msgspec

from tidemill.wire.staged import ApprovedFile as ApprovedFile
from tidemill.wire.staged import ImageUse as ImageUse
from tidemill.wire.staged import IoArea as IoArea
from tidemill.wire.staged import NamedPaths as NamedPaths
from tidemill.wire.staged import NodeCacheDef as NodeCacheDef
from tidemill.wire.staged import Piece as Piece
from tidemill.wire.staged import SetupDef as SetupDef
from tidemill.wire.staged import StagedFile as StagedFile
from tidemill.wire.staged import View as View

FORMAT = 1


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How pilots and lead behave."""

    record_flush_ms: int  #: longest time before the lead fsyncs, and pilots send, new records
    output_flush_s: float  #: longest time before a pilot fsyncs what is new in its bundle
    queue_s: float  #: the lead keeps this many seconds of work queued at each core
    idle_s: float  #: a pilot leaves after this time without work
    #: a pilot that hears nothing from its lead for this time drains, as does a lead that hears nothing from its agent
    dead_after_s: float
    drain_s: float  #: a draining pilot kills what still runs after this time, returns its events and leaves
    top_up_s: float  #: without a lead: interval at which pilots check for work files
    #: paths agreed with the centre's staff: where one exists, lead and pilots drain and leave
    stop_files: list[str]
    pilot_grace_s: float  #: the lead reassigns the work of a pilot that was disconnected for this time
    isolation: str  #: `required`, `preferred`, or `off`: no namespaces, and set-user-id programs work
    affinity: str  #: `spread`, `compact`, `core` (one slot per physical core) or `none`
    #: GPUs that pilots use of a node at most; None = what the batch system gives, and without one all that there are
    gpus_per_node: int | None = None
    #: what payloads see of the network whose application says nothing, as in a program; pilots try it when they start
    network: str | None = None
    mask: list[str]  #: paths that payloads must not see (the site directory, keys, tokens)
    batch_commands: list[str]  #: names of programs that payloads must not start
    bundle_bytes_max: int  #: a bundle that is larger is closed and a new one started
    #: outputs of one payload or range, holes included; None = 20 GB (a manifest of an older version)
    output_bytes_max: int | None = None
    store_mb: int  #: memory limit of the images and shared inputs that a node holds; 0 = half of its memory
    images: str  #: how images are shown: `auto`, `fuse`, `unpack` or `relocate`
    #: pilots get files from each other; false = TCP between nodes is closed, each reads for itself
    peers: bool
    stage_readers: int  #: pilots that read the same file from the shared file system at the same time
    #: inputs of `fast_bytes` and more are held here instead of in memory; may name variables
    fast_dir: str | None
    fast_bytes: int
    #: a fast directory of the node for work directories that do not fit into memory; None = they fail
    spill: str | None
    io: list[IoArea]  #: what this fleet may do to shared file systems, until a work file says otherwise
    #: payloads span nodes: slots have no namespaces and live below this directory, which all nodes see
    scratch: str | None
    view: View | None = None  #: what payloads see; None = as a fleet of an older version: their slot alone
    #: a pilot waits at most this time for failing storage of outputs, then drains; None = 300 s
    storage_patience_s: float | None = None
    #: the cache of each node; None = there is none, or others run it
    node_cache: NodeCacheDef | None = None
    #: interval at which a pilot measures its node, in seconds; None or 0 = never
    monitor_interval_s: float | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """FLEET/manifest.json."""

    format: int
    fleet: str
    site: str
    epoch: int
    created_us: int
    lead: str  #: `beside` (the agent starts it) or `none` (files only, no TCP)
    listen: str  #: address the lead listens on; port 0 = any
    settings: Settings


class LeadAddress(msgspec.Struct, frozen=True, kw_only=True):
    """FLEET/lead.json."""

    format: int
    incarnation: int
    host: str
    port: int
    pid: int


class Alive(msgspec.Struct, frozen=True, kw_only=True):
    """FLEET/alive.json. Readers compare `count` with its previous value: clocks of hosts differ."""

    format: int
    epoch: int
    count: int


class OutputDef(msgspec.Struct, frozen=True, kw_only=True):
    """An output file of each range; `path` is relative to the work directory and may hold templates."""

    name: str
    path: str


class InputDef(msgspec.Struct, frozen=True, kw_only=True):
    """A staged input. `shared`: `path` is the file. `each`: `path` is a directory whose entry `EVENT` is the file of
    that event, or None if the lines are not files; `lines`: a file with one line per event of `first..`, or None.
    `url`, `urls`: the same, for files that the program opens; in place of each missing file, `.NAME.url` (`.EVENT.url`)
    holds its URL and, in the next line, the route in words. It is read before each payload, since it may change. A URL
    with `{node_cache}` as its host leads to the node's cache; two more lines give the route if no cache runs."""

    name: str
    kind: str
    path: str | None
    lines: str | None
    first: int
    sha256: str | None
    bytes: int | None  #: of `path`, where it is a file
    #: some of its URLs are of the node's cache, which the pilot starts then; None = none is
    node_cache: bool | None = None
    #: `path` is a tar archive, and payloads find a directory with its files; None, false = the file as it is
    unpack: bool | None = None


FORM_BASE = 1 << 40
"""Numbers of jobs are below it. A fleet knows each form of a job by its `form_number`, because forms have different
programs."""

FORMS_MAX = 1 << 19
STEPS_FROM = 1 << 60
"""From here on, numbers are those of the site's own steps, which have one form."""


def form_number(job: int, form: int) -> int:
    """The number by which a fleet knows a form of a job; form 0 has the job's own number."""
    return job if job >= STEPS_FROM else job + form * FORM_BASE


def job_of(number: int) -> int:
    """The job of a `form_number`."""
    return number if number >= STEPS_FROM else number % FORM_BASE


def form_of(number: int) -> int:
    """The form of a `form_number`."""
    return 0 if number >= STEPS_FROM else number // FORM_BASE


class AtWork(msgspec.Struct, frozen=True, kw_only=True):
    """FLEET/at_work.json: the jobs that pilots run now. For people; a lead that has ended leaves its last one."""

    format: int
    incarnation: int
    jobs: str  #: numbers (`form_number`) as interval text, such as `1-5,7`; where it would be too long, the lowest ones


class LineRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a line of an input, or a field of it, must match whole before it becomes part of an argument."""

    #: a regular expression in the syntax that RE2 and the slot read alike; None = as a text parameter without a pattern
    pattern: str | None
    bytes_max: int  #: longer ones are refused


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What many jobs share: an approved application, resolved by the agent."""

    program: int
    app: str
    version: str
    executable: str
    mode: str  #: `command` or `range`
    env: dict[str, str]  #: the whole environment besides what the pilot adds (PATH, HOME, TMPDIR, TIDEMILL_*)
    cores: int
    memory_mb: int
    devices: dict[str, int]
    scratch_mb: int
    #: `open`: the node's network; `closed`: a loopback of the slot's own, or the pilot refuses; `preferred`: that
    #: loopback where the kernel has network namespaces; None = `open`, as agents without this field meant
    network: str | None = None
    processes_max: int | None = None  #: processes and threads of a slot at most; None = by its cores
    event_s: float  #: estimate, until measured
    chunk_max: int  #: events per payload (command mode) or range (range mode) at most
    range_s: float  #: aimed length of one range or chunk
    timeout_s: float | None
    looping_s: float | None
    ready_timeout_s: float
    log_bytes_max: int
    outputs: list[OutputDef]
    stdout_output: bool  #: stdout is an output named `stdout`
    batch_commands: bool
    pass_env: list[str]  #: variables taken over from the pilot's environment; `NAME*` = all that start so
    images: list[ImageUse]
    files: list[ApprovedFile]  #: executable, script, container; empty for an ad-hoc command
    #: words before the executable, the first an absolute path: the container's runtime and options; the slot fills in
    #: `{work}`, `{tmp}`, `{home}` and `{own}`, its directories as payloads see them
    wrap: list[str]
    setup: SetupDef | None
    trace_first: bool  #: this version has no profile yet: trace a first payload on each node
    trace_every: int  #: and trace every N-th payload after it; 0 = none
    start_ops: dict[str, int]  #: metadata operations that one start is expected to cost, per IoArea name
    start_bytes: dict[str, int]  #: bytes that it is expected to read there at most
    named: NamedPaths | None = None  #: what the site's own files name for it; None = nothing
    #: its inputs are only in their own directory (`TIDEMILL_INPUTS`); None, false = in the work directory, too
    inputs_apart: bool | None = None
    #: rules for `{line}`, by `line`, and for `{column.K}`, by K; `*` = for all others; None = lines are not checked
    lines: dict[str, LineRule] | None = None
    #: directory that begins `PYTHONPATH`, before what lines of `setup` put there; None = as `env` and `setup` say
    python_first: str | None = None


class JobDef(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a fleet. `argv` holds templates that the slot fills per payload; parameters are already in it.

    Templates: `{event}` `{first_event}` `{last_event}` `{events}` `{seed}` `{line}` `{column.K}` `{cores}`
    `{input.NAME}`; `{{` and `}}` are braces. In `argv`, `env` and the program's `executable` a character U+10FF80 to
    U+10FFFF stands for one byte, 0x80 to 0xFF: so bytes that are not UTF-8 reach the payload.
    """

    job: int
    program: int
    argv: list[str]
    env: dict[str, str]
    params: str  #: JSON object text, sent to range-mode payloads
    seed_base: int
    events: int
    inputs: list[InputDef]
    #: most of its events that run at the same time, each in a payload of its own; None = no limit
    at_once: int | None = None
    umask: int | None = None  #: of its payloads; None = the pilot's
    #: soft limits of its payloads, as setrlimit(2) counts, by lower-case name such as `stack`; -1 = unlimited. A hard
    #: limit of the slot bounds each; None = the pilot's
    limits: dict[str, int] | None = None


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive events of one job given to the fleet. `chunk_max` overrides the program's (bisecting a failure)."""

    grant: int
    job: int
    first: int
    count: int
    chunk_max: int | None


class Withdrawn(msgspec.Struct, frozen=True, kw_only=True):
    """Events of an earlier grant that their owner has canceled: lead and pilots stop them, and return nothing."""

    grant: int
    job: int
    first: int
    count: int


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Without a lead: which of a work file's grants are for which allocation (its pilot of rank 0)."""

    allocation: str
    grants: list[int]  #: places in the file's `grants`, from 0: one grant may be in parts for several


class End(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation ends earlier than its pilots learned at their start."""

    allocation: str
    at_us: int  #: microseconds since 1970


class WorkFile(msgspec.Struct, frozen=True, kw_only=True):
    """FLEET/work/NNNNNN.json. Each program and job is sent once, before or with the first grant that needs it.

    Without a lead, each file has all programs and jobs that its own grants need, a grant may be repeated in parts, and
    an allocation gets work only from the file that it is started with (`--work-from`) and from files that were written
    after its pilot's first record was read. `ended` revokes what earlier files gave to that allocation.
    """

    format: int
    number: int
    programs: list[Program]
    jobs: list[JobDef]
    grants: list[Grant]
    cancel_jobs: list[int]  #: stop their payloads, return nothing
    shares: list[Share]  #: empty where there is a lead
    ended: list[str]  #: allocations that the batch system has ended: their work goes to other pilots at once
    ends: list[End]  #: limits that were shortened
    io: list[IoArea] | None  #: the fleet's new share of what the centre allows; None = unchanged
    leave: list[str]  #: allocations whose pilots are to drain and leave
    drain: bool  #: hand out nothing more; pilots return what they have not started, then leave
    close: bool  #: nothing will follow: the lead may exit once all pilots have left
    #: stop the payloads that run any of these; the other events of such a payload run again. None = nothing
    withdrawn: list[Withdrawn] | None = None


# ---- records: pilot -> journal -------------------------------------------------------------------------------------


class OutputRef(msgspec.Struct, frozen=True, kw_only=True):
    """Where an output of a range is: `length` bytes at `offset` of FLEET/bundle/`bundle`."""

    name: str
    bundle: str
    offset: int
    length: int
    sha256: str
    #: permission bits that the payload gave its file; None = not known, or not a file
    mode: int | None = None


class Started(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="started"):
    """First record of a pilot."""

    p: str
    s: int
    allocation: str
    node: str
    rank: int
    cores: int
    memory_mb: int
    isolation: str  #: `namespaces` or `subreaper`
    note: str
    version: str
    at_us: int


class Done(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="done"):
    """Events `first..first+count-1` are kept. Times and bytes are sums over the record's payloads, `rss_kb` is the
    maximum of one."""

    p: str
    s: int
    grant: int
    job: int
    first: int
    count: int
    payloads: int  #: processes that ended (command mode); 0 while a range-mode payload goes on
    slot: int
    started_us: int
    ended_us: int
    wall_us: int  #: payload time
    setup_us: int  #: part of it before `ready`
    user_us: int
    system_us: int
    rss_kb: int
    read_bytes: int | None
    write_bytes: int | None
    outputs: list[OutputRef]


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="failed"):
    """Events `first..first+count-1` ran and failed; `event` is the culprit where the payload named it."""

    p: str
    s: int
    grant: int
    job: int
    first: int
    count: int
    event: int | None
    failure: str  #: a FailureClass
    message: str
    exit_status: int | None
    signal: int | None
    stderr_tail: str
    slot: int
    at_us: int
    wall_us: int
    user_us: int
    system_us: int


class Returned(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="returned"):
    """Events that were handed to the pilot and not run (or whose payload was killed by us): someone else may."""

    p: str
    s: int
    grant: int
    job: int
    first: int
    count: int
    reason: str  #: `yield`, `walltime`, `drain`, `cancel`, `no_fit`, `slot`


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="ended"):
    """Last record of a pilot. Occupancy of the allocation = busy_us / slot_us."""

    p: str
    s: int
    reason: str  #: `idle`, `yield`, `walltime`, `drain`, `stop`, `dead_lead`, `dead_agent`, `late`, `error`
    message: str
    busy_us: int
    slot_us: int
    at_us: int


class Noted(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="noted"):
    """How something was done on this node, for people and for budgets."""

    p: str
    s: int
    topic: str  #: `image`, `stage`, `setup`, `trace`, `io`, `spill`, `memory`, `cache`
    program: int | None
    job: int | None
    mode: str  #: which way was taken, such as `fuse`, `unpack`, `relocate`; `peer`, `shared`
    message: str  #: why, in words; empty where there is nothing to say
    numbers: dict[str, int]
    at_us: int


Record = Started | Done | Failed | Returned | Ended | Noted


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a bundle. `kind`: `output`, `log` (names `stdout`, `stderr`) or `profile` (of a traced payload)."""

    kind: str
    job: int
    first: int
    count: int
    name: str
    offset: int
    length: int
    sha256: str
    truncated: bool


# ---- messages: lead <-> pilot --------------------------------------------------------------------------------------


class Challenge(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="challenge"):
    """First line of a lead; `nonce` is 32 hex digits."""

    nonce: str
    incarnation: int


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="hello"):
    """First line of a pilot. `held`: work of earlier connections that it still has."""

    pilot: str
    allocation: str
    rank: int
    node: str
    version: str
    nonce: str
    proof: str
    held: list[Grant]
    serves: str | None  #: `host:port` where other nodes get files from it
    acked: int | None = None  #: highest number of its records that a lead has acknowledged; None = not said
    journaled: int | None = None  #: the same of its own journal; a lead that knows as much reads none


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="welcome"):
    """The lead knows the secret too; `acked` is the pilot's highest record number that is safe."""

    proof: str
    acked: int


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="ask"):
    """What the pilot could take. Stands until answered by Work; a later Ask replaces it."""

    cores: int  #: of the whole pilot
    memory_mb: int
    devices: dict[str, int]
    remaining_s: float | None  #: until its walltime ends
    queued_s: float  #: seconds of work that it has queued per core
    #: that neither a payload nor what is queued will use; None = not said. Only the pilot knows: what has run there is
    #: outstanding until its outputs are durable
    idle_cores: int | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="work"):
    """Work for a pilot. Each program and job is sent once per connection, before or with the grant that needs it."""

    programs: list[Program]
    jobs: list[JobDef]
    grants: list[Grant]


class Ack(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="ack"):
    """Records up to this number are fsynced in the lead's journal."""

    acked: int


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="cancel"):
    """Stop these jobs' payloads and forget their work. `events`: the same for parts of grants; None = of none."""

    jobs: list[int]
    events: list[Withdrawn] | None = None


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="drain"):
    """Return what has not started, finish the rest, leave."""

    reason: str


class Deadline(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="deadline"):
    """The pilot's allocation ends at this time, in microseconds since 1970, at the latest."""

    at_us: int


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="beat"):
    """I live. Both sides send it when they have sent nothing else for a third of dead_after_s, at most 10 s."""

    at_us: int


class Seek(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="seek"):
    """The pilot needs a file in memory: who has it? Answered by Source."""

    sha256: str
    bytes: int
    areas: dict[str, int]  #: bytes of it that lie in an IoArea whose bytes are bounded, per name
    avoid: list[str]  #: addresses that did not serve it
    serves: str | None  #: as in Hello, which may have been said before there was one


class Source(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="source"):
    """Where to get it: from the first of these that serves it (it may itself still be receiving). Empty = read the
    shared file system."""

    sha256: str
    peers: list[str]


class Holds(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="holds"):
    """The pilot has the whole file (`held`), or will never have it (not `held`): who waits for it asks again."""

    sha256: str
    held: bool
    serves: str | None  #: as in Seek


class Want(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="want"):
    """The pilot asks to start `starts` payloads of a program whose starts cost shared file systems operations or bytes.
    Remains in force until permitted; a later Want of the same program replaces it."""

    program: int
    starts: int


class Permit(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="permit"):
    """So many starts may begin now. `over`: areas where its nodes do more than a fleet may, in thousandths of that."""

    program: int
    starts: int
    over: dict[str, int]  #: of operations
    over_bytes: dict[str, int]


class Usage(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="usage"):
    """What a node's own counters say that it did to shared file systems since its last Usage."""

    over_us: int
    ops: dict[str, int]  #: per IoArea name
    bytes: dict[str, int]
    starts: dict[str, int]  #: payloads started since, per program number


FIGURES = (
    "cores", "user_ms", "nice_ms", "system_ms", "iowait_ms", "idle_ms", "steal_ms", "load_milli", "running",
    "cpu_some_us", "memory_some_us", "memory_full_us", "io_some_us", "io_full_us",
    "memory_kb", "used_kb", "cached_kb", "swap_kb", "swapped_in", "swapped_out", "major_faults",
    "net_in_bytes", "net_out_bytes", "net_in_packets", "net_out_packets",
    "disk_read_bytes", "disk_write_bytes", "disk_ops", "disk_busy_ms",
    "nfs_ops", "nfs_again", "nfs_read_bytes", "nfs_write_bytes", "nfs_rtt_us",
    "lustre_ops", "lustre_read_bytes", "lustre_write_bytes",
    "gpus", "gpu_busy", "gpu_memory_mb",
    "nfs_opens", "nfs_closes", "lustre_opens", "lustre_closes",
)  # fmt: skip
"""What `Sampled.figures` holds, in this order; a later version adds at the end. Counters are differences over the
interval, the others are as they stand at its end.

Times of all cores together in ms; `system_ms` with interrupts. `load_milli` is the load average of one minute in
thousandths. `*_some_us`, `*_full_us`: time for which some, or all, processes waited (pressure stall information).
`swapped_*` and `major_faults` are pages. `disk_busy_ms` is of the busiest disk. `nfs_again` are retransmissions,
`nfs_rtt_us` the mean round trip of requests. `*_opens` and `*_closes` are of all mounts; unknown where one of them does
not count them. `gpu_busy` is the mean of all GPUs in percent."""

MOUNT_FIGURES = ("ops", "again", "read_bytes", "write_bytes", "rtt_us", "opens", "closes")
"""What `Sampled.mounts` holds of a mount, in this order, with the meanings of `nfs_*` of `FIGURES`; a later version
adds at the end."""


class Sampled(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag="sampled"):
    """What a node did since its last Sampled. A message, not a record: it has no number, nothing waits for it, and it
    is dropped if the lead is unreachable or behind. The lead adds `p` and writes it to FLEET/monitor."""

    p: str  #: the pilot; the lead fills it in
    node: str
    at_us: int  #: end of the interval, microseconds since 1970
    over_us: int  #: its length
    figures: list[
        int | None
    ]  #: as FIGURES; None or behind its end = unknown here, or a counter that went back
    #: busy share of each core as a digit, tenths rounded down; of more than 128 cores neighbours share one
    cores: str
    mounts: dict[str, list[int | None]]  #: by mount point, those few that were used most; as MOUNT_FIGURES


LeadMessage = Challenge | Welcome | Work | Ack | Cancel | Drain | Deadline | Beat | Source | Permit
PilotMessage = Hello | Ask | Beat | Seek | Holds | Want | Usage | Sampled


def pilot_id(allocation: str, rank: int, incarnation: int) -> str:
    """Name of one start of a pilot: `ALLOCATION.rRANK.iINCARNATION`, also the stem of its files."""
    return f"{allocation}.r{rank}.i{incarnation}"
