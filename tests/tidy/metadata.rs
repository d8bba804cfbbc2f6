//! Cargo's metadata of this workspace's crates and of all their dependencies.

use std::process::Command;

use serde_json::Value;

/// A crate and its dependencies.
#[derive(Debug, Clone, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Source of the crate, as cargo writes it; `None` = this repository.
    pub(crate) source: Option<String>,
    pub(crate) licence: Option<String>,
    /// Text of the manifest; empty for crates from outside this repository.
    pub(crate) manifest: String,
    /// Build and runtime dependencies, as indices in the list of packages. Dependencies of tests
    /// only are omitted.
    pub(crate) needs: Vec<usize>,
}

/// Runs `cargo metadata`, and returns all packages that are used on this system.
pub(crate) fn read() -> Vec<Package> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--filter-platform", &host])
        .current_dir(crate::root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    parse(&serde_json::from_slice(&output.stdout).unwrap())
}

fn parse(metadata: &Value) -> Vec<Package> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let listed = metadata["packages"].as_array().unwrap();
    let place = |id: &Value| listed.iter().position(|package| package["id"] == *id).unwrap();
    let mut packages: Vec<_> = listed
        .iter()
        .map(|package| {
            let source = text(&package["source"]);
            let own = source.is_none().then(|| package["manifest_path"].as_str().unwrap());
            Package {
                name: text(&package["name"]).unwrap(),
                version: text(&package["version"]).unwrap(),
                licence: text(&package["license"]),
                manifest: own
                    .map_or_else(String::new, |path| std::fs::read_to_string(path).unwrap()),
                source,
                needs: Vec::new(),
            }
        })
        .collect();
    for node in metadata["resolve"]["nodes"].as_array().unwrap() {
        for needed in node["deps"].as_array().unwrap() {
            let kinds = needed["dep_kinds"].as_array().unwrap();
            if kinds.iter().any(|kind| kind["kind"] != "dev") {
                packages[place(&node["id"])].needs.push(place(&needed["pkg"]));
            }
        }
    }
    packages
}

/// A package for the tests of rules.
#[cfg(test)]
pub(crate) fn package(name: &str, needs: &[usize]) -> Package {
    Package {
        name: name.to_owned(),
        version: "1.0.0".to_owned(),
        manifest: "[lints]\nworkspace = true\n".to_owned(),
        needs: needs.to_vec(),
        ..Package::default()
    }
}
