//! Paths below areas, rewritten to where an image's tree lies; for nodes without user namespaces.

/// What ends a path, or stands before one, in arguments and in variables such as PATH.
fn separates(letter: char) -> bool {
    letter.is_whitespace() || ":;,=\"'()[]{}<>|&`".contains(letter)
}

/// May a path begin after this text? At its start, after a separator, and after an option's dash and letter (`-I/sw/a`).
fn may_begin(before: &str) -> bool {
    let word = before.rsplit(separates).next().unwrap_or("");
    let mut letters = word.chars();
    match (letters.next(), letters.next(), letters.next()) {
        (None, ..) => true,
        (Some('-'), Some(letter), None) => letter.is_ascii_alphabetic(),
        _ => false,
    }
}

/// `text` with `root` put before every path that is one of `areas` or lies below one. A path is taken for one at the
/// start of a word (words end at white space, colons, equal signs, commas, quotes and brackets) or after an option of one
/// letter; `/data/sw/x` and `/sw2` are not below `/sw`.
pub fn relocate(root: &str, areas: &[String], text: &str) -> String {
    let areas: Vec<&str> = areas
        .iter()
        .map(|area| area.trim_end_matches('/'))
        .filter(|area| area.starts_with('/'))
        .collect();
    let root = root.trim_end_matches('/');
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for (at, _) in text.match_indices('/') {
        let rest = &text[at..];
        let below = areas.iter().any(|area| {
            rest.strip_prefix(area).is_some_and(|after| {
                after
                    .chars()
                    .next()
                    .is_none_or(|next| next == '/' || separates(next))
            })
        });
        if below && may_begin(&text[..at]) {
            out.push_str(&text[copied..at]);
            out.push_str(root);
            copied = at;
        }
    }
    out.push_str(&text[copied..]);
    out
}

#[cfg(test)]
mod tests {
    use super::relocate;
    use proptest::prelude::*;

    fn moved(text: &str) -> String {
        relocate("/dev/shm/i", &["/sw".into(), "/opt/exp/".into()], text)
    }

    #[test]
    fn words_lists_and_options_are_rewritten() {
        for (text, expected) in [
            ("/sw", "/dev/shm/i/sw"),
            ("/sw/bin/x", "/dev/shm/i/sw/bin/x"),
            ("/sw/a:/usr/bin:/sw/b", "/dev/shm/i/sw/a:/usr/bin:/dev/shm/i/sw/b"),
            ("--prefix=/opt/exp/r1", "--prefix=/dev/shm/i/opt/exp/r1"),
            ("-I/sw/include", "-I/dev/shm/i/sw/include"),
            (
                "import sys; sys.path.append('/sw/py')",
                "import sys; sys.path.append('/dev/shm/i/sw/py')",
            ),
            (":/sw:", ":/dev/shm/i/sw:"),
        ] {
            assert_eq!(moved(text), expected);
        }
    }

    #[test]
    fn what_only_looks_like_an_area_stays() {
        for text in [
            "/sw2/x",
            "/data/sw/x",
            "sw/x",
            "file:///sw/x",
            "/opt/experiment",
            "/opt",
            "",
            "//sw",
        ] {
            assert_eq!(moved(text), text);
        }
    }

    proptest! {
        #[test]
        fn nothing_but_the_root_is_added_and_doing_it_twice_is_doing_it_once(text in "[-/swa:= .x]{0,40}") {
            let once = moved(&text);
            prop_assert_eq!(once.replace("/dev/shm/i/sw", "/sw"), text.clone());
            prop_assert_eq!(moved(&once), once);
        }
    }
}
