//! The node's persistent identity: its name, its incarnation, the topology by which its data was
//! placed, and its record of each peer. All of these are stored in [`Space::Node`];
//! `docs/formats/files.md` has the byte layout.
//!
//! ```text
//!   at a start, the directory has
//!     no identity and no data ─────────────────▶ identity created, with a new incarnation
//!     no identity, but data ───────────────────▶ start refused
//!     no identity, and waits to join ──────────▶ start refused
//!     the identity of this node and topology ──▶ identity used
//!     another identity ────────────────────────▶ start refused; the error names the difference
//!
//!   while running, a change makes a batch and its `OwnRecords` ─▶ the driver commits the batch
//!     ─▶ `Identity::apply_durable`
//! ```
//!
//! The incarnation distinguishes a node from an earlier node of the same name whose disk was wiped.
//!
//! **The stored layout** takes precedence once it is later than the first layout: the node's
//! identity then comes from that layout, whatever nodes the settings list. Until then, the nodes
//! come from the settings.
//!
//! **A single-node cluster** has no other node to agree with. If the settings do not name the node,
//! its name is the address on which it listened when the directory was created; later starts may
//! use another address. As long as the settings do not name the node, they also give the node's
//! zone, weight and number of copies, and override the stored layout.
//!
//! Each batch has a version above those of all earlier batches, so the batch made last takes
//! effect, whatever the order of commits.

mod decree;
mod difference;
mod format;
mod join;
mod layouts;
mod marker;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use lsm::{Batch, Engine, PurgeRule, Space, Version};
use parking_lot::{Mutex, MutexGuard};
use protocol::layout::Layout;
use protocol::{
    Boot, BootHistory, BootId, Claim, Clock, ClusterId, EncodedLayouts, FormerDisks, Incarnation,
    LogPosition, MembershipState, NodeId, OwnCluster, Proof, Shared, Topology, Unreadable,
};

use crate::clock::BOUND_KEY;
use crate::start_error::StartError;
use crate::store::Store;
pub use decree::SurvivingDirectory;
use difference::{identity_difference, log_difference, other_node_difference};
use format::StoredIdentity;
pub use join::{Candidate, GrantedMembership};
use layouts::enter;
pub(crate) use layouts::log_if_removed;
pub use marker::{Directory, Marker};
use stored::{former_disks, idempotency_recovered_until, newest, peers, proof, read};

/// Key of the identity record.
const KEY: &[u8] = b"identity";

/// Key of the record of the directory's process starts ([`Boot`]).
const LIVES: &[u8] = b"lives";

/// Key prefix of the missed-write marks; the name of the marked node follows.
const MISSED_MARKS: &[u8] = b"lacks/";

/// Key of the repair proofs.
const PROOF: &[u8] = b"proof";

/// Key of the time up to which this node has recovered idempotency-key records from its peers.
const IDEMPOTENCY_RECOVERED: &[u8] = b"recovered-words";

/// Key of the former disks of this node; the record also states for each disk whether a rebuild has
/// restored its records.
const FORMER_DISKS: &[u8] = b"former-disks";

/// Key prefix of the record of a peer; the peer's name follows.
const PEER: &[u8] = b"peer/";
/// Least key after all keys with the prefix `PEER`.
const PEERS_END: &[u8] = b"peer0";

/// Key prefix of the first incarnation seen of a peer; the peer's name follows.
const FIRST: &[u8] = b"first/";

/// The cluster and this node's place in it, from the settings.
#[derive(Debug, Clone, Copy)]
pub struct NodeSettings<'a> {
    /// Members of the cluster.
    pub topology: &'a Topology,
    /// The id of this node.
    pub own: NodeId,
    /// True if the settings name this node. If false, the name of a single node is only its
    /// address.
    pub named: bool,
    /// URL of each node, indexed by node id, as far as known.
    pub urls: &'a [String],
}

impl NodeSettings<'_> {
    /// Returns the id and name of every node.
    pub(crate) fn members(&self) -> Vec<(NodeId, String)> {
        let member = |id| (id, self.topology.member(id).name.clone());
        self.topology.ids().map(member).collect()
    }

    pub(crate) fn name(&self) -> &str {
        &self.topology.member(self.own).name
    }
}

