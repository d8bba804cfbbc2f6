//! Detects the log format before the settings are checked, so a node reports invalid settings in
//! its log format.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;

use crate::settings::values::LogFormat;

/// Returns the log format of the first source that has one: the command line, the variable, or the
/// settings file that either of them names. `words` is the command line, beginning with the
/// program's name. Commands other than `serve` use text.
pub(crate) fn requested_format(words: &[OsString]) -> LogFormat {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
    if words.get(1).is_none_or(|command| command != "serve") {
        return LogFormat::Text;
    }
    let said = flag(words, "--log-format").or_else(|| variable("KVORUM_LOG_FORMAT"));
    let said = said.map(|word| word.to_string_lossy().into_owned());
    let file = || flag(words, "--config").or_else(|| variable("KVORUM_CONFIG")).map(PathBuf::from);
    // An unreadable file is an error of the next step, `config::load`.
    let text = || file().and_then(|file| fs::read_to_string(file).ok());
    let said = said.or_else(|| text().and_then(|text| in_file(&text)));
    // A later step refuses an invalid format, with an error in text format.
    said.and_then(|word| word.parse().ok()).unwrap_or(LogFormat::Text)
}

/// Returns the value of `flag` on the command line; `None` without the flag.
fn flag(words: &[OsString], flag: &str) -> Option<OsString> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == flag {
            return words.next().cloned();
        }
        let value = word.to_str().and_then(|word| word.strip_prefix(flag)?.strip_prefix('='));
        if let Some(value) = value {
            return Some(OsStr::new(value).to_owned());
        }
    }
    None
}

/// Returns the format in a settings file, even if other lines are invalid; `None` if there is none.
fn in_file(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "log-format").then_some(value)
    })?;
    let table = toml::from_str::<toml::Table>(&format!("log-format = {line}")).ok()?;
    Some(table.get("log-format")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_format_is_detected_despite_invalid_settings() {
        let of = |words: &[&str]| {
            let words = ["kvorum"].iter().chain(words).map(OsString::from);
            requested_format(&words.collect::<Vec<_>>())
        };
        assert_eq!(of(&["serve", "--nonsense", "--log-format", "json"]), LogFormat::Json);
        assert_eq!(of(&["serve", "--log-format=json", "--loops", "x"]), LogFormat::Json);
        assert_eq!(of(&["serve", "--log-format=xml"]), LogFormat::Text);
        assert_eq!(of(&["get", "--log-format=json"]), LogFormat::Text);
        assert_eq!(in_file("queue = \nlog-format = 'json' # all\n").as_deref(), Some("json"));
        assert_eq!(in_file("# log-format = \"json\"\n"), None);
    }
}
