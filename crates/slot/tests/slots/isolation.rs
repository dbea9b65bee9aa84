//! What payloads cannot see and do.

use std::os::unix::fs::PermissionsExt;

use tidemill_slot::{start, Isolated, Isolation, SlotSpec};

use crate::support::*;
use crate::Test;

pub const TESTS: &[Test] = &[
    ("a payload sees only the processes of its slot", processes),
    ("a payload has no capabilities and gains none", capabilities),
    ("a payload cannot look into its init", init_closed),
    ("a payload that kills everything hurts no one else", kill_all),
    ("a payload has a tmp of its own", own_tmp),
    ("masked paths are empty and cannot be uncovered", masks),
    ("batch commands cannot be started", batch_commands),
    ("a masked program alone comes back", masked_program),
    (
        "a program in tmp comes back with its installation",
        program_in_tmp,
    ),
    ("without namespaces the note says why", fallback),
    ("the slot keeps no descriptor of the pilot", descriptors),
    ("a slot runs on its cpus with its devices", cpus_and_devices),
];

fn processes() {
    let text = prints(
        &isolated(),
        "echo $(cd /proc; ls -d [0-9]*); kill -0 2>/dev/null $(($$ + 1)) || echo none",
    );
    let seen = text.lines().next().unwrap().split(' ');
    let seen: Vec<u32> = seen.map(|number| number.parse().unwrap()).collect();
    assert!(
        (1..=4).contains(&seen.len()) && seen.iter().all(|&number| number < 10),
        "numbers of a namespace that has just begun: {text}"
    );
    let neighbour = Rig::new(&isolated());
    let outside = neighbour.slot.pid();
    let text = prints(
        &isolated(),
        &format!("kill -9 {outside} 2>&1; ls /proc/{outside} 2>&1; true"),
    );
    assert!(text.to_lowercase().contains("no such"), "{text}");
    assert_eq!(
        tidemill_sys::process::wait(outside, false).unwrap(),
        tidemill_sys::process::Waited::Running
    );
}

fn capabilities() {
    let text = prints(&isolated(), "grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs)' /proc/self/status; id -u; mount -t tmpfs x /mnt 2>&1; umount /tmp 2>&1; true");
    let zeros = text
        .lines()
        .filter(|line| line.starts_with("Cap") && line.ends_with("0000000000000000"))
        .count();
    assert_eq!(zeros, 5, "{text}");
    assert!(text.contains("NoNewPrivs:\t1"), "{text}");
    assert!(text.contains(&format!("\n{}\n", user())), "{text}");
}

fn init_closed() {
    let text = prints(
        &isolated(),
        "for f in environ mem maps fd cwd root exe io; do cat /proc/1/$f 2>/dev/null >/dev/null && echo open $f; ls /proc/1/$f/ 2>/dev/null | head -c 100; done; \
        kill -9 1; kill -TERM 1; kill -STOP 1; true",
    );
    assert_eq!(text, "");
    let trace = "import ctypes,os\nlibc=ctypes.CDLL(None,use_errno=True)\nfor request in (16, 0x4206):\n  r=libc.ptrace(request,1,0,0)\n  print(r, ctypes.get_errno())\n";
    let what = (program("/usr/bin/python3", "command"), job(&["-c", trace]));
    let mut rig = Rig::new(&isolated());
    rig.learn(&what).give(0, 1).all();
    assert_eq!(rig.stdout(), "-1 1\n-1 1\n", "{:?}", rig.failed);
}

fn kill_all() {
    let mut neighbour = Rig::new(&isolated());
    neighbour.learn(&shell("read x < /dev/zero; true")).give(0, 1);
    let mut rig = Rig::new(&isolated());
    rig.learn(&shell("kill -9 -1; kill -9 0")).give(0, 3).all();
    assert_eq!(rig.failed.len(), 3);
    assert!(
        rig.failed.iter().all(|failed| failed.signal == Some(9)),
        "{:?}",
        rig.failed
    );
    rig.learn(&shell("true")).give(3, 1).all();
    assert_eq!(rig.done.len(), 1, "the slot goes on");
    assert_eq!(neighbour.settled(), 0);
    neighbour.tell(&tidemill_slot::ToSlot::Stop).all();
    assert_eq!(
        neighbour.returned.len(),
        1,
        "the neighbour's payload ran until it was stopped"
    );
}

