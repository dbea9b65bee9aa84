//! System calls that payloads of a site that serves others are refused, each as the first thing a process does: a second
//! one may fail for reasons of its own.

use tidemill_slot::{Isolation, SlotSpec};
use tidemill_wire::View;

use crate::support::*;
use crate::Test;

pub const TESTS: &[Test] = &[
    ("no payload makes a namespace", namespaces),
    ("a slot's user namespace has room for no other", limits),
    (
        "parts of the kernel that payloads have no need of are missing",
        calls,
    ),
    ("sockets are of a few families", families),
    (
        "calls of another architecture are refused as well",
        other_architecture,
    ),
    (
        "threads, children, pools and names of interfaces work",
        what_programs_do,
    ),
    ("open files of payloads of other users are bounded", open_files),
    (
        "who may mount makes namespaces, and so do one's own programs",
        open,
    ),
];

fn shared() -> SlotSpec {
    SlotSpec {
        view: View {
            shared: true,
            ..View::default()
        },
        ..isolated()
    }
}

/// Behind the same walls without namespaces: the kernel refuses them, and the site puts up with it.
fn shared_plain() -> Option<SlotSpec> {
    let spec = SlotSpec {
        isolation: Isolation::Preferred,
        directory: Some("/dev/shm".into()),
        ..shared()
    };
    std::path::Path::new("/dev/shm").is_dir().then_some(spec)
}

fn said(spec: &SlotSpec, script: &str) -> String {
    let what = (
        program("/usr/bin/python3", "command"),
        job(&["-c", &braces(&format!("{TRY}{script}"))]),
    );
    let mut rig = Rig::new(spec);
    rig.learn(&what).give(0, 1).all();
    assert!(rig.failed.is_empty(), "{:?}", rig.failed);
    rig.stdout()
}

/// `first(f)`: what f returned as the first thing in a process of its own, a number.
const TRY: &str = "import ctypes, errno, os, platform, socket, sys\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    machine = ['x86_64', 'aarch64'].index(platform.machine())\n\
    def call(*words):\n\
    \x20 words = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]\n\
    \x20 got = libc.syscall(*words)\n\
    \x20 return 'done' if got >= 0 else errno.errorcode[ctypes.get_errno()]\n\
    def first(f, *words):\n\
    \x20 out, into = os.pipe()\n\
    \x20 if os.fork() == 0:\n\
    \x20   try: text = f(*words)\n\
    \x20   except OSError as error: text = errno.errorcode[error.errno]\n\
    \x20   os.write(into, (text + chr(10)).encode()); os._exit(0)\n\
    \x20 os.wait(); os.close(into)\n\
    \x20 return os.read(out, 100).decode().split(chr(10))[0]\n";

/// Each CLONE_NEW* of unshare(2) and, but for the time namespace, of clone(2); then each kind for setns(2).
const NAMESPACES: &str =
    "new = dict(ns=1<<17, cgroup=1<<25, uts=1<<26, ipc=1<<27, user=1<<28, pid=1<<29, net=1<<30)\n\
    unshare, clone, setns = [(272, 56, 308), (97, 220, 268)][machine]\n\
    def child(flag):\n\
    \x20 me = os.getpid()\n\
    \x20 got = call(clone, flag | 17, 0, 0, 0, 0)\n\
    \x20 if os.getpid() != me: os._exit(0)\n\
    \x20 return got\n\
    for name, flag in [*new.items(), ('time', 0x80)]: print('unshare', name, first(call, unshare, flag))\n\
    for name, flag in new.items(): print('clone', name, first(child, flag))\n\
    def join(name): return call(setns, os.open('/proc/self/ns/' + name, 0), 0)\n\
    for name in ('user', 'mnt', 'net'): print('setns', name, first(join, name))\n\
    print('child', first(child, 0)); print('files', first(call, unshare, 0x400))\n";

