//! Who this node is, as its data directory knows it: name, incarnation, the topology that its data
//! was placed by, and the peers that it has seen. Kept in [`Space::Node`]; byte by byte in
//! `docs/file-format.md`.
//!
//! ```text
//!   start ─▶ directory's identity ─┬─ none, nothing else either ─▶ made: new incarnation
//!                                  ├─ none, but data, or it waits to join ─▶ refused
//!                                  ├─ of this node and topology ─▶ goes on
//!                                  └─ of another ─▶ refused, with what differs
//!
//!   running ─▶ a batch, and what it [`Keeps`] ─▶ committed by the driver ─▶ [`Identity::kept`]
//! ```
//!
//! The incarnation tells a node from one of the same name whose disk was wiped.
//!
//! **The layout on its disk rules** once it is later than the first one: the node is who it was by
//! that, whatever the settings list. The settings' list is where a first start begins from.
//!
//! **A node alone** has nobody to agree with. If the settings do not name it, its name is where it
//! listened when the directory was made, which no later start is held to.
//!
//! Each batch has a version above all that were made before, so that the last one made holds, in
//! whichever order they are committed.

mod decree;
mod format;
mod join;
mod layouts;
mod marker;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::layout::Layout;
use cluster::{
    Claim, Clock, ClusterId, Incarnation, LayoutsKept, Life, LifeId, Lineage, LogPosition,
    MembershipState, NodeId, OwnCluster, Proof, Shared, Topology, Unreadable, difference,
};
use lsm::{Batch, Engine, PurgeRule, Space, Version};
use parking_lot::{Mutex, MutexGuard};

use crate::clock::BOUND_KEY;
use crate::start_error::StartError;
use crate::store::Store;
pub use decree::Survivor;
use format::Kept;
pub use join::{Candidate, Placed};
use layouts::enter;
pub(crate) use layouts::log_if_removed;
pub use marker::{Directory, Marker};

/// Where the identity is stored.
const KEY: &[u8] = b"identity";

/// Where the directory's lives are stored.
const LIVES: &[u8] = b"lives";

/// What precedes a node's name in the key of what it is marked to lack.
const LACKS: &[u8] = b"lacks/";

/// Where is stored what is known of proofs.
const PROOF: &[u8] = b"proof";

/// The key of the time up to which the node has learned anew what was remembered of idempotency
/// keys.
const RECOVERED_WORDS: &[u8] = b"recovered-words";

/// What precedes a peer's name in the key of what is known of it.
const PEER: &[u8] = b"peer/";
/// The least key after all of those.
const PEERS_END: &[u8] = b"peer0";

/// What precedes a peer's name in the key of the disk that is the first of it that was seen.
const FIRST: &[u8] = b"first/";

/// The cluster and this node in it, as the settings say.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// Who is in the cluster.
    pub topology: &'a Topology,
    /// The id of this node.
    pub own: NodeId,
    /// Whether the settings name it. The name of one that is alone means nothing otherwise.
    pub named: bool,
    /// Where each node is, by its id, as far as that is known.
    pub urls: &'a [String],
}

impl Named<'_> {
    /// Ids and names of all nodes.
    pub(crate) fn members(&self) -> Vec<(NodeId, String)> {
        let member = |id| (id, self.topology.member(id).name.clone());
        self.topology.ids().map(member).collect()
    }

    pub(crate) fn name(&self) -> &str {
        &self.topology.member(self.own).name
    }
}

/// What a directory that has no identity yet is given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewIdentity {
    /// Random, not 0.
    pub(crate) incarnation: Incarnation,
    /// Its membership state, if there are other nodes.
    pub(crate) state: MembershipState,
    /// The greatest time of a version that a former life of this node may have acknowledged.
    pub(crate) lost_before: u64,
}

/// Who this node is.
#[derive(Debug)]
pub struct Identity {
    incarnation: Incarnation,
    own: NodeId,
    name: String,
    /// The layout that ruled at the start, if that was not the first one.
    rules: Option<Layout>,
    /// What [`Identity::recovered_words`] was at the start.
    recovered_words: u64,
    /// By what the store drops tombstones: not by age any more once there are others.
    purge: Arc<PurgeRule>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What is stored.
    kept: Kept,
    /// What was to be stored last.
    made: Kept,
    /// Version of the newest record written here; each one is newer.
    version: Version,
    /// What is known of each peer that was seen, by name.
    peers: BTreeMap<String, Known>,
    /// What is known of proofs, or is being stored.
    proof: Proof,
}

