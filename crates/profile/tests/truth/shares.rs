//! Tests of recorded shares of CPU time, allocated bytes and waiting time.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use profile::{Clock, Event, WaitKind, WaitSite};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    STEP_LIMIT, assert_close, folded, recording_request, run_in_own_process, share, start,
};

fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Uses the CPU until the thread's CPU time is `end`.
#[inline(always)]
fn work_until(end: Duration) {
    let mut state = 1u64;
    while own_cpu() < end {
        // Not a range: in some builds its `next` is a function of its own, and a sample in the
        // first instructions of a function lacks the caller, because the function has not linked
        // the caller's frame yet.
        let mut left = 10_000;
        while left > 0 {
            state = black_box(state.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 1);
            left -= 1;
        }
    }
}

#[inline(never)]
fn works_seventy_parts(end: Duration) {
    work_until(end);
    black_box(());
}

#[inline(never)]
fn works_thirty_parts(end: Duration) {
    work_until(end);
    black_box(());
}

/// Works 70 parts in one function and 30 parts in another until stopped. Returns the true share of
/// the first function.
fn work(stop: &AtomicBool) -> f64 {
    let (mut first, mut second) = (0.0, 0.0);
    while !stop.load(Ordering::Relaxed) {
        let begun = own_cpu();
        works_seventy_parts(begun + Duration::from_millis(70));
        let between = own_cpu();
        works_thirty_parts(between + Duration::from_millis(30));
        first += (between - begun).as_secs_f64();
        second += (own_cpu() - between).as_secs_f64();
    }
    first / (first + second)
}

/// Duration of a CPU recording in seconds. It yields 500 samples, enough for an accurate share even
/// if the thread gets only a third of a core, because all tests run at once.
const CPU_SECONDS: u64 = 15;

fn cpu_shares(clock: Clock, sampler: Option<&str>) {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let (recording, profile) = start(recording_request(&[Event::Cpu], CPU_SECONDS, clock));
    let worker = thread::Builder::new().name("worker".to_owned()).spawn(move || work(&told));
    let profile = profile.recv_timeout(STEP_LIMIT).unwrap();
    drop(recording);
    stop.store(true, Ordering::Relaxed);
    let truth = worker.unwrap().join().unwrap();
    if let Some(sampler) = sampler {
        assert!(profile.sampler.contains(sampler), "{}", profile.sampler);
    }
    let cpu = folded(&profile, Event::Cpu);
    let (first, second) = (share(cpu, "works_seventy_parts"), share(cpu, "works_thirty_parts"));
    assert!(first + second > 0.9, "{cpu}");
    assert_close("seventy parts", first / (first + second), truth);
    // Stacks reach the thread's start, and threads have their names.
    let stacks: Vec<&str> = cpu.stacks().map(|(stack, _)| stack).collect();
    let whole = |stack: &&str| stack.starts_with("worker;") && stack.contains("shares::work;");
    assert!(stacks.iter().any(whole), "{cpu}");
}

#[test]
fn cpu_shares_by_the_default_clock_are_true() {
    run_in_own_process("shares::cpu_shares_by_the_default_clock_are_true", || {
        cpu_shares(Clock::Perf, None);
    });
}

#[test]
fn cpu_shares_by_timers_are_true() {
    run_in_own_process("shares::cpu_shares_by_timers_are_true", || {
        cpu_shares(Clock::Timers, Some("CPU timers"));
    });
}

/// Perf events take one descriptor for each thread, but the process needs its descriptors for its
/// own work.
#[test]
fn cpu_sampling_uses_timers_if_few_descriptors_are_left() {
    run_in_own_process("shares::cpu_sampling_uses_timers_if_few_descriptors_are_left", || {
        let before = getrlimit(Resource::Nofile);
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        setrlimit(Resource::Nofile, Rlimit { current: Some(open + 6), ..before }).unwrap();
        let threads: Vec<_> = (0..6).map(|_| thread::spawn(thread::park)).collect();
        cpu_shares(Clock::Perf, Some("CPU timers"));
        setrlimit(Resource::Nofile, before).unwrap();
        for thread in threads {
            thread.thread().unpark();
            thread.join().unwrap();
        }
    });
}

