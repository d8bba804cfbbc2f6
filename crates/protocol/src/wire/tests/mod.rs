//! Tests of the encoding of messages: the bytes of each item, and malformed items.

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use std::sync::Arc;

use super::*;
use crate::membership::cluster_id::ClusterId;
use crate::membership::disk_ids::{BootId, Incarnation};
use crate::membership::layout::{Layout, VoteReply, VoteRequest};
use crate::message::{
    Body, Class, Filter, Message, MovesState, NodeId, Page, PageRequest, Reply, Request, Waits,
};
use crate::paxos::operation::{Change, Condition, Conditional, Done, Impossible, Tag};
use crate::paxos::recent::OpLookup;
use crate::placement::topology::{Member, Topology};
use crate::placement::view::ViewId;
use crate::repair::compare_messages::{CompareRequest, Compared, Damage, Detail, Sum};
use crate::repair::watermark::{Proof, RoundId, RoundState, RoundStep};
use crate::request::receipt::ReplicaSet;
use crate::transfer::missed::Mark;
use conditional::conditional_writes;
use record::{Fields, Kind, Record, Version};

const VIEW: ViewId = ViewId { epoch: 0x0908, placement: 0x1122_3344_5566_7788 };

const SENDER: Sender = Sender { view: VIEW, clock: 42, position: LogPosition(0x0605) };

mod conditional;

fn record(value: &[u8]) -> Record {
    let version = Version { time: 0x0706_0504_0302_0100, origin: 0x0b0a_0908 };
    Record::new(b"key", &Fields::new(Kind::Value, version), value)
}

fn entry() -> impl Strategy<Value = (Bytes, Record)> {
    (vec(any::<u8>(), 1..40), vec(any::<u8>(), 0..60)).prop_map(|(k, v)| (k.into(), record(&v)))
}

fn cursor() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn filter() -> impl Strategy<Value = Filter> {
    prop_oneof![
        (any::<u16>(), any::<u64>(), btree_set(any::<u16>(), 0..9)).prop_map(
            |(node, since, partitions)| {
                let partitions = partitions.into_iter().collect();
                Filter::HeldBy { node: NodeId(node), since, promise: since / 2, partitions }
            }
        ),
        (any::<u8>(), any::<u8>(), vec(any::<u16>(), 0..9)).prop_map(|(ack, from, nodes)| {
            Filter::Chosen { ack, from, preference: nodes.into_iter().map(NodeId).collect() }
        }),
        (any::<u16>(), any::<bool>(), any::<u64>(), vec(any::<u64>(), 0..9)).prop_map(
            |(node, first, seed, known)| Filter::Moved { node: NodeId(node), first, seed, known }
        ),
        any::<(u16, bool)>()
            .prop_map(|(node, lost)| Filter::Remembered { node: NodeId(node), lost }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (entry(), any::<u32>()).prop_map(|((key, _), most)| Request::Read { key, most }),
        (entry(), any::<u32>()).prop_map(|((key, _), most)| Request::ReadQuorum { key, most }),
        entry().prop_map(|(key, record)| Request::Write { key, record }),
        entry().prop_map(|(key, record)| Request::AcceptNext { key, record }),
        vec(entry(), 0..5).prop_map(|items| Request::Writes { items }),
        (entry(), any::<u64>(), any::<u32>()).prop_map(|((key, _), ballot, most)| {
            Request::Prepare { key, ballot, most, watermark: ballot / 3 }
        }),
        (round(), step()).prop_map(|(round, step)| Request::Round { round, step }),
        (round(), entry()).prop_map(|(round, (key, record))| Request::Bring { round, key, record }),
        (entry(), any::<[u64; 3]>()).prop_map(|((key, _), [id, since, digest])| Request::Recall {
            key,
            id,
            since,
            digest,
        }),
        (entry(), any::<u64>(), any::<u8>(), conditional()).prop_map(
            |((key, _), id, ack, conditional)| Request::Change { key, id, ack, conditional }
        ),
        (cursor(), proptest::option::of(cursor()), filter(), any::<u32>()).prop_map(
            |(start, end, filter, max_bytes)| {
                Request::Page(PageRequest { start, end, filter, max_bytes })
            }
        ),
        (any::<u16>(), vec((any::<Option<u16>>(), any::<u64>()), 0..9)).prop_map(
            |(node, marks)| {
                let mark = |(partition, since)| Mark { partition, since };
                Request::Missed { node: NodeId(node), marks: marks.into_iter().map(mark).collect() }
            }
        ),
        compare_request().prop_map(Request::Compare),
        vec(damage(), 0..5).prop_map(Request::Discard),
        vote_request().prop_map(Request::Council),
        Just(Request::Moves),
        Just(Request::ClusterId),
        Just(Request::Ping),
        (any::<u16>(), 1..u64::MAX).prop_map(|(node, number)| Request::KnowsDisk {
            node: NodeId(node),
            incarnation: Incarnation(number),
        }),
    ]
}

fn round() -> impl Strategy<Value = RoundId> {
    (any::<u64>(), any::<u16>()).prop_map(|(time, node)| RoundId { time, node: NodeId(node) })
}

fn step() -> impl Strategy<Value = RoundStep> {
    prop_oneof![
        Just(RoundStep::Ask),
        Just(RoundStep::Seal),
        Just(RoundStep::Ready),
        any::<(u64, bool)>()
            .prop_map(|(floor, is_uniform)| RoundStep::Commit { floor, is_uniform }),
    ]
}

fn round_state() -> impl Strategy<Value = RoundState> {
    ((round(), round(), round()), any::<[u64; 4]>(), any::<[bool; 2]>()).prop_map(
        |((seal, ready, proven), [life, floor, made, promised], [is_uniform, is_active])| {
            let proof = Proof { seal, ready, proven, floor, is_uniform, made };
            RoundState { life: BootId(life), proof, promised, is_active }
        },
    )
}

fn tag() -> impl Strategy<Value = Tag> {
    (any::<u64>(), any::<u32>(), any::<Option<(u32, u64)>>())
        .prop_map(|(time, origin, last)| Tag { version: Version { time, origin }, last })
}

fn conditional() -> impl Strategy<Value = Conditional> {
    let condition = prop_oneof![
        Just(Condition::Any),
        Just(Condition::Exists),
        Just(Condition::Absent),
        vec(tag(), 0..5).prop_map(Condition::OneOf),
    ];
    let change = prop_oneof![
        vec(any::<u8>(), 0..99).prop_map(|value| Change::Put(value.into())),
        Just(Change::Delete),
        any::<i64>().prop_map(Change::Add),
    ];
    (condition, change, expiry(), expiry()).prop_map(|(condition, change, expiry_ms, digest)| {
        let expiry_ms = if change == Change::Delete { 0 } else { expiry_ms };
        Conditional { condition, change, expiry_ms, digest }
    })
}

/// A value's expiry; 0 = none.
fn expiry() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), any::<u64>()]
}

