//! Tests of plans by the requests that servers receive: threads, targets, warm-up, mixes, values,
//! scripts.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;

use super::server::{Answer, Server};
use load::script::{Scripts, Source};
use load::url::Url;
use load::{
    Arrival, Control, Error, KeyOrder, Keys, Method, Pace, Plan, Requests, Target, TargetMode,
};

fn plan(server: &Server) -> Plan {
    Plan {
        connections: 7,
        threads: 3,
        pace: Pace::Open(500.0),
        duration: Duration::from_secs(1),
        drain: Duration::from_secs(20),
        ..Plan::new(Target::new(server.address(), "/{key}"))
    }
}

fn ok() -> Server {
    Server::start(|_| Answer::value(b"x"))
}

#[test]
fn threads_share_keys_and_slots_without_a_gap() {
    let keys = Keys { order: KeyOrder::Sequential, count: 1000, len: 16 };
    for pace in [Pace::Open(500.0), Pace::Closed] {
        let server = ok();
        let outcome = load::run(&Plan { pace, keys, limit: 500, ..plan(&server) }).unwrap();
        assert_eq!((outcome.planned, outcome.answer_count()), (500, 500), "{outcome}");
        let paths: BTreeSet<String> = server.requests().into_iter().map(|(line, _)| line).collect();
        let expected = (0..500).map(|i| format!("GET /k{i:015} HTTP/1.1"));
        assert_eq!(paths, expected.collect(), "{pace:?}");
        assert_eq!(outcome.busy.len(), 3);
    }
}

#[test]
fn poisson_arrivals_are_all_sent() {
    let server = ok();
    let outcome = load::run(&Plan { arrival: Arrival::Poisson, ..plan(&server) }).unwrap();
    assert_eq!(outcome.planned, outcome.answer_count(), "{outcome}");
    assert!((300..700).contains(&outcome.planned), "{outcome}");
    assert_eq!(server.requests().len() as u64, outcome.planned);
}

#[test]
fn less_than_one_request_a_second_is_a_rate_too() {
    let server = ok();
    let plan = Plan { pace: Pace::Open(0.9), connections: 3, ..plan(&server) };
    assert_eq!(load::run(&plan).unwrap().answer_count(), 1);
    let plan = Plan { duration: Duration::from_millis(1200), ..plan };
    assert_eq!(load::run(&plan).unwrap().answer_count(), 2);
}

#[test]
fn the_warm_up_is_sent_and_not_counted() {
    let server = ok();
    let outcome = load::run(&Plan { warmup: Duration::from_millis(500), ..plan(&server) }).unwrap();
    assert_eq!((outcome.planned, outcome.answer_count(), outcome.tally.sent), (500, 500, 500));
    assert_eq!(server.requests().len(), 750);
}

#[test]
fn targets_each_get_the_full_load_or_share_it() {
    for (target_mode, expected) in [(TargetMode::Each, 500), (TargetMode::Spread, 250)] {
        let servers = [(); 2].map(|()| ok());
        let targets = servers.iter().map(|server| Target::new(server.address(), "/{key}"));
        let targets = targets.collect();
        let plan = Plan { targets, target_mode, connections: 6, ..plan(&servers[0]) };
        let outcome = load::run(&plan).unwrap();
        assert_eq!(servers.each_ref().map(|server| server.requests().len()), [expected; 2]);
        assert_eq!(outcome.answer_count(), 2 * expected as u64);
        if target_mode == TargetMode::Each {
            let each: Vec<u64> = outcome.by_target.iter().map(|(_, t)| t.statuses.all()).collect();
            assert_eq!(each, [500, 500]);
        }
    }
}