/// Content of a new identity, for a directory without an identity.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewIdentity {
    /// Random, not 0.
    pub(crate) incarnation: Incarnation,
    /// Membership state, if there are other nodes.
    pub(crate) state: MembershipState,
    /// Greatest version time that a previous incarnation of this node may have acknowledged.
    pub(crate) lost_before: u64,
}

/// The persistent identity of this node; see the module.
#[derive(Debug)]
pub struct Identity {
    incarnation: Incarnation,
    own: NodeId,
    name: String,
    /// The layout in force at the start; `None` = the first layout, from the settings.
    stored_layout: Option<Layout>,
    /// The value of [`Identity::idempotency_recovered_until`] at the start.
    idempotency_recovered_until: u64,
    /// The former disks at the start.
    former_disks: FormerDisks,
    /// The store's purge rule. It purges by age only while the node is alone.
    purge: Arc<PurgeRule>,
    state: Mutex<IdentityState>,
}

#[derive(Debug)]
struct IdentityState {
    /// The state that is durable.
    kept: StoredIdentity,
    /// The state of the newest batch, durable or not.
    made: StoredIdentity,
    /// Version of the newest record written here; each later record gets a greater one.
    version: Version,
    /// The record of each peer seen, by name.
    peers: BTreeMap<String, PeerRecord>,
    /// The repair proofs that are durable or being written.
    proof: Proof,
}

/// The claim and the first incarnation of a peer, as this node stores them.
#[derive(Debug, Clone, Copy, Default)]
struct PeerRecord {
    /// The durable claim; `None` = nothing is stored yet.
    claim: Option<Claim>,
    /// The first incarnation seen of the peer, as stored or being written.
    first: Option<Incarnation>,
    /// Version time of the durable record, and of the newest batch made.
    kept: u64,
    newest: u64,
}

impl IdentityState {
    /// Returns a batch of records for [`Space::Node`] with a version above all earlier ones. A
    /// restart may find a record whose write was reported as failed, so no version is used twice.
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

/// The content of a batch of the node's own records: see `Identity::apply_durable`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnRecords {
    /// The record of a peer. The version time orders it among other records of the same peer.
    Claim(NodeId, Claim, u64),
    /// The node's membership state.
    MembershipState {
        /// The state that is stored.
        state: MembershipState,
        /// Writes up to this version time may be lost: see [`Identity::lost_before`].
        lost_before: u64,
        /// The change count of the node's own missed-write marks in the same batch.
        changes: u64,
        /// The layout state in the same batch.
        layouts: EncodedLayouts,
    },
    /// The id of the cluster that the node belongs to.
    ClusterId(ClusterId),
    /// Missed-write marks of a node, with their change count.
    Missed(NodeId, u64),
    /// The node's repair proofs.
    Proof(Proof),
    /// The node's layout in force, and the node's vote.
    Layouts(EncodedLayouts),
}

/// The state of a recovered store before the node writes to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecoveredStore {
    sequence: u64,
    newest: u64,
}

impl RecoveredStore {
    /// Reads the state. Must be called before the first write.
    pub(crate) fn of(engine: &Engine) -> Self {
        Self { sequence: engine.sequence(), newest: engine.greatest_time() }
    }
}

/// Returns the node name stored in the data directory; `None` = it has no identity.
pub fn kept_name(engine: &Engine) -> Result<Option<String>, StartError> {
    Ok(read(engine)?.map(|(kept, _)| kept.name))
}

/// Returns the layout stored in the data directory, if it is in force: see
/// [`Identity::layout_in_force`].
pub fn kept_layout(engine: &Engine) -> Result<Option<Layout>, StartError> {
    Ok(layouts::layout_in_force(engine)?.map(|(_, layout)| layout))
}

