//! Tests of the limits on slow streams.

use super::*;
use crate::http::connection::AnswerMemory;

/// Returns the tick, a connection, and `count` of its streams whose answers wait for the client.
fn streams(count: usize) -> (Rc<Cell<u32>>, Rc<ConnectionState>, Vec<Rc<ConnectionState>>) {
    let now = Rc::new(Cell::new(u32::MAX - 20));
    let connection = ConnectionState::new(Rc::clone(&now), ConnectionSlot::Client);
    connection.mark_http2();
    connection.begin_request();
    let begin = |_| {
        let parent = Parent::new(&connection, StreamSlot::Own);
        parent.owed.set(1);
        parent.begin_wait();
        ConnectionState::with_parent(Rc::clone(&now), ConnectionSlot::Client, Some(parent))
    };
    let streams = (0..count).map(begin).collect();
    (now, connection, streams)
}

fn advance_ticks(now: &Cell<u32>, ticks: u32) {
    now.set(now.get().wrapping_add(ticks));
}

fn count_given_up(streams: &[Rc<ConnectionState>]) -> usize {
    streams.iter().filter(|stream| stream.sweep()).count()
}

#[test]
fn streams_wait_for_each_other_while_their_connection_moves() {
    let (now, connection, streams) = streams(10);
    let mut passed = 0;
    while passed + WRITE_TICKS < NO_PROGRESS_TICKS {
        advance_ticks(&now, WRITE_TICKS - 1);
        passed += WRITE_TICKS - 1;
        connection.record_write(WRITE_WINDOW_BYTES as usize);
        streams[0].parent.as_ref().unwrap().note_activity();
        assert_eq!(count_given_up(&streams), 0);
    }
    advance_ticks(&now, WRITE_TICKS - 1);
    connection.record_write(WRITE_WINDOW_BYTES as usize);
    assert_eq!(count_given_up(&streams), 9, "those of which nothing was taken for far too long");
    assert!(!streams[0].is_given_up() && !connection.is_given_up());
}

#[test]
fn streams_are_given_up_if_hardly_any_bytes_move() {
    let (now, connection, streams) = streams(3);
    connection.record_write(WRITE_WINDOW_BYTES as usize - 1);
    advance_ticks(&now, WRITE_TICKS - 1);
    assert_eq!(count_given_up(&streams), 0);
    advance_ticks(&now, 1);
    assert_eq!(count_given_up(&streams), 3);
    assert_eq!(count_given_up(&streams), 0, "given up once");
    assert!(!connection.is_given_up());
}

#[test]
fn while_the_socket_is_full_only_the_connection_is_given_up() {
    let (now, connection, streams) = streams(3);
    connection.record_blocked_write(|| None);
    for _ in 0..WRITE_TICKS - 1 {
        advance_ticks(&now, 1);
        assert!(count_given_up(&streams) == 0 && !connection.sweep());
    }
    assert!(streams.iter().all(|stream| stream.parent.as_ref().unwrap().is_stuck()));
    connection.record_write(1);
    advance_ticks(&now, WRITE_TICKS - 1);
    assert_eq!(count_given_up(&streams), 0, "a window begins when the socket takes something");
    connection.record_blocked_write(|| None);
    advance_ticks(&now, WRITE_TICKS);
    assert!(connection.sweep() && connection.broken.get());
    assert_eq!(count_given_up(&streams), 0);
}

#[test]
fn a_long_answer_is_unread_after_its_stream_or_connection_was_blocked() {
    let (now, connection, streams) = streams(2);
    streams[0].set_answer_memory(Some(AnswerMemory::Value));
    let unread = |now: &Cell<u32>, ticks| {
        advance_ticks(now, ticks);
        streams.iter().map(|stream| stream.is_unread(AnswerMemory::Value)).collect::<Vec<_>>()
    };
    assert_eq!(unread(&now, UNREAD_TICKS - 1), [false, false]);
    assert_eq!(unread(&now, 1), [true, false], "only a long one has memory of its own");
    connection.record_blocked_write(|| None);
    assert_eq!(unread(&now, UNREAD_TICKS - 1), [false, false]);
    assert_eq!(unread(&now, 1), [true, false]);
}

#[test]
fn a_long_answer_is_unread_if_only_the_other_streams_of_its_connection_move() {
    let (now, connection, streams) = streams(2);
    streams[0].set_answer_memory(Some(AnswerMemory::Value));
    let parent = streams[0].parent.as_ref().unwrap();
    let pass = |bytes| {
        advance_ticks(&now, UNREAD_TICKS - 1);
        connection.record_write(WRITE_WINDOW_BYTES as usize);
        parent.note_buffered(bytes);
        assert_eq!(count_given_up(&streams), 0);
        streams[0].is_unread(AnswerMemory::Value)
    };
    assert!(!pass(WRITE_WINDOW_BYTES as usize));
    assert!(!pass(1));
    assert!(pass(1), "others move, and two bytes of the answer have moved");
    assert!(!pass(WRITE_WINDOW_BYTES as usize), "its client reads again");
}

#[test]
fn only_the_time_in_which_an_answer_waits_for_its_client_makes_it_unread() {
    let (now, _, streams) = streams(1);
    streams[0].set_answer_memory(Some(AnswerMemory::Range));
    let parent = streams[0].parent.as_ref().unwrap();
    let snote_piece_buffered = |read, sent| {
        advance_ticks(&now, read);
        parent.note_piece_waiting();
        advance_ticks(&now, sent);
        parent.note_buffered(1);
        let is_unread = streams[0].is_unread(AnswerMemory::Range);
        parent.note_piece_buffered();
        is_unread
    };
    parent.note_piece_buffered();
    for _ in 0..UNREAD_TICKS - 1 {
        assert!(!snote_piece_buffered(UNREAD_TICKS, 1), "the node reads, and its client waits");
    }
    assert!(snote_piece_buffered(UNREAD_TICKS, 1), "its client has taken a byte in each tick");
    assert!(!streams[0].is_unread(AnswerMemory::Value));
}

#[test]
fn bodies_share_their_connections_pace_too() {
    let (now, connection, streams) = streams(2);
    for stream in &streams {
        stream.parent.as_ref().unwrap().owed.set(0);
        stream.begin_request();
        stream.begin_body();
    }
    for _ in 0..3 {
        advance_ticks(&now, BODY_TICKS - 1);
        streams[0].record_body_piece(BODY_WINDOW_BYTES as usize);
        assert_eq!(count_given_up(&streams), 0);
    }
    assert_eq!(connection.body_bytes.get(), 3 * u64::from(BODY_WINDOW_BYTES));
    advance_ticks(&now, BODY_TICKS);
    assert_eq!(count_given_up(&streams), 2);
}

#[test]
fn a_client_that_requests_nothing_is_flooding() {
    const MOST: u64 = 1000;
    let (_, connection, streams) = streams(1);
    connection.record_read(&[0; 1000]);
    assert!(!connection.is_flooding(MOST));
    connection.record_read(&[0; 1]);
    assert!(connection.is_flooding(MOST));
    connection.record_write(16);
    assert!(!connection.is_flooding(MOST), "it tells what it takes of answers");
    connection.record_read(&[0; 1]);
    assert!(connection.is_flooding(MOST));
    streams[0].record_body_piece(1);
    assert!(!connection.is_flooding(MOST));
}