fn namespaces() {
    for spec in [Some(shared()), shared_plain()].into_iter().flatten() {
        let found = said(&spec, NAMESPACES);
        let (refused, allowed): (Vec<&str>, _) = found.lines().partition(|line| line.ends_with(" EPERM"));
        assert_eq!(allowed, ["child done", "files done"], "{found}");
        assert_eq!(refused.len(), 18, "{found}");
    }
}

fn limits() {
    let script = "for f in /proc/sys/user/max_*_namespaces; do cat $f; done";
    let found = prints(&shared(), script);
    assert!(
        found.lines().count() >= 7 && found.lines().all(|line| line == "0"),
        "{found}"
    );
    let open = SlotSpec {
        may_mount: true,
        ..shared()
    };
    for spec in [open, isolated()] {
        let found = prints(&spec, script);
        assert!(found.lines().all(|line| line != "0"), "{found}");
    }
}

const CALLS: &str = "kexec = [246, 104][machine]\n\
    numbers = dict(clone3=435, fsopen=430, fsconfig=431, fsmount=432, fspick=433, open_tree=428, move_mount=429,\n\
    \x20 mount_setattr=442, io_uring_setup=425, io_uring_enter=426, io_uring_register=427, memfd_secret=447,\n\
    \x20 userfaultfd=[323, 282][machine], bpf=[321, 280][machine], perf_event_open=[298, 241][machine],\n\
    \x20 kexec_load=kexec)\n\
    room = ctypes.create_string_buffer(200)\n\
    for name, number in numbers.items():\n\
    \x20 words = (8, room) if name == 'io_uring_setup' else (0o2000000 | 1, 0) if name == 'userfaultfd' else (0, 0)\n\
    \x20 print(name, first(call, number, *words, 0, 0, 0, 0))\n";

fn calls() {
    let found = said(&shared(), CALLS);
    let refused = ["userfaultfd", "bpf", "perf_event_open", "kexec_load"];
    for line in found.lines() {
        let (name, answer) = line.split_once(' ').unwrap();
        let expected = if refused.contains(&name) {
            "EPERM"
        } else {
            "ENOSYS"
        };
        assert_eq!(answer, expected, "{name}");
    }
    assert_eq!(found.lines().count(), 16, "{found}");
}

const FAMILIES: &str = "def make(*words):\n\
    \x20 socket.socket(*words).close()\n\
    \x20 return 'done'\n\
    def pair(family):\n\
    \x20 socket.socketpair(family)\n\
    \x20 return 'done'\n\
    tried = dict(unix=(1, 1, 0), inet=(2, 1, 0), inet6=(10, 2, 0), route=(16, 3, 0), packet=(17, 3, 0), alg=(38, 5, 0),\n\
    \x20 vsock=(40, 1, 0), nfnetlink=(16, 3, 12), audit=(16, 3, 9), generic=(16, 3, 16), xdp=(44, 3, 0), can=(29, 3, 1),\n\
    \x20 tipc=(30, 2, 0), packet_by_type=(2, 10, 0), qipcrtr=(42, 2, 0))\n\
    for name, words in tried.items(): print(name, first(make, *words))\n\
    print('raw', first(make, 2, 3, 255))\n\
    for family in (1, 30): print('pair', first(pair, family))\n";

fn families() {
    let found = said(&shared(), FAMILIES);
    let (done, refused): (Vec<&str>, Vec<&str>) = found.lines().partition(|line| line.ends_with(" done"));
    assert_eq!(
        done,
        ["unix done", "inet done", "inet6 done", "route done", "pair done"]
    );
    let others: Vec<&&str> = refused
        .iter()
        .filter(|line| !line.ends_with(" EAFNOSUPPORT"))
        .collect();
    assert_eq!(others, [&"raw EPERM"], "{found}");
}