/// Returns true if a directory belongs to a single-node cluster, or to no node.
pub(crate) fn is_alone(engine: &Engine) -> Result<bool, StartError> {
    let stored_layout = layouts::layout_in_force(engine)?;
    let kept = read(engine)?.map(|(kept, _)| kept);
    Ok(kept
        .is_none_or(|kept| is_single_node(&kept, stored_layout.as_ref().map(|(_, layout)| layout))))
}

/// Returns, from a stopped node's directory, the version time up to which all replicas were proven
/// to have the same records, provided that the other nodes have lost none. 0 = nothing is proven,
/// or keys have a single replica.
pub(crate) fn read_proven_time(engine: &Engine) -> Result<u64, StartError> {
    let stored_layout = layouts::layout_in_force(engine)?;
    let has_one_copy = match (stored_layout, read(engine)?) {
        (Some((_, layout)), _) => layout.replicas == 1,
        (None, Some((kept, _))) => kept.has_one_copy(),
        (None, None) => true,
    };
    let proof = proof(engine)?.filter(|_| !has_one_copy);
    Ok(proof.map_or(0, |proof| proof.proven.time))
}

/// Marks a stopped node's directory as having lost records with timestamps up to `lost_before`.
/// From the next start on, the node is treated like a node with a replaced disk, until the other
/// nodes have streamed back the records of which it is a replica.
pub(crate) fn mark_records_lost<S: Store>(store: &S, lost_before: u64) -> Result<(), StartError> {
    let Some((kept, mut version)) = read(store.engine())? else { return Ok(()) };
    let kept = StoredIdentity {
        state: MembershipState::Rebuilding,
        lost_before: lost_before.max(kept.lost_before),
        ..kept
    };
    version.time += 1;
    let mut batch = Batch::new();
    let put = batch.put(Space::Node, KEY, version, &kept.encode());
    let written = put.and_then(|()| store.commit(batch));
    written.map_err(identity_error)
}

/// Durably stores the records that the open of an identity has created or changed.
fn store_opened<S: Store>(
    store: &S,
    state: &mut IdentityState,
    stored: Option<&StoredIdentity>,
    single: Option<&[u8]>,
) -> Result<(), StartError> {
    let encoded = state.kept.encode();
    let proof = format::encode_proof(&state.proof);
    let mut records = Vec::new();
    if stored != Some(&state.kept) {
        records.extend([(KEY, &encoded[..]), (PROOF, &proof)]);
    }
    if let Some(record) = single {
        records.push((layouts::KEY, record));
    }
    if records.is_empty() {
        return Ok(());
    }
    let mut batch = state.batch(&records);
    batch.make_durable();
    store.commit(batch).map_err(identity_error)
}

impl Identity {
    /// Opens the identity of the store's directory, or creates an identity if there is none. An
    /// error is one line and leaves the directory unchanged.
    pub(crate) fn open<S: Store>(
        store: &S,
        named: NodeSettings<'_>,
        new: NewIdentity,
    ) -> Result<Self, StartError> {
        let engine = store.engine();
        let origin = protocol::origin_of(named.name());
        let (stored, mut version) = match read(engine)? {
            Some((kept, version)) => (Some(kept), version),
            None => (None, Version { time: 0, origin }),
        };
        let mut stored_layout = match &stored {
            Some(_) => layouts::layout_in_force(engine)?,
            None => None,
        };
        // If the settings do not name the node of a single-node cluster, they override its stored
        // layout, which a change of tokens or quotas may have created.
        let mut single = None;
        if let (Some(kept), Some((_, layout))) = (&stored, &mut stored_layout)
            && !kept.named
            && layout.is_alone()
            && named.topology.nodes() == 1
            && let Some((record, changed)) = layouts::of_single_node(engine, named)?
        {
            single = Some(record);
            *layout = changed;
        }
        let differs = match (&stored, &stored_layout) {
            (Some(_), Some(_)) if single.is_some() => None,
            (Some(kept), Some(_)) => other_node_difference(kept, named),
            (Some(kept), None) => identity_difference(kept, named),
            (None, _) => missing_identity_error(engine)?,
        };
        if let Some(differs) = differs {
            return Err(StartError::Another(differs));
        }
        let peers = peers(engine)?;
        version.time = version.time.max(newest(engine)?);
        let kept = match (&stored, &stored_layout) {
            (Some(kept), Some((_, layout))) if single.is_none() => {
                log_difference(named, layout);
                kept.clone()
            }
            _ => updated_identity(stored.as_ref(), named, new),
        };
        let (incarnation, name) = (kept.incarnation, kept.name.clone());
        let is_new = stored.is_none() && !kept.is_alone();
        let proof = match proof(engine)? {
            Some(proof) => proof,
            None if is_new => Proof::of_new(named.own, new.lost_before),
            None => Proof::default(),
        };
        let mut state = IdentityState { made: kept.clone(), kept, version, peers, proof };
        store_opened(store, &mut state, stored.as_ref(), single.as_deref())?;
        let (own, stored_layout) =
            stored_layout.map_or((named.own, None), |(own, layout)| (own, Some(layout)));
        let purge = Arc::clone(engine.purge_rule());
        let state = Mutex::new(state);
        let idempotency_recovered_until = idempotency_recovered_until(engine)?;
        let former_disks = former_disks(engine)?;
        Ok(Self {
            incarnation,
            own,
            name,
            stored_layout,
            idempotency_recovered_until,
            former_disks,
            purge,
            state,
        })
    }