/// What is known of a peer.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// What is stored of it; `None` = nothing yet.
    claim: Option<Claim>,
    /// The disk that is stored, or was to be, as the first one that was seen of it.
    first: Option<Incarnation>,
    /// The time of that record's version, and of the newest one that was to be stored.
    kept: u64,
    newest: u64,
}

impl State {
    /// Records for [`Space::Node`], with a version above all before. One that fails may be found
    /// after a restart, so no version is used twice.
    fn batch(&mut self, items: &[(&[u8], &[u8])]) -> Batch {
        self.version.time += 1;
        let mut batch = Batch::new();
        for (key, value) in items {
            let put = batch.put(Space::Node, key, self.version, value);
            put.expect("names and topologies are far below the bounds of keys and records");
        }
        batch
    }
}

/// What a batch of the node's own stores: see `Identity::kept`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keeps {
    /// What is known of a peer; the time of the record's version orders it among what was known
    /// before and after.
    Claim(NodeId, Claim, u64),
    /// The node's membership state.
    MembershipState {
        /// The state that is stored.
        state: MembershipState,
        /// The node may have lost writes of before this: see [`Identity::lost_before`].
        lost_before: u64,
        /// With it, the node's own marks up to this change.
        changes: u64,
        /// With it, which layout it goes by.
        layouts: LayoutsKept,
    },
    /// Which cluster the node belongs to.
    ClusterId(ClusterId),
    /// So many changes of what a node is marked to lack.
    Missed(NodeId, u64),
    /// What this node knows of proofs.
    Proof(Proof),
    /// Which layout it goes by, and its vote.
    Layouts(LayoutsKept),
}

/// What is found in a store before anything is written to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recovered {
    sequence: u64,
    newest: u64,
}

impl Recovered {
    /// To be called before the first write.
    pub(crate) fn of(engine: &Engine) -> Self {
        Self { sequence: engine.sequence(), newest: engine.greatest_time() }
    }
}

/// The name that the data directory has for its node.
pub fn kept_name(engine: &Engine) -> Result<Option<String>, StartError> {
    Ok(read(engine)?.map(|(kept, _)| kept.name))
}

/// The layout that the data directory has, if it rules: see [`Identity::rules`].
pub fn kept_layout(engine: &Engine) -> Result<Option<Layout>, StartError> {
    Ok(layouts::rules(engine)?.map(|(_, layout)| layout))
}

/// Whether a directory is that of a node alone, or of none.
pub(crate) fn is_alone(engine: &Engine) -> Result<bool, StartError> {
    let rules = layouts::rules(engine)?;
    let kept = read(engine)?.map(|(kept, _)| kept);
    Ok(kept.is_none_or(|kept| is_alone_by(&kept, rules.as_ref().map(|(_, layout)| layout))))
}

/// Up to which time of a version all replicas held the same, by a stopped node's directory, if the
/// others hold what this one does; 0 = nothing is proven, or there is one replica of a key.
pub(crate) fn proven_elsewhere(engine: &Engine) -> Result<u64, StartError> {
    let rules = layouts::rules(engine)?;
    let has_one_copy = match (rules, read(engine)?) {
        (Some((_, layout)), _) => layout.replicas == 1,
        (None, Some((kept, _))) => kept.has_one_copy(),
        (None, None) => true,
    };
    let proof = proof(engine)?.filter(|_| !has_one_copy);
    Ok(proof.map_or(0, |proof| proof.proven.time))
}

/// A stopped node's directory has lost some of what the node ever held, with timestamps up to
/// `lost_before`: from its next start on it is as one whose disk was replaced, until the others
/// have streamed back what belongs to its replicas.
pub(crate) fn lose<S: Store>(store: &S, lost_before: u64) -> Result<(), StartError> {
    let Some((kept, mut version)) = read(store.engine())? else { return Ok(()) };
    let kept = Kept {
        state: MembershipState::Rebuilding,
        lost_before: lost_before.max(kept.lost_before),
        ..kept
    };
    version.time += 1;
    let mut batch = Batch::new();
    let put = batch.put(Space::Node, KEY, version, &kept.encode());
    let written = put.and_then(|()| store.commit(batch));
    written.map_err(in_store)
}

