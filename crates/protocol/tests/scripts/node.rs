//! Script commands for the background work of a node: peers, hints, wiped disks.

use bytes::Bytes;
use protocol::{
    BackgroundEffect, BackgroundEvent, BootId, CallId, Claim, FailureKind, Incarnation,
    LogPosition, NODE_TICK_MICROS, NodeId, Page, Record, Reply, Reported, Request,
};

use crate::words::{self, micros, next, node, parse_numbered};
use crate::world::{Split, World};

impl World {
    /// Executes `node met n1 disk 7 [knows 99 [life 5 up 80 [late 70]]]`, `node fenced`, `node
    /// stood member [not]` (the state was stored, or not), `node marked n1`, `node kept n1 [not]`
    /// (the marks were stored, or not), `node pinged n1 [nothing]`, `node hints n1 ITEM…`, `node
    /// undropped n1 ITEM…`, `node returned k0 REPLY` (or `nothing`), `node tick 1s`, `node keeps n1
    /// ITEM…`, `node ledger n1` or `node state`.
    pub(crate) fn of_node(&mut self, words: &mut Split<'_>) -> Result<Vec<String>, String> {
        let what = next(words, "what")?;
        if let Some(lines) = self.execute_query(what, words)? {
            return Ok(lines);
        }
        let event = match what {
            "met" => self.peer_seen(words)?,
            "fenced" => BackgroundEvent::Fenced,
            "stood" => {
                let state = words::state(next(words, "a membership state")?)?;
                BackgroundEvent::StateStored { state, kept: words.next() != Some("not") }
            }
            "kept" => {
                let node = node(next(words, "a node")?)?;
                BackgroundEvent::MissedStored { node, kept: words.next() != Some("not") }
            }
            "hints" => {
                let peer = node(next(words, "a node")?)?;
                let items = words.map(|word| self.words.item(word)).collect::<Result<_, _>>()?;
                self.hints_read(peer, items)
            }
            "undropped" => {
                let peer = node(next(words, "a node")?)?;
                let (mut hints, mut bytes) = (0, 0);
                for word in words {
                    let (key, record) = self.words.item(word)?;
                    hints += 1;
                    bytes += protocol::hint_bytes(&key, &record);
                }
                BackgroundEvent::HintRemovalFailed { peer, hints, bytes }
            }
            "returned" => {
                let number: u64 = parse_numbered(next(words, "a call")?, 'k')?;
                // An unknown number stands for a call that was never made.
                let made = self.calls.get(number as usize).cloned();
                let (call, key) = made.unwrap_or((CallId(u64::MAX), Bytes::new()));
                let mut words = words.peekable();
                let result = match words.peek() {
                    Some(&"nothing") => Err(FailureKind::TooFew),
                    _ => Ok(self.words.reply(&key, &mut words)?),
                };
                BackgroundEvent::CallReturned { call, result }
            }
            "pinged" => {
                let peer = node(next(words, "a node")?)?;
                let call = *self.pings.get(&peer).ok_or("it was not pinged")?;
                let lost = words.next() == Some("nothing");
                let result = if lost { Err(FailureKind::TooFew) } else { Ok(Reply::Pong) };
                BackgroundEvent::CallReturned { call, result }
            }
            other => return Err(format!("{other:?} is nothing that happens to a node")),
        };
        let mut effects = Vec::new();
        self.node.handle(self.now(), event, &mut effects);
        Ok(self.node_texts(&effects))
    }

    /// Parses `n1 disk 7 [knows 99 [life 5 up 80 [late 70]]]`, a connection to a peer.
    fn peer_seen(&self, words: &mut Split<'_>) -> Result<BackgroundEvent, String> {
        let peer = node(next(words, "a node")?)?;
        let mut number = |what| -> Result<u64, String> {
            let text = words.nth(1).ok_or_else(|| format!("{what} is missing"))?;
            text.parse().map_err(|_| format!("{text:?} is no number"))
        };
        let incarnation = Incarnation(number("disk and a number")?);
        let known = number("knows").ok().map(Incarnation);
        let (life, position) = (number("life"), number("up"));
        let reported = Reported {
            life: BootId::of_number(life.unwrap_or(0)),
            position: LogPosition(position.unwrap_or(0)),
            late: LogPosition(number("late").unwrap_or(0)),
        };
        let knows_us = known.map(|incarnation| Claim { incarnation, reported });
        let cluster = self.shared.membership.cluster.id();
        Ok(BackgroundEvent::PeerSeen {
            peer,
            incarnation,
            knows_us,
            knew_only_this_disk: false,
            cluster,
        })
    }