#[test]
fn values_are_checked_against_what_was_written() {
    let server = Server::start(|_| Answer::new_stored());
    let keys = Keys { order: KeyOrder::Sequential, count: 100, len: 16 };
    for value_len in [0, 5, 3000] {
        let base = Plan { pace: Pace::Closed, limit: 100, keys, value_len, ..plan(&server) };
        let put = load::run(&Plan { put_percent: 100, ..base.clone() }).unwrap();
        assert_eq!(put.tally.statuses.of(201), 100);
        let get = Plan { verify: true, ..base };
        let outcome = load::run(&get).unwrap();
        assert_eq!((outcome.tally.statuses.of(200), outcome.tally.wrong_values), (100, 0));
        let other = load::run(&Plan { value_len: 1 + value_len, ..get.clone() }).unwrap();
        assert_eq!(other.tally.wrong_values, 100, "{value_len}");
        assert!(other.warnings().iter().any(|warning| warning.code() == "wrong-values"));
        let missing = Keys { order: KeyOrder::Sequential, count: 100, len: 17 };
        let absent = load::run(&Plan { keys: missing, ..get }).unwrap();
        assert_eq!((absent.tally.statuses.of(404), absent.tally.wrong_values), (100, 0));
    }
}

#[test]
fn latest_order_reads_keys_that_were_written() {
    let server = Server::start(|_| Answer::new_stored());
    let keys = Keys { order: KeyOrder::Latest(10), count: 1_000_000, len: 16 };
    let plan = Plan { pace: Pace::Closed, limit: 600, put_percent: 50, keys, ..plan(&server) };
    let outcome = load::run(&Plan { verify: true, ..plan }).unwrap();
    let gets = outcome.tally.latencies(Method::Get).map_or(0, |of| of.intended.len());
    assert!(gets > 200);
    // A `GET` before the first answered `PUT` of its thread finds no value.
    assert!(outcome.tally.statuses.of(404) < 60, "{outcome}");
    assert_eq!(outcome.tally.wrong_values, 0);
}

#[test]
fn seconds_are_published_during_the_run_and_add_up() {
    let server = ok();
    let seconds = Mutex::new(Vec::new());
    let control = Control::default().on_interval(|interval| {
        let tally = &interval.tally;
        let answered = tally.all_latencies().intended.len();
        seconds.lock().push((interval.start_s, tally.sent, answered));
    });
    let duration = Duration::from_millis(2300);
    let outcome = load::run_under(&Plan { duration, ..plan(&server) }, &mut [], &control).unwrap();
    drop(control);
    let seconds = seconds.into_inner();
    assert!(seconds.len() >= 3 && seconds.is_sorted(), "{seconds:?}");
    assert_eq!(seconds.iter().map(|second| second.1).sum::<u64>(), outcome.planned);
    assert_eq!(seconds.iter().map(|second| second.2).sum::<u64>(), outcome.answer_count());
}

/// Runs a script for each of the plan's threads.
fn run_script(plan: &Plan, server: &Server, lua: &str) -> Result<load::Outcome, Error> {
    let file = tempfile::NamedTempFile::with_suffix(".lua").expect("a file");
    std::fs::write(file.path(), lua).expect("a script");
    let source = Source {
        file: Some(file.path().to_owned()),
        url: Url::parse(&format!("http://{}/base", server.address())).expect("a URL"),
        spread: Vec::new(),
        headers: Vec::new(),
        args: Vec::new(),
        addresses: vec![server.address()],
    };
    let mut scripts = Scripts::load(&[source], plan.workers()).expect("it loads");
    let plan = Plan { requests: Requests::Script, ..plan.clone() };
    load::run_under(&plan, scripts.threads(), &Control::default())
}

