//! Messages into bytes, straight into what the connection will write.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::compare::{
    compare_flags, compare_len, compared_len, put_compare, put_compared, put_ranges, ranges_len,
};
use super::conditional::{
    conditional_len, done_len, put_conditional, put_done, put_recalled, recalled_len,
};
use super::council::{put_vote_reply, put_vote_request, vote_reply_len, vote_request_len};
use super::moves::{MOVES_LEN, moved_len, put_moved, put_moves};
use super::proof::{ROUND_LEN, STATE_LEN, STEP_LEN, put_round, put_state, put_step};
use super::{
    ALL_PARTITIONS, ENVELOPE_FULL, ENVELOPE_HEAD, ITEM_HEAD, KEY_LEN, MARK_LEN, PIECE_MAX, Sender,
    flag, kind,
};
use crate::message::{Body, Class, Filter, Message, NodeId, Page, PageRequest, Reply, Request};
use crate::missed::Mark;
use crate::record::{Kind, Outline, Rank, Record};

const RECORD_LEN: usize = 4;

/// Bytes of an outline: time, origin, ballot, kind, copies, check, length.
pub(super) const OUTLINE_LEN: usize = 8 + 4 + 8 + 1 + 1 + 8 + 4;

/// Envelopes on their way out of one connection: sealed ones, and at the end perhaps an open one.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    /// Where the open envelope begins.
    open: usize,
    /// Items in the open envelope.
    count: u32,
}

impl Writer {
    /// Adds a message that is not too long to travel whole.
    pub fn message(&mut self, message: &Message) {
        self.begin();
        put_message(&mut self.bytes, message);
    }

    /// Adds a part of a long one.
    pub fn piece(&mut self, bytes: &[u8], last: bool) {
        assert!(bytes.len() <= PIECE_MAX, "a piece of {} bytes", bytes.len());
        let flags = if last { flag::LAST } else { 0 };
        self.item(kind::PIECE, flags, 0, |out| out.extend_from_slice(bytes));
    }

    /// Allows the receiver so many more bytes of pieces.
    pub fn credit(&mut self, bytes: u32) {
        self.item(kind::CREDIT, 0, 0, |out| out.extend_from_slice(&bytes.to_le_bytes()));
    }

    /// Asks for a sign of life.
    pub fn ping(&mut self, token: u64) {
        self.item(kind::LINK_PING, 0, token, |_| ());
    }

    /// Gives one. `wall` is in microseconds since 1970.
    pub fn pong(&mut self, token: u64, wall: u64) {
        self.item(kind::LINK_PONG, 0, token, |out| out.extend_from_slice(&wall.to_le_bytes()));
    }

    /// Asks for no more requests.
    pub fn goodbye(&mut self) {
        self.item(kind::GOODBYE, 0, 0, |_| ());
    }

    /// Whether the open envelope has to be sealed before anything is added.
    pub fn is_full(&self) -> bool {
        self.count > 0 && self.bytes.len() - self.open >= ENVELOPE_FULL
    }

    /// Whether there is an open envelope.
    pub fn has_open(&self) -> bool {
        self.count > 0
    }

    /// Closes the open envelope, if there is one; returns whether there was.
    pub fn seal(&mut self, sender: Sender) -> bool {
        if self.count == 0 {
            return false;
        }
        let envelope = &mut self.bytes[self.open..];
        let length = (envelope.len() - ENVELOPE_HEAD) as u32;
        envelope[8..12].copy_from_slice(&length.to_le_bytes());
        envelope[12..16].copy_from_slice(&self.count.to_le_bytes());
        envelope[16..24].copy_from_slice(&sender.view.epoch.to_le_bytes());
        envelope[24..32].copy_from_slice(&sender.view.placement.to_le_bytes());
        envelope[32..40].copy_from_slice(&sender.clock.to_le_bytes());
        envelope[40..48].copy_from_slice(&sender.position.0.to_le_bytes());
        let check = xxh3_64(&envelope[8..]);
        envelope[..8].copy_from_slice(&check.to_le_bytes());
        self.open = self.bytes.len();
        self.count = 0;
        true
    }

    /// All envelopes that are sealed.
    pub fn sealed(&self) -> &[u8] {
        &self.bytes[..self.open]
    }

    /// Bytes of sealed and open envelopes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is nothing to be sent.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Forgets the first `bytes`, which were sent.
    pub fn sent(&mut self, bytes: usize) {
        assert!(bytes <= self.open, "sent what is not sealed");
        self.open -= bytes;
        self.bytes.drain(..bytes);
    }

    /// Gives back memory beyond `bytes` that is not in use.
    pub fn shrink(&mut self, bytes: usize) {
        if self.bytes.capacity() > bytes {
            self.bytes.shrink_to(bytes);
        }
    }

