//! Layers of crates: the dependencies, direct or indirect, that each crate must not have.

use std::collections::VecDeque;

use crate::Finding;
use crate::metadata::Package;

struct Layer {
    name: &'static str,
    forbidden: &'static [&'static str],
    why: &'static str,
}

const LAYERS: [Layer; 8] = [
    Layer {
        name: "kvorum",
        forbidden: &["load", "kvorum-bench", "mlua", "maud", "hdrhistogram"],
        why: "a process that holds data carries no load generator, no Lua and no reports",
    },
    Layer {
        name: "record",
        forbidden: &[
            "lsm", "protocol", "server", "load", "profile", "kvorum", "tokio", "hyper", "rustix",
            "libc", "socket2", "mio", "rand",
        ],
        why: "a record is bytes and what they mean, under the engine and the protocol",
    },
    Layer {
        name: "lsm",
        forbidden: &[
            "protocol",
            "server",
            "load",
            "kvorum",
            "tokio",
            "hyper",
            "hyper-util",
            "socket2",
            "mio",
        ],
        why: "the engine knows keys, records and files; networks and runtimes are its callers'",
    },
    Layer {
        name: "protocol",
        forbidden: &[
            "lsm", "server", "load", "kvorum", "tokio", "hyper", "rustix", "libc", "socket2", "mio",
        ],
        why: "the protocol is pure: messages in, messages out, so that a simulation can run it",
    },
    Layer {
        name: "server",
        forbidden: &[
            "sim",
            "load",
            "kvorum",
            "tokio",
            "hyper",
            "hyper-util",
            "socket2",
            "mio",
            "rand",
        ],
        why: "what lies between protocol and engine is driven by the process and by the simulation",
    },
    Layer {
        name: "sim",
        forbidden: &["load", "kvorum", "tokio", "hyper", "socket2", "mio", "rand"],
        why: "the simulation runs the protocol and the engine, and nothing of the real world",
    },
    Layer {
        name: "load",
        forbidden: &["lsm", "protocol", "server", "kvorum"],
        why: "the load generator works against any HTTP server and knows none from inside",
    },
    Layer {
        name: "kvorum-bench",
        forbidden: &["lsm", "protocol", "server", "kvorum"],
        why: "it measures kvorum from outside, as any other server",
    },
];

/// Crates whose dependencies are exempt: locks use the kernel to wait, and for nothing else.
const LOCKS: [&str; 1] = ["parking_lot"];

/// Finds every forbidden dependency, with a path that leads to it.
pub(crate) fn check(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for layer in LAYERS {
        let start = packages.iter().position(|package| package.name == layer.name);
        let start = start.unwrap_or_else(|| panic!("there is no crate {}", layer.name));
        for target in layer.forbidden {
            if let Some(dependency_path) = dependency_path(packages, start, target) {
                let what = format!("reaches {target}: {}", dependency_path.join(" -> "));
                let place = format!("Cargo.toml of {}", layer.name);
                findings.push(Finding { place, what, why: layer.why });
            }
        }
    }
    for package in packages.iter().filter(|package| package.source.is_none()) {
        if !package.manifest.contains("[lints]\nworkspace = true") {
            findings.push(Finding {
                place: format!("Cargo.toml of {}", package.name),
                what: "has no `[lints]` with `workspace = true`".to_owned(),
                why: "without it none of the workspace's lints look at the crate",
            });
        }
    }
    findings
}

/// Returns the shortest path of dependencies from a package to the package `target`. Returns `None`
/// if there is no path.
fn dependency_path(packages: &[Package], start: usize, target: &str) -> Option<Vec<String>> {
    let mut previous = vec![None; packages.len()];
    let mut queue = VecDeque::from([start]);
    while let Some(current) = queue.pop_front() {
        if packages[current].name == target {
            let back = std::iter::successors(Some(current), |place| previous[*place]);
            let mut dependency_path: Vec<_> =
                back.map(|place| packages[place].name.clone()).collect();
            dependency_path.reverse();
            return Some(dependency_path);
        }
        if LOCKS.contains(&packages[current].name.as_str()) {
            continue;
        }
        for next in &packages[current].needs {
            if previous[*next].is_none() && *next != start {
                previous[*next] = Some(current);
                queue.push_back(*next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::package;

    /// Returns packages in layers: `kvorum` depends on `lsm`, and `lsm` on "between", whose
    /// dependencies are `between_needs`.
    fn workspace(between_needs: &[usize]) -> Vec<Package> {
        vec![
            package("lsm", &[3]),
            package("protocol", &[]),
            package("load", &[]),
            package("between", between_needs),
            package("tokio", &[]),
            package("sim", &[1]),
            package("kvorum", &[0, 1, 4]),
            package("kvorum-bench", &[2]),
            package("server", &[1]),
            package("record", &[]),
        ]
    }

    #[test]
    fn an_indirect_dependency_breaks_a_layer_too() {
        assert_eq!(check(&workspace(&[])), []);
        let findings = check(&workspace(&[4]));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].place, "Cargo.toml of lsm");
        assert_eq!(findings[0].what, "reaches tokio: lsm -> between -> tokio");
        let findings = check(&workspace(&[1]));
        assert_eq!(findings[0].what, "reaches protocol: lsm -> between -> protocol");
        let findings = check(&workspace(&[2]));
        assert_eq!(findings[0].what, "reaches load: kvorum -> lsm -> between -> load");
    }

    #[test]
    fn a_crate_without_the_lints_is_found() {
        let mut packages = workspace(&[]);
        packages[3].manifest.clear();
        assert_eq!(check(&packages)[0].place, "Cargo.toml of between");
        packages[3].source = Some("registry+elsewhere".to_owned());
        assert_eq!(check(&packages), [], "those of others are theirs");
    }
}
