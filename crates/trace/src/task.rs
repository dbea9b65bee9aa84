//! What is known of traced threads, and what they share: memory, current directory, descriptors.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use tidemill_sys::ptrace::Registers;

use crate::counts::{Gap, Operation};
use crate::sockets::Socket;
use crate::watch::{Page, Step};

/// State of the diversion (see `diversion.rs`) in one address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Diversion {
    #[default]
    Absent,
    /// a thread is mapping a page just now
    Busy,
    /// the page for results is there
    Half {
        slots: u64,
    },
    Ready {
        slots: u64,
        code: u64,
    },
    /// as the parent had it at fork, not yet checked
    Inherited {
        slots: u64,
        code: u64,
    },
    /// this program gets none
    Refused,
}

/// An address space.
#[derive(Debug, Default)]
pub struct Memory {
    pub diversion: Diversion,
    /// calls so far: short programs are not worth a diversion
    pub calls: u32,
    /// for filters (see `watch.rs`)
    pub page: Page,
    /// parts of that page from which a filter is being installed
    pub parts_used: u16,
    free: Vec<u16>,
    made: u16,
}

/// The page holds the results of at most this many threads.
pub const SLOTS_MAX: u16 = 256;

impl Memory {
    /// A slot of one's own; None when all are taken.
    pub fn take_slot(&mut self) -> Option<u16> {
        self.free.pop().or_else(|| {
            (self.made < SLOTS_MAX).then(|| {
                self.made += 1;
                self.made - 1
            })
        })
    }

    pub fn give_slot(&mut self, slot: u16) {
        self.free.push(slot);
    }

    /// The copy that a forked child has.
    pub fn forked(&self) -> Memory {
        let diversion = match self.diversion {
            Diversion::Ready { slots, code } | Diversion::Inherited { slots, code } => {
                Diversion::Inherited { slots, code }
            }
            Diversion::Refused => Diversion::Refused,
            _ => Diversion::Absent,
        };
        Memory {
            diversion,
            calls: self.calls,
            page: self.page,
            ..Memory::default()
        }
    }
}

/// A current directory, of all tasks made with CLONE_FS.
#[derive(Debug, Default)]
pub struct CurrentDirectory {
    pub directory: Option<Rc<[u8]>>,
    /// a change is under way: nothing may be remembered
    pub changing: u32,
    /// as `Files::epoch`
    pub epoch: u64,
}

/// Open directories and connections, of all tasks made with CLONE_FILES.
#[derive(Debug, Default)]
pub struct Files {
    pub paths: HashMap<i32, Rc<[u8]>>,
    pub sockets: HashMap<i32, Socket>,
    /// opens under way, whose descriptors are not known yet: nothing may be remembered
    pub opening: u32,
    /// directories may have got other names since
    pub epoch: u64,
}

impl Files {
    /// The copy that a forked child has: of its connections, and of directories nothing.
    fn forked(&self) -> Files {
        Files {
            sockets: self.sockets.clone(),
            ..Files::default()
        }
    }
}

/// Limit of `Files::paths`.
pub const DESCRIPTORS_MAX: usize = 4096;

/// What a thread is in the middle of.
#[derive(Default)]
pub enum Pending {
    #[default]
    Nothing,
    /// it stops at the end of the call
    CallEnd(Operation),
    /// the result will be in its slot; the call returns to this address
    Diverted { operation: Operation, back: u64 },
    /// it maps a page for us instead of its call, which it does afterwards
    Mapping {
        before: Box<Registers>,
        /// the page for results, if it is there already
        slots: Option<u64>,
    },
    /// it does something for us before its connect
    Watching { before: Box<Registers>, step: Step },
    /// it reads from a connection
    Receiving(i32),
    /// the call is not counted, and leaves a gap if it succeeds
    Uncounted(Gap),
}

/// A traced thread.
#[derive(Default)]
pub struct Task {
    pub memory: Rc<RefCell<Memory>>,
    pub place: Rc<RefCell<CurrentDirectory>>,
    pub files: Rc<RefCell<Files>>,
    /// descriptors that filters of the process stop at
    pub watched: Rc<RefCell<HashSet<i32>>>,
    pub slot: Option<u16>,
    pub pending: Pending,
}

// linux/sched.h
pub const CLONE_VM: u64 = 0x100;
pub const CLONE_FS: u64 = 0x200;
pub const CLONE_FILES: u64 = 0x400;
pub const CLONE_THREAD: u64 = 0x10000;
pub const CLONE_VFORK: u64 = 0x4000;

impl Task {
    /// The child that this task makes with such flags.
    pub fn child(&self, flags: u64) -> Task {
        let shared = |flag: u64| flags & flag != 0;
        Task {
            memory: if shared(CLONE_VM) {
                Rc::clone(&self.memory)
            } else {
                Rc::new(RefCell::new(self.memory.borrow().forked()))
            },
            place: if shared(CLONE_FS) {
                Rc::clone(&self.place)
            } else {
                Rc::default()
            },
            files: if shared(CLONE_FILES) {
                Rc::clone(&self.files)
            } else {
                Rc::new(RefCell::new(self.files.borrow().forked()))
            },
            watched: if shared(CLONE_THREAD) {
                Rc::clone(&self.watched)
            } else {
                Rc::new(RefCell::new(self.watched.borrow().clone()))
            },
            slot: None,
            pending: Pending::Nothing,
        }
    }

    /// What exec leaves: another memory, descriptors of its own.
    pub fn executed(&mut self) {
        self.give_slot();
        self.memory = Rc::default();
        self.files = Rc::default();
    }

    pub fn give_slot(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.memory.borrow_mut().give_slot(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_share_what_their_flags_say() {
        let parent = Task::default();
        let thread = parent.child(CLONE_VM | CLONE_FS | CLONE_FILES);
        let forked = parent.child(0);
        let vforked = parent.child(CLONE_VM | CLONE_VFORK);
        assert!(Rc::ptr_eq(&parent.place, &thread.place) && Rc::ptr_eq(&parent.files, &thread.files));
        assert!(!Rc::ptr_eq(&parent.place, &forked.place) && !Rc::ptr_eq(&parent.memory, &forked.memory));
        assert!(Rc::ptr_eq(&parent.memory, &vforked.memory) && !Rc::ptr_eq(&parent.files, &vforked.files));
    }

    #[test]
    fn slots_of_a_memory_are_each_used_by_one_thread() {
        let mut memory = Memory::default();
        let taken: Vec<_> = (0..SLOTS_MAX).map(|_| memory.take_slot().unwrap()).collect();
        assert_eq!(taken, (0..SLOTS_MAX).collect::<Vec<_>>());
        assert_eq!(memory.take_slot(), None);
        memory.give_slot(7);
        assert_eq!(memory.take_slot(), Some(7));
    }

    #[test]
    fn a_forked_memory_trusts_a_page_only_after_looking() {
        let ready = Diversion::Ready { slots: 1, code: 2 };
        let memory = Memory {
            diversion: ready,
            ..Memory::default()
        };
        assert_eq!(
            memory.forked().diversion,
            Diversion::Inherited { slots: 1, code: 2 }
        );
        let half = Memory {
            diversion: Diversion::Half { slots: 1 },
            ..Memory::default()
        };
        assert_eq!(half.forked().diversion, Diversion::Absent);
    }
}