#[test]
fn a_script_makes_requests_and_receives_answers() {
    let server = Server::start(|n| match n % 2 {
        0 => Answer::value(b"even"),
        _ => Answer { status: "404 Not Found", ..Answer::value(b"odd") },
    });
    let lua = r#"
        n = 0
        function request()
            n = n + 1
            return wrk.format(n % 2 == 0 and "PUT" or "GET", "/" .. n, nil, "body")
        end
        function response(status, headers, body)
            local right = { [200] = "even", [404] = "odd" }
            if right[status] ~= body or headers["Content-Length"] ~= tostring(#body) then
                error("got " .. status .. " " .. body)
            end
        end"#;
    let outcome = run_script(&plan(&server), &server, lua).unwrap();
    assert_eq!((outcome.planned, outcome.answer_count()), (500, 500), "{outcome}");
    assert_eq!(outcome.tally.statuses.of(404), 250);
    for method in [Method::Get, Method::Put] {
        let samples = outcome.tally.latencies(method).unwrap().intended.len();
        assert!((245..=255).contains(&samples), "{samples}");
    }
    assert!(server.requests().iter().all(|(_, length)| *length == 4));
}

#[test]
fn pipelined_requests_keep_the_rate_and_are_all_counted() {
    let server = ok();
    let lua = r#"
        function init(args)
            local one = wrk.format("GET", "/one")
            three = one .. wrk.format("GET", "/two") .. wrk.format("GET", "/three")
        end
        function request() return three end"#;
    for (batch_latency, samples) in [(false, 300), (true, 100)] {
        let plan = Plan { pace: Pace::Open(300.0), batch_latency, ..plan(&server) };
        let outcome = run_script(&plan, &server, lua).unwrap();
        assert_eq!((outcome.planned, outcome.answer_count()), (300, 300), "{outcome}");
        assert_eq!(outcome.all_methods().intended.len(), samples);
    }
    assert_eq!(server.requests().len(), 600);
}

#[test]
fn a_script_that_fails_stops_all_threads() {
    let server = ok();
    let lua = r#"
        n = 0
        function request()
            n = n + 1
            if n > 20 then error("no more") end
            return wrk.format("GET", "/")
        end"#;
    let plan = Plan { duration: Duration::from_secs(3600), ..plan(&server) };
    let error = run_script(&plan, &server, lua).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Script(_)) && text.contains("no more"), "{text}");
    assert!(text.contains(".lua:5") && text.contains("request"), "{text}");
}

#[test]
fn a_script_can_stop_its_thread_and_have_it_wait() {
    let server = ok();
    let lua = r#"
        n = 0
        function delay() return 1 end
        function response()
            n = n + 1
            if n == 10 then wrk.thread:stop() end
        end"#;
    let duration = Duration::from_secs(3600);
    let plan = Plan { pace: Pace::Closed, duration, connections: 3, ..plan(&server) };
    let outcome = run_script(&plan, &server, lua).unwrap();
    assert_eq!((outcome.planned, outcome.answer_count()), (30, 30), "{outcome}");
    assert!(!outcome.interrupted);
    // Ten delays of a millisecond, one before each request.
    assert!(outcome.elapsed >= Duration::from_millis(10), "{:?}", outcome.elapsed);
}

#[test]
fn a_thread_stopped_in_setup_has_no_due_requests() {
    let server = ok();
    let lua = "function setup(thread) thread:stop() end";
    for pace in [Pace::Closed, Pace::Open(500.0)] {
        let outcome = run_script(&Plan { pace, ..plan(&server) }, &server, lua).unwrap();
        assert_eq!((outcome.planned, outcome.tally.unfinished), (0, 0), "{outcome}");
    }
    assert!(server.requests().is_empty());
}

#[test]
fn each_target_has_the_rates_of_its_own_threads() {
    let servers = [(); 2].map(|()| ok());
    let targets = servers.iter().map(|server| Target::new(server.address(), "/{key}")).collect();
    let target_mode = TargetMode::Each;
    let outcome =
        load::run(&Plan { targets, target_mode, connections: 6, ..plan(&servers[0]) }).unwrap();
    let samples = outcome.thread_rates_by_target.iter().map(|rates| rates.len());
    assert_eq!(samples.clone().count(), 2);
    assert_eq!(samples.sum::<u64>(), outcome.thread_rates.len());
}

#[test]
fn there_is_a_script_for_each_thread_or_none() {
    let server = ok();
    let plan = Plan { requests: Requests::Script, ..plan(&server) };
    assert!(matches!(load::run(&plan), Err(Error::Plan(_))));
}
