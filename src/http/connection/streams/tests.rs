//! Tests of the limits on slow streams.

use super::*;

/// Returns a connection, and `count` streams of it whose answers wait for the client.
fn streams(count: usize) -> (Rc<Cell<u32>>, Rc<ConnectionState>, Vec<Rc<ConnectionState>>) {
    let now = Rc::new(Cell::new(u32::MAX - 20));
    let connection = ConnectionState::new(Rc::clone(&now), ConnectionSlot::Client);
    connection.mark_http2();
    connection.request_begins();
    let begin = |_| {
        let parent = Parent::new(&connection, StreamSlot::Own);
        parent.owed.set(1);
        parent.waiting_begins();
        ConnectionState::made(Rc::clone(&now), ConnectionSlot::Client, Some(parent))
    };
    let streams = (0..count).map(begin).collect();
    (now, connection, streams)
}

fn pass(now: &Cell<u32>, ticks: u32) {
    now.set(now.get().wrapping_add(ticks));
}

fn swept(streams: &[Rc<ConnectionState>]) -> usize {
    streams.iter().filter(|stream| stream.sweep()).count()
}

#[test]
fn streams_wait_for_each_other_while_their_connection_moves() {
    let (now, connection, streams) = streams(10);
    let mut passed = 0;
    while passed + WRITE_TICKS < STILL_TICKS {
        pass(&now, WRITE_TICKS - 1);
        passed += WRITE_TICKS - 1;
        connection.saw_write(WRITE_WINDOW_BYTES as usize);
        streams[0].parent.as_ref().unwrap().note_activity();
        assert_eq!(swept(&streams), 0);
    }
    pass(&now, WRITE_TICKS - 1);
    connection.saw_write(WRITE_WINDOW_BYTES as usize);
    assert_eq!(swept(&streams), 9, "those of which nothing was taken for far too long");
    assert!(!streams[0].is_given_up() && !connection.is_given_up());
}

#[test]
fn streams_are_slow_if_hardly_anything_moves() {
    let (now, connection, streams) = streams(3);
    connection.saw_write(WRITE_WINDOW_BYTES as usize - 1);
    pass(&now, WRITE_TICKS - 1);
    assert_eq!(swept(&streams), 0);
    pass(&now, 1);
    assert_eq!(swept(&streams), 3);
    assert_eq!(swept(&streams), 0, "given up once");
    assert!(!connection.is_given_up());
}

#[test]
fn while_the_socket_is_full_the_connection_is_judged() {
    let (now, connection, streams) = streams(3);
    connection.saw_full_socket(|| None);
    for _ in 0..WRITE_TICKS - 1 {
        pass(&now, 1);
        assert!(swept(&streams) == 0 && !connection.sweep());
    }
    assert!(streams.iter().all(|stream| stream.parent.as_ref().unwrap().is_stuck()));
    connection.saw_write(1);
    pass(&now, WRITE_TICKS - 1);
    assert_eq!(swept(&streams), 0, "a window begins when the socket takes something");
    connection.saw_full_socket(|| None);
    pass(&now, WRITE_TICKS);
    assert!(connection.sweep() && connection.broken.get());
    assert_eq!(swept(&streams), 0);
}

#[test]
fn an_answer_is_unread_by_the_connections_clock() {
    let (now, connection, streams) = streams(2);
    streams[0].note_long_answer(true);
    let unread = |now: &Cell<u32>, ticks| {
        pass(now, ticks);
        [streams[0].is_unread(), streams[1].is_unread()]
    };
    assert_eq!(unread(&now, UNREAD_TICKS - 1), [false, false]);
    assert_eq!(unread(&now, 1), [true, false], "only a long one has memory of its own");
    connection.saw_full_socket(|| None);
    assert_eq!(unread(&now, UNREAD_TICKS - 1), [false, false]);
    assert_eq!(unread(&now, 1), [true, false]);
}

#[test]
fn bodies_share_their_connections_pace_too() {
    let (now, connection, streams) = streams(2);
    for stream in &streams {
        stream.parent.as_ref().unwrap().owed.set(0);
        stream.request_begins();
        stream.body_begins();
    }
    for _ in 0..3 {
        pass(&now, BODY_TICKS - 1);
        streams[0].saw_piece(BODY_WINDOW_BYTES as usize);
        assert_eq!(swept(&streams), 0);
    }
    assert_eq!(connection.brought.get(), 3 * u64::from(BODY_WINDOW_BYTES));
    pass(&now, BODY_TICKS);
    assert_eq!(swept(&streams), 2);
}

#[test]
fn a_client_that_requests_nothing_is_flooding() {
    const MOST: u64 = 1000;
    let (_, connection, streams) = streams(1);
    connection.saw_read(&[0; 1000]);
    assert!(!connection.is_flooding(MOST));
    connection.saw_read(&[0; 1]);
    assert!(connection.is_flooding(MOST));
    connection.saw_write(16);
    assert!(!connection.is_flooding(MOST), "it tells what it takes of answers");
    connection.saw_read(&[0; 1]);
    assert!(connection.is_flooding(MOST));
    streams[0].saw_piece(1);
    assert!(!connection.is_flooding(MOST));
}
