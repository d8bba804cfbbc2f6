//! Parses and prints the words of scripts: nodes, slots, keys, records, requests, replies.

use std::collections::HashMap;
use std::fmt::Write as _;

use bytes::Bytes;
use protocol::{
    Change, Class, CompareRequest, Condition, Conditional, ConnectionId, Detail, Done, Filter,
    Kind, Mark, MembershipState, NodeId, OpId, OpLookup, Page, PageRequest, Proof, Record,
    ReplicaSet, Reply, Request, RoundId, RoundStep, SlotId, Tag, Topology, Version, origin_of,
};

use record::MIN_RECORD_LEN;

use crate::effects::format_holders;
use crate::records;

/// The wall clock at the start of a script, in microseconds since 1970.
pub(crate) const BASE: u64 = 1_700_000_000_000_000;

/// The length in bytes of a plain record without its value: head and checksum. Scripts give the
/// lengths of values only.
pub(crate) const OVERHEAD: u32 = MIN_RECORD_LEN as u32;

/// The length in bytes above which replicas first report outlines. Records of conditional writes in
/// scripts are shorter.
pub(crate) const BRIEF_BYTES: u32 = 32 + OVERHEAD;

/// The names of keys and nodes under one topology.
#[derive(Debug)]
pub(crate) struct Words {
    topology: Topology,
    keys: HashMap<String, Bytes>,
}

/// Returns the next word; the error names what was expected.
pub(crate) fn next<'a>(
    words: &mut impl Iterator<Item = &'a str>,
    what: &str,
) -> Result<&'a str, String> {
    words.next().ok_or_else(|| format!("{what} is missing"))
}

pub(crate) fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no {what}"))
}

/// Parses `n1`, `c1`, …: a number after a letter.
pub(crate) fn parse_numbered<T: std::str::FromStr>(text: &str, letter: char) -> Result<T, String> {
    let what = format!("{letter} with a number");
    number(text.strip_prefix(letter).unwrap_or("-"), &what)
}

pub(crate) fn node(text: &str) -> Result<NodeId, String> {
    parse_numbered(text, 'n').map(NodeId)
}

/// Parses a quorum like `2/3`.
pub(crate) fn quorum(text: &str) -> Result<(u32, u32), String> {
    let (ack, from) = text.split_once('/').ok_or_else(|| format!("{text:?} is not like 2/3"))?;
    Ok((number(ack, "ack")?, number(from, "from")?))
}

/// Parses `300ms`, `2s`, `50us`; returns microseconds.
pub(crate) fn micros(text: &str) -> Result<u64, String> {
    let unit = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    let split = |(end, unit)| Some((text.strip_suffix(end)?.parse::<f64>().ok()?, unit));
    let (count, unit) = unit.into_iter().find_map(split).ok_or(format!("{text:?} is no time"))?;
    Ok((count * f64::from(unit)).round() as u64)
}

/// Returns the version time of a newer record from an offset to the start of the script. Without an
/// offset, returns a time long before the start.
pub(crate) fn newer(text: Option<&str>) -> Result<u64, String> {
    text.map_or(Ok(0), |text| Ok((BASE + micros(text)?) << 12))
}

/// Prints milliseconds: `300`, or `300.050` if there is a fraction.
pub(crate) fn time(micros: i64) -> String {
    let sign = if micros < 0 { "-" } else { "" };
    let (ms, rest) = (micros.abs() / 1000, micros.abs() % 1000);
    if rest == 0 { format!("{sign}{ms}") } else { format!("{sign}{ms}.{rest:03}") }
}

/// Prints a version's time as milliseconds since the start of the script, without its counter.
pub(crate) fn after_base(version_time: u64) -> String {
    time((version_time >> 12) as i64 - BASE as i64)
}

/// Prints a ballot like [`after_base`], but with its counter.
fn ballot_text(ballot: u64) -> String {
    let counter = ballot & 0xfff;
    let counter = if counter == 0 { String::new() } else { format!("+{counter}") };
    format!("{}{counter}", after_base(ballot))
}

fn since_text(time: u64) -> String {
    if time == 0 { "ever".to_owned() } else { after_base(time) }
}

