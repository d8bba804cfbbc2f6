use super::*;

const WALL: u64 = 1_700_000_000_000_000;

fn at(wall: u64) -> Now {
    Now { mono: 0, wall }
}

fn start_clock(wall: u64, persisted: u64) -> Clock {
    let clock = Clock::start(7, wall, persisted);
    let bound = clock.bound_to_persist(at(wall)).expect("a new clock wants a bound");
    clock.mark_durable(bound, 0);
    clock
}

#[test]
fn the_latest_time_ignores_a_wall_clock_set_back_and_follows_most_other_clocks() {
    let (behind, others) = (at(WALL - 900), WALL + 900);
    let clock = Clock::start(7, behind.wall, Clock::time_of(WALL));
    assert_eq!(clock.latest(9, behind, 0), WALL + 9, "known from before the start");
    assert_eq!(start_clock(WALL, 0).latest(7, behind, 0), WALL + 7, "set back after the start");
    clock.note_comparison(Some((others + 5) as i64), 1);
    assert_eq!(clock.latest(0, at(WALL), 5), WALL, "one other may be wrong");
    clock.note_comparison(Some((others + 5) as i64), 2);
    let accepted = clock.cap_to_accepted(others + 6, behind);
    assert_eq!((clock.latest(0, behind, 5), accepted), (others, others + 5));
    assert!(clock.merge(Clock::time_of(WALL + 2), at(WALL), u64::MAX));
    assert_eq!(clock.latest(0, behind, 905), WALL + 2, "or what was taken in");
}

#[test]
fn issues_nothing_without_a_durable_bound() {
    let clock = Clock::start(7, WALL, 0);
    assert_eq!(clock.issue(at(WALL)), Err(NotIssued::BoundReached));
    assert_eq!(clock.issue(at(WALL + 1)), Err(NotIssued::BoundReached));
}

/// A refused time moves neither the clock nor its bound.
#[test]
fn a_wall_clock_ahead_of_most_others_issues_nothing_and_is_forgotten_once_it_is_right() {
    let clock = start_clock(WALL, 0);
    // The limit is 250 ms after `WALL` when the monotonic clock is at 7 s.
    let limit = WALL as i64 - 7_000_000 + 250_000;
    let time = |mono, wall| Now { mono, wall };
    let bound = |clock: &Clock, now| {
        if let Some(bound) = clock.bound_to_persist(now) {
            clock.mark_durable(bound, 0);
        }
    };
    clock.note_comparison(Some(limit), 2);
    assert!(clock.issue(time(7_000_000, WALL + 250_000)).is_ok());
    let near = time(7_000_000, WALL + 260_000);
    assert_eq!(clock.issue(near), Err(NotIssued::Ahead), "though its bound would allow it");
    let wrong = time(7_000_000, WALL + 300_000_000);
    bound(&clock, wrong);
    assert_eq!(clock.issue(wrong), Err(NotIssued::Ahead));
    assert_eq!(clock.issue_ballot(wrong, NodeId(0)), Err(NotIssued::Ahead));
    let later = time(8_000_000, WALL + 1_000_000);
    bound(&clock, later);
    let issued = clock.issue(later).unwrap();
    assert_eq!(issued.time, (WALL + 1_000_000) << 12, "it did not go on");
    // The bound did not advance either; a restart would begin at it.
    assert!(clock.stop() == issued.time && clock.bound_to_persist(later).is_some());
    let clock = start_clock(WALL, 0);
    clock.note_comparison(Some(limit), 2);
    let wanted = clock.bound_to_persist(time(7_600_000, WALL + 300_000_000)).unwrap();
    assert!(wanted < (WALL + 2_000_000) << 12, "{}", wanted >> 12);
    // No other clock is left to compare with: so this clock is not judged.
    clock.note_comparison(None, 0);
    bound(&clock, wrong);
    assert_eq!(clock.issue(wrong).unwrap().time, (WALL + 300_000_000) << 12);
}