fn any_op_lookup() -> impl Strategy<Value = OpLookup> {
    prop_oneof![
        Just(OpLookup::Never),
        Just(OpLookup::Forgotten),
        Just(OpLookup::Reused),
        any_done().prop_map(|done| OpLookup::Chosen { done }),
        (vec(any::<u64>(), 0..6), any_done()).prop_map(|(ballots, done)| OpLookup::Stored {
            ballots: ballots.into_iter().collect(),
            done
        }),
    ]
}

fn any_done() -> impl Strategy<Value = Done> {
    prop_oneof![
        (tag(), any::<Option<i64>>(), expiry(), expiry()).prop_map(
            |(tag, result, expiry_ms, fence)| { Done::Changed { tag, result, expiry_ms, fence } }
        ),
        proptest::option::of(tag()).prop_map(|current| Done::Unmet { current }),
        Just(Done::Impossible(Impossible::NotANumber)),
        Just(Done::Impossible(Impossible::Overflow)),
        Just(Done::Forgotten),
        Just(Done::Reused),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        (entry(), any::<bool>())
            .prop_map(|((_, record), authoritative)| Reply::Found { record, authoritative }),
        (entry(), any::<bool>()).prop_map(|((_, record), authoritative)| Reply::Long {
            outline: record.outline(),
            authoritative
        }),
        any::<bool>().prop_map(|authoritative| Reply::Absent { authoritative }),
        Just(Reply::Stored),
        any::<u64>().prop_map(|time| Reply::Newer { time }),
        any::<u64>().prop_map(|promise| Reply::BallotRefused { promise }),
        any::<u64>().prop_map(|epoch| Reply::Superseded { epoch }),
        (any_done(), any::<u8>()).prop_map(|(done, by)| Reply::Done { by: ReplicaSet(by), done }),
        any_op_lookup().prop_map(Reply::Recalled),
        Just(Reply::Ahead),
        Just(Reply::Busy),
        Just(Reply::NoSpace),
        Just(Reply::Failed),
        Just(Reply::TopologyMismatch),
        (vec(entry(), 0..5), proptest::option::of(cursor()), any::<bool>()).prop_map(
            |(items, next, authoritative)| Reply::Page(Page { items, next, authoritative })
        ),
        any_compared().prop_map(Reply::Compared),
        vote_reply().prop_map(Reply::Council),
        moves_state().prop_map(Reply::Moves),
        any::<u64>().prop_map(|id| Reply::ClusterId(ClusterId::of_number(id))),
        round_state().prop_map(Reply::Round),
        Just(Reply::Pong),
    ]
}

