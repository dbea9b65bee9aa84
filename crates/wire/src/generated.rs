// Generated from src/tidemill/wire/node.py by scripts/gen_wire.py: do not edit, run `make gen`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub const FORMAT: u64 = 1;

pub const FORM_BASE: u64 = 1_099_511_627_776;

pub const STEPS_FROM: u64 = 1_152_921_504_606_846_976;

/// `NETWORK_TYPES` of src/tidemill/model/file_systems.py.
pub const NETWORK_TYPES: [&str; 21] = [
    "9p", "afs", "beegfs", "ceph", "cifs", "cvmfs2", "daos", "dvs", "gfs2", "glusterfs", "gpfs",
    "lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
];

/// `FIGURES` of src/tidemill/wire/node.py.
pub const FIGURES: [&str; 44] = [
    "cores", "user_ms", "nice_ms", "system_ms", "iowait_ms", "idle_ms", "steal_ms", "load_milli",
    "running", "cpu_some_us", "memory_some_us", "memory_full_us", "io_some_us", "io_full_us",
    "memory_kb", "used_kb", "cached_kb", "swap_kb", "swapped_in", "swapped_out", "major_faults",
    "net_in_bytes", "net_out_bytes", "net_in_packets", "net_out_packets", "disk_read_bytes",
    "disk_write_bytes", "disk_ops", "disk_busy_ms", "nfs_ops", "nfs_again", "nfs_read_bytes",
    "nfs_write_bytes", "nfs_rtt_us", "lustre_ops", "lustre_read_bytes", "lustre_write_bytes", "gpus",
    "gpu_busy", "gpu_memory_mb", "nfs_opens", "nfs_closes", "lustre_opens", "lustre_closes",
];

/// `MOUNT_FIGURES` of src/tidemill/wire/node.py.
pub const MOUNT_FIGURES: [&str; 7] = [
    "ops", "again", "read_bytes", "write_bytes", "rtt_us", "opens", "closes",
];

/// A file of a program, as the site's staff approved it: the slot checks it before every start. `mtime_ns` and
/// `ctime_ns`: of a file that is too large for every slot to read; its owner can set the first, no user the second.
/// None: it was not noted, and is not compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ApprovedFile {
    pub path: String,
    pub sha256: String,
    pub bytes: u64,
    pub mtime_ns: u64,
    pub ctime_ns: Option<u64>,
}

/// A squashfs image that payloads see in place of `areas` of the shared file system; `/sw/a` is `sw/a` in it. Names
/// that exist there and are not in it are links to `/tmp/.tidemill/real` + path, where payloads see the real tree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ImageUse {
    pub name: String,
    pub file: StagedFile,
    pub areas: Vec<String>,
    pub unpacked_bytes: u64,
}

/// A part of a shared file system and what the centre allows us there; None = no bound.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IoArea {
    pub name: String,
    pub prefixes: Vec<String>,
    /// metadata operations
    pub ops_per_s: Option<f64>,
    pub bytes_per_s: Option<f64>,
}

/// What an application file names, and what follows from it: its slot shows this, too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NamedPaths {
    /// read-only
    pub show: Vec<String>,
    /// as writable as they are
    pub write: Vec<String>,
    /// it mounts something itself, as runtimes of containers do: Landlock bounds no files
    pub may_mount: bool,
}

/// XRootD as the cache of each node: pilots start it when a job reads through it.
///
/// `config` and `authdb` hold `{dir}`, the cache's directory in node memory, and `{report}`, the UDP port on which the
/// pilot hears what it served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeCacheDef {
    pub name: String,
    /// `xrootd` by name or path
    pub program: String,
    /// of the node, in all
    pub memory_mb: u64,
    /// part of it for blocks on their way; the rest is for files
    pub ram_mb: u64,
    pub config: String,
    pub authdb: String,
    pub environment: BTreeMap<String, String>,
}

