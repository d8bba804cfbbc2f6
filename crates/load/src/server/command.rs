//! The command line that starts a server, as words. No shell is involved.

use std::path::Path;

use super::Error;

/// Placeholder of a data directory, which is fresh at each start.
const DATA: &str = "{data}";

/// The words of a server's command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCommand {
    words: Vec<String>,
}

impl ServerCommand {
    /// Splits the line as a shell would (blanks, quotes, backslashes), without any expansion.
    /// Returns an error for an open quote or an empty line.
    pub fn parse(line: &str) -> Result<Self, Error> {
        let wrong = |why| Error::Command { line: line.to_owned(), why };
        let words = shlex::split(line).ok_or_else(|| wrong("a quote is not closed"))?;
        if words.is_empty() {
            return Err(wrong("it is empty: give the command that starts the server"));
        }
        Ok(Self { words })
    }

    /// Returns the words of the command, as given.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Returns true if the command line has the placeholder of a data directory.
    pub fn has_data(&self) -> bool {
        self.words.iter().any(|word| word.contains(DATA))
    }

    /// Returns the command with `--flag value`, which replaces an earlier value or is added at the
    /// end.
    #[must_use]
    pub fn with_flag(&self, flag: &str, value: &str) -> Self {
        let name = format!("--{flag}");
        let attached = format!("{name}=");
        let mut words = self.words.clone();
        if let Some(at) = words.iter().position(|word| word.starts_with(&attached)) {
            words[at] = format!("{attached}{value}");
        } else if let Some(at) = words.iter().position(|word| *word == name) {
            words.splice(at + 1..(at + 2).min(words.len()), [value.to_owned()]);
        } else {
            words.extend([name, value.to_owned()]);
        }
        Self { words }
    }

    /// Returns the words to run, with `data` in place of `{data}`.
    pub(crate) fn resolve(&self, data: Option<&Path>) -> Vec<String> {
        let data = data.map(|data| data.display().to_string()).unwrap_or_default();
        self.words.iter().map(|word| word.replace(DATA, &data)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::ServerCommand;

    fn words(line: &str) -> Vec<String> {
        ServerCommand::parse(line).unwrap().words().to_vec()
    }

    #[test]
    fn a_command_line_is_split_like_a_shell() {
        assert_eq!(words("kvorum serve  --data '/a b'"), ["kvorum", "serve", "--data", "/a b"]);
        assert_eq!(words("echo $HOME ~"), ["echo", "$HOME", "~"]);
        for wrong in ["", "   ", "kvorum 'serve"] {
            assert!(ServerCommand::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_flag_is_replaced_where_it_is_or_appended() {
        let set = |line: &str| {
            ServerCommand::parse(line).unwrap().with_flag("loops", "4").words().join(" ")
        };
        assert_eq!(set("kvorum serve"), "kvorum serve --loops 4");
        assert_eq!(
            set("kvorum serve --loops 1 --sync never"),
            "kvorum serve --loops 4 --sync never"
        );
        assert_eq!(set("kvorum serve --loops=1 -v"), "kvorum serve --loops=4 -v");
        assert_eq!(set("kvorum serve --loops"), "kvorum serve --loops 4");
        assert_eq!(set("kvorum serve --loops-x 1"), "kvorum serve --loops-x 1 --loops 4");
    }

    #[test]
    fn the_data_placeholder_is_replaced_everywhere() {
        let command = ServerCommand::parse("serve --data {data} --log={data}/log").unwrap();
        assert!(command.has_data());
        let words = command.resolve(Some("/tmp/x".as_ref()));
        assert_eq!(words, ["serve", "--data", "/tmp/x", "--log=/tmp/x/log"]);
        assert!(!ServerCommand::parse("serve --data data").unwrap().has_data());
    }
}
