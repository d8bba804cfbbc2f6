//! Tests of the generator against a small server with known delays. A busy machine only adds delay,
//! so every bound on a time is a lower bound.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use super::server::{Answer, Server};
use load::{Error, KeyOrder, Keys, Method, Outcome, Pace, Plan, Requests, RunWarning, Target};

fn target(server: &Server) -> Target {
    Target::new(server.address(), "/v0/entity?id={key}")
}

fn plan(server: &Server) -> Plan {
    Plan {
        connections: 1,
        pace: Pace::Open(100.0),
        duration: Duration::from_secs(1),
        drain: Duration::from_secs(20),
        ..Plan::new(target(server))
    }
}

fn at_least(histogram: &hdrhistogram::Histogram<u64>, limit: Duration) -> u64 {
    histogram.count_between(limit.as_nanos() as u64, u64::MAX)
}

fn samples(outcome: &Outcome, method: Method) -> u64 {
    outcome.tally.latencies(method).map_or(0, |latencies| latencies.intended.len())
}

#[test]
fn every_slot_of_the_plan_is_sent_and_answered() {
    let server = Server::start(|_| Answer::value(b"hello"));
    let plan = Plan { connections: 7, pace: Pace::Open(1000.0), ..plan(&server) };
    let outcome = load::run(&plan).unwrap();
    assert_eq!(outcome.planned, 1000);
    assert_eq!(outcome.tally.statuses.success(), 1000);
    assert_eq!(outcome.tally.unfinished, 0);
    assert_eq!(outcome.all_methods().intended.len(), 1000);
    assert_eq!(server.requests().len(), 1000);
}

#[test]
fn a_stall_delays_every_request_due_during_it() {
    let stall = Duration::from_millis(400);
    let server = Server::start(move |n| Answer {
        delay: if n == 20 { stall } else { Duration::ZERO },
        ..Answer::value(b"hello")
    });
    let outcome = load::run(&plan(&server)).unwrap();
    // Of 100 requests per second, those due in the first 300 ms of the stall waited at least 100
    // ms.
    assert!(at_least(&outcome.all_methods().intended, Duration::from_millis(99)) >= 30);
    assert!(outcome.all_methods().intended.max() >= stall.as_nanos() as u64);
    // From the write, only the request that met the stall is slow (and any that the machine
    // delayed).
    let written = at_least(&outcome.all_methods().written, Duration::from_millis(99));
    assert!(
        written >= 1
            && written < at_least(&outcome.all_methods().intended, Duration::from_millis(99))
    );
}

#[test]
fn an_unanswered_request_counts_with_its_waiting_time() {
    let server = Server::start(|n| Answer { silent: n >= 10, ..Answer::value(b"") });
    let plan = Plan { drain: Duration::from_millis(200), ..plan(&server) };
    let outcome = load::run(&plan).unwrap();
    assert_eq!(outcome.planned, 100);
    assert_eq!(outcome.tally.statuses.success(), 10);
    assert_eq!(outcome.tally.unfinished, 90);
    assert_eq!(outcome.all_methods().intended.len(), 100);
    // Each of the 90 requests waited through the drain, and the first also through the plan.
    assert!(at_least(&outcome.all_methods().intended, Duration::from_millis(199)) >= 90);
    assert!(at_least(&outcome.all_methods().intended, Duration::from_millis(1000)) >= 1);
    assert!(
        outcome.warnings().iter().any(|w| matches!(w, RunWarning::BacklogGrowing { .. })),
        "{outcome}"
    );
}

#[test]
fn a_closed_loop_sends_each_key_once_and_stops_at_the_limit() {
    let server = Server::start(|_| Answer { status: "201 Created", ..Answer::value(b"") });
    let plan = Plan {
        connections: 5,
        pace: Pace::Closed,
        duration: Duration::from_secs(60),
        limit: 500,
        put_percent: 100,
        keys: Keys { order: KeyOrder::Sequential, count: 500, len: 9 },
        value_len: 33,
        ..plan(&server)
    };
    let outcome = load::run(&plan).unwrap();
    assert_eq!(outcome.tally.statuses.success(), 500);
    assert_eq!(samples(&outcome, Method::Put), 500);
    assert_eq!(samples(&outcome, Method::Get), 0);
    let mut requests = server.requests();
    requests.sort();
    let expected: Vec<_> =
        (0..500).map(|i| (format!("PUT /v0/entity?id=k{i:08} HTTP/1.1"), 33)).collect();
    assert_eq!(requests, expected);
}