/// `length` bytes at `offset` of a file on the shared file system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    pub path: String,
    pub offset: u64,
    pub length: u64,
}

/// Shell lines that the site approved, such as `module load`. Run once per `key` and type of node, by the first
/// pilot that finds no `STORE/KEY.NODETYPE.json`; what they change in the environment is data for all later starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SetupDef {
    pub key: String,
    pub lines: Vec<String>,
    pub store: String,
    pub timeout_s: f64,
}

/// A file that nodes hold in memory: its pieces, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StagedFile {
    /// 64 hex digits, of the whole; also its name among nodes
    pub sha256: String,
    pub bytes: u64,
    pub pieces: Vec<Piece>,
}

/// What payloads of a site see of a node's file system besides their slot, and what they may change there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// the site runs jobs of others than its owner: everything outside of the slot is read-only
    pub shared: bool,
    /// of a person's own site: what is theirs below /tmp is shown, and writable
    pub own_tmp: bool,
    /// hidden, but for what is named: home directories, Tidemill's installation
    pub veils: Vec<String>,
    /// shown, and not to be written: Tidemill's installation
    pub keep: Vec<String>,
    /// named by the site: shown read-only where they would be hidden
    pub show: Vec<String>,
    /// named by the site: shown, and as writable as they are
    pub write: Vec<String>,
    /// hidden by their usual names: `~/.ssh`, `/tmp/krb5cc_*`
    pub credentials: Vec<String>,
    /// credentials that the owner of the site shows to their own programs
    pub allowed: Vec<String>,
}

/// How pilots and lead behave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// longest time before the lead fsyncs, and pilots send, new records
    pub record_flush_ms: u64,
    /// longest time before a pilot fsyncs what is new in its bundle
    pub output_flush_s: f64,
    /// the lead keeps this many seconds of work queued at each core
    pub queue_s: f64,
    /// a pilot leaves after this time without work
    pub idle_s: f64,
    /// a pilot that hears nothing from its lead for this time drains, as does a lead that hears nothing from its agent
    pub dead_after_s: f64,
    /// a draining pilot kills what still runs after this time, returns its events and leaves
    pub drain_s: f64,
    /// without a lead: interval at which pilots check for work files
    pub top_up_s: f64,
    /// paths agreed with the centre's staff: where one exists, lead and pilots drain and leave
    pub stop_files: Vec<String>,
    /// the lead reassigns the work of a pilot that was disconnected for this time
    pub pilot_grace_s: f64,
    /// `required`, `preferred`, or `off`: no namespaces, and set-user-id programs work
    pub isolation: String,
    /// `spread`, `compact`, `core` (one slot per physical core) or `none`
    pub affinity: String,
    /// GPUs that pilots use of a node at most; None = what the batch system gives, and without one all that there are
    pub gpus_per_node: Option<u64>,
    /// what payloads see of the network whose application says nothing, as in a program; pilots try it when they start
    pub network: Option<String>,
    /// paths that payloads must not see (the site directory, keys, tokens)
    pub mask: Vec<String>,
    /// names of programs that payloads must not start
    pub batch_commands: Vec<String>,
    /// a bundle that is larger is closed and a new one started
    pub bundle_bytes_max: u64,
    /// outputs of one payload or range, holes included; None = 20 GB (a manifest of an older version)
    pub output_bytes_max: Option<u64>,
    /// memory limit of the images and shared inputs that a node holds; 0 = half of its memory
    pub store_mb: u64,
    /// how images are shown: `auto`, `fuse`, `unpack` or `relocate`
    pub images: String,
    /// pilots get files from each other; false = TCP between nodes is closed, each reads for itself
    pub peers: bool,
    /// pilots that read the same file from the shared file system at the same time
    pub stage_readers: u64,
    /// inputs of `fast_bytes` and more are held here instead of in memory; may name variables
    pub fast_dir: Option<String>,
    pub fast_bytes: u64,
    /// a fast directory of the node for work directories that do not fit into memory; None = they fail
    pub spill: Option<String>,
    /// what this fleet may do to shared file systems, until a work file says otherwise
    pub io: Vec<IoArea>,
    /// payloads span nodes: slots have no namespaces and live below this directory, which all nodes see
    pub scratch: Option<String>,
    /// what payloads see; None = as a fleet of an older version: their slot alone
    pub view: Option<View>,
    /// a pilot waits at most this time for failing storage of outputs, then drains; None = 300 s
    pub storage_patience_s: Option<f64>,
    /// the cache of each node; None = there is none, or others run it
    pub node_cache: Option<NodeCacheDef>,
    /// interval at which a pilot measures its node, in seconds; None or 0 = never
    pub monitor_interval_s: Option<f64>,
}

