//! Ways out of a slot that are not files: keyrings, sockets, processes; and memory and files that nothing names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

use tidemill_slot::{Failed, Network, SlotSpec};

use crate::support::*;
use crate::Test;

pub const TESTS: &[Test] = &[
    ("a payload finds no keyring of the pilot", keyrings),
    (
        "a network of its own has a loopback and nothing else",
        closed_network,
    ),
    ("an open network is the node's", open_network),
    (
        "what failed for want of a network says which key opens it",
        network_hint,
    ),
    (
        "services that act for the user are not in run, also when they come again",
        services,
    ),
    ("sockets that variables name are masked", named_sockets),
    ("files in memory count as memory", memory_files),
    (
        "memory behind no descriptor counts, and a neighbour goes on",
        hidden_memory,
    ),
    (
        "descriptors that cannot be counted do not stay in sockets",
        unaccepted,
    ),
    ("descriptors and data on their way are allowed", passing_on),
    ("a mapped file in memory counts once", mapped_once),
    (
        "shared memory that is mapped and not written takes nothing",
        untouched,
    ),
    ("processes and threads have a limit", tasks),
    (
        "a slot is refused nothing because its user has many processes elsewhere",
        busy_user,
    ),
    ("files of a scratch on disk are bounded", files),
    ("files of a scratch in memory are bounded", files_in_memory),
    ("what is hidden in a scratch on disk counts", hidden_bytes),
];

fn python(script: &str) -> (tidemill_wire::Program, tidemill_wire::JobDef) {
    (
        program("/usr/bin/python3", "command"),
        job(&["-c", &braces(script)]),
    )
}

fn said(spec: &SlotSpec, script: &str) -> String {
    let mut rig = Rig::new(spec);
    rig.learn(&python(script)).give(0, 1).all();
    assert!(rig.failed.is_empty(), "{:?}", rig.failed);
    rig.stdout()
}

/// Serial of the session keyring, or minus the error number.
const SESSION: &str = "import ctypes, platform\n\
    number = {'x86_64': 250, 'aarch64': 219}[platform.machine()]\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    got = libc.syscall(number, 0, -3, 0)\n\
    print(got if got >= 0 else -ctypes.get_errno())\n";

fn keyrings() {
    const NO_SUCH_CALL: &str = "-38\n";
    assert_eq!(said(&isolated(), SESSION), NO_SUCH_CALL);
    // without namespaces programs may gain rights, and then there is no filter: the keyring is another one
    let output = std::process::Command::new("/usr/bin/python3")
        .args(["-c", SESSION])
        .output()
        .unwrap();
    let ours = String::from_utf8(output.stdout).unwrap();
    let theirs = said(&plain(), SESSION);
    assert!(
        theirs == NO_SUCH_CALL || !theirs.starts_with('-') && theirs != ours,
        "{theirs} {ours}"
    );
}