impl Identity {
    /// The identity of the directory that `store` is in, made if it has none yet. An error is one
    /// line; nothing was changed then.
    pub(crate) fn open<S: Store>(
        store: &S,
        named: Named<'_>,
        new: NewIdentity,
    ) -> Result<Self, StartError> {
        let engine = store.engine();
        let origin = cluster::origin_of(named.name());
        let (stored, mut version) = match read(engine)? {
            Some((kept, version)) => (Some(kept), version),
            None => (None, Version { time: 0, origin }),
        };
        let rules = match &stored {
            Some(_) => layouts::rules(engine)?,
            None => None,
        };
        let differs = match (&stored, &rules) {
            (Some(kept), Some(_)) => is_another(kept, named),
            (Some(kept), None) => differs(kept, named),
            (None, _) => has_no_identity(engine)?,
        };
        if let Some(differs) = differs {
            return Err(StartError::Another(differs));
        }
        let peers = peers(engine)?;
        version.time = version.time.max(newest(engine)?);
        let kept = match (&stored, &rules) {
            (Some(kept), Some((_, layout))) => {
                note_difference(named, layout);
                kept.clone()
            }
            _ => agreed(stored.as_ref(), named, new),
        };
        let (incarnation, name) = (kept.incarnation, kept.name.clone());
        let is_new = stored.is_none() && !kept.is_alone();
        let proof = match proof(engine)? {
            Some(proof) => proof,
            None if is_new => Proof::of_new(named.own, new.lost_before),
            None => Proof::default(),
        };
        let mut state = State { made: kept.clone(), kept, version, peers, proof };
        if stored.as_ref() != Some(&state.kept) {
            let encoded = state.kept.encode();
            let proof = format::encode_proof(&state.proof);
            let written = store.commit(state.batch(&[(KEY, &encoded), (PROOF, &proof)]));
            written.map_err(in_store)?;
        }
        let (own, rules) = rules.map_or((named.own, None), |(own, layout)| (own, Some(layout)));
        let purge = Arc::clone(engine.purge_rule());
        let state = Mutex::new(state);
        let recovered_words = recovered_words(engine)?;
        Ok(Self { incarnation, own, name, rules, recovered_words, purge, state })
    }

    /// The node's id.
    pub(crate) fn own(&self) -> NodeId {
        self.own
    }

    /// The name of this node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The layout that ruled at the start; `None` = the settings' list did.
    pub fn rules(&self) -> Option<&Layout> {
        self.rules.as_ref()
    }

    /// The store's owner says of what it drops: whether the node is alone, now that it knows.
    pub(crate) fn purges_by_age(&self, is_alone: bool) {
        self.purge.holds_only_replica(is_alone);
    }

