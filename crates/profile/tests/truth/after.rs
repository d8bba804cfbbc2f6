//! Tests that only one recording runs at a time, and that a finished recording releases its
//! resources.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use profile::{Clock, Event, Refused};

use crate::{STEP_LIMIT, recording_request, run_in_own_process, start};

/// Resources of the process that a recording allocates.
#[derive(Debug, PartialEq, Eq)]
struct ProcessResources {
    files: usize,
    timers: usize,
    caught: String,
    recorders: usize,
}

fn process_resources() -> ProcessResources {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let caught = status.lines().find(|line| line.starts_with("SigCgt:")).unwrap();
    ProcessResources {
        files: fs::read_dir("/proc/self/fd").unwrap().count(),
        timers: fs::read_to_string("/proc/self/timers").unwrap_or_default().lines().count(),
        caught: caught.to_owned(),
        recorders: fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|name| name == "profiler\n")
            .count(),
    }
}

fn wait_for(before: &ProcessResources) {
    let begun = Instant::now();
    while process_resources() != *before {
        assert!(begun.elapsed() < STEP_LIMIT, "{before:?} became {:?}", process_resources());
        thread::yield_now();
    }
}

#[test]
fn an_ended_or_cancelled_recording_releases_its_resources() {
    run_in_own_process("after::an_ended_or_cancelled_recording_releases_its_resources", || {
        // A recorder's thread has its name only once it runs. After a complete first recording, no
        // recorder's thread is about to start.
        let (_recording, profile) = start(recording_request(&[Event::Alloc], 1, Clock::default()));
        profile.recv_timeout(STEP_LIMIT).unwrap();
        let begun = Instant::now();
        while process_resources().recorders > 0 {
            assert!(begun.elapsed() < STEP_LIMIT, "the one before does not end");
            thread::yield_now();
        }
        let before = process_resources();
        for clock in [Clock::Perf, Clock::Timers] {
            let (recording, profile) = start(recording_request(&Event::ALL, 1, clock));
            let during = Instant::now();
            while process_resources().caught == before.caught {
                assert!(during.elapsed() < STEP_LIMIT, "nothing is recorded");
                thread::yield_now();
            }
            profile.recv_timeout(STEP_LIMIT).unwrap();
            drop(recording);
            wait_for(&before);
            let (recording, profile) = start(recording_request(&Event::ALL, 300, clock));
            drop(recording);
            assert!(
                profile.recv_timeout(STEP_LIMIT).is_err(),
                "it was given up, and told something"
            );
            wait_for(&before);
        }
    });
}

#[test]
fn a_second_recording_is_refused_with_the_first_requester() {
    run_in_own_process("after::a_second_recording_is_refused_with_the_first_requester", || {
        let mut first = recording_request(&[Event::Alloc], 100, Clock::default());
        first.who = "192.0.2.1".to_owned();
        let (recording, _profile) = start(first);
        let refused = profile::start(recording_request(&[Event::Cpu], 1, Clock::default()), |_| {});
        let Err(Refused::Busy { who, until, left }) = refused else { panic!("there are two") };
        assert_eq!(who, "192.0.2.1");
        assert!((60..=100).contains(&left) && until.ends_with('Z'), "{left} {until}");
        drop(recording);
        drop(start(recording_request(&[Event::Cpu], 1, Clock::default())));
    });
}

#[test]
fn short_lived_and_very_many_threads_are_recorded() {
    run_in_own_process("after::short_lived_and_very_many_threads_are_recorded", || {
        let (recording, profile) =
            start(recording_request(&[Event::Cpu, Event::Wall], 2, Clock::Timers));
        let begun = Instant::now();
        let mut sleepers: Vec<_> = (0..1000)
            .map(|_| thread::spawn(|| thread::park_timeout(Duration::from_secs(3))))
            .collect();
        while begun.elapsed() < Duration::from_millis(1500) {
            let short = thread::Builder::new().name("short".to_owned()).spawn(|| {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_millis(20) {}
            });
            short.unwrap().join().unwrap();
        }
        let profile = profile.recv_timeout(STEP_LIMIT).unwrap();
        drop(recording);
        sleepers.drain(..).for_each(|thread| {
            thread.thread().unpark();
            thread.join().unwrap();
        });
        let wall = crate::folded(&profile, Event::Wall);
        let slept = wall.total() as f64 / 1e9;
        assert!(slept > 500.0, "a thousand threads for more than a second: {slept} s");
    });
}
