//! What payloads cannot see and do.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tidemill_slot::{start, Isolated, Isolation, SlotDevice, SlotSpec, Vendor};
use tidemill_wire::View;

use crate::support::*;
use crate::Test;

pub const TESTS: &[Test] = &[
    ("a payload sees only the processes of its slot", processes),
    ("a payload has no capabilities and gains none", capabilities),
    ("a payload cannot look into its init", init_closed),
    ("a payload that kills everything hurts no one else", kill_all),
    ("a payload has a tmp of its own", own_tmp),
    (
        "modules beside a script come before those of set-up lines",
        python_path,
    ),
    ("masked paths are empty and cannot be uncovered", masks),
    ("a masked file that is named stays hidden", named_mask),
    ("a home that nobody may read is hidden", closed_home),
    ("batch commands cannot be started, and say why", batch_commands),
    (
        "a program of the user's own may have the name of a batch command",
        own_command,
    ),
    ("a masked program alone comes back", masked_program),
    (
        "a program in tmp comes back with its installation",
        program_in_tmp,
    ),
    ("without namespaces the note says why", fallback),
    (
        "nothing of tmp comes back by an argument or a variable",
        nothing_by_argument,
    ),
    ("a shared site shows its payloads a read-only world", shared_view),
    ("a payload cannot change control groups", control_groups),
    ("what an application may write is writable", shared_write),
    (
        "an owner's tmp is shown without sockets and credentials",
        own_view,
    ),
    ("nobody takes the place of what is protected", pinned),
    ("abstract sockets of the host are out of reach", abstract_sockets),
    ("the slot keeps no descriptor of the pilot", descriptors),
    ("a slot runs on its cpus with its devices", cpus_and_devices),
    ("a slot sees the files of its own devices", devices_of_others),
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

fn python_path() {
    let mut what = shell("echo $PYTHONPATH");
    what.0.env.insert("PYTHONPATH".into(), "/views/lib".into());
    what.0.python_first = Some("/sw/lib".into());
    let mut rig = Rig::new(&isolated());
    rig.learn(&what).give(0, 1).all();
    assert_eq!(rig.stdout(), "/sw/lib:/views/lib:/tmp/.tidemill/lib\n");
}

/// A site's key lies outside of its directory, and an application's file names it.
fn named_mask() {
    let home = tempfile::tempdir().unwrap();
    let key = home.path().join("site.key");
    std::fs::write(&key, "secret").unwrap();
    let spec = SlotSpec {
        mask: vec![key.clone()],
        view: View {
            show: vec![key.to_str().unwrap().to_owned()],
            ..View::default()
        },
        ..isolated()
    };
    let text = prints(&spec, &format!("cat {} 2>/dev/null; echo up", key.display()));
    assert_eq!(text, "up\n");
}

/// `/root` is among the homes that a shared site hides, and no ordinary user may read it.
fn closed_home() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let closed = home.path().join("other");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();
    let named = |path: &Path| path.to_str().unwrap().to_owned();
    let spec = SlotSpec {
        view: View {
            shared: true,
            veils: vec![named(&closed), "/root".to_owned()],
            show: vec![named(&closed.join("program"))],
            ..View::default()
        },
        ..isolated()
    };
    assert_eq!(prints(&spec, "ls -A /root; echo up"), "up\n");
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
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
        view: View {
            credentials: ["~/.ssh", "~/.config/tidemill", "~/.netrc"]
                .map(str::to_owned)
                .into(),
            show: vec![home.path().to_str().unwrap().to_owned()],
            ..View::default()
        },
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
    let text = prints(&spec, "for e in expr /usr/bin/expr /bin/expr; do $e 1 + 1 2>/dev/null; echo $?; done; cp /usr/bin/expr x 2>/dev/null; ./x 1 + 1 2>/dev/null; expr 2>&1; { echo y > /usr/bin/expr; chmod 755 /usr/bin/expr; rm -f /usr/bin/expr; mv /usr/bin/expr /tmp; umount /usr/bin/expr; } 2>/dev/null; /usr/bin/expr 1 + 1 2>&1; echo end");
    assert!(text.lines().all(|line| line != "2"), "it could be run: {text}");
    let reason =
        "tidemill: `expr` is a command of the batch system, and payloads cannot use it; `--nodes` and";
    assert!(text.starts_with("126\n126\n126\n"), "{text}");
    assert_eq!(text.matches(reason).count(), 2, "{text}");
    assert!(text.ends_with("end\n"), "{text}");
    assert_eq!(prints(&isolated(), "expr 1 + 1"), "2\n");

    let mut rig = Rig::new(&spec);
    rig.learn(&(program("/usr/bin/expr", "command"), job(&["1", "+", "1"])))
        .give(0, 2)
        .all();
    let (failed, reason) = (
        rig.failed.remove(0),
        "`/usr/bin/expr` is a command of the batch system",
    );
    assert_eq!((failed.failure.as_str(), failed.count), ("payload_setup", 2));
    assert!(failed.message.starts_with(reason), "{failed:?}");
}