#[test]
fn values_expire_by_the_wall_clock_unless_most_others_show_less() {
    let skew = 500_000;
    let clock = start_clock(WALL, (WALL + 900_000) << 12);
    let time = |shows: u64| clock.expiry_check_time(at(shows), skew);
    assert_eq!(time(WALL), WALL, "it begins at its bound, and that ends nothing");
    let others = |shows: u64| clock.note_comparison(Some((shows + skew) as i64), 2);
    for (own, most, expected) in [
        (WALL, WALL + 400_000, WALL),
        (WALL + 400_000, WALL, WALL),
        (WALL + 400_000, WALL - 100_000, WALL - 100_000),
        (WALL + 400_000, WALL - 3_600_000_000, WALL - 3_600_000_000),
        (WALL + 700_000, WALL, WALL),
        (WALL + 3_600_000_000, WALL, WALL),
    ] {
        others(most);
        assert_eq!(time(own), expected, "{own} {most}");
    }
    clock.note_comparison(None, 0);
    assert_eq!(time(WALL + 700_000), WALL + 700_000, "nobody is left");
}

/// A wrong clock does not merge the times of other clocks that are equally wrong.
#[test]
fn a_time_that_most_others_refuse_counts_as_ahead_on_a_wrong_clock_too() {
    let skew = 500_000;
    let clock = start_clock(WALL, 0);
    let wrong = at(WALL + 3_600_000_000);
    let most = WALL as i64 + skew as i64;
    let late = (WALL + 3_600_000_000) << 12;
    clock.note_comparison(Some(most), 2);
    assert!(clock.is_ahead(late, wrong, skew) && !clock.is_ahead(WALL << 12, wrong, skew));
    assert!(!clock.merge(late, wrong, skew) && !clock.merge_ballot(late, wrong, skew));
    assert!(clock.last() <= WALL << 12 && clock.now(wrong) <= Clock::limit(WALL, skew));
    assert!(!clock.is_ahead(late, wrong, u64::MAX), "what is its own was looked at before");
    // A clock that is merely fast does not follow a faster one, which no other node accepts.
    let fast = at(WALL + 300_000);
    assert!(!clock.merge((WALL + 700_000) << 12, fast, skew) && clock.issue(fast).is_ok());
    // With two clocks, either may be wrong.
    clock.note_comparison(Some(most), 1);
    assert!(!clock.is_ahead(late, wrong, skew));
    assert_eq!(clock.issue(wrong), Err(NotIssued::Ahead));
}

/// A wrong report would make an operator correct a clock that is right or behind.
#[test]
fn a_clock_that_was_ahead_before_is_not_reported_as_ahead() {
    let ahead = (WALL + 300_000_000) << 12;
    let clock = Clock::start(7, WALL, ahead);
    clock.mark_durable(ahead + (1_000_000 << 12), 0);
    clock.note_comparison(Some(WALL as i64 + 500_000), 2);
    let was_ahead = NotIssued::WasAhead { seconds: 300 };
    for wall in [WALL, WALL - 60_000_000, WALL + 500_000] {
        assert_eq!(clock.issue(at(wall)), Err(was_ahead), "{wall}");
        assert_eq!(clock.issue_ballot(at(wall), NodeId(0)), Err(was_ahead));
        assert_eq!(clock.micros_until_accepted(at(wall)), Some(299_500_000));
    }
    assert_eq!(clock.issue(at(WALL + 500_001)), Err(NotIssued::Ahead));
    assert_eq!(clock.micros_until_accepted(at(WALL + 500_001)), None, "this clock is ahead itself");
    assert!(was_ahead.to_string().contains("its clock is not ahead now"));
    let later = Now { mono: 299_500_001, wall: WALL };
    assert_eq!(clock.micros_until_accepted(later), None);
    assert!(clock.issue(later).is_ok(), "the wait is over when it was said to be");
}

