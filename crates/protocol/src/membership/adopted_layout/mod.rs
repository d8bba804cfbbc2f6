//! The layout that this node has adopted and its vote on the next layout, shared by all threads of
//! the node.
//!
//! ```text
//!   a vote or a learned layout ─▶ changes the state in memory ─▶ the state is encoded, and stored
//!     ─▶ durable ─▶ the reply is sent; a later layout becomes active
//! ```
//!
//! The record on disk, each field with its length in bytes: form 1 │ is first voter 1 │ node 2 │
//! voter 8 │ promise 8 │ accepted ballot 8 │ accepted layout │ known layout │ rebalance progress
//! (`adopted_layout/pull_state.rs`). Each layout: its length (4 bytes), then its bytes; length 0 =
//! no layout.

mod pull_state;
mod record;

use std::sync::Arc;

use bytes::Buf;
use parking_lot::{Mutex, MutexGuard};

use crate::membership::layout::{
    Ballot, Layout, LayoutVoter, Node, Proposal, Stage, Vote, VoteReply, VoteRequest, Voter,
    VoterId, cached_topology,
};
use crate::node_id::NodeId;
use crate::placement::topology::Topology;
use crate::placement::view::{FIRST_EPOCH, View, Views};
use crate::replica::unreadable::Unreadable;
use pull_state::PullState;
pub(crate) use pull_state::{PullNeed, PullStep};
pub use record::LayoutsRecord;

/// Version of the record's format. Decoding refuses any other.
const FORMAT_VERSION: u8 = 1;

/// The node's adopted layout, its vote and its rebalance progress.
#[derive(Debug)]
pub struct Layouts(Mutex<LayoutsState>);

#[derive(Debug)]
struct LayoutsState {
    council: LayoutVoter,
    /// Number of changes so far, and number of durable changes.
    changes: u64,
    kept: u64,
    /// The layout of the active view.
    active: Arc<Layout>,
    /// The highest epoch reported by another node, and that node.
    reported: Option<(u64, NodeId)>,
    /// The highest epoch reported by another node that turned out to belong to a fork.
    forked: u64,
    change: Option<ChangeReport>,
    /// The last layout that this node proposed as a change of only tokens or quotas: its id and the
    /// outcome.
    access: Option<(u128, Option<ChangeReport>)>,
    /// The rebalance progress in memory, and the part of it that is durable.
    taking: PullState,
    taking_kept: PullState,
}

/// The outcome of the last change that this node proposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeReport {
    /// The proposed layout.
    pub layout: Arc<Layout>,
    /// The progress of the decision.
    pub progress: Progress,
    /// Members of the metadata quorum that replied that they have no vote.
    pub without_vote: Vec<NodeId>,
}

/// Progress of a proposed change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Votes of the metadata quorum are being requested.
    Asking,
    /// The change is decided; a majority of the new metadata quorum has yet to learn it.
    Decided,
    /// A majority of the new metadata quorum has learned the change.
    Done,
    /// Another layout was decided instead.
    Overtaken,
    /// No majority of the metadata quorum was reached; the change may have been decided all the
    /// same.
    GivenUp,
}

/// The contents of an encoded record, applied once the record is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedLayouts {
    changes: u64,
    layout: Arc<Layout>,
    taking: PullState,
}

impl EncodedLayouts {
    /// Returns the pull that the node still needs once the record's layout is active.
    pub(crate) fn lacks(&self, own: NodeId) -> PullNeed {
        self.taking.need_under(&self.layout, own)
    }

    /// True if the layout has other nodes, counting those that join or leave.
    pub fn has_others(&self) -> bool {
        !self.layout.is_alone()
    }
}

impl Layouts {
    /// Returns the state of a node whose disk has no layout; it starts from the layout of its
    /// settings.
    pub fn first(own: Voter, layout: Layout) -> Self {
        Self::of(LayoutVoter::new(own, Arc::new(layout), Vote::default()), PullState::default())
    }

    /// Returns the state of a node in a list of nodes that never changed. Its voter never lost a
    /// vote.
    pub fn new_fixed(topology: &Topology, own: NodeId) -> Self {
        let voter = Voter { node: own, id: Some(VoterId(1)), is_first: true };
        Self::first(voter, Layout::first(topology, |_| String::new()))
    }

    fn of(council: LayoutVoter, taking: PullState) -> Self {
        let active = Arc::clone(council.known_layout());
        let (changes, kept, reported, forked, change) = (0, 0, None, 0, None);
        Self(Mutex::new(LayoutsState {
            council,
            changes,
            kept,
            active,
            reported,
            forked,
            change,
            access: None,
            taking_kept: taking.clone(),
            taking,
        }))
    }