    fn begin(&mut self) {
        if self.count == 0 {
            self.bytes.resize(self.open + ENVELOPE_HEAD, 0);
        }
        self.count += 1;
    }

    fn item(&mut self, kind: u8, flags: u8, id: u64, body: impl FnOnce(&mut Vec<u8>)) {
        self.begin();
        put_item(&mut self.bytes, Head { kind, flags, class: 0, id, remaining_ms: 0 }, body);
    }
}

struct Head {
    kind: u8,
    flags: u8,
    class: u8,
    id: u64,
    remaining_ms: u32,
}

fn put_item(out: &mut Vec<u8>, head: Head, body: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend_from_slice(&[head.kind, head.flags, head.class, 0]);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&head.id.to_le_bytes());
    out.extend_from_slice(&head.remaining_ms.to_le_bytes());
    body(out);
    let length = (out.len() - begin - ITEM_HEAD) as u32;
    out[begin + 4..begin + 8].copy_from_slice(&length.to_le_bytes());
}

/// Adds a message as it is inside an envelope, or cut into pieces.
pub(super) fn put_message(out: &mut Vec<u8>, message: &Message) {
    let id = message.id;
    match &message.body {
        Body::Request { remaining_ms, class, request } => {
            let (kind, flags) = kind_of_request(request);
            let class = class_code(*class);
            let head = Head { kind, flags, class, id, remaining_ms: *remaining_ms };
            put_item(out, head, |out| put_request(out, request));
        }
        Body::Reply(reply) => {
            let (kind, flags) = kind_of_reply(reply);
            let head = Head { kind, flags, class: 0, id, remaining_ms: 0 };
            put_item(out, head, |out| put_reply(out, reply));
        }
    }
}

/// Bytes that a message takes, head included.
pub fn message_len(message: &Message) -> usize {
    let body = match &message.body {
        Body::Request { request, .. } => match request {
            Request::ReadQuorum { key, most: u32::MAX } => KEY_LEN + key.len(),
            Request::Read { key, .. } | Request::ReadQuorum { key, .. } => {
                KEY_LEN + key.len() + size_of::<u32>()
            }
            Request::Change { key, conditional, .. } => {
                KEY_LEN + key.len() + 8 + 1 + conditional_len(conditional)
            }
            Request::Recall { key, .. } => KEY_LEN + key.len() + 8 + 8,
            Request::Prepare { key, .. } => KEY_LEN + key.len() + 8 + size_of::<u32>() + 8,
            Request::Write { key, record } | Request::AcceptNext { key, record } => {
                item_len(key, record)
            }
            Request::Writes { items } => items_len(items),
            Request::Page(request) => page_request_len(request),
            Request::Missed { marks, .. } => 2 + 4 + MARK_LEN * marks.len(),
            Request::Compare(request) => compare_len(request),
            Request::Discard(ranges) => ranges_len(ranges),
            Request::Round { .. } => STEP_LEN,
            Request::Bring { key, record, .. } => ROUND_LEN + item_len(key, record),
            Request::Council(request) => vote_request_len(request),
            Request::Ping | Request::Moves => 0,
        },
        Body::Reply(Reply::Found { record, .. }) => RECORD_LEN + record.bytes.len(),
        Body::Reply(Reply::Long { .. }) => OUTLINE_LEN,
        Body::Reply(Reply::Done(done, _)) => 1 + done_len(done),
        Body::Reply(Reply::Recalled(recalled)) => recalled_len(recalled),
        Body::Reply(Reply::Newer { .. } | Reply::Outbid { .. } | Reply::Superseded { .. }) => {
            size_of::<u64>()
        }
        Body::Reply(Reply::Page(page)) => {
            page.next.as_ref().map_or(0, |next| KEY_LEN + next.len()) + items_len(&page.items)
        }
        Body::Reply(Reply::Compared(compared)) => compared_len(compared),
        Body::Reply(Reply::Round(_)) => STATE_LEN,
        Body::Reply(Reply::Council(reply)) => vote_reply_len(reply),
        Body::Reply(Reply::Moves(_)) => MOVES_LEN,
        Body::Reply(_) => 0,
    };
    ITEM_HEAD + body
}

fn item_len(key: &Bytes, record: &Record) -> usize {
    KEY_LEN + key.len() + RECORD_LEN + record.bytes.len()
}

fn items_len(items: &[(Bytes, Record)]) -> usize {
    4 + items.iter().map(|(key, record)| item_len(key, record)).sum::<usize>()
}

fn page_request_len(request: &PageRequest) -> usize {
    let filter = match &request.filter {
        Filter::Chosen { preference, .. } => 4 + 2 * preference.len(),
        Filter::HeldBy { partitions, .. } => 2 + 8 + 8 + 2 + 2 * partitions.len(),
        Filter::Moved { known, .. } => moved_len(known),
        Filter::Remembered { .. } => 2,
    };
    let end = request.end.as_ref().map_or(0, |end| KEY_LEN + end.len());
    KEY_LEN + request.start.len() + end + 4 + filter
}