fn abstract_socket() -> (UnixListener, String) {
    let name = format!("tidemill-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    (UnixListener::bind_addr(&address).unwrap(), name)
}

const REACHES: &str = "import socket, sys\n\
    def reaches(family, address):\n\
    \x20 s = socket.socket(family)\n\
    \x20 try: s.connect(address); return 'reached'\n\
    \x20 except OSError as error: return error.strerror\n\
    own = socket.create_server(('127.0.0.1', 0))\n\
    print(reaches(socket.AF_UNIX, '\\0NAME'))\n\
    print(reaches(socket.AF_INET, own.getsockname()))\n\
    print(reaches(socket.AF_INET, ('127.0.0.1', PORT)))\n\
    print(sorted(name for _, name in socket.if_nameindex())[:2])\n";

fn reaches(network: Network) -> Vec<String> {
    let (_listener, name) = abstract_socket();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = REACHES.replace("NAME", &name).replace("PORT", &port.to_string());
    let spec = SlotSpec {
        network,
        ..isolated()
    };
    said(&spec, &script).lines().map(str::to_owned).collect()
}

fn closed_network() {
    for network in [Network::Preferred, Network::Closed] {
        let found = reaches(network);
        assert_eq!(
            found,
            ["Connection refused", "reached", "Connection refused", "['lo']"]
        );
    }
}

fn open_network() {
    // on the node's network only Landlock keeps abstract sockets away, where the kernel's has scopes
    let sockets = match tidemill_sys::landlock::without_scopes() {
        Some(_) => "reached",
        None => "Operation not permitted",
    };
    assert_eq!(reaches(Network::Open)[..3], [sockets, "reached", "reached"]);
}

fn network_hint() {
    let script = "import socket\nsocket.create_connection(('192.0.2.1', 9), 5)\n";
    let spec = SlotSpec {
        network: Network::Closed,
        ..isolated()
    };
    let failed = fails(&spec, &python(script));
    assert!(failed.message.contains("`network = true`"), "{failed:?}");
    let words = shell("echo Network is unreachable >&2; exit 1");
    assert!(!fails(&isolated(), &words).message.contains("`network"));
}

/// The listener is deaf: that a socket can be reached is enough.
fn services() {
    let run = PathBuf::from(format!("/run/slurm-tidemill-{}", std::process::id()));
    if std::fs::create_dir(&run).is_err() {
        eprintln!("  left out: only root can make a directory in /run");
        return;
    }
    let socket = run.join("sack.socket");
    let mut listener = UnixListener::bind(&socket).unwrap();
    let spec = SlotSpec {
        batch_commands: vec!["sbatch".into()],
        ..isolated()
    };
    let script = format!(
        "import os, socket, time\n\
        for _ in range(20):\n\
        \x20 s = socket.socket(socket.AF_UNIX)\n\
        \x20 try: s.connect('{}'); print('reached')\n\
        \x20 except OSError: pass\n\
        \x20 time.sleep(0.05)\n\
        print(os.path.exists('/run/lock') or not {}, os.path.exists('/run/dbus'))\n\
        try: os.mkdir('/run/slurm'); print('made')\n\
        except OSError: pass\n",
        socket.display(),
        if std::path::Path::new("/run/lock").exists() {
            "True"
        } else {
            "False"
        },
    );
    let mut rig = Rig::new(&spec);
    rig.learn(&python(&script)).give(0, 1);
    for _ in 0..5 {
        // as a service that is started again does
        drop(listener);
        std::fs::remove_dir_all(&run).unwrap();
        std::fs::create_dir(&run).unwrap();
        listener = UnixListener::bind(&socket).unwrap();
        tidemill_sys::fd::poll(&mut [], Some(100_000)).unwrap();
    }
    rig.all();
    let reached = said(&isolated(), &script);
    std::fs::remove_dir_all(&run).unwrap();
    assert_eq!(rig.stdout(), "True False\n", "{:?}", rig.failed);
    assert!(
        reached.starts_with("reached\n"),
        "those that may use the batch system reach it: {reached}"
    );
}

fn named_sockets() {
    let dir = tempfile::Builder::new()
        .prefix("tidemill-socket-")
        .tempdir_in("/var/tmp")
        .unwrap();
    let socket = dir.path().join("sack.socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    std::env::set_var("SLURM_SACK_SOCKET", &socket);
    let spec = SlotSpec {
        batch_commands: vec!["sbatch".into()],
        ..isolated()
    };
    let script = format!(
        "import socket\ns = socket.socket(socket.AF_UNIX)\n\
        try: s.connect('{}'); print('reached')\nexcept OSError: print('refused')\n",
        socket.display()
    );
    let found = said(&spec, &script);
    std::env::remove_var("SLURM_SACK_SOCKET");
    assert_eq!(found, "refused\n");
}

const MEMFD: &str = "import os, time\nf = os.memfd_create('x')\nblock = bytes(1 << 20)\n\
    for _ in range(400): os.write(f, block)\n";
/// A segment that is touched in parts and let go of, so that it is in no process's RSS.
const SEGMENT: &str = "import ctypes, time\nlibc = ctypes.CDLL(None)\nlibc.shmat.restype = ctypes.c_void_p\n\
    libc.shmdt.argtypes = [ctypes.c_void_p]\n\
    number = libc.shmget(0, 400 << 20, 0o1600)\nat = libc.shmat(number, None, 0)\nkeep = libc.shmat(number, None, 0)\n\
    for offset in range(0, 400 << 20, 4 << 20): ctypes.memset(at + offset, 1, 4 << 20)\n\
    libc.shmdt(ctypes.c_void_p(at))\n";

fn limited(script: &str, memory_mb: u64) -> (tidemill_wire::Program, tidemill_wire::JobDef) {
    let mut what = python(script);
    what.0.memory_mb = memory_mb;
    what
}

fn memory_files() {
    for spec in [isolated(), plain()] {
        let failed = fails(&spec, &limited(&format!("{MEMFD}time.sleep(1000)"), 100));
        assert!(
            failed.failure == "memory" && failed.message.contains("limit is 100 MB"),
            "{failed:?}"
        );
    }
    let failed = fails(&isolated(), &limited(&format!("{SEGMENT}time.sleep(1000)"), 100));
    assert_eq!(failed.failure, "memory", "{failed:?}");
}

/// Each holds 400 MB at least for as long as it lives, and says so where it could not have them.
const HIDDEN: [(&str, &str); 9] = [
    (
        "memfds on their way",
        "for i in range(8):\n\
        \x20 f = os.memfd_create('x')\n\
        \x20 for _ in range(50): os.write(f, block)\n\
        \x20 socket.send_fds(a, [b'm'], [f]); os.close(f)\n",
    ),
    (
        "memfds in datagrams",
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
        for i in range(8):\n\
        \x20 f = os.memfd_create('x')\n\
        \x20 for _ in range(50): os.write(f, block)\n\
        \x20 socket.send_fds(a, [b'm'], [f]); os.close(f)\n",
    ),
    (
        "memfds in a socket that is on its way",
        "c, d = socket.socketpair()\n\
        for i in range(8):\n\
        \x20 f = os.memfd_create('x')\n\
        \x20 for _ in range(50): os.write(f, block)\n\
        \x20 socket.send_fds(c, [b'm'], [f]); os.close(f)\n\
        socket.send_fds(a, [b'm'], [d.fileno()]); c.close(); d.close()\n",
    ),
    (
        "full buffers of sockets",
        "pairs = [socket.socketpair() for _ in range(500)]\n\
        for s in (s for pair in pairs for s in pair):\n\
        \x20 s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30); s.setblocking(False)\n\
        \x20 try:\n\
        \x20   while True: s.send(block)\n\
        \x20 except BlockingIOError: pass\n",
    ),
    (
        "full buffers whose senders have gone",
        "held = []\n\
        for _ in range(1000):\n\
        \x20 s, r = socket.socketpair(); held.append(r)\n\
        \x20 s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30); s.setblocking(False)\n\
        \x20 try:\n\
        \x20   while True: s.send(block)\n\
        \x20 except BlockingIOError: s.close()\n",
    ),
    (
        "shared memory in no page table",
        "import mmap\n\
        m = mmap.mmap(-1, 400 << 20)\n\
        for at in range(0, 400 << 20, 1 << 20): m[at:at + (1 << 20)] = block; m.madvise(mmap.MADV_DONTNEED)\n",
    ),
    (
        "semaphores",
        "for _ in range(210):\n\
        \x20 if libc.semget(0, 32000, 0o600) < 0: sys.exit('no semaphores')\n",
    ),
    (
        "page tables",
        "libc.mmap.restype = ctypes.c_void_p\n\
        at = libc.mmap(None, ctypes.c_size_t(220 << 30), 1, 0x4022, -1, ctypes.c_long(0))\n\
        for i in range(110000): ctypes.c_char.from_address(at + (i << 21)).value\n",
    ),
    (
        "segments of an IPC namespace of one's own",
        "if libc.unshare(1 << 28 | 1 << 27): time.sleep(1000)\n\
        libc.shmat.restype = ctypes.c_void_p\n\
        for i in range(4):\n\
        \x20 at = libc.shmat(libc.shmget(0, ctypes.c_size_t(100 << 20), 0o600), None, 0)\n\
        \x20 ctypes.memset(at, 1, 100 << 20); libc.shmdt(ctypes.c_void_p(at))\n",
    ),
];
const HIDES: &str = "import ctypes, os, resource, socket, sys, time\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    resource.setrlimit(resource.RLIMIT_NOFILE, (4000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n\
    block = bytes(1 << 20)\n\
    a, b = socket.socketpair()\n";

fn hidden_memory() {
    let neighbour = SlotSpec {
        index: 1,
        memory_mb: 100,
        ..isolated()
    };
    let mut wrong = Vec::new();
    for (name, script) in HIDDEN {
        let mut beside = Rig::new(&neighbour);
        beside.learn(&shell("sleep 1")).give(0, 1);
        let mut what = python(&format!(
            "{HIDES}{script}print('held', flush=True)\ntime.sleep(1000)\n"
        ));
        what.0.memory_mb = 100;
        what.0.timeout_s = Some(30.0);
        let mut spec = isolated();
        if name.starts_with("segments") {
            // there it is refused what it would need
            what.0.timeout_s = Some(5.0);
            spec.view.shared = true;
        }
        let failed = fails(&spec, &what);
        let is_refused = spec.view.shared && failed.failure == "walltime" && failed.stdout.is_empty();
        let is_ended = failed.failure == "memory" && failed.message.contains("limit is 100 MB");
        if !is_refused && !is_ended {
            wrong.push((name, failed));
        }
        beside.all();
        assert!(beside.failed.is_empty(), "{name}: {:?}", beside.failed);
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

fn unaccepted() {
    let script = "listener = socket.socket(socket.AF_UNIX); listener.bind('s'); listener.listen(5)\n\
        c = socket.socket(socket.AF_UNIX); c.connect('s')\n\
        for i in range(8):\n\
        \x20 f = os.memfd_create('x')\n\
        \x20 for _ in range(50): os.write(f, block)\n\
        \x20 socket.send_fds(c, [b'm'], [f]); os.close(f)\n\
        c.close()\ntime.sleep(1000)\n";
    let mut what = python(&format!("{HIDES}{script}"));
    what.0.memory_mb = 100;
    let failed = fails(&isolated(), &what);
    assert!(
        failed.failure == "memory" && failed.message.contains("8 descriptors"),
        "{failed:?}"
    );
}

/// Files of 5 MB go through sockets by the hundred, and buffers are full, for longer than it takes to look twice.
fn passing_on() {
    let script = "import threading\n\
        end = time.monotonic() + 3; full = [socket.socketpair() for _ in range(50)]\n\
        for s, _ in full:\n\
        \x20 s.setblocking(False)\n\
        \x20 try:\n\
        \x20   while True: s.send(block)\n\
        \x20 except BlockingIOError: pass\n\
        def send():\n\
        \x20 while time.monotonic() < end:\n\
        \x20   f = os.memfd_create('x'); [os.write(f, block) for _ in range(5)]\n\
        \x20   socket.send_fds(a, [b'm'], [f]); os.close(f)\n\
        \x20 a.close()\n\
        thread = threading.Thread(target=send); thread.start(); count = 0\n\
        while True:\n\
        \x20 text, fds, _, _ = socket.recv_fds(b, 1, 1)\n\
        \x20 if not text: break\n\
        \x20 assert text == b'm' and os.fstat(fds[0]).st_size == 5 << 20; os.close(fds[0]); count += 1\n\
        thread.join(); print('passed', count > 10)\n";
    let mut what = python(&format!("{HIDES}{script}"));
    what.0.memory_mb = 300;
    let mut rig = Rig::new(&isolated());
    rig.learn(&what).give(0, 1).all();
    assert!(rig.failed.is_empty(), "{:?}", rig.failed);
    assert_eq!(rig.stdout(), "passed True\n");
}

fn mapped_once() {
    let script = "import mmap, os, time\nf = os.memfd_create('x')\nos.ftruncate(f, 100 << 20)\n\
        m = mmap.mmap(f, 100 << 20)\nfor at in range(0, 100 << 20, 4096): m[at] = 1\ntime.sleep(0.6)\nprint('kept')\n";
    let mut rig = Rig::new(&isolated());
    rig.learn(&limited(script, 150)).give(0, 1).all();
    assert_eq!(rig.stdout(), "kept\n", "{:?}", rig.failed);
}

/// Most of it is never used, as of a database's buffers; the node has much shared memory of others.
fn untouched() {
    let others = tidemill_sys::fd::memory_file(c"others").unwrap();
    let (mut file, block) = (std::fs::File::from(others), vec![1; 1 << 20]);
    for _ in 0..700 {
        std::io::Write::write_all(&mut file, &block).unwrap();
    }
    let script = "import mmap, time\n\
        m = mmap.mmap(-1, 8 << 30, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x4000)\n\
        for at in range(0, 20 << 20, 4096): m[at] = 1\ntime.sleep(1.5)\nprint('kept')\n";
    let mut rig = Rig::new(&isolated());
    rig.learn(&limited(script, 600)).give(0, 1).all();
    assert_eq!(rig.stdout(), "kept\n", "{:?}", rig.failed);
}

const SLEEPERS: &str = "import os, time\n\
    made = []\n\
    for _ in range(400):\n\
    \x20 pid = os.fork()\n\
    \x20 if pid == 0: time.sleep(1000)\n\
    \x20 made.append(pid)\n\
    time.sleep(20)\n\
    print(len(made))\n";

fn says_limit(failed: &Failed) -> bool {
    failed.failure == "payload" && failed.message.contains("processes_max")
}

fn tasks() {
    for base in [isolated(), plain()] {
        let spec = SlotSpec {
            tasks_max: 100,
            ..base
        };
        let mut rig = Rig::new(&spec);
        rig.learn(&python(SLEEPERS)).give(0, 1).all();
        assert!(
            rig.failed.len() == 1 && says_limit(&rig.failed[0]),
            "{:?}",
            rig.failed
        );
        if user() != 0 && spec.isolation == tidemill_slot::Isolation::Required {
            let stderr = String::from_utf8_lossy(&rig.failed[0].stderr).into_owned();
            assert!(stderr.contains("temporarily unavailable"), "{stderr}");
        }
        rig.learn(&shell("echo next")).give(1, 1).all();
        assert_eq!(rig.stdout(), "next\n", "the slot goes on");
    }
    let few = SlotSpec {
        cpus: vec![0],
        ..isolated()
    };
    assert_eq!((few.tasks_max(), isolated().tasks_max() >= 288), (288, true));
}

fn busy_user() {
    // 150 processes of this user in one slot, and a limit of 100 in another
    let mut busy = Rig::new(&isolated());
    busy.learn(&shell(
        "i=0; while [ $i -lt 150 ]; do sleep 1000 & i=$((i + 1)); done; echo; sleep 1000",
    ))
    .give(0, 1);
    tidemill_sys::fd::poll(&mut [], Some(500_000)).unwrap();
    let spec = SlotSpec {
        tasks_max: 100,
        ..isolated()
    };
    let script = "i=0; while [ $i -lt 50 ]; do sleep 0.5 & i=$((i + 1)); done; wait; echo all";
    assert_eq!(prints(&spec, script), "all\n");
    assert_eq!(busy.settled(), 0);
}

fn files() {
    let spec = SlotSpec {
        scratch_mb: 4,
        ..plain()
    };
    let many = "i=0; while [ $i -lt 3000 ]; do : > f$i; i=$((i + 1)); done; sleep 2";
    let failed = fails(&spec, &shell(many));
    assert!(
        failed.failure == "disk" && failed.message.contains("more than 1024 files"),
        "{failed:?}"
    );
    let few = "i=0; while [ $i -lt 900 ]; do : > f$i; i=$((i + 1)); done; sleep 0.5; echo kept";
    assert_eq!(prints(&spec, few), "kept\n");
}

fn files_in_memory() {
    let spec = SlotSpec {
        scratch_mb: 40,
        ..isolated()
    };
    let many = "cd $HOME; i=0; while [ $i -lt 20000 ]; do : > f$i || exit 3; i=$((i + 1)); done";
    let failed = fails(&spec, &shell(many));
    assert!(
        failed.failure == "disk" && failed.message.contains("no file more can be made"),
        "{failed:?}"
    );
    let failed = fails(&spec, &shell("head -c 300000000 /dev/zero > $HOME/big"));
    assert_eq!(failed.failure, "disk", "{failed:?}");
}

/// In a directory that may not be read, below a path that is too long, in a file that was removed.
fn hidden_bytes() {
    let spec = SlotSpec {
        scratch_mb: 20,
        ..plain()
    };
    let closed = "mkdir d; head -c 60000000 /dev/zero > d/x; chmod 0 d; sleep 3";
    let deep = "n=$(printf %0200d 0); i=0; while [ $i -lt 30 ]; do mkdir $n; cd $n; i=$((i + 1)); done; \
        head -c 60000000 /dev/zero > x; sleep 3";
    let removed = "exec 7> x; rm x; head -c 60000000 /dev/zero >&7; sleep 3";
    for script in [closed, deep, removed] {
        let failed = fails(&spec, &shell(script));
        assert!(
            failed.failure == "disk" && failed.message.contains("too much"),
            "{script}: {failed:?}"
        );
    }
}
