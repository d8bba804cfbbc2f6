//! The node task: runs [`protocol::Background`], a node's background work, and executes the effects
//! that it requests.
//!
//! ```text
//!  peers seen, fenced ──▶ ┌──────┐ ─▶ calls to nodes, through some event loop's Protocol
//!  time ────────────────▶ │ Task │ ─▶ reads of hints, which may wait for the disk
//!  results of effects ──▶ │      │ ─▶ records to store, retried if storing fails
//!                         └──────┘
//! ```

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    Background, BackgroundConfig, BackgroundEffect, BackgroundEvent, CallId, Claim, FailureKind,
    MembershipState, NODE_TICK_MICROS, NodeId, Now, Page, Record, Remembered, Reply, RoundReport,
    Shared, Waits, hint_bytes,
};

use crate::driver::{Delivered, HintQuery, TaskDriver, WritePurpose};
use crate::hints;
use crate::idempotency::{OPERATION_BYTES, put_entry};
use crate::identity::{Identity, OwnRecords};

/// Delay before a failed hint read or a failed write of the membership state is retried, in
/// microseconds.
const RETRY_DELAY_MICROS: u64 = 1_000_000;

/// An event for the node task.
#[derive(Debug)]
pub enum TaskEvent {
    /// An event for [`protocol::Background`].
    Node(BackgroundEvent),
    /// A hint read is to be retried.
    ReadHints(HintQuery),
    /// A hint read completed or failed.
    HintsRead(HintQuery, Result<Vec<(Bytes, Record)>, lsm::Error>),
    /// The compaction with this number, which drops orphaned records, may have ended: a check is
    /// due.
    Compacted(u64),
    /// Storing the node's own records has succeeded or failed.
    Kept(OwnRecords, Result<(), lsm::Error>),
}

impl From<BackgroundEvent> for TaskEvent {
    fn from(event: BackgroundEvent) -> Self {
        Self::Node(event)
    }
}

/// The node task; see the module.
#[derive(Debug)]
pub struct Task {
    shared: Arc<Shared>,
    identity: Arc<Identity>,
    node: Background,
    effects: Vec<BackgroundEffect>,
    /// The monotonic time of the first tick, in microseconds.
    began: Option<u64>,
    /// True while marks cannot be persisted, which is logged once: they are tried several times a
    /// second.
    has_logged_marks: bool,
}

impl Task {
    /// Returns the task of a node that has just started.
    pub fn new(shared: Arc<Shared>, identity: Arc<Identity>, config: BackgroundConfig) -> Self {
        let node = Background::new(Arc::clone(&shared), config);
        Self { shared, identity, node, effects: Vec::new(), began: None, has_logged_marks: false }
    }

    /// Returns the protocol's background work.
    pub fn node(&self) -> &Background {
        &self.node
    }