#[inline(never)]
fn allocates_small_blocks(total: usize) -> Vec<Box<[u8]>> {
    (0..total / 1024).map(|_| black_box(vec![0u8; 1024].into_boxed_slice())).collect()
}

#[inline(never)]
fn allocates_large_blocks(total: usize) {
    for _ in 0..total / 100_000 {
        drop(black_box(vec![1u8; 100_000]));
    }
    black_box(());
}

#[test]
fn allocated_and_live_bytes_are_recorded_by_call_path() {
    run_in_own_process("shares::allocated_and_live_bytes_are_recorded_by_call_path", || {
        // 4,096 samples in total: the ring's capacity, so none is lost, however rarely the ring is
        // drained.
        const PART: usize = 64 << 20;
        let events = [Event::Alloc, Event::Live, Event::Lock];
        let (recording, profile) = start(recording_request(&events, 2, Clock::default()));
        // Waits until the recording has started.
        while profile::queued().is_none() {
            thread::yield_now();
        }
        for _ in 0..3 {
            allocates_large_blocks(PART);
        }
        drop(allocates_small_blocks(PART / 2));
        let kept = allocates_small_blocks(PART / 2);
        let profile = profile.recv_timeout(STEP_LIMIT).unwrap();
        drop(recording);
        let alloc = folded(&profile, Event::Alloc);
        let (little, much) =
            (share(alloc, "allocates_small_blocks"), share(alloc, "allocates_large_blocks"));
        assert_close("much", much / (little + much), 0.75);
        assert!(little + much > 0.95, "{alloc}");
        let total = alloc.total() as f64 / (4.0 * PART as f64);
        assert!((0.95..1.1).contains(&total), "bytes are bytes, not shares only: {total}");
        let live = folded(&profile, Event::Live);
        let (little, much) =
            (share(live, "allocates_small_blocks"), share(live, "allocates_large_blocks"));
        assert!(little > 0.97 && much < 0.02, "{little} {much}\n{live}");
        let left = live.total() as f64 / (PART as f64 / 2.0);
        assert!((0.9..1.15).contains(&left), "{left}");
        let (_, named) = profile.events.iter().find(|(event, _)| *event == Event::Alloc).unwrap();
        let pieces = share(&named.counts, "allocates_small_blocks") * named.counts.total() as f64;
        let right = pieces / (PART as f64 / 1024.0);
        assert!((0.85..1.15).contains(&right), "pieces of 1 KiB: {pieces}");
        drop(kept);
    });
}

static SLOW: WaitSite = WaitSite::new(WaitKind::Lock, "the slow one");
static QUICK: WaitSite = WaitSite::new(WaitKind::Lock, "the quick one");
static WORK: WaitSite = WaitSite::new(WaitKind::Idle, "no work");

/// Takes `lock` repeatedly while another thread holds it for `hold`. Returns the nanoseconds
/// waited.
fn contend(lock: &'static profile::Mutex<()>, hold: Duration, stop: Arc<AtomicBool>) -> u64 {
    let told = Arc::clone(&stop);
    let holder = thread::Builder::new().name("holder".to_owned()).spawn(move || {
        while !told.load(Ordering::Relaxed) {
            let held = lock.lock();
            let begun = Instant::now();
            while begun.elapsed() < hold {
                thread::park_timeout(hold);
            }
            drop(held);
            thread::park_timeout(Duration::from_millis(1));
        }
    });
    let mut waited = 0;
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        drop(lock.lock());
        waited += begun.elapsed().as_nanos() as u64;
        thread::park_timeout(Duration::from_micros(100));
    }
    holder.unwrap().join().unwrap();
    waited
}

#[inline(never)]
fn waits_for_the_slow_one(stop: Arc<AtomicBool>) -> u64 {
    static LOCK: profile::Mutex<()> = profile::Mutex::new(&SLOW, ());
    black_box(contend(&LOCK, Duration::from_millis(15), stop))
}

