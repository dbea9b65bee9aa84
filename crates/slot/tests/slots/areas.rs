//! What payloads write where images lie, and what the next payload finds of it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tidemill_slot::{SlotImage, SlotSpec, ToSlot};

use crate::support::*;
use crate::Test;

pub const TESTS: &[Test] = &[
    (
        "what a payload writes below an area is gone after it",
        written_is_gone,
    ),
    (
        "memory that a payload takes below an area is given back",
        given_back,
    ),
    ("what is written below an area counts against the cap", counts),
    (
        "masks and forbidden programs below an area stay when it is emptied",
        still_masked,
    ),
    (
        "what a site hides below an area is hidden in the image and beside it, also when the area is emptied",
        still_veiled,
    ),
    ("a job finds nothing of the job before it", nothing_of_others),
];

/// Software at its path, and an image of it: a directory, as an image that is shown is one.
struct Software {
    dir: tempfile::TempDir,
    area: PathBuf,
}

impl Software {
    fn new() -> Software {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let area = dir.path().join("sw");
        let image = dir.path().join("image").join(area.strip_prefix("/").unwrap());
        for root in [&area, &image] {
            for below in ["lib", "bin", "site/bin"] {
                std::fs::create_dir_all(root.join(below)).unwrap();
            }
            copy(Path::new("/bin/sh"), &root.join("site/bin/sh"));
            copy(Path::new("/bin/echo"), &root.join("bin/submit"));
            for (name, text) in [
                ("file", "plain\n"),
                ("lib/module", "module\n"),
                ("site/key", "secret\n"),
            ] {
                std::fs::write(root.join(name), text).unwrap();
            }
            std::fs::set_permissions(root, PermissionsExt::from_mode(0o755)).unwrap();
        }
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        Software { dir, area }
    }

    fn spec(&self) -> SlotSpec {
        SlotSpec {
            images: vec![SlotImage {
                root: self.dir.path().join("image"),
                areas: vec![self.area.to_string_lossy().into_owned()],
            }],
            ..isolated()
        }
    }

    /// The same with its scratch on a disk.
    fn spilling(&self) -> SlotSpec {
        SlotSpec {
            spill: Some(self.dir.path().to_owned()),
            ..self.spec()
        }
    }

