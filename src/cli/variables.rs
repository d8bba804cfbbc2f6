//! Checks of the `KVORUM_*` variables. An empty variable counts as not set, because `${X:-}` in
//! scripts and compose files expands to an empty value. A warning names unknown variables, which
//! are most likely misspelled.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, CommandFactory, Error};

use crate::cli::Cli;
use crate::settings::secret;

/// Common prefix of the variables.
const PREFIX: &str = "KVORUM_";

/// Variable that is not a setting: the build script sets it for the compiler, and cargo for the
/// programs that it runs.
const BUILD_VARIABLE: &str = "KVORUM_VERSION";

/// Maximum edit distance between an unknown name and the suggested name.
const MAX_EDIT_DISTANCE: usize = 2;

/// Limit on the unknown variables that a warning names: an orchestrator may set dozens.
const MAX_NAMED: usize = 5;

/// Returns the command without the links to variables that are empty.
pub(crate) fn ignore_empty_variables(command: Command) -> Command {
    let is_empty =
        |arg: &Arg| arg.get_env().and_then(env::var_os).is_some_and(|value| value.is_empty());
    let keep = move |arg: Arg| if is_empty(&arg) { arg.env(None::<&'static str>) } else { arg };
    command.mut_args(keep).mut_subcommands(ignore_empty_variables)
}

/// Returns the command without the links to the variables in `names`.
pub(crate) fn ignore_variables(command: Command, names: &'static [&'static str]) -> Command {
    let is_ignored =
        |arg: &Arg| arg.get_env().is_some_and(|it| names.iter().any(|name| it == *name));
    let keep = move |arg: Arg| if is_ignored(&arg) { arg.env(None::<&'static str>) } else { arg };
    command.mut_args(keep).mut_subcommands(move |below| ignore_variables(below, names))
}

/// Returns the variables among `names` that are set and not empty.
pub(crate) fn find_set_variables(names: &[&'static str]) -> Vec<&'static str> {
    let is_set = |name: &&str| env::var_os(name).is_some_and(|value| !value.is_empty());
    names.iter().copied().filter(is_set).collect()
}

/// Returns the error with a usage line that omits arguments whose variables are set. The usage line
/// would otherwise show these arguments as required.
pub(crate) fn shorten_usage(error: Error, words: &[OsString]) -> Error {
    let again =
        without_variables(ignore_empty_variables(Cli::command())).try_get_matches_from_mut(words);
    match again {
        Err(again) if again.kind() == error.kind() && error.use_stderr() => again,
        _ => error,
    }
}

/// Returns the error with the variable's name instead of the flag's name, if the refused value came
/// from the variable.
pub(crate) fn name_variable(mut error: Error, words: &[OsString]) -> Error {
    let of = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let (Some(arg), Some(value)) = (of(ContextKind::InvalidArg), of(ContextKind::InvalidValue))
    else {
        return error;
    };
    let flag = arg.split(' ').next().unwrap_or_default();
    let is_given = words.iter().filter_map(|word| word.to_str()).any(|word| {
        word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    });
    let command = words.get(1).and_then(|name| Cli::command().find_subcommand(name).cloned());
    let variable = command.and_then(|command| {
        let is_it =
            |one: &&Arg| one.get_long().is_some_and(|long| flag.strip_prefix("--") == Some(long));
        let mut args = command.get_arguments().filter(is_it);
        args.find_map(|one| one.get_env().map(|name| name.to_string_lossy().into_owned()))
    });
    let variable = variable.filter(|name| !is_given && env::var(name).is_ok_and(|it| it == value));
    if let Some(variable) = variable {
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    error
}

/// Describes the first argument that is not UTF-8, or otherwise the first such `KVORUM_*` variable;
/// `None` if all are UTF-8.
pub(crate) fn non_utf8_input() -> Option<String> {
    let argument = env::args_os().skip(1).find(|word| word.to_str().is_none());
    let argument = argument.map(|word| format!("the argument {:?}", word.to_string_lossy()));
    argument.or_else(|| {
        let is_wrong = |(name, value): &(OsString, OsString)| {
            let name = name.to_str();
            name.is_some_and(|name| name.starts_with(PREFIX)) && value.to_str().is_none()
        };
        let (name, value) = env::vars_os().find(is_wrong)?;
        Some(format!("the variable {} ({:?})", name.display(), value.to_string_lossy()))
    })
}

/// Returns the command without the links to variables that are set, and with their arguments
/// optional.
fn without_variables(command: Command) -> Command {
    let keep = |arg: Arg| {
        let is_set = arg.get_env().and_then(env::var_os).is_some();
        if is_set { arg.env(None::<&'static str>).required(false) } else { arg }
    };
    command.mut_args(keep).mut_subcommands(without_variables)
}

/// Returns a warning if `KVORUM_*` variables are set that no command reads.
pub(crate) fn unknown_variables_warning() -> Option<String> {
    let others =
        [secret::CLUSTER.variable, secret::ADMIN.variable, secret::CLIENT.variable, BUILD_VARIABLE];
    let mut known = BTreeSet::from(others.map(str::to_owned));
    collect(&Cli::command(), &mut known);
    let set = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    warning(set.collect(), &known)
}

/// Adds the variables that a command and its subcommands read.
fn collect(command: &Command, known: &mut BTreeSet<String>) {
    let names = command.get_arguments().filter_map(Arg::get_env);
    known.extend(names.map(|name| name.to_string_lossy().into_owned()));
    for below in command.get_subcommands() {
        collect(below, known);
    }
}

fn warning(set: BTreeSet<String>, known: &BTreeSet<String>) -> Option<String> {
    let unknown = set.iter().filter(|name| name.starts_with(PREFIX) && !known.contains(*name));
    let unknown: Vec<_> = unknown.map(|name| name_with_suggestion(name, known)).collect();
    let more = unknown.len().saturating_sub(MAX_NAMED);
    let names = unknown[..unknown.len() - more].join(", ");
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!unknown.is_empty()).then(|| format!("ignored unknown environment variable(s): {names}{more}"))
}

/// Returns the name. Appends the most similar known name if the two are within
/// [`MAX_EDIT_DISTANCE`] edits of each other.
fn name_with_suggestion(name: &str, known: &BTreeSet<String>) -> String {
    let distance = |other: &&String| strsim::damerau_levenshtein(name, other);
    let nearest =
        known.iter().min_by_key(distance).filter(|other| distance(other) <= MAX_EDIT_DISTANCE);
    nearest.map_or_else(|| name.to_owned(), |nearest| format!("{name} (did you mean {nearest}?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_variables_are_named_with_the_most_similar_known_one() {
        let known = BTreeSet::from(["KVORUM_URL", "KVORUM_MEMORY"].map(str::to_owned));
        let reported =
            |names: &[&str]| warning(names.iter().map(|name| (*name).to_owned()).collect(), &known);
        assert_eq!(reported(&["KVORUM_URL", "PATH", "KVORUM", "KVORUMS_URL"]), None);
        let one = "ignored unknown environment variable(s): KVORUM_MEMROY (did you mean \
            KVORUM_MEMORY?)";
        assert_eq!(reported(&["KVORUM_MEMROY"]).as_deref(), Some(one));
        let many: Vec<_> = (0..9).map(|n| format!("KVORUM_PORT_808{n}_TCP")).collect();
        let many = reported(&many.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert!(many.ends_with("KVORUM_PORT_8084_TCP and 4 more"), "{many}");
    }

    #[test]
    fn every_variable_of_every_command_is_known() {
        let mut known = BTreeSet::new();
        collect(&Cli::command(), &mut known);
        assert!(
            ["KVORUM_URL", "KVORUM_LISTEN", "KVORUM_CONFIG"].iter().all(|n| known.contains(*n))
        );
    }
}