    /// Decodes the record of the node's disk. `first` is the first layout, built from the current
    /// settings; it replaces the stored layout as long as the node knows no later layout. An
    /// accepted layout stays valid even if a URL has changed, because the first layout's id ignores
    /// URLs.
    ///
    /// Errors: the record is damaged or of a later version.
    pub fn decode(mut bytes: &[u8], first: Layout) -> Result<Self, Unreadable> {
        let (own, vote, known, taking) = read(&mut bytes)?;
        let follows = |(_, layout): &(Ballot, Arc<Layout>)| layout.base == first.id();
        let is_first = known.epoch == FIRST_EPOCH && vote.accepted.as_ref().is_none_or(follows);
        let known = Arc::new(if is_first { first } else { known });
        Ok(Self::of(LayoutVoter::new(own, known, vote), taking))
    }

    /// Returns the record's node and known layout, which overrides the settings; `None` if that
    /// layout is the first one. Errors: the record is damaged or of a later version.
    pub fn overriding_layout(mut bytes: &[u8]) -> Result<Option<(NodeId, Layout)>, Unreadable> {
        let (own, _, known, _) = read(&mut bytes)?;
        Ok((known.epoch > FIRST_EPOCH).then_some((own.node, known)))
    }

    /// Returns the record without its votes, for a node that may have lost votes: the node has no
    /// vote until its next boot assigns a voter id. Errors: the record is damaged or of a later
    /// version.
    pub fn without_votes(mut bytes: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let (own, _, known, taking) = read(&mut bytes)?;
        let nobody = Voter { id: None, is_first: false, ..own };
        let without = Self::of(LayoutVoter::new(nobody, Arc::new(known), Vote::default()), taking);
        Ok(without.encode().0)
    }

    /// Updates the record of a single-node cluster from the settings (`first`): member, URL, hash
    /// weight and number of replicas. Returns the new record and its layout. `None` = either layout
    /// does not have exactly one node, or a change is under way, which depends on the recorded
    /// layout. Errors: the record is damaged or of a later version.
    pub fn of_single_node(
        mut bytes: &[u8],
        first: &Layout,
    ) -> Result<Option<(Vec<u8>, Layout)>, Unreadable> {
        let (own, vote, mut known, taking) = read(&mut bytes)?;
        let is_later = |(_, layout): &(Ballot, Arc<Layout>)| layout.epoch > known.epoch;
        let is_open = vote.accepted.as_ref().is_some_and(is_later);
        let (true, [node], [given]) = (!is_open, &mut known.nodes[..], &first.nodes[..]) else {
            return Ok(None);
        };
        node.member.clone_from(&given.member);
        if !given.url.is_empty() {
            node.url.clone_from(&given.url);
        }
        node.hash_weight = given.hash_weight;
        known.replicas = first.replicas;
        let layouts = Self::of(LayoutVoter::new(own, Arc::new(known.clone()), vote), taking);
        Ok(Some((layouts.encode().0, known)))
    }

    /// True if the node has a voter id; a node that may have lost votes has none until its next
    /// boot.
    pub fn has_votes(&self) -> bool {
        self.voter().id.is_some()
    }

    /// Encodes the state as a record, and returns the record's contents with it.
    pub fn encode(&self) -> (Vec<u8>, EncodedLayouts) {
        let state = self.state();
        let (own, vote, known) =
            (state.council.own(), state.council.vote(), state.council.known_layout());
        let mut out = vec![FORMAT_VERSION, u8::from(own.is_first)];
        out.extend(own.node.0.to_le_bytes());
        let (ballot, accepted) = match &vote.accepted {
            Some((ballot, layout)) => (*ballot, layout.to_bytes()),
            None => (0, Vec::new()),
        };
        let id = own.id.map_or(0, |id| id.0);
        [id, vote.promise, ballot].iter().for_each(|n| out.extend(n.to_le_bytes()));
        for layout in [accepted, known.to_bytes()] {
            out.extend((layout.len() as u32).to_le_bytes());
            out.extend(layout);
        }
        state.taking.put(&mut out);
        let (changes, layout, taking) = (state.changes, Arc::clone(known), state.taking.clone());
        (out, EncodedLayouts { changes, layout, taking })
    }

    /// Notes that a record is durable. Makes its layout active if that layout is later than the
    /// active layout, and then returns true.
    pub(crate) fn on_stored(&self, kept: &EncodedLayouts, views: &Views) -> bool {
        let mut state = self.state();
        if kept.changes >= state.kept {
            (state.kept, state.taking_kept) = (kept.changes, kept.taking.clone());
        }
        let is_later = kept.layout.epoch > state.active.epoch;
        if is_later {
            let view = view_after(&kept.layout, &state.active, &views.current());
            state.active = Arc::clone(&kept.layout);
            views.install(view);
        }
        is_later
    }

