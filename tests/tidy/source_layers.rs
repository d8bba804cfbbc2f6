//! Layers of the process in `src/`. A layer may import only the layers below it. Each feature has a
//! folder of its own, with a file for each layer that the feature takes part in.

use std::collections::BTreeSet;

use crate::{Finding, imports, text};

/// The layers from the top down. `main.rs` may import all of them.
const SOURCE_LAYERS: [&str; 9] =
    ["cli", "runtime", "http", "operations", "node", "peers", "transport", "counters", "settings"];

/// Folders of features.
const FEATURES: [&str; 8] =
    ["compact", "finalize", "joining", "layout", "quotas", "repair", "sample_history", "tokens"];

/// The layer of each file of a feature, by the file's name.
const FILES: [(&str, &str); 15] = [
    ("ask", "runtime"),
    ("recount", "runtime"),
    ("thread", "runtime"),
    ("params", "http"),
    ("routes", "http"),
    ("answers", "operations"),
    ("samples", "operations"),
    ("status", "operations"),
    ("warnings", "operations"),
    ("counts", "node"),
    ("joiners", "node"),
    ("lookup", "node"),
    ("plans", "node"),
    ("message", "peers"),
    ("ring", "counters"),
];

/// Other names that a layer must not use: layer, name, reason.
const FORBIDDEN_NAMES: [(&str, &str, &str); 2] = [
    (
        "http",
        "lsm::",
        "HTTP is handed what it needs of the store by those below it, as the words of the protocol",
    ),
    ("http", "node::Node", "HTTP is handed node::requests::Requests, and what it counts"),
];

const WHY: &str = "a layer is given what it needs of those above it: a value, or a function";

/// Returns the position of a layer, counted from 0 at the top. Returns `None` if the name is not a
/// layer.
fn depth(layer: &str) -> Option<usize> {
    SOURCE_LAYERS.iter().position(|known| *known == layer)
}

/// Returns the layer of a feature's file; `None` = the name is not known.
fn layer_of_file(file: &str) -> Option<&'static str> {
    FILES.iter().find(|(name, _)| *name == file).map(|(_, layer)| *layer)
}

/// Returns the layer of a file, by its path below `src/`; `None` for the `mod.rs` of a feature,
/// which belongs to no layer. Returns an error if the folder or the file is not listed above.
fn layer_of_path(inside: &str) -> Result<Option<&str>, String> {
    let (folder, file) = inside.split_once('/').expect("a file in a folder");
    if !FEATURES.contains(&folder) {
        let known = depth(folder).map(|_| Some(folder));
        return known.ok_or_else(|| format!("{folder} is none of the layers {SOURCE_LAYERS:?}"));
    }
    let file = file.trim_end_matches(".rs");
    if file == "mod" {
        return Ok(None);
    }
    let layer = layer_of_file(file).ok_or_else(|| format!("{file} has no layer in FILES"))?;
    Ok(Some(layer))
}

/// Returns the files of features that a file imports or names, each with the line, as
/// `feature::file`.
fn used_feature_files(path: &str, text: &str) -> BTreeSet<(usize, String)> {
    let pair = |import: imports::Import| {
        let [feature, file] = import.path.get(..2)? else { return None };
        FEATURES.contains(&feature.as_str()).then(|| (import.line, format!("{feature}::{file}")))
    };
    let mut named: BTreeSet<_> = imports::of(path, text).into_iter().filter_map(pair).collect();
    let all = FEATURES.iter().flat_map(|of| FILES.map(|(file, _)| format!("{of}::{file}")));
    for name in all {
        // A log line whose target is a module does not use the module.
        let target = format!("\"kvorum::{name}\"");
        let lines = text::code(path, text)
            .filter(|(_, line)| text::holds_word(line, &name) && !line.contains(&target));
        named.extend(lines.map(|(line, _)| (line, name.clone())));
    }
    named
}