#[test]
fn each_ballot_leaves_numbers_for_63_following_ballots() {
    let clock = start_clock(WALL, 0);
    let issue = |wall| clock.issue_ballot(at(wall), NodeId(0));
    let first = clock.issue(at(WALL)).unwrap().time;
    let ballot = issue(WALL).unwrap();
    assert_eq!(ballot, (WALL + 1) << COUNTER_BITS, "above what was issued");
    assert_eq!(issue(WALL), Ok((WALL + 2) << COUNTER_BITS));
    assert!(clock.issue(at(WALL)).unwrap().time > ballot && ballot > first);
    assert_eq!(issue(WALL + 9), Ok((WALL + 9) << COUNTER_BITS));
    let last = std::iter::successors(Some(ballot), |ballot| next_ballot(*ballot)).last();
    assert_eq!(last, Some(ballot + 63));
    assert!(!is_following_ballot(ballot) && is_following_ballot(ballot + 1));
    clock.stop();
    assert_eq!(issue(WALL + 10), Err(NotIssued::BoundReached));
}

#[test]
fn two_nodes_never_issue_the_same_ballot() {
    let ballots = |own| {
        let ballot = start_clock(WALL, 0).issue_ballot(at(WALL + 5), NodeId(own)).unwrap();
        assert!(!is_following_ballot(ballot));
        std::iter::successors(Some(ballot), |ballot| next_ballot(*ballot))
    };
    let mut all: Vec<u64> = (100..164).flat_map(ballots).collect();
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(all.len(), 64 * 64);
    assert!(all.iter().all(|ballot| Clock::micros(*ballot) == WALL + 5));
    let clock = start_clock(WALL, 0);
    let ballot = clock.issue_ballot(at(WALL + 5), NodeId(63)).unwrap();
    assert!(clock.issue(at(WALL + 5)).unwrap().time > ballot);
}

#[test]
fn follows_the_wall_clock_and_counts_within_a_microsecond() {
    let clock = start_clock(WALL, 0);
    let first = clock.issue(at(WALL + 5)).unwrap();
    assert_eq!(first, Version { time: (WALL + 5) << 12, origin: 7 });
    assert_eq!(clock.issue(at(WALL + 5)).unwrap().time, first.time + 1);
    assert_eq!(clock.issue(at(WALL + 6)).unwrap().time, (WALL + 6) << 12);
}

#[test]
fn versions_do_not_step_back_with_the_wall_clock() {
    let clock = start_clock(WALL, 0);
    let mut last = clock.issue(at(WALL + 100)).unwrap();
    for step in 0..10_000 {
        let next = clock.issue(at(WALL - step)).unwrap();
        assert!(next > last);
        last = next;
    }
}

#[test]
fn no_version_passes_the_bound_before_the_next_one_is_durable() {
    let clock = start_clock(WALL, 0);
    let late = WALL + 1_000_001;
    assert!(clock.issue(at(WALL + 1_000_000)).is_ok());
    assert_eq!(clock.issue(at(late)), Err(NotIssued::BoundReached));
    let bound = clock.bound_to_persist(at(late)).unwrap();
    clock.mark_durable(bound, 0);
    assert_eq!(clock.issue(at(late)).unwrap().time, late << 12);
    assert_eq!(clock.bound_to_persist(at(late)), None, "a fresh bound is far enough");
    assert!(clock.bound_to_persist(at(late + 500_001)).is_some());
}

/// Counts the versions that are refused from the time `from` on, in a run of ten seconds that
/// asks for one version each millisecond. A wanted bound becomes durable `took` microseconds
/// after the check that finds it wanted.
fn count_refusals(from: u64, took: impl Fn(u64) -> u64) -> u64 {
    let clock = start_clock(WALL, 0);
    let (mut refused, mut under_way) = (0, None);
    for now in (0..10_000_000).step_by(1_000) {
        let wall = WALL + now;
        if let Some((bound, asked, done)) = under_way.take_if(|(_, _, done)| now >= *done) {
            clock.mark_durable(bound, done - asked);
        }
        // The bound is checked every 30 ms.
        if under_way.is_none() && now % 30_000 == 0 {
            under_way = clock.bound_to_persist(at(wall)).map(|bound| (bound, now, now + took(now)));
        }
        refused += u64::from(clock.issue(at(wall)).is_err() && now >= from);
    }
    refused
}