fn own_tmp() {
    let outside = tempfile::Builder::new()
        .prefix("outside-")
        .tempdir_in("/tmp")
        .unwrap();
    let text = prints(
        &isolated(),
        "ls -A /tmp; ls -ld /tmp | cut -c1-10; df -m /tmp | tail -1 | awk '{print $2}'; echo x > /tmp/x",
    );
    assert!(!text.contains("outside-"), "{text}");
    assert_eq!(text, ".tidemill\nhome\nwork\ndrwxrwxrwt\n50\n");
    assert!(outside.path().exists());
    let library = prints(&isolated(), "ls /tmp/.tidemill/lib; echo $PYTHONPATH; touch /tmp/.tidemill/lib/x 2>/dev/null && echo writable; true");
    assert_eq!(library, "tidemill_payload.py\n/tmp/.tidemill/lib\n");
}

fn masks() {
    let home = tempfile::tempdir().unwrap();
    let site = home.path().join("site");
    for path in [
        &site,
        &home.path().join(".ssh"),
        &home.path().join(".config/tidemill"),
    ] {
        std::fs::create_dir_all(path).unwrap();
        std::fs::write(path.join("key"), "secret").unwrap();
    }
    std::fs::write(home.path().join(".netrc"), "secret").unwrap();
    let old_home = std::env::var_os("HOME");
    std::env::set_var("HOME", home.path());
    let spec = SlotSpec {
        mask: vec![site.clone()],
        ..isolated()
    };
    let script = "cd $1 && pwd; for f in site/key .ssh/key .config/tidemill/key .netrc; do cat $f 2>/dev/null; done; \
        touch site/x 2>/dev/null && echo writable; umount $1/site 2>/dev/null && echo uncovered; mv site site2 2>/dev/null && echo moved; ls -A";
    let mut what = shell(script);
    what.1
        .argv
        .extend(["x".to_owned(), home.path().to_str().unwrap().to_owned()]);
    let mut rig = Rig::new(&spec);
    rig.learn(&what).give(0, 2).all();
    match old_home {
        Some(old) => std::env::set_var("HOME", old),
        None => std::env::remove_var("HOME"),
    }
    let text = rig.stdout();
    assert!(
        text.starts_with(home.path().to_str().unwrap()),
        "{text} {:?}",
        rig.failed
    );
    for bad in ["secret", "writable", "uncovered", "moved", "key"] {
        assert!(!text.contains(bad), "{bad}: {text}");
    }
    assert!(text.contains(".netrc"), "{text}");
}

fn batch_commands() {
    let spec = SlotSpec {
        batch_commands: vec!["expr".into(), "no-such-command".into()],
        ..isolated()
    };
    let text = prints(&spec, "for e in expr /usr/bin/expr /bin/expr; do $e 1 + 1 2>/dev/null; done; cp /usr/bin/expr x 2>/dev/null; ./x 1 + 1 2>/dev/null; expr 2>&1 | head -1; echo end");
    assert!(text.lines().all(|line| line != "2"), "it could be run: {text}");
    assert!(text.contains("ermission"), "{text}");
    assert!(text.ends_with("end\n"), "{text}");
    assert_eq!(prints(&isolated(), "expr 1 + 1"), "2\n");
}

fn copy_of_shell(to: &std::path::Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy("/bin/sh", to).unwrap();
    std::fs::set_permissions(to, PermissionsExt::from_mode(0o755)).unwrap();
}

fn masked_program() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let site = dir.path().join("site");
    let sh = site.join("apps/bin/sh");
    copy_of_shell(&sh);
    std::fs::write(site.join("secret"), "secret").unwrap();
    std::fs::write(site.join("apps/bin/secret"), "secret").unwrap();
    let spec = SlotSpec {
        mask: vec![site.clone()],
        ..isolated()
    };
    let what = (
        program(sh.to_str().unwrap(), "command"),
        job(&[
            "-c",
            "cd ${{0%/*}} && ls -A . .. ../..; touch x || echo no",
            sh.to_str().unwrap(),
        ]),
    );
    let mut rig = Rig::new(&spec);
    rig.learn(&what).give(0, 2).all();
    assert!(rig.failed.is_empty(), "{:?}", rig.failed);
    let text = rig.stdout();
    assert!(
        !text.contains("secret") && text.contains("sh\n") && text.contains("no\n"),
        "{text}"
    );
}

