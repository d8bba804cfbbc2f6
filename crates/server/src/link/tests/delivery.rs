//! Tests that sent messages arrive once, whole, and within the limits of credit and memory.

use protocol::wire::{ENVELOPE_HEAD, WINDOW};
use protocol::{Event, Reply, Request};

use super::*;

#[test]
fn requests_and_replies_arrive_split_at_every_byte() {
    let [mut a, _] = pair();
    for id in [1, 2] {
        assert!(a.push(read(id)));
    }
    assert!(a.push(write(3, 50)));
    a.connection.goodbye();
    let sent_bytes = a.take_written();
    for at in 0..=sent_bytes.len() {
        let [_, mut b] = pair();
        let mut events = b.events(&sent_bytes[..at], 10_000);
        events.extend(b.events(&sent_bytes[at..], 10_000));
        assert_eq!(ids(&events), [1, 2, 3], "split at {at}");
        let Event::Request { connection: CONNECTION, request, .. } = &events[2] else { panic!() };
        assert_eq!(*request, Request::Write { key: "3".into(), record: record(3, 50) });
        assert!(b.connection.is_leaving());
        assert_eq!(b.connection.take_traffic().messages_received, 3);
    }
}

#[test]
fn a_long_message_arrives_in_steps_of_any_size() {
    let [mut a, _] = pair();
    assert!(a.push(write(1, 150_000)));
    assert!(a.push(read(2)));
    let sent_bytes = a.take_written();
    for step in [1, 7, ENVELOPE_HEAD - 1, ENVELOPE_HEAD, 4096, sent_bytes.len()] {
        let [_, mut b] = pair();
        let events = b.events(&sent_bytes, step);
        assert_eq!(ids(&events), [2, 1], "the short one first, in steps of {step}");
        let Event::Request { request, .. } = &events[1] else { panic!() };
        assert_eq!(*request, Request::Write { key: "1".into(), record: record(1, 150_000) });
    }
}

#[test]
fn no_bytes_are_sent_beyond_the_credit() {
    let mut ends = pair();
    assert!(ends[0].push(write(1, 1 << 20)));
    let first = ends[0].take_written();
    assert!(first.len() > WINDOW - 65_536 && first.len() < WINDOW + 1000, "{}", first.len());
    assert!(ends[0].take_written().is_empty(), "the rest waits for credit");
    assert!(ends[1].events(&first, 10_000).is_empty());
    let [_, events] = exchange_bytes(&mut ends);
    assert_eq!(ids(&events), [1]);
    assert_eq!(ends[0].connection.unsent_bytes(), 0);
}

#[test]
fn a_long_request_waits_for_memory_and_short_ones_overtake_it() {
    let mut ends = pair();
    ends[1].driver.free = 0;
    assert!(ends[0].push(write(1, 900_000)));
    assert!(ends[0].push(read(2)));
    let [_, events] = exchange_bytes(&mut ends);
    assert_eq!(ids(&events), [2]);
    assert!(ends[1].events(&[], 1).is_empty() && ends[1].take_written().is_empty(), "no credit");
    ends[1].driver.free = 1 << 20;
    assert!(ends[1].events(&[], 1).is_empty(), "there is more to come");
    let [_, events] = exchange_bytes(&mut ends);
    assert_eq!(ids(&events), [1]);
}

