//! Bytes into messages. They may come from anybody: nothing here panics or takes memory by a
//! length that was merely announced; [`Assembly`](super::Assembly) does, for whoever asked
//! [`Announced`](super::Announced) and has set that memory aside.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    ALL_PARTITIONS, ENVELOPE_HEAD, ENVELOPE_MAX, ITEM_HEAD, Item, KEY_LEN, KEY_MAX, MARK_LEN,
    Malformed, PIECE_MAX, Sender, WHOLE_MAX, flag, kind,
};
use crate::acks::ReplicaSet;
use crate::clock::Version;
use crate::compare::MAX_RANGES;
use crate::directory::LogPosition;
use crate::message::{Body, Class, Filter, Message, NodeId, Page, PageRequest, Reply, Request};
use crate::missed::{MAX_LISTED, Mark};
use crate::record::{Codec, Kind, Outline, Rank, Record};
use crate::view::ViewId;

/// Entries for which memory is taken before they were looked at: more than most messages have.
const ENTRIES_AT_ONCE: usize = 1024;

/// Of these flags of a page request there is one at most.
const FILTERS: u8 = flag::HELD_BY | flag::MOVED | flag::REMEMBERED;

/// A key after which a range goes on is the last one with a zero byte behind it.
pub(super) const CURSOR_MAX: usize = KEY_MAX + 1;

/// Bytes of the envelope that `input` begins with, head included; `None` = too few bytes to know.
pub fn envelope_len(input: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some(length) = input.get(8..12) else { return Ok(None) };
    let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
    match length.checked_add(ENVELOPE_HEAD) {
        Some(total) if total <= ENVELOPE_MAX => Ok(Some(total)),
        _ => Err(Malformed("an envelope that is too long")),
    }
}

/// An envelope whose check is right.
#[derive(Debug)]
pub struct Envelope {
    sender: Sender,
    left: u32,
    reader: Reader,
}

impl Envelope {
    /// Takes a whole envelope, head included.
    pub fn open(bytes: Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader { bytes, at: 0 };
        let check = reader.u64()?;
        if xxh3_64(&reader.bytes[reader.at..]) != check {
            return Err(Malformed("an envelope whose check is wrong"));
        }
        let length = reader.u32()? as usize;
        let left = reader.u32()?;
        let view = ViewId { epoch: reader.u64()?, placement: reader.u64()? };
        let sender = Sender { view, clock: reader.u64()?, position: LogPosition(reader.u64()?) };
        if length != reader.left() {
            return Err(Malformed("an envelope of another length than it says"));
        }
        if left == 0 {
            return Err(Malformed("an empty envelope"));
        }
        Ok(Self { sender, left, reader })
    }

    /// Who sent it.
    pub fn sender(&self) -> Sender {
        self.sender
    }

    /// The next item; `None` = that was all.
    pub fn next(&mut self, codec: &Codec) -> Result<Option<Item>, Malformed> {
        if self.left == 0 {
            return if self.reader.left() == 0 {
                Ok(None)
            } else {
                Err(Malformed("bytes after the last item"))
            };
        }
        self.left -= 1;
        let head = self.reader.head()?;
        let end = self.reader.left() - head.length;
        let item = match head.kind {
            kind::PIECE..=kind::GOODBYE => self.reader.between(&head)?,
            _ if ITEM_HEAD + head.length > WHOLE_MAX => {
                return Err(Malformed("a long message in one piece"));
            }
            _ => Item::Message(self.reader.message(&head, codec)?),
        };
        if self.reader.left() != end {
            return Err(Malformed("an item of another length than it says"));
        }
        Ok(Some(item))
    }
}

/// Takes a message that was put together from pieces.
pub(super) fn message(bytes: Bytes, codec: &Codec) -> Result<Message, Malformed> {
    let mut reader = Reader { bytes, at: 0 };
    let head = reader.head()?;
    if head.length != reader.left() {
        return Err(Malformed("a message of another length than its pieces"));
    }
    let message = reader.message(&head, codec)?;
    if reader.left() != 0 {
        return Err(Malformed("a message of another length than it says"));
    }
    Ok(message)
}