pub(crate) fn state(text: &str) -> Result<MembershipState, String> {
    let all = [
        MembershipState::Joining,
        MembershipState::Member,
        MembershipState::Rebuilding,
        MembershipState::Verifying,
    ];
    let found = all.into_iter().find(|state| state.label() == text);
    found.ok_or_else(|| format!("{text:?} is no membership state"))
}

/// The letters of slots, by the two lowest bits of the id: read, write, conditional write, call.
const KINDS: [&str; 4] = ["r", "w", "x", "q"];

/// Prints a slot: `r4`, or `r4.2` at the third use of its index.
pub(crate) fn slot(id: u64) -> String {
    let (kind, place, generation) = (KINDS[(id & 3) as usize], id as u32 >> 2, id >> 32);
    if generation == 0 { format!("{kind}{place}") } else { format!("{kind}{place}.{generation}") }
}

pub(crate) fn op(op: OpId) -> String {
    match op {
        OpId::Slot(SlotId(id)) => slot(id),
        OpId::Peer { connection, id, .. } => format!("l{}.{id}", connection.0),
    }
}

pub(crate) fn parse_op(text: &str) -> Result<OpId, String> {
    let unknown =
        || format!("{text:?} is neither a slot (r1, w1.2) nor a connection's request (l1.2)");
    let (letter, rest) = text.split_at_checked(1).ok_or_else(unknown)?;
    let (first, second) = rest.split_once('.').unwrap_or((rest, "0"));
    let (first, second): (u64, u64) = (number(first, "number")?, number(second, "number")?);
    if let Some(kind) = KINDS.iter().position(|kind| *kind == letter) {
        return Ok(OpId::Slot(SlotId(second << 32 | first << 2 | kind as u64)));
    }
    match letter {
        "l" => Ok(OpId::Peer {
            connection: ConnectionId(first),
            id: second,
            partition: None,
            placement: 0,
        }),
        _ => Err(unknown()),
    }
}

pub(crate) fn class(text: &str) -> Result<Class, String> {
    let all = [Class::Client, Class::Hint, Class::Repair, Class::Stream];
    let found = all.into_iter().find(|class| format!("{class:?}").eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("{text:?} is no class"))
}

pub(crate) fn lower(value: impl std::fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}

/// Prints an expiry in milliseconds since the start of the script: ` until 30`.
pub(crate) fn until(expiry_ms: u64) -> String {
    match expiry_ms {
        0 => String::new(),
        expiry_ms => format!(" until {}", expiry_ms as i64 - (BASE / 1000) as i64),
    }
}

/// The base version of a key without any plain write.
const NEVER_WRITTEN: Version = Version { time: 0, origin: u32::MAX };

/// Parses `never` or milliseconds since the start of the script: `5`, `5+1` (with a counter), `5n2`
/// (with an origin).
fn version(text: &str) -> Result<Version, String> {
    if text == "never" {
        return Ok(NEVER_WRITTEN);
    }
    let (text, origin) = text.split_once('n').unwrap_or((text, "0"));
    let (text, counter) = text.split_once('+').unwrap_or((text, "0"));
    let (ms, us) = text.split_once('.').unwrap_or((text, "0"));
    let ms: i64 = number(ms, "time in ms")?;
    let us: i64 = number(us, "part of a ms")?;
    let counter: u64 = number(counter, "counter")?;
    let micros = BASE.checked_add_signed(ms * 1000 + us).ok_or("out of range")?;
    let origin = origin_of(&format!("n{origin}"));
    Ok(Version { time: micros << 12 | counter, origin })
}

/// Parses `5n1`: the round of n1 with the time 5 ms.
fn round(text: &str) -> Result<RoundId, String> {
    let (_, by) = text.split_once('n').ok_or_else(|| format!("{text:?} is no round"))?;
    Ok(RoundId { time: version(text)?.time, node: node(&format!("n{by}"))? })
}

fn round_text(round: RoundId) -> String {
    match round {
        RoundId { time: 0, .. } => "never".to_owned(),
        RoundId { time, node } => format!("{}n{}", after_base(time), node.0),
    }
}