#[test]
fn the_next_bound_is_durable_in_time_on_slow_disks_too() {
    for took in [0, 1_000, 20_000, 90_000, 400_000] {
        assert_eq!(count_refusals(0, |_| took), 0, "{took} us");
    }
    // A disk that slows down gradually causes no refusals, up to the tolerated limit.
    assert_eq!(count_refusals(0, |now| now / 20), 0);
    // A disk that slows down suddenly causes some refusals the first time, and none from then
    // on.
    let stalls = |now: u64| if now < 5_000_000 { 1_000 } else { 700_000 };
    assert!((1..1_000).contains(&count_refusals(0, stalls)));
    assert_eq!(count_refusals(8_000_000, stalls), 0);
    // A disk that stalls now and then causes no refusals either, after the first stall.
    let stalls = |now: u64| if now % 2_000_000 < 300_000 { 700_000 } else { 1_000 };
    assert_eq!(count_refusals(3_000_000, stalls), 0);
}

#[test]
fn a_disk_that_was_slow_once_does_not_keep_the_bound_far_ahead() {
    let clock = start_clock(WALL, 0);
    let ahead = |clock: &Clock, wall: u64| {
        clock.bound_to_persist(at(wall)).map(|bound| (bound >> 12) - wall)
    };
    clock.mark_durable(0, 400_000);
    assert_eq!(ahead(&clock, WALL + 500_000), Some(1_600_000));
    clock.mark_durable(0, 3_000_000);
    assert_eq!(ahead(&clock, WALL + 500_000), Some(2_000_000));
    for _ in 0..600 {
        clock.mark_durable(0, 1_000);
    }
    assert_eq!(ahead(&clock, WALL + 1_000_000), Some(1_000_000));
}

#[test]
fn the_bound_leaves_room_to_follow_a_clock_that_is_ahead() {
    let clock = start_clock(WALL, 0);
    let lead = 450_000;
    let mut wall = WALL;
    for _ in 0..20 {
        // Versions from a clock that is ahead are rare, and the clock must merge each at once.
        assert!(clock.merge((wall + lead) << 12, at(wall), 500_000));
        assert!(clock.issue(at(wall)).is_ok());
        for _ in 0..15 {
            if let Some(bound) = clock.bound_to_persist(at(wall)) {
                clock.mark_durable(bound, 1_000);
            }
            wall += 30_000;
        }
    }
    let bound = clock.bound_to_persist(at(wall + 1_000_000)).unwrap() >> 12;
    assert!(bound <= wall + 1_000_000 + lead + 1_000_000);
}

#[test]
fn a_restart_begins_above_whatever_was_issued_before() {
    let before = start_clock(WALL, 0);
    let bound = before.bound_to_persist(at(WALL)).unwrap_or((WALL + 1_000_000) << 12);
    let mut last = before.issue(at(WALL)).unwrap();
    while let Ok(version) = before.issue(at(last.time >> 12)) {
        last = version;
        if last.time & 0xfff == 0xfff && last.time >> 12 > WALL + 10 {
            break;
        }
    }
    let stepped_back = WALL - 3_600_000_000;
    let after = start_clock(stepped_back, bound);
    assert!(after.issue(at(stepped_back)).unwrap() > last);
}

#[test]
fn a_clean_stop_leaves_a_bound_just_above_the_last_version() {
    let clock = start_clock(WALL, 0);
    let last = clock.issue(at(WALL)).unwrap();
    assert_eq!(clock.stop(), last.time);
    assert_eq!(clock.issue(at(WALL + 1)), Err(NotIssued::BoundReached));
}

#[test]
fn another_clock_is_taken_in_unless_it_is_too_far_ahead() {
    let clock = start_clock(WALL, 0);
    let ahead = (WALL + 400_000) << 12 | 7;
    assert!(clock.merge(ahead, at(WALL), 500_000));
    assert!(clock.issue(at(WALL)).unwrap().time > ahead, "what is seen is behind what is issued");
    assert!(clock.merge(5, at(WALL), 500_000), "the past changes nothing");
    assert!(!clock.merge((WALL + 500_001) << 12, at(WALL), 500_000));
    assert!(clock.now(at(WALL)) < (WALL + 500_000) << 12);
    assert_eq!(clock.now(at(WALL + 1_000_000)), (WALL + 1_000_000) << 12);
}

