use super::*;

fn watch() -> (Rc<Cell<u32>>, Rc<ConnectionState>) {
    let now = Rc::new(Cell::new(u32::MAX - 20));
    (now.clone(), ConnectionState::new(now, ConnectionSlot::Client))
}

fn advance_ticks(now: &Cell<u32>, ticks: u32) {
    now.set(now.get().wrapping_add(ticks));
}

#[test]
fn a_head_is_too_slow_even_if_its_bytes_keep_arriving() {
    let (now, watch) = watch();
    for _ in 0..HEAD_TICKS - 1 {
        advance_ticks(&now, 1);
        watch.record_read(b"x");
        assert!(!watch.sweep());
    }
    advance_ticks(&now, 1);
    assert!(watch.sweep() && watch.is_given_up());
    assert!(!watch.sweep(), "given up once");
}

#[test]
fn an_idle_connection_lives_longer_than_a_slow_head() {
    let (now, watch) = watch();
    watch.begin_request();
    watch.end_request(true);
    advance_ticks(&now, IDLE_TICKS - 1);
    assert!(!watch.sweep());
    watch.record_read(b"x");
    advance_ticks(&now, HEAD_TICKS);
    assert!(watch.sweep());
}

#[test]
fn a_body_below_the_minimum_rate_is_given_up() {
    let (now, watch) = watch();
    watch.begin_request();
    watch.begin_body();
    for _ in 0..3 {
        watch.record_read(&[0; BODY_WINDOW_BYTES as usize]);
        advance_ticks(&now, BODY_TICKS);
        assert!(!watch.sweep());
    }
    watch.record_read(&[0; BODY_WINDOW_BYTES as usize - 1]);
    advance_ticks(&now, BODY_TICKS);
    assert!(watch.sweep());
}

#[test]
fn a_request_that_waits_for_the_store_is_left_alone() {
    let (now, watch) = watch();
    watch.begin_request();
    advance_ticks(&now, 10 * IDLE_TICKS);
    assert!(!watch.sweep());
}

#[test]
fn a_reader_without_progress_is_given_up_and_one_with_progress_is_not() {
    let (now, watch) = watch();
    watch.begin_request();
    watch.end_request(true);
    watch.record_blocked_write(|| None);
    advance_ticks(&now, WRITE_TICKS - 1);
    watch.record_blocked_write(|| None);
    assert!(!watch.sweep());
    watch.record_write(1);
    watch.record_blocked_write(|| None);
    advance_ticks(&now, WRITE_TICKS - 1);
    assert!(!watch.sweep());
    advance_ticks(&now, 1);
    assert!(watch.sweep());
}

#[test]
fn a_reader_is_judged_by_its_acknowledged_bytes() {
    const HELD: u64 = 4 << 20;
    let (now, watch) = watch();
    watch.begin_request();
    watch.end_request(true);
    watch.record_write(HELD as usize);
    let mut held = HELD;
    let mut second = |bytes: u64| {
        let mut given_up = false;
        for _ in 0..QUERY_TICKS {
            advance_ticks(&now, 1);
            given_up |= watch.sweep();
            watch.record_blocked_write(|| Some(held));
        }
        held -= bytes;
        given_up
    };
    for _ in 0..60 {
        assert!(!second(30_000), "30 KB/s are slow but steady");
    }
    for _ in 0..9 {
        assert!(!second(1_000));
    }
    let given_up = (0..13).any(|_| second(1_000));
    assert!(given_up, "1 KB/s is too slow");
    assert!(watch.broken.get(), "and its answer is broken off");
}

#[test]
fn an_idle_connection_is_closed_in_good_order() {
    let (now, watch) = watch();
    watch.begin_request();
    watch.end_request(true);
    advance_ticks(&now, IDLE_TICKS);
    assert!(watch.sweep() && !watch.broken.get());
}

#[test]
fn a_fragment_is_seen_in_the_first_line_only_and_in_pieces_too() {
    let (_, watch) = watch();
    let request = |pieces: &[&str]| {
        pieces.iter().for_each(|piece| watch.record_read(piece.as_bytes()));
        watch.begin_request();
        let seen = watch.take_fragment_flag();
        watch.end_request(true);
        seen
    };
    assert!(request(&["GET /a#b HTTP/1.1\r\n\r\n"]));
    assert!(!request(&["GET /a HTTP/1.1\r\nX: #\r\n\r\n#"]));
    assert!(request(&["\r\n", "GET /a", "#b HTTP/1.1\r\n", "\r\n"]));
    assert!(!request(&["GET /a HTTP/1.1\r\n", "X: #\r\n\r\n"]));
}

#[test]
fn a_connection_with_an_open_request_is_not_idle() {
    let (now, watch) = watch();
    assert_eq!(watch.idle_ticks(), None, "it came just now");
    advance_ticks(&now, SILENT_TICKS);
    assert_eq!(watch.idle_ticks(), Some(SILENT_TICKS));
    watch.record_read(b"GET / HTTP/1.1\r\n");
    assert_eq!(watch.idle_ticks(), None, "it has begun to ask");
    watch.begin_request();
    advance_ticks(&now, EVICTED_TICKS);
    assert_eq!(watch.idle_ticks(), None, "it waits for its answer");
    let open = watch.open();
    watch.end_request(true);
    advance_ticks(&now, EVICTED_TICKS);
    assert_eq!(watch.idle_ticks(), None, "more of it is to come");
    drop(open);
    assert_eq!(watch.idle_ticks(), Some(EVICTED_TICKS));
    watch.record_blocked_write(|| None);
    assert_eq!(watch.idle_ticks(), None, "it is being sent");
}