fn program_in_tmp() {
    let dir = tempfile::Builder::new()
        .prefix("venv-")
        .tempdir_in("/tmp")
        .unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let sh = dir.path().join("venv/bin/sh");
    copy_of_shell(&sh);
    std::fs::create_dir_all(dir.path().join("venv/lib")).unwrap();
    std::fs::create_dir_all(dir.path().join("venv/site")).unwrap();
    std::fs::write(dir.path().join("venv/lib/module"), "module\n").unwrap();
    std::fs::write(dir.path().join("venv/site/secret"), "secret\n").unwrap();
    std::fs::write(dir.path().join("other"), "other\n").unwrap();
    let spec = SlotSpec {
        mask: vec![dir.path().join("venv/site")],
        ..isolated()
    };
    let here = dir.path().to_str().unwrap();
    let script = "cat $0/venv/lib/module; cat $0/other $0/venv/site/secret 2>/dev/null; touch $0/x 2>/dev/null && echo made; true";
    let what = (
        program(sh.to_str().unwrap(), "command"),
        job(&[
            "-c",
            script,
            &format!("/{here}/../{}", here.rsplit('/').next().unwrap()),
        ]),
    );
    let mut rig = Rig::new(&spec);
    rig.learn(&what).give(0, 3).all();
    assert!(rig.failed.is_empty(), "{:?}", rig.failed);
    assert_eq!(rig.stdout(), "module\nmodule\nmodule\n");
}

fn fallback() {
    let slot = start(&plain()).unwrap();
    assert_eq!(slot.isolation().0, Isolated::Subreaper);
    assert!(slot.isolation().1.contains("switched off"));
    drop(slot);
    let slot = start(&SlotSpec {
        isolation: Isolation::Preferred,
        ..isolated()
    })
    .unwrap();
    assert_eq!(slot.isolation(), (Isolated::Namespaces, ""));
    let left = || {
        let mine = format!("-{}-", std::process::id());
        let entries = std::fs::read_dir("/dev/shm").unwrap();
        entries
            .filter(|entry| {
                let name = entry.as_ref().unwrap().file_name().to_string_lossy().into_owned();
                name.starts_with("tidemill-slot-") && name.contains(&mine)
            })
            .count()
    };
    let mut rig = Rig::new(&plain());
    rig.learn(&shell("echo x > $TMPDIR/x; echo x > x; pwd"))
        .give(0, 2)
        .all();
    assert!(rig.done.len() == 2 || rig.done[0].count == 2);
    assert_eq!(left(), 1);
    drop(rig);
    assert_eq!(left(), 0, "the scratch directory is gone");
}

fn descriptors() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    let _inherited = tidemill_sys::fd::place(std::os::fd::AsFd::as_fd(secret.as_file()), 7);
    for spec in [isolated(), plain()] {
        let script =
            "n=3; while [ $n -lt 300 ]; do [ -e /proc/$$/fd/$n ] && echo $n; n=$((n + 1)); done; true";
        assert_eq!(prints(&spec, script), "");
    }
}

fn cpus_and_devices() {
    let cpu = tidemill_sys::process::affinity().unwrap()[0];
    let spec = SlotSpec {
        cpus: vec![cpu],
        devices: vec![("gpu".into(), vec![0, 2])],
        index: 3,
        ..isolated()
    };
    let text = prints(&spec, "grep Cpus_allowed_list /proc/self/status | cut -f2; echo $CUDA_VISIBLE_DEVICES $ROCR_VISIBLE_DEVICES $TIDEMILL_DEVICES_GPU $TIDEMILL_SLOT");
    assert_eq!(text, format!("{cpu}\n0,2 0,2 0,2 3\n"));
}
