//! The system calls that payloads are refused: a seccomp filter, as data and as the program that the kernel runs.
//!
//! Calls are found by a binary search over their numbers, and what is allowed is allowed by number alone: since Linux 5.11
//! the kernel finds that out once, when the filter is installed, and then no longer runs it for such calls
//! (kernel/seccomp.c, seccomp_is_const_allow). Numbers: arch/*/entry/syscalls and include/uapi/asm-generic/unistd.h.

use super::set_filter;
use crate::bpf::{
    answer, argument_at, at_least, equal, has_bits, load, mask, Instruction, ARCHITECTURE_AT, NUMBER_AT,
};
use crate::error::Result;

/// What is refused besides keyrings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walls {
    /// nothing: payloads make namespaces and mounts
    Open,
    /// Namespaces, mounts by descriptors, and the parts of the kernel that payloads have no need of and that most ways
    /// out of namespaces used; sockets are of a few families.
    Closed,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Allow,
    /// ENOSYS, as of a kernel that does not have it: libraries then do without
    Missing,
    /// EPERM
    Refused,
    /// EPERM for namespaces; flags are the first argument
    Clones,
    Unshares,
    /// EAFNOSUPPORT but for `FAMILIES` and NETLINK_ROUTE
    Socket,
    /// The same behind one number, with arguments in memory, which a filter cannot read: no socket can be made by it.
    SocketCall,
}

use Answer::{Allow, Clones, Missing, Refused, Socket, SocketCall, Unshares};

/// One architecture: AUDIT_ARCH_* of <linux/audit.h>, its keyring calls, and the others.
struct Machine {
    audit: u32,
    keys: [u32; 3],
    others: &'static [(u32, Answer)],
}

/// The same on all of them: pidfd and later calls share numbers. io_uring; clone3; open_tree to fspick; mount_setattr;
/// memfd_secret, whose memory no account shows; open_tree_attr.
const EVERYWHERE: [(u32, Answer); 13] = [
    (425, Missing),
    (426, Missing),
    (427, Missing),
    (428, Missing),
    (429, Missing),
    (430, Missing),
    (431, Missing),
    (432, Missing),
    (433, Missing),
    (435, Missing),
    (442, Missing),
    (447, Missing),
    (467, Missing),
];

/// In the order clone, unshare, setns, socket, socketpair, userfaultfd, bpf, perf_event_open, kexec_load, and where there
/// are any kexec_file_load, socketcall.
const MACHINES: [Machine; 4] = [
    Machine {
        audit: 0xc000_003e, // x86_64; kexec_load of x32 has a number of its own
        keys: [248, 249, 250],
        others: &[
            (56, Clones),
            (272, Unshares),
            (308, Refused),
            (41, Socket),
            (53, Socket),
            (323, Refused),
            (321, Refused),
            (298, Refused),
            (246, Refused),
            (528, Refused),
            (320, Refused),
        ],
    },
    Machine {
        audit: 0x4000_0003, // i386, which x86_64 runs too
        keys: [286, 287, 288],
        others: &[
            (120, Clones),
            (310, Unshares),
            (346, Refused),
            (359, Socket),
            (360, Socket),
            (374, Refused),
            (357, Refused),
            (336, Refused),
            (283, Refused),
            (102, SocketCall),
        ],
    },
    Machine {
        audit: 0xc000_00b7, // aarch64
        keys: [217, 218, 219],
        others: &[
            (220, Clones),
            (97, Unshares),
            (268, Refused),
            (198, Socket),
            (199, Socket),
            (282, Refused),
            (280, Refused),
            (241, Refused),
            (104, Refused),
            (294, Refused),
        ],
    },
    Machine {
        audit: 0x4000_0028, // arm, which aarch64 runs too
        keys: [309, 310, 311],
        others: &[
            (120, Clones),
            (337, Unshares),
            (375, Refused),
            (281, Socket),
            (288, Socket),
            (388, Refused),
            (386, Refused),
            (364, Refused),
            (347, Refused),
            (401, Refused),
        ],
    },
];
/// Of system calls of x32 programs, which count as x86_64.
const X32_BIT: u32 = 0x4000_0000;

/// CLONE_NEW* that clone(2) takes. The bit of CLONE_NEWTIME is one of the signal there.
const NEW_BY_CLONE: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;
const NEW_BY_UNSHARE: u32 = NEW_BY_CLONE | 0x80;