    /// True if the record's layout places keys differently from the active layout.
    pub(crate) fn changes_placement(&self, kept: &EncodedLayouts) -> bool {
        let state = self.state();
        let of = |layout: &Layout| {
            let stage = match layout.stage {
                // No partition moves in this stage.
                Stage::Prepare => Stage::Settled,
                stage => stage,
            };
            (layout.placement_epoch, stage, layout.decrees.len())
        };
        kept.layout.epoch > state.active.epoch && of(&kept.layout) != of(&state.active)
    }

    /// Returns the view of the active layout, reusing the tables of `view`, which is the view of
    /// `placed`.
    pub fn view_after(&self, placed: &Layout, view: &View) -> View {
        view_after(&self.state().active, placed, view)
    }

    /// True if some change is not durable yet.
    pub fn is_unsaved(&self) -> bool {
        let state = self.state();
        state.kept < state.changes
    }

    /// Returns the layout of the active view.
    pub fn active_layout(&self) -> Arc<Layout> {
        Arc::clone(&self.state().active)
    }

    /// Returns the latest layout that is known to be decided.
    pub fn known_layout(&self) -> Arc<Layout> {
        Arc::clone(self.state().council.known_layout())
    }

    /// Returns this node's voter identity.
    pub fn voter(&self) -> Voter {
        self.state().council.own()
    }

    /// True if this node's voter has a seat in the metadata quorum of the latest known layout.
    pub fn has_seat(&self) -> bool {
        self.state().council.has_seat()
    }

    /// True if this node is in the metadata quorum of the latest known layout but has no vote,
    /// because its disk was replaced, or its directory copied, since it was seated.
    pub fn lacks_vote(&self) -> bool {
        let state = self.state();
        let own = state.council.own().node;
        let is_in = state.council.known_layout().council.iter().any(|seat| seat.node == own);
        is_in && !state.council.has_seat()
    }

    /// Handles a vote request. Returns the reply, and true if the caller must hold the reply back
    /// until a record encoded after this call is durable.
    pub fn handle_request(&self, request: &VoteRequest) -> (VoteReply, bool) {
        let mut state = self.state();
        let before = Arc::clone(state.council.known_layout());
        let (reply, keep) = state.council.handle_request(request);
        if keep.layout || keep.vote {
            state.changes += 1;
            state.carry_over(&before);
        }
        // Another thread's latest change may not be durable either.
        (reply, state.kept < state.changes)
    }

    /// Notes that a layout is decided. Returns true if this node did not know the layout and adopts
    /// it.
    pub fn learn(&self, layout: &Arc<Layout>) -> bool {
        let mut state = self.state();
        let before = Arc::clone(state.council.known_layout());
        let is_news = state.council.learn(layout);
        if is_news {
            state.changes += 1;
            state.carry_over(&before);
        } else if !before.shares_lineage_with(layout) {
            state.forked = state.forked.max(layout.epoch);
        }
        is_news
    }

    /// Gives this node a new voter id, because it may have lost votes. Returns true if the id is
    /// new.
    pub fn renew_voter(&self, id: VoterId) -> bool {
        let mut state = self.state();
        let is_news = state.council.own().id != Some(id);
        if is_news {
            state.council.replace_voter_id(id);
            state.changes += 1;
        }
        is_news
    }

    /// Notes that no peer knows an earlier boot of this node.
    pub fn mark_no_former_boot(&self) {
        let mut state = self.state();
        if !state.council.own().is_first {
            state.council.mark_first();
            state.changes += 1;
        }
    }

    /// Returns a proposal of the layout that this node accepted and has received no decision on.
    pub(crate) fn undecided_proposal(&self) -> Option<Proposal> {
        self.state().council.undecided_proposal()
    }

    /// Returns the highest ballot that this node has promised.
    pub(crate) fn promised_ballot(&self) -> u64 {
        self.state().council.vote().promise
    }

    /// Notes that another node has adopted the layout of `epoch`. Returns true if the epoch is
    /// later than this node's epoch, than every epoch reported before, and than the known forks.
    pub fn note_epoch(&self, node: NodeId, epoch: u64) -> bool {
        let mut state = self.state();
        let known =
            state.reported.map_or(0, |(epoch, _)| epoch).max(state.council.known_layout().epoch);
        let known = known.max(state.forked);
        if epoch > known {
            state.reported = Some((epoch, node));
        }
        epoch > known
    }

    /// Returns a node that has adopted a later layout than this node knows.
    pub(crate) fn node_ahead(&self) -> Option<NodeId> {
        let state = self.state();
        let known = state.council.known_layout().epoch;
        state.reported.filter(|(epoch, _)| *epoch > known).map(|(_, node)| node)
    }