fn moves_state() -> impl Strategy<Value = MovesState> {
    let waits = (any::<u16>(), 1..u64::MAX)
        .prop_map(|(source, until)| Waits { source: NodeId(source), until });
    let taken = (any::<bool>(), any::<(u16, u16)>(), any::<u64>(), any::<u64>());
    (any::<u64>(), taken, proptest::option::of(waits)).prop_map(
        |(epoch, (has_all, sources, records, bytes), waits)| MovesState {
            epoch,
            has_all,
            sources,
            records,
            bytes,
            waits,
        },
    )
}

fn layout(epoch: u64) -> Arc<Layout> {
    let member = |name: &str| Member { name: name.to_owned(), zone: "z".to_owned(), weight: 2 };
    let topology = Topology::new(vec![member("a"), member("b")], 3).unwrap();
    let layout = Layout::first(&topology, |node| format!("http://n{}", node.0));
    Arc::new(Layout { epoch, ..layout })
}

fn vote_request() -> impl Strategy<Value = VoteRequest> {
    (0..4, any::<u64>(), any::<u64>()).prop_map(|(step, ballot, epoch)| match step {
        0 => VoteRequest::Ask,
        1 => VoteRequest::Prepare { base: layout(epoch), ballot },
        2 => VoteRequest::Accept { ballot, layout: layout(epoch) },
        _ => VoteRequest::Decided(layout(epoch)),
    })
}

fn vote_reply() -> impl Strategy<Value = VoteReply> {
    (0..7, any::<u64>(), any::<u64>()).prop_map(|(what, ballot, epoch)| match what {
        0 => VoteReply::Promise(None),
        1 => VoteReply::Promise(Some((ballot, layout(epoch)))),
        2 => VoteReply::Accepted,
        3 => VoteReply::Learned,
        4 => VoteReply::Outbid(ballot),
        5 => VoteReply::Known(layout(epoch)),
        _ => VoteReply::NoVote,
    })
}

fn damage() -> impl Strategy<Value = Damage> {
    (cursor(), proptest::option::of(cursor())).prop_map(|(first, last)| Damage { first, last })
}

fn compare_request() -> impl Strategy<Value = CompareRequest> {
    let buckets = proptest::collection::btree_set(any::<u16>(), 0..5);
    let listed = (buckets, any::<u32>()).prop_map(|(buckets, max_bytes)| Detail::Outlines {
        buckets: buckets.into_iter().collect(),
        max_bytes,
    });
    let detail = prop_oneof![Just(Detail::Sums), listed];
    (cursor(), proptest::option::of(cursor()), any::<[u64; 3]>(), round(), detail).prop_map(
        |(start, end, [since, until, watermark], round, detail)| CompareRequest {
            start,
            end,
            since,
            until,
            round,
            watermark,
            detail,
        },
    )
}

fn any_compared() -> impl Strategy<Value = Compared> {
    let sum = any::<(u16, u8, u8, u128)>().prop_map(|(bucket, place, copies, sum)| Sum {
        bucket,
        place,
        copies,
        sum,
    });
    let outlines = vec(entry(), 0..5).prop_map(|entries| {
        let outlines: std::collections::BTreeMap<Bytes, _> =
            entries.into_iter().map(|(key, record)| (key, record.outline())).collect();
        outlines.into_iter().collect::<Vec<_>>()
    });
    let counts = any::<(u64, u64)>();
    let next = proptest::option::of(cursor());
    (vec(sum, 0..5), outlines, vec(damage(), 0..3), counts, next).prop_map(
        |(sums, outlines, damaged, (records, bytes_read), next)| Compared {
            sums,
            outlines,
            damaged,
            records,
            bytes_read,
            next,
        },
    )
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![Just(Class::Client), Just(Class::Hint), Just(Class::Repair), Just(Class::Stream)]
}

