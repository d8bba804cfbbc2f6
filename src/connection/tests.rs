use super::*;

fn watch() -> (Rc<Cell<u32>>, Rc<Watch>) {
    let now = Rc::new(Cell::new(u32::MAX - 20));
    (now.clone(), Watch::new(now))
}

fn pass(now: &Cell<u32>, ticks: u32) {
    now.set(now.get().wrapping_add(ticks));
}

#[test]
fn a_head_has_a_deadline_that_bytes_do_not_move() {
    let (now, watch) = watch();
    for _ in 0..HEAD_TICKS - 1 {
        pass(&now, 1);
        watch.saw_read(1);
        assert!(!watch.sweep());
    }
    pass(&now, 1);
    assert!(watch.sweep() && watch.reaped());
    assert!(!watch.sweep(), "given up once");
}

#[test]
fn an_idle_connection_lives_longer_than_a_slow_head() {
    let (now, watch) = watch();
    watch.request_begins();
    watch.request_ends(true);
    pass(&now, IDLE_TICKS - 1);
    assert!(!watch.sweep());
    watch.saw_read(1);
    pass(&now, HEAD_TICKS);
    assert!(watch.sweep());
}

#[test]
fn a_body_must_keep_a_pace() {
    let (now, watch) = watch();
    watch.request_begins();
    watch.body_begins();
    for _ in 0..3 {
        watch.saw_read(BODY_WINDOW_BYTES as usize);
        pass(&now, BODY_TICKS);
        assert!(!watch.sweep());
    }
    watch.saw_read(BODY_WINDOW_BYTES as usize - 1);
    pass(&now, BODY_TICKS);
    assert!(watch.sweep());
}

#[test]
fn a_request_that_waits_for_the_store_is_left_alone() {
    let (now, watch) = watch();
    watch.request_begins();
    pass(&now, 10 * IDLE_TICKS);
    assert!(!watch.sweep());
}

#[test]
fn a_reader_without_progress_is_given_up_and_one_with_progress_is_not() {
    let (now, watch) = watch();
    watch.request_begins();
    watch.request_ends(true);
    watch.saw_full();
    pass(&now, WRITE_TICKS - 1);
    watch.saw_full();
    assert!(!watch.sweep());
    watch.saw_write();
    watch.saw_full();
    pass(&now, WRITE_TICKS - 1);
    assert!(!watch.sweep());
    pass(&now, 1);
    assert!(watch.sweep());
}
