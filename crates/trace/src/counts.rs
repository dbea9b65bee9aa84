//! Operations, added up: by call and errno, by second, by path. Bounded by the number of paths. Knows no process.

use std::collections::{BTreeSet, HashMap};

use crate::areas::Finder;
use crate::calls::{Effect, Group, CALLS};
use crate::sockets::Network;

/// Errors above this number are counted as the last one (ERESTART_RESTARTBLOCK is 516).
const ERRNOS: usize = 520;
/// Seconds beyond this one count in the last bin: 11 days.
const SECONDS_MAX: usize = 1_000_000;

/// Ok and failed operations of each group.
pub type ByGroup = [(u64, u64); Group::COUNT];

/// What is known of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts(u8);

impl Facts {
    pub const EXISTS: Facts = Facts(1);
    pub const DIRECTORY: Facts = Facts(2);
    pub const LISTED: Facts = Facts(4);
    pub const LINK: Facts = Facts(8);
    pub const OPENED: Facts = Facts(16);
    pub const FILE: Facts = Facts(32);
    pub const OTHER: Facts = Facts(64);
    /// its content may have been read
    pub const READ: Facts = Facts(128);

    /// What a successful open shows about its path; None: its flags are not known.
    pub fn of_open(flags: Option<i32>) -> Facts {
        let flags = flags.unwrap_or(libc::O_RDONLY);
        if flags & libc::O_DIRECTORY != 0 {
            return Facts::DIRECTORY;
        }
        if flags & libc::O_ACCMODE == libc::O_WRONLY || flags & (libc::O_TRUNC | libc::O_PATH) != 0 {
            return Facts::OPENED;
        }
        Facts(Facts::OPENED.0 | Facts::READ.0)
    }

    pub fn has(self, other: Facts) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn add(&mut self, other: Facts) {
        self.0 |= other.0;
    }
}

/// Operations on one path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Use {
    pub groups: [(u32, u32); Group::COUNT],
    pub facts: Facts,
}

/// Which path an operation named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathId {
    Known(u32),
    /// beyond the limit: only its area is known
    Area(u32),
    /// none, as with `close`, or one that does not exist by its form
    Unnamed,
    /// could not be read
    Unread,
}

/// An operation that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// index in CALLS
    pub call: u8,
    /// what it shows about its path if it is an open and succeeds
    pub opened: Facts,
    /// since the start of the launcher
    pub second: u32,
    pub path: PathId,
}

/// All that was counted.
pub struct Counts {
    by_errno: Vec<u64>,
    /// all that have ended
    pub operations: u64,
    pub seconds: Vec<(u64, u64)>,
    ids: HashMap<Box<[u8]>, u32>,
    uses: Vec<Use>,
    paths_max: usize,
    finder: Finder,
    /// of paths beyond the limit, by area
    pub beyond: HashMap<u32, ByGroup>,
    pub network: Network,
    /// why something is missing; empty: nothing is missing
    pub gaps: BTreeSet<Gap>,
}

/// Why something is missing from a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gap {
    /// paths beyond `--paths-max` are not told apart
    Paths,
    /// a path or a result could not be read from the program's memory
    Unread,
    /// operations went through a ring of io_uring, which no filter sees
    IoUring,
    /// calls by another architecture's numbers: of 32-bit programs, or by `int $0x80`
    Architecture,
}

impl Gap {
    /// The name in the profile.
    pub fn name(self) -> &'static str {
        match self {
            Gap::Paths => "paths",
            Gap::Unread => "unread",
            Gap::IoUring => "io_uring",
            Gap::Architecture => "architecture",
        }
    }
}

impl Counts {
    pub fn new(paths_max: usize, finder: Finder) -> Self {
        Counts {
            by_errno: vec![0; CALLS.len() * ERRNOS],
            operations: 0,
            seconds: Vec::new(),
            ids: HashMap::new(),
            uses: Vec::new(),
            paths_max,
            finder,
            beyond: HashMap::new(),
            network: Network::default(),
            gaps: BTreeSet::new(),
        }
    }

    /// The number of an absolute path, a new one if there is room.
    pub fn path_id(&mut self, path: &[u8]) -> PathId {
        if let Some(&id) = self.ids.get(path) {
            return PathId::Known(id);
        }
        if self.uses.len() >= self.paths_max {
            self.gaps.insert(Gap::Paths);
            return PathId::Area(self.finder.area_of(path) as u32);
        }
        let id = self.uses.len() as u32;
        self.ids.insert(path.into(), id);
        self.uses.push(Use::default());
        PathId::Known(id)
    }

