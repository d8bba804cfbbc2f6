//! How a node starts on a recovered store, and what keeps it from that.
//!
//! ```text
//!  store recovered ─▶ Starting::open: who it is; its clock, above all that was issued
//!                  ─▶ the driver waits for the wall clock ─▶ Starting::begin: another life
//! ```

use std::io;
use std::sync::Arc;

use cluster::{Clock, Logs, NodeId, Shared, Standing, Topology, Vouching};

use crate::clock::BoundedClock;
use crate::hints;
use crate::identity::{Directory, Identity, Named, Newborn, Recovered};
use crate::store::Store;

/// A node between the recovery of its store and its first request.
#[derive(Debug)]
pub struct Starting {
    identity: Identity,
    clock: BoundedClock,
    recovered: Recovered,
    max_skew: u64,
}

/// A node that has begun a life.
#[derive(Debug)]
pub struct Started {
    /// What the protocol's machines of all loops share.
    pub shared: Arc<Shared>,
    /// Who it is.
    pub identity: Arc<Identity>,
    /// Its clock.
    pub clock: BoundedClock,
}

/// The time of the last version that a clock ahead by `max_skew` may have issued by now.
fn latest(wall: u64, max_skew: u64) -> u64 {
    Clock::limit(wall, max_skew)
}

impl Starting {
    /// The node of the directory that `store` is in; nothing was written to that since it was
    /// opened. A directory without an identity is given this `incarnation` and `standing`. `wall`
    /// and `max_skew` are in microseconds, here and below.
    pub fn open<S: Store>(
        store: &S,
        named: Named<'_>,
        incarnation: u64,
        standing: Standing,
        wall: u64,
        max_skew: u64,
    ) -> Result<Self, StartError> {
        let recovered = Recovered::of(store.engine());
        // A former life of this node may have acknowledged what was as far ahead of its clock.
        let new = Newborn { incarnation, standing, born: latest(wall, max_skew) };
        let identity = Identity::open(store, named, new)?;
        let (name, nodes) = (named.name(), named.topology.nodes());
        let clock = BoundedClock::open(store, name, nodes, wall, max_skew)?;
        Ok(Self { identity, clock, recovered, max_skew })
    }

    /// Who it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its clock.
    pub fn clock(&self) -> &BoundedClock {
        &self.clock
    }

    /// Begins a life of the directory, and takes in what earlier ones left. `number` is random.
    pub fn begin<S: Store, D: Directory>(
        self,
        store: &S,
        directory: &D,
        topology: Topology,
        own: NodeId,
        wall: u64,
        number: u64,
    ) -> Result<Started, StartError> {
        let Self { identity, clock, recovered, max_skew } = self;
        let lineage = identity.begin_life(store, directory, recovered, wall, number)?;
        let claim = |node| Some((node, identity.known(&topology.member(node).name)?));
        let claims: Vec<_> = topology.ids().filter_map(claim).collect();
        let logs = Arc::new(Logs::new(identity.incarnation(), lineage, &claims));
        let alone = topology.nodes() == 1;
        // One that is alone has nobody to hear of a former life from.
        let standing = if alone { Standing::Member } else { identity.standing() };
        // Until the others have been heard, whatever is older than this start may hide something.
        let born = identity.born().max(latest(wall, max_skew));
        let vouching = Vouching::new(standing, born, alone);
        let newest = store.engine().greatest_time();
        let shared = Shared::new(topology, own, Arc::clone(clock.clock()), vouching, newest, logs);
        identity.load_missed(store.engine(), &shared)?;
        hints::adopt_marks(store, &identity, &shared)?;
        hints::count(store.engine(), &shared)?;
        Ok(Started { shared: Arc::new(shared), identity: Arc::new(identity), clock })
    }
}

/// Nothing was changed, or what was can be found at the next attempt. One line.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store could not be read or written.
    #[error("{what}: {source}")]
    Store {
        /// What of it.
        what: &'static str,
        /// Why.
        source: lsm::Error,
    },
    /// Something that an earlier run kept is not what was written, or is of a later release.
    #[error("{what}: {why}")]
    Damaged {
        /// What it is.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The directory could not be given a new life.
    #[error("the directory's lives: {0}")]
    Directory(#[source] io::Error),
    /// A thread that it needs.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// It belongs to another node, or to another cluster: what differs.
    #[error(
        "the data directory belongs to another node or cluster: {0}. Nothing was changed: start \
         with the settings it was created with, or with an empty --data"
    )]
    Another(String),
    /// The node's clock would begin so far ahead of the wall clock that the others refuse what it
    /// stamps.
    #[error(
        "this node has issued timestamps up to {seconds} s ahead of its clock, and the other nodes \
         refuse such timestamps: correct the clock if it is behind; if it is correct now and was \
         ahead before, run `kvorum repair-clock`"
    )]
    Ahead {
        /// How far.
        seconds: u64,
    },
}

impl StartError {
    /// Whether there is only no room on the disk.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Store { source, .. } if source.is_no_space())
    }
}
