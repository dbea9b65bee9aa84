//! Directories of fast tiers, whose names the batch system puts into the environment of each allocation.

use std::os::unix::fs::DirBuilderExt;

/// `$NAME` and `${NAME}` replaced; an error names what is not set.
pub fn expand(text: &str) -> Result<String, String> {
    expanded(text, &|name| std::env::var(name).ok())
}

/// Make a directory of this user's alone, and those above it, where they are not there.
pub fn make(path: &str) -> Result<(), String> {
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(0o700).recursive(true);
    builder
        .create(path)
        .map_err(|error| format!("failed to make `{path}`: {error}"))
}

fn expanded(text: &str, value: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut whole = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        whole.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        let (name, after) = match tail.strip_prefix('{').and_then(|tail| tail.split_once('}')) {
            Some((name, after)) => (name, after),
            None => {
                let end = tail
                    .find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
                    .unwrap_or(tail.len());
                tail.split_at(end)
            }
        };
        let found = value(name).filter(|value| !value.is_empty());
        whole.push_str(
            &found.ok_or_else(|| format!("`{text}`: the variable `{name}` is not set on this node"))?,
        );
        rest = after;
    }
    whole.push_str(rest);
    if whole.starts_with('/') {
        Ok(whole)
    } else {
        Err(format!(
            "`{text}` is not an absolute path on this node: `{whole}`"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_node_stand_in_directories() {
        let value = |name: &str| (name == "BB_DIR").then(|| String::from("/bb/7"));
        assert_eq!(expanded("$BB_DIR", &value).unwrap(), "/bb/7");
        assert_eq!(expanded("${BB_DIR}x/in", &value).unwrap(), "/bb/7x/in");
        assert_eq!(expanded("/local", &value).unwrap(), "/local");
        assert!(expanded("/x/$NONE/y", &value)
            .unwrap_err()
            .contains("`NONE` is not set"));
        assert!(expanded("local", &value).is_err());
    }
}