/// FLEET/manifest.json.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u64,
    pub fleet: String,
    pub site: String,
    pub epoch: u64,
    pub created_us: u64,
    /// `beside` (the agent starts it) or `none` (files only, no TCP)
    pub lead: String,
    /// address the lead listens on; port 0 = any
    pub listen: String,
    pub settings: Settings,
}

/// FLEET/lead.json.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeadAddress {
    pub format: u64,
    pub incarnation: u64,
    pub host: String,
    pub port: u64,
    pub pid: u64,
}

/// FLEET/alive.json. Readers compare `count` with its previous value: clocks of hosts differ.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Alive {
    pub format: u64,
    pub epoch: u64,
    pub count: u64,
}

/// An output file of each range; `path` is relative to the work directory and may hold templates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutputDef {
    pub name: String,
    pub path: String,
}

/// A staged input. `shared`: `path` is the file. `each`: `path` is a directory whose entry `EVENT` is the file of
/// that event, or None if the lines are not files; `lines`: a file with one line per event of `first..`, or None.
/// `url`, `urls`: the same, for files that the program opens; in place of each missing file, `.NAME.url` (`.EVENT.url`)
/// holds its URL and, in the next line, the route in words. It is read before each payload, since it may change. A URL
/// with `{node_cache}` as its host leads to the node's cache; two more lines give the route if no cache runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InputDef {
    pub name: String,
    pub kind: String,
    pub path: Option<String>,
    pub lines: Option<String>,
    pub first: u64,
    pub sha256: Option<String>,
    /// of `path`, where it is a file
    pub bytes: Option<u64>,
    /// some of its URLs are of the node's cache, which the pilot starts then; None = none is
    pub node_cache: Option<bool>,
    /// `path` is a tar archive, and payloads find a directory with its files; None, false = the file as it is
    pub unpack: Option<bool>,
}

/// FLEET/at_work.json: the jobs that pilots run now. For people; a lead that has ended leaves its last one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AtWork {
    pub format: u64,
    pub incarnation: u64,
    /// numbers (`form_number`) as interval text, such as `1-5,7`; where it would be too long, the lowest ones
    pub jobs: String,
}

/// What a line of an input, or a field of it, must match whole before it becomes part of an argument.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LineRule {
    /// a regular expression in the syntax that RE2 and the slot read alike; None = as a text parameter without a pattern
    pub pattern: Option<String>,
    /// longer ones are refused
    pub bytes_max: u64,
}

