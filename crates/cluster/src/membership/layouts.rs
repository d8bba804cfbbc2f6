//! The layout that this node goes by, and its vote about the next one, for all threads of a node.
//!
//! ```text
//!   asked, sent ─▶ changed in memory ─▶ encoded ─▶ durable ─▶ kept: the reply goes out, and a
//!                                                             later layout is in force
//! ```
//!
//! The record on disk: form 1 │ first voter 1 │ node 2 │ voter 8 │ promise 8 │ accepted: ballot 8,
//! layout │ known: layout, each layout as length 4 and bytes; length 0 = none │ what was taken of
//! partitions that move (`layouts/taking.rs`).

mod record;
mod taking;

use std::sync::Arc;

use bytes::Buf;
use parking_lot::{Mutex, MutexGuard};

use crate::membership::layout::{
    Ballot, Council, Layout, Node, Proposal, Stage, Vote, VoteReply, VoteRequest, Voter, VoterId,
    placed,
};
use crate::node_id::NodeId;
use crate::placement::topology::Topology;
use crate::placement::view::{FIRST_EPOCH, View, Views};
use crate::replica::unreadable::Unreadable;
pub use record::LayoutsRecord;
use taking::Taking;
pub(crate) use taking::{Lacks, TakingStep};

/// The form that is written. Others are refused.
const FORM: u8 = 1;

/// See the module.
#[derive(Debug)]
pub struct Layouts(Mutex<LayoutsState>);

#[derive(Debug)]
struct LayoutsState {
    council: Council,
    /// Changes so far, and up to which of them all is durable.
    changes: u64,
    kept: u64,
    /// The layout of the view in force.
    entered: Arc<Layout>,
    /// The latest epoch that another node goes by, and that node.
    reported: Option<(u64, NodeId)>,
    /// The latest epoch of another node's that turned out to be one of a fork.
    forked: u64,
    change: Option<ChangeReport>,
    /// The layout that this node proposed last for the sake of its access, and what became of it.
    access: Option<(u128, Option<ChangeReport>)>,
    /// What is taken of partitions that move, and what of that is durable.
    taking: Taking,
    taking_kept: Taking,
}

/// What became of the last change that this node proposed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeReport {
    /// The layout that was wanted.
    pub layout: Arc<Layout>,
    /// How far it is.
    pub progress: Progress,
    /// Councillors that said that they have no vote.
    pub without_vote: Vec<NodeId>,
}

/// How far a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Councillors are asked.
    Asking,
    /// It is decided, and a majority of the new council must still learn of it.
    Decided,
    /// A majority of the new council knows it.
    Done,
    /// Another one was decided instead.
    Overtaken,
    /// No majority of the council could be reached; it may be decided all the same.
    GivenUp,
}

/// What a record of this node's layout and vote says once it is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutsKept {
    changes: u64,
    layout: Arc<Layout>,
    taking: Taking,
}

impl LayoutsKept {
    /// What the node lacks by the layout that is known, once that is in force.
    pub(crate) fn lacks(&self, own: NodeId) -> Lacks {
        self.taking.lacks_by(&self.layout, own)
    }

    /// Whether there are others by it, or soon will be, or were until now.
    pub fn has_others(&self) -> bool {
        !self.layout.is_alone()
    }
}

impl Layouts {
    /// Of a node whose disk knows no layout: it goes by the one that its settings make.
    pub fn first(own: Voter, layout: Layout) -> Self {
        Self::of(Council::new(own, Arc::new(layout), Vote::default()), Taking::default())
    }

    /// Of a node of a list that never changed, and that lost no vote.
    pub fn fixed(topology: &Topology, own: NodeId) -> Self {
        let voter = Voter { node: own, id: Some(VoterId(1)), is_first: true };
        Self::first(voter, Layout::first(topology, |_| String::new()))
    }

    fn of(council: Council, taking: Taking) -> Self {
        let entered = Arc::clone(council.known());
        let (changes, kept, reported, forked, change) = (0, 0, None, 0, None);
        Self(Mutex::new(LayoutsState {
            council,
            changes,
            kept,
            entered,
            reported,
            forked,
            change,
            access: None,
            taking_kept: taking.clone(),
            taking,
        }))
    }

    /// As the node's disk has it; or what is wrong with that. As long as only the first layout is
    /// known, it is the one that the settings make: URLs may have changed, which is no difference
    /// to what was accepted.
    pub fn decode(mut bytes: &[u8], first: Layout) -> Result<Self, Unreadable> {
        let (own, vote, known, taking) = read(&mut bytes)?;
        let follows = |(_, layout): &(Ballot, Arc<Layout>)| layout.base == first.id();
        let is_first = known.epoch == FIRST_EPOCH && vote.accepted.as_ref().is_none_or(follows);
        let known = Arc::new(if is_first { first } else { known });
        Ok(Self::of(Council::new(own, known, vote), taking))
    }