fn message() -> impl Strategy<Value = Message> {
    let request = (any::<u32>(), class(), request())
        .prop_map(|(remaining_ms, class, request)| Body::Request { remaining_ms, class, request });
    let body = prop_oneof![request, reply().prop_map(Body::Reply)];
    (any::<u64>(), body).prop_map(|(id, body)| Message { id, body })
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        8 => message().prop_map(Item::Message),
        1 => (any::<bool>(), vec(any::<u8>(), 1..99))
            .prop_map(|(last, bytes)| Item::Piece { last, bytes: bytes.into() }),
        1 => any::<u32>().prop_map(Item::Credit),
        1 => any::<u64>().prop_map(|token| Item::Ping { token }),
        1 => any::<(u64, u64)>().prop_map(|(token, wall)| Item::Pong { token, wall }),
        1 => Just(Item::Goodbye),
    ]
}

fn put(writer: &mut Writer, item: &Item) {
    match item {
        Item::Message(message) => writer.message(message),
        Item::Piece { last, bytes } => writer.piece(bytes, *last),
        Item::Credit(bytes) => writer.credit(*bytes),
        Item::Ping { token } => writer.ping(*token),
        Item::Pong { token, wall } => writer.pong(*token, *wall),
        Item::Goodbye => writer.goodbye(),
    }
}

fn encode(items: &[Item]) -> Vec<u8> {
    let mut writer = Writer::default();
    items.iter().for_each(|item| put(&mut writer, item));
    writer.seal(SENDER);
    writer.closed_envelopes().to_vec()
}

/// Returns all items that a receiver decodes, or the error for which it closes the connection.
fn decode(mut input: &[u8]) -> Result<Vec<Item>, Malformed> {
    let mut items = Vec::new();
    while let Some(length) = envelope_len(input)? {
        let Some((envelope, rest)) = input.split_at_checked(length) else { break };
        let mut envelope = Envelope::open(Bytes::copy_from_slice(envelope))?;
        while let Some(item) = envelope.next_item()? {
            items.push(item);
        }
        input = rest;
    }
    Ok(items)
}

/// Encodes items like [`encode`], then lets `forge` change the bytes and corrects the checksum.
fn encode_forged(items: &[Item], forge: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = encode(items);
    forge(&mut bytes);
    let check = xxhash_rust::xxh3::xxh3_64(&bytes[8..]);
    bytes[..8].copy_from_slice(&check.to_le_bytes());
    bytes
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(items in vec(item(), 1..20)) {
        prop_assert_eq!(decode(&encode(&items)).unwrap(), items);
    }

    #[test]
    fn message_len_matches_the_encoding(message in message()) {
        let mut writer = Writer::default();
        writer.message(&message);
        prop_assert_eq!(writer.len(), ENVELOPE_HEAD + message_len(&message));
    }

    #[test]
    fn a_flipped_bit_is_noticed(items in vec(item(), 1..5), at in any::<prop::sample::Index>()) {
        let mut bytes = encode(&items);
        let bit = at.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        // If the bit makes the length greater, the decoder waits for more bytes. Any other bit is
        // an error.
        prop_assert!(decode(&bytes).map_or(true, |items| items.is_empty()));
    }

    #[test]
    fn random_bytes_under_a_right_check_do_no_harm(
        items in vec(item(), 1..5),
        at in any::<prop::sample::Index>(),
        garbage in vec(any::<u8>(), 1..30),
    ) {
        let forged = encode_forged(&items, |bytes| {
            let at = 12 + at.index(bytes.len() - 12);
            for (byte, new) in bytes[at..].iter_mut().zip(&garbage) {
                *byte = *new;
            }
        });
        // Forged bytes are refused, or decode to items whose encoding is the same bytes.
        if let Ok(items) = decode(&forged) {
            let again = encode(&items);
            prop_assert_eq!(&again[ENVELOPE_HEAD..], &forged[ENVELOPE_HEAD..]);
        }
    }

    #[test]
    fn random_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn an_envelope_is_taken_only_when_it_is_complete(items in vec(item(), 1..5)) {
        let bytes = encode(&items);
        for end in 0..bytes.len() {
            prop_assert_eq!(decode(&bytes[..end]).unwrap(), []);
        }
    }
}