    /// Drops a background task, for simulations: see [`Background::drop_task`].
    pub fn drop_background(&mut self, pick: u64) -> Option<&'static str> {
        self.node.drop_task(pick)
    }

    /// Handles an event and executes its effects.
    pub fn handle<D: TaskDriver>(&mut self, driver: &mut D, event: TaskEvent) {
        match event {
            TaskEvent::Node(event) => {
                if matches!(event, BackgroundEvent::Tick)
                    && let Some(micros) = self.idempotency_time(driver.now())
                {
                    driver.purge_rule().set_agreed_time(micros);
                }
                self.dispatch(driver, event);
            }
            TaskEvent::ReadHints(wanted) => driver.read_hints(wanted),
            TaskEvent::HintsRead(HintQuery { call, .. }, Ok(items)) => {
                let page = Page { items, next: None, authoritative: true };
                let result = Ok(Reply::Page(page));
                self.dispatch(driver, BackgroundEvent::CallReturned { call, result });
            }
            TaskEvent::HintsRead(wanted, Err(error)) => {
                tracing::warn!(%error, "hint read failed, will retry");
                // An empty answer would mean that there are no hints, and they would be forgotten.
                driver.after(RETRY_DELAY_MICROS, TaskEvent::ReadHints(wanted));
            }
            TaskEvent::Compacted(number) => self.check_orphan_compaction(driver, number),
            TaskEvent::Kept(keeps, result) => self.on_own_record_stored(driver, &keeps, result),
        }
    }

    /// Returns the time, in microseconds since 1970, from which the age of idempotency keys is
    /// computed; `None` = unknown yet.
    fn idempotency_time(&mut self, now: Now) -> Option<u64> {
        let began = *self.began.get_or_insert(now.mono);
        let clock = &self.shared.clock;
        if self.shared.is_alone() {
            return Some(clock.certain_time(now.mono - began, now.wall));
        }
        clock.agreed_time(now)
    }

    fn dispatch<D: TaskDriver>(&mut self, driver: &mut D, event: BackgroundEvent) {
        let mut effects = std::mem::take(&mut self.effects);
        let mut next = Some(event);
        while let Some(event) = next {
            self.node.handle(driver.now(), event, &mut effects);
            next = effects.drain(..).filter_map(|effect| self.perform(driver, effect)).last();
        }
        self.effects = effects;
    }

    /// Executes an effect; returns its result if the result is known when this function returns.
    fn perform<D: TaskDriver>(
        &self,
        driver: &mut D,
        effect: BackgroundEffect,
    ) -> Option<BackgroundEvent> {
        let shared = &self.shared;
        let (batch, keeps) = match effect {
            BackgroundEffect::ReadHints { call, peer, after, max_bytes } => {
                driver.read_hints(HintQuery { call, peer, after, max_bytes });
                return None;
            }
            BackgroundEffect::DropHints { peer, items } => {
                return self.drop_hints(driver, peer, &items);
            }
            BackgroundEffect::Call { call, node, class, request } => {
                driver.call(call, node, class, request);
                return None;
            }
            BackgroundEffect::StoreRemembered { call, remembered } => {
                keep_remembered(driver, call, &remembered);
                return None;
            }
            BackgroundEffect::DropOrphans => {
                self.start_orphan_compaction(driver);
                return None;
            }
            BackgroundEffect::Outdated { proven } => {
                driver.report_outdated(proven);
                return None;
            }
            BackgroundEffect::RoundEnded(report) => {
                self.log_repair_round(&report);
                return None;
            }
            BackgroundEffect::Waits(waits) => {
                self.log_stuck_change(waits, driver.now().wall);
                return None;
            }
            BackgroundEffect::StoreClaim { peer, claim } if self.is_known(peer, &claim) => {
                shared.membership.logs.know(peer, claim.incarnation);
                shared.membership.logs.mark_claim_stored(peer, &claim);
                return None;
            }
            BackgroundEffect::StoreClaim { peer, claim } => {
                self.identity.keep_claim(shared, peer, claim)
            }
            BackgroundEffect::StoreState(state) => self.identity.keep_state(shared, state),
            BackgroundEffect::StoreClusterId(id) => self.identity.keep_cluster(id),
            BackgroundEffect::StoreMissed { node } => self.identity.keep_missed(shared, node),
            BackgroundEffect::StoreLayouts => self.identity.keep_layouts(shared),
        };
        driver.keep(batch, keeps);
        None
    }

    /// Starts a compaction that drops orphaned records. When the compaction reaches a record, the
    /// view then in force decides whether the record is orphaned.
    fn start_orphan_compaction<D: TaskDriver>(&self, driver: &mut D) {
        tracing::info!("compacting the store to drop records that now belong on other nodes only");
        let shared = Arc::clone(&self.shared);
        driver.purge_rule().drop_orphans(move |key, copies| shared.holds(key, copies));
        let number = driver.compact();
        driver.after(NODE_TICK_MICROS, TaskEvent::Compacted(number));
    }

    /// Checks whether the compaction of the whole store that drops orphaned records has ended. All
    /// compactions drop orphaned records until that compaction has succeeded; later ones do not.
    fn check_orphan_compaction<D: TaskDriver>(&mut self, driver: &mut D, number: u64) {
        let ended = driver.compaction_succeeded(number);
        if ended == Some(false) {
            tracing::warn!(
                "cannot drop records that now belong on other nodes only, will retry: the \
                 compaction failed; `kvorum compact --wait` says why"
            );
            return self.dispatch(driver, BackgroundEvent::OrphansDropped { done: false });
        }
        if ended == Some(true) {
            driver.purge_rule().stop_dropping();
            if !driver.purge_rule().is_dropping() {
                tracing::info!("dropped records that now belong on other nodes only");
                return self.dispatch(driver, BackgroundEvent::OrphansDropped { done: true });
            }
        }
        driver.after(NODE_TICK_MICROS, TaskEvent::Compacted(number));
    }

    fn is_known(&self, peer: NodeId, claim: &Claim) -> bool {
        self.identity.is_kept(&self.name(peer), claim)
    }

    /// Removes delivered hints. If the store is busy, the hints remain and are delivered again; if
    /// the store has failed for good, the next start counts the hints.
    fn drop_hints<D: TaskDriver>(
        &self,
        driver: &mut D,
        peer: NodeId,
        items: &[(Bytes, Record)],
    ) -> Option<BackgroundEvent> {
        let written = items.iter().map(|(key, _)| key.len() + 64).sum();
        let hints = items.len() as u64;
        let bytes = items.iter().map(|(key, record)| hint_bytes(key, record)).sum();
        let purpose = WritePurpose::Delivered(Delivered { peer, hints, bytes });
        let added =
            driver.write(written, purpose, |batch| hints::remove(&self.shared, batch, peer, items));
        let refusal = added.err().filter(|refusal| !refusal.is_final())?;
        tracing::debug!(peer = peer.0, ?refusal, "cannot delete delivered hints yet");
        Some(BackgroundEvent::HintRemovalFailed { peer, hints, bytes })
    }

    /// Handles the result of storing one of the node's own records. Only durable content takes
    /// effect and is reported to other nodes.
    fn on_own_record_stored<D: TaskDriver>(
        &mut self,
        driver: &mut D,
        keeps: &OwnRecords,
        result: Result<(), lsm::Error>,
    ) {
        let kept = result.is_ok();
        if kept {
            self.identity.apply_durable(&self.shared, keeps);
        }
        let is_logged = matches!(keeps, OwnRecords::Missed(..))
            && std::mem::replace(&mut self.has_logged_marks, !kept);
        if let Err(error) = result
            && !is_logged
        {
            self.log_store_failure(keeps, &error);
        }
        match *keeps {
            OwnRecords::Claim(..) | OwnRecords::Proof(_) => {}
            OwnRecords::MembershipState { state, .. } => {
                let event = BackgroundEvent::StateStored { state, kept };
                if kept {
                    log_state(state);
                    self.dispatch(driver, event);
                } else {
                    driver.after(RETRY_DELAY_MICROS, event.into());
                }
            }
            OwnRecords::ClusterId(id) => {
                let event = BackgroundEvent::ClusterIdStored { id, kept };
                if kept {
                    tracing::info!(cluster = %id, "this node belongs to the cluster of this id");
                    self.dispatch(driver, event);
                } else {
                    driver.after(RETRY_DELAY_MICROS, event.into());
                }
            }
            OwnRecords::Missed(node, _) => {
                self.dispatch(driver, BackgroundEvent::MissedStored { node, kept })
            }
            OwnRecords::Layouts(_) => {
                self.dispatch(driver, BackgroundEvent::LayoutsStored { kept })
            }
        }
    }

    fn log_store_failure(&self, keeps: &OwnRecords, error: &lsm::Error) {
        match keeps {
            OwnRecords::Claim(peer, ..) => {
                tracing::warn!(%error, peer = self.name(*peer), "cannot persist peer incarnation");
            }
            OwnRecords::MembershipState { state, .. } => {
                tracing::warn!(%error, ?state, "cannot persist the node's membership state");
            }
            OwnRecords::ClusterId(id) => {
                tracing::warn!(%error, %id, "cannot persist the cluster's id; will retry");
            }
            OwnRecords::Proof(_) => tracing::warn!(
                %error,
                "cannot persist the repair seal and watermark: deleted keys stay on disk until a \
                 later repair round"
            ),
            OwnRecords::Layouts(_) => tracing::warn!(%error, "cannot persist the cluster's layout"),
            OwnRecords::Missed(node, _) => {
                let node = self.name(*node);
                tracing::warn!(%error, node, "cannot persist missed-write marks; will retry");
            }
        }
    }

    fn log_repair_round(&self, report: &RoundReport) {
        let RoundReport { records, differing, repaired, failed, damaged, healed, .. } = *report;
        let kind = if report.full { "full" } else { "incremental" };
        let seconds = report.ended.unwrap_or(0).saturating_sub(report.began) / 1_000_000;
        if report.is_equal() {
            tracing::info!(
                kind,
                records,
                differing,
                repaired,
                healed,
                seconds,
                "repair round done: all replicas hold the same"
            );
            if let Some(why) = report.unproven {
                tracing::warn!(why, "deleted keys stay on disk: the repair round proved nothing");
            }
            return;
        }
        for (node, damage, why) in &report.unhealed {
            let (node, first) = (self.name(*node), damage.first.escape_ascii());
            let last = damage.last.as_ref().map(|last| last.escape_ascii().to_string());
            let last = last.as_deref().unwrap_or("the last key");
            tracing::error!(node, %first, last, %why, "damaged keys were not healed");
        }
        let absent: Vec<String> = report.absent.iter().map(|node| self.name(*node)).collect();
        tracing::warn!(
            kind,
            records,
            differing,
            repaired,
            failed,
            damaged,
            healed,
            ?absent,
            stopped = report.stopped,
            seconds,
            "repair round done: not all replicas are known to hold the same"
        );
    }

    /// Logs why a membership change is stuck, for the operator.
    fn log_stuck_change(&self, Waits { source, until }: Waits, wall: u64) {
        let peer = self.name(source);
        let seconds = until.saturating_sub(wall).div_ceil(1_000_000);
        tracing::warn!(
            peer,
            seconds,
            "the change of the members waits for records of this peer with timestamps so far ahead \
             of this node's clock. If a clock is wrong, correct it; if the peer's was and is \
             correct now, stop the peer, run `kvorum repair-clock` and start it: the change goes on"
        );
    }

    fn name(&self, node: NodeId) -> String {
        self.shared.name_of(node)
    }
}

/// Stores idempotency-key records received from peers; the call fails as busy, to be retried, if
/// the store refuses.
fn keep_remembered<D: TaskDriver>(driver: &mut D, call: CallId, remembered: &[Remembered]) {
    let added =
        driver.write(remembered.len() * OPERATION_BYTES, WritePurpose::Task(call), |batch| {
            batch.make_durable();
            remembered.iter().try_for_each(|entry| put_entry(batch, entry))
        });
    if let Err(refusal) = added {
        tracing::debug!(?refusal, "cannot store yet what others remember of writes");
        let result = Err(FailureKind::Busy);
        driver.after(NODE_TICK_MICROS, BackgroundEvent::CallReturned { call, result }.into());
    }
}

fn log_state(state: MembershipState) {
    match state {
        MembershipState::Joining | MembershipState::Verifying => {}
        MembershipState::Member => tracing::info!("rebuild complete: node is a full member"),
        MembershipState::Rebuilding => tracing::warn!(
            "rebuild started: this node's data directory is older than what the other nodes have \
             seen of it (disk replaced, old copy restored, or end of the log lost); missing data \
             is streamed from them, and the node is not authoritative until then"
        ),
    }
}

#[cfg(test)]
mod tests;