/// A call of i386 from a 64-bit process, by `int 0x80`: push rbx; mov eax, edi; mov ebx, esi; xchg ecx, edx; int 0x80;
/// pop rbx; ret. Where the kernel does not run these, the process dies of it and nothing is printed.
const I386: &str = "import mmap\n\
    code = mmap.mmap(-1, 4096, prot=7, flags=0x62)\n\
    code.write(bytes.fromhex('53 89f8 89f3 87ca cd80 5b c3'))\n\
    at = ctypes.addressof(ctypes.c_char.from_buffer(code))\n\
    old = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint] * 4)(at)\n\
    def i386(*words):\n\
    \x20 got = old(*words)\n\
    \x20 return 'done' if got >= 0 else errno.errorcode[-got]\n\
    low = mmap.mmap(-1, 4096, flags=0x62)\n\
    tried = dict(getpid=(20, 0, 0, 0), user=(310, 1 << 28, 0, 0), unix=(359, 1, 1, 0), packet=(359, 17, 3, 0),\n\
    \x20 netfilter=(359, 16, 3, 12), socketcall=(102, 1, 0, 0), pair=(102, 8, 0, 0), clone3=(435, 0, 0, 0), keyctl=(288, 0, 0, 0))\n\
    for name, words in tried.items(): print(name, first(i386, *words))\n";

fn other_architecture() {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let found = said(&shared(), I386);
    let expected = "getpid done\nuser EPERM\nunix done\npacket EAFNOSUPPORT\nnetfilter EAFNOSUPPORT\n\
        socketcall EAFNOSUPPORT\npair EAFNOSUPPORT\nclone3 ENOSYS\nkeyctl ENOSYS\n";
    assert!(found == expected || found.starts_with("getpid \n"), "{found}");
}

const PROGRAMS: &str = "import multiprocessing, subprocess, threading\n\
    from concurrent.futures import ProcessPoolExecutor\n\
    done = []\n\
    threads = [threading.Thread(target=done.append, args=(i,)) for i in range(20)]\n\
    for thread in threads: thread.start()\n\
    for thread in threads: thread.join()\n\
    print(len(done))\n\
    print(subprocess.check_output(['/bin/sh', '-c', 'echo a | cat']))\n\
    pid = os.posix_spawn('/bin/true', ['true'], {}); print(os.waitpid(pid, 0)[1])\n\
    with ProcessPoolExecutor(2) as pool: print(sum(pool.map(abs, range(-5, 0))))\n\
    a, b = multiprocessing.Pipe(); a.send([1]); print(b.recv())\n\
    shared = multiprocessing.Array('i', 10); print(len(shared))\n\
    print('lo' in [name for _, name in socket.if_nameindex()])\n\
    class Address(ctypes.Structure): pass\n\
    head = ctypes.POINTER(Address)(); print(libc.getifaddrs(ctypes.byref(head)))\n\
    print(os.memfd_create('x') > 0)\n\
    for words in (['/usr/bin/java', '-version'], ['/usr/local/go/bin/go', 'version']):\n\
    \x20 if os.path.exists(words[0]): subprocess.run(words, check=True, capture_output=True)\n";

fn what_programs_do() {
    for spec in [Some(shared()), shared_plain()].into_iter().flatten() {
        assert_eq!(
            said(&spec, PROGRAMS),
            "20\nb'a\\n'\n0\n15\n[1]\n10\nTrue\n0\nTrue\n"
        );
    }
}

fn open_files() {
    let script = "echo $(ulimit -Sn) $(ulimit -Hn)";
    let (soft, hard) = tidemill_sys::process::limit(tidemill_sys::process::Limit::OpenFiles);
    let (soft, hard) = (soft.unwrap(), hard.unwrap());
    assert_eq!(
        prints(&shared(), script),
        format!("{soft} {}\n", hard.min(soft.max(4096)))
    );
    assert_eq!(prints(&isolated(), script), format!("{soft} {hard}\n"));
}

fn open() {
    let may_mount = SlotSpec {
        may_mount: true,
        ..shared()
    };
    for spec in [may_mount, isolated()] {
        let script = "unshare --user --mount --net echo made";
        assert_eq!(prints(&spec, script), "made\n");
    }
}