    /// Random, never 0: made once for the directory.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The cluster that the directory belongs to; `None` = it has no id yet.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.lock().kept.cluster
    }

    /// The same, for all threads of the node.
    pub(crate) fn own_cluster(&self) -> OwnCluster {
        let state = self.lock();
        OwnCluster::new(state.kept.cluster)
    }

    /// Whether the disk that is known of the peer of this name is the only one that ever was.
    pub(crate) fn knows_first(&self, peer: &str) -> bool {
        let state = self.lock();
        let known = state.peers.get(peer);
        known.is_some_and(|known| {
            let claimed = known.claim.map(|claim| claim.incarnation);
            claimed.is_some() && claimed == known.first
        })
    }

    /// Greatest time of a version that a former life of this node may have acknowledged; 0 = there
    /// was none, as all others have said.
    pub fn lost_before(&self) -> u64 {
        self.lock().kept.lost_before
    }

    /// Up to which time of a version the node had learned anew, when it started, what a former life
    /// remembered of writes with an idempotency key; 0 = it never did.
    pub(crate) fn recovered_words(&self) -> u64 {
        self.recovered_words
    }

    /// The node's membership state.
    pub fn state(&self) -> MembershipState {
        self.lock().kept.state
    }

    /// What is known of the peer of this name.
    pub fn known(&self, peer: &str) -> Option<Claim> {
        self.lock().peers.get(peer)?.claim
    }

    /// Whether it is kept, and nothing newer is on its way: then it need not be written again.
    pub(crate) fn is_kept(&self, peer: &str, claim: &Claim) -> bool {
        let state = self.lock();
        let known = state.peers.get(peer);
        known.is_some_and(|known| known.claim == Some(*claim) && known.kept == known.newest)
    }

    /// A batch that stores the membership state and, with it, what this node is marked to lack.
    pub(crate) fn keep_state(&self, shared: &Shared, state: MembershipState) -> (Batch, Keeps) {
        let mut held = self.lock();
        let lost_before = match (held.kept.state, state) {
            // All others have said that they never knew another disk of this name.
            (MembershipState::Joining, MembershipState::Member) => 0,
            _ => shared.membership.state.promised_before().max(held.kept.lost_before),
        };
        let kept = Kept { state, lost_before, ..held.made.clone() };
        held.made = kept.clone();
        let (lacks, changes) = shared.transfer.missed.encode(shared.own);
        let lacks_key = [LACKS, kept.name.as_bytes()].concat();
        if lost_before == 0 {
            held.proof = held.proof.of_first();
            shared.membership.layouts.has_no_former_life();
        }
        // With it, for others may forget what they know of a former life: its votes are lost.
        let (layouts, layouts_kept) = shared.membership.layouts.encode();
        let proof = format::encode_proof(&held.proof);
        let recovered_words = format::encode_time(shared.membership.state.recovered_words());
        let items: [(&[u8], &[u8]); 5] = [
            (KEY, &kept.encode()),
            (&lacks_key, &lacks),
            (PROOF, &proof),
            (RECOVERED_WORDS, &recovered_words),
            (layouts::KEY, &layouts),
        ];
        let mut batch = held.batch(&items);
        batch.make_durable();
        (batch, Keeps::MembershipState { state, lost_before, changes, layouts: layouts_kept })
    }

    /// A batch that stores durably which cluster the node belongs to.
    pub(crate) fn keep_cluster(&self, cluster: ClusterId) -> (Batch, Keeps) {
        let mut state = self.lock();
        state.made.cluster = Some(cluster);
        let encoded = state.made.encode();
        let mut batch = state.batch(&[(KEY, &encoded)]);
        batch.make_durable();
        (batch, Keeps::ClusterId(cluster))
    }

    /// A batch that stores what is known of a peer.
    pub(crate) fn keep_claim(&self, shared: &Shared, peer: NodeId, claim: Claim) -> (Batch, Keeps) {
        let name = shared.name_of(peer);
        let key = [PEER, name.as_bytes()].concat();
        let mut state = self.lock();
        let first_key = [FIRST, name.as_bytes()].concat();
        let first = Some(claim.incarnation).filter(|_| !shared.membership.logs.had_another(peer));
        let known = state.peers.entry(name.clone()).or_default();
        let is_news = std::mem::replace(&mut known.first, first) != first;
        let first = first.map_or(0, |disk| disk.0).to_le_bytes();
        let claimed = format::encode_peer(&claim);
        let items: [(&[u8], &[u8]); 2] = [(&key, &claimed), (&first_key, &first)];
        let mut batch = state.batch(&items[..1 + usize::from(is_news)]);
        // What a new disk stores counts once this node is certain to know the disk.
        if shared.membership.logs.incarnation(peer) != Some(claim.incarnation) {
            batch.make_durable();
        }
        let time = state.version.time;
        state.peers.entry(name).or_default().newest = time;
        (batch, Keeps::Claim(peer, claim, time))
    }

    /// A batch that stores what a node is marked to lack.
    pub(crate) fn keep_missed(&self, shared: &Shared, node: NodeId) -> (Batch, Keeps) {
        let name = shared.name_of(node);
        let key = [LACKS, name.as_bytes()].concat();
        // Under the lock, so that what is newest is what was marked last.
        let mut state = self.lock();
        let (lacks, changes) = shared.transfer.missed.encode(node);
        (state.batch(&[(&key, &lacks)]), Keeps::Missed(node, changes))
    }

    /// A batch that stores what this node knows of proofs, durably: with it, everything before.
    pub(crate) fn keep_proof(&self, proof: Proof) -> (Batch, Keeps) {
        let mut state = self.lock();
        // Of two that are under way, the last one made is found by a start: it says all of both.
        state.proof = state.proof.and(proof);
        let proof = state.proof;
        let mut batch = state.batch(&[(PROOF, &format::encode_proof(&proof))]);
        batch.make_durable();
        (batch, Keeps::Proof(proof))
    }

    /// What the directory knows of proofs.
    pub(crate) fn proof(&self) -> Proof {
        self.lock().proof
    }

    /// Such a batch is durable: only now its content takes effect, and is reported to others.
    pub(crate) fn kept(&self, shared: &Shared, what: &Keeps) {
        match what {
            Keeps::Claim(peer, claim, time) => {
                let name = shared.name_of(*peer);
                let mut state = self.lock();
                let known = state.peers.entry(name).or_default();
                // Two that are under way may end in any order; a restart would find the newer one.
                if *time < known.newest {
                    return;
                }
                *known = Known { claim: Some(*claim), kept: *time, newest: *time, ..*known };
                drop(state);
                shared.membership.logs.know(*peer, claim.incarnation);
                shared.membership.logs.kept(*peer, claim);
            }
            Keeps::MembershipState { state, lost_before, changes, layouts } => {
                enter(shared, layouts, &self.purge);
                shared.transfer.missed.kept(shared.own, *changes);
                let mut held = self.lock();
                (held.kept.state, held.kept.lost_before) = (*state, *lost_before);
                if *lost_before == 0 {
                    shared.repair.proofs.is_first();
                    shared.membership.state.has_no_former_life();
                }
            }
            Keeps::ClusterId(cluster) => {
                self.lock().kept.cluster = Some(*cluster);
                shared.membership.cluster.stored(*cluster);
            }
            Keeps::Missed(node, changes) => shared.transfer.missed.kept(*node, *changes),
            Keeps::Proof(proof) => shared.repair.proofs.kept(*proof),
            Keeps::Layouts(kept) => enter(shared, kept, &self.purge),
        }
    }

    /// Takes in what nodes were marked to lack.
    pub(crate) fn load_missed(&self, engine: &Engine, shared: &Shared) -> Result<(), StartError> {
        let view = shared.view();
        for node in view.ids() {
            let name = shared.name_of(node);
            let key = [LACKS, name.as_bytes()].concat();
            let stored = engine.read(Space::Node, &key).map_err(in_store)?;
            if let Some(record) = stored {
                let found = shared.transfer.missed.found(node, &record.value());
                found
                    .map_err(|why| unreadable(format!("missed-write marks of node {name}"), why))?;
            }
        }
        Ok(())
    }

    /// Begins a life of the directory: to be called once, before any message to another node. A
    /// member whose directory is not the one that it was when the last life began is *verifying*
    /// from here on, if there are others to ask; whoever it is, its votes are lost. The life is
    /// numbered by the wall clock, for a copy's own clock may have begun ahead of it, at its bound.
    pub(crate) fn begin_life<S: Store, D: Directory>(
        &self,
        store: &S,
        directory: &D,
        recovered: Recovered,
        wall: u64,
        number: u64,
    ) -> Result<Lineage, StartError> {
        let what = "the record of the node's earlier starts (lives)";
        let failed = |source| StartError::Store { what, source };
        let stored = store.engine().read(Space::Node, LIVES).map_err(failed)?;
        let stored = stored.map(|record| format::decode_lives(&record.value()));
        let stored = stored.transpose().map_err(|why| unreadable(what, why))?;
        let mut state = self.lock();
        if let Some((marker, _)) = &stored
            && !directory.holds(marker).map_err(StartError::Unreadable)?
            && !is_alone_by(&state.kept, self.rules.as_ref())
        {
            let kept = copied(&state.kept);
            let identity = kept.encode();
            let layouts = layouts::without_votes(store.engine())?;
            let layouts = layouts.iter().map(|record| (layouts::KEY, &record[..]));
            let items: Vec<(&[u8], &[u8])> =
                std::iter::once((KEY, &identity[..])).chain(layouts).collect();
            let batch = state.batch(&items);
            store.commit(batch).map_err(failed)?;
            state.made = kept.clone();
            state.kept = kept;
        }
        let earlier = stored.map_or(Vec::new(), |(_, lives)| lives);
        let last = earlier.last().map(|last: &Life| last.id);
        let id = LifeId::begun(Clock::time_of(wall), last);
        let Recovered { sequence, newest } = recovered;
        let begins = LogPosition(sequence);
        let lineage = Lineage::new(earlier, Life { id, begins, newest });
        let marker = directory.make_next(number).map_err(StartError::Directory)?;
        let lives = format::encode_lives(&marker, &lineage);
        store.commit(state.batch(&[(LIVES, &lives)])).map_err(failed)?;
        directory.settle().map_err(StartError::Directory)?;
        Ok(lineage)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// One that begins alone is the founder of its cluster, and has nobody to ask; the nodes of a list
/// agree on an id once all of them run.
fn cluster_of(names: &[&str], incarnation: Incarnation) -> Option<ClusterId> {
    (names.len() == 1).then(|| ClusterId::born(names, incarnation))
}

/// Whether a directory is that of a node alone.
fn is_alone_by(kept: &Kept, rules: Option<&Layout>) -> bool {
    rules.map_or_else(|| kept.is_alone(), Layout::is_alone)
}

/// The identity to store: that of the directory, with what the settings of a node alone say now.
fn agreed(stored: Option<&Kept>, named: Named<'_>, new: NewIdentity) -> Kept {
    let mut kept = stored.cloned().unwrap_or_else(|| made(named, new));
    kept.named |= named.named;
    kept.digest = named.topology.digest();
    kept.description = named.topology.describe();
    named.name().clone_into(&mut kept.name);
    kept
}

/// That of a copy of a directory.
fn copied(kept: &Kept) -> Kept {
    let state = match kept.state {
        MembershipState::Member => MembershipState::Verifying,
        state => state,
    };
    Kept { state, ..kept.clone() }
}

fn made(named: Named<'_>, new: NewIdentity) -> Kept {
    let topology = named.topology;
    let names: Vec<&str> = topology.ids().map(|id| topology.member(id).name.as_str()).collect();
    let incarnation = new.incarnation.max(Incarnation(1));
    Kept {
        // What a lone node lost nobody else has.
        state: if names.len() == 1 { MembershipState::Member } else { new.state },
        named: named.named,
        cluster: cluster_of(&names, incarnation),
        incarnation,
        lost_before: new.lost_before,
        digest: topology.digest(),
        name: named.name().to_owned(),
        description: topology.describe(),
    }
}

/// Why the node can't use a directory that has no identity, if it can't: it waits for a place in a
/// cluster, or has data, which only a node with an identity writes.
fn has_no_identity(engine: &Engine) -> Result<Option<String>, StartError> {
    if join::waits(engine)? {
        return Ok(Some("it waits to join a cluster: start the node with --join".to_owned()));
    }
    Ok(data_of_nobody(engine)?.map(str::to_owned))
}

/// Says that a directory has data and no identity, if that is so.
fn data_of_nobody(engine: &Engine) -> Result<Option<&'static str>, StartError> {
    let used = engine.read(Space::Node, BOUND_KEY).map_err(in_store)?.is_some();
    Ok(used.then_some("it holds data and does not say of which node, as no release leaves it"))
}