    /// Whether no operation has said yet what a path is.
    pub fn wants_mode(&self, path: PathId) -> bool {
        const TOLD: u8 = Facts::DIRECTORY.0 | Facts::LINK.0 | Facts::FILE.0 | Facts::OTHER.0;
        match path {
            PathId::Known(id) => self.uses[id as usize].facts.0 & TOLD == 0,
            _ => false,
        }
    }

    /// A path has this type and mode, as in stat.
    pub fn tell_mode(&mut self, path: PathId, mode: u32) {
        if let PathId::Known(id) = path {
            self.uses[id as usize].facts.add(match mode & libc::S_IFMT {
                libc::S_IFDIR => Facts::DIRECTORY,
                libc::S_IFLNK => Facts::LINK,
                libc::S_IFREG => Facts::FILE,
                _ => Facts::OTHER,
            });
        }
    }

    /// An operation has ended; a negative result is an errno.
    pub fn add(&mut self, operation: Operation, result: i64) {
        self.operations += 1;
        let call = usize::from(operation.call);
        let failed = (-4095..0).contains(&result);
        let errno = if failed { result.unsigned_abs() as usize } else { 0 };
        self.by_errno[call * ERRNOS + errno.min(ERRNOS - 1)] += 1;
        let second = (operation.second as usize).min(SECONDS_MAX);
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, (0, 0));
        }
        count(&mut self.seconds[second], failed);
        let group = CALLS[call].group as usize;
        match operation.path {
            PathId::Known(id) => {
                let it = &mut self.uses[id as usize];
                let (ok, bad) = &mut it.groups[group];
                let place = if failed { bad } else { ok };
                *place = place.saturating_add(1);
                learn(&mut it.facts, CALLS[call].effect, operation.opened, errno as i32);
            }
            PathId::Area(area) => count(&mut self.beyond.entry(area).or_default()[group], failed),
            PathId::Unnamed => {}
            // an address that leads nowhere says so itself
            PathId::Unread if errno as i32 == libc::EFAULT => {}
            PathId::Unread => {
                self.gaps.insert(Gap::Unread);
            }
        }
    }

    /// (call, ok, [(errno, count)]) of every call that was made.
    pub fn by_call(&self) -> impl Iterator<Item = (&'static str, u64, Vec<(i32, u64)>)> + '_ {
        CALLS.iter().enumerate().filter_map(|(index, call)| {
            let row = &self.by_errno[index * ERRNOS..(index + 1) * ERRNOS];
            let errors: Vec<(i32, u64)> = (1..ERRNOS)
                .filter(|&errno| row[errno] > 0)
                .map(|errno| (errno as i32, row[errno]))
                .collect();
            (row[0] > 0 || !errors.is_empty()).then_some((call.name, row[0], errors))
        })
    }

    /// All paths with their operations, in no order.
    pub fn paths(&self) -> impl Iterator<Item = (&[u8], &Use)> {
        self.ids
            .iter()
            .map(|(path, &id)| (&path[..], &self.uses[id as usize]))
    }

    pub fn finder(&self) -> &Finder {
        &self.finder
    }
}

pub fn count(place: &mut (u64, u64), failed: bool) {
    if failed {
        place.1 += 1;
    } else {
        place.0 += 1;
    }
}