#[test]
fn a_mix_keeps_the_methods_apart() {
    let server = Server::start(|_| Answer::value(b"x"));
    let plan = Plan { pace: Pace::Closed, limit: 400, put_percent: 50, ..plan(&server) };
    let outcome = load::run(&plan).unwrap();
    let puts = server.requests().iter().filter(|(line, _)| line.starts_with("PUT")).count() as u64;
    assert!(puts > 100 && puts < 300, "{puts} of 400");
    assert_eq!(samples(&outcome, Method::Put), puts);
    assert_eq!(samples(&outcome, Method::Get), 400 - puts);
}

#[test]
fn answers_other_than_2xx_are_counted_and_warned_about() {
    let server = Server::start(|n| Answer {
        status: ["200 OK", "404 Not Found", "503 Busy", "500 Bad"][n % 4],
        ..Answer::value(b"text")
    });
    let outcome = load::run(&Plan { limit: 40, ..plan(&server) }).unwrap();
    let counts = outcome.tally.statuses.by_status();
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [200, 404, 500, 503].map(|s| (s, 10)));
    let refused = |w: &RunWarning| matches!(w, RunWarning::NotSuccess { share: 0.75, .. });
    assert!(outcome.warnings().iter().any(refused), "{outcome}");
}

#[test]
fn a_connection_that_closes_is_opened_again() {
    let server = Server::start(|n| Answer { close: n % 10 == 9, ..Answer::value(b"bye") });
    let outcome = load::run(&plan(&server)).unwrap();
    assert_eq!(outcome.tally.statuses.success(), 100);
    assert_eq!(
        outcome.tally.errors.read + outcome.tally.errors.write + outcome.tally.errors.connect,
        0
    );
    assert!(server.connections() >= 10);
}

#[test]
fn a_request_cut_off_is_an_error_not_an_answer() {
    let server = Server::start(|n| Answer { cut: n == 5, ..Answer::value(b"whole") });
    let outcome = load::run(&plan(&server)).unwrap();
    assert_eq!(outcome.tally.errors.read, 1);
    assert_eq!(outcome.tally.statuses.success(), 99);
}

#[test]
fn an_address_without_a_listener_is_an_error_at_once() {
    // After the drop, nothing listens at the address.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    drop(listener);
    let error = load::run(&Plan::new(Target::new(address, "/"))).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
}

#[test]
fn a_plan_that_cannot_be_carried_out_is_refused() {
    let server = Server::start(|_| Answer::value(b""));
    for wrong in [
        Plan { connections: 0, ..plan(&server) },
        Plan { pace: Pace::Open(0.0), ..plan(&server) },
        Plan { put_percent: 101, ..plan(&server) },
        Plan { duration: Duration::ZERO, ..plan(&server) },
        Plan { targets: vec![Target::new(server.address(), "/a b")], ..plan(&server) },
        Plan { threads: 2, ..plan(&server) },
        Plan { headers: vec!["no colon".to_owned()], ..plan(&server) },
        Plan { headers: vec!["a: b\r\nc: d".to_owned()], ..plan(&server) },
        Plan { keys: Keys { len: 3, ..Keys::default() }, ..plan(&server) },
    ] {
        assert!(matches!(load::run(&wrong), Err(Error::Plan(_))), "{wrong:?}");
    }
    assert!(server.requests().is_empty());
}

#[test]
fn connections_are_spread_over_targets_and_callers_can_make_requests() {
    let servers = [(); 3].map(|()| Server::start(|_| Answer::value(b"")));
    let plan = Plan {
        targets: servers.iter().map(target).collect(),
        connections: 6,
        pace: Pace::Closed,
        limit: 60,
        keys: Keys { order: KeyOrder::Sequential, count: 1000, len: 16 },
        requests: Requests::Custom(|put, number, out| {
            assert!(!put);
            out.extend_from_slice(format!("GET /own/{number} HTTP/1.1\r\n\r\n").as_bytes());
        }),
        ..plan(&servers[0])
    };
    assert_eq!(load::run(&plan).unwrap().answer_count(), 60);
    let mut paths: Vec<String> = Vec::new();
    for server in &servers {
        let requests = server.requests();
        assert!(requests.len() >= 2, "two connections each");
        paths.extend(requests.into_iter().map(|(head, _)| head));
    }
    for number in 0..60 {
        let path = format!("/own/{number} ");
        assert_eq!(paths.iter().filter(|head| head.contains(&path)).count(), 1, "{path}");
    }
}