/// Families of sockets; besides, of AF_NETLINK, NETLINK_ROUTE, which getifaddrs(3) needs. libibverbs finds devices in
/// /sys where it gets no NETLINK_RDMA.
const FAMILIES: [i32; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
/// An obsolete type that makes any family AF_PACKET (net/socket.c).
const SOCK_PACKET: u32 = 10;
/// Types have flags above these bits (<linux/net.h>, SOCK_TYPE_MASK).
const TYPE_BITS: u32 = 0xf;
/// socketcall(2): numbers of socket and socketpair.
const MAKES_SOCKETS: [u32; 2] = [1, 8];

/// From now on this process and its children find a kernel without keyrings (ENOSYS): keys of the same user could else be
/// reached in spite of a session keyring of one's own, by number, and through the user's keyring, which the kernel lets
/// all processes of a user link to their own (security/keys/process_keys.c, user_keyring_perm). And without what `walls`
/// names. New privileges must have been given up.
pub fn raise(walls: Walls) -> Result<()> {
    let filter = filter(walls);
    // without this flag (Linux 4.17), kernels before 5.16 slow filtered programs down: they guard them against each other
    match set_filter(&filter, libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW) {
        Err(error) if error.os_error() == libc::EINVAL => set_filter(&filter, 0),
        result => result,
    }
}

fn error(number: i32) -> Instruction {
    answer(libc::SECCOMP_RET_ERRNO | number as u32)
}

fn filter(walls: Walls) -> Vec<Instruction> {
    let mut filter = vec![load(ARCHITECTURE_AT)];
    for machine in &MACHINES {
        let mut block = vec![load(NUMBER_AT), mask(!X32_BIT)];
        block.extend(search(&steps(machine, walls)));
        filter.push(equal(machine.audit, 0, block.len()));
        filter.extend(block);
    }
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    filter
}

/// Answers by number: each holds from its number to the next one.
fn steps(machine: &Machine, walls: Walls) -> Vec<(u32, Answer)> {
    let mut calls: Vec<(u32, Answer)> = machine.keys.iter().map(|&key| (key, Missing)).collect();
    if walls == Walls::Closed {
        calls.extend(machine.others);
        calls.extend(EVERYWHERE);
    }
    calls.sort_by_key(|&(number, _)| number);
    let mut steps = vec![(0, Allow)];
    for (number, answer) in calls {
        match steps.last_mut() {
            Some(last) if last.0 == number => last.1 = answer,
            _ => steps.push((number, answer)),
        }
        steps.push((number + 1, Allow));
    }
    steps.dedup_by_key(|&mut (_, answer)| answer);
    steps
}

fn search(steps: &[(u32, Answer)]) -> Vec<Instruction> {
    let [(_, only)] = steps else {
        let (low, high) = steps.split_at(steps.len() / 2);
        let (from, low, high) = (high[0].0, search(low), search(high));
        return [vec![at_least(from, low.len(), 0)], low, high].concat();
    };
    let allow = answer(libc::SECCOMP_RET_ALLOW);
    let flags = |bits| {
        vec![
            load(argument_at(0)),
            has_bits(bits, 0, 1),
            error(libc::EPERM),
            allow,
        ]
    };
    match only {
        Allow => vec![allow],
        Missing => vec![error(libc::ENOSYS)],
        Refused => vec![error(libc::EPERM)],
        Clones => flags(NEW_BY_CLONE),
        Unshares => flags(NEW_BY_UNSHARE),
        Socket => socket(),
        SocketCall => vec![
            load(argument_at(0)),
            equal(MAKES_SOCKETS[0], 1, 0),
            equal(MAKES_SOCKETS[1], 0, 1),
            error(libc::EAFNOSUPPORT),
            allow,
        ],
    }
}

/// socket(family, type, protocol) and socketpair alike. The kernel, too, takes families, types and flags from the low
/// words alone.
fn socket() -> Vec<Instruction> {
    let [unix, inet, inet6] = FAMILIES.map(|family| family as u32);
    vec![
        load(argument_at(1)),
        mask(TYPE_BITS),
        equal(SOCK_PACKET, 7, 0),
        load(argument_at(0)),
        equal(unix, 6, 0),
        equal(inet, 5, 0),
        equal(inet6, 4, 0),
        equal(libc::AF_NETLINK as u32, 0, 2),
        load(argument_at(2)),
        equal(libc::NETLINK_ROUTE as u32, 1, 0),
        error(libc::EAFNOSUPPORT),
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;
    const fn refused(number: i32) -> u32 {
        libc::SECCOMP_RET_ERRNO | number as u32
    }

    /// What a filter says of a system call: runs the few instructions that these filters are made of.
    fn run(filter: &[Instruction], audit: u32, number: u32, arguments: [u64; 3]) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let Instruction { code, yes, no, k } = filter[at];
            at += 1;
            let mut jump = |holds: bool| at += usize::from(if holds { yes } else { no });
            match u32::from(code) {
                0x20 => {
                    value = match k {
                        NUMBER_AT => number,
                        ARCHITECTURE_AT => audit,
                        // the kernel's words: low at 16, high at 20
                        _ => (arguments[(k as usize - 16) / 8] >> (k % 8 * 8)) as u32,
                    }
                }
                0x54 => value &= k,
                0x15 => jump(value == k),
                0x35 => jump(value >= k),
                0x45 => jump(value & k != 0),
                0x06 => return k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn number_of(machine: &Machine, wanted: Answer) -> u32 {
        machine
            .others
            .iter()
            .find(|&&(_, answer)| answer == wanted)
            .unwrap()
            .0
    }

    #[test]
    fn jumps_fit_and_what_is_allowed_is_found_in_a_few_steps() {
        for walls in [Walls::Open, Walls::Closed] {
            for machine in &MACHINES {
                let found = search(&steps(machine, walls));
                assert!(found.len() < 256, "{}", found.len());
            }
            assert!(filter(walls).len() < 4096, "BPF_MAXINSNS");
        }
    }

    #[test]
    fn calls_on_keys_are_missing_on_each_architecture_and_all_others_are_allowed() {
        let filter = filter(Walls::Open);
        for machine in &MACHINES {
            for number in 0..600 {
                let key = machine.keys.contains(&number);
                let expected = if key { refused(libc::ENOSYS) } else { ALLOWED };
                let found = run(&filter, machine.audit, number, [u64::MAX; 3]);
                assert_eq!(found, expected, "{:#x} {number}", machine.audit);
            }
        }
        let x32 = run(&filter, MACHINES[0].audit, 250 | X32_BIT, [0; 3]);
        assert_eq!(x32, refused(libc::ENOSYS));
        assert_eq!(run(&filter, 0xc000_00f3, 219, [0; 3]), ALLOWED);
    }

    #[test]
    fn behind_walls_each_call_has_the_answer_of_its_table() {
        let filter = filter(Walls::Closed);
        for machine in &MACHINES {
            let table: Vec<(u32, Answer)> = [machine.others, &EVERYWHERE].concat();
            for number in 0..600 {
                let listed = table.iter().find(|&&(listed, _)| listed == number);
                let expected = match listed.map(|&(_, answer)| answer) {
                    _ if machine.keys.contains(&number) => refused(libc::ENOSYS),
                    None | Some(Allow | Clones | Unshares) => ALLOWED, // without flags
                    Some(Missing) => refused(libc::ENOSYS),
                    Some(Refused) => refused(libc::EPERM),
                    Some(Socket) => refused(libc::EAFNOSUPPORT), // family 0
                    Some(SocketCall) => ALLOWED,
                };
                let found = run(&filter, machine.audit, number, [0; 3]);
                assert_eq!(found, expected, "{:#x} {number}", machine.audit);
                let x32 = run(&filter, machine.audit, number | X32_BIT, [0; 3]);
                assert_eq!(x32, expected, "{:#x} {number} of x32", machine.audit);
            }
        }
    }

    #[test]
    fn each_namespace_is_refused_and_threads_and_children_are_not() {
        let filter = filter(Walls::Closed);
        let thread = 0x003d_0f00; // what glibc's pthread_create asks for
        for machine in &MACHINES {
            let (clone, unshare) = (number_of(machine, Clones), number_of(machine, Unshares));
            for bit in [17, 25, 26, 27, 28, 29, 30] {
                for rest in [0, 17, thread, 0xffff_ffff_0000_0000] {
                    let flags = [1 << bit | rest, 0, 0];
                    for number in [clone, unshare] {
                        let found = run(&filter, machine.audit, number, flags);
                        assert_eq!(found, refused(libc::EPERM), "{bit} {rest:#x}");
                    }
                }
            }
            assert_eq!(
                run(&filter, machine.audit, unshare, [0x80, 0, 0]),
                refused(libc::EPERM)
            );
            for flags in [17, thread, 0x4111, 0x0120_0011, 0xffff_ffff_0000_0011] {
                assert_eq!(
                    run(&filter, machine.audit, clone, [flags, 0, 0]),
                    ALLOWED,
                    "{flags:#x}"
                );
            }
            // a table of descriptors and a directory of one's own
            for flags in [0x400, 0x200] {
                assert_eq!(run(&filter, machine.audit, unshare, [flags, 0, 0]), ALLOWED);
            }
        }
    }

    #[test]
    fn sockets_are_of_a_few_families() {
        let filter = filter(Walls::Closed);
        let open = |family: u64, kind: u64, protocol: u64| match family {
            _ if kind & 15 == 10 => false,
            1 | 2 | 10 => true,
            16 => protocol == 0,
            _ => false,
        };
        for machine in &MACHINES {
            for &(number, _) in machine.others.iter().filter(|(_, answer)| *answer == Socket) {
                for family in 0..50 {
                    for (kind, protocol) in [
                        (1, 0),
                        (3, 0),
                        (3, 12),
                        (10, 0),
                        (0x8_0801, 4),
                        (0x8_080a, 0),
                        (2, 20),
                    ] {
                        // the kernel does not read the high words
                        for high in [0, 1 << 32, u64::MAX << 32] {
                            let words = [family | high, kind | high, protocol | high];
                            let found = run(&filter, machine.audit, number, words);
                            let expected = if open(family, kind, protocol) {
                                ALLOWED
                            } else {
                                refused(libc::EAFNOSUPPORT)
                            };
                            assert_eq!(found, expected, "{family} {kind} {protocol}");
                        }
                    }
                }
            }
        }
        let i386 = &MACHINES[1];
        for call in 0..21 {
            let found = run(&filter, i386.audit, 102, [call, 0, 0]);
            let makes = call == 1 || call == 8;
            assert_eq!(
                found,
                if makes {
                    refused(libc::EAFNOSUPPORT)
                } else {
                    ALLOWED
                },
                "{call}"
            );
        }
    }
}