/// Why the node can't use this directory, if it can't.
fn differs(kept: &Kept, named: Named<'_>) -> Option<String> {
    const WHOSE: &str = "the data directory's";
    let (own, theirs) = (named.name(), &kept.name);
    let alone = named.topology.nodes() == 1 && kept.is_alone();
    if alone {
        let other = kept.named && named.named && own != theirs;
        return other
            .then(|| format!("this is node {own}, but the directory belongs to node {theirs}"));
    }
    let topology = difference(&named.topology.describe(), &kept.description, WHOSE);
    topology.or_else(|| {
        let other = own != theirs;
        other.then(|| format!("this is node {own}, but the directory belongs to node {theirs}"))
    })
}

/// Why the node can't use a directory whose layout rules, if it can't: the settings name another
/// node.
fn is_another(kept: &Kept, named: Named<'_>) -> Option<String> {
    let (own, theirs) = (named.name(), &kept.name);
    (named.named && own != theirs)
        .then(|| format!("this is node {own}, but the directory belongs to node {theirs}"))
}

/// Says what the settings list otherwise than the layout that rules.
fn note_difference(named: Named<'_>, layout: &Layout) {
    if !named.named {
        return;
    }
    let listed: Vec<_> = named.topology.ids().map(|id| named.topology.member(id)).collect();
    let is_listed = |name: &str| listed.iter().any(|member| member.name == name);
    let mut differs: Vec<String> = Vec::new();
    for member in &listed {
        match layout.named(&member.name) {
            None => differs.push(format!("node {} is not a member", member.name)),
            Some(node) if node.member != **member => {
                differs.push(format!("node {} has another zone or weight", member.name));
            }
            Some(_) => {}
        }
    }
    let names = layout.nodes.iter().map(|node| &node.member.name);
    differs.extend(
        names.filter(|name| !is_listed(name)).map(|name| format!("node {name} is missing")),
    );
    if let Some(first) = differs.first() {
        let epoch = layout.epoch;
        tracing::warn!(
            epoch,
            differences = differs.len(),
            "--cluster differs from the cluster's current members, which the data directory holds: \
             {first}. The stored members are used; remove --cluster, or list what `kvorum cluster \
             status` shows"
        );
    }
}

