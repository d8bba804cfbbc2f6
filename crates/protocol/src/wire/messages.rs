//! The bodies of all messages. One line defines a message's type and its fields in order; the
//! encoder, the decoder and the length follow from the line.
//!
//! ```text
//!   message ─ put ──▶ bytes: head │ fields …
//!   message ─ len ──▶ number of these bytes
//!   message ◀─ take ─ bytes: head │ fields …
//! ```

use super::compare_fields::Ranges;
use super::field::{Authoritative, DigestIfAny, Entries, Field, IdIfAny, Key, MarkList, MostIfAny};
use super::out::{ByteCounter, OpenItem, Out};
use super::reader::FieldReader;
use super::{Head, ITEM_HEAD, Malformed, kind};
use crate::membership::disk_ids::Incarnation;
use crate::membership::layout::{VoteReply, VoteRequest};
use crate::message::{Body, Class, Message, MovesState, NodeId, Page, PageRequest, Reply, Request};
use crate::paxos::operation::{Conditional, Done};
use crate::paxos::recent::OpLookup;
use crate::repair::compare_messages::{CompareRequest, Compared};
use crate::repair::watermark::{RoundId, RoundState, RoundStep};
use crate::request::receipt::ReplicaSet;
use record::{Record, RecordOutline};

/// The kinds of messages that may be long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LongKind {
    /// A request to a node.
    Request,
    /// A record that was read.
    Found,
    /// A page, a replica's comparison of a range, or a layout.
    Page,
}

/// Makes functions from the lines below. A field is `name: encoding`. In a variant without named
/// fields, the name is arbitrary.
macro_rules! bodies {
    ($of:ident of $types:pat, long $otherwise:expr, $(
        $kind:literal $name:ident
        $({ $($field:ident: $field_as:ty),+ })?
        $(($inner:ident: $inner_as:ty))?
        $(long $long:ident)?,
    )+) => {
        const _: () = assert!($(matches!($kind, $types))&&+, "a type that is not one of these");

        impl $of {
            /// Returns the type in the message's head.
            fn kind(&self) -> u8 {
                match self {
                    $(Self::$name { .. } => $kind,)+
                }
            }

            /// Returns the kind of a long message by its type; `None` = messages of this type are
            /// never long.
            pub(super) fn long_kind(kind: u8) -> Option<LongKind> {
                match kind {
                    $($($kind => Some(LongKind::$long),)?)+
                    _ => $otherwise,
                }
            }

            fn put_body(&self, out: &mut impl Out) {
                match self {
                    $(Self::$name $({ $($field),+ })? $(($inner))? => {
                        $($(<$field_as>::put($field, out);)+)?
                        $(<$inner_as>::put($inner, out);)?
                    })+
                }
            }

            fn take_body(kind: u8, from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
                Ok(match kind {
                    $($kind => {
                        $($(let $field = <$field_as>::take(from)?;)+)?
                        $(let $inner = <$inner_as>::take(from)?;)?
                        Self::$name $({ $($field),+ })? $(($inner))?
                    })+
                    _ => return Err(Malformed("an unknown type")),
                })
            }
        }
    };
}

bodies! {
    Request of 0x01..kind::PIECE, long Some(LongKind::Request),
    0x01 Read { key: Key, most: u32 },
    0x02 Write { key: Key, record: Record },
    0x03 Writes { items: Entries },
    0x04 Page(page: PageRequest),
    0x05 Ping,
    0x06 Missed { node: NodeId, marks: MarkList },
    0x07 Prepare { key: Key, ballot: u64, most: u32, watermark: u64 },
    0x08 Change { key: Key, id: u64, ack: u8, conditional: Conditional },
    0x09 Recall { key: Key, id: u64, since: u64, digest: DigestIfAny },
    0x0a AcceptNext { key: Key, record: Record },
    0x0b ReadQuorum { key: Key, most: MostIfAny },
    0x0c Compare(request: CompareRequest),
    0x0d Discard(ranges: Ranges),
    0x0e Round { round: RoundId, step: RoundStep },
    0x0f Bring { round: RoundId, key: Key, record: Record },
    0x10 Council(vote: VoteRequest),
    0x11 Moves,
    0x12 ClusterId,
    0x13 KnowsDisk { node: NodeId, incarnation: Incarnation },
}

// The types of replies have the highest bit set. Only replies with `long` are cut into pieces.
bodies! {
    Reply of 0x80.., long None,
    0x81 Found { record: Record, authoritative: Authoritative } long Found,
    0x82 Absent { authoritative: Authoritative },
    0x83 Stored,
    0x84 Newer { time: u64 },
    0x85 Ahead,
    0x86 Busy,
    0x87 NoSpace,
    0x88 Failed,
    0x89 TopologyMismatch,
    0x8a Page(page: Page) long Page,
    0x8b Pong,
    0x8c Long { outline: RecordOutline, authoritative: Authoritative },
    0x8d BallotRefused { promise: u64 },
    0x8e Done { by: ReplicaSet, done: Done },
    0x8f Recalled(recalled: OpLookup),
    0x90 Compared(compared: Compared) long Page,
    0x91 Round(state: RoundState),
    0x92 Superseded { epoch: u64 },
    0x93 Council(vote: VoteReply) long Page,
    0x94 Moves(state: MovesState),
    0x95 ClusterId(id: IdIfAny),
}

/// Appends a message as an item, which an envelope carries whole or in pieces.
pub(super) fn put_message(out: &mut Vec<u8>, message: &Message) {
    let id = message.id;
    match &message.body {
        Body::Request { remaining_ms, class, request } => {
            let (kind, class) = (request.kind(), class_code(*class));
            let head = Head { kind, class, id, remaining_ms: *remaining_ms };
            let mut item = OpenItem::new(out, head);
            request.put_body(&mut item);
            item.close();
        }
        Body::Reply(reply) => {
            let head = Head { kind: reply.kind(), class: 0, id, remaining_ms: 0 };
            let mut item = OpenItem::new(out, head);
            reply.put_body(&mut item);
            item.close();
        }
    }
}

/// Returns the length of a message in bytes, head included.
pub fn message_len(message: &Message) -> usize {
    let mut counted = ByteCounter(ITEM_HEAD);
    match &message.body {
        Body::Request { request, .. } => request.put_body(&mut counted),
        Body::Reply(reply) => reply.put_body(&mut counted),
    }
    counted.0
}

/// Reads the body of the message with this head.
pub(super) fn take_message(head: Head, from: &mut FieldReader<'_>) -> Result<Message, Malformed> {
    let Head { kind, class, id, remaining_ms } = head;
    let body = if kind < kind::PIECE {
        let class = class_of(class)?;
        Body::Request { remaining_ms, class, request: Request::take_body(kind, from)? }
    } else {
        Body::Reply(Reply::take_body(kind, from)?)
    };
    Ok(Message { id, body })
}

fn class_code(class: Class) -> u8 {
    match class {
        Class::Client => 0,
        Class::Hint => 1,
        Class::Repair => 2,
        Class::Stream => 3,
    }
}

fn class_of(code: u8) -> Result<Class, Malformed> {
    match code {
        0 => Ok(Class::Client),
        1 => Ok(Class::Hint),
        2 => Ok(Class::Repair),
        3 => Ok(Class::Stream),
        _ => Err(Malformed("an unknown class")),
    }
}
