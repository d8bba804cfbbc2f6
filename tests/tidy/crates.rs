//! Licenses, banned crates and sources, according to `deny.toml`.

use serde::Deserialize;

use crate::metadata::Package;
use crate::{Finding, spdx};

/// The only permitted registry, as cargo writes it.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The part of cargo-deny's configuration that this test understands.
#[derive(Debug, Deserialize)]
pub(crate) struct Policy {
    licenses: Licences,
    bans: Bans,
}

#[derive(Debug, Deserialize)]
struct Licences {
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Debug, Deserialize)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

impl Policy {
    pub(crate) fn parse(text: &str) -> Self {
        toml::from_str(text).unwrap()
    }
}

/// Finds every crate that is not permitted, with the reason.
pub(crate) fn check(packages: &[Package], policy: &Policy) -> Vec<Finding> {
    let foreign = packages.iter().filter(|package| package.source.is_some());
    foreign.flat_map(|package| check_one(package, policy)).collect()
}

fn check_one(package: &Package, policy: &Policy) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |what: String, why| {
        let place = format!("Cargo.lock: {} {}", package.name, package.version);
        findings.push(Finding { place, what, why });
    };
    let licence = package.licence.as_deref().unwrap_or("");
    match spdx::is_satisfied(licence, &policy.licenses.allow) {
        Some(true) => {}
        Some(false) => found(
            format!("its licence is {licence}"),
            "only permissive and file-level copyleft licences, listed in deny.toml",
        ),
        None => found(
            format!("its licence {licence:?} is no SPDX expression"),
            "a crate without a readable licence may not be passed on",
        ),
    }
    for ban in policy.bans.deny.iter().filter(|ban| ban.name == package.name) {
        found(format!("is banned: {}", ban.reason), "deny.toml bans it");
    }
    if package.source.as_deref() != Some(CRATES_IO) {
        found(
            format!("comes from {}", package.source.as_deref().unwrap_or_default()),
            "what is not on crates.io can change or vanish under us",
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::package;

    const POLICY: &str = "
        [licenses]
        allow = ['MIT']
        [bans]
        deny = [{ crate = 'sled', reason = 'unmaintained' }]
    ";

    fn foreign(name: &str, licence: Option<&str>, source: &str) -> Package {
        Package {
            licence: licence.map(str::to_owned),
            source: Some(source.to_owned()),
            ..package(name, &[])
        }
    }

    #[test]
    fn forbidden_crates_and_licences_are_found() {
        let found = |name, licence, source| {
            let findings = check(&[foreign(name, licence, source)], &Policy::parse(POLICY));
            findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        assert_eq!(found("bytes", Some("MIT"), CRATES_IO), [""; 0]);
        assert_eq!(found("bytes", Some("MIT OR GPL-3.0-only"), CRATES_IO), [""; 0]);
        assert_eq!(found("bytes", Some("SSPL-1.0"), CRATES_IO), ["its licence is SSPL-1.0"]);
        let none = "its licence \"\" is no SPDX expression";
        assert_eq!(found("bytes", None, CRATES_IO), [none]);
        assert_eq!(found("sled", Some("MIT"), CRATES_IO), ["is banned: unmaintained"]);
        assert_eq!(found("bytes", Some("MIT"), "git+elsewhere"), ["comes from git+elsewhere"]);
        assert_eq!(check(&[package("own", &[])], &Policy::parse(POLICY)), []);
    }
}