    fn script(&self, text: &str) -> String {
        format!("cd {} && {text}", self.area.display())
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap();
    std::fs::set_permissions(to, PermissionsExt::from_mode(0o755)).unwrap();
}

fn written_is_gone() {
    let software = Software::new();
    let script = software.script(
        "stat -c %a . lib && ls . lib && cat file lib/module lib/new 2>/dev/null; \
        echo leak > new; echo leak > lib/new; echo leak >> file; rm lib/module; chmod 700 . lib; mv lib lib2; \
        sleep 100 > held & true",
    );
    for spec in [software.spec(), software.spilling()] {
        let mut rig = Rig::new(&spec);
        rig.learn(&shell(&script)).give(0, 4).all();
        assert!(rig.failed.is_empty(), "{:?}", rig.failed);
        let clean = "755\n755\n.:\nbin\nfile\nlib\nsite\n\nlib:\nmodule\nplain\nmodule\n";
        assert_eq!(rig.stdout(), clean.repeat(4));
    }
    let real = std::fs::read_to_string(software.area.join("file")).unwrap();
    assert_eq!(real, "plain\n", "the real tree is as it was");
}

fn given_back() {
    let software = Software::new();
    let script = software.script("head -c 30000000 /dev/zero > lib/big-$TIDEMILL_FIRST && ls lib");
    let mut rig = Rig::new(&software.spec());
    rig.learn(&shell(&script)).give(0, 4).all();
    assert!(rig.failed.is_empty(), "{:?}", rig.failed);
    assert_eq!(
        rig.stdout(),
        "big-0\nmodule\nbig-1\nmodule\nbig-2\nmodule\nbig-3\nmodule\n"
    );
}

fn counts() {
    let software = Software::new();
    let full = software.script("head -c 80000000 /dev/zero > lib/big");
    let failed = fails(&software.spec(), &shell(&full));
    assert_eq!(failed.failure, "disk", "{failed:?}");
    assert!(failed.message.contains("may take 50 MB together"), "{failed:?}");
    let failed = fails(&software.spilling(), &shell(&format!("{full}; sleep 30")));
    assert_eq!(failed.failure, "disk", "{failed:?}");
}

fn still_masked() {
    let software = Software::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let bin = software.area.join("bin");
    let dirs: Vec<_> = std::env::split_paths(&path).chain([bin.clone()]).collect();
    std::env::set_var("PATH", std::env::join_paths(dirs).unwrap());
    let spec = SlotSpec {
        mask: vec![software.area.join("site"), software.area.join("lib/module")],
        batch_commands: vec!["submit".into()],
        view: tidemill_wire::View {
            show: vec![software.area.join("site/bin/sh").to_string_lossy().into_owned()],
            ..tidemill_wire::View::default()
        },
        ..software.spec()
    };
    let script = braces(
        &software.script(
            "echo x > new; cat site/key lib/module 2>/dev/null; ls -A site site/bin; { bin/submit ran; } 2>/dev/null; \
            touch site/x 2>/dev/null && echo writable; true"
        )
    );
    let sh = software.dir.path().join("sh"); // by this name it is not a program of the image, and is shown again
    std::os::unix::fs::symlink(software.area.join("site/bin/sh"), &sh).unwrap();
    let what = (program(sh.to_str().unwrap(), "command"), job(&["-c", &script]));
    let mut rig = Rig::new(&spec);
    std::env::set_var("PATH", path);
    rig.learn(&what).give(0, 40).all();
    assert!(rig.failed.is_empty(), "{:?}", rig.failed);
    assert_eq!(rig.stdout(), "site:\nbin\n\nsite/bin:\nsh\n".repeat(40));
}

fn still_veiled() {
    let software = Software::new();
    let at = |below: &str| software.area.join(below).to_string_lossy().into_owned();
    let spec = SlotSpec {
        view: tidemill_wire::View {
            veils: vec![at("lib"), at("site")],
            show: vec![at("site/bin")],
            ..tidemill_wire::View::default()
        },
        ..software.spec()
    };
    let script = software.script(
        "echo x > new; cat file; for top in . /tmp/.tidemill/real$PWD; do \
        cat $top/site/key $top/lib/module 2>/dev/null; done; ls -A lib site site/bin",
    );
    let mut rig = Rig::new(&spec);
    rig.learn(&shell(&script)).give(0, 3).all();
    assert!(rig.failed.is_empty(), "{:?}", rig.failed);
    let seen = "plain\nlib:\n\nsite:\nbin\n\nsite/bin:\nsh\n";
    assert_eq!(rig.stdout(), seen.repeat(3));
}

fn nothing_of_others() {
    let software = Software::new();
    let places = format!("/tmp $TMPDIR $HOME /dev/shm . {}", software.area.display());
    let write = format!("for d in {places}; do echo x > $d/left || exit 1; done; echo x > /tmp/.hidden");
    let look =
        format!("for d in {places}; do cat $d/left; done 2>/dev/null; cat /tmp/.hidden 2>/dev/null; true");
    for spec in [software.spec(), software.spilling()] {
        let mut rig = Rig::new(&spec);
        let other = tidemill_wire::JobDef {
            job: 6,
            ..shell(&look).1
        };
        rig.learn(&shell(&write)).tell(&ToSlot::Job(other)).give(0, 2);
        rig.tell(&ToSlot::Run {
            ticket: 9,
            job: 6,
            first: 0,
            count: 1,
            chunk_max: None,
        });
        rig.until(|rig| rig.settled() == 3);
        assert!(rig.failed.is_empty(), "{:?}", rig.failed);
        assert_eq!(rig.stdout(), "");
    }
}