/// What many jobs share: an approved application, resolved by the agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub program: u64,
    pub app: String,
    pub version: String,
    pub executable: String,
    /// `command` or `range`
    pub mode: String,
    /// the whole environment besides what the pilot adds (PATH, HOME, TMPDIR, TIDEMILL_*)
    pub env: BTreeMap<String, String>,
    pub cores: u64,
    pub memory_mb: u64,
    pub devices: BTreeMap<String, i64>,
    pub scratch_mb: u64,
    /// `open`: the node's network; `closed`: a loopback of the slot's own, or the pilot refuses; `preferred`: that
    /// loopback where the kernel has network namespaces; None = `open`, as agents without this field meant
    pub network: Option<String>,
    /// processes and threads of a slot at most; None = by its cores
    pub processes_max: Option<u64>,
    /// estimate, until measured
    pub event_s: f64,
    /// events per payload (command mode) or range (range mode) at most
    pub chunk_max: u64,
    /// aimed length of one range or chunk
    pub range_s: f64,
    pub timeout_s: Option<f64>,
    pub looping_s: Option<f64>,
    pub ready_timeout_s: f64,
    pub log_bytes_max: u64,
    pub outputs: Vec<OutputDef>,
    /// stdout is an output named `stdout`
    pub stdout_output: bool,
    pub batch_commands: bool,
    /// variables taken over from the pilot's environment; `NAME*` = all that start so
    pub pass_env: Vec<String>,
    pub images: Vec<ImageUse>,
    /// executable, script, container; empty for an ad-hoc command
    pub files: Vec<ApprovedFile>,
    /// words before the executable, the first an absolute path: the container's runtime and options; the slot fills in
    /// `{work}`, `{tmp}`, `{home}` and `{own}`, its directories as payloads see them
    pub wrap: Vec<String>,
    pub setup: Option<SetupDef>,
    /// this version has no profile yet: trace a first payload on each node
    pub trace_first: bool,
    /// and trace every N-th payload after it; 0 = none
    pub trace_every: u64,
    /// metadata operations that one start is expected to cost, per IoArea name
    pub start_ops: BTreeMap<String, i64>,
    /// bytes that it is expected to read there at most
    pub start_bytes: BTreeMap<String, i64>,
    /// what the site's own files name for it; None = nothing
    pub named: Option<NamedPaths>,
    /// its inputs are only in their own directory (`TIDEMILL_INPUTS`); None, false = in the work directory, too
    pub inputs_apart: Option<bool>,
    /// rules for `{line}`, by `line`, and for `{column.K}`, by K; `*` = for all others; None = lines are not checked
    pub lines: Option<BTreeMap<String, LineRule>>,
    /// directory that begins `PYTHONPATH`, before what lines of `setup` put there; None = as `env` and `setup` say
    pub python_first: Option<String>,
}

/// One job of a fleet. `argv` holds templates that the slot fills per payload; parameters are already in it.
///
/// Templates: `{event}` `{first_event}` `{last_event}` `{events}` `{seed}` `{line}` `{column.K}` `{cores}`
/// `{input.NAME}`; `{{` and `}}` are braces. In `argv`, `env` and the program's `executable` a character U+10FF80 to
/// U+10FFFF stands for one byte, 0x80 to 0xFF: so bytes that are not UTF-8 reach the payload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobDef {
    pub job: u64,
    pub program: u64,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// JSON object text, sent to range-mode payloads
    pub params: String,
    pub seed_base: u64,
    pub events: u64,
    pub inputs: Vec<InputDef>,
    /// most of its events that run at the same time, each in a payload of its own; None = no limit
    pub at_once: Option<u64>,
    /// of its payloads; None = the pilot's
    pub umask: Option<u64>,
    /// soft limits of its payloads, as setrlimit(2) counts, by lower-case name such as `stack`; -1 = unlimited. A hard
    /// limit of the slot bounds each; None = the pilot's
    pub limits: Option<BTreeMap<String, i64>>,
}

/// Consecutive events of one job given to the fleet. `chunk_max` overrides the program's (bisecting a failure).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    pub grant: u64,
    pub job: u64,
    pub first: u64,
    pub count: u64,
    pub chunk_max: Option<u64>,
}

/// Events of an earlier grant that their owner has canceled: lead and pilots stop them, and return nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Withdrawn {
    pub grant: u64,
    pub job: u64,
    pub first: u64,
    pub count: u64,
}