/// Adds what the end of a call shows about a path: readlink's EINVAL, for example, shows that it exists.
fn learn(facts: &mut Facts, effect: Effect, opened: Facts, errno: i32) {
    match (errno, effect) {
        (0, Effect::Directory | Effect::Changes) => facts.add(Facts::DIRECTORY),
        (0, Effect::Lists) => facts.add(Facts::LISTED),
        (0, Effect::Reads) => facts.add(Facts::LINK),
        (0, Effect::Executes) => facts.add(Facts(Facts::FILE.0 | Facts::READ.0)),
        (0, Effect::Opens(_)) => facts.add(opened),
        _ => {}
    }
    if errno == libc::EISDIR || errno == libc::ENOTEMPTY {
        facts.add(Facts::DIRECTORY);
    }
    let exists = match errno {
        0 | libc::EEXIST | libc::EISDIR | libc::ENOTEMPTY => true,
        libc::EINVAL => matches!(effect, Effect::Reads),
        // O_NOFOLLOW at a link; a link that leads to itself is there too
        libc::ELOOP => matches!(effect, Effect::Opens(_)),
        _ => false,
    };
    if exists {
        facts.add(Facts::EXISTS);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(name: &str) -> u8 {
        CALLS.iter().position(|call| call.name == name).unwrap() as u8
    }

    fn operation(name: &str, path: PathId) -> Operation {
        Operation {
            call: call(name),
            opened: Facts::default(),
            second: 0,
            path,
        }
    }

    fn counts(paths_max: usize) -> Counts {
        Counts::new(paths_max, Finder::new(["/", "/sw"].map(str::to_owned).to_vec()))
    }

    #[test]
    fn einval_of_readlink_fails_and_says_that_the_path_exists() {
        let mut counts = counts(10);
        let path = counts.path_id(b"/a");
        counts.add(operation("readlink", path), -i64::from(libc::EINVAL));
        let (_, used) = counts.paths().next().unwrap();
        assert_eq!(used.groups[Group::Readlink as usize], (0, 1));
        assert!(used.facts.has(Facts::EXISTS) && !used.facts.has(Facts::LINK));
        let rows: Vec<_> = counts.by_call().collect();
        assert_eq!(rows, [("readlink", 0, vec![(libc::EINVAL, 1)])]);
    }

    #[test]
    fn what_is_opened_to_be_written_only_is_not_read() {
        let reads = |flags| Facts::of_open(Some(flags)).has(Facts::READ);
        assert!(reads(libc::O_RDONLY | libc::O_CLOEXEC) && reads(libc::O_RDWR | libc::O_CREAT));
        for flags in [libc::O_WRONLY, libc::O_RDWR | libc::O_TRUNC, libc::O_PATH] {
            assert!(!reads(flags));
            assert!(Facts::of_open(Some(flags)).has(Facts::OPENED));
        }
        assert_eq!(Facts::of_open(Some(libc::O_DIRECTORY)), Facts::DIRECTORY);
        assert!(Facts::of_open(None).has(Facts::READ));
    }

    #[test]
    fn beyond_the_limit_operations_count_for_their_area() {
        let mut counts = counts(1);
        let first = counts.path_id(b"/a");
        let second = counts.path_id(b"/sw/b");
        assert_eq!((first, second), (PathId::Known(0), PathId::Area(1)));
        assert!(counts.gaps.iter().eq([&Gap::Paths]));
        counts.add(operation("stat", second), -2);
        assert_eq!(counts.beyond[&1][Group::Stat as usize], (0, 1));
        assert_eq!(counts.path_id(b"/a"), first);
    }

    #[test]
    fn an_unread_path_is_no_gap_where_the_kernel_could_not_read_it_either() {
        let mut counts = counts(1);
        counts.add(operation("open", PathId::Unread), -i64::from(libc::EFAULT));
        assert!(counts.gaps.is_empty());
        counts.add(operation("open", PathId::Unread), 3);
        assert!(counts.gaps.iter().eq([&Gap::Unread]));
    }

    proptest! {
        #[test]
        fn all_sums_are_the_same(
            operations in proptest::collection::vec((0..CALLS.len() as u8, 0usize..6, -40i64..40, 0u32..5), 0..200)
        ) {
            let mut counts = counts(4);
            for &(call, path, result, second) in &operations {
                let path = counts.path_id(format!("/sw/{path}").as_bytes());
                counts.add(Operation { call, opened: Facts::default(), second, path }, result);
            }
            let ok = operations.iter().filter(|each| each.2 >= 0).count() as u64;
            let failed = operations.len() as u64 - ok;
            let calls = counts.by_call().fold((0, 0), |sum, (_, ok, errors)| {
                (sum.0 + ok, sum.1 + errors.iter().map(|&(_, count)| count).sum::<u64>())
            });
            let seconds = counts.seconds.iter().fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
            let mut paths = (0, 0);
            for (_, used) in counts.paths() {
                for (ok, failed) in used.groups {
                    paths = (paths.0 + u64::from(ok), paths.1 + u64::from(failed));
                }
            }
            for (ok, failed) in counts.beyond.values().flatten() {
                paths = (paths.0 + ok, paths.1 + failed);
            }
            prop_assert_eq!(calls, (ok, failed));
            prop_assert_eq!(seconds, (ok, failed));
            prop_assert_eq!(paths, (ok, failed));
        }
    }
}
