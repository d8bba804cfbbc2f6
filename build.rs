//! Tells the program which commit it was built from.

use std::process::Command;

fn main() {
    // Without rerun-if lines Cargo runs this again when any file of the package has changed.
    let described = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok());
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    // An archive of the sources has no commit.
    match described.as_deref().map(str::trim).filter(|commit| !commit.is_empty()) {
        Some(commit) => println!("cargo::rustc-env=KVORUM_VERSION={version} ({commit})"),
        None => println!("cargo::rustc-env=KVORUM_VERSION={version}"),
    }
}
