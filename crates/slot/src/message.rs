//! The messages between pilot and slot init.

use std::path::PathBuf;

use tidemill_wire::{JobDef, Program, View};

/// What a slot is: its share of the node and what its payloads must not see.
#[derive(Clone, Debug)]
pub struct SlotSpec {
    pub index: u32,
    /// name of the node, as payloads see it in `TIDEMILL_NODE`; empty = they do not see it
    pub node: String,
    /// empty = do not pin
    pub cpus: Vec<usize>,
    /// GPUs that payloads may use
    pub devices: Vec<SlotDevice>,
    /// GPUs of the node that they may not
    pub other_devices: Vec<SlotDevice>,
    /// for everything in the slot together where a program gives no limit of its own; 0 = no limit
    pub memory_mb: u64,
    /// size of the slot's tmpfs: /tmp, /dev/shm, work directory, inputs and outputs that wait
    pub scratch_mb: u64,
    pub isolation: Isolation,
    /// where work directories are that do not fit into memory: then `scratch_mb` is looked after, not guaranteed
    pub spill: Option<PathBuf>,
    /// what payloads run from
    pub images: Vec<SlotImage>,
    /// payloads span nodes: they live below this directory, which all nodes see, without namespaces (a launcher starts
    /// ranks beyond any that we could make), and are asked to end before they are killed
    pub directory: Option<PathBuf>,
    /// directories and files that payloads must not see
    pub mask: Vec<PathBuf>,
    /// directories of the node that hold inputs, verified and read-only: files there are shown, not copied
    pub stores: Vec<PathBuf>,
    /// names of programs that payloads must not start; empty when they may (then the sockets of the batch system are
    /// reachable too)
    pub batch_commands: Vec<String>,
    pub network: Network,
    /// processes and threads of the slot at most; 0 = `TASKS_MAX` and `TASKS_OF_A_CORE` more for each core
    pub tasks_max: u64,
    /// what else of the node payloads see and may change: of the site, and of the application whose slot this is
    pub view: View,
    /// payloads mount something themselves: then Landlock bounds no files
    pub may_mount: bool,
}

/// Default limit of processes and threads of a slot: what a Java machine or an interpreter with a few libraries starts
/// besides its computing threads, and those of several pools as large as the cores.
pub const TASKS_MAX: u64 = 256;
pub const TASKS_OF_A_CORE: u64 = 32;

impl SlotSpec {
    /// Most processes and threads of the slot.
    pub fn tasks_max(&self) -> u64 {
        if self.tasks_max > 0 {
            return self.tasks_max;
        }
        let cores = match self.cpus.len() {
            0 => tidemill_sys::process::affinity().map_or(1, |cpus| cpus.len()),
            pinned => pinned,
        };
        TASKS_MAX + TASKS_OF_A_CORE * cores as u64
    }
}

/// Whose programming libraries a GPU is used by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vendor {
    Nvidia,
    Amd,
    Intel,
}

/// A GPU, or an instance of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotDevice {
    pub vendor: Vendor,
    /// as its vendor's variable names it: an index among those of the node, a UUID, an instance or a tile
    pub name: String,
    /// its own device files; empty where they are not known
    pub files: Vec<PathBuf>,
}

/// What payloads see of the network, and with it of abstract Unix sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Network {
    /// that of the node
    #[default]
    Open,
    /// a loopback of the slot's own; where the kernel refuses that, the node's, and the note says so
    Preferred,
    /// a loopback of the slot's own, or no slot
    Closed,
}

impl Network {
    /// Parses a program's setting; None if it is not one of the words.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "open" => Some(Network::Open),
            "preferred" => Some(Network::Preferred),
            "closed" => Some(Network::Closed),
            _ => None,
        }
    }
}

impl Default for SlotSpec {
    /// Slot 0, not pinned, no memory limit, 1000 MB scratch, namespaces preferred, nothing masked, nothing
    /// of /tmp shown.
    fn default() -> Self {
        SlotSpec {
            index: 0,
            node: String::new(),
            cpus: Vec::new(),
            devices: Vec::new(),
            other_devices: Vec::new(),
            memory_mb: 0,
            scratch_mb: 1000,
            spill: None,
            images: Vec::new(),
            isolation: Isolation::Preferred,
            directory: None,
            mask: Vec::new(),
            stores: Vec::new(),
            batch_commands: Vec::new(),
            network: Network::Open,
            tasks_max: 0,
            view: View::default(),
            may_mount: false,
        }
    }
}

/// An image that is shown on this node: payloads see its tree in place of `areas` of the file system. Without
/// namespaces, paths below `areas` in their arguments and environment are rewritten to `root` + path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotImage {
    pub root: PathBuf,
    pub areas: Vec<String>,
}

/// How much a site insists on namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    Required,
    Preferred,
    /// do not even try (a site whose programs cannot live in namespaces; tests of the fallback)
    Off,
}

/// What a slot got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolated {
    Namespaces,
    Subreaper,
}

