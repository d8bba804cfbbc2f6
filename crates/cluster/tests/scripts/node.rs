//! What a script says of the node as a whole: whom it met, hints that wait, disks that are wiped.

use cluster::{CallId, NODE_TICK_MICROS, NodeEffect, NodeEvent, Trouble};

use crate::words::{self, micros, next, node, numbered};
use crate::world::{Split, World};

impl World {
    /// `node met n1 disk 7 [knows 99]`, `node hints n1 ITEM…`, `node returned k0 REPLY` (or
    /// `nothing`), `node tick 1s`, `node keeps n1 ITEM…`, `node ledger n1`, `node state`.
    pub(crate) fn of_node(&mut self, words: &mut Split<'_>) -> Result<Vec<String>, String> {
        let event = match next(words, "what")? {
            "met" => {
                let peer = node(next(words, "a node")?)?;
                let mut number = |what| -> Result<u64, String> {
                    let text = words.nth(1).ok_or_else(|| format!("{what} is missing"))?;
                    text.parse().map_err(|_| format!("{text:?} is no number"))
                };
                let incarnation = number("disk and a number")?;
                NodeEvent::Met { peer, incarnation, knows_us_as: number("knows").ok() }
            }
            "hints" => {
                let peer = node(next(words, "a node")?)?;
                let items = words.map(|word| self.words.item(word)).collect::<Result<_, _>>()?;
                NodeEvent::Hints { peer, items }
            }
            "returned" => {
                let call = CallId(numbered(next(words, "a call")?, 'k')?);
                let mut words = words.peekable();
                let result = match words.peek() {
                    Some(&"nothing") => Err(Trouble::TooFew),
                    _ => Ok(self.words.reply(&[], &mut words)?),
                };
                NodeEvent::Returned { call, result }
            }
            "tick" => return Ok(self.node_ticks(micros(next(words, "a time")?)?)),
            "keeps" => {
                let peer = node(next(words, "a node")?)?;
                for word in words {
                    let (key, record) = self.words.item(word)?;
                    self.keep(peer, cluster::hint_bytes(&key, &record))?;
                }
                return Ok(Vec::new());
            }
            "ledger" => {
                let peer = node(next(words, "a node")?)?;
                let ledger = &self.shared.hints;
                let (waiting, taken) = (ledger.waiting(peer).0, ledger.taken(peer));
                let (dropped, marked) = (ledger.dropped(peer), ledger.marked(peer));
                let future = match ledger.of_the_future(peer) {
                    0 => String::new(),
                    future => format!(" ({future} of the future)"),
                };
                return Ok(vec![format!(
                    "{waiting} wait{future}, {taken} taken, {dropped} dropped, {marked} \
                     partitions to repair"
                )]);
            }
            "fills" => {
                let peer = node(next(words, "a node")?)?;
                let bytes = next(words, "bytes")?;
                self.keep(peer, bytes.parse().map_err(|_| format!("{bytes:?} is no number"))?)?;
                return Ok(Vec::new());
            }
            "state" => {
                let (done, all) = self.node.rebuilt();
                let standing = format!("{:?}", self.shared.vouching.standing()).to_lowercase();
                return Ok(vec![format!("{standing}, {done} of {all} have streamed")]);
            }
            other => return Err(format!("{other:?} is nothing that happens to a node")),
        };
        let mut effects = Vec::new();
        self.node.handle(self.now(), event, &mut effects);
        Ok(self.node_texts(&effects))
    }

    fn keep(&self, peer: cluster::NodeId, bytes: u64) -> Result<(), String> {
        if !self.shared.hints.admit(peer, bytes) {
            return Err("no room for a hint".to_owned());
        }
        self.shared.hints.kept(peer, bytes);
        Ok(())
    }

    fn node_texts(&self, effects: &[NodeEffect]) -> Vec<String> {
        effects.iter().map(|effect| self.words.node_effect(effect)).collect()
    }

    /// Lets time pass, with ticks as often as they are due.
    fn node_ticks(&mut self, by: u64) -> Vec<String> {
        let (end, mut lines) = (self.mono + by, Vec::new());
        while self.mono + NODE_TICK_MICROS <= end {
            self.mono += NODE_TICK_MICROS;
            let mut effects = Vec::new();
            self.node.handle(self.now(), NodeEvent::Tick, &mut effects);
            let at = words::time(self.mono as i64);
            let lines_of = self.node_texts(&effects);
            lines.extend(lines_of.iter().map(|text| format!("at {at} ms {text}")));
        }
        self.mono = end;
        lines
    }
}
