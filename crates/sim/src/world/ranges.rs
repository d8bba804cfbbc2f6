//! Reads of ranges over the whole cluster: [`server::Range`] asks for pages, and a coordinator
//! fetches the pages from other nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use protocol::{AskedQuorum, CallId, Class, Event, FailureKind, NodeId, Record, Reply, Request};
use server::{PageResult, RETRY_MICROS, Range, RangeStep};

use super::machine::{Input, Outbox};
use super::{DueEvent, LoopId, World};
use crate::ledger::ClientOutcome;

/// Number of the first call of a range. The node's task uses the numbers below.
const FIRST_CALL: u64 = 1 << 32;

/// A range that is being read.
#[derive(Debug)]
pub(crate) struct RangeRead {
    range: Range,
    place: LoopId,
    asking: BTreeMap<CallId, NodeId>,
    items: Vec<(Bytes, Record)>,
}

/// All ranges that a process reads, by the number of the client's request, with the number of calls
/// made so far.
#[derive(Debug, Default)]
pub(crate) struct RangeReads {
    walks: BTreeMap<u64, RangeRead>,
    calls: u64,
}

impl RangeReads {
    /// Returns the numbers of the clients' requests.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.walks.keys().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.walks.len()
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
        let walk = RangeRead { range, place, asking: BTreeMap::new(), items: Vec::new() };
        process.walks.walks.insert(number, walk);
        self.continue_range(place, number, out);
    }

    fn continue_range(&mut self, place: LoopId, number: u64, out: &mut Outbox) {
        let wall = self.times(place.node).wall;
        let Some(process) = self.process(place) else { return };
        let RangeReads { walks, calls } = &mut process.walks;
        let Some(walk) = walks.get_mut(&number) else { return };
        let outcome = loop {
            match walk.range.step(|| wall) {
                RangeStep::Item(key, record) => {
                    walk.items.push((key, record));
                }
                RangeStep::Ask(node, request) => {
                    *calls += 1;
                    let call = CallId(FIRST_CALL + *calls);
                    walk.asking.insert(call, node);
                    let (class, request) = (Class::Client, Request::Page(request));
                    out.events.push_back(Event::Call { call, node, class, request });
                }
                RangeStep::Wait => return,
                RangeStep::End => break ClientOutcome::Range(std::mem::take(&mut walk.items)),
                RangeStep::OutOfReach => break ClientOutcome::Nothing,
            }
        };
        walks.remove(&number);
        self.end_range(number, outcome);
    }

    fn end_range(&mut self, number: u64, outcome: ClientOutcome) {
        let at = self.now + self.random.between(30, 300);
        self.agenda.put(at, DueEvent::ClientOutcome { number, outcome });
    }

    /// Handles the result of a call that a range made. Returns the result of any other call to the
    /// caller.
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
        let asking = |walk: &RangeRead| walk.asking.get(&call).copied();
        // The call is void if the range failed at another node meanwhile.
        let node = process.walks.walks.values().find_map(asking)?;
        match Range::page_result(&process.shared, node, result) {
            PageResult::Busy => {
                self.agenda.put(self.now + RETRY_MICROS, DueEvent::Busy { place, call })
            }
            asked => self.take_page(place, call, asked, out),
        }
        None
    }

    /// Repeats a range's call to a node that was busy.
    pub(super) fn was_busy(&mut self, place: LoopId, call: CallId) {
        self.input(place, Input::Busy(call));
    }

    pub(super) fn take_page(
        &mut self,
        place: LoopId,
        call: CallId,
        asked: PageResult,
        out: &mut Outbox,
    ) {
        let Some(process) = self.process(place) else { return };
        let walks = &mut process.walks.walks;
        let of_call = walks.iter_mut().find(|(_, walk)| walk.asking.contains_key(&call));
        let Some((number, walk)) = of_call else { return };
        let (number, at) = (*number, walk.place);
        let Some(node) = walk.asking.remove(&call) else { return };
        if walk.range.take(node, asked) {
            walk.asking.clear();
        }
        self.continue_range(at, number, out);
    }
}
