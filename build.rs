//! Tells the program which commit it was built from, and packs the relocations of a static program
//! for x86-64.

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
    // The static program relocates itself, by a musl that reads packed relocations (DT_RELR). They
    // take 0.4 MB less. A dynamic program would need a loader that reads them: glibc 2.36.
    let target = |part: &str| std::env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    if target("ENV") == "musl" && target("ARCH") == "x86_64" {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // An archive of the sources has no commit.
    match described.as_deref().map(str::trim).filter(|commit| !commit.is_empty()) {
        Some(commit) => println!("cargo::rustc-env=KVORUM_VERSION={version} ({commit})"),
        None => println!("cargo::rustc-env=KVORUM_VERSION={version}"),
    }
}
