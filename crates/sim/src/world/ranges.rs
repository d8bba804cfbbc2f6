//! Ranges over the whole cluster, as the embedder reads them: [`cluster::Scan`] says which pages it
//! wants, a coordinator fetches them.

use std::collections::BTreeMap;

use bytes::Bytes;
use cluster::{CallId, Class, Event, NodeId, Quorum, Record, Reply, Request, Scan, Step, Trouble};

use super::machine::Outbox;
use super::{Due, Place, World};
use crate::ledger::Told;
use crate::records::codec;

/// Calls of ranges have numbers from here on, those of the node's own machine are below.
const FIRST_CALL: u64 = 1 << 32;

/// Times in a row that a busy node is asked again.
const RETRIES: u32 = 20;

/// … and how often all pages are given back before.
const HOLDING_RETRIES: u32 = 4;

/// A range that is being read.
#[derive(Debug)]
pub(crate) struct Walk {
    scan: Scan,
    place: Place,
    asking: BTreeMap<CallId, NodeId>,
    items: Vec<(Bytes, Record)>,
    retries: u32,
}

/// All ranges that a process reads, by the number of the client's request.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    walks: BTreeMap<u64, Walk>,
    calls: u64,
}

impl Walks {
    /// Whose requests they are.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.walks.keys().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.walks.len()
    }
}

impl World {
    pub(super) fn begin_walk(
        &mut self,
        place: Place,
        number: u64,
        quorum: Quorum,
        out: &mut Outbox,
    ) {
        let Some(process) = self.process(place) else { return };
        let scan = Scan::new(&process.shared, quorum, Bytes::new(), None);
        let (asking, items, retries) = (BTreeMap::new(), Vec::new(), 0);
        let walk = Walk { scan, place, asking, items, retries };
        process.walks.walks.insert(number, walk);
        self.walk_on(place, number, out);
    }

    fn walk_on(&mut self, place: Place, number: u64, out: &mut Outbox) {
        let Some(process) = self.process(place) else { return };
        let Walks { walks, calls } = &mut process.walks;
        let Some(walk) = walks.get_mut(&number) else { return };
        let told = loop {
            match walk.scan.step() {
                Step::Item(key, record) => walk.items.push((key, record)),
                Step::Ask(node, request) => {
                    *calls += 1;
                    let call = CallId(FIRST_CALL + *calls);
                    walk.asking.insert(call, node);
                    let (class, request) = (Class::Client, Request::Page(request));
                    out.events.push_back(Event::Call { call, node, class, request });
                }
                Step::Wait => return,
                Step::End => break Told::Range(std::mem::take(&mut walk.items)),
                Step::OutOfReach => break Told::Nothing,
            }
        };
        walks.remove(&number);
        let at = self.now + self.random.between(30, 300);
        self.agenda.put(at, Due::Told { number, told });
    }

    /// Whether the result of a call was a range's.
    pub(super) fn page_returned(
        &mut self,
        place: Place,
        call: CallId,
        result: &Result<Reply, Trouble>,
        out: &mut Outbox,
    ) -> bool {
        if call.0 < FIRST_CALL {
            return false;
        }
        let Some(process) = self.process(place) else { return true };
        let walks = &mut process.walks.walks;
        let of_call = walks.iter_mut().find(|(_, walk)| walk.asking.contains_key(&call));
        // Void: another node failed meanwhile.
        let Some((number, walk)) = of_call else { return true };
        let (number, at) = (*number, walk.place);
        let Some(node) = walk.asking.remove(&call) else { return true };
        let verify = codec().verify;
        match result {
            Ok(Reply::Page(page)) if page.items.iter().all(|(k, r)| verify(k, r)) => {
                walk.retries = 0;
                walk.scan.page(node, page.clone());
            }
            Ok(Reply::Busy) | Err(Trouble::Busy) if walk.retries < RETRIES => {
                walk.retries += 1;
                if walk.retries.is_multiple_of(HOLDING_RETRIES) {
                    walk.scan.anew();
                } else {
                    walk.scan.retry(node);
                }
            }
            _ => walk.scan.failed(node),
        }
        if walk.scan.begins_anew() {
            walk.asking.clear();
        }
        self.walk_on(at, number, out);
        true
    }
}
