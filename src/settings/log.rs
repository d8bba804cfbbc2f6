//! `--log`: parses the log level of each module.
//!
//! A filter has levels and modules. Any other word is refused, because a filter with only unknown
//! modules would turn all logging off.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// The targets of all log lines: the modules that log, `audit`, and h2, the HTTP/2 library, which
/// logs its frames at `debug` and `trace`. A test compares this list with the source.
const TARGETS: [&str; 37] = [
    "audit",
    "h2",
    "kvorum::http::body::items",
    "kvorum::joining::answers",
    "kvorum::joining::ask",
    "kvorum::node::clock",
    "kvorum::node::clock_comparison",
    "kvorum::node::task",
    "kvorum::operations::reports",
    "kvorum::operations::stderr",
    "kvorum::peers",
    "kvorum::peers::dial",
    "kvorum::peers::facts",
    "kvorum::peers::greet",
    "kvorum::peers::links",
    "kvorum::runtime::accept",
    "kvorum::runtime::credentials",
    "kvorum::runtime::directory_access",
    "kvorum::runtime::event_loop",
    "kvorum::runtime::limits",
    "kvorum::runtime::notify",
    "kvorum::runtime::serve",
    "kvorum::transport::tls",
    "lsm::db",
    "lsm::db::threads",
    "lsm::engine",
    "lsm::engine::core",
    "lsm::engine::damaged_tables",
    "lsm::engine::files",
    "lsm::engine::health",
    "lsm::engine::open",
    "server::clock",
    "server::compare",
    "server::hints",
    "server::identity::difference",
    "server::identity::layouts",
    "server::task",
];

/// Reason why a text is not a valid log filter.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum LogError {
    #[error("--log {0:?} names no level: write off to log nothing")]
    Empty(String),
    #[error("--log {text}: {word:?} is not a level: write off, error, warn, info, debug or trace")]
    Level { text: String, word: String },
    #[error(
        "--log {text}: {word:?} is neither a level (off, error, warn, info, debug, trace) nor a \
         module that logs ({known})"
    )]
    Module { text: String, word: String, known: String },
}

/// Parses the filter of `--log`: `LEVEL`, `MODULE=LEVEL` or `MODULE`, separated by commas. A module
/// without a level logs at all levels. All other modules log at `LEVEL`, or at `info` if no `LEVEL`
/// is given.
pub(super) fn parse_filter(text: &str) -> Result<Targets, LogError> {
    let mut filter = Targets::new().with_default(LevelFilter::INFO);
    let mut directives = text.split(',').map(str::trim).filter(|text| !text.is_empty()).peekable();
    if directives.peek().is_none() {
        return Err(LogError::Empty(text.to_owned()));
    }
    for directive in directives {
        let (module, level) = match directive.split_once('=') {
            Some((module, level)) => (module.trim(), Some(level.trim())),
            None => (directive, None),
        };
        let text = || text.to_owned();
        let word = level.unwrap_or(directive);
        // `LevelFilter` parses an empty word as a level.
        let parsed = word.parse::<LevelFilter>().ok().filter(|_| !word.is_empty());
        filter = match (level, parsed) {
            (None, Some(level)) => filter.with_default(level),
            (Some(word), None) => {
                return Err(LogError::Level { text: text(), word: word.to_owned() });
            }
            _ if !is_known(module) => {
                let (word, known) = (module.to_owned(), suggest_modules(module));
                return Err(LogError::Module { text: text(), word, known });
            }
            (_, parsed) => filter.with_target(module, parsed.unwrap_or(LevelFilter::TRACE)),
        };
    }
    Ok(filter)
}

