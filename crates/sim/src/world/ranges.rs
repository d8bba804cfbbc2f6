//! Range reads over the whole cluster. [`server::Range`] requests pages, which the coordinator
//! fetches from other nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use protocol::{AskedQuorum, CallId, Class, Event, FailureKind, NodeId, Record, Reply, Request};
use server::{PageResult, RETRY_MICROS, Range, RangeStep};

use super::machine::{Input, Outbox};
use super::{DueEvent, LoopId, World};
use crate::ledger::ClientOutcome;

/// Number of the first call that a range read makes. Calls of the node task have smaller numbers.
const FIRST_CALL: u64 = 1 << 32;

/// A range read in progress.
#[derive(Debug)]
pub(crate) struct RangeRead {
    range: Range,
    place: LoopId,
    asking: BTreeMap<CallId, NodeId>,
    items: Vec<(Bytes, Record)>,
}

/// The range reads of a process by the number of the client's request, and the number of their
/// calls so far.
#[derive(Debug, Default)]
pub(crate) struct RangeReads {
    range_reads: BTreeMap<u64, RangeRead>,
    calls: u64,
}

impl RangeReads {
    /// Returns the numbers of the clients' requests that read ranges.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.range_reads.keys().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.range_reads.len()
    }
}

impl World {
    pub(super) fn begin_range(
        &mut self,
        place: LoopId,
        number: u64,
        quorum: AskedQuorum,
        out: &mut Outbox,
    ) {
        let Some(process) = self.process(place) else { return };
        let shared = Arc::clone(&process.shared);
        let Some(range) = Range::new(shared, &process.pages, quorum, Bytes::new(), None) else {
            return self.end_range(number, ClientOutcome::Nothing);
        };
        let range_read = RangeRead { range, place, asking: BTreeMap::new(), items: Vec::new() };
        process.range_reads.range_reads.insert(number, range_read);
        self.continue_range(place, number, out);
    }

    fn continue_range(&mut self, place: LoopId, number: u64, out: &mut Outbox) {
        let wall = self.times(place.node).wall;
        let Some(process) = self.process(place) else { return };
        let RangeReads { range_reads, calls } = &mut process.range_reads;
        let Some(range_read) = range_reads.get_mut(&number) else { return };
        let outcome = loop {
            match range_read.range.step(|| wall) {
                RangeStep::Item(key, record) => {
                    range_read.items.push((key, record));
                }
                RangeStep::Ask(node, request) => {
                    *calls += 1;
                    let call = CallId(FIRST_CALL + *calls);
                    range_read.asking.insert(call, node);
                    let (class, request) = (Class::Client, Request::Page(request));
                    out.events.push_back(Event::Call { call, node, class, request });
                }
                RangeStep::Wait => return,
                RangeStep::End => {
                    break ClientOutcome::Range(std::mem::take(&mut range_read.items));
                }
                RangeStep::OutOfReach => break ClientOutcome::Nothing,
            }
        };
        range_reads.remove(&number);
        self.end_range(number, outcome);
    }

    fn end_range(&mut self, number: u64, outcome: ClientOutcome) {
        let at = self.now + self.random.between(30, 300);
        self.agenda.put(at, DueEvent::ClientOutcome { number, outcome });
    }

    /// Handles the result of a call of a range read. Returns the result if the call is not of a
    /// range read.
    pub(super) fn page_returned(
        &mut self,
        place: LoopId,
        call: CallId,
        result: Result<Reply, FailureKind>,
        out: &mut Outbox,
    ) -> Option<Result<Reply, FailureKind>> {
        if call.0 < FIRST_CALL {
            return Some(result);
        }
        let process = self.process(place)?;
        let asking = |range_read: &RangeRead| range_read.asking.get(&call).copied();
        // Meanwhile the range read may have failed at another node; then nothing waits for the
        // call.
        let node = process.range_reads.range_reads.values().find_map(asking)?;
        match Range::page_result(&process.shared, node, result) {
            PageResult::Busy => {
                self.agenda.put(self.now + RETRY_MICROS, DueEvent::Busy { place, call })
            }
            asked => self.handle_page_result(place, call, asked, out),
        }
        None
    }

    /// Lets a loop repeat the call of a range read to a busy node.
    pub(super) fn retry_busy_call(&mut self, place: LoopId, call: CallId) {
        self.input(place, Input::Busy(call));
    }

    pub(super) fn handle_page_result(
        &mut self,
        place: LoopId,
        call: CallId,
        asked: PageResult,
        out: &mut Outbox,
    ) {
        let Some(process) = self.process(place) else { return };
        let range_reads = &mut process.range_reads.range_reads;
        let of_call =
            range_reads.iter_mut().find(|(_, range_read)| range_read.asking.contains_key(&call));
        let Some((number, range_read)) = of_call else { return };
        let (number, at) = (*number, range_read.place);
        let Some(node) = range_read.asking.remove(&call) else { return };
        if range_read.range.take(node, asked) {
            range_read.asking.clear();
        }
        self.continue_range(at, number, out);
    }
}
