//! Faults that are injected into a running or a stopped node.
//!
//! ```text
//!  net     links that are cut, lossy or slow: network namespaces (root)
//!  mount   disks that are full, read-only or lose their power: separate file systems (root)
//!  strace  system calls that fail or are delayed (strace)
//!  clock   wall clocks that are wrong or step (libfaketime)
//!  rot     records removed and bits flipped in a stopped node's directory
//! ```

pub mod clock;
pub mod mount;
pub mod net;
pub mod rot;
pub mod strace;

use std::process::Command;

use crate::Failure;

/// Runs a command until it exits. Every failure is [`Failure::Skipped`], with the command's stderr.
pub fn run(program: &str, args: &[&str]) -> Result<(), Failure> {
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|error| Failure::Skipped(format!("{program}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::Skipped(format!("`{program} {}`: {}", args.join(" "), said.trim())))
}
