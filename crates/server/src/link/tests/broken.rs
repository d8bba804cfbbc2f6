//! Tests of malformed input from a peer.

use protocol::wire::{ENVELOPE_HEAD, Malformed, PIECE_MAX};
use protocol::{Event, Reply};

use super::*;

/// Returns the error of node B when it receives these bytes; `None` = B accepts them.
fn receive_error(bytes: &[u8]) -> Option<Malformed> {
    let [_, mut b] = pair();
    b.driver.free = 0;
    b.take(bytes, 10_000).err()
}

#[test]
fn every_flipped_bit_is_detected() {
    let [mut a, _] = pair();
    assert!(a.push(write(1, 20)));
    assert!(a.push(read(2)));
    let sent_bytes = a.take_written();
    for bit in 0..sent_bytes.len() * 8 {
        let mut broken = sent_bytes.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        let [_, mut b] = pair();
        match b.take(&broken, 10_000) {
            Err(_) => {}
            // The flipped bit makes the envelope claim a greater length, so the connection waits
            // for the rest.
            Ok(came) => assert!(came.is_empty() && (64..96).contains(&bit), "bit {bit}: {came:?}"),
        }
    }
}

#[test]
fn garbage_is_malformed_as_soon_as_it_is_detectable() {
    assert!(receive_error(&[0xff; 12]).is_some(), "an endless envelope");
    assert!(receive_error(&[0; ENVELOPE_HEAD]).is_some(), "an empty one");
    assert!(receive_error(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").is_some());
    let mut word = 1_u64;
    for _ in 0..200 {
        let noise = std::iter::repeat_with(|| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (word >> 33) as u8
        });
        let noise: Vec<u8> = noise.take(300).collect();
        let [_, mut b] = pair();
        assert!(
            b.take(&noise, 7).is_ok_and(|came| came.is_empty()) || receive_error(&noise).is_some()
        );
    }
}

#[test]
fn pieces_beyond_the_credit_are_refused() {
    let [a, mut b] = pair();
    let mut first = vec![0; PIECE_MAX];
    // A write of 16 MB.
    first[0] = 2;
    first[4..8].copy_from_slice(&15_000_000_u32.to_le_bytes());
    b.driver.free = 0;
    let piece = a.seal_envelope(|writer| writer.piece(&first, false));
    for _ in 0..4 {
        assert!(b.take(&piece, 10_000).unwrap().is_empty());
    }
    let receive_error = b.take(&piece, 10_000).unwrap_err();
    assert_eq!(receive_error, Malformed("more fragments than the credit allows"));
}

#[test]
fn more_credit_than_was_used_is_refused() {
    let [a, _] = pair();
    let credit = a.seal_envelope(|writer| writer.credit(1));
    assert_eq!(receive_error(&credit), Some(Malformed("more credit returned than was used")));
}

#[test]
fn a_long_message_of_another_length_than_announced_is_refused() {
    let [a, _] = pair();
    let mut piece = vec![0; 1000];
    piece[0] = 2;
    piece[4..8].copy_from_slice(&500_u32.to_le_bytes());
    let [_, mut b] = pair();
    let too_long = a.seal_envelope(|writer| writer.piece(&piece, false));
    assert!(b.take(&too_long, 10_000).is_err());
    let [_, mut b] = pair();
    piece[4..8].copy_from_slice(&5000_u32.to_le_bytes());
    let too_short = a.seal_envelope(|writer| writer.piece(&piece, true));
    assert!(b.take(&too_short, 10_000).is_err());
}

#[test]
fn requests_and_replies_are_refused_in_the_wrong_direction() {
    let [mut a, mut b] = pair();
    let request = a.seal_envelope(|writer| writer.message(&read(1)));
    let receive_error = a.take(&request, 10_000).unwrap_err();
    assert_eq!(receive_error, Malformed("a request on a connection for replies"));
    let body = Body::Reply(Reply::Stored);
    let reply = b.seal_envelope(|writer| writer.message(&Message { id: 1, body }));
    let receive_error = b.take(&reply, 10_000).unwrap_err();
    assert_eq!(receive_error, Malformed("a reply on a connection for requests"));
}

#[test]
fn a_request_with_another_topology_is_answered_with_a_mismatch() {
    let [mut a, mut b] = pair();
    a.table = Setup { replicas: 2, ..Setup::of(A) }.table(A);
    let sent_bytes = a.seal_envelope(|writer| writer.message(&write(1, 10)));
    assert!(b.events(&sent_bytes, 10_000).is_empty(), "nobody is asked to do it");
    let events = a.events(&b.take_written(), 10_000);
    let [Event::Reply { id: 1, reply: Reply::TopologyMismatch, .. }] = events[..] else { panic!() };
    let mut cut = protocol::wire::OutgoingPieces::new(&write(2, 100_000));
    let sent_bytes = a.seal_envelope(|writer| while cut.next(1 << 20, writer) > 0 {});
    b.connection.take_traffic();
    assert!(b.events(&sent_bytes, 10_000).is_empty(), "nor for a long one");
    assert_eq!(b.connection.take_traffic().messages_sent, 1);
}

#[test]
fn messages_of_an_earlier_process_are_ignored() {
    let [mut a, mut b] = pair();
    assert!(a.push(write(1, 10)));
    let later = Setup { life: BootId(41), ..Setup::of(A) }.table(A);
    let [_, seen_peer] = do_handshake(&later, &b.table, B).map(Result::unwrap);
    b.table.record_handshake(&seen_peer);
    assert!(b.events(&a.take_written(), 10_000).is_empty());
    let why = "a later process with that node's data directory is known";
    assert_eq!(b.connection.close_reason(), Some(why));
}