/// Prints a proof.
pub(crate) fn proof_text(proof: &Proof) -> String {
    let Proof { seal, ready, proven, floor, .. } = proof;
    let [seal, ready, proven] = [*seal, *ready, *proven].map(round_text);
    let floor = if *floor > 0 { format!(" ^{}", ballot_text(*floor)) } else { String::new() };
    format!("sealed {seal} ready {ready} proven {proven}{floor}")
}

impl Words {
    pub(crate) fn new(topology: Topology) -> Self {
        Self { topology, keys: HashMap::new() }
    }

    /// Finds a key for this name whose first replicas are these nodes, in this order.
    pub(crate) fn place(&mut self, name: &str, on: &[NodeId]) -> Result<(), String> {
        let mut replicas = Vec::new();
        let lies = |n: &u32| {
            let partition = self.topology.partition_of(format!("{name}.{n}").as_bytes());
            self.topology.replicas(partition, on.len() as u8, &mut replicas);
            replicas == on
        };
        let n = (0..100_000).find(lies).ok_or_else(|| format!("no key lies on {on:?}"))?;
        self.keys.insert(name.to_owned(), Bytes::from(format!("{name}.{n}")));
        Ok(())
    }

    /// Returns the key for this name. By default, its first replicas are n0, n1, n2, … in this
    /// order.
    pub(crate) fn key(&mut self, name: &str) -> Result<Bytes, String> {
        if !self.keys.contains_key(name) {
            let first: Vec<_> = (0..self.topology.nodes().min(4) as u16).map(NodeId).collect();
            self.place(name, &first)?;
        }
        Ok(self.keys[name].clone())
    }

    pub(crate) fn name_of(key: &[u8]) -> String {
        let text = String::from_utf8_lossy(key);
        text.split('.').next().unwrap_or_default().to_owned()
    }

    pub(crate) fn version_text(&self, version: Version) -> String {
        if version == NEVER_WRITTEN {
            return "@never".to_owned();
        }
        let at = after_base(version.time);
        let counter = version.time & 0xfff;
        let counter = if counter == 0 { String::new() } else { format!("+{counter}") };
        let nodes = (0..self.topology.nodes() as u16).map(NodeId);
        let mut of = nodes.filter(|n| origin_of(&self.topology.member(*n).name) == version.origin);
        format!(
            "@{at}{counter}{}",
            of.next().map_or("n?".to_owned(), |node| format!("n{}", node.0))
        )
    }

    /// Parses `x@5n1` (value x, written by n1 at 5 ms), `del@5n1` (a tombstone), `x@5n1*2` (two
    /// copies), `x@5n1!` (damaged).
    pub(crate) fn record(&self, key: &[u8], text: &str) -> Result<Record, String> {
        let (text, bad) = text.strip_suffix('!').map_or((text, false), |text| (text, true));
        let (text, ballot) = text.split_once('^').map_or((text, None), |(t, b)| (t, Some(b)));
        let (text, copies) = text.split_once('*').unwrap_or((text, "0"));
        let (value, at) = text.split_once('@').ok_or_else(|| format!("{text:?} has no version"))?;
        let ballot = ballot.map_or(Ok(0), |ballot| version(ballot).map(|v| v.time))?;
        let copies = number(copies, "copies")?;
        let record = records::parse(key, content(value), (version(at)?, ballot), copies)?;
        Ok(if bad { records::with_wrong_checksum(&record) } else { record })
    }

    /// Parses a key and its record, like `a=x@5n1`.
    pub(crate) fn item(&mut self, text: &str) -> Result<(Bytes, Record), String> {
        let (key, record) = text.split_once('=').ok_or_else(|| format!("{text:?} has no ="))?;
        let key = self.key(key)?;
        let record = self.record(&key, record)?;
        Ok((key, record))
    }

    pub(crate) fn record_text(&self, key: Option<&[u8]>, record: &Record) -> String {
        let mut text = match record.kind() {
            Kind::Value => records::text(record),
            kind => lower(kind)[..3].replace("tom", "del"),
        };
        text += &self.version_text(record.version());
        if record.copies() != 0 {
            let _ = write!(text, "*{}", record.copies());
        }
        if record.ballot() > 0 {
            let _ = write!(text, "^{}", ballot_text(record.ballot()));
        }
        if key.is_some_and(|key| !record.is_intact(key)) {
            text.push('!');
        }
        text
    }