/// Without a lead: which of a work file's grants are for which allocation (its pilot of rank 0).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Share {
    pub allocation: String,
    /// places in the file's `grants`, from 0: one grant may be in parts for several
    pub grants: Vec<u64>,
}

/// An allocation ends earlier than its pilots learned at their start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub allocation: String,
    /// microseconds since 1970
    pub at_us: u64,
}

/// FLEET/work/NNNNNN.json. Each program and job is sent once, before or with the first grant that needs it.
///
/// Without a lead, each file has all programs and jobs that its own grants need, a grant may be repeated in parts, and
/// an allocation gets work only from the file that it is started with (`--work-from`) and from files that were written
/// after its pilot's first record was read. `ended` revokes what earlier files gave to that allocation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkFile {
    pub format: u64,
    pub number: u64,
    pub programs: Vec<Program>,
    pub jobs: Vec<JobDef>,
    pub grants: Vec<Grant>,
    /// stop their payloads, return nothing
    pub cancel_jobs: Vec<u64>,
    /// empty where there is a lead
    pub shares: Vec<Share>,
    /// allocations that the batch system has ended: their work goes to other pilots at once
    pub ended: Vec<String>,
    /// limits that were shortened
    pub ends: Vec<End>,
    /// the fleet's new share of what the centre allows; None = unchanged
    pub io: Option<Vec<IoArea>>,
    /// allocations whose pilots are to drain and leave
    pub leave: Vec<String>,
    /// hand out nothing more; pilots return what they have not started, then leave
    pub drain: bool,
    /// nothing will follow: the lead may exit once all pilots have left
    pub close: bool,
    /// stop the payloads that run any of these; the other events of such a payload run again. None = nothing
    pub withdrawn: Option<Vec<Withdrawn>>,
}

/// Where an output of a range is: `length` bytes at `offset` of FLEET/bundle/`bundle`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutputRef {
    pub name: String,
    pub bundle: String,
    pub offset: u64,
    pub length: u64,
    pub sha256: String,
    /// permission bits that the payload gave its file; None = not known, or not a file
    pub mode: Option<u64>,
}

/// First record of a pilot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Started {
    pub p: String,
    pub s: u64,
    pub allocation: String,
    pub node: String,
    pub rank: u64,
    pub cores: u64,
    pub memory_mb: u64,
    /// `namespaces` or `subreaper`
    pub isolation: String,
    pub note: String,
    pub version: String,
    pub at_us: u64,
}

/// Events `first..first+count-1` are kept. Times and bytes are sums over the record's payloads, `rss_kb` is the
/// maximum of one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    pub p: String,
    pub s: u64,
    pub grant: u64,
    pub job: u64,
    pub first: u64,
    pub count: u64,
    /// processes that ended (command mode); 0 while a range-mode payload goes on
    pub payloads: u64,
    pub slot: u64,
    pub started_us: u64,
    pub ended_us: u64,
    /// payload time
    pub wall_us: u64,
    /// part of it before `ready`
    pub setup_us: u64,
    pub user_us: u64,
    pub system_us: u64,
    pub rss_kb: u64,
    pub read_bytes: Option<u64>,
    pub write_bytes: Option<u64>,
    pub outputs: Vec<OutputRef>,
}

/// Events `first..first+count-1` ran and failed; `event` is the culprit where the payload named it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    pub p: String,
    pub s: u64,
    pub grant: u64,
    pub job: u64,
    pub first: u64,
    pub count: u64,
    pub event: Option<u64>,
    /// a FailureClass
    pub failure: String,
    pub message: String,
    pub exit_status: Option<i32>,
    pub signal: Option<i32>,
    pub stderr_tail: String,
    pub slot: u64,
    pub at_us: u64,
    pub wall_us: u64,
    pub user_us: u64,
    pub system_us: u64,
}