/// Returns true if log lines have this target, or a target inside of it.
fn is_known(module: &str) -> bool {
    let is_in = |target: &&str| {
        let rest = target.strip_prefix(module);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    !module.is_empty() && TARGETS.iter().any(is_in)
}

/// Returns the known modules of the unknown module's crate; the known crates if the crate is
/// unknown too.
fn suggest_modules(module: &str) -> String {
    let root = |path: &'static str| path.split("::").next().unwrap_or(path);
    let of_crate = module.split("::").next().filter(|name| is_known(name));
    let mut known: Vec<&str> = match of_crate {
        Some(name) => TARGETS.into_iter().filter(|target| root(target) == name).collect(),
        None => TARGETS.into_iter().map(root).collect(),
    };
    known.dedup();
    known.join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use tracing::Level;

    use super::*;

    #[test]
    fn modules_log_from_their_configured_level() {
        let info =
            |text: &str, module| parse_filter(text).unwrap().would_enable(module, &Level::INFO);
        let debug =
            |text: &str, module| parse_filter(text).unwrap().would_enable(module, &Level::DEBUG);
        let texts = ["info,lsm=debug", "info, lsm = debug,", "INFO,,lsm=DEBUG", "lsm=debug,info"];
        for text in texts {
            assert!(info(text, "kvorum::http") && !debug(text, "kvorum::http"), "{text}");
            assert!(debug(text, "lsm") && debug(text, "lsm::db::threads"), "{text}");
        }
        assert!(info("lsm", "kvorum") && !debug("lsm", "kvorum") && debug("lsm", "lsm::db"));
        assert!(!info("off", "lsm") && !info("info,lsm=warn", "lsm"));
        assert!(info("warn,audit=info", "audit") && !info("warn,audit=info", "kvorum::peers"));
        assert!(debug("info,kvorum::peers=debug", "kvorum::peers::dial"));
    }

    #[test]
    fn an_unknown_word_of_a_filter_is_refused_with_the_known_words() {
        for (text, says) in [
            ("wanr", "\"wanr\" is neither a level (off, error, warn, info, debug, trace) nor a"),
            ("wanr", "(audit, h2, kvorum, lsm, server)"),
            ("info,lms=debug", "\"lms\" is neither"),
            ("lsm::wall=debug", "(lsm::db, lsm::db::threads, lsm::engine, "),
            ("ls", "\"ls\" is neither"),
            ("=info", "\"\" is neither"),
            ("lsm[{error}]=info", "\"lsm[{error}]\" is neither"),
            ("foo=bar", "\"bar\" is not a level: write off, error, warn"),
            ("lsm=", "\"\" is not a level"),
            ("a=b=info", "\"b=info\" is not a level"),
            ("", "--log \"\" names no level: write off to log nothing"),
            (" ,", "--log \" ,\" names no level"),
        ] {
            let error = parse_filter(text).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains('\n'), "{text:?}: {error}");
        }
    }

    /// Returns the target of the log lines in a source file.
    fn module(root: &str, path: &Path) -> String {
        let parts = path.with_extension("");
        let parts = parts.iter().map(|part| part.to_str().unwrap());
        let parts = parts.filter(|part| !["mod", "lib", "main"].contains(part));
        [root].into_iter().chain(parts).collect::<Vec<_>>().join("::")
    }

    fn collect(root: &str, top: &Path, folder: &Path, targets: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                collect(root, top, &entry, targets);
                continue;
            }
            let text = fs::read_to_string(&entry).unwrap_or_default();
            for level in ["error", "warn", "info", "debug", "trace"] {
                for rest in text.split(&format!("tracing::{level}!(")).skip(1) {
                    let named = rest.trim_start().strip_prefix("target: \"");
                    let named = named.and_then(|rest| rest.split('"').next());
                    let own = || module(root, entry.strip_prefix(top).unwrap());
                    targets.insert(named.map_or_else(own, str::to_owned));
                }
            }
        }
    }

    #[test]
    fn all_modules_that_log_are_known() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut targets = BTreeSet::from(["h2".to_owned()]);
        collect("kvorum", &here.join("src"), &here.join("src"), &mut targets);
        for name in ["lsm", "profile", "protocol", "server"] {
            let top = here.join("crates").join(name).join("src");
            collect(name, &top, &top, &mut targets);
        }
        assert_eq!(targets.iter().collect::<Vec<_>>(), TARGETS.iter().collect::<Vec<_>>());
    }
}