fn stored_item(id: u64) -> Item {
    Item::Message(Message { id, body: Body::Reply(Reply::Stored) })
}

#[test]
fn malformed_items_are_refused() {
    let item = ENVELOPE_HEAD;
    let (key, most) = (Bytes::from_static(b"k"), 7);
    let body = Body::Request {
        remaining_ms: 1,
        class: Class::Client,
        request: Request::ReadQuorum { key, most },
    };
    let bounded = Item::Message(Message { id: 1, body });
    let cases: [(&str, Vec<u8>); 13] = [
        ("check", {
            let mut bytes = encode(&[stored_item(1)]);
            bytes[0] ^= 1;
            bytes
        }),
        ("another length", encode_forged(&[stored_item(1)], |bytes| bytes.truncate(item + 4))),
        ("too early", encode_forged(&[stored_item(1)], |bytes| bytes[12] = 2)),
        (
            "after the last item",
            encode_forged(&[stored_item(1), stored_item(2)], |bytes| bytes[12] = 1),
        ),
        (
            "empty envelope",
            encode_forged(&[stored_item(1)], |bytes| {
                bytes.truncate(ENVELOPE_HEAD);
                bytes[8..16].fill(0);
            }),
        ),
        ("reserved byte", encode_forged(&[stored_item(1)], |bytes| bytes[item + 3] = 1)),
        ("unknown flag", encode_forged(&[stored_item(1)], |bytes| bytes[item + 1] = 0x80)),
        ("unknown type", encode_forged(&[stored_item(1)], |bytes| bytes[item] = 0xff)),
        ("unknown type", encode_forged(&[stored_item(1)], |bytes| bytes[item] = 0x45)),
        ("a class or a time", encode_forged(&[stored_item(1)], |bytes| bytes[item + 2] = 1)),
        (
            "longer than what holds it",
            encode_forged(&[stored_item(1)], |bytes| bytes[item + 4] = 1),
        ),
        ("no limit", {
            let most = item + ITEM_HEAD + KEY_LEN + 1;
            encode_forged(&[bounded], |bytes| bytes[most..].fill(0xff))
        }),
        ("too long", [0xff; ENVELOPE_HEAD].to_vec()),
    ];
    for (said, bytes) in cases {
        let error = match said {
            "another length" => {
                Envelope::open(Bytes::from(bytes)).expect_err("it is cut off").to_string()
            }
            _ => decode(&bytes).unwrap_err().to_string(),
        };
        assert!(error.contains(said), "{said}: {error}");
    }
}

#[test]
fn key_lengths_are_limited() {
    for (length, good) in [(0, false), (1, true), (KEY_MAX, true), (KEY_MAX + 1, false)] {
        let request = Request::Read { key: vec![b'k'; length].into(), most: 1 };
        let body = Body::Request { remaining_ms: 1, class: Class::Client, request };
        let decoded = decode(&encode(&[Item::Message(Message { id: 1, body })]));
        assert_eq!(decoded.is_ok(), good, "{length}");
    }
}

#[test]
fn a_number_of_entries_takes_no_memory() {
    let reply = Reply::Page(Page { items: Vec::new(), next: None, authoritative: true });
    let page = Item::Message(Message { id: 1, body: Body::Reply(reply) });
    let many = encode_forged(&[page], |bytes| bytes[ENVELOPE_HEAD + ITEM_HEAD..][..4].fill(0xff));
    assert_eq!(decode(&many), Err(Malformed("more entries than there are bytes")));
}

fn long(value: usize) -> Message {
    let request = Request::Write { key: Bytes::from_static(b"k"), record: record(&vec![9; value]) };
    Message { id: 5, body: Body::Request { remaining_ms: 9, class: Class::Client, request } }
}

/// Returns the pieces of `message`, with unlimited credit.
fn pieces(message: &Message) -> Vec<(Bytes, bool)> {
    let mut cut = OutgoingPieces::new(message);
    let mut writer = Writer::default();
    while cut.next(usize::MAX, &mut writer) > 0 {
        writer.seal(SENDER);
    }
    let piece = |item| match item {
        Item::Piece { last, bytes } => (bytes, last),
        other => panic!("{other:?} is no piece"),
    };
    decode(writer.closed_envelopes()).unwrap().into_iter().map(piece).collect()
}

