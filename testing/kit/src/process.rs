//! A child process of any program: its signals, its exit, and its statistics in `/proc`.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Pause between two checks whether a process has exited.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A running process, killed when dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts a command.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    /// Returns the id of the process.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }

    /// Kills the process by SIGKILL. Returns its exit status.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.0.kill()?;
        self.0.wait()
    }

    /// Returns true if the process has ended.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// Waits until the process ends. Returns its exit status, or `None` after `patience`.
    pub fn wait_within(&mut self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        let begun = Instant::now();
        loop {
            match self.0.try_wait()? {
                None if begun.elapsed() < patience => thread::sleep(EXIT_POLL_INTERVAL),
                status => return Ok(status),
            }
        }
    }

    /// Returns the process's stdout; `None` if it is not a pipe or was taken before.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Returns the process's stderr; `None` if it is not a pipe or was taken before.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.0.stderr.take()
    }

    /// Reads stderr to its end. Returns an empty text if stderr is not a pipe, or was taken before.
    pub fn read_stderr(&mut self) -> io::Result<String> {
        let mut said = String::new();
        if let Some(mut stderr) = self.take_stderr() {
            stderr.read_to_string(&mut said)?;
        }
        Ok(said)
    }

    /// Returns the CPU time that all threads have used so far.
    pub fn cpu(&self) -> io::Result<Duration> {
        let stat = self.read("stat")?;
        // The process's name may contain any character, so the fields are counted from its end: the
        // state, 10 more fields, then user and system time.
        let after = stat.rsplit(')').next().unwrap_or_default();
        let ticks = after.split_whitespace().skip(11).take(2).flat_map(str::parse::<u64>).sum();
        let second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_millis(Duration::from_secs(ticks).as_millis() as u64 / second))
    }

    /// Returns the resident memory in bytes, current and peak.
    pub fn resident(&self) -> io::Result<(u64, u64)> {
        Ok((self.field("status", "VmRSS:")? * 1024, self.field("status", "VmHWM:")? * 1024))
    }

    /// Returns the number of bytes that the process has read with read calls so far, from the disk
    /// or the page cache. Memory-mapped and received bytes do not count.
    pub fn bytes_read(&self) -> io::Result<u64> {
        self.field("io", "rchar:")
    }

    /// Returns the number of bytes that the process has caused to be written to the disk so far.
    pub fn bytes_written(&self) -> io::Result<u64> {
        self.field("io", "write_bytes:")
    }

    /// Returns the number of open file descriptors.
    pub fn descriptors(&self) -> io::Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    /// Returns the number after `name` in a file of the process's `/proc` directory; a missing
    /// number is an error.
    fn field(&self, file: &str, name: &str) -> io::Result<u64> {
        let text = self.read(file)?;
        let value = |line: &str| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok();
        let missing = || io::Error::other(format!("/proc/{}/{file} has no {name}", self.pid()));
        text.lines().find_map(value).ok_or_else(missing)
    }

    fn read(&self, file: &str) -> io::Result<String> {
        fs::read_to_string(Path::new("/proc").join(self.pid().to_string()).join(file))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