fn class_code(class: Class) -> u8 {
    match class {
        Class::Client => 0,
        Class::Hint => 1,
        Class::Repair => 2,
        Class::Stream => 3,
    }
}

fn kind_of_request(request: &Request) -> (u8, u8) {
    match request {
        Request::Read { .. } => (kind::READ, 0),
        Request::ReadQuorum { .. } => (kind::READ_QUORUM, 0),
        Request::Change { .. } => (kind::CHANGE, 0),
        Request::Prepare { .. } => (kind::PREPARE, 0),
        Request::Recall { .. } => (kind::RECALL, 0),
        Request::Write { .. } => (kind::WRITE, 0),
        Request::AcceptNext { .. } => (kind::ACCEPT_NEXT, 0),
        Request::Writes { .. } => (kind::WRITES, 0),
        Request::Page(page) => {
            let bounded = if page.end.is_some() { flag::BOUNDED } else { 0 };
            let filter = match page.filter {
                Filter::Chosen { .. } => 0,
                Filter::HeldBy { .. } => flag::HELD_BY,
                Filter::Moved { .. } => flag::MOVED,
                Filter::Remembered { .. } => flag::REMEMBERED,
            };
            (kind::PAGE, bounded | filter)
        }
        Request::Missed { .. } => (kind::MISSED, 0),
        Request::Compare(request) => (kind::COMPARE, compare_flags(request)),
        Request::Discard(_) => (kind::DISCARD, 0),
        Request::Round { .. } => (kind::ROUND, 0),
        Request::Bring { .. } => (kind::BRING, 0),
        Request::Council(_) => (kind::COUNCIL, 0),
        Request::Moves => (kind::MOVES, 0),
        Request::Ping => (kind::PING, 0),
    }
}

fn kind_of_reply(reply: &Reply) -> (u8, u8) {
    let authoritative = |authoritative: &bool| if *authoritative { flag::AUTHORITATIVE } else { 0 };
    match reply {
        Reply::Found { authoritative: flag, .. } => (kind::FOUND, authoritative(flag)),
        Reply::Long { authoritative: flag, .. } => (kind::LONG, authoritative(flag)),
        Reply::Absent { authoritative: flag } => (kind::ABSENT, authoritative(flag)),
        Reply::Stored => (kind::STORED, 0),
        Reply::Newer { .. } => (kind::NEWER, 0),
        Reply::Done(..) => (kind::DONE, 0),
        Reply::Recalled(_) => (kind::RECALLED, 0),
        Reply::Outbid { .. } => (kind::OUTBID, 0),
        Reply::Ahead => (kind::AHEAD, 0),
        Reply::Busy => (kind::BUSY, 0),
        Reply::NoSpace => (kind::NO_SPACE, 0),
        Reply::Failed => (kind::FAILED, 0),
        Reply::WrongEpoch => (kind::WRONG_EPOCH, 0),
        Reply::Superseded { .. } => (kind::SUPERSEDED, 0),
        Reply::Page(page) => {
            let bounded = if page.next.is_some() { flag::BOUNDED } else { 0 };
            (kind::PAGE_REPLY, bounded | authoritative(&page.authoritative))
        }
        Reply::Compared(compared) => {
            (kind::COMPARED, if compared.next.is_some() { flag::BOUNDED } else { 0 })
        }
        Reply::Round(_) => (kind::ROUND_STATE, 0),
        Reply::Council(_) => (kind::COUNCIL_REPLY, 0),
        Reply::Moves(_) => (kind::MOVES_STATE, 0),
        Reply::Pong => (kind::PONG, 0),
    }
}

fn put_request(out: &mut Vec<u8>, request: &Request) {
    match request {
        // As nodes say it that speak version 9.
        Request::ReadQuorum { key, most: u32::MAX } => put_key(out, key),
        Request::Read { key, most } | Request::ReadQuorum { key, most } => {
            put_key(out, key);
            out.extend_from_slice(&most.to_le_bytes());
        }
        Request::Change { key, id, ack, conditional } => {
            put_key(out, key);
            out.extend_from_slice(&id.to_le_bytes());
            out.push(*ack);
            put_conditional(out, conditional);
        }
        Request::Recall { key, id, since } => {
            put_key(out, key);
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&since.to_le_bytes());
        }
        Request::Prepare { key, ballot, most, watermark } => {
            put_key(out, key);
            out.extend_from_slice(&ballot.to_le_bytes());
            out.extend_from_slice(&most.to_le_bytes());
            out.extend_from_slice(&watermark.to_le_bytes());
        }
        Request::Write { key, record } | Request::AcceptNext { key, record } => {
            put_entry(out, key, record);
        }
        Request::Writes { items } => put_entries(out, items),
        Request::Page(request) => put_page_request(out, request),
        Request::Missed { node, marks } => put_marks(out, *node, marks),
        Request::Compare(request) => put_compare(out, request),
        Request::Discard(ranges) => put_ranges(out, ranges),
        Request::Round { round, step } => put_step(out, *round, *step),
        Request::Council(request) => put_vote_request(out, request),
        Request::Bring { round, key, record } => {
            put_round(out, *round);
            put_entry(out, key, record);
        }
        Request::Ping | Request::Moves => {}
    }
}