    /// Returns the event with a node's hints from the store. If no read of hints is outstanding,
    /// the event belongs to a call that was never made.
    fn hints_read(&mut self, peer: NodeId, items: Vec<(Bytes, Record)>) -> BackgroundEvent {
        let call = self.hint_reads.remove(&peer).unwrap_or(CallId(u64::MAX));
        let page = Page { items, next: None, authoritative: true };
        BackgroundEvent::CallReturned { call, result: Ok(Reply::Page(page)) }
    }

    /// Executes a command that is no event, such as a query; returns `None` for other commands.
    fn execute_query(
        &mut self,
        what: &str,
        words: &mut Split<'_>,
    ) -> Result<Option<Vec<String>>, String> {
        Ok(match what {
            "marked" => {
                let node = node(next(words, "a node")?)?;
                let marks = self.shared.transfer.missed.of(node);
                Some(vec![self.words.marks(marks.iter().map(|marked| &marked.mark))])
            }
            "tick" => Some(self.node_ticks(micros(next(words, "a time")?)?)),
            "keeps" => {
                let peer = node(next(words, "a node")?)?;
                for word in words {
                    let (key, record) = self.words.item(word)?;
                    self.shared.transfer.hints.count_found(
                        peer,
                        1,
                        protocol::hint_bytes(&key, &record),
                    );
                }
                Some(Vec::new())
            }
            "ledger" => {
                let peer = node(next(words, "a node")?)?;
                let ledger = &self.shared.transfer.hints;
                let (waiting, taken) = (ledger.waiting_hints(peer).0, ledger.delivered_count(peer));
                let marked = self.shared.transfer.missed.partitions(peer);
                let dropped = ledger.dropped_count(peer);
                let future = match ledger.future_hints(peer) {
                    0 => String::new(),
                    future => format!(" ({future} ahead)"),
                };
                Some(vec![format!(
                    "{waiting} wait{future}, {taken} taken, {dropped} dropped, {marked} \
                     partitions to repair"
                )])
            }
            "fills" => {
                let peer = node(next(words, "a node")?)?;
                let bytes = next(words, "bytes")?;
                let bytes = bytes.parse().map_err(|_| format!("{bytes:?} is no number"))?;
                self.shared.transfer.hints.count_found(peer, 1, bytes);
                Some(Vec::new())
            }
            "state" => {
                let (done, all) = self.node.rebuild_progress();
                let state = format!("{:?}", self.shared.membership.state.state()).to_lowercase();
                Some(vec![format!("{state}, {done} of {all} have streamed")])
            }
            _ => None,
        })
    }

    /// Returns a line for each effect. Calls other than pings are numbered in order.
    fn node_texts(&mut self, effects: &[BackgroundEffect]) -> Vec<String> {
        let mut lines = Vec::new();
        for effect in effects {
            lines.push(match effect {
                BackgroundEffect::Call { call, node, request: Request::Ping, .. } => {
                    self.pings.insert(*node, *call);
                    format!("ping n{}", node.0)
                }
                BackgroundEffect::ReadHints { call, peer, .. } => {
                    self.hint_reads.insert(*peer, *call);
                    self.words.node_effect(effect)
                }
                BackgroundEffect::Call { call, node, class, request } => {
                    let key = match request {
                        Request::ReadQuorum { key, .. } => key.clone(),
                        _ => Bytes::new(),
                    };
                    self.calls.push((*call, key));
                    let call = CallId(self.calls.len() as u64 - 1);
                    let (node, class, request) = (*node, *class, request.clone());
                    self.words.node_effect(&BackgroundEffect::Call { call, node, class, request })
                }
                effect => self.words.node_effect(effect),
            });
        }
        lines
    }

    /// Advances the time, with all due ticks.
    fn node_ticks(&mut self, by: u64) -> Vec<String> {
        let (end, mut lines) = (self.mono + by, Vec::new());
        while self.mono + NODE_TICK_MICROS <= end {
            self.mono += NODE_TICK_MICROS;
            let mut effects = Vec::new();
            self.node.handle(self.now(), BackgroundEvent::Tick, &mut effects);
            let at = words::time(self.mono as i64);
            let lines_of = self.node_texts(&effects);
            lines.extend(lines_of.iter().map(|text| format!("at {at} ms {text}")));
        }
        self.mono = end;
        lines
    }
}
