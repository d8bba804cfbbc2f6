//! Compares percentiles with the true values, which lie between two times that the server records:
//! the client read an answer after the server had sent it, and before the next request on its
//! connection arrived. The bounds therefore hold on any machine. On a connection that is always
//! behind its plan, the bounds are tens of microseconds apart.

use std::time::Duration;

use load::{Arrival, Outcome, Pace, Plan, Target};

use super::server::{Answer, Server};

const RATE: f64 = 400.0;

/// Runs a plan for one connection, faster than the server answers.
fn run(delay: impl Fn(usize) -> Duration + Send + Sync + 'static) -> (Server, Outcome) {
    let server = Server::start(move |n| Answer { delay: delay(n), ..Answer::value(b"x") });
    let plan = Plan {
        connections: 1,
        pace: Pace::Open(RATE),
        arrival: Arrival::Even,
        duration: Duration::from_millis(500),
        drain: Duration::from_secs(60),
        ..Plan::new(Target::new(server.address(), "/{key}"))
    };
    let outcome = load::run(&plan).expect("the run takes place");
    (server, outcome)
}

/// Returns the nanoseconds from slot `number` until each moment, ascending.
fn since_slots(outcome: &Outcome, moments: impl Iterator<Item = std::time::Instant>) -> Vec<u64> {
    let start = outcome.started;
    let took = |(number, at): (usize, std::time::Instant)| {
        let intended = Duration::from_secs_f64(number as f64 / RATE);
        at.duration_since(start).saturating_sub(intended).as_nanos() as u64
    };
    let mut all: Vec<u64> = moments.enumerate().map(took).collect();
    all.sort_unstable();
    all
}

fn assert_within_true_bounds(server: &Server, outcome: &Outcome) {
    let times = server.times();
    assert_eq!((times.len(), outcome.answer_count()), (200, 200), "{outcome}");
    let least = since_slots(outcome, times.iter().map(|times| times.answered));
    // The last answer has no next request, and was read by the end of the run.
    let end = outcome.started + outcome.elapsed;
    let next = times.iter().skip(1).map(|times| times.arrived).chain([end]);
    let most = since_slots(outcome, next);
    let recorded = outcome.all_methods().intended;
    for (rank, (&least, &most)) in least.iter().zip(&most).enumerate() {
        let value = recorded.value_at_quantile((rank as f64 + 0.5) / 200.0);
        // The tolerances are those of a histogram of three digits, and of slots in whole
        // nanoseconds.
        assert!(value + 1 >= least, "rank {rank}: {value} recorded, it took at least {least}");
        assert!(
            value as f64 <= most as f64 * 1.001 + 1.0,
            "rank {rank}: {value} recorded, it took at most {most}"
        );
    }
}

#[test]
fn percentiles_of_fixed_service_times_are_true() {
    let (server, outcome) = run(|_| Duration::from_millis(4));
    assert_within_true_bounds(&server, &outcome);
}

#[test]
fn percentiles_of_mixed_service_times_are_true() {
    let (server, outcome) = run(|n| Duration::from_millis(if n % 10 == 0 { 20 } else { 3 }));
    assert_within_true_bounds(&server, &outcome);
}

#[test]
fn a_stall_shows_in_full_at_each_percentile_that_it_touches() {
    let stall = Duration::from_millis(100);
    let (server, outcome) = run(move |n| if n == 60 { stall } else { Duration::from_millis(3) });
    assert_within_true_bounds(&server, &outcome);
    // Slots 60 to 99, a fifth of all, were due during the stall, and waited for its end.
    let recorded = outcome.all_methods();
    let quarter = recorded.intended.count_between(50_000_000, u64::MAX);
    assert!(quarter >= 20, "{outcome}");
    let sent = recorded.written.count_between(50_000_000, u64::MAX);
    assert!(sent < quarter, "counted from sending it is one request: {sent}");
}