fn in_store(source: lsm::Error) -> StartError {
    StartError::Store { what: "the node's identity", source }
}

fn unreadable(what: impl Into<String>, why: Unreadable) -> StartError {
    let what = what.into();
    match why {
        Unreadable::Later(format) => StartError::LaterFormat { what, format },
        Unreadable::Damaged(why) => StartError::Damaged { what, why },
    }
}

/// The identity in the directory, and the version of its record.
fn read(engine: &Engine) -> Result<Option<(Kept, Version)>, StartError> {
    let record = engine.read(Space::Node, KEY).map_err(in_store)?;
    let Some(record) = record else { return Ok(None) };
    let kept = Kept::decode(&record.value());
    let kept = kept.map_err(|why| unreadable("the node's identity", why))?;
    Ok(Some((kept, record.view().version())))
}

/// What the directory knows of proofs.
fn recovered_words(engine: &Engine) -> Result<u64, StartError> {
    let stored = engine.read(Space::Node, RECOVERED_WORDS).map_err(in_store)?;
    let stored = stored.map(|record| format::decode_time(&record.value())).transpose();
    let what = "what the node has learned anew of idempotency keys (recovered-words)";
    stored.map(Option::unwrap_or_default).map_err(|why| unreadable(what, why))
}

fn proof(engine: &Engine) -> Result<Option<Proof>, StartError> {
    let stored = engine.read(Space::Node, PROOF).map_err(in_store)?;
    let proof = stored.map(|record| format::decode_proof(&record.value())).transpose();
    proof.map_err(|why| unreadable("the repair seal and watermark (proof)", why))
}