struct Head {
    kind: u8,
    flags: u8,
    class: u8,
    length: usize,
    id: u64,
    remaining_ms: u32,
}

impl Head {
    /// No flags but these.
    fn only(&self, flags: u8) -> Result<(), Malformed> {
        if self.flags & !flags == 0 { Ok(()) } else { Err(Malformed("an unknown flag")) }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

#[derive(Debug)]
pub(super) struct Reader {
    bytes: Bytes,
    at: usize,
}

impl Reader {
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn skip(&mut self, count: usize) -> Result<usize, Malformed> {
        let begin = self.at;
        if count > self.left() {
            return Err(Malformed("it ends too early"));
        }
        self.at += count;
        Ok(begin)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let begin = self.skip(N)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[begin..begin + N]);
        Ok(array)
    }

    pub(super) fn take(&mut self, count: usize) -> Result<Bytes, Malformed> {
        let begin = self.skip(count)?;
        Ok(self.bytes.slice(begin..begin + count))
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn head(&mut self) -> Result<Head, Malformed> {
        let [kind, flags, class, zero] = self.array()?;
        let length = self.u32()? as usize;
        let head = Head { kind, flags, class, length, id: self.u64()?, remaining_ms: self.u32()? };
        if zero != 0 {
            return Err(Malformed("a reserved byte is not zero"));
        }
        if head.length > self.left() {
            return Err(Malformed("an item longer than what holds it"));
        }
        let is_request = head.kind < kind::PIECE;
        if !is_request && (head.class != 0 || head.remaining_ms != 0) {
            return Err(Malformed("a class or a time where there is no request"));
        }
        Ok(head)
    }

    /// Items that are no messages.
    fn between(&mut self, head: &Head) -> Result<Item, Malformed> {
        head.only(if head.kind == kind::PIECE { flag::LAST } else { 0 })?;
        let has_id = matches!(head.kind, kind::LINK_PING | kind::LINK_PONG);
        if !has_id && head.id != 0 {
            return Err(Malformed("an id where there is no request"));
        }
        Ok(match head.kind {
            kind::PIECE => {
                if head.length == 0 || head.length > PIECE_MAX {
                    return Err(Malformed("a piece that is empty or too long"));
                }
                Item::Piece { last: head.has(flag::LAST), bytes: self.take(head.length)? }
            }
            kind::CREDIT => Item::Credit(self.u32()?),
            kind::LINK_PING => Item::Ping { token: head.id },
            kind::LINK_PONG => Item::Pong { token: head.id, wall: self.u64()? },
            kind::GOODBYE => Item::Goodbye,
            _ => return Err(Malformed("an unknown type")),
        })
    }

    fn message(&mut self, head: &Head, codec: &Codec) -> Result<Message, Malformed> {
        let body = if head.kind < kind::PIECE {
            let class = match head.class {
                0 => Class::Client,
                1 => Class::Hint,
                2 => Class::Repair,
                3 => Class::Stream,
                _ => return Err(Malformed("an unknown class")),
            };
            let request = self.request(head, codec)?;
            Body::Request { remaining_ms: head.remaining_ms, class, request }
        } else {
            Body::Reply(self.reply(head, codec)?)
        };
        Ok(Message { id: head.id, body })
    }

    fn request(&mut self, head: &Head, codec: &Codec) -> Result<Request, Malformed> {
        head.only(match head.kind {
            kind::PAGE => flag::BOUNDED | FILTERS,
            kind::COMPARE => flag::BOUNDED | flag::LISTED,
            _ => 0,
        })?;
        Ok(match head.kind {
            kind::READ => Request::Read { key: self.key()?, most: self.u32()? },
            kind::READ_QUORUM => {
                let key = self.key()?;
                let says_most = head.length > KEY_LEN + key.len();
                let most = if says_most { self.u32()? } else { u32::MAX };
                if says_most && most == u32::MAX {
                    return Err(Malformed("a limit that says that there is no limit"));
                }
                Request::ReadQuorum { key, most }
            }
            kind::CHANGE => {
                let (key, id, ack) = (self.key()?, self.u64()?, self.u8()?);
                Request::Change { key, id, ack, conditional: self.conditional()? }
            }
            kind::RECALL => {
                Request::Recall { key: self.key()?, id: self.u64()?, since: self.u64()? }
            }
            kind::PREPARE => {
                let (key, ballot, most) = (self.key()?, self.u64()?, self.u32()?);
                Request::Prepare { key, ballot, most, watermark: self.u64()? }
            }
            kind::WRITE => {
                let (key, record) = self.entry(codec)?;
                Request::Write { key, record }
            }
            kind::ACCEPT_NEXT => {
                let (key, record) = self.entry(codec)?;
                Request::AcceptNext { key, record }
            }
            kind::WRITES => Request::Writes { items: self.entries(codec)? },
            kind::PAGE => Request::Page(self.page_request(head)?),
            kind::MISSED => self.marks()?,
            kind::COMPARE => Request::Compare(self.compare(head.flags)?),
            kind::DISCARD => Request::Discard(self.ranges(MAX_RANGES)?),
            kind::ROUND => {
                let (round, step) = self.step()?;
                Request::Round { round, step }
            }
            kind::BRING => {
                let round = self.round()?;
                let (key, record) = self.entry(codec)?;
                Request::Bring { round, key, record }
            }
            kind::COUNCIL => Request::Council(self.vote_request()?),
            kind::MOVES => Request::Moves,
            kind::PING => Request::Ping,
            _ => return Err(Malformed("an unknown type")),
        })
    }

    fn reply(&mut self, head: &Head, codec: &Codec) -> Result<Reply, Malformed> {
        head.only(match head.kind {
            kind::FOUND | kind::ABSENT | kind::LONG => flag::AUTHORITATIVE,
            kind::PAGE_REPLY => flag::AUTHORITATIVE | flag::BOUNDED,
            kind::COMPARED => flag::BOUNDED,
            _ => 0,
        })?;
        let authoritative = head.has(flag::AUTHORITATIVE);
        Ok(match head.kind {
            kind::FOUND => Reply::Found { record: self.record(codec)?, authoritative },
            kind::LONG => Reply::Long { outline: self.outline()?, authoritative },
            kind::ABSENT => Reply::Absent { authoritative },
            kind::STORED => Reply::Stored,
            kind::NEWER => Reply::Newer { time: self.u64()? },
            kind::DONE => {
                let by = ReplicaSet(self.u8()?);
                Reply::Done(self.done()?, by)
            }
            kind::RECALLED => Reply::Recalled(self.recalled()?),
            kind::OUTBID => Reply::Outbid { promise: self.u64()? },
            kind::AHEAD => Reply::Ahead,
            kind::BUSY => Reply::Busy,
            kind::NO_SPACE => Reply::NoSpace,
            kind::FAILED => Reply::Failed,
            kind::WRONG_EPOCH => Reply::WrongEpoch,
            kind::SUPERSEDED => Reply::Superseded { epoch: self.u64()? },
            kind::PAGE_REPLY => {
                let next = if head.has(flag::BOUNDED) { Some(self.cursor()?) } else { None };
                Reply::Page(Page { next, items: self.entries(codec)?, authoritative })
            }
            kind::COMPARED => Reply::Compared(self.compared(head.flags)?),
            kind::ROUND_STATE => Reply::Round(self.state()?),
            kind::COUNCIL_REPLY => Reply::Council(self.vote_reply()?),
            kind::MOVES_STATE => Reply::Moves(self.moves()?),
            kind::PONG => Reply::Pong,
            _ => return Err(Malformed("an unknown type")),
        })
    }

    fn page_request(&mut self, head: &Head) -> Result<PageRequest, Malformed> {
        let start = self.cursor()?;
        let end = if head.has(flag::BOUNDED) { Some(self.cursor()?) } else { None };
        let max_bytes = self.u32()?;
        if (head.flags & FILTERS).count_ones() > 1 {
            return Err(Malformed("two filters"));
        }
        let filter = if head.has(flag::HELD_BY) {
            self.held_by()?
        } else if head.has(flag::MOVED) {
            self.moved()?
        } else if head.has(flag::REMEMBERED) {
            Filter::Remembered { node: NodeId(self.u16()?) }
        } else {
            let (ack, from, count) = (self.u8()?, self.u8()?, usize::from(self.u16()?));
            if self.left() < 2 * count {
                return Err(Malformed("it ends too early"));
            }
            let mut preference = Vec::with_capacity(count);
            for _ in 0..count {
                preference.push(NodeId(self.u16()?));
            }
            Filter::Chosen { ack, from, preference }
        };
        Ok(PageRequest { start, end, filter, max_bytes })
    }

    fn held_by(&mut self) -> Result<Filter, Malformed> {
        let (node, since, promise) = (NodeId(self.u16()?), self.u64()?, self.u64()?);
        let count = usize::from(self.u16()?);
        if count > MAX_LISTED || count > self.left() / 2 {
            return Err(Malformed("more partitions than are listed"));
        }
        let mut partitions = Vec::with_capacity(count);
        for _ in 0..count {
            partitions.push(self.u16()?);
        }
        if !partitions.is_sorted_by(|a, b| a < b) {
            return Err(Malformed("partitions that are not in order"));
        }
        Ok(Filter::HeldBy { node, since, promise, partitions })
    }

    fn marks(&mut self) -> Result<Request, Malformed> {
        let (node, count) = (NodeId(self.u16()?), self.u32()? as usize);
        if count > MAX_LISTED + 1 || count > self.left() / MARK_LEN {
            return Err(Malformed("more marks than there can be"));
        }
        let mut marks = Vec::with_capacity(count);
        for _ in 0..count {
            let partition = match self.u32()? {
                ALL_PARTITIONS => None,
                partition => match u16::try_from(partition) {
                    Ok(partition) => Some(partition),
                    Err(_) => return Err(Malformed("no such partition")),
                },
            };
            marks.push(Mark { partition, since: self.u64()? });
        }
        Ok(Request::Missed { node, marks })
    }

    pub(super) fn key(&mut self) -> Result<Bytes, Malformed> {
        let length = usize::from(self.u16()?);
        if length == 0 || length > KEY_MAX {
            return Err(Malformed("a key that is empty or too long"));
        }
        self.take(length)
    }

    pub(super) fn cursor(&mut self) -> Result<Bytes, Malformed> {
        let length = usize::from(self.u16()?);
        if length > CURSOR_MAX {
            return Err(Malformed("a bound of a range that is too long"));
        }
        self.take(length)
    }

    fn record(&mut self, codec: &Codec) -> Result<Record, Malformed> {
        let length = self.u32()? as usize;
        (codec.parse)(self.take(length)?).ok_or(Malformed("a malformed record"))
    }

    pub(super) fn outline(&mut self) -> Result<Outline, Malformed> {
        let version = Version { time: self.u64()?, origin: self.u32()? };
        let ballot = self.u64()?;
        let kind = match self.u8()? {
            0 => Kind::Value,
            1 => Kind::Tombstone,
            2 => Kind::Superseded,
            _ => return Err(Malformed("a record of an unknown kind")),
        };
        let copies = self.u8()?;
        let rank = Rank { version, ballot, kind, check: self.u64()? };
        Ok(Outline { rank, copies, bytes: self.u32()? })
    }

    fn entry(&mut self, codec: &Codec) -> Result<(Bytes, Record), Malformed> {
        Ok((self.key()?, self.record(codec)?))
    }

    fn entries(&mut self, codec: &Codec) -> Result<Vec<(Bytes, Record)>, Malformed> {
        /// A key's length, a byte of it, and a record's length.
        const LEAST: usize = 2 + 1 + 4;
        let count = self.u32()? as usize;
        if count > self.left() / LEAST {
            return Err(Malformed("more entries than there are bytes"));
        }
        // An entry in memory is many times as long as the least one in bytes.
        let mut entries = Vec::with_capacity(count.min(ENTRIES_AT_ONCE));
        for _ in 0..count {
            entries.push(self.entry(codec)?);
        }
        Ok(entries)
    }
}