    pub(crate) fn item_text(&self, key: &[u8], record: &Record) -> String {
        format!("{}={}", Self::name_of(key), self.record_text(Some(key), record))
    }

    pub(crate) fn items_text(&self, items: &[(Bytes, Record)]) -> String {
        let items: Vec<_> = items.iter().map(|(key, record)| self.item_text(key, record)).collect();
        items.join(" ")
    }

    /// Parses `read a`, `write a=x@5n1`, `writes a=x@5n1 b=y@6n1`, `page a..b heldby n1`, `ping`,
    /// `round seal 5n1`, `round commit 5n1 ^7`, `bring 5n1 a=x@3n1`, `sums 5n1`.
    pub(crate) fn request<'a>(
        &mut self,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<Request, String> {
        match next(words, "a request")? {
            kind @ ("read" | "quorum") => {
                let key = self.key(next(words, "a key")?)?;
                let most = match words.next() {
                    None => BRIEF_BYTES,
                    Some("to") => {
                        let value: u32 = number(next(words, "bytes")?, "number of bytes")?;
                        value + OVERHEAD
                    }
                    Some(other) => return Err(format!("{other:?} is no bound")),
                };
                Ok(match kind {
                    "read" => Request::Read { key, most },
                    _ => Request::ReadQuorum { key, most },
                })
            }
            "change" => {
                let (key, id) = (self.key(next(words, "a key")?)?, next(words, "an id")?);
                let (id, add) = (number(id, "id")?, number(next(words, "a sum")?, "number")?);
                let (condition, change) = (Condition::Any, Change::Add(add));
                let conditional = Conditional { condition, change, expiry_ms: 0, digest: 0 };
                Ok(Request::Change { key, id, ack: 0, conditional })
            }
            "prepare" => {
                let (key, ballot) = (self.key(next(words, "a key")?)?, next(words, "a ballot")?);
                let ballot = version(ballot.trim_start_matches('^'))?.time;
                Ok(Request::Prepare { key, ballot, most: BRIEF_BYTES, watermark: 0 })
            }
            "recall" => {
                let (key, id) = (self.key(next(words, "a key")?)?, next(words, "an id")?);
                let since = version(next(words, "a ballot")?.trim_start_matches('^'))?.time;
                let digest = words.next().map_or(Ok(0), |digest| number(digest, "digest"))?;
                Ok(Request::Recall { key, id: number(id, "id")?, since, digest })
            }
            "write" => {
                let (key, record) = self.item(next(words, "key=record")?)?;
                Ok(Request::Write { key, record })
            }
            "next" => {
                let (key, record) = self.item(next(words, "key=record")?)?;
                Ok(Request::AcceptNext { key, record })
            }
            "writes" => {
                let items = words.map(|word| self.item(word)).collect::<Result<_, _>>()?;
                Ok(Request::Writes { items })
            }
            "page" => {
                let range = next(words, "a range")?;
                let (start, end) = range.split_once("..").ok_or("a range is like a..b")?;
                let end = (!end.is_empty()).then(|| Bytes::from(end.to_owned()));
                let held_by = next(words, "heldby")?;
                if held_by != "heldby" {
                    return Err(format!("{held_by:?} is no filter"));
                }
                let node = node(next(words, "a node")?)?;
                let promise = words.next().map_or(Ok(0), |ballot| {
                    version(ballot.trim_start_matches('^')).map(|version| version.time)
                })?;
                let filter = Filter::HeldBy { node, since: 0, promise, partitions: Vec::new() };
                let start = Bytes::from(start.to_owned());
                Ok(Request::Page(PageRequest { start, end, filter, max_bytes: 4096 }))
            }
            "missed" => {
                let node = node(next(words, "a node")?)?;
                let marks = words.map(|word| self.mark(word)).collect::<Result<_, _>>()?;
                Ok(Request::Missed { node, marks })
            }
            "ping" => Ok(Request::Ping),
            other => self.request_of_round(other, words),
        }
    }

