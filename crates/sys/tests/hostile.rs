//! Mounts are read from whatever stands in /proc/self/mountinfo: administrators choose the names.

use tidemill_fuzz::hunt;
use tidemill_sys::mountinfo::{mounts, unescaped};

#[test]
fn mounts_of_any_text() {
    hunt("mountinfo", |bytes| {
        let text = String::from_utf8_lossy(bytes);
        assert!(mounts(&text).len() <= text.lines().count());
    });
}

#[test]
fn a_name_without_a_backslash_is_as_it_stands() {
    hunt("mountinfo", |bytes| {
        let text = String::from_utf8_lossy(bytes).replace('\\', "/");
        assert_eq!(unescaped(&text), text);
    });
}
