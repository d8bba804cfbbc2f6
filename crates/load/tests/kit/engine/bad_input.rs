//! Misbehaving servers, and invalid plans. Each run must end in time, and count each due request
//! once.

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::server::{Answer, Server};
use load::{Control, Outcome, Pace, Plan, RunWarning, Target};

/// Returns a plan of 200 requests per second on four connections for a second.
fn plan(server: &Server) -> Plan {
    Plan {
        connections: 4,
        threads: 2,
        pace: Pace::Open(200.0),
        duration: Duration::from_secs(1),
        drain: Duration::from_millis(100),
        ..Plan::new(Target::new(server.address(), "/{key}"))
    }
}

/// Runs the plan against a server with these answers, and checks that every request is counted.
fn run(answer: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Outcome {
    let server = Server::start(answer);
    let outcome = load::run(&plan(&server)).expect("the run takes place");
    assert_every_request_is_counted(&outcome);
    outcome
}

fn assert_every_request_is_counted(outcome: &Outcome) {
    let seen =
        outcome.answer_count() + outcome.tally.unfinished + outcome.tally.errors.count_lost();
    assert_eq!(outcome.planned, seen, "{outcome}");
    let samples = outcome.all_methods().intended.len();
    assert_eq!(samples, outcome.answer_count() + outcome.tally.unfinished, "{outcome}");
    assert_eq!(outcome.counts().planned, outcome.planned);
}

fn has_warning(outcome: &Outcome, code: &str) -> bool {
    outcome.warnings().iter().any(|warning| warning.code() == code)
}

/// Returns the text of the warning with this code.
fn warning_text(outcome: &Outcome, code: &str) -> String {
    let warning = outcome.warnings().into_iter().find(|warning| warning.code() == code);
    warning.map(|warning| warning.to_string()).unwrap_or_else(|| panic!("no {code}: {outcome}"))
}

#[test]
fn a_dead_server_is_retried_and_leaves_requests_unfinished() {
    let outcome = run(|n| Answer { die: n == 50, ..Answer::value(b"x") });
    assert!(outcome.answer_count() >= 40, "{outcome}");
    assert!(outcome.tally.errors.connect > 0, "it is tried again");
    assert!(outcome.tally.unfinished > 100, "what was due later");
    assert!(
        has_warning(&outcome, "unfinished") && has_warning(&outcome, "rate-unreached"),
        "{outcome}"
    );
}

#[test]
fn reset_requests_count_as_lost() {
    let outcome = run(|n| Answer { reset: n % 3 == 0, ..Answer::value(b"x") });
    assert!(outcome.tally.errors.count_lost() >= 50, "{outcome}");
    assert!(outcome.answer_count() >= 100, "{outcome}");
    assert!(has_warning(&outcome, "errors"));
}

#[test]
fn requests_without_an_answer_count_as_unfinished() {
    let start = Instant::now();
    let outcome = run(|_| Answer { silent: true, ..Answer::value(b"") });
    assert_eq!((outcome.answer_count(), outcome.tally.unfinished), (0, 200));
    assert_eq!(outcome.tally.sent, 4, "one on each connection");
    // The first request was due at the start, so it waited through plan and drain.
    let waited = outcome.all_methods().intended.max();
    assert!(waited >= 1_099_000_000 && waited <= start.elapsed().as_nanos() as u64 * 1001 / 1000);
}

#[test]
fn answers_that_are_not_http_are_counted_as_garbage() {
    let outcome = run(|_| Answer::verbatim(b"SSH-2.0-OpenSSH\r\n\r\n"));
    assert_eq!(outcome.answer_count(), 0);
    assert!(outcome.tally.errors.read > 100, "{outcome}");
    let garbage = &outcome.tally.garbage;
    assert_eq!((garbage.all(), garbage.answers), (garbage.answers, outcome.tally.errors.read));
    let text = warning_text(&outcome, "no-http");
    assert!(text.contains("answers were not HTTP/1.1 (first bytes: \"SSH-2.0-OpenSSH"), "{text}");
    assert!(!has_warning(&outcome, "errors"), "the same is not said twice: {outcome}");
}

#[test]
fn a_greeting_before_the_first_request_is_warned_of() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let greets = std::thread::spawn(move || {
        let greeted = listener.incoming().take_while(|_| !stopped.load(Ordering::SeqCst));
        greeted.for_each(|stream| {
            let _ = stream.unwrap().write_all(b"220 mail.example\r\n\r\n");
        });
    });
    let target = Target::new(address, "/{key}");
    // The first request of the second connection is due after the greeting.
    let slow = Plan { connections: 2, threads: 1, pace: Pace::Open(4.0), ..Plan::new(target) };
    let outcome = load::run(&Plan { duration: Duration::from_millis(500), ..slow }).unwrap();
    stop.store(true, Ordering::SeqCst);
    drop(TcpStream::connect(address));
    greets.join().unwrap();
    assert_every_request_is_counted(&outcome);
    let text = warning_text(&outcome, "no-http");
    assert!(text.contains("first bytes: \"220 mail.example"), "{text}");
}