impl Isolated {
    /// As in the `Started` record: `namespaces` or `subreaper`.
    pub fn name(self) -> &'static str {
        match self {
            Isolated::Namespaces => "namespaces",
            Isolated::Subreaper => "subreaper",
        }
    }
}

/// Pilot to slot. A job's program and the job itself are sent before the first `Run` that needs them.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // a program is sent once; no list of these is kept
pub enum ToSlot {
    Program(Program),
    Job(JobDef),
    /// Events `first..first+count` of a job, all answered by Done, Failed and Returned messages with this ticket.
    Run {
        ticket: u64,
        job: u64,
        first: u64,
        count: u64,
        chunk_max: Option<u64>,
    },
    /// CLOCK_MONOTONIC: no range is started that is not expected to end by then.
    Deadline {
        monotonic_us: Option<u64>,
    },
    /// One payload of this program may start now, soon. `note`: for its log, mostly empty.
    Permit {
        program: u64,
        note: String,
    },
    /// Where payloads reach the cache of this node, as HOST:PORT; empty = there is none, and `why`.
    NodeCache {
        address: String,
        why: String,
    },
    /// No more work of this job will come: ends its persistent payload, drops its inputs.
    Forget {
        job: u64,
    },
    /// Starts nothing new, finishes the payload or ranges that run, returns the rest (reason `drain`).
    Finish,
    /// Kills now, returns everything that is not done (reason `yield`).
    Stop,
    /// Kills the job's payload, drops its work (returned with reason `cancel`).
    CancelJob {
        job: u64,
    },
    /// Kills a payload that runs any of these events of a ticket, drops those that wait (all returned with reason
    /// `cancel`, also what else that payload was to run).
    CancelEvents {
        ticket: u64,
        first: u64,
        count: u64,
    },
}

/// An output of a range. In the slot's tmpfs (`Slot::open_output`) or, for stdout as output, here.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SlotOutput {
    pub name: String,
    /// relative to the scratch directory; empty when `inline`
    pub path: String,
    pub inline: Option<Vec<u8>>,
}

/// What payloads of consecutive events used. Sums, except `rss_kb` (maximum) and the two ends.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Done {
    pub ticket: u64,
    pub job: u64,
    pub first: u64,
    pub count: u64,
    /// processes that ended (command mode); 0 in range mode
    pub payloads: u64,
    /// wall clock
    pub started_us: u64,
    pub ended_us: u64,
    pub wall_us: u64,
    /// part of it before `ready`
    pub setup_us: u64,
    pub user_us: u64,
    pub system_us: u64,
    pub rss_kb: u64,
    /// measured for payloads over 1 s
    pub read_bytes: Option<u64>,
    pub write_bytes: Option<u64>,
    pub outputs: Vec<SlotOutput>,
    /// bounded; command mode only (range mode: `Log`)
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// stdout or stderr was longer than what is here
    pub truncated: bool,
}

/// Events that ran and failed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Failed {
    pub ticket: u64,
    pub job: u64,
    pub first: u64,
    pub count: u64,
    /// the culprit where the payload named it
    pub event: Option<u64>,
    /// a FailureClass
    pub failure: String,
    pub message: String,
    pub exit_status: Option<i32>,
    pub signal: Option<i32>,
    /// the last 4 KiB at most
    pub stderr: Vec<u8>,
    /// bounded as for Done
    pub stdout: Vec<u8>,
    /// wall clock
    pub at_us: u64,
    pub wall_us: u64,
    pub user_us: u64,
    pub system_us: u64,
}

/// What a persistent payload wrote, sent when it ended: `first..first+count` spans the events it was given.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PayloadLog {
    pub ticket: u64,
    pub job: u64,
    pub first: u64,
    pub count: u64,
    pub stdout: Vec<u8>,
    /// with the protocol's `log` lines
    pub stderr: Vec<u8>,
    pub truncated: bool,
}

/// Slot to pilot.
#[derive(Clone, Debug, PartialEq)]
pub enum FromSlot {
    /// First message: what the slot got, and why not more.
    Up {
        isolated: Isolated,
        note: String,
        pid: u32,
    },
    Done(Done),
    Failed(Failed),
    /// Events that were not run, or whose payload was killed by us.
    Returned {
        ticket: u64,
        job: u64,
        first: u64,
        count: u64,
        /// `walltime`, `drain`, `yield`, `cancel` or `slot`; `again`: a payload died that had asked for these ahead,
        /// any slot may run them at once
        reason: String,
    },
    Log(PayloadLog),
    /// A payload was traced. `log.stdout` is its profile, with `ops` operations; without a profile, `log.stderr` says
    /// why.
    Traced {
        program: u64,
        ops: u64,
        failed: u64,
        log: PayloadLog,
    },
    /// A payload of this program is ready to start, and starts cost something: sent once, answered by `ToSlot::Permit`.
    Want {
        program: u64,
    },
    /// No work queued and none running. Sent once each time.
    Idle,
}