#[test]
fn a_long_message_arrives_whole() {
    for value in [0, 1, PIECE_MAX - 30, PIECE_MAX, 3 * PIECE_MAX + 17, 8 << 20] {
        let message = long(value);
        let mut assembly = Assembly::default();
        let mut arrived = None;
        for (bytes, last) in pieces(&message) {
            assert_eq!(arrived, None);
            arrived = assembly.add(&bytes, last).unwrap();
        }
        let arrived = message_of(arrived.unwrap());
        assert_eq!(arrived, Ok(message));
        assert_eq!(assembly.buffered_bytes(), 0);
    }
}

#[test]
fn pieces_wait_for_credit() {
    let mut cut = OutgoingPieces::new(&long(PIECE_MAX));
    let mut writer = Writer::default();
    assert_eq!(cut.next(PIECE_MAX - 1, &mut writer), 0);
    assert!(writer.is_empty());
    assert_eq!(cut.next(PIECE_MAX, &mut writer), PIECE_MAX);
    let left = cut.unsent_bytes();
    assert_eq!(cut.next(left, &mut writer), left, "a last piece needs no more than it has");
    assert_eq!(cut.next(usize::MAX, &mut writer), 0);
}

#[test]
fn pieces_that_make_no_message_are_refused() {
    let [(first, _), (second, _)] = pieces(&long(PIECE_MAX)).try_into().unwrap();
    let add = |pieces: &[(&[u8], bool)]| {
        let mut assembly = Assembly::default();
        let bytes = pieces.iter().try_fold(None, |_, (bytes, last)| assembly.add(bytes, *last))?;
        bytes.map(message_of).transpose()
    };
    assert!(add(&[(&first, false), (&second, true)]).unwrap().is_some());
    assert!(add(&[(&first, true)]).is_err(), "too short");
    assert!(add(&[(&first, false), (&first, false)]).is_err(), "too long");
    assert!(add(&[(&first[..7], false)]).is_err(), "no head");
    assert!(add(&[(&[0xff; 64], false)]).is_err(), "too long, as announced");
}

#[test]
fn a_long_message_in_one_piece_is_refused() {
    let bytes = encode(&[Item::Message(long(WHOLE_MAX))]);
    assert_eq!(decode(&bytes), Err(Malformed("a long message in one piece")));
}

#[test]
fn sealed_envelopes_leave_in_any_portions() {
    let mut writer = Writer::default();
    writer.message(&long(10));
    assert!(writer.seal(SENDER) && !writer.seal(SENDER));
    let first = writer.closed_envelopes().to_vec();
    writer.message(&long(20));
    assert_eq!(writer.closed_envelopes(), first, "what is open stays");
    writer.drop_sent(3);
    assert_eq!(writer.closed_envelopes(), &first[3..]);
    writer.seal(SENDER);
    writer.drop_sent(first.len() - 3);
    assert_eq!(decode(writer.closed_envelopes()).unwrap(), [Item::Message(long(20))]);
}

/// A record whose bytes are readable as text in the fixture; its checksum is wrong.
fn short() -> Record {
    Record::parse(Bytes::from_static(b"\0\0\0ctime....origvaluecheck...")).unwrap()
}