#[test]
fn two_different_content_lengths_are_not_http() {
    let outcome = run(|_| {
        let two = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok";
        Answer::verbatim(two)
    });
    assert_eq!(outcome.answer_count(), 0, "{outcome}");
    let text = warning_text(&outcome, "no-http");
    assert!(text.contains("Length: 2\\r\\nContent-Length: 3"), "{text}");
}

#[test]
fn lines_may_end_with_a_line_feed_alone() {
    let outcome = run(|_| Answer::verbatim(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok"));
    assert_eq!(outcome.tally.statuses.of(200), 200, "{outcome}");
}

#[test]
fn answers_after_the_timeout_are_warned_of() {
    let server = Server::start(|_| Answer::value(b"x"));
    let timeout = Duration::from_nanos(1);
    let outcome = load::run(&Plan { timeout, ..plan(&server) }).unwrap();
    assert_every_request_is_counted(&outcome);
    assert_eq!(outcome.tally.errors.timeout, 200);
    let text = warning_text(&outcome, "timeouts");
    assert!(text.starts_with("200 requests (100.00 %) took longer"), "{text}");
    assert_eq!(outcome.tally.errors.refused_timeout, 0, "{outcome}");
}

#[test]
fn a_late_answer_of_500_is_counted_as_a_timeout_and_as_a_refusal() {
    let server = Server::start(|n| match n % 4 {
        0 => Answer::verbatim(b"HTTP/1.1 500 Failed\r\nContent-Length: 0\r\n\r\n"),
        _ => Answer::value(b"x"),
    });
    let timeout = Duration::from_nanos(1);
    let outcome = load::run(&Plan { timeout, ..plan(&server) }).unwrap();
    let counts = outcome.counts();
    assert!(counts.refused > 0 && counts.refused < counts.answered, "{outcome}");
    assert_eq!(counts.refused_timeouts, counts.refused, "{outcome}");
    assert_eq!(counts.timeouts - counts.unanswered_timeouts, counts.answered, "{outcome}");
}

#[test]
fn chunked_and_unsized_answers_are_read_completely() {
    let outcome = run(|n| match n % 2 {
        0 => Answer::verbatim(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        ),
        _ => {
            let answer = Answer::verbatim(b"HTTP/1.1 200 OK\r\n\r\nall of it");
            Answer { close: true, ..answer }
        }
    });
    assert_eq!((outcome.answer_count(), outcome.tally.errors.count_lost()), (200, 0), "{outcome}");
    let least = 100 * "HTTP/1.1 200 OK\r\n\r\nall of it".len() as u64;
    assert!(outcome.tally.bytes > least, "{} bytes", outcome.tally.bytes);
}

#[test]
fn a_stream_that_ends_within_a_chunk_is_a_read_error() {
    let outcome = run(|_| {
        let half = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab";
        Answer { close: true, ..Answer::verbatim(half) }
    });
    assert_eq!(outcome.answer_count(), 0);
    assert!(outcome.tally.errors.read > 100, "{outcome}");
}

#[test]
fn a_run_with_only_errors_gets_the_warning_not_success() {
    let outcome = run(|_| Answer { status: "500 Broken", ..Answer::value(b"x") });
    assert_eq!(outcome.tally.statuses.of(500), 200);
    assert_eq!(outcome.warnings()[0], RunWarning::NotSuccess { share: 1.0, status: 500 });
}

#[test]
fn redirects_are_counted_and_not_followed() {
    let server = Server::start(|_| {
        let redirect = b"HTTP/1.1 302 Found\r\nLocation: /else\r\nContent-Length: 0\r\n\r\n";
        Answer::verbatim(redirect)
    });
    let outcome = load::run(&plan(&server)).unwrap();
    assert_every_request_is_counted(&outcome);
    assert_eq!(outcome.tally.statuses.of(302), 200);
    assert_eq!(outcome.tally.statuses.refusals(), 0, "as wrk2 counts");
    assert!(has_warning(&outcome, "non-2xx"));
    assert_eq!(server.requests().len(), 200);
    assert!(server.requests().iter().all(|(line, _)| !line.contains("/else")));
}

#[test]
fn a_connection_for_each_request_is_not_an_error() {
    let server = Server::start(|_| Answer { close: true, ..Answer::value(b"bye") });
    let outcome = load::run(&plan(&server)).unwrap();
    assert_every_request_is_counted(&outcome);
    assert_eq!((outcome.answer_count(), outcome.tally.errors.count_lost()), (200, 0), "{outcome}");
    assert!(server.connections() >= 200);
    assert_eq!(outcome.counts().reconnects, 200, "{outcome}");
    let text = warning_text(&outcome, "reconnects");
    assert!(text.contains("closed the connection after 200 of 200 answers"), "{text}");
    assert!(text.ends_with("as far as a request was due in it"), "{text}");
}

#[test]
fn connections_that_are_kept_are_not_opened_again() {
    let outcome = run(|_| Answer::value(b"x"));
    assert_eq!(outcome.counts().reconnects, 0);
    assert!(!has_warning(&outcome, "reconnects"), "{outcome}");
}

#[test]
fn a_server_that_refuses_connections_is_retried_slowly() {
    let server = Server::start(|_| Answer { reset: true, ..Answer::value(b"") });
    let outcome = load::run(&plan(&server)).unwrap();
    assert_every_request_is_counted(&outcome);
    // Each of four connections is reopened at most every 10 ms.
    assert!(server.connections() <= 4 * 115, "{} connections", server.connections());
}

#[test]
fn an_unreachable_rate_gives_a_backlog_and_ends_in_time() {
    let server = Server::start(|_| Answer::value(b"x"));
    let pace = Pace::Open(5_000_000.0);
    let plan = Plan { pace, duration: Duration::from_millis(500), ..plan(&server) };
    let start = Instant::now();
    let outcome = load::run(&plan).unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "no dependence on the backlog's length");
    assert_every_request_is_counted(&outcome);
    assert_eq!(outcome.planned, 2_500_000);
    assert!(outcome.tally.unfinished > 1_000_000, "{outcome}");
    assert!(
        has_warning(&outcome, "backlog") && has_warning(&outcome, "rate-unreached"),
        "{outcome}"
    );
}

#[test]
fn a_stopped_run_returns_its_results_so_far() {
    let stop = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&stop);
    let server = Server::start(move |n| {
        ends.fetch_or(n == 50, Ordering::SeqCst);
        Answer::value(b"x")
    });
    let plan = Plan { duration: Duration::from_secs(3600), ..plan(&server) };
    let outcome = load::run_under(&plan, &mut [], &Control::new(stop)).unwrap();
    assert_every_request_is_counted(&outcome);
    assert!(outcome.interrupted && outcome.planned >= 50, "{outcome}");
    assert!(!has_warning(&outcome, "rate-unreached"));
}

