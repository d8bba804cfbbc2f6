//! Pins servers and clients to CPUs.

use std::path::{Path, PathBuf};
use std::process::Command;

use bench_table::{Server, find, free_address};

/// The CPU of servers.
pub(crate) const SERVER_CPU: usize = 0;

/// The CPU of clients.
pub(crate) const CLIENT_CPU: usize = 1;

/// Pins this thread, and the threads that it starts from now on, to a CPU.
pub(crate) fn pin_to(cpu: usize) -> Result<(), String> {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus)
        .map_err(|error| format!("can't run on CPU {cpu}: {error}"))
}

/// Returns the command of `program`, pinned to a CPU.
pub(crate) fn pinned_command(cpu: usize, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(cpu.to_string()).arg(program);
    command
}

/// Starts `hyper-hello` on the CPU of servers.
pub(crate) fn hello(dir: &Path) -> Result<Server, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = own.with_file_name("hyper-hello");
    if !program.exists() {
        return Err(format!("{} is not built: use bench/load.sh", program.display()));
    }
    let address = free_address().map_err(|error| error.to_string())?;
    let mut command = pinned_command(SERVER_CPU, &program);
    command.arg(address.to_string());
    Server::start(command, address, &dir.join("hello.log"))
}

/// Returns the path of wrk, as packaged by Debian.
pub(crate) fn wrk() -> Result<PathBuf, String> {
    find("wrk", "wrk")
}