#[inline(never)]
fn waits_for_the_quick_one(stop: Arc<AtomicBool>) -> u64 {
    static LOCK: profile::Mutex<()> = profile::Mutex::new(&QUICK, ());
    black_box(contend(&LOCK, Duration::from_millis(5), stop))
}

#[test]
fn lock_waits_are_recorded_with_their_holders() {
    run_in_own_process("shares::lock_waits_are_recorded_with_their_holders", || {
        for idle in [false, true] {
            let stop = Arc::new(AtomicBool::new(false));
            let ordered = profile::RecordingRequest {
                idle,
                ..recording_request(&[Event::Lock], 2, Clock::default())
            };
            let (recording, profile) = start(ordered);
            let (first, second) = (Arc::clone(&stop), Arc::clone(&stop));
            let slow = thread::spawn(move || waits_for_the_slow_one(first));
            let quick = thread::spawn(move || waits_for_the_quick_one(second));
            let profile = loop {
                let nap = || profile.recv_timeout(Duration::from_millis(50));
                if let Ok(profile) = WORK.during(nap) {
                    break profile;
                }
            };
            drop(recording);
            stop.store(true, Ordering::Relaxed);
            let (slow, quick) = (slow.join().unwrap() as f64, quick.join().unwrap() as f64);
            let lock = folded(&profile, Event::Lock);
            let seen = |place: &str| share(lock, place);
            let (slow_seen, quick_seen) = (seen("lock: the slow one"), seen("lock: the quick one"));
            let found = slow_seen / (slow_seen + quick_seen);
            assert_close("slow", found, slow / (slow + quick));
            assert_close("its function", seen("waits_for_the_slow_one"), slow_seen);
            // The holder of the first wait may have taken the lock before the recording.
            let held = seen("held by holder at crates/profile/tests/truth/shares.rs:");
            assert!(held / (slow_seen + quick_seen) > 0.9, "{lock}");
            let idle_seen = seen("idle: no work");
            assert_eq!(idle_seen > 0.0, idle, "only if it is asked for: {lock}");
        }
    });
}

#[inline(never)]
fn naps(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        WORK.during(|| thread::park_timeout(Duration::from_millis(300)));
    }
    black_box(());
}

#[inline(never)]
fn reads_from_a_silent_pipe(pipe: &std::io::PipeReader) {
    use std::io::Read;
    assert_eq!({ pipe }.read(&mut [0]).unwrap(), 0, "only the end");
    black_box(());
}

#[test]
fn wall_time_is_split_into_running_waiting_and_idle() {
    run_in_own_process("shares::wall_time_is_split_into_running_waiting_and_idle", || {
        for idle in [false, true] {
            let stop = Arc::new(AtomicBool::new(false));
            let (reader, writer) = std::io::pipe().unwrap();
            let (first, second) = (Arc::clone(&stop), Arc::clone(&stop));
            let threads = [
                thread::spawn(move || assert!(work(&first) < 1.0)),
                thread::spawn(move || naps(&second)),
                thread::spawn(move || reads_from_a_silent_pipe(&reader)),
            ];
            let ordered = profile::RecordingRequest {
                idle,
                ..recording_request(&[Event::Wall], 2, Clock::default())
            };
            let (recording, profile) = start(ordered);
            let profile = profile.recv_timeout(STEP_LIMIT).unwrap();
            drop(recording);
            stop.store(true, Ordering::Relaxed);
            drop(writer);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let wall = folded(&profile, Event::Wall);
            let seconds = |of: &str| share(wall, of) * wall.total() as f64 / 1e9;
            for (of, truth) in [
                ("shares::work", profile.seconds),
                ("reads_from_a_silent_pipe", profile.seconds),
                ("shares::naps", if idle { profile.seconds } else { 0.0 }),
            ] {
                let found = seconds(of);
                assert!((found - truth).abs() < 0.1 * profile.seconds, "{of}: {found} s\n{wall}");
            }
            let waiting = wall.stacks().any(|(stack, _)| {
                stack.contains("reads_from_a_silent_pipe") && stack.ends_with("[waiting]")
            });
            assert!(waiting, "{wall}");
        }
    });
}
