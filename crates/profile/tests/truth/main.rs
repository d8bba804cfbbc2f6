//! Compares profiles with the known shares of a test program, with a tolerance of three percentage
//! points. A process can have only one recording at a time, and a test spends most of its time
//! waiting for the recording. Therefore each test runs in its own process, and all processes run at
//! once.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod after;
mod shares;

use std::alloc::System;
use std::env;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use profile::{
    Clock, Event, Folded, Profile, Recording, RecordingRequest, Refused, SampledAllocator,
};

#[global_allocator]
static ALLOCATOR: SampledAllocator<System> = SampledAllocator(System);

/// Time limit of a test step.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// Tolerance of a share.
const TOLERANCE: f64 = 0.03;

/// Environment variable of a process that runs a single test.
const ALONE: &str = "TRUTH_ALONE";

/// Runs the test with this name in its own process.
#[track_caller]
fn run_in_own_process(name: &str, test: fn()) {
    if env::var_os(ALONE).is_some() {
        return test();
    }
    let mut command = Command::new(env::current_exe().unwrap());
    let output = command.args([name, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
    let told = [output.stdout, output.stderr].map(|told| String::from_utf8(told).unwrap());
    let has_passed = output.status.success() && told[0].contains("test result: ok. 1 passed");
    assert!(has_passed, "{}:\n{}{}", output.status, told[0], told[1]);
}

fn recording_request(events: &[Event], seconds: u64, clock: Clock) -> RecordingRequest {
    let duration = Duration::from_secs(seconds);
    RecordingRequest {
        events: events.to_vec(),
        duration,
        who: "a test".to_owned(),
        idle: false,
        clock,
    }
}

/// Starts a recording. The returned receiver gets its profile.
fn start(recording_request: RecordingRequest) -> (Recording, mpsc::Receiver<Profile>) {
    let begun = Instant::now();
    loop {
        let (tell, told) = mpsc::sync_channel(1);
        match profile::start(recording_request.clone(), move |profile| drop(tell.send(profile))) {
            Ok(recording) => return (recording, told),
            // The previous recording is still ending.
            Err(Refused::Busy { .. }) if begun.elapsed() < STEP_LIMIT => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn folded(profile: &Profile, event: Event) -> &Folded {
    &profile.events.iter().find(|(known, _)| *known == event).unwrap().1.folded
}

/// Returns the share of the stacks with a function of this name.
fn share(folded: &Folded, function: &str) -> f64 {
    folded.share(|frame| frame.contains(function))
}

#[track_caller]
fn assert_close(what: &str, found: f64, truth: f64) {
    assert!(
        (found - truth).abs() <= TOLERANCE,
        "{what}: {found:.3}, but in truth it is {truth:.3}"
    );
}