fn put_reply(out: &mut Vec<u8>, reply: &Reply) {
    match reply {
        Reply::Found { record, .. } => put_record(out, record),
        Reply::Long { outline, .. } => put_outline(out, outline),
        Reply::Newer { time } => out.extend_from_slice(&time.to_le_bytes()),
        Reply::Done(done, by) => {
            out.push(by.0);
            put_done(out, done);
        }
        Reply::Recalled(recalled) => put_recalled(out, recalled),
        Reply::Compared(compared) => put_compared(out, compared),
        Reply::Round(state) => put_state(out, state),
        Reply::Council(reply) => put_vote_reply(out, reply),
        Reply::Moves(state) => put_moves(out, state),
        Reply::Outbid { promise: number } | Reply::Superseded { epoch: number } => {
            out.extend_from_slice(&number.to_le_bytes());
        }
        Reply::Page(Page { items, next, authoritative: _ }) => {
            if let Some(next) = next {
                put_key(out, next);
            }
            put_entries(out, items);
        }
        _ => {}
    }
}

pub(super) fn put_key(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(key);
}

fn put_record(out: &mut Vec<u8>, record: &Record) {
    out.extend_from_slice(&(record.bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&record.bytes);
}

pub(super) fn put_outline(out: &mut Vec<u8>, outline: &Outline) {
    let Outline { rank: Rank { version, ballot, kind, check }, copies, bytes } = *outline;
    out.extend_from_slice(&version.time.to_le_bytes());
    out.extend_from_slice(&version.origin.to_le_bytes());
    out.extend_from_slice(&ballot.to_le_bytes());
    out.extend_from_slice(&[kind_code(kind), copies]);
    out.extend_from_slice(&check.to_le_bytes());
    out.extend_from_slice(&bytes.to_le_bytes());
}

fn kind_code(kind: Kind) -> u8 {
    match kind {
        Kind::Value => 0,
        Kind::Tombstone => 1,
        Kind::Superseded => 2,
    }
}

fn put_entry(out: &mut Vec<u8>, key: &[u8], record: &Record) {
    put_key(out, key);
    put_record(out, record);
}

fn put_entries(out: &mut Vec<u8>, items: &[(Bytes, Record)]) {
    out.extend_from_slice(&(items.len() as u32).to_le_bytes());
    for (key, record) in items {
        put_entry(out, key, record);
    }
}

fn put_marks(out: &mut Vec<u8>, node: NodeId, marks: &[Mark]) {
    out.extend_from_slice(&node.0.to_le_bytes());
    out.extend_from_slice(&(marks.len() as u32).to_le_bytes());
    for Mark { partition, since } in marks {
        let partition = partition.map_or(ALL_PARTITIONS, u32::from);
        out.extend_from_slice(&partition.to_le_bytes());
        out.extend_from_slice(&since.to_le_bytes());
    }
}

fn put_page_request(out: &mut Vec<u8>, request: &PageRequest) {
    put_key(out, &request.start);
    if let Some(end) = &request.end {
        put_key(out, end);
    }
    out.extend_from_slice(&request.max_bytes.to_le_bytes());
    match &request.filter {
        Filter::Chosen { ack, from, preference } => {
            out.extend_from_slice(&[*ack, *from]);
            out.extend_from_slice(&(preference.len() as u16).to_le_bytes());
            for node in preference {
                out.extend_from_slice(&node.0.to_le_bytes());
            }
        }
        Filter::HeldBy { node, since, promise, partitions } => {
            out.extend_from_slice(&node.0.to_le_bytes());
            out.extend_from_slice(&since.to_le_bytes());
            out.extend_from_slice(&promise.to_le_bytes());
            out.extend_from_slice(&(partitions.len() as u16).to_le_bytes());
            for partition in partitions {
                out.extend_from_slice(&partition.to_le_bytes());
            }
        }
        Filter::Moved { node, first, seed, known } => {
            put_moved(out, (*node, *first, *seed), known);
        }
        Filter::Remembered { node } => out.extend_from_slice(&node.0.to_le_bytes()),
    }
}