/// Returns one item of each kind, in the order of `docs/formats/peer-protocol.md`.
fn one_of_each() -> Vec<(&'static str, Item)> {
    let key = || Bytes::from_static(b"key");
    let page = |filter, end| {
        let (start, max_bytes) = (Bytes::from_static(b"from"), 0x0a0b_0c0d);
        Request::Page(PageRequest { start, end, filter, max_bytes })
    };
    let nodes = vec![NodeId(2), NodeId(0x0102)];
    let chosen = Filter::Chosen { ack: 2, from: 3, preference: nodes };
    let held_by = Filter::HeldBy {
        node: NodeId(7),
        since: 0x0908,
        promise: 0x0a0b,
        partitions: vec![1, 0x0102],
    };
    let marks = vec![
        Mark { partition: None, since: 0x0908 },
        Mark { partition: Some(0x0102), since: 0x0a0b },
    ];
    let ask = |class, request| {
        let body = Body::Request { remaining_ms: 0x01f4, class, request };
        Item::Message(Message { id: 0x0807_0605_0403_0201, body })
    };
    let reply = |reply| Item::Message(Message { id: 9, body: Body::Reply(reply) });
    let prepare = Request::Prepare { key: key(), ballot: 7, most: 0x4000, watermark: 5 };
    let knows_disk = Request::KnowsDisk { node: NodeId(7), incarnation: Incarnation(0x0102) };
    let long = |authoritative| Reply::Long { outline: short().outline(), authoritative };
    let rows = |next| Page { items: vec![(key(), short())], next, authoritative: true };
    let mut items = vec![
        ("read", ask(Class::Client, Request::Read { key: key(), most: 0x4000 })),
        ("read quorum", ask(Class::Stream, Request::ReadQuorum { key: key(), most: 0x4000 })),
        ("read quorum 9", ask(Class::Stream, Request::ReadQuorum { key: key(), most: u32::MAX })),
        ("write", ask(Class::Repair, Request::Write { key: key(), record: short() })),
        ("writes", ask(Class::Hint, Request::Writes { items: vec![(key(), short())] })),
        ("page chosen", ask(Class::Stream, page(chosen, None))),
        ("page held by", ask(Class::Stream, page(held_by, Some(key())))),
        ("missed", ask(Class::Hint, Request::Missed { node: NodeId(7), marks })),
        ("ping", ask(Class::Client, Request::Ping)),
        ("knows disk", ask(Class::Client, knows_disk)),
        ("accept next", ask(Class::Client, Request::AcceptNext { key: key(), record: short() })),
        ("prepare", ask(Class::Client, prepare)),
        ("found", reply(Reply::Found { record: short(), authoritative: false })),
        ("found authoritative", reply(Reply::Found { record: short(), authoritative: true })),
        ("absent", reply(Reply::Absent { authoritative: false })),
        ("absent authoritative", reply(Reply::Absent { authoritative: true })),
        ("stored", reply(Reply::Stored)),
        ("newer", reply(Reply::Newer { time: 7 })),
        ("ahead", reply(Reply::Ahead)),
        ("busy", reply(Reply::Busy)),
        ("no space", reply(Reply::NoSpace)),
        ("failed", reply(Reply::Failed)),
        ("wrong epoch", reply(Reply::TopologyMismatch)),
        ("page", reply(Reply::Page(rows(None)))),
        ("page with more", reply(Reply::Page(rows(Some(key()))))),
        ("pong", reply(Reply::Pong)),
        ("long", reply(long(false))),
        ("long authoritative", reply(long(true))),
        ("outbid", reply(Reply::BallotRefused { promise: 7 })),
        ("superseded", reply(Reply::Superseded { epoch: 7 })),
        ("piece", Item::Piece { last: false, bytes: key() }),
        ("last piece", Item::Piece { last: true, bytes: key() }),
        ("credit", Item::Credit(0x0102_0304)),
        ("link ping", Item::Ping { token: 5 }),
        ("link pong", Item::Pong { token: 5, wall: 0x0102 }),
        ("goodbye", Item::Goodbye),
    ];
    items.extend(conditional_writes());
    items.extend(votes());
    items.extend(comparisons());
    items.extend(moves());
    items
}

fn moves() -> Vec<(&'static str, Item)> {
    let known = vec![1, 0x0a0b];
    let filter = Filter::Moved { node: NodeId(7), first: true, seed: 0x0908, known };
    let (start, end) = (Bytes::from_static(b"from"), Some(Bytes::from_static(b"key")));
    let page = |filter, end| {
        Request::Page(PageRequest { start: start.clone(), end, filter, max_bytes: 0x0a0b_0c0d })
    };
    let remembered = |lost| Filter::Remembered { node: NodeId(7), lost };
    let ask = |class, request| {
        let body = Body::Request { remaining_ms: 0x01f4, class, request };
        Item::Message(Message { id: 9, body })
    };
    let waits = Some(Waits { source: NodeId(0x090a), until: 0x0b0c_0d0e });
    let state = MovesState {
        epoch: 3,
        has_all: true,
        sources: (2, 4),
        records: 0x0506,
        bytes: 0x0708,
        waits,
    };
    let told = Item::Message(Message { id: 9, body: Body::Reply(Reply::Moves(state)) });
    let belongs = Body::Reply(Reply::ClusterId(ClusterId::of_number(0x0102_0304)));
    let belongs = Item::Message(Message { id: 9, body: belongs });
    vec![
        ("page moved", ask(Class::Stream, page(filter, end))),
        ("page remembered", ask(Class::Stream, page(remembered(false), None))),
        ("page remembered, lost", ask(Class::Stream, page(remembered(true), None))),
        ("moves", ask(Class::Client, Request::Moves)),
        ("moves state", told),
        ("cluster id", ask(Class::Client, Request::ClusterId)),
        ("cluster id is", belongs),
    ]
}

