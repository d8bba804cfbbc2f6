//! The man page and shell completions of `kvorum-bench` in the packages.

#[path = "../src/cli.rs"]
mod cli;
#[path = "../../../packaging/pages.rs"]
mod pages;

use clap::CommandFactory;

#[test]
fn man_pages_and_completions_match_the_command_line() {
    pages::hold(cli::Cli::command());
}
