//! The thread that counts what is stored under the prefixes that have a quota: one walk after the
//! other over this node's keys of each, a few megabytes at a time, and long pauses in between.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use node::StoredWalk;

use crate::counters::clocks::wall_micros;
use crate::node::Node;

/// How often it is looked for quotas, and how often small ones are counted.
const EVERY: Duration = Duration::from_secs(1);

/// For each second of counting so many of pause: 2 % of a core, and of the disk.
const PAUSES: u32 = 49;

/// The thread that counts what is stored under quotas.
pub(super) struct Counting {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

/// What is under way for a prefix.
struct Lap {
    walk: Option<StoredWalk>,
    not_before: Instant,
}

impl Counting {
    /// Begins to count.
    pub(super) fn start(node: &Arc<Node>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let node = Arc::clone(node);
        let count = move || {
            let mut laps = BTreeMap::new();
            let mut pause = Duration::ZERO;
            while stopped.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                pause = step(&node, &mut laps);
            }
        };
        let thread = thread::Builder::new().name("quotas".to_owned()).spawn(count)?;
        Ok(Self { stop, thread })
    }

    /// Ends the thread, and waits until it has ended.
    pub(super) fn stop(self) {
        drop(self.stop);
        // A panic in there was printed.
        let _ = self.thread.join();
    }
}

/// Counts on under the prefix that has waited longest; how long to pause after that.
fn step(node: &Node, laps: &mut BTreeMap<Vec<u8>, Lap>) -> Duration {
    node.quotas.renew(&node.shared.layouts.entered().access.quotas);
    let quotas = node.quotas.all();
    let begun = Instant::now();
    laps.retain(|prefix, _| quotas.iter().any(|counted| counted.quota.prefix == *prefix));
    for counted in quotas.iter() {
        let prefix = counted.quota.prefix.clone();
        laps.entry(prefix).or_insert(Lap { walk: None, not_before: begun });
    }
    let due = laps.iter_mut().filter(|(_, lap)| lap.not_before <= begun);
    let Some((prefix, lap)) = due.min_by_key(|(_, lap)| lap.not_before) else { return EVERY };
    let new = || StoredWalk::new(node.shared.view().topology.clone(), node.shared.own, prefix);
    let mut walk = lap.walk.take().unwrap_or_else(new);
    let is_at_end = walk.step(node.db.engine(), wall_micros());
    if is_at_end {
        let counted = quotas.iter().find(|counted| counted.quota.prefix == *prefix);
        counted.expect("the others were left out").count(walk.bytes());
        lap.not_before = Instant::now() + EVERY;
    } else {
        lap.walk = Some(walk);
        lap.not_before = Instant::now();
    }
    begun.elapsed() * PAUSES
}
