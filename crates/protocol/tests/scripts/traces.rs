//! A node's memory of writes with an idempotency key, in a small world. The rules are those of the
//! history on a real node's disk (`crates/server/src/idempotency.rs`).

use std::collections::BTreeMap;

use protocol::{
    NodeId, OpLookup, OwnTraces, Recollections, Record, Remembered, Shared, Via, WriteIdentity,
};

/// The only key.
const KEY: &[u8] = b"k";

/// Returns the id of a client's operation.
pub(crate) fn id_of(place: usize) -> u64 {
    2 * place as u64 + 1
}

#[derive(Debug, Default)]
pub(crate) struct Traces(BTreeMap<u64, Remembered>);

impl Traces {
    /// Notes the operations of a stored record.
    pub(crate) fn note(&mut self, shared: &Shared, record: &Record, via: Via) {
        for trace in shared.traces_of(KEY, record, via) {
            let added = match self.0.get(&trace.id) {
                Some(stored) => trace.merge_into(stored),
                None => Some(trace),
            };
            added.into_iter().for_each(|trace| self.keep(trace));
        }
    }

    /// Inserts a trace. Of two traces of one write, the later trace is kept.
    pub(crate) fn keep(&mut self, trace: Remembered) {
        let order = |trace: &Remembered| (trace.time, trace.via as u32);
        let held = self.0.entry(trace.id).or_insert(trace);
        if order(&trace) >= order(held) {
            *held = trace;
        }
    }

    pub(crate) fn look_up(&self, asked: WriteIdentity) -> Option<OpLookup> {
        Some(self.0.get(&asked.id)?.answer_to(asked))
    }

    /// Returns the traces that a node must keep once the given nodes have reported theirs.
    pub(crate) fn recollections(
        own: NodeId,
        seal: u64,
        before: &[NodeId],
        reported: &[(NodeId, &Traces)],
    ) -> Vec<Remembered> {
        let mut traces: BTreeMap<u64, Vec<(NodeId, Remembered)>> = BTreeMap::new();
        for (node, theirs) in reported {
            for (id, trace) in &theirs.0 {
                traces.entry(*id).or_default().push((*node, *trace));
            }
        }
        let until = OwnTraces::Seal(seal);
        let recollections = Recollections { own, until, before, unasked: 0 };
        traces.values().filter_map(|traces| recollections.remember(traces)).collect()
    }
}