    /// Parses a request that the driver of a repair round sends.
    fn request_of_round<'a>(
        &mut self,
        name: &str,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<Request, String> {
        match name {
            "round" => {
                let (step, of) = (next(words, "a step")?, round(next(words, "a round")?)?);
                let step = match step {
                    "ask" => RoundStep::Ask,
                    "seal" => RoundStep::Seal,
                    "ready" => RoundStep::Ready,
                    "commit" => {
                        let floor = next(words, "a ballot")?.trim_start_matches('^');
                        RoundStep::Commit { floor: version(floor)?.time, is_uniform: true }
                    }
                    other => return Err(format!("{other:?} is no step of a round")),
                };
                Ok(Request::Round { round: of, step })
            }
            "bring" => {
                let round = round(next(words, "a round")?)?;
                let (key, record) = self.item(next(words, "key=record")?)?;
                Ok(Request::Bring { round, key, record })
            }
            "sums" => {
                let round = round(next(words, "a round")?)?;
                let (start, end, since, until) = (Bytes::new(), None, 0, round.time);
                let (watermark, detail) = (0, Detail::Sums);
                let meant = CompareRequest { start, end, since, until, round, watermark, detail };
                Ok(Request::Compare(meant))
            }
            other => Err(format!("{other:?} is no request")),
        }
    }

    /// Parses `a@5` (the partition of key a, which lacks writes since 5 ms), `all@5` or `all@ever`.
    pub(crate) fn mark(&mut self, word: &str) -> Result<Mark, String> {
        let (what, since) = word.split_once('@').ok_or("a mark is like a@5")?;
        let since = if since == "ever" { 0 } else { version(since)?.time };
        let partition = match what {
            "all" => None,
            key => {
                let key = self.key(key)?;
                Some(self.topology.partition_of(&key))
            }
        };
        Ok(Mark { partition, since })
    }

