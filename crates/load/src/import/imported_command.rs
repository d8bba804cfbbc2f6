//! Finds the command line of wrk, wrk2 or `kvorum-bench load` that a text quotes before an output,
//! and parses it.

use super::imported_figures::{count, seconds};

/// Maximum number of non-blank lines between a command line and the output of that command.
const REACH: usize = 8;

/// The beginnings of command lines whose outputs are imported.
const PROGRAMS: [&[&str]; 4] =
    [&["wrk"], &["wrk2"], &["kvorum-bench", "load"], &["kvorum", "bench", "load"]];

/// Flags without a value.
const SWITCHES: [&str; 12] = [
    "L",
    "latency",
    "U",
    "u_latency",
    "B",
    "batch_latency",
    "v",
    "version",
    "closed",
    "json",
    "strict",
    "verify",
];

/// A parsed command line of a load generator.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ImportedCommand {
    /// The words of the command line.
    pub(super) argv: Vec<String>,
    pub(super) threads: Option<usize>,
    pub(super) connections: Option<usize>,
    /// The duration as written, and in seconds.
    pub(super) duration: Option<(String, f64)>,
    pub(super) rate: Option<f64>,
    /// The word with the rate, if its flag is missing: `-40000`.
    pub(super) mistyped_rate: Option<String>,
    pub(super) script: Option<String>,
    pub(super) url: Option<String>,
}

/// Finds the last command line among the last lines of `before`. Returns `None` if there is none.
pub(super) fn find(before: &str) -> Option<ImportedCommand> {
    let lines = before.lines().rev().filter(|line| !line.trim().is_empty());
    lines.take(REACH).find_map(parse)
}

/// Parses a line that consists of a command line, perhaps in back quotes or after a prompt.
fn parse(line: &str) -> Option<ImportedCommand> {
    let line = line.trim().trim_matches('`').trim_start_matches(['$', '#', ' ']);
    let mut words = shlex::split(line)?;
    let end = words.iter().position(|word| word.starts_with(['>', '|', '&', ';']));
    words.truncate(end.unwrap_or(words.len()));
    let program = words.first()?.rsplit('/').next()?;
    let begins = |begin: &&&[&str]| {
        program == begin[0] && words.iter().skip(1).zip(&begin[1..]).all(|(word, of)| word == of)
    };
    let begin = PROGRAMS.iter().find(begins)?.len();
    if words.len() <= begin {
        return None;
    }
    let mut command = ImportedCommand { argv: words.clone(), ..ImportedCommand::default() };
    let mut rest = words.into_iter().skip(begin);
    while let Some(word) = rest.next() {
        command.word(&word, &mut rest);
    }
    Some(command)
}

impl ImportedCommand {
    fn word(&mut self, word: &str, rest: &mut impl Iterator<Item = String>) {
        let (flag, attached) = match word.strip_prefix("--") {
            Some(long) => {
                let (name, value) = long.split_once('=').unzip();
                (name.unwrap_or(long), value)
            }
            None => match word.strip_prefix('-') {
                Some(short) if short.starts_with(|c: char| c.is_ascii_digit()) => {
                    self.rate = count(short);
                    self.mistyped_rate = Some(word.to_owned());
                    return;
                }
                Some(short) if short.len() > 1 => {
                    let cut = short.chars().next().map_or(0, char::len_utf8);
                    (&short[..cut], Some(&short[cut..]))
                }
                Some(short) => (short, None),
                None => {
                    self.url = word.contains("://").then(|| word.to_owned());
                    return;
                }
            },
        };
        if SWITCHES.contains(&flag) {
            return;
        }
        let value = attached.map(str::to_owned).or_else(|| rest.next()).unwrap_or_default();
        match flag {
            "t" | "threads" => self.threads = value.parse().ok(),
            "c" | "connections" => self.connections = value.parse().ok(),
            "d" | "duration" => self.duration = seconds(&value).map(|s| (value, s)),
            "R" | "rate" => self.rate = count(&value),
            "s" | "script" => self.script = Some(value),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_in_common_forms_are_parsed() {
        let attached = parse("`wrk2 -t4 -c64 -R2.5k -d60m -s wrk/get.lua --latency  http://h:1`");
        let attached = attached.unwrap();
        assert_eq!((attached.threads, attached.connections), (Some(4), Some(64)));
        assert_eq!(
            (attached.rate, attached.duration),
            (Some(2500.0), Some(("60m".to_owned(), 3600.0)))
        );
        assert_eq!(attached.script.as_deref(), Some("wrk/get.lua"));
        assert_eq!(attached.url.as_deref(), Some("http://h:1"));
        let apart = parse("$ ./wrk -d 30 -t 1 --connections=1 -R 50000 -L http://h >> file");
        let apart = apart.unwrap();
        assert_eq!((apart.threads, apart.connections), (Some(1), Some(1)));
        assert_eq!((apart.rate, apart.duration), (Some(50_000.0), Some(("30".to_owned(), 30.0))));
        assert_eq!(apart.argv.last().map(String::as_str), Some("http://h"));
        let mistyped = parse("wrk2 -t4 -40000 http://h").unwrap();
        assert_eq!(mistyped.rate, Some(40_000.0));
        assert_eq!(mistyped.mistyped_rate.as_deref(), Some("-40000"));
    }

    #[test]
    fn command_lines_of_our_own_load_generator_are_parsed() {
        for program in ["kvorum-bench load", "./kvorum bench load"] {
            let command =
                parse(&format!("$ {program} --verify -t2 -c32 -d 30s -R 9k --strict http://h:1"));
            let command = command.unwrap();
            assert_eq!((command.threads, command.connections), (Some(2), Some(32)));
            assert_eq!((command.rate, command.url.as_deref()), (Some(9000.0), Some("http://h:1")));
        }
    }

    #[test]
    fn lines_that_are_not_commands_are_ignored() {
        let others = ["kvorum-bench load", "kvorum-bench import FILE", "kvorum status --url u"];
        let lines = ["wrk", "wrk2 'open", "I ran wrk2 -t4", "", "wrkx -t4 http://h"];
        for line in lines.into_iter().chain(others) {
            assert_eq!(parse(line), None, "{line}");
        }
        let far = format!("wrk2 -t1 http://h\n{}", "text\n\n".repeat(REACH));
        assert_eq!(find(&far), None);
        assert!(find(&far[..far.len() - "text\n\n".len()]).is_some());
    }
}