    /// Which node's record it is, and the layout that it knows, if that is later than the first
    /// one: then it rules, whatever the settings say.
    pub fn rules(mut bytes: &[u8]) -> Result<Option<(NodeId, Layout)>, Unreadable> {
        let (own, _, known, _) = read(&mut bytes)?;
        Ok((known.epoch > FIRST_EPOCH).then_some((own.node, known)))
    }

    /// Such a record of a node that may have lost votes: it is no voter until its life begins.
    pub fn without_votes(mut bytes: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let (own, _, known, taking) = read(&mut bytes)?;
        let nobody = Voter { id: None, is_first: false, ..own };
        let without = Self::of(Council::new(nobody, Arc::new(known), Vote::default()), taking);
        Ok(without.encode().0)
    }

    /// Whether it is a voter at all: see [`Layouts::without_votes`].
    pub fn has_votes(&self) -> bool {
        self.voter().id.is_some()
    }

    /// The record of it all, and what it says.
    pub fn encode(&self) -> (Vec<u8>, LayoutsKept) {
        let state = self.state();
        let (own, vote, known) = (state.council.own(), state.council.vote(), state.council.known());
        let mut out = vec![FORM, u8::from(own.is_first)];
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
        (out, LayoutsKept { changes, layout, taking })
    }

    /// Such a record is durable: a later layout is in force from now on. Returns whether one is
    /// that was not before.
    pub(crate) fn kept(&self, kept: &LayoutsKept, views: &Views) -> bool {
        let mut state = self.state();
        if kept.changes >= state.kept {
            (state.kept, state.taking_kept) = (kept.changes, kept.taking.clone());
        }
        let is_later = kept.layout.epoch > state.entered.epoch;
        if is_later {
            let view = view_after(&kept.layout, &state.entered, &views.current());
            state.entered = Arc::clone(&kept.layout);
            views.install(view);
        }
        is_later
    }

    /// Whether keys are placed otherwise by what such a record says.
    pub(crate) fn is_placed_otherwise(&self, kept: &LayoutsKept) -> bool {
        let state = self.state();
        let of = |layout: &Layout| {
            let stage = match layout.stage {
                // Nothing moves yet.
                Stage::Prepare => Stage::Settled,
                stage => stage,
            };
            (layout.began, stage, layout.decrees.len())
        };
        kept.layout.epoch > state.entered.epoch && of(&kept.layout) != of(&state.entered)
    }

    /// The view of the layout that it goes by, as it follows on one that is placed already.
    pub fn view_after(&self, placed: &Layout, view: &View) -> View {
        view_after(&self.state().entered, placed, view)
    }

    /// Whether something of it is not durable yet.
    pub fn is_unkept(&self) -> bool {
        let state = self.state();
        state.kept < state.changes
    }

    /// The layout of the view in force.
    pub fn entered(&self) -> Arc<Layout> {
        Arc::clone(&self.state().entered)
    }

    /// The last layout that is known to be decided.
    pub fn known(&self) -> Arc<Layout> {
        Arc::clone(self.state().council.known())
    }

    /// Who this node is as a voter.
    pub fn voter(&self) -> Voter {
        self.state().council.own()
    }

    /// Whether it has a seat in the council of the last layout that it knows.
    pub fn has_seat(&self) -> bool {
        self.state().council.has_seat()
    }

    /// Whether this node is in the council of the last layout that it knows, and has no vote: its
    /// disk was replaced since it was seated.
    pub fn lacks_vote(&self) -> bool {
        let state = self.state();
        let own = state.council.own().node;
        let is_in = state.council.known().council.iter().any(|seat| seat.node == own);
        is_in && !state.council.has_seat()
    }

    /// This node is asked to vote, or told what was decided. The reply must wait until a record
    /// that is made from now on is durable, if that is said.
    pub fn asked(&self, request: &VoteRequest) -> (VoteReply, bool) {
        let mut state = self.state();
        let before = Arc::clone(state.council.known());
        let (reply, keep) = state.council.asked(request);
        if keep.layout || keep.vote {
            state.changes += 1;
            state.learned(&before);
        }
        // What another thread has changed just now may not be durable either.
        (reply, state.kept < state.changes)
    }

    /// A layout is decided. Returns whether that is news.
    pub fn learn(&self, layout: &Arc<Layout>) -> bool {
        let mut state = self.state();
        let before = Arc::clone(state.council.known());
        let is_news = state.council.learn(layout);
        if is_news {
            state.changes += 1;
            state.learned(&before);
        } else if !before.is_of_one_line(layout) {
            state.forked = state.forked.max(layout.epoch);
        }
        is_news
    }

    /// This node may have lost votes: it is another voter, with this id, from here on. Returns
    /// whether that is news.
    pub fn loses_votes(&self, id: VoterId) -> bool {
        let mut state = self.state();
        let is_news = state.council.own().id != Some(id);
        if is_news {
            state.council.loses_votes(id);
            state.changes += 1;
        }
        is_news
    }