    pub(crate) fn marks<'a>(&self, marks: impl Iterator<Item = &'a Mark>) -> String {
        let text = |mark: &Mark| {
            let partition = mark.partition.map_or("all".to_owned(), |p| format!("p{p}"));
            format!("{partition}@{}", since_text(mark.since))
        };
        let texts: Vec<String> = marks.map(text).collect();
        if texts.is_empty() { "none".to_owned() } else { texts.join(" ") }
    }

    pub(crate) fn request_text(&self, request: &Request) -> String {
        match request {
            Request::Read { key, most } => format!("read {}{}", Self::name_of(key), up_to(*most)),
            Request::ReadQuorum { key, most: 0 } => {
                format!("outline {} by quorum", Self::name_of(key))
            }
            Request::ReadQuorum { key, most } => {
                format!("read {}{} by quorum", Self::name_of(key), up_to(*most))
            }
            Request::Change { key, id, ack, conditional } => {
                let Conditional { condition, change, expiry_ms, .. } = conditional;
                let until = until(*expiry_ms);
                let conditional = format!(
                    "Conditional {{ condition: {condition:?}, change: {change:?} }}{until}"
                );
                format!("change {} id {id} ack {ack} {conditional}", Self::name_of(key))
            }
            Request::Prepare { key, ballot, most, watermark: _ } => {
                let key = Self::name_of(key);
                format!("prepare {key} ^{}{}", ballot_text(*ballot), up_to(*most))
            }
            Request::Round { round, step } => format!("round {round:?} {step:?}"),
            Request::Bring { key, record, .. } => format!("bring {}", self.item_text(key, record)),
            Request::Recall { key, id, since, .. } => {
                let since =
                    if *since > 0 { format!(" ^{}", ballot_text(*since)) } else { String::new() };
                format!("recall {} {id}{since}", Self::name_of(key))
            }
            Request::Write { key, record } => format!("write {}", self.item_text(key, record)),
            Request::AcceptNext { key, record } => format!("next {}", self.item_text(key, record)),
            Request::Writes { items } => format!("writes {}", self.items_text(items)),
            Request::Page(page) => self.page_request_text(page),
            Request::Missed { node, marks } => {
                format!("missed n{} {}", node.0, self.marks(marks.iter()))
            }
            Request::Compare(request) => format!("compare {request:?}"),
            Request::Discard(ranges) => format!("discard {ranges:?}"),
            Request::Council(request) => format!("council {request:?}"),
            Request::Ping => "ping".to_owned(),
            Request::KnowsDisk { node, incarnation } => {
                format!("knows disk {} of n{}", incarnation.0, node.0)
            }
            Request::Moves => "moves".to_owned(),
            Request::ClusterId => "cluster".to_owned(),
        }
    }

    pub(crate) fn page_request_text(&self, page: &PageRequest) -> String {
        let text = |key: &Bytes| key.escape_ascii().to_string();
        let end = page.end.as_ref().map(text).unwrap_or_default();
        let filter = match &page.filter {
            Filter::HeldBy { node, since, promise, partitions } => {
                let mut text = format!("heldby n{}", node.0);
                if *promise > 0 {
                    text.push_str(" promised");
                }
                if *since > 0 {
                    let _ = write!(text, " since {}", since_text(*since));
                }
                for partition in partitions {
                    let _ = write!(text, " p{partition}");
                }
                text
            }
            Filter::Moved { node, first, known, .. } => {
                let first = if *first { " first" } else { "" };
                format!("moved n{}{first} known {}", node.0, known.len())
            }
            Filter::Remembered { node, lost: false } => format!("remembered n{}", node.0),
            Filter::Remembered { node, lost: true } => format!("remembered by n{}", node.0),
            Filter::Chosen { ack, from, preference } => {
                let nodes: Vec<_> = preference.iter().map(|node| format!("n{}", node.0)).collect();
                format!("chosen {ack}/{from} of {}", nodes.join(" "))
            }
        };
        format!("page {}..{end} {filter} {} bytes", text(&page.start), page.max_bytes)
    }

    /// Parses `found x@5n1 [non-authoritative]` (a record of `key`), `absent [non-authoritative]`,
    /// `stored`, `page ITEM…` and other replies.
    pub(crate) fn reply<'a>(
        &mut self,
        key: &[u8],
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<Reply, String> {
        let authoritative =
            |words: &mut dyn Iterator<Item = &'a str>| words.next() != Some("non-authoritative");
        match next(words, "a reply")? {
            "found" => {
                let record = self.record(key, next(words, "a record")?)?;
                Ok(Reply::Found { record, authoritative: authoritative(words) })
            }
            "long" => {
                let outline = self.record(key, next(words, "a record")?)?.outline();
                Ok(Reply::Long { outline, authoritative: authoritative(words) })
            }
            "absent" => Ok(Reply::Absent { authoritative: authoritative(words) }),
            "stored" => Ok(Reply::Stored),
            "newer" => Ok(Reply::Newer { time: newer(words.next())? }),
            "never" => Ok(Reply::Recalled(OpLookup::Never)),
            "forgotten" => Ok(Reply::Recalled(OpLookup::Forgotten)),
            "reused" => Ok(Reply::Recalled(OpLookup::Reused)),
            "kept" => Ok(Reply::Recalled(self.op_lookup(words)?)),
            "changed" => {
                let version = version(next(words, "a version")?)?;
                let tag = Tag { version, last: Some((1, 7)) };
                let result = words.next().map(|sum| number(sum, "sum")).transpose()?;
                // The first and the third replica hold the record.
                let by = ReplicaSet::of([0, 2].into_iter());
                Ok(Reply::Done { by, done: Done::Changed { tag, result, expiry_ms: 0, fence: 0 } })
            }
            "outbid" => {
                Ok(Reply::BallotRefused { promise: version(next(words, "a ballot")?)?.time })
            }
            "ahead" => Ok(Reply::Ahead),
            "busy" => Ok(Reply::Busy),
            "nospace" => Ok(Reply::NoSpace),
            "failed" => Ok(Reply::Failed),
            "wrongepoch" => Ok(Reply::TopologyMismatch),
            "superseded" => {
                let epoch = next(words, "an epoch")?;
                let epoch = epoch.parse().map_err(|_| format!("{epoch:?} is no epoch"))?;
                Ok(Reply::Superseded { epoch })
            }
            "pong" => Ok(Reply::Pong),
            "page" => Ok(Reply::Page(self.page(words)?)),
            other => Err(format!("{other:?} is no reply")),
        }
    }

    /// Parses `^2+^1 never 5`: ballots, a base version, and optionally the sum of an addition,
    /// which was the first step.
    pub(crate) fn op_lookup<'a>(
        &self,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<OpLookup, String> {
        let ballots = next(words, "ballots, or \"chosen\"")?;
        let tag = Tag { version: version(next(words, "a version")?)?, last: Some((1, 7)) };
        let result = words.next().map(|sum| number(sum, "sum")).transpose()?;
        let done = Done::Changed { tag, result, expiry_ms: 0, fence: 0 };
        if ballots == "chosen" {
            return Ok(OpLookup::Chosen { done });
        }
        let ballots = ballots.split('+').map(|ballot| {
            let ballot = version(ballot.trim_start_matches('^'))?;
            Ok::<_, String>(ballot.time)
        });
        Ok(OpLookup::Stored { ballots: ballots.collect::<Result<_, _>>()?, done })
    }

    pub(crate) fn reply_text(&self, reply: &Reply) -> String {
        let not_authoritative =
            |authoritative: &bool| if *authoritative { "" } else { " non-authoritative" };
        match reply {
            Reply::Found { record, authoritative } => {
                format!(
                    "found {}{}",
                    self.record_text(None, record),
                    not_authoritative(authoritative)
                )
            }
            Reply::Long { outline, authoritative } => {
                let at = self.version_text(outline.rank.version);
                let bytes = outline.bytes - OVERHEAD;
                format!("long {bytes} bytes{at}{}", not_authoritative(authoritative))
            }
            Reply::Absent { authoritative } => {
                format!("absent{}", not_authoritative(authoritative))
            }
            Reply::Page(page) => {
                format!(
                    "page {}{}",
                    self.items_text(&page.items),
                    not_authoritative(&page.authoritative)
                )
            }
            Reply::Done { by, done } => format!("{} {}", self.done_text(done), format_holders(*by)),
            Reply::Recalled(OpLookup::Stored { ballots, done }) => {
                let text = |ballot| format!("^{}", ballot_text(ballot));
                let ballots: Vec<String> = ballots.iter().map(text).collect();
                let ballots =
                    if ballots.is_empty() { "from others".to_owned() } else { ballots.join("+") };
                format!("kept {ballots}: {}", self.done_text(done))
            }
            Reply::Recalled(OpLookup::Chosen { done }) => {
                format!("kept chosen: {}", self.done_text(done))
            }
            Reply::Recalled(recalled) => lower(recalled),
            Reply::BallotRefused { promise } => format!("outbid {}", ballot_text(*promise)),
            Reply::Superseded { epoch } => format!("superseded {epoch}"),
            Reply::Round(state) => {
                let promised = ballot_text(state.promised);
                format!("{} promised ^{promised}", proof_text(&state.proof))
            }
            Reply::Newer { time: 0 } => "newer".to_owned(),
            Reply::Newer { time } => format!("newer {}ms", after_base(*time)),
            other => lower(other),
        }
    }

    /// Parses `a=x@5n1 b=… [next=c] [non-authoritative]`.
    pub(crate) fn page<'a>(
        &mut self,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<Page, String> {
        let mut page = Page { items: Vec::new(), next: None, authoritative: true };
        for word in words {
            if word == "non-authoritative" {
                page.authoritative = false;
            } else if let Some(next) = word.strip_prefix("next=") {
                page.next = Some(Bytes::from(next.to_owned()));
            } else {
                page.items.push(self.item(word)?);
            }
        }
        Ok(page)
    }
}

/// Prints a length limit, unless it is the default.
pub(crate) fn up_to(most: u32) -> String {
    match most {
        BRIEF_BYTES => String::new(),
        most => format!(" to {}", most.saturating_sub(OVERHEAD)),
    }
}

/// Returns the kind and the content of a record from `x` (a value) or `del` (a tombstone).
pub(crate) fn content(text: &str) -> (Kind, &str) {
    if text == "del" { (Kind::Tombstone, "") } else { (Kind::Value, text) }
}