/// Returns one item of each kind for comparisons and repair rounds.
fn comparisons() -> Vec<(&'static str, Item)> {
    let key = || Bytes::from_static(b"key");
    let outline = short().outline();
    let compare = |end, detail| {
        let (start, since, until) = (Bytes::from_static(b"from"), 0x0908, 0x0b0a);
        let (round, watermark) = (RoundId { time: 0x0d0c, node: NodeId(0x0102) }, 0x0f0e);
        Request::Compare(CompareRequest { start, end, since, until, round, watermark, detail })
    };
    let listed = Detail::Outlines { buckets: vec![1, 0x0102], max_bytes: 0x0a0b_0c0d };
    let damaged = vec![
        Damage { first: key(), last: None },
        Damage { first: key(), last: Some(Bytes::from_static(b"last")) },
    ];
    let compared = Compared {
        sums: vec![Sum { bucket: 0x0102, place: 1, copies: 3, sum: 0x0706_0504 }],
        outlines: vec![(key(), outline)],
        damaged: damaged.clone(),
        records: 0x0908,
        bytes_read: 0x0b0a,
        next: Some(key()),
    };
    let ask = |class, request| {
        let body = Body::Request { remaining_ms: 0x01f4, class, request };
        Item::Message(Message { id: 0x0807_0605_0403_0201, body })
    };
    let body = Body::Reply(Reply::Compared(compared));
    let round = |time| RoundId { time, node: NodeId(0x0102) };
    let (seal, ready, proven) = (round(0x0d0c), round(0x0d0b), round(0x0d0a));
    let proof = Proof { seal, ready, proven, floor: 0x0706, is_uniform: true, made: 0x0504 };
    let state = RoundState { life: BootId(0x0908), proof, promised: 0x0b0a, is_active: true };
    let record = short();
    let step = |step| ask(Class::Repair, Request::Round { round: round(0x0d0c), step });
    let bring = Request::Bring { round: round(0x0d0c), key: key(), record };
    vec![
        ("round asked", step(RoundStep::Ask)),
        ("round sealed", step(RoundStep::Seal)),
        ("round ready", step(RoundStep::Ready)),
        ("round committed", step(RoundStep::Commit { floor: 0x0706, is_uniform: true })),
        ("bring", ask(Class::Repair, bring)),
        ("round state", Item::Message(Message { id: 9, body: Body::Reply(Reply::Round(state)) })),
        ("compare", ask(Class::Stream, compare(None, Detail::Sums))),
        ("compare listed", ask(Class::Stream, compare(Some(key()), listed))),
        ("discard", ask(Class::Repair, Request::Discard(damaged))),
        ("compared", Item::Message(Message { id: 9, body })),
    ]
}

/// Returns one item of each kind for votes on layouts.
fn votes() -> Vec<(&'static str, Item)> {
    let ask = |request| {
        let (remaining_ms, class) = (0x01f4, Class::Client);
        let body = Body::Request { remaining_ms, class, request: Request::Council(request) };
        Item::Message(Message { id: 0x0807_0605_0403_0201, body })
    };
    let reply = |reply| Item::Message(Message { id: 9, body: Body::Reply(Reply::Council(reply)) });
    vec![
        ("council asked", ask(VoteRequest::Ask)),
        ("council decided", ask(VoteRequest::Decided(layout(1)))),
        ("council known", reply(VoteReply::Known(layout(1)))),
        ("council outbid", reply(VoteReply::Outbid(0x0506))),
    ]
}

/// Pins the bytes of every item, and the head of an envelope with all items. If this test fails,
/// the protocol needs a new version.
#[test]
fn the_bytes_are_those_of_the_document() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let items = one_of_each();
    let mut lines = String::new();
    for (name, item) in &items {
        let bytes = encode(std::slice::from_ref(item));
        let (head, body) = bytes[ENVELOPE_HEAD..].split_at(ITEM_HEAD);
        let (body, gap) = (hex(body), if body.is_empty() { "" } else { " " });
        lines += &format!("{name}: {}{gap}{body}\n", hex(head));
    }
    let all = encode(&items.into_iter().map(|(_, item)| item).collect::<Vec<_>>());
    lines += &format!("envelope: {}\n", hex(&all[..ENVELOPE_HEAD]));
    assert_eq!(lines, include_str!("../fixture.txt"), "got:\n{lines}");
}
