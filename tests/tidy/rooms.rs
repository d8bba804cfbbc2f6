//! Layers ("rooms") of the process, `src/`: each may import those below it.

use crate::{Finding, imports};

/// The layers from the top down. `main.rs` may import all of them.
const ROOMS: [&str; 9] =
    ["cli", "runtime", "http", "operations", "node", "peers", "transport", "counters", "settings"];

/// External names that a layer must not use either.
const STRANGERS: [(&str, &str, &str); 2] = [
    (
        "src/http/",
        "lsm::",
        "HTTP is handed what it needs of the store by those below it, as the words of the protocol",
    ),
    ("src/http/", "node::Node", "HTTP is handed node::requests::Requests, and what it counts"),
];

const WHY: &str = "a room is given what it needs of those above it: a value, or a function";

/// Finds every import of a higher layer.
pub(crate) fn check(files: &[(String, String)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files {
        let Some(inside) = path.strip_prefix("src/") else { continue };
        let Some((room, _)) = inside.split_once('/') else { continue };
        let height = ROOMS.iter().position(|known| *known == room);
        let Some(height) = height else {
            let what = format!("{room} is none of the rooms {ROOMS:?}");
            findings.push(Finding { place: path.clone(), what, why: WHY });
            continue;
        };
        for import in imports::of(path, text) {
            let Some(other) = import.path.first() else { continue };
            if ROOMS[..height].contains(&other.as_str()) {
                let place = format!("{path}:{}", import.line);
                let what = format!("{room} imports {}, which is above it", import.path.join("::"));
                findings.push(Finding { place, what, why: WHY });
            }
        }
        for (folder, stranger, why) in STRANGERS {
            if path.starts_with(folder)
                && let Some((line, _)) = crate::text::code(path, text)
                    .find(|(_, line)| crate::text::holds_word(line, stranger))
            {
                let place = format!("{path}:{line}");
                findings.push(Finding { place, what: format!("{stranger} is used"), why });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let findings = check(&[(path.to_owned(), text.to_owned())]);
        findings.into_iter().map(|f| format!("{} {}", f.place, f.what)).collect()
    }

    #[test]
    fn a_room_knows_those_below_it_only() {
        let up = found("src/node/x.rs", "use crate::settings::a;\nuse crate::http::b::C;\n");
        assert_eq!(up, ["src/node/x.rs:2 node imports http::b::C, which is above it"]);
        assert!(found("src/http/x.rs", "use crate::node::a;\nuse crate::http::b;\n").is_empty());
        assert!(found("src/main.rs", "use crate::cli::a;\n").is_empty());
        let tests = "#[cfg(test)]\nmod tests {\n    use crate::cli::a;\n}\n";
        assert!(found("src/peers/x.rs", tests).is_empty());
        assert_eq!(found("src/attic/x.rs", "").len(), 1, "a new room is given its place here");
    }

    #[test]
    fn http_does_not_know_the_engine() {
        let engine = "use lsm::Version;\n";
        assert_eq!(found("src/http/x.rs", engine), ["src/http/x.rs:1 lsm:: is used"]);
        assert!(found("src/node/x.rs", engine).is_empty());
    }
}