/// Finds every import of a higher layer.
pub(crate) fn check(files: &[(String, String)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in files {
        let Some(inside) = path.strip_prefix("src/") else { continue };
        if !inside.contains('/') {
            continue;
        }
        let own = match layer_of_path(inside) {
            Ok(Some(own)) => own,
            Ok(None) => continue,
            Err(what) => {
                findings.push(Finding { place: path.clone(), what, why: WHY });
                continue;
            }
        };
        let depth_of = |layer| depth(layer).expect("FILES names layers");
        for import in imports::of(path, source) {
            let Some(other) = import.path.first() else { continue };
            if SOURCE_LAYERS[..depth_of(own)].contains(&other.as_str()) {
                let place = format!("{path}:{}", import.line);
                let what = format!("{own} imports {}, which is above it", import.path.join("::"));
                findings.push(Finding { place, what, why: WHY });
            }
        }
        for (line, name) in used_feature_files(path, source) {
            let file = name.split("::").last().unwrap_or_default();
            let Some(layer) = layer_of_file(file).filter(|of| depth_of(of) < depth_of(own)) else {
                continue;
            };
            let what = format!("{own} uses {name}, a part of {layer}, which is above it");
            findings.push(Finding { place: format!("{path}:{line}"), what, why: WHY });
        }
        for (layer, forbidden, why) in FORBIDDEN_NAMES {
            if own == layer
                && let Some((line, _)) =
                    text::code(path, source).find(|(_, line)| text::holds_word(line, forbidden))
            {
                let place = format!("{path}:{line}");
                findings.push(Finding { place, what: format!("{forbidden} is used"), why });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(path: &str, text: &str) -> Vec<String> {
        let findings = check(&[(path.to_owned(), text.to_owned())]);
        findings.into_iter().map(|f| format!("{} {}", f.place, f.what)).collect()
    }

    #[test]
    fn a_layer_imports_only_those_below_it() {
        let up = check_text("src/node/x.rs", "use crate::settings::a;\nuse crate::http::b::C;\n");
        assert_eq!(up, ["src/node/x.rs:2 node imports http::b::C, which is above it"]);
        assert!(
            check_text("src/http/x.rs", "use crate::node::a;\nuse crate::http::b;\n").is_empty()
        );
        assert!(check_text("src/main.rs", "use crate::cli::a;\n").is_empty());
        let tests = "#[cfg(test)]\nmod tests {\n    use crate::cli::a;\n}\n";
        assert!(check_text("src/peers/x.rs", tests).is_empty());
        assert_eq!(
            check_text("src/attic/x.rs", "").len(),
            1,
            "a new layer is given its place here"
        );
    }

    #[test]
    fn a_file_of_a_feature_has_a_layer() {
        let up = check_text("src/quotas/counts.rs", "use crate::quotas::routes::admit;\n");
        let what = "node uses quotas::routes, a part of http, which is above it";
        assert_eq!(up, [format!("src/quotas/counts.rs:1 {what}")]);
        let below = "use crate::tokens::lookup::Access;\nuse crate::quotas::status;\n";
        assert!(check_text("src/quotas/routes.rs", below).is_empty());
        let up = check_text("src/layout/status.rs", "use crate::http::Answer;\n");
        assert_eq!(
            up,
            ["src/layout/status.rs:1 operations imports http::Answer, which is above it"]
        );
        assert_eq!(check_text("src/layout/attic.rs", "").len(), 1, "a new file is given its layer");
        assert_eq!(check_text("src/repair/routes.rs", "use lsm::Db;\n").len(), 1);
    }

    #[test]
    fn http_does_not_know_the_engine() {
        let engine = "use lsm::Version;\n";
        assert_eq!(check_text("src/http/x.rs", engine), ["src/http/x.rs:1 lsm:: is used"]);
        assert!(check_text("src/node/x.rs", engine).is_empty());
    }
}
