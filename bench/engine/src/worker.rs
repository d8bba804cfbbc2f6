//! Worker of one phase of kvorum or fjall. Prints `open SECONDS`, the time that the store took to
//! open, and then `row RATE` for each row in order, in operations per second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::ClockId;

use crate::config::{BESIDE_RATE, Config, Engine, Phase, SEEK_NEXTS, SYNC_THREADS};
use crate::store::{Fjall, Kvorum, Store};
use crate::values::{KEY_LEN, VALUE_LEN, Values, key, missing_key};

/// Operations between two readings of the clock.
const STRIDE: u64 = 64;

/// Time limit for compactions to finish.
const REST_LIMIT: Duration = Duration::from_secs(600);

/// Runs a phase and prints its figures.
pub(crate) fn run(engine: Engine, phase: Phase, config: &Config) -> Result<(), String> {
    let start = Instant::now();
    let sync = phase == Phase::Sync;
    let store: Box<dyn Store> = match engine {
        Engine::Kvorum => Box::new(Kvorum::open(config, sync)?),
        Engine::Fjall => Box::new(Fjall::open(config, sync)?),
        Engine::Rocksdb => return Err("RocksDB has db_bench for a worker".to_owned()),
    };
    println!("open {}", start.elapsed().as_secs_f64());
    let bench = Bench { store: store.as_ref(), config };
    match phase {
        Phase::Sequential => bench.fill_in_order(),
        Phase::Write => {
            row(bench.fill_at_random(0)?);
            row(bench.fill_at_random(1)?);
            rest()
        }
        Phase::Read => bench.read_all(),
        Phase::Sync => bench.fill_synced(),
    }
}

fn row(rate: f64) {
    println!("row {rate}");
}

/// Waits until this process uses almost no CPU time, which means that flushes and compactions are
/// done. No other sign is common to all engines.
fn rest() -> Result<(), String> {
    let cpu = || {
        let now = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let deadline = Instant::now() + REST_LIMIT;
    let (mut before, mut quiet) = (cpu(), 0);
    while quiet < 3 {
        if Instant::now() > deadline {
            return Err(format!("the engine was not at rest after {REST_LIMIT:?}"));
        }
        std::thread::sleep(Duration::from_millis(300));
        let now = cpu();
        quiet = if now - before < Duration::from_millis(10) { quiet + 1 } else { 0 };
        before = now;
    }
    Ok(())
}

struct Bench<'a> {
    store: &'a dyn Store,
    config: &'a Config,
}

impl Bench<'_> {
    fn random(&self, phase: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.config.seed * 100 + phase)
    }

    fn fill_in_order(&self) -> Result<(), String> {
        let mut values = Values::new(self.config.seed);
        let start = Instant::now();
        for number in 0..self.config.keys {
            self.store.put(&key(number), values.next())?;
        }
        row(self.config.keys as f64 / start.elapsed().as_secs_f64());
        Ok(())
    }

    fn fill_at_random(&self, phase: u64) -> Result<f64, String> {
        let mut values = Values::new(self.config.seed);
        let mut random = self.random(phase);
        let start = Instant::now();
        for _ in 0..self.config.keys {
            self.store.put(&key(random.u64(..self.config.keys)), values.next())?;
        }
        Ok(self.config.keys as f64 / start.elapsed().as_secs_f64())
    }

    fn fill_synced(&self) -> Result<(), String> {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..SYNC_THREADS)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut values = Values::new(self.config.seed + thread);
                        let mut random = self.random(10 + thread);
                        for _ in 0..self.config.synced {
                            let number = random.u64(..self.config.keys);
                            self.store.put(&key(number), values.next())?;
                        }
                        Ok::<(), String>(())
                    })
                })
                .collect();
            for writer in writers {
                writer.join().map_err(|_| "a writer panicked".to_owned())??;
            }
            Ok::<(), String>(())
        })?;
        let writes = self.config.synced * SYNC_THREADS;
        row(writes as f64 / start.elapsed().as_secs_f64());
        Ok(())
    }

    fn read_all(&self) -> Result<(), String> {
        row(self.read_random(20)?);
        row(self.calls_per_second(21, |number| self.store.get(&missing_key(number)).map(drop))?);
        row(self.seek(22)?);
        row(self.read_while_writing(23)?);
        rest()?;
        self.store.compact()?;
        rest()?;
        row(self.read_random(24)?);
        row(self.seek(25)?);
        Ok(())
    }

    fn read_random(&self, phase: u64) -> Result<f64, String> {
        let mut found: u64 = 0;
        let mut reads: u64 = 0;
        let rate = self.calls_per_second(phase, |number| {
            reads += 1;
            found += u64::from(self.store.get(&key(number))?.is_some());
            Ok(())
        })?;
        // Two passes of random writes leave 86 % of the keys. If fewer are found, the row measures
        // reads of missing keys.
        if found < reads * 8 / 10 {
            return Err(format!("only {found} of {reads} keys were found"));
        }
        Ok(rate)
    }

    fn seek(&self, phase: u64) -> Result<f64, String> {
        self.calls_per_second(phase, |number| self.store.scan(&key(number), SEEK_NEXTS).map(drop))
    }

    /// Calls `call` with random key numbers for the duration of a row. Returns the calls per
    /// second.
    fn calls_per_second(
        &self,
        phase: u64,
        mut call: impl FnMut(u64) -> Result<(), String>,
    ) -> Result<f64, String> {
        let mut random = self.random(phase);
        let start = Instant::now();
        let mut calls = 0;
        while start.elapsed() < self.config.read_duration() {
            for _ in 0..STRIDE {
                call(random.u64(..self.config.keys))?;
            }
            calls += STRIDE;
        }
        Ok(calls as f64 / start.elapsed().as_secs_f64())
    }

    fn read_while_writing(&self, phase: u64) -> Result<f64, String> {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| self.write_beside(&done));
            let rate = self.read_random(phase);
            done.store(true, Ordering::Relaxed);
            writer.join().map_err(|_| "the writer panicked")??;
            rate
        })
    }

    fn write_beside(&self, done: &AtomicBool) -> Result<(), String> {
        let mut values = Values::new(self.config.seed);
        let mut random = self.random(30);
        let start = Instant::now();
        let mut bytes = 0;
        while !done.load(Ordering::Relaxed) {
            let due = Duration::from_secs_f64(bytes as f64 / BESIDE_RATE as f64);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            for _ in 0..STRIDE {
                self.store.put(&key(random.u64(..self.config.keys)), values.next())?;
            }
            bytes += STRIDE * (KEY_LEN + VALUE_LEN) as u64;
        }
        Ok(())
    }
}