/// What is known of the peers that were seen.
fn peers(engine: &Engine) -> Result<BTreeMap<String, Known>, StartError> {
    let mut peers = BTreeMap::new();
    let mut scan = engine.snapshot().scan(Space::Node, PEER, Some(PEERS_END));
    while let Some((key, record)) = scan.next().map_err(in_store)? {
        let name = String::from_utf8_lossy(&key[PEER.len()..]).into_owned();
        let claim = format::decode_peer(record.value()).map_err(|why| {
            unreadable(format!("persisted state of node {}", name.escape_debug()), why)
        })?;
        let first = engine.read(Space::Node, &[FIRST, name.as_bytes()].concat());
        let first = first.map_err(in_store)?.and_then(|record| {
            let value = record.value();
            let number = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
            number.and_then(Incarnation::of_number)
        });
        peers.insert(name, Known { claim: Some(claim), first, ..Known::default() });
    }
    Ok(peers)
}

/// The greatest time of a version of what a node keeps for itself.
fn newest(engine: &Engine) -> Result<u64, StartError> {
    let mut newest = 0;
    let mut scan = engine.snapshot().scan(Space::Node, &[], None);
    while let Some((_, record)) = scan.next().map_err(in_store)? {
        newest = newest.max(record.version().time);
    }
    Ok(newest)
}