fn own_command() {
    let home = tempfile::tempdir_in("/var/tmp").unwrap();
    let bin = home.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let (program, link) = (bin.join("flux"), bin.join("expr"));
    std::fs::write(&program, "#!/bin/sh\necho mine\n").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("/usr/bin/expr", &link).unwrap();
    let (old_home, path) = (
        std::env::var_os("HOME"),
        std::env::var_os("PATH").unwrap_or_default(),
    );
    let dirs: Vec<_> = std::env::split_paths(&path).chain([bin.clone()]).collect();
    std::env::set_var("HOME", home.path());
    std::env::set_var("PATH", std::env::join_paths(dirs).unwrap());
    let spec = |shared: bool| SlotSpec {
        batch_commands: vec!["flux".into(), "expr".into()],
        view: tidemill_wire::View {
            shared,
            ..tidemill_wire::View::default()
        },
        ..isolated()
    };
    let script = format!("{} 2>&1; {} 1 + 1 2>&1; true", program.display(), link.display());
    let (own, shared) = (prints(&spec(false), &script), prints(&spec(true), &script));
    std::env::set_var("PATH", path);
    match old_home {
        Some(old) => std::env::set_var("HOME", old),
        None => std::env::remove_var("HOME"),
    }
    assert!(own.starts_with("mine\ntidemill: `expr` is a command"), "{own}");
    assert!(shared.starts_with("tidemill: `flux` is a command"), "{shared}");
    assert_eq!(shared.matches("tidemill: `expr`").count(), 1, "{shared}");
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
        view: shown(&[&sh]),
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
        view: shown(&[&dir.path().join("venv")]),
        ..isolated()
    };
    let here = dir.path().to_str().unwrap();
    let script = "cat $0/venv/lib/module; cat $0/other $0/venv/site/secret 2>/dev/null; touch $0/x $0/venv/x 2>/dev/null && echo made; true";
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