    /// Returns the node's id.
    pub(crate) fn own(&self) -> NodeId {
        self.own
    }

    /// Returns the name of this node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the layout in force at the start; `None` = the settings' list was in force.
    pub fn layout_in_force(&self) -> Option<&Layout> {
        self.stored_layout.as_ref()
    }

    /// Sets in the store's purge rule whether the node is alone.
    pub(crate) fn set_purge_by_age(&self, is_alone: bool) {
        self.purge.set_only_replica(is_alone);
    }

    /// Returns the directory's incarnation: random, never 0, created once.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns the cluster that the directory belongs to; `None` = the cluster has no id yet.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.lock().kept.cluster
    }

    /// Returns the cluster's id in the form that all threads of the node share.
    pub(crate) fn own_cluster(&self) -> OwnCluster {
        let state = self.lock();
        OwnCluster::new(state.kept.cluster)
    }

    /// Returns true if the known incarnation of this peer is the only one that the peer ever had.
    pub(crate) fn has_only_incarnation(&self, peer: &str) -> bool {
        let state = self.lock();
        let known = state.peers.get(peer);
        known.is_some_and(|known| {
            let claimed = known.claim.map(|claim| claim.incarnation);
            claimed.is_some() && claimed == known.first
        })
    }

    /// Returns the greatest version time that a previous incarnation of this node may have
    /// acknowledged; 0 = all other nodes have confirmed that there was none.
    pub fn lost_before(&self) -> u64 {
        self.lock().kept.lost_before
    }

    /// Returns the version time up to which the node had, at its start, recovered the
    /// idempotency-key records of a previous incarnation from its peers; 0 = it never did.
    pub(crate) fn idempotency_recovered_until(&self) -> u64 {
        self.idempotency_recovered_until
    }

    /// Returns the former disks of the node at its start.
    pub(crate) fn former_disks(&self) -> &FormerDisks {
        &self.former_disks
    }

    /// Returns the node's membership state.
    pub fn state(&self) -> MembershipState {
        self.lock().kept.state
    }

    /// Returns the durable claim of the peer of this name.
    pub fn known_claim(&self, peer: &str) -> Option<Claim> {
        self.lock().peers.get(peer)?.claim
    }

    /// Returns true if the claim is durable and no newer claim is being written, so that the claim
    /// need not be stored again.
    pub(crate) fn is_kept(&self, peer: &str, claim: &Claim) -> bool {
        let state = self.lock();
        let known = state.peers.get(peer);
        known.is_some_and(|known| known.claim == Some(*claim) && known.kept == known.newest)
    }

    /// Returns a batch that stores the membership state together with this node's missed-write
    /// marks.
    pub(crate) fn keep_state(
        &self,
        shared: &Shared,
        state: MembershipState,
    ) -> (Batch, OwnRecords) {
        let mut held = self.lock();
        let lost_before = match (held.kept.state, state) {
            // All other nodes have confirmed that they never knew another disk of this name.
            (MembershipState::Joining, MembershipState::Member) => 0,
            _ => shared.membership.state.promised_before().max(held.kept.lost_before),
        };
        let kept = StoredIdentity { state, lost_before, ..held.made.clone() };
        held.made = kept.clone();
        let (lacks, changes) = shared.transfer.missed.encode(shared.own);
        let lacks_key = [MISSED_MARKS, kept.name.as_bytes()].concat();
        if lost_before == 0 {
            held.proof = held.proof.of_first();
            shared.membership.layouts.mark_no_former_boot();
        }
        // The layouts are in the same batch, because other nodes may now forget a previous
        // incarnation, whose votes are lost.
        let (layouts, layouts_kept) = shared.membership.layouts.encode();
        let proof = format::encode_proof(&held.proof);
        let idempotency_recovered_until =
            format::encode_time(shared.membership.state.idempotency_recovered_until());
        let is_member = state == MembershipState::Member;
        let logs = &shared.membership.logs;
        if !is_member {
            logs.begin_former_rebuild();
        }
        let former = format::encode_former(&logs.former_disks(is_member));
        let items: [(&[u8], &[u8]); 6] = [
            (KEY, &kept.encode()),
            (&lacks_key, &lacks),
            (PROOF, &proof),
            (IDEMPOTENCY_RECOVERED, &idempotency_recovered_until),
            (FORMER_DISKS, &former),
            (layouts::KEY, &layouts),
        ];
        let mut batch = held.batch(&items);
        batch.make_durable();
        (batch, OwnRecords::MembershipState { state, lost_before, changes, layouts: layouts_kept })
    }

    /// Returns a batch that durably stores the id of the node's cluster.
    pub(crate) fn keep_cluster(&self, cluster: ClusterId) -> (Batch, OwnRecords) {
        let mut state = self.lock();
        state.made.cluster = Some(cluster);
        let encoded = state.made.encode();
        let mut batch = state.batch(&[(KEY, &encoded)]);
        batch.make_durable();
        (batch, OwnRecords::ClusterId(cluster))
    }

    /// Returns a batch that stores the record of a peer.
    pub(crate) fn keep_claim(
        &self,
        shared: &Shared,
        peer: NodeId,
        claim: Claim,
    ) -> (Batch, OwnRecords) {
        let name = shared.name_of(peer);
        let key = [PEER, name.as_bytes()].concat();
        let mut state = self.lock();
        let first_key = [FIRST, name.as_bytes()].concat();
        let first =
            Some(claim.incarnation).filter(|_| !shared.membership.logs.had_another_disk(peer));
        let known = state.peers.entry(name.clone()).or_default();
        let is_news = std::mem::replace(&mut known.first, first) != first;
        let first = first.map_or(0, |disk| disk.0).to_le_bytes();
        let claimed = format::encode_peer(&claim);
        let items: [(&[u8], &[u8]); 2] = [(&key, &claimed), (&first_key, &first)];
        let mut batch = state.batch(&items[..1 + usize::from(is_news)]);
        // Writes by a new disk count only once this node durably knows that disk.
        if shared.membership.logs.incarnation(peer) != Some(claim.incarnation) {
            batch.make_durable();
        }
        let time = state.version.time;
        state.peers.entry(name).or_default().newest = time;
        (batch, OwnRecords::Claim(peer, claim, time))
    }

    /// Returns a batch that stores the missed-write marks of a node.
    pub(crate) fn keep_missed(&self, shared: &Shared, node: NodeId) -> (Batch, OwnRecords) {
        let name = shared.name_of(node);
        let key = [MISSED_MARKS, name.as_bytes()].concat();
        // Encoded under the lock, so that the newest batch has the latest marks.
        let mut state = self.lock();
        let (lacks, changes) = shared.transfer.missed.encode(node);
        (state.batch(&[(&key, &lacks)]), OwnRecords::Missed(node, changes))
    }

    /// Returns a batch that durably stores the repair proofs; all earlier writes become durable
    /// with it.
    pub(crate) fn keep_proof(&self, proof: Proof) -> (Batch, OwnRecords) {
        let mut state = self.lock();
        // Of two batches in flight, a restart finds the newer one, so it merges the proofs of both.
        state.proof = state.proof.merge(proof);
        let proof = state.proof;
        let mut batch = state.batch(&[(PROOF, &format::encode_proof(&proof))]);
        batch.make_durable();
        (batch, OwnRecords::Proof(proof))
    }

    /// Returns the repair proofs, durable or being written.
    pub(crate) fn proof(&self) -> Proof {
        self.lock().proof
    }

    /// Applies a batch that is now durable: only from here on its content takes effect and is
    /// reported to other nodes.
    pub(crate) fn apply_durable(&self, shared: &Shared, what: &OwnRecords) {
        match what {
            OwnRecords::Claim(peer, claim, time) => {
                let name = shared.name_of(*peer);
                let mut state = self.lock();
                let known = state.peers.entry(name).or_default();
                // Two batches in flight may complete in any order; a restart would find the newer
                // batch.
                if *time < known.newest {
                    return;
                }
                *known = PeerRecord { claim: Some(*claim), kept: *time, newest: *time, ..*known };
                drop(state);
                shared.membership.logs.know(*peer, claim.incarnation);
                shared.membership.logs.mark_claim_stored(*peer, claim);
            }
            OwnRecords::MembershipState { state, lost_before, changes, layouts } => {
                enter(shared, layouts, &self.purge);
                shared.transfer.missed.mark_durable(shared.own, *changes);
                let mut held = self.lock();
                (held.kept.state, held.kept.lost_before) = (*state, *lost_before);
                if *lost_before == 0 {
                    shared.repair.proofs.mark_first();
                    shared.membership.state.mark_no_former_boot();
                }
            }
            OwnRecords::ClusterId(cluster) => {
                self.lock().kept.cluster = Some(*cluster);
                shared.membership.cluster.mark_durable(*cluster);
            }
            OwnRecords::Missed(node, changes) => {
                shared.transfer.missed.mark_durable(*node, *changes)
            }
            OwnRecords::Proof(proof) => shared.repair.proofs.put_in_force(*proof),
            OwnRecords::Layouts(kept) => enter(shared, kept, &self.purge),
        }
    }

    /// Loads the missed-write marks of all nodes.
    pub(crate) fn load_missed(&self, engine: &Engine, shared: &Shared) -> Result<(), StartError> {
        let view = shared.view();
        for node in view.ids() {
            let name = shared.name_of(node);
            let key = [MISSED_MARKS, name.as_bytes()].concat();
            let stored = engine.read(Space::Node, &key).map_err(identity_error)?;
            if let Some(record) = stored {
                let found = shared.transfer.missed.load(node, &record.value());
                found
                    .map_err(|why| unreadable(format!("missed-write marks of node {name}"), why))?;
            }
        }
        Ok(())
    }

    /// Begins a new process start (life) of the directory. Must be called once, before any message
    /// to another node. If the directory is a copy of the directory of the last start, and there
    /// are other nodes to ask, a member becomes *verifying*, and a node in any state loses its
    /// votes. The start's id comes from the wall clock, because the node's own clock may be ahead
    /// of the wall clock, at its bound.
    pub(crate) fn record_boot<S: Store, D: Directory>(
        &self,
        store: &S,
        directory: &D,
        recovered: RecoveredStore,
        wall: u64,
        number: u64,
    ) -> Result<BootHistory, StartError> {
        let what = "the record of the node's earlier starts (lives)";
        let failed = |source| StartError::Store { what, source };
        let stored = store.engine().read(Space::Node, LIVES).map_err(failed)?;
        let stored = stored.map(|record| format::decode_lives(&record.value()));
        let stored = stored.transpose().map_err(|why| unreadable(what, why))?;
        let mut state = self.lock();
        if let Some((marker, _)) = &stored
            && !directory.holds(marker).map_err(StartError::Unreadable)?
            && !is_single_node(&state.kept, self.stored_layout.as_ref())
        {
            let kept = identity_of_copy(&state.kept);
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
        let last = earlier.last().map(|last: &Boot| last.id);
        let id = BootId::new_after(Clock::time_of(wall), last);
        let RecoveredStore { sequence, newest } = recovered;
        let begins = LogPosition(sequence);
        let boot_history = BootHistory::new(earlier, Boot { id, begins, newest });
        let marker = directory.make_next(number).map_err(StartError::Directory)?;
        let lives = format::encode_lives(&marker, &boot_history);
        store.commit(state.batch(&[(LIVES, &lives)])).map_err(failed)?;
        directory.settle().map_err(StartError::Directory)?;
        Ok(boot_history)
    }

    fn lock(&self) -> MutexGuard<'_, IdentityState> {
        self.state.lock()
    }
}