#[test]
fn an_address_that_refuses_is_left_out() {
    // After the drop, nothing listens at the address.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let dead: SocketAddr = listener.local_addr().unwrap();
    drop(listener);
    let server = Server::start(|_| Answer::value(b"x"));
    let addresses = vec![dead, server.address()];
    let target = Target { addresses, ..Target::new(dead, "/{key}") };
    let outcome = load::run(&Plan { targets: vec![target], ..plan(&server) }).unwrap();
    assert_every_request_is_counted(&outcome);
    assert_eq!((outcome.answer_count(), outcome.tally.errors.connect), (200, 0), "{outcome}");
    let left_out = |warning: &RunWarning| match warning {
        RunWarning::UnreachableAddress(left_out) => left_out.address == dead,
        _ => false,
    };
    assert!(outcome.warnings().iter().any(left_out), "{outcome}");
}

#[test]
fn an_unserved_address_family_of_localhost_is_not_reported() {
    let server = Server::start(|_| Answer::value(b"x"));
    let (port, name) = (server.address().port(), "localhost".to_owned());
    let addresses = vec![SocketAddr::from((Ipv6Addr::LOCALHOST, port)), server.address()];
    let target = Target { name, ..Target::new(addresses[0], "/{key}") };
    let target = Target { addresses, ..target };
    let outcome = load::run(&Plan { targets: vec![target], ..plan(&server) }).unwrap();
    assert_every_request_is_counted(&outcome);
    assert_eq!((outcome.answer_count(), outcome.left_out.len()), (200, 0), "{outcome}");
}

#[test]
fn a_run_ended_before_it_began_sent_nothing() {
    let server = Server::start(|_| Answer::value(b"x"));
    for pace in [Pace::Closed, Pace::Open(200.0)] {
        let stop = Arc::new(AtomicBool::new(true));
        let plan = Plan { pace, ..plan(&server) };
        let outcome = load::run_under(&plan, &mut [], &Control::new(stop)).unwrap();
        assert!(outcome.interrupted);
        assert_eq!((outcome.planned, outcome.tally.sent, outcome.tally.unfinished), (0, 0, 0));
        assert_eq!(outcome.warnings(), [], "{outcome}");
    }
    assert!(server.requests().is_empty());
}

#[test]
fn more_threads_than_cpus_are_judged_by_their_sum() {
    let mut outcome = run(|_| Answer::value(b"x"));
    (outcome.busy, outcome.cpus) = (vec![0.5, 0.5, 0.48, 0.49], 2);
    let text = warning_text(&outcome, "client-limited");
    assert!(text.contains("threads used 1.97 of the 2 CPUs"), "{text}");
    outcome.cpus = 4;
    outcome.tally = Default::default();
    assert!(!has_warning(&outcome, "client-limited"), "{outcome}");
}

#[test]
fn one_connection_that_is_always_busy_is_named_as_the_limit() {
    let delay = Duration::from_millis(20);
    let server = Server::start(move |_| Answer { delay, ..Answer::value(b"x") });
    let plan = Plan { connections: 1, threads: 1, ..plan(&server) };
    let outcome = load::run(&plan).unwrap();
    assert_every_request_is_counted(&outcome);
    let limits = outcome.warnings().into_iter().find_map(|warning| match warning {
        RunWarning::ConnectionLimit { at_most } => Some(at_most),
        _ => None,
    });
    assert!(limits.is_some_and(|at_most| at_most <= 50.0), "{outcome}");
}