#[test]
fn threads_never_share_a_version() {
    let clock = start_clock(WALL, 0);
    let each = 20_000;
    let mut all: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| -> Vec<u64> {
                    let mine: Vec<u64> =
                        (0..each).map(|i| clock.issue(at(WALL + i / 100)).unwrap().time).collect();
                    assert!(mine.is_sorted(), "one thread's versions only grow");
                    mine
                })
            })
            .collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4 * each as usize);
}

#[test]
fn a_time_to_live_is_added_to_the_wall_clock_or_to_what_other_nodes_sent() {
    let (skew, year) = (500_000, 31_536_000_000_000);
    let clock = start_clock(WALL, (WALL + year) << 12);
    assert!(clock.issue(at(WALL)).unwrap().time > (WALL + year) << 12);
    assert_eq!(clock.ttl_base_time(at(WALL)), WALL, "no other node has sent a time");
    assert!(clock.merge(clock.last(), at(WALL), u64::MAX), "a ballot of its own is none either");
    assert_eq!(clock.ttl_base_time(at(WALL + 9)), WALL + 9);
    assert!(
        !clock.merge_received((WALL + year) << 12, at(WALL), skew),
        "nor is one that is refused"
    );
    assert_eq!(clock.ttl_base_time(at(WALL)), WALL);
    assert!(clock.merge_received((WALL + 400_000) << 12, at(WALL), skew));
    assert_eq!(clock.ttl_base_time(at(WALL)), WALL + 400_000, "that clock may judge");
    assert_eq!(clock.ttl_base_time(at(WALL + 400_001)), WALL + 400_001);
    // With other clocks to compare with, times that this node has issued count as far as most
    // of those clocks accept them.
    clock.note_comparison(Some((WALL + skew) as i64), 2);
    assert_eq!(clock.ttl_base_time(at(WALL)), WALL + skew);
    let set_back = start_clock(WALL, 0);
    set_back.issue(at(WALL)).unwrap();
    set_back.note_comparison(Some((WALL + skew) as i64), 2);
    assert_eq!(set_back.ttl_base_time(at(WALL - year)), WALL, "no value expires early");
}

#[test]
fn a_clock_that_is_behind_adds_times_to_live_to_the_time_that_most_others_have_reached() {
    let (skew, minute) = (500_000, 60_000_000);
    let clock = start_clock(WALL - minute, 0);
    let now = |shows: u64, mono: u64| Now { wall: shows, mono };
    clock.note_comparison(Some((WALL + skew) as i64), 2);
    clock.note_reached(Some(WALL as i64 - 3));
    assert_eq!(clock.ttl_base_time(now(WALL - minute, 0)), WALL - 3);
    assert_eq!(clock.ttl_base_time(now(WALL - minute + 9, 9)), WALL + 6, "they go on");
    assert_eq!(clock.ttl_base_time(now(WALL + 10, 9)), WALL + 10, "this one is not behind");
    clock.note_comparison(None, 0);
    clock.note_reached(None);
    assert_eq!(clock.ttl_base_time(now(WALL - minute, 9)), WALL - minute, "nobody is left");
}

#[test]
fn a_single_node_trusts_no_more_time_than_has_passed_since_its_start() {
    let hour = 3_600_000_000;
    let ahead = Clock::start(7, WALL + 25 * hour, WALL << COUNTER_BITS);
    assert_eq!(ahead.certain_time(0, WALL + 25 * hour), WALL);
    assert_eq!(ahead.certain_time(hour, WALL + 26 * hour), WALL + hour);
    assert_eq!(ahead.certain_time(hour, WALL + 9), WALL + 9, "the clock was set right");
    assert_eq!(Clock::start(7, WALL, 0).certain_time(5, WALL + 5), WALL + 5, "it is new");
}

#[test]
fn origins_are_stable() {
    assert_eq!(origin_of("http://127.0.0.1:8080"), origin_of("http://127.0.0.1:8080"));
    assert_ne!(origin_of("a"), origin_of("b"));
}