/// Events that were handed to the pilot and not run (or whose payload was killed by us): someone else may.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Returned {
    pub p: String,
    pub s: u64,
    pub grant: u64,
    pub job: u64,
    pub first: u64,
    pub count: u64,
    /// `yield`, `walltime`, `drain`, `cancel`, `no_fit`, `slot`
    pub reason: String,
}

/// Last record of a pilot. Occupancy of the allocation = busy_us / slot_us.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub p: String,
    pub s: u64,
    /// `idle`, `yield`, `walltime`, `drain`, `stop`, `dead_lead`, `dead_agent`, `late`, `error`
    pub reason: String,
    pub message: String,
    pub busy_us: u64,
    pub slot_us: u64,
    pub at_us: u64,
}

/// How something was done on this node, for people and for budgets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Noted {
    pub p: String,
    pub s: u64,
    /// `image`, `stage`, `setup`, `trace`, `io`, `spill`, `memory`, `cache`
    pub topic: String,
    pub program: Option<u64>,
    pub job: Option<u64>,
    /// which way was taken, such as `fuse`, `unpack`, `relocate`; `peer`, `shared`
    pub mode: String,
    /// why, in words; empty where there is nothing to say
    pub message: String,
    pub numbers: BTreeMap<String, i64>,
    pub at_us: u64,
}

/// One member of a bundle. `kind`: `output`, `log` (names `stdout`, `stderr`) or `profile` (of a traced payload).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IndexEntry {
    pub kind: String,
    pub job: u64,
    pub first: u64,
    pub count: u64,
    pub name: String,
    pub offset: u64,
    pub length: u64,
    pub sha256: String,
    pub truncated: bool,
}

/// First line of a lead; `nonce` is 32 hex digits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Challenge {
    pub nonce: String,
    pub incarnation: u64,
}

/// First line of a pilot. `held`: work of earlier connections that it still has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub pilot: String,
    pub allocation: String,
    pub rank: u64,
    pub node: String,
    pub version: String,
    pub nonce: String,
    pub proof: String,
    pub held: Vec<Grant>,
    /// `host:port` where other nodes get files from it
    pub serves: Option<String>,
    /// highest number of its records that a lead has acknowledged; None = not said
    pub acked: Option<u64>,
    /// the same of its own journal; a lead that knows as much reads none
    pub journaled: Option<u64>,
}

/// The lead knows the secret too; `acked` is the pilot's highest record number that is safe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    pub proof: String,
    pub acked: u64,
}

/// What the pilot could take. Stands until answered by Work; a later Ask replaces it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// of the whole pilot
    pub cores: u64,
    pub memory_mb: u64,
    pub devices: BTreeMap<String, i64>,
    /// until its walltime ends
    pub remaining_s: Option<f64>,
    /// seconds of work that it has queued per core
    pub queued_s: f64,
    /// that neither a payload nor what is queued will use; None = not said. Only the pilot knows: what has run there is
    /// outstanding until its outputs are durable
    pub idle_cores: Option<u64>,
}

/// Work for a pilot. Each program and job is sent once per connection, before or with the grant that needs it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub programs: Vec<Program>,
    pub jobs: Vec<JobDef>,
    pub grants: Vec<Grant>,
}

/// Records up to this number are fsynced in the lead's journal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ack {
    pub acked: u64,
}

/// Stop these jobs' payloads and forget their work. `events`: the same for parts of grants; None = of none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cancel {
    pub jobs: Vec<u64>,
    pub events: Option<Vec<Withdrawn>>,
}

/// Return what has not started, finish the rest, leave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drain {
    pub reason: String,
}

/// The pilot's allocation ends at this time, in microseconds since 1970, at the latest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Deadline {
    pub at_us: u64,
}

/// I live. Both sides send it when they have sent nothing else for a third of dead_after_s, at most 10 s.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    pub at_us: u64,
}

