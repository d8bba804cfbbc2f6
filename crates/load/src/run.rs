//! Runs a plan: starts the threads together, and sums up their reports.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::control::Control;
use crate::error::Error;
use crate::outcome::{Outcome, UnreachableAddress};
use crate::plan::{Plan, Requests, Target};
use crate::publish::{Publisher, ReportMerger, SPARES, WorkerReport};
use crate::schedule::nanos;
use crate::script::Script;
use crate::tally::Tally;
use crate::worker::{CONNECT_LIMIT, StopFlags, Worker, WorkerEnd};

/// Open files besides the connections: an epoll per thread, logs, and the other files of the
/// process.
const OTHER_FILES: u64 = 128;

/// Nice value of the collector, which may wait for the CPU.
const LOWEST_PRIORITY: i32 = 19;

/// Time between the announcement of the start and the start itself, long enough to wake all
/// threads.
const LEAD: Duration = Duration::from_millis(5);

/// Sends requests by `plan` and returns the results. Connecting takes at most 5 s; warm-up,
/// duration and drain follow.
pub fn run(plan: &Plan) -> Result<Outcome, Error> {
    run_under(plan, &mut [], &Control::default())
}

/// Runs `plan` like [`run`], while `control` observes the run and may end it. With
/// [`Requests::Script`], `scripts` has one script for each of [`Plan::workers`].
pub fn run_under(
    plan: &Plan,
    scripts: &mut [Script],
    control: &Control<'_>,
) -> Result<Outcome, Error> {
    plan.check()?;
    let needed = if matches!(plan.requests, Requests::Script) { plan.workers() } else { 0 };
    if scripts.len() != needed {
        let wrong = format!("{} scripts where there must be {needed}", scripts.len());
        return Err(Error::Plan(wrong));
    }
    allow_files(plan.all_connections() as u64 + plan.workers() as u64 + OTHER_FILES)?;
    let mut left_out = Vec::new();
    let addresses: Vec<Vec<SocketAddr>> =
        plan.targets.iter().map(|target| reachable(target, &mut left_out)).collect();
    let failed = AtomicBool::new(false);
    let stops = StopFlags { requested: control.flag(), failed: &failed };
    let mut scripts = scripts.iter_mut();
    std::thread::scope(|scope| {
        let (full, reports) = sync_channel(plan.workers() * (SPARES + 1));
        let mut worker_threads =
            WorkerThreads { threads: Vec::new(), ready: Vec::new(), start_sender: Vec::new() };
        let mut empties = Vec::new();
        for index in 0..plan.workers() {
            let (empty_sender, empty) = sync_channel(SPARES);
            for _ in 0..SPARES {
                // The channel has space for all spare tallies.
                let _ = empty_sender.try_send(Box::default());
            }
            empties.push(empty_sender);
            let publisher = Publisher::new(index, nanos(plan.warmup), full.clone(), empty);
            let worker = Worker::new(plan, stops, index, &addresses, publisher, scripts.next())?;
            let (ready, is_ready) = sync_channel(1);
            let (start_sender, start) = sync_channel(1);
            worker_threads.ready.push(is_ready);
            worker_threads.start_sender.push(start_sender);
            let thread = std::thread::Builder::new()
                .name(format!("load-{index}"))
                .spawn_scoped(scope, move || carry_out(worker, &ready, &start))
                .map_err(|cause| Error::System { what: "starting a thread", cause })?;
            worker_threads.threads.push(thread);
        }
        drop(full);
        let collector = std::thread::Builder::new()
            .name("load-sum".to_owned())
            .spawn_scoped(scope, move || collect(plan, control, &reports, &empties))
            .map_err(|cause| Error::System { what: "starting a thread", cause })?;
        let started = worker_threads.start()?;
        control.begin();
        let ended = worker_threads.join()?;
        let tallies = collector.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut outcome = Outcome::new(plan, started, tallies, &ended);
        outcome.interrupted = control.is_stopped();
        outcome.left_out = left_out;
        Ok(outcome)
    })
}

