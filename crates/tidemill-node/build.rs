//! Refuses to build a release whose binary would need the node's libraries.

fn main() {
    println!("cargo:rerun-if-env-changed=CARGO_CFG_TARGET_FEATURE");
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if release && !features.split(',').any(|feature| feature == "crt-static") {
        // a source tree without .cargo/config.toml (an sdist) silently gives a dynamic binary
        eprintln!("tidemill-node must be static: build inside the repository, whose .cargo/config.toml sets crt-static");
        std::process::exit(1);
    }
}