    /// Nobody knows a former life of this node.
    pub fn has_no_former_life(&self) {
        let mut state = self.state();
        if !state.council.own().is_first {
            state.council.is_first();
            state.changes += 1;
        }
    }

    /// A proposal of what this node accepted and has received no decision on.
    pub(crate) fn completed(&self) -> Option<Proposal> {
        self.state().council.completed()
    }

    /// The greatest ballot that this node has promised.
    pub(crate) fn promised(&self) -> u64 {
        self.state().council.vote().promise
    }

    /// Another node goes by the layout of this epoch. Returns whether it is later than what this
    /// node knows, or another one has reported.
    pub fn received_epoch(&self, node: NodeId, epoch: u64) -> bool {
        let mut state = self.state();
        let known = state.reported.map_or(0, |(epoch, _)| epoch).max(state.council.known().epoch);
        let known = known.max(state.forked);
        if epoch > known {
            state.reported = Some((epoch, node));
        }
        epoch > known
    }

    /// Who goes by a later layout than this node knows.
    pub(crate) fn ahead(&self) -> Option<NodeId> {
        let state = self.state();
        let known = state.council.known().epoch;
        state.reported.filter(|(epoch, _)| *epoch > known).map(|(_, node)| node)
    }

    /// It could not be asked. Whoever says so next is.
    pub(crate) fn is_not_reached(&self, node: NodeId) {
        let mut state = self.state();
        state.reported = state.reported.filter(|(_, reported)| *reported != node);
    }

    /// What became of the last change that this node proposed.
    pub fn change(&self) -> Option<ChangeReport> {
        self.state().change.clone()
    }

    /// This node is about to propose the layout of this id, in which only the access is another:
    /// what becomes of it is told apart from changes of the members.
    pub fn proposes_access(&self, id: u128) {
        self.state().access = Some((id, None));
    }

    /// What became of that; `None` = nothing yet.
    pub fn access_change(&self) -> Option<Progress> {
        self.state().access.as_ref()?.1.as_ref().map(|report| report.progress)
    }

    pub(crate) fn changes(&self, report: ChangeReport) {
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

fn read(bytes: &mut &[u8]) -> Result<(Voter, Vote, Layout, Taking), Unreadable> {
    let short = |_| "it ends early: damaged";
    let form = bytes.try_get_u8().map_err(short)?;
    if form != FORM {
        return Err(Unreadable::Later(form));
    }
    let is_first = bytes.try_get_u8().map_err(short)? == 1;
    let node = NodeId(bytes.try_get_u16_le().map_err(short)?);
    let mut number = || bytes.try_get_u64_le().map_err(short);
    let (id, promise, ballot) = (VoterId::of_number(number()?), number()?, number()?);
    let accepted = layout(bytes)?.map(|layout| (ballot, Arc::new(layout)));
    let known = layout(bytes)?.ok_or("it has no layout: damaged")?;
    let taking = Taking::read(bytes)?;
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

/// The view of the layout that follows on one. Nodes that are placed by that already are not placed
/// again: 65,536 partitions take a microsecond and more a node.
fn view_after(layout: &Layout, entered: &Layout, view: &View) -> View {
    let (after, before) = match entered.stage {
        Stage::Settled | Stage::ReadNew => (Some(&view.topology), view.other.as_ref()),
        Stage::Prepare => (view.next.as_ref(), Some(&view.topology)),
        Stage::ReadOld => (view.other.as_ref(), Some(&view.topology)),
    };
    view_of(layout, |nodes, replicas| {
        let is_after = entered.nodes == nodes && entered.replicas == replicas;
        let is_before =
            || entered.before.as_ref().is_some_and(|b| b.nodes == nodes && b.replicas == replicas);
        match (after, before) {
            (Some(after), _) if is_after => after.clone(),
            (_, Some(before)) if is_before() => before.clone(),
            _ => place(nodes, replicas),
        }
    })
}

fn place(nodes: &[Node], replicas: u8) -> Topology {
    placed(nodes, replicas).expect("a layout is checked when it is made, and when it arrives")
}

fn view_of(layout: &Layout, placed: impl Fn(&[Node], u8) -> Topology) -> View {
    let after = placed(&layout.nodes, layout.replicas);
    let before = layout.before.as_ref().map(|before| placed(&before.nodes, before.replicas));
    let view = match (layout.stage, before) {
        (Stage::Prepare, Some(before)) => View::prepared(layout.epoch, layout.began, before, after),
        (Stage::ReadOld, Some(before)) => View::moving(layout.epoch, layout.began, before, after),
        (Stage::ReadNew, Some(before)) => View::moving(layout.epoch, layout.began, after, before),
        (_, _) => View::settled(layout.epoch, layout.began, after),
    };
    match layout.decrees.last() {
        Some(decree) => view.decreed(decree.number),
        None => view,
    }
}

#[cfg(test)]
mod tests;