    /// Forgets the report of a node that could not be asked; the next node that reports a later
    /// epoch is asked instead.
    pub(crate) fn mark_unreached(&self, node: NodeId) {
        let mut state = self.state();
        state.reported = state.reported.filter(|(_, reported)| *reported != node);
    }

    /// Returns the outcome of the last change that this node proposed.
    pub fn change(&self) -> Option<ChangeReport> {
        self.state().change.clone()
    }

    /// Notes that this node is about to propose a layout that changes only tokens or quotas.
    /// `Layouts::access_change` reports its outcome; `Layouts::change` reports all other changes.
    pub fn note_access_proposal(&self, id: u128) {
        self.state().access = Some((id, None));
    }

    /// Returns the progress of the last proposed change of tokens or quotas; `None` if this node
    /// has proposed none, or if its progress is not reported yet.
    pub fn access_change(&self) -> Option<Progress> {
        self.state().access.as_ref()?.1.as_ref().map(|report| report.progress)
    }

    pub(crate) fn set_change_report(&self, report: ChangeReport) {
        let mut state = self.state();
        match &mut state.access {
            Some((id, stored)) if *id == report.layout.id() => *stored = Some(report),
            _ => state.change = Some(report),
        }
    }

    fn state(&self) -> MutexGuard<'_, LayoutsState> {
        self.0.lock()
    }
}

fn read(bytes: &mut &[u8]) -> Result<(Voter, Vote, Layout, PullState), Unreadable> {
    let short = |_| "it ends early: damaged";
    let form = bytes.try_get_u8().map_err(short)?;
    if form != FORMAT_VERSION {
        return Err(Unreadable::LaterFormat(form));
    }
    let is_first = bytes.try_get_u8().map_err(short)? == 1;
    let node = NodeId(bytes.try_get_u16_le().map_err(short)?);
    let mut number = || bytes.try_get_u64_le().map_err(short);
    let (id, promise, ballot) = (VoterId::of_number(number()?), number()?, number()?);
    let accepted = layout(bytes)?.map(|layout| (ballot, Arc::new(layout)));
    let known = layout(bytes)?.ok_or("it has no layout: damaged")?;
    let taking = PullState::read(bytes)?;
    if !bytes.is_empty() {
        return Err("it goes on behind its end: damaged".into());
    }
    Ok((Voter { node, id, is_first }, Vote { promise, accepted }, known, taking))
}

fn layout(bytes: &mut &[u8]) -> Result<Option<Layout>, &'static str> {
    let length = bytes.try_get_u32_le().map_err(|_| "it ends early: damaged")? as usize;
    let (layout, rest) = bytes.split_at_checked(length).ok_or("it ends early: damaged")?;
    *bytes = rest;
    if layout.is_empty() { Ok(None) } else { Layout::from_bytes(layout).map(Some) }
}

/// Builds the view of `layout`, the successor of `active`. Topologies of the same nodes are reused
/// from `view`, because placing computes all 65,536 partitions.
fn view_after(layout: &Layout, active: &Layout, view: &View) -> View {
    let (after, before) = match active.stage {
        Stage::Settled | Stage::ReadNew => (Some(&view.topology), view.other.as_ref()),
        Stage::Prepare => (view.prepared.as_ref(), Some(&view.topology)),
        Stage::ReadOld => (view.other.as_ref(), Some(&view.topology)),
    };
    view_of(layout, |nodes, replicas| {
        let is_after = active.nodes == nodes && active.replicas == replicas;
        let is_before =
            || active.before.as_ref().is_some_and(|b| b.nodes == nodes && b.replicas == replicas);
        match (after, before) {
            (Some(after), _) if is_after => after.clone(),
            (_, Some(before)) if is_before() => before.clone(),
            _ => place(nodes, replicas),
        }
    })
}

fn place(nodes: &[Node], replicas: u8) -> Topology {
    cached_topology(nodes, replicas)
        .expect("a layout is checked when it is made, and when it arrives")
}

fn view_of(layout: &Layout, placed: impl Fn(&[Node], u8) -> Topology) -> View {
    let after = placed(&layout.nodes, layout.replicas);
    let before = layout.before.as_ref().map(|before| placed(&before.nodes, before.replicas));
    let view = match (layout.stage, before) {
        (Stage::Prepare, Some(before)) => {
            View::new_prepared(layout.epoch, layout.placement_epoch, before, after)
        }
        (Stage::ReadOld, Some(before)) => {
            View::new_moving(layout.epoch, layout.placement_epoch, before, after)
        }
        (Stage::ReadNew, Some(before)) => {
            View::new_moving(layout.epoch, layout.placement_epoch, after, before)
        }
        (_, _) => View::new_settled(layout.epoch, layout.placement_epoch, after),
    };
    match layout.decrees.last() {
        Some(decree) => view.with_forced_layout(decree.number),
        None => view,
    }
}

#[cfg(test)]
mod tests;