/// Returns the id of a new cluster if it has one node: the founder has no other node to ask. The
/// nodes of a longer list agree on an id once all of them run.
fn cluster_of(names: &[&str], incarnation: Incarnation) -> Option<ClusterId> {
    (names.len() == 1).then(|| ClusterId::derive(names, incarnation))
}

/// Returns true if a directory belongs to a single-node cluster.
fn is_single_node(kept: &StoredIdentity, stored_layout: Option<&Layout>) -> bool {
    stored_layout.map_or_else(|| kept.is_alone(), Layout::is_alone)
}

/// Returns the identity to store: the directory's, updated with the current settings of a single
/// node.
fn updated_identity(
    stored: Option<&StoredIdentity>,
    named: NodeSettings<'_>,
    new: NewIdentity,
) -> StoredIdentity {
    let mut kept = stored.cloned().unwrap_or_else(|| new_identity(named, new));
    kept.named |= named.named;
    kept.digest = named.topology.digest();
    kept.description = named.topology.describe();
    named.name().clone_into(&mut kept.name);
    kept
}

/// Returns the identity to store in a copy of a directory.
fn identity_of_copy(kept: &StoredIdentity) -> StoredIdentity {
    let state = match kept.state {
        MembershipState::Member => MembershipState::Verifying,
        state => state,
    };
    StoredIdentity { state, ..kept.clone() }
}