/// The pilot needs a file in memory: who has it? Answered by Source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seek {
    pub sha256: String,
    pub bytes: u64,
    /// bytes of it that lie in an IoArea whose bytes are bounded, per name
    pub areas: BTreeMap<String, i64>,
    /// addresses that did not serve it
    pub avoid: Vec<String>,
    /// as in Hello, which may have been said before there was one
    pub serves: Option<String>,
}

/// Where to get it: from the first of these that serves it (it may itself still be receiving). Empty = read the
/// shared file system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Source {
    pub sha256: String,
    pub peers: Vec<String>,
}

/// The pilot has the whole file (`held`), or will never have it (not `held`): who waits for it asks again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Holds {
    pub sha256: String,
    pub held: bool,
    /// as in Seek
    pub serves: Option<String>,
}

/// The pilot asks to start `starts` payloads of a program whose starts cost shared file systems operations or bytes.
/// Remains in force until permitted; a later Want of the same program replaces it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Want {
    pub program: u64,
    pub starts: u64,
}

/// So many starts may begin now. `over`: areas where its nodes do more than a fleet may, in thousandths of that.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Permit {
    pub program: u64,
    pub starts: u64,
    /// of operations
    pub over: BTreeMap<String, i64>,
    pub over_bytes: BTreeMap<String, i64>,
}

/// What a node's own counters say that it did to shared file systems since its last Usage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    pub over_us: u64,
    /// per IoArea name
    pub ops: BTreeMap<String, i64>,
    pub bytes: BTreeMap<String, i64>,
    /// payloads started since, per program number
    pub starts: BTreeMap<String, i64>,
}

/// What a node did since its last Sampled. A message, not a record: it has no number, nothing waits for it, and it
/// is dropped if the lead is unreachable or behind. The lead adds `p` and writes it to FLEET/monitor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// the pilot; the lead fills it in
    pub p: String,
    pub node: String,
    /// end of the interval, microseconds since 1970
    pub at_us: u64,
    /// its length
    pub over_us: u64,
    /// as FIGURES; None or behind its end = unknown here, or a counter that went back
    pub figures: Vec<Option<u64>>,
    /// busy share of each core as a digit, tenths rounded down; of more than 128 cores neighbours share one
    pub cores: String,
    /// by mount point, those few that were used most; as MOUNT_FIGURES
    pub mounts: BTreeMap<String, Vec<Option<u64>>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "k")]
pub enum Record {
    #[serde(rename = "started")]
    Started(Started),
    #[serde(rename = "done")]
    Done(Done),
    #[serde(rename = "failed")]
    Failed(Failed),
    #[serde(rename = "returned")]
    Returned(Returned),
    #[serde(rename = "ended")]
    Ended(Ended),
    #[serde(rename = "noted")]
    Noted(Noted),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "m")]
pub enum LeadMessage {
    #[serde(rename = "challenge")]
    Challenge(Challenge),
    #[serde(rename = "welcome")]
    Welcome(Welcome),
    #[serde(rename = "work")]
    Work(Work),
    #[serde(rename = "ack")]
    Ack(Ack),
    #[serde(rename = "cancel")]
    Cancel(Cancel),
    #[serde(rename = "drain")]
    Drain(Drain),
    #[serde(rename = "deadline")]
    Deadline(Deadline),
    #[serde(rename = "beat")]
    Beat(Beat),
    #[serde(rename = "source")]
    Source(Source),
    #[serde(rename = "permit")]
    Permit(Permit),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "m")]
pub enum PilotMessage {
    #[serde(rename = "hello")]
    Hello(Hello),
    #[serde(rename = "ask")]
    Ask(Ask),
    #[serde(rename = "beat")]
    Beat(Beat),
    #[serde(rename = "seek")]
    Seek(Seek),
    #[serde(rename = "holds")]
    Holds(Holds),
    #[serde(rename = "want")]
    Want(Want),
    #[serde(rename = "usage")]
    Usage(Usage),
    #[serde(rename = "sampled")]
    Sampled(Sampled),
}
