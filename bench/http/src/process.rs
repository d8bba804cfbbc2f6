//! Pins servers and clients to CPUs.

use std::path::Path;
use std::process::Command;

pub(crate) use bench_table::{Server, argv, find, free_address};

/// The CPU of the servers. Clients and this program run on the other CPU.
pub(crate) const SERVER_CPU: usize = 0;
/// The CPU of the clients and of this program.
pub(crate) const CLIENT_CPU: usize = 1;

/// Returns the command of `program`, pinned to `cpu`.
pub(crate) fn pinned_command(cpu: usize, program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(cpu.to_string()).arg(program.as_ref());
    command
}