#[test]
fn a_long_record_without_a_large_enough_reservation_is_discarded() {
    let mut ends = pair();
    let long = Reply::Found { record: record(1, 300_000), authoritative: true };
    for (id, reserved) in [(1, None), (2, Some(200_000)), (3, Some(8 + 300_000))] {
        ends[0].driver.reply_reservation = reserved;
        ends[1].respond(id, long.clone());
        let [events, _] = exchange_bytes(&mut ends);
        let expected = if id == 3 { long.clone() } else { Reply::Busy };
        let [Event::Reply { id: got, reply, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!((*got, reply), (id, &expected));
    }
    let short = Reply::Found { record: record(4, 100), authoritative: true };
    ends[1].respond(4, short.clone());
    let [events, _] = exchange_bytes(&mut ends);
    assert!(matches!(&events[..], [Event::Reply { reply, .. }] if *reply == short));
}

#[test]
fn messages_beyond_the_queue_limit_are_refused() {
    let [mut a, mut b] = pair();
    let taken = (0..1000).take_while(|id| a.push(write(*id, 10_000))).count();
    assert_eq!(taken, (2 << 20) / (10_000 + 37), "all that may wait");
    assert_eq!(ids(&b.events(&a.take_written(), 10_000)).len(), taken);
    assert!(a.push(write(1, 5 << 20)), "one is always taken when none waits");
    assert!(!a.push(read(2)));
}

#[test]
fn a_requester_that_takes_no_replies_gets_busy_and_is_then_closed() {
    let [_, mut b] = pair();
    let mut replies = 0;
    while b.connection.close_reason().is_none() {
        b.respond(replies, Reply::Found { record: record(1, 30_000), authoritative: true });
        assert!(b.connection.unsent_bytes() <= 2 << 20);
        replies += 1;
        assert!(replies == 1 || b.connection.is_paused() == (replies > 0), "it is not read from");
    }
    assert_eq!(b.connection.close_reason(), Some("it takes no replies"));
}

#[test]
fn a_request_that_waited_too_long_is_not_sent() {
    let [mut a, mut b] = pair();
    for id in 0..20 {
        assert!(a.push(write(id, 10_000)));
    }
    a.driver.now.mono += 600_000;
    assert!(a.push(read(20)));
    a.driver.now.mono += 500_000;
    let ids = ids(&b.events(&a.take_written(), 10_000));
    assert!(ids.len() < 15 && ids[..3] == [0, 1, 2], "those that were encoded go: {ids:?}");
    assert_eq!(ids.last(), Some(&20), "somebody waits for that one yet");
}

#[test]
fn a_connection_is_finished_when_all_bytes_are_written() {
    let [_, mut b] = pair();
    b.respond(1, Reply::Stored);
    b.connection.finish();
    assert!(!b.connection.is_finished());
    assert!(!b.take_written().is_empty() && b.connection.is_finished());
}

#[test]
fn clocks_are_compared_with_the_first_ping() {
    let tables = [Setup::of(A).table(A), Setup::of(B).table(B)];
    let [b, a] = do_handshake(&tables[0], &tables[1], B).map(Result::unwrap);
    let mut ends = [End::new(&tables[0], &b), End::new(&tables[1], &a)];
    assert!(ends[0].push(read(1)));
    ends[1].driver.now.wall += 60_000_000;
    let ping = ends[0].take_written();
    assert_eq!(ids(&ends[1].events(&ping, 10_000)), [1]);
    ends[0].driver.now.mono += 300;
    let pong = ends[1].take_written();
    assert!(ends[0].events(&pong, 10_000).is_empty());
    let (table, now) = (&tables[0], ends[0].driver.now);
    assert_eq!(table.observations(B).rtt_micros(), 300);
    assert_eq!(table.skew_micros(B, now), 0, "no link stands");
    assert!(table.link_up(B));
    let skew = table.skew_micros(B, now) - 60_000_000;
    assert!((-150..=300).contains(&skew), "{skew}");
    let late = 60_000_000 - (table.shared.clock.ttl_base_time(now) - now.wall);
    assert!((0..=15_000).contains(&late), "times to live begin where the other clock is: {late}");
    assert!(table.shared.clock.last() < (WALL + 1_000_000) << 12, "it is not taken in");
}

#[test]
fn a_silent_connection_is_closed() {
    let mut ends = pair();
    let now = ends[0].driver.now;
    for _ in 0..5 {
        ends.iter_mut().for_each(|end| end.connection.ping(now, true, 1));
        exchange_bytes(&mut ends);
    }
    assert!(ends.iter().all(|end| end.connection.close_reason().is_none()), "both are heard");
    let rounds = |end: &mut End| {
        let closed = |round: &u32| {
            end.connection.ping(now, true, 1);
            let _ = (round, end.take_written());
            end.connection.close_reason().is_some()
        };
        (1..100).find(closed)
    };
    let [a, b] = &mut ends;
    assert_eq!((rounds(a), rounds(b)), (Some(3), Some(9)), "the dialer, long before the other");
}

#[test]
fn an_idle_connection_pings_in_its_turn_only() {
    let mut ends = pair();
    let now = ends[0].driver.now;
    ends[0].connection.ping(now, true, 4);
    exchange_bytes(&mut ends);
    for _ in 0..3 {
        ends[0].connection.ping(now, false, 4);
        assert!(ends[0].take_written().is_empty());
    }
    assert!(ends[0].push(read(1)));
    ends[0].take_written();
    ends[0].connection.ping(now, false, 4);
    assert!(!ends[0].take_written().is_empty(), "something was asked, and must be answered");
}
