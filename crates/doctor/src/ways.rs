//! From what a node can do to the ways that images, isolation, tracing and containers take there. Pure.

use serde::Serialize;

use crate::facts::{
    Facts, Tried, FUSE, FUSE_DEVICE, MOUNT, NESTED, OVERLAY, PROC, PTRACE, SECCOMP, TMPFS, TRACE, USER,
};

/// One way, why this one, and what it costs against the best one (empty: nothing).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Way {
    pub way: &'static str,
    pub why: String,
    pub cost: &'static str,
}

/// The ways of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ways {
    /// `fuse`, `unpack` or `relocate`
    pub images: Way,
    /// `namespaces` or `subreaper`
    pub isolation: Way,
    /// `ptrace` or `none`
    pub tracing: Way,
    /// containers started inside slots: `rootless` or `none`
    pub containers: Way,
    /// where slots' work directories are: `tmpfs` or `directory`
    pub scratch: Way,
}

impl Ways {
    pub fn all(&self) -> [(&'static str, &Way); 5] {
        [
            ("images", &self.images),
            ("isolation", &self.isolation),
            ("tracing", &self.tracing),
            ("containers", &self.containers),
            ("scratch", &self.scratch),
        ]
    }
}

/// Which ways are taken on a node with these facts.
pub fn ways(facts: &Facts) -> Ways {
    Ways {
        images: images(facts),
        isolation: isolation(facts),
        tracing: tracing(facts),
        containers: containers(facts),
        scratch: scratch(facts),
    }
}

fn best(way: &'static str, why: &str) -> Way {
    Way {
        way,
        why: why.to_owned(),
        cost: "",
    }
}

/// The first of these that does not work, in words.
fn lack(facts: &Facts, needs: &[&str]) -> Option<String> {
    let name = needs.iter().find(|name| !facts.can(name))?;
    let what = match *name {
        USER => "user namespaces",
        MOUNT => "mount namespaces",
        TMPFS => "tmpfs in a user namespace",
        OVERLAY => "overlay in a user namespace",
        FUSE_DEVICE => "/dev/fuse",
        FUSE => "FUSE in a user namespace",
        PROC => "a /proc of one's own",
        NESTED => "a user namespace inside a slot's",
        TRACE => "ptrace with a seccomp filter",
        other => other,
    };
    let forbids = forbids(facts, name);
    let forbids = if forbids.is_empty() {
        forbids
    } else {
        format!(" ({forbids})")
    };
    Some(format!("no {what}: {}{forbids}", facts.why(name)))
}

/// The setting that forbids it, where one is known; empty = none is.
fn forbids(facts: &Facts, name: &str) -> String {
    let is = |key: &str, value: &str| facts.sysctl.get(key).is_some_and(|found| found == value);
    let namespaces = [USER, MOUNT, TMPFS, OVERLAY, FUSE, PROC, NESTED].contains(&name);
    let set = |key: &str, value: &str, meaning: &str| format!("sysctl {key} is {value}: {meaning}");
    if name == TRACE || name == PTRACE {
        let yama = "kernel.yama.ptrace_scope";
        return if is(yama, "3") {
            set(yama, "3", "tracing is forbidden")
        } else {
            String::new()
        };
    }
    if !namespaces {
        return String::new();
    }
    if is("user.max_user_namespaces", "0") {
        return set("user.max_user_namespaces", "0", "none are allowed");
    }
    if is("kernel.unprivileged_userns_clone", "0") && facts.uid != 0 {
        return set("kernel.unprivileged_userns_clone", "0", "only root may have them");
    }
    if is("kernel.apparmor_restrict_unprivileged_userns", "1") && facts.uid != 0 {
        let meaning =
            "AppArmor takes the rights in them away; a profile for tidemill-node with `userns,` allows it";
        return set("kernel.apparmor_restrict_unprivileged_userns", "1", meaning);
    }
    if facts.why(name).contains("os error 28") {
        return "the limit user.max_user_namespaces is reached, here or in a namespace around us".to_owned();
    }
    String::new()
}

fn images(facts: &Facts) -> Way {
    const RELOCATED: &str =
        "images are unpacked below /dev/shm, and paths in arguments and environment are rewritten: \
                             paths that are written inside files still lead to the shared file system";
    const MEMORY: &str = "images are unpacked into memory: unpacked size instead of packed size on each node";
    const READ_ONLY: &str = "payloads cannot write below the areas of an image";
    const BOTH: &str =
        "images are unpacked into memory: unpacked size instead of packed size on each node; payloads \
                        cannot write below the areas of an image";
    if let Some(why) = lack(facts, &[USER, MOUNT, TMPFS]) {
        return Way {
            way: "relocate",
            why,
            cost: RELOCATED,
        };
    }
    let no_overlay = lack(facts, &[OVERLAY]);
    let program = facts.program(&["squashfuse_ll", "squashfuse"]);
    let no_fuse = match (lack(facts, &[FUSE_DEVICE, FUSE]), program) {
        (None, None) => Some("no squashfuse on PATH or beside Apptainer".to_owned()),
        (why, _) => why,
    };
    let way = if no_fuse.is_some() { "unpack" } else { "fuse" };
    // a user's squashfuse runs in a nested user namespace, where the image's files of user 0 belong to the payloads'
    // user
    let others = (no_fuse.is_none() && facts.uid != 0)
        .then(|| lack(facts, &[NESTED]))
        .flatten();
    let no_writing = no_overlay.or(others);
    let cost = match (&no_fuse, &no_writing) {
        (None, None) => "",
        (Some(_), None) => MEMORY,
        (None, Some(_)) => READ_ONLY,
        (Some(_), Some(_)) => BOTH,
    };
    let reasons: Vec<String> = [no_fuse, no_writing].into_iter().flatten().collect();
    let why = match (reasons.is_empty(), program) {
        (true, Some(program)) => format!("/dev/fuse is open to us and {program} is there"),
        _ => reasons.join("; "),
    };
    Way { way, why, cost }
}

fn isolation(facts: &Facts) -> Way {
    match lack(facts, &[USER, MOUNT, TMPFS, PROC]) {
        None => best("namespaces", "user, mount and PID namespaces work, uid kept"),
        Some(why) => Way {
            way: "subreaper",
            why,
            cost: "payloads see each other and the site's files, and share /tmp; a site that serves others refuses \
                   them unless its `isolation` is `optional` or `off`",
        },
    }
}

fn tracing(facts: &Facts) -> Way {
    match lack(facts, &[PTRACE, SECCOMP, TRACE]) {
        None => best("ptrace", "ptrace with a seccomp filter works"),
        Some(why) => Way {
            way: "none",
            why,
            cost: "no profile is made here: forecasts of file system operations use profiles of other nodes, or none",
        },
    }
}

fn containers(facts: &Facts) -> Way {
    match lack(facts, &[USER, MOUNT, NESTED]) {
        None => best("rootless", "user namespaces work inside a slot's"),
        Some(why) => Way {
            way: "none",
            why,
            cost: "applications with `container` do not start in slots with namespaces",
        },
    }
}

fn scratch(facts: &Facts) -> Way {
    match lack(facts, &[USER, MOUNT, TMPFS]) {
        None => best("tmpfs", "each slot has its own, with a hard cap"),
        Some(why) => Way {
            way: "directory",
            why,
            cost:
                "work directories are directories in /dev/shm or /tmp, their cap is watched and not enforced",
        },
    }
}

// ---- the table of the documentation --------------------------------------------------------------------------------

/// A node where everything works but these.
fn without(lacks: &[&str], why: &str) -> Facts {
    let mut facts = Facts::default();
    for name in [
        USER,
        MOUNT,
        TMPFS,
        OVERLAY,
        FUSE_DEVICE,
        FUSE,
        PROC,
        NESTED,
        PTRACE,
        SECCOMP,
        TRACE,
    ] {
        let ok = !lacks.contains(&name);
        let why = if ok { "" } else { why };
        let tried = Tried {
            ok,
            why: why.to_owned(),
        };
        facts.tried.insert(name.to_owned(), tried);
    }
    if !lacks.contains(&"squashfuse") {
        facts
            .programs
            .insert("squashfuse".to_owned(), "squashfuse".to_owned());
    }
    facts
}

/// What a node lacks -> the way of each, as Markdown.
pub fn table() -> String {
    let rows: [(&str, &[&str]); 7] = [
        ("nothing", &[]),
        ("squashfuse", &["squashfuse"]),
        ("`/dev/fuse` for users", &[FUSE_DEVICE, FUSE]),
        ("overlay in user namespaces (Linux before 5.11)", &[OVERLAY]),
        ("user namespaces inside others", &[NESTED]),
        (
            "user namespaces",
            &[USER, MOUNT, TMPFS, OVERLAY, FUSE, PROC, NESTED],
        ),
        ("ptrace (`kernel.yama.ptrace_scope = 3`)", &[PTRACE, TRACE]),
    ];
    let mut text = String::from("| the node lacks");
    let heads = ways(&without(&[], ""));
    for (what, _) in heads.all() {
        text += &format!(" | {what}");
    }
    text += " |\n|---|---|---|---|---|---|\n";
    for (name, lacks) in rows {
        text += &format!("| {name}");
        for (_, way) in ways(&without(lacks, "")).all() {
            text += &format!(" | `{}`", way.way);
        }
        text += " |\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(lacks: &[&str]) -> [&'static str; 5] {
        ways(&without(lacks, "Operation not permitted"))
            .all()
            .map(|(_, way)| way.way)
    }

    #[test]
    fn a_node_that_can_everything_takes_the_best_ways() {
        assert_eq!(taken(&[]), ["fuse", "namespaces", "ptrace", "rootless", "tmpfs"]);
    }

    #[test]
    fn each_lack_costs_its_own_way_only() {
        assert_eq!(taken(&["squashfuse"])[0], "unpack");
        assert_eq!(taken(&[FUSE_DEVICE])[0], "unpack");
        let read_only = ways(&without(&[OVERLAY], "Operation not permitted")).images;
        assert_eq!(read_only.way, "fuse");
        assert!(read_only.cost.contains("cannot write"));
        let mut facts = without(&[NESTED], "Operation not permitted");
        facts.uid = 1000;
        let foreign = ways(&facts).images;
        assert_eq!(foreign.way, "fuse");
        assert!(foreign.cost.contains("cannot write") && foreign.why.contains("inside a slot's"));
        assert_eq!(taken(&[TRACE])[2], "none");
        assert_eq!(taken(&[TRACE])[..2], ["fuse", "namespaces"]);
    }

    #[test]
    fn without_user_namespaces_the_reason_names_them() {
        let ways = ways(&without(&[USER, MOUNT, TMPFS, OVERLAY, PROC, NESTED], "EPERM"));
        assert_eq!(ways.images.way, "relocate");
        assert_eq!(ways.isolation.why, "no user namespaces: EPERM");
        assert!(!ways.images.cost.is_empty());
    }

    #[test]
    fn the_setting_that_forbids_is_named() {
        let mut facts = without(&[TMPFS, OVERLAY], "Permission denied");
        facts.uid = 1000;
        let key = "kernel.apparmor_restrict_unprivileged_userns";
        facts.sysctl.insert(key.to_owned(), "1".to_owned());
        assert!(ways(&facts).images.why.contains(key));
        let mut facts = without(&[PTRACE, TRACE], "Operation not permitted");
        facts
            .sysctl
            .insert("kernel.yama.ptrace_scope".to_owned(), "3".to_owned());
        assert!(ways(&facts).tracing.why.contains("ptrace_scope is 3"));
    }

    #[test]
    fn what_was_never_tried_does_not_work() {
        assert_eq!(ways(&Facts::default()).tracing.way, "none");
    }
}