fn text(path: &std::path::Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// A directory below `base` with a file and a socket in it, open to all.
fn with_socket(base: &str) -> (tempfile::TempDir, std::os::unix::net::UnixListener) {
    let dir = tempfile::Builder::new().prefix("own-").tempdir_in(base).unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(dir.path().join("file"), "content\n").unwrap();
    std::fs::create_dir(dir.path().join("below")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(dir.path().join("below/socket")).unwrap();
    (dir, socket)
}

fn nothing_by_argument() {
    let (dir, _socket) = with_socket("/tmp");
    let here = text(dir.path());
    let mut what = shell("cat $1/file $NAMED/file 2>/dev/null; ls $1 2>/dev/null; echo end");
    what.1.argv.extend(["x".to_owned(), here.clone()]);
    what.1.env.insert("NAMED".into(), here.clone());
    what.0.env.insert("ALSO".into(), here);
    let mut rig = Rig::new(&isolated());
    rig.learn(&what).give(0, 1).all();
    assert_eq!(rig.stdout(), "end\n", "{:?}", rig.failed);
}

fn shared_view() {
    let (home, _socket) = with_socket("/var/tmp");
    let (shown, _other) = with_socket("/tmp");
    for name in ["sw", "other"] {
        std::fs::create_dir(home.path().join(name)).unwrap();
        std::fs::write(home.path().join(name).join("module"), "module\n").unwrap();
    }
    let spec = SlotSpec {
        view: View {
            shared: true,
            veils: vec![text(home.path())],
            show: vec![text(shown.path()), text(&home.path().join("sw"))],
            ..View::default()
        },
        ..isolated()
    };
    let script = format!(
        "cat {home}/sw/module {home}/other/module {home}/file 2>/dev/null; ls -A {home}; \
        for d in {home} {home}/sw {home}/other {shown} / /etc /usr /run /var; do touch $d/x 2>/dev/null && echo $d; done; \
        echo y > {shown}/file; cat {shown}/file; test -S {shown}/below/socket && echo socket; \
        for d in . $HOME /tmp /dev/shm; do echo z > $d/z && mkdir $d/d && mv $d/z $d/d/z && rm -r $d/d || echo no $d; done; \
        echo q > /dev/null && echo c > /proc/self/comm && echo end",
        home = home.path().display(),
        shown = shown.path().display(),
    );
    for may_mount in [true, false] {
        let spec = SlotSpec {
            may_mount,
            ..spec.clone()
        };
        let text = prints(&spec, &format!("exec 2>/dev/null; {script}"));
        assert_eq!(text, "module\nsw\ncontent\nend\n", "{may_mount}");
    }
    let mounts =
        "unshare --user --map-current-user --mount mount --bind /usr /mnt 2>/dev/null && echo mounted; true";
    assert_eq!(prints(&spec, mounts), "");
}

fn control_groups() {
    let script = "while read -r _ point kind _; do case $kind in cgroup*) \
        mkdir $point/tidemill-test-$$ 2>/dev/null && { rmdir $point/tidemill-test-$$; echo made $point; }; \
        test -w $point/cgroup.procs && echo open $point; echo seen >&2; esac; done < /proc/self/mounts; true";
    assert_eq!(prints(&isolated(), script), "");
}

fn shared_write() {
    let (dir, _socket) = with_socket("/var/tmp");
    std::fs::create_dir(dir.path().join("results")).unwrap();
    let spec = SlotSpec {
        view: View {
            shared: true,
            show: vec![text(dir.path())],
            write: vec![text(&dir.path().join("results"))],
            veils: vec!["/var/tmp".to_owned()],
            ..View::default()
        },
        ..isolated()
    };
    let script = "touch below/x 2>/dev/null && echo below; echo result > results/r && mv results/r results/s && cat results/s";
    let printed = prints(&spec, &format!("cd {} && {script}", dir.path().display()));
    assert_eq!(printed, "result\n");
    assert_eq!(
        std::fs::read_to_string(dir.path().join("results/s")).unwrap(),
        "result\n"
    );
}

fn own_view() {
    let (dir, _socket) = with_socket("/tmp");
    let _many = many_files(); // changed last, so shown before it: they use up no search for sockets
    let ticket = tempfile::Builder::new()
        .prefix("krb5cc_")
        .tempfile_in("/tmp")
        .unwrap();
    let view = View {
        own_tmp: true,
        credentials: vec!["/tmp/krb5cc_*".to_owned()],
        ..View::default()
    };
    let spec = SlotSpec { view, ..isolated() };
    let script = format!(
        "cat {dir}/file; test -S {dir}/below/socket && echo socket; echo new > {dir}/new; ls {ticket} 2>/dev/null; true",
        dir = dir.path().display(),
        ticket = ticket.path().display(),
    );
    assert_eq!(prints(&spec, &script), "content\n");
    assert!(dir.path().join("new").exists());
    let mut allowed = spec.clone();
    allowed.view.allowed = vec![text(ticket.path())];
    assert_eq!(
        prints(&allowed, &script),
        format!("content\n{}\n", ticket.path().display())
    );
    // what is made while the slot lives is there for the next job
    let mut rig = Rig::new(&spec);
    rig.learn(&shell("true")).give(0, 1).all();
    let (later, _other) = with_socket("/tmp");
    let mut job = shell(&format!("cat {}/file", later.path().display())).1;
    job.job = 6;
    rig.tell(&tidemill_slot::ToSlot::Job(job))
        .tell(&tidemill_slot::ToSlot::Run {
            ticket: 9,
            job: 6,
            first: 0,
            count: 1,
            chunk_max: None,
        });
    rig.until(|rig| rig.settled() == 2);
    assert_eq!(rig.stdout(), "content\n", "{:?}", rig.failed);
}

/// A directory of more files than a slot searches for sockets at its start.
fn many_files() -> tempfile::TempDir {
    let many = tempfile::tempdir_in("/tmp").unwrap();
    let deep = many.path().join("a/b");
    std::fs::create_dir_all(&deep).unwrap();
    for number in 0..12_000 {
        std::fs::write(deep.join(number.to_string()), "").unwrap();
    }
    std::fs::write(many.path().join("last"), "").unwrap();
    many
}

fn pinned() {
    let dir = tempfile::Builder::new()
        .prefix("pin-")
        .tempdir_in("/var/tmp")
        .unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (state, installed) = (dir.path().join("a/state"), dir.path().join("b/c/lib"));
    for path in [&state, &installed] {
        std::fs::create_dir_all(path).unwrap();
        std::fs::write(path.join("file"), "old\n").unwrap();
    }
    let spec = SlotSpec {
        mask: vec![state.clone()],
        view: View {
            own_tmp: true,
            keep: vec![text(&installed)],
            ..View::default()
        },
        ..isolated()
    };
    let script = format!(
        "exec 2>/dev/null; cd {} && cat a/state/file b/c/lib/file; for d in a a/state b b/c b/c/lib; do mv $d moved && echo $d; done; \
        echo x > b/c/lib/file && echo written; rm -r b/c/lib && echo removed; echo mine > a/mine; echo mine > b/c/mine",
        dir.path().display()
    );
    assert_eq!(prints(&spec, &script), "old\n");
    assert_eq!(std::fs::read_to_string(installed.join("file")).unwrap(), "old\n");
    assert!(dir.path().join("a/mine").exists() && dir.path().join("b/c/mine").exists());
}

fn abstract_sockets() {
    use std::os::linux::net::SocketAddrExt;
    if tidemill_sys::landlock::without_scopes().is_some() {
        return; // nothing of the kernel's keeps them out: the pilot's first record says so
    }
    let name = format!("tidemill-slots-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let code = format!(
        "import socket\ndef reach(n):\n  s = socket.socket(socket.AF_UNIX)\n  try:\n    s.connect(chr(0) + n)\n    print('reached')\n  \
        except OSError as e:\n    print(e.errno)\nreach('{name}')\no = socket.socket(socket.AF_UNIX)\no.bind(chr(0) + '{name}x')\no.listen()\nreach('{name}x')\n"
    );
    for spec in [
        isolated(),
        SlotSpec {
            isolation: Isolation::Preferred,
            ..isolated()
        },
    ] {
        let what = (
            program("/usr/bin/python3", "command"),
            job(&["-c", &braces(&code)]),
        );
        let mut rig = Rig::new(&spec);
        rig.learn(&what).give(0, 1).all();
        let printed = rig.stdout();
        assert!(
            printed == "1\nreached\n" || printed == "111\nreached\n",
            "{printed} {:?}",
            rig.failed
        );
    }
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

fn gpu(vendor: Vendor, name: &str, files: &[PathBuf]) -> SlotDevice {
    SlotDevice {
        vendor,
        name: name.to_owned(),
        files: files.to_vec(),
    }
}

fn cpus_and_devices() {
    let cpu = tidemill_sys::process::affinity().unwrap()[0];
    let names = "$CUDA_VISIBLE_DEVICES-$ROCR_VISIBLE_DEVICES-$HIP_VISIBLE_DEVICES-$ZE_AFFINITY_MASK $TIDEMILL_DEVICES_GPU";
    for (vendor, expected) in [
        (Vendor::Nvidia, "0,2---"),
        (Vendor::Amd, "-0,2--"),
        (Vendor::Intel, "---0,2"),
    ] {
        let spec = SlotSpec {
            cpus: vec![cpu],
            devices: vec![gpu(vendor, "0", &[]), gpu(vendor, "2", &[])],
            index: 3,
            ..isolated()
        };
        let script =
            format!("grep Cpus_allowed_list /proc/self/status | cut -f2; echo {names} $TIDEMILL_SLOT");
        assert_eq!(prints(&spec, &script), format!("{cpu}\n{expected} 0,2 3\n"));
    }
}

/// No test machine has GPUs: files stand for the devices.
fn devices_of_others() {
    let dev = tempfile::Builder::new()
        .prefix("dev-")
        .tempdir_in("/var/tmp")
        .unwrap();
    std::fs::set_permissions(dev.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let file = |name: &str| {
        let path = dev.path().join(name);
        std::fs::write(&path, name).unwrap();
        path
    };
    let (first, second, common) = (file("nvidia0"), file("nvidia1"), file("nvidiactl"));
    let (own, other) = (
        gpu(Vendor::Nvidia, "1", &[second]),
        gpu(Vendor::Nvidia, "0", &[first]),
    );
    let cat = format!(
        "cd {}; cat nvidia0 nvidia1 nvidiactl 2>/dev/null; echo -$CUDA_VISIBLE_DEVICES",
        dev.path().display()
    );
    let spec = |devices: Vec<SlotDevice>, other_devices: Vec<SlotDevice>| SlotSpec {
        devices,
        other_devices,
        ..isolated()
    };
    let one = spec(vec![own.clone()], vec![other.clone()]);
    assert_eq!(
        prints(&one, &cat),
        "nvidia1nvidiactl-0\n",
        "its own is the first that it can open"
    );
    assert_eq!(
        prints(&spec(Vec::new(), vec![own.clone(), other.clone()]), &cat),
        "nvidiactl-\n"
    );
    assert_eq!(
        prints(&spec(vec![other, own], Vec::new()), &cat),
        "nvidia0nvidia1nvidiactl-0,1\n"
    );
    assert_eq!(std::fs::read_to_string(common).unwrap(), "nvidiactl");
}