fn new_identity(named: NodeSettings<'_>, new: NewIdentity) -> StoredIdentity {
    let topology = named.topology;
    let names: Vec<&str> = topology.ids().map(|id| topology.member(id).name.as_str()).collect();
    let incarnation = new.incarnation.max(Incarnation(1));
    // A single node founds its cluster: no other node can know a previous incarnation, now or after
    // the cluster has grown.
    let (state, lost_before) = match names.len() {
        1 => (MembershipState::Member, 0),
        _ => (new.state, new.lost_before),
    };
    StoredIdentity {
        state,
        named: named.named,
        cluster: cluster_of(&names, incarnation),
        incarnation,
        lost_before,
        digest: topology.digest(),
        name: named.name().to_owned(),
        description: topology.describe(),
    }
}

/// Returns the reason why the node can't use a directory without an identity: the directory waits
/// to join a cluster, or has data, which only a node with an identity writes. `None` = the node can
/// use the directory.
fn missing_identity_error(engine: &Engine) -> Result<Option<String>, StartError> {
    if join::is_candidate(engine)? {
        return Ok(Some("it waits to join a cluster: start the node with --join".to_owned()));
    }
    Ok(data_without_identity(engine)?.map(str::to_owned))
}

/// Returns a message if a directory has data and no identity.
fn data_without_identity(engine: &Engine) -> Result<Option<&'static str>, StartError> {
    let used = engine.read(Space::Node, BOUND_KEY).map_err(identity_error)?.is_some();
    Ok(used.then_some("it holds data and does not say of which node, as no release leaves it"))
}

fn identity_error(source: lsm::Error) -> StartError {
    StartError::Store { what: "the node's identity", source }
}

fn unreadable(what: impl Into<String>, why: Unreadable) -> StartError {
    let what = what.into();
    match why {
        Unreadable::LaterFormat(format) => StartError::LaterFormat { what, format },
        Unreadable::Damaged(why) => StartError::Damaged { what, why },
    }
}