/// Runs one thread: connects, reports the result, and starts to send when all threads are
/// connected. Returns `None` if the run was given up before the start.
fn carry_out(
    mut worker: Worker<'_>,
    ready: &SyncSender<Result<(), Error>>,
    start: &Receiver<Instant>,
) -> Result<Option<WorkerEnd>, Error> {
    // The calls on both channels fail only if the run is given up.
    let connected = worker.connect();
    let _ = ready.send(connected);
    match start.recv() {
        Ok(start) => worker.run(start).map(Some),
        Err(_) => Ok(None),
    }
}

/// The threads of a run. A drop before the start ends all threads.
struct WorkerThreads<'scope> {
    threads: Vec<ScopedJoinHandle<'scope, Result<Option<WorkerEnd>, Error>>>,
    ready: Vec<Receiver<Result<(), Error>>>,
    start_sender: Vec<SyncSender<Instant>>,
}

impl WorkerThreads<'_> {
    /// Waits until all threads are connected, and starts them together. Returns the start time.
    fn start(&mut self) -> Result<Instant, Error> {
        for ready in &self.ready {
            // A thread that panicked sends nothing. Joining the thread returns the panic.
            ready.recv().unwrap_or(Ok(()))?;
        }
        let start = Instant::now() + LEAD;
        for start_sender in self.start_sender.drain(..) {
            let _ = start_sender.send(start);
        }
        Ok(start)
    }

    fn join(self) -> Result<Vec<WorkerEnd>, Error> {
        let ended = self.threads.into_iter().map(|thread| match thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.filter_map(Result::transpose).collect()
    }
}

/// Sums up the threads' reports until all threads have ended: per target if each target has threads
/// of its own, otherwise for all targets together.
fn collect(
    plan: &Plan,
    control: &Control<'_>,
    reports: &Receiver<WorkerReport>,
    empties: &[SyncSender<Box<Tally>>],
) -> Vec<Tally> {
    // The sums take a fraction of a millisecond per second, and must not delay threads that send on
    // the same CPU. If the priority can't be lowered, a delay is possible.
    let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
    let mut tallies = vec![Tally::default(); plan.copies()];
    let mut seconds = control.is_watched().then(|| ReportMerger::new(plan.workers()));
    for mut report in reports {
        tallies[report.worker / plan.threads].add(&report.tally);
        if let Some(seconds) = &mut seconds {
            seconds.add(&report, |interval| control.dispatch(interval));
        }
        report.tally.clear();
        // The send fails if the thread has ended.
        let _ = empties[report.worker].try_send(report.tally);
    }
    tallies
}

/// Returns the addresses of a target that accept a connection, if there are several. A single
/// address is returned unchecked, and all addresses are returned if none accepts a connection: the
/// thread that can't connect reports the error.
fn reachable(target: &Target, left_out: &mut Vec<UnreachableAddress>) -> Vec<SocketAddr> {
    if target.addresses.len() < 2 {
        return target.addresses.clone();
    }
    let mut found = Vec::new();
    let mut failed = Vec::new();
    for &address in &target.addresses {
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            Ok(_) => found.push(address),
            Err(cause) => {
                let (target, cause) = (target.name.clone(), cause.to_string());
                failed.push(UnreachableAddress { target, address, cause });
            }
        }
    }
    if found.is_empty() {
        return target.addresses.clone();
    }
    // Servers on localhost commonly listen on one address family only, so the other family is not
    // reported.
    let here = |address: &SocketAddr| {
        address.ip().is_loopback() && address.port() == target.addresses[0].port()
    };
    if !target.addresses.iter().all(here) {
        left_out.extend(failed);
    }
    found
}

/// Raises the limit of open files to the hard limit, if the current limit is below `needed`.
/// Returns an error if the hard limit is too low.
fn allow_files(needed: u64) -> Result<(), Error> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if let Some(limit) = maximum.filter(|&limit| limit < needed) {
        return Err(Error::Descriptors { needed, limit });
    }
    let raised = Rlimit { current: Some(maximum.unwrap_or(needed)), maximum };
    setrlimit(Resource::Nofile, raised).map_err(Error::system("raising the limit of open files"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_files_than_the_hard_limit_allows_are_refused() {
        allow_files(1).unwrap();
        let Some(limit) = getrlimit(Resource::Nofile).maximum else { return };
        let error = allow_files(limit + 1).unwrap_err().to_string();
        assert!(error.contains(&limit.to_string()) && error.contains("ulimit"), "{error}");
    }
}
