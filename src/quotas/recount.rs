//! The thread that counts the bytes stored under prefixes with a quota. The thread repeatedly walks
//! over this node's keys of each prefix, a few megabytes per step, with pauses between the steps.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use protocol::ViewId;
use rustix::time::{ClockId, clock_gettime};
use server::{Shares, StoredWalk};

use crate::counters::clocks::wall_micros;
use crate::node::Node;
use crate::quotas::counts::CountedQuota;

/// Pause between two counts of a prefix, and pause of the thread while no count is due.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The pace of a count. The pause after each step is `cpu` times the step's CPU time, or `disk`
/// times its elapsed time if that is longer. The elapsed time may include waits for the disk.
struct CountingPace {
    cpu: u32,
    disk: u32,
}

/// The usual pace: 2 % of a core, and at most a fifth of the disk's time.
const USUAL_PACE: CountingPace = CountingPace { cpu: 49, disk: 4 };

/// The pace of an urgent count: a quarter of a core, and at most half of the disk's time.
const URGENT_PACE: CountingPace = CountingPace { cpu: 3, disk: 1 };

/// The counting thread.
pub(crate) struct Counting {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

/// The state of the counts of one prefix. A lap is one walk over all keys of the prefix.
struct Lap {
    /// The current walk; `None` if the next step begins a lap.
    walk: Option<StoredWalk>,
    /// True if the lap was begun because it is urgent. Further urgency does not restart it.
    began_urgent: bool,
    /// Earliest time of the next step. Steps for other prefixes may delay it further.
    not_before: Instant,
}

/// State of the thread between steps.
#[derive(Default)]
struct Counts {
    /// The current lap of each prefix that has a quota.
    of: BTreeMap<Vec<u8>, Lap>,
    /// The view from which the extrapolation factors were computed.
    placed: Option<ViewId>,
}

impl Counting {
    /// Starts the thread.
    pub(crate) fn start(node: &Arc<Node>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let node = Arc::clone(node);
        let count = move || {
            let mut laps = Counts::default();
            let mut pause = Duration::ZERO;
            while stopped.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                pause = laps.step(&node);
            }
        };
        let thread = thread::Builder::new().name("quotas".to_owned()).spawn(count)?;
        Ok(Self { stop, thread })
    }

    /// Stops the thread, and waits for its end.
    pub(crate) fn stop(self) {
        drop(self.stop);
        // If the thread panicked, the panic was already printed.
        let _ = self.thread.join();
    }
}

impl Counts {
    /// Performs a step of the lap that has waited longest. Returns the pause before the next step.
    fn step(&mut self, node: &Node) -> Duration {
        node.quotas.adopt_layout(&node.shared);
        let quotas = node.quotas.all();
        self.of.retain(|prefix, _| quotas.iter().any(|counted| counted.quota.prefix == *prefix));
        if quotas.is_empty() {
            return COUNT_INTERVAL;
        }
        self.place(node);
        let now = Instant::now();
        for counted in quotas.iter() {
            let new = || Lap { walk: None, began_urgent: false, not_before: now };
            let lap = self.of.entry(counted.quota.prefix.clone()).or_insert_with(new);
            let is_urgent = counted.update(|usage| usage.is_urgent(counted.quota.hard));
            if is_urgent && !lap.began_urgent {
                // A lap that began earlier would leave most of the growth uncorrected.
                (lap.walk, lap.began_urgent) = (None, true);
            }
        }
        let due = |counted: &&Arc<CountedQuota>| {
            let lap = self.of.get(&counted.quota.prefix)?;
            (lap.not_before <= now).then_some(lap.not_before)
        };
        let due = quotas.iter().filter(|of| due(of).is_some()).min_by_key(|of| due(of));
        let Some(counted) = due else { return COUNT_INTERVAL };
        let lap = self.of.get_mut(&counted.quota.prefix).expect("each has one");
        lap.step(node, counted)
    }

    /// Recomputes the extrapolation factors if the placement of keys has changed.
    fn place(&mut self, node: &Node) {
        let view = node.shared.view();
        if self.placed != Some(view.id()) {
            node.quotas.place(Shares::of(&view.topology, node.shared.own));
            self.placed = Some(view.id());
            // The bytes counted so far belong to the old placement.
            self.of.values_mut().for_each(|lap| lap.walk = None);
        }
    }
}

impl Lap {
    /// Performs one step of the walk. Returns the pause before the thread's next step.
    fn step(&mut self, node: &Node, counted: &CountedQuota) -> Duration {
        let mut walk = self.walk.take().unwrap_or_else(|| {
            counted.update(server::Usage::begin_lap);
            let topology = node.shared.view().topology.clone();
            StoredWalk::new(topology, node.shared.own, &counted.quota.prefix)
        });
        let engine = node.db.engine();
        let snapshot = counted.update(|usage| {
            usage.begin_step();
            engine.snapshot()
        });
        let (begun, cpu) = (Instant::now(), cpu_time());
        let is_at_end = walk.step(&snapshot, wall_micros());
        drop(snapshot);
        let found = walk.bytes(&node.quotas.shares());
        let pace = if self.began_urgent { URGENT_PACE } else { USUAL_PACE };
        if is_at_end {
            counted.update(|usage| usage.end_lap(found));
            (self.began_urgent, self.not_before) = (false, Instant::now() + COUNT_INTERVAL);
        } else {
            counted.update(|usage| usage.end_step(walk.position(), found));
            (self.walk, self.not_before) = (Some(walk), Instant::now());
        }
        let cpu = cpu_time().saturating_sub(cpu);
        (cpu * pace.cpu).max(begun.elapsed() * pace.disk)
    }
}

/// Returns the CPU time of this thread. A pause computed from CPU time has the same length on a
/// busy machine as on an idle one.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
